//! A jail for a process that reads what a guest has written: from [`Jail::enter`] on it has its open files, and beside them only what it
//! was given, whatever runs in it (decision 34).

#![forbid(unsafe_code)]

mod files;
mod filter;
pub mod older;
mod system_calls;
mod user;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::set_no_new_privs;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
pub use system_calls::{Condition, SystemCalls};

/// What a process may do after it has entered.
///
/// Files that are open stay open, and can be used as before. Without more it may open no file, connect to no TCP port, send signals to no
/// other process, and gain no privileges by a program that it runs.
#[derive(Debug, Default)]
pub struct Jail {
    files: Vec<(PathBuf, files::Access)>,
    connects: bool,
    has_own_user: bool,
    memory_bytes: Option<u64>,
    descriptors: Option<u64>,
    system_calls: Option<SystemCalls>,
}

impl Jail {
    /// A jail from which no file can be opened. It has no limits, and all system calls.
    pub fn new() -> Jail {
        Jail::default()
    }

    /// A file, or a folder with all that is in it, which may be read.
    pub fn read_only(mut self, path: impl Into<PathBuf>) -> Jail {
        self.files.push((path.into(), files::Access::Read));
        self
    }

    /// A file, or a folder with all that is in it, which may be read and written; files may be made and removed in it.
    pub fn read_write(mut self, path: impl Into<PathBuf>) -> Jail {
        self.files.push((path.into(), files::Access::Write));
        self
    }

    /// The terminal of this process, if there is one, may be opened to be read and to find its size.
    pub fn terminal(mut self) -> Jail {
        const TERMINAL: &str = "/dev/tty";
        if Path::new(TERMINAL).exists() {
            self.files.push((TERMINAL.into(), files::Access::Terminal));
        }
        self
    }

    /// It may connect to TCP ports.
    pub fn tcp_connections(mut self) -> Jail {
        self.connects = true;
        self
    }

    /// A process of root becomes a user and group that no other process has, without capabilities. One of another user stays as it is, but
    /// loses its capabilities.
    pub fn own_user(mut self) -> Jail {
        self.has_own_user = true;
        self
    }

    /// Limits the memory that is the process's own: heap, and private mappings that can be written (`RLIMIT_DATA`). Memory that it
    /// shares with another process does not count. An allocation beyond it fails.
    pub fn memory_bytes(mut self, bytes: u64) -> Jail {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Limits the number of open files: new ones have descriptors below `count`.
    pub fn descriptors(mut self, count: u64) -> Jail {
        self.descriptors = Some(count);
        self
    }

    /// Limits the system calls. Another one ends the process by `SIGSYS`, except for those that `system_calls` refuses.
    pub fn system_calls(mut self, system_calls: SystemCalls) -> Jail {
        self.system_calls = Some(system_calls);
        self
    }

    /// Enters, for the rest of the process's life. The process must not have started threads: most of the walls would not be around those.
    ///
    /// The report names the walls that this host does not have, or that it does not let this user build. All others stand.
    ///
    /// # Errors
    /// A file does not exist, a limit cannot be set, or there are threads. Some walls may stand then.
    pub fn enter(self) -> Result<Report, JailError> {
        let threads = threads().map_err(JailError::System)?;
        if threads != 1 {
            return Err(JailError::Threads(threads));
        }
        let mut missing = Vec::new();
        // What was in memory stays there.
        limit(Resource::Core, Some(0))?;
        limit(Resource::Data, self.memory_bytes)?;
        limit(Resource::Nofile, self.descriptors)?;
        // Before the user changes, who may not see all of them.
        let files = files::open(&self.files)?;
        if self.has_own_user {
            missing.extend(user::leave()?);
        }
        set_no_new_privs(true).map_err(|error| JailError::System(error.into()))?;
        missing.extend(files::restrict(files, self.connects)?);
        if let Some(system_calls) = self.system_calls {
            missing.extend(system_calls.apply());
        }
        Ok(Report { missing })
    }
}

/// How many threads this process has. A thread that was joined may still be one of them for some microseconds.
///
/// # Errors
/// The process has no `/proc`.
pub fn threads() -> io::Result<usize> {
    // Two of its links are its own; to read the folder takes eight times as long.
    let links = fs::metadata("/proc/self/task")?.nlink();
    Ok(usize::try_from(links.saturating_sub(2)).unwrap_or(usize::MAX))
}

/// Sets a limit that the process cannot raise again, if it has not a lower one.
fn limit(resource: Resource, maximum: Option<u64>) -> Result<(), JailError> {
    let Some(maximum) = maximum else { return Ok(()) };
    let maximum = Some(getrlimit(resource).maximum.map_or(maximum, |old| old.min(maximum)));
    setrlimit(resource, Rlimit { current: maximum, maximum }).map_err(|error| JailError::System(error.into()))
}

/// A wall that does not stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The kernel has no Landlock: the process can open what its user can.
    Files,
    /// The kernel has an older Landlock, without some of the walls around files, TCP ports and signals.
    SomeOfFiles,
    /// The kernel has no filters of system calls, or does not let this process set one; the reason.
    SystemCalls(String),
    /// It is still root, without capabilities: no other user is known here; the reason.
    User(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Files => write!(f, "files can be opened, because this kernel has no Landlock"),
            Missing::SomeOfFiles => {
                write!(f, "some actions on files are possible, because this kernel's Landlock is old")
            }
            Missing::SystemCalls(why) => write!(f, "all system calls are possible, because a filter is not ({why})"),
            Missing::User(why) => {
                write!(f, "it is still root, without capabilities, because it cannot become another user ({why})")
            }
        }
    }
}

/// Which walls stand.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Those that do not.
    pub missing: Vec<Missing>,
}

impl Report {
    /// A sentence about the walls that `process` does not have; `None` if all stand.
    pub fn sentence(&self, process: &str) -> Option<String> {
        let missing: Vec<String> = self.missing.iter().map(Missing::to_string).collect();
        (!missing.is_empty()).then(|| format!("{process} is jailed with gaps: {}", missing.join("; ")))
    }
}

/// Why a process cannot enter.
#[derive(Debug)]
pub enum JailError {
    /// It has started threads; how many there are.
    Threads(usize),
    /// A file that it may use cannot be found.
    Path(PathBuf, String),
    /// The kernel refused a part.
    System(io::Error),
    /// The kernel refused Landlock in a way other than not having it.
    Landlock(String),
}

impl fmt::Display for JailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JailError::Threads(count) => write!(f, "a process with {count} threads cannot enter its jail"),
            JailError::Path(path, why) => write!(f, "cannot open {}: {why}", path.display()),
            JailError::System(error) => write!(f, "cannot enter the jail: {error}"),
            JailError::Landlock(why) => write!(f, "cannot enter the jail: {why}"),
        }
    }
}

impl std::error::Error for JailError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_sentence() {
        assert_eq!(Report::default().sentence("glass disk"), None);
        let report = Report { missing: vec![Missing::Files, Missing::User("EINVAL".into())] };
        let sentence = report.sentence("glass disk").unwrap();
        assert!(sentence.starts_with("glass disk is jailed with gaps: files can be opened, because"), "{sentence}");
        assert!(sentence.contains("; it is still root"), "{sentence}");
    }

    #[test]
    fn a_process_with_threads_is_refused() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || _ = ended.recv());
        let error = Jail::new().enter().unwrap_err();
        assert!(matches!(error, JailError::Threads(2..)), "{error}");
        drop(end);
        thread.join().unwrap();
    }
}
