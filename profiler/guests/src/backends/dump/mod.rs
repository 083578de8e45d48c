//! A dump of a VM that runs: an ELF core as QEMU's `dump-guest-memory` writes it, of any VMM whose RAM we find.
//!
//! Three processes, so that none that parses what a guest has written has rights over it (decision 35):
//!
//! * the *holder* stops the VM, copies its RAM into the file and lets it run ([`serve`]);
//! * a *searcher* in a jail finds Linux's `VMCOREINFO` in the file, and returns where it is ([`systems::vmcoreinfo`](crate::systems::vmcoreinfo));
//! * the one that the user started ([`Dump`]) makes the file, starts the others, and copies that text, which it does not parse, to the notes.
//!
//! The VM stands while its RAM is copied, unless the user wants it to run; it runs if any of these processes is killed.

mod copy;
mod elf;
mod holder;
mod messages;
mod ram_only;
mod stacks;
pub(crate) mod whole;

pub use holder::serve;

use glass_profiler_core::arch::Architecture;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::backends::Backend;
use crate::backends::choose::{BackendChoice, Plan, plan};
use crate::backends::remote::Launcher;
use crate::bytes::MESSAGE_BYTES_MAX;
use crate::error::GuestError;
use crate::find::Vm;
use crate::sys::{Packets, Received};
use crate::systems::vmcoreinfo::TEXT_BYTES_MAX;
use elf::Notes;
use messages::{Outcome, Report};

/// How long to wait before the progress is shown and a wish to end is noticed.
const ROUND: Duration = Duration::from_millis(50);
/// How long a process may take to end after its last message.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// The first word of a holder's task.
const DUMP: &str = "dump";
/// The word of a searcher's task.
pub const SEARCH: &str = "vmcoreinfo";
/// The longest line of a searcher.
const LINE_BYTES_MAX: u64 = 512;
/// How long a search may take, and how long for each GiB of the file more.
const SEARCH_MAX: Duration = Duration::from_secs(20);
const SEARCH_MAX_PER_GIB: Duration = Duration::from_secs(10);

fn system(action: &str, error: io::Error) -> GuestError {
    GuestError::System { action: action.to_owned(), error }
}

/// What a holder is started for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The VMM.
    pub pid: u32,
    /// By which backend it is stopped; by none, it is not, and its registers are not read.
    pub backend: Option<Backend>,
    /// The VM runs while its RAM is copied.
    pub is_live: bool,
}

impl Task {
    /// As words of a command line.
    pub fn to_arguments(&self) -> Vec<String> {
        let backend = match self.backend {
            Some(Backend::Kvm) => "kvm",
            Some(Backend::Gdbstub | Backend::Monitor) => "gdbstub",
            None => "none",
        };
        let how = if self.is_live { "live" } else { "stopped" };
        vec![DUMP.to_owned(), backend.to_owned(), how.to_owned(), self.pid.to_string()]
    }

    /// The opposite; `None` if the words are others.
    pub fn of_arguments(words: &[String]) -> Option<Task> {
        let [first, backend, how, pid] = words else { return None };
        let backend = match backend.as_str() {
            "kvm" => Some(Backend::Kvm),
            "gdbstub" => Some(Backend::Gdbstub),
            "none" => None,
            _ => return None,
        };
        let is_live = match how.as_str() {
            "live" => true,
            "stopped" => false,
            _ => return None,
        };
        Some(Task { pid: pid.parse().ok()?, backend, is_live }).filter(|_| first == DUMP)
    }
}

/// What a dump is to be.
pub struct Dump<'a> {
    /// The VM.
    pub vm: &'a Vm,
    /// How it may be stopped.
    pub backend: BackendChoice,
    /// It runs while its RAM is copied: structures may be torn.
    pub is_live: bool,
    /// How the other processes are started.
    pub launcher: &'a Launcher,
    /// An ordinary file, for reading and writing. What it contains is lost.
    pub file: &'a File,
}

/// How far a dump is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// So much of so much RAM was copied.
    Copied {
        /// In bytes.
        done_bytes: u64,
        /// In bytes, too.
        all_bytes: u64,
    },
    /// The VM runs, and `VMCOREINFO` is searched.
    Searching,
}

/// A dump that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dumped {
    /// By which backend the vCPUs were stopped, if one works.
    pub backend: Option<Backend>,
    /// How many vCPUs have their registers in it.
    pub vcpus_read: u32,
    /// How many there are.
    pub vcpus: u32,
    /// The size of the RAM.
    pub ram_bytes: u64,
    /// How much of it is no page of zeros.
    pub written_bytes: u64,
    /// How much of it could not be read.
    pub unread_bytes: u64,
    /// For how long the VM stood; of a live dump, the longest time for which a vCPU did.
    pub stood: Duration,
    /// The version of the Linux in it, if its `VMCOREINFO` was found.
    pub release: Option<String>,
    /// What the user should know, one sentence each.
    pub warnings: Vec<String>,
}

fn gone() -> GuestError {
    GuestError::Unsupported(
        "the process of glass that holds the VM has ended unexpectedly; the VM runs on without it".to_owned(),
    )
}

fn interrupted() -> GuestError {
    system("write the dump", io::Error::other("it was interrupted, and the VM runs on"))
}

impl Dump<'_> {
    /// Writes it, by the first backend that works. `goes_on` is called some times a second; if it returns false, the VM runs on and this
    /// fails.
    pub fn write(&self, goes_on: &mut dyn FnMut(Stage) -> bool) -> Result<Dumped, GuestError> {
        if self.vm.architecture != Some(Architecture::X86_64) {
            let why = format!(
                "glass writes dumps of x86-64 guests only: use QEMU's monitor (dump-guest-memory) for {}",
                self.vm.name
            );
            return Err(GuestError::Unsupported(why));
        }
        let Plan { backends, obstacles, .. } = plan(self.vm, self.backend);
        let mut passed_over: Vec<GuestError> = obstacles.into_iter().map(|(_, error)| error).collect();
        for backend in backends {
            match self.write_by(Some(backend), goes_on) {
                Err(error) if error.is_of_the_backend() => passed_over.push(error),
                written => return written,
            }
        }
        if self.is_live {
            match self.write_by(None, goes_on) {
                Err(error) if error.is_of_the_backend() => {}
                written => return written,
            }
        }
        // The obstacle of the best backend is worth removing.
        Err(passed_over.into_iter().next().unwrap_or_else(|| GuestError::UnknownVmm(self.vm.vmm.clone())))
    }

    fn write_by(&self, backend: Option<Backend>, goes_on: &mut dyn FnMut(Stage) -> bool) -> Result<Dumped, GuestError> {
        let (outcome, mut warnings) = self.hold(backend, goes_on)?;
        let Outcome { vcpus, ram_bytes, written_bytes, unread_bytes, stood, notes } = outcome;
        if unread_bytes > 0 {
            warnings
                .push(format!("{} KiB of the RAM could not be read, and are zeros in the dump", unread_bytes >> 10));
        }
        let release = match self.search(notes, goes_on) {
            Ok(release) => release,
            Err(Failure::Interrupted) => return Err(interrupted()),
            Err(Failure::Other(error)) => {
                warnings.push(format!("the dump was not searched for VMCOREINFO, which crash and drgn need: {error}"));
                None
            }
        };
        let (vcpus_read, vcpus) = vcpus;
        Ok(Dumped { backend, vcpus_read, vcpus, ram_bytes, written_bytes, unread_bytes, stood, release, warnings })
    }

    /// Has a holder copy the VM. Its end is requested by the end of the socket.
    fn hold(
        &self,
        backend: Option<Backend>,
        goes_on: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<(Outcome, Vec<String>), GuestError> {
        let failed = |error| system("start the process that holds the VM", error);
        let (packets, its_end) = Packets::pair().map_err(failed)?;
        let task = Task { pid: self.vm.pid, backend, is_live: self.is_live };
        let mut command = self.command(&task.to_arguments());
        command.stdin(its_end.into_socket()).stdout(self.file.try_clone().map_err(failed)?).stderr(Stdio::null());
        let holder = command.spawn().map_err(failed)?;
        // Its copy of the other end closes here: we are to see when the holder ends.
        drop(command);
        let result = receive(&packets, goes_on);
        drop(packets);
        reap(holder);
        result
    }

    fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.launcher.program);
        command.args(&self.launcher.arguments).args(arguments);
        command
    }

    /// Adds `VMCOREINFO` to the notes, if it is in the dump. Returns the version of the kernel that it names.
    fn search(&self, mut notes: Notes, goes_on: &mut dyn FnMut(Stage) -> bool) -> Result<Option<String>, Failure> {
        let Some((offset, bytes, release)) = self.ask_searcher(goes_on)? else { return Ok(None) };
        let mut text = vec![0; bytes];
        self.file.read_exact_at(&mut text, offset)?;
        notes.add_vmcoreinfo(self.file, &text)?;
        Ok(Some(release))
    }

    /// Where the text is, and the version of the kernel. The searcher may have been taken over by what it reads, so its answer is checked.
    fn ask_searcher(&self, goes_on: &mut dyn FnMut(Stage) -> bool) -> Result<Option<(u64, usize, String)>, Failure> {
        use std::os::fd::AsRawFd;
        // For reading only.
        let file = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        let file_bytes = file.metadata()?.len();
        let limit = SEARCH_MAX + SEARCH_MAX_PER_GIB * u32::try_from(file_bytes >> 30).unwrap_or(u32::MAX);
        let mut command = self.command(&[SEARCH.to_owned()]);
        let mut searcher = command.stdin(file).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = searcher.try_wait()? {
                break status;
            }
            let is_interrupted = !goes_on(Stage::Searching);
            if is_interrupted || start.elapsed() > limit {
                let _ = searcher.kill();
                let _ = searcher.wait();
                let error = Failure::Other(io::Error::other("the search took too long"));
                return Err(if is_interrupted { Failure::Interrupted } else { error });
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut line = String::new();
        if let Some(output) = searcher.stdout.take() {
            output.take(LINE_BYTES_MAX).read_to_string(&mut line)?;
        }
        if !status.success() {
            return Err(Failure::Other(io::Error::other("the process that searches has failed")));
        }
        Ok(parse_line(&line, file_bytes))
    }
}

/// Why no `VMCOREINFO` was added.
enum Failure {
    Interrupted,
    Other(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Other(error)
    }
}

/// The line of a searcher: offset and length of the text, and the version of the kernel.
fn parse_line(line: &str, file_bytes: u64) -> Option<(u64, usize, String)> {
    let mut words = line.trim_end().splitn(3, ' ');
    let (offset, bytes): (u64, usize) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let is_inside = bytes <= TEXT_BYTES_MAX && offset.checked_add(bytes as u64)? <= file_bytes;
    is_inside.then(|| (offset, bytes, words.next().unwrap_or_default().to_owned()))
}

fn receive(packets: &Packets, goes_on: &mut dyn FnMut(Stage) -> bool) -> Result<(Outcome, Vec<String>), GuestError> {
    let (mut room, mut warnings) = (vec![0; MESSAGE_BYTES_MAX], Vec::new());
    let mut stage = Stage::Copied { done_bytes: 0, all_bytes: 0 };
    loop {
        let report = match packets.receive(&mut room) {
            Ok(Received::Message(bytes)) => Report::parse(&room[..bytes]).ok_or_else(gone)?,
            Ok(Received::Nothing) if !goes_on(stage) => return Err(interrupted()),
            Ok(Received::Nothing) => {
                packets.wait(false, ROUND);
                continue;
            }
            Ok(Received::End) | Err(_) => return Err(gone()),
        };
        match report {
            Report::Progress { done_bytes, all_bytes } => stage = Stage::Copied { done_bytes, all_bytes },
            Report::Warning(text) => warnings.push(text),
            Report::Done(outcome) => return Ok((outcome, warnings)),
            Report::Failed { is_of_the_backend, sentence } => {
                return Err(GuestError::Held { is_of_the_backend, sentence });
            }
        }
    }
}

/// Waits for the end of the holder, which comes after its last message.
fn reap(mut holder: Child) {
    let start = Instant::now();
    while matches!(holder.try_wait(), Ok(None)) && start.elapsed() < END_PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_survives_the_command_line() {
        for (backend, is_live) in [(Some(Backend::Kvm), false), (Some(Backend::Gdbstub), true), (None, true)] {
            let task = Task { pid: 7, backend, is_live };
            assert_eq!(Task::of_arguments(&task.to_arguments()), Some(task));
        }
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for text in ["dump kvm live", "dump kvm live x", "dump xen live 1", "dump kvm dead 1", "kvm kvm live 1"] {
            assert_eq!(Task::of_arguments(&words(text)), None, "{text}");
        }
    }

    #[test]
    fn an_answer_of_the_searcher_is_checked() {
        assert_eq!(parse_line("4096 10 6.1.0 x\n", 5000), Some((4096, 10, "6.1.0 x".to_owned())));
        for line in ["", "\n", "4096", "4096 4097 6.1", "4996 10 6.1", "18446744073709551615 10 6.1", "-1 10 6.1"] {
            assert_eq!(parse_line(line, 5000), None, "{line:?}");
        }
    }
}
