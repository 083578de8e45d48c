//! Debug information from the servers in `DEBUGINFOD_URLS`, cached by build id.
//!
//! The program `curl` downloads it: it is on nearly every machine, follows the machine's rules for proxies and
//! certificates, and makes an implementation of TLS unnecessary. The requests reveal which builds run here, so there are
//! none unless that variable is set.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// Maximum of servers of a list.
const SERVERS_MAX: usize = 8;
/// Default of `DEBUGINFOD_TIMEOUT`: how long a server may take for a file, in seconds.
const TIMEOUT_S: u64 = 60;
const TIMEOUT_S_MAX: u64 = 3600;
/// How long it may take to answer at all, in seconds.
const CONNECT_S: u64 = 5;
/// The largest file that is downloaded, in bytes.
const FILE_BYTES_MAX: u64 = 2 << 30;
/// How long a missing file is not requested again.
const MISSING_FOR: Duration = Duration::from_secs(3600);
/// The exit status of curl for an answer like 404.
const CURL_NOT_FOUND: i32 = 22;

/// Whether the environment names servers.
pub(crate) fn has_servers() -> bool {
    std::env::var_os("DEBUGINFOD_URLS").is_some_and(|urls| !urls.is_empty())
}

/// Servers, and the cache.
#[derive(Debug)]
pub struct Debuginfod {
    servers: Vec<String>,
    folder: PathBuf,
    timeout_s: u64,
    notice: fn(&str),
    is_printed: bool,
    /// Servers that did not answer get no further requests.
    silent: HashSet<String>,
}

impl Debuginfod {
    /// The servers in the environment, `None` if it names none. `notice` gets each sentence for the user.
    pub fn from_environment(notice: fn(&str)) -> Option<Debuginfod> {
        let urls = std::env::var("DEBUGINFOD_URLS").ok()?;
        let timeout_s = std::env::var("DEBUGINFOD_TIMEOUT").ok().and_then(|text| text.trim().parse().ok());
        Debuginfod::new(
            &urls,
            crate::files::cache::folder()?.join("debuginfod"),
            timeout_s.unwrap_or(TIMEOUT_S),
            notice,
        )
    }

    /// The servers of a blank-separated list, `None` if it is empty. Downloads are cached in `folder`.
    pub fn new(urls: &str, folder: PathBuf, timeout_s: u64, notice: fn(&str)) -> Option<Debuginfod> {
        let is_web = |url: &&str| url.starts_with("http://") || url.starts_with("https://");
        let servers = urls.split_whitespace().filter(is_web).take(SERVERS_MAX);
        let servers: Vec<String> = servers.map(|url| url.trim_end_matches('/').to_owned()).collect();
        let timeout_s = timeout_s.clamp(1, TIMEOUT_S_MAX);
        let silent = HashSet::new();
        (!servers.is_empty()).then_some(Debuginfod { servers, folder, timeout_s, notice, is_printed: false, silent })
    }

    /// How long all servers together may take.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs((self.timeout_s + CONNECT_S) * self.servers.len() as u64)
    }

    /// Opens the debug information of a build: from the cache, or from the first server that has it.
    pub(crate) fn open(&mut self, build_id: &[u8]) -> Option<File> {
        let digits: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = self.folder.join(&digits);
        let (kept, missing) = (folder.join("debuginfo"), folder.join("missing"));
        if let Ok(file) = File::open(&kept) {
            return Some(file);
        }
        if is_recent(&missing) {
            return None;
        }
        if let Err(error) = fs::create_dir_all(&folder) {
            self.servers.clear();
            (self.notice)(&format!("no debug information is downloaded: cannot make {} ({error})", folder.display()));
            return None;
        }
        if !self.is_printed && !self.servers.is_empty() {
            self.is_printed = true;
            let servers = self.servers.join(", ");
            (self.notice)(&format!(
                "requesting debug information from {servers} (DEBUGINFOD_URLS), which reveals the build ids of what runs here"
            ));
        }
        let mut was_answered = false;
        for server in self.servers.clone() {
            match self.fetch(&server, &digits, &folder, &kept) {
                Fetched::File(file) => return Some(file),
                Fetched::Missing => was_answered = true,
                Fetched::Failed => {}
            }
        }
        // Only answers are cached: a server may be back in a minute.
        if was_answered && self.servers.iter().all(|server| !self.silent.contains(server)) {
            let _ = File::create(missing);
        }
        None
    }

    fn fetch(&mut self, server: &str, digits: &str, folder: &Path, kept: &Path) -> Fetched {
        if self.silent.contains(server) {
            return Fetched::Failed;
        }
        let part = folder.join(format!("part-{}", std::process::id()));
        let status = Command::new("curl")
            // Before all others: ignores the user's configuration.
            .arg("--disable")
            .args(["--fail", "--silent", "--location", "--max-redirs", "5"])
            .args(["--proto", "=http,https", "--proto-redir", "=http,https"])
            .args(["--connect-timeout", &CONNECT_S.to_string(), "--max-time", &self.timeout_s.to_string()])
            .args(["--max-filesize", &FILE_BYTES_MAX.to_string()])
            .arg("--output")
            .arg(&part)
            .arg(format!("{server}/buildid/{digits}/debuginfo"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let why = match status {
            Ok(status) if status.success() => {
                let opened = fs::rename(&part, kept).and_then(|()| File::open(kept));
                return opened.map_or(Fetched::Failed, Fetched::File);
            }
            Ok(status) if status.code() == Some(CURL_NOT_FOUND) => {
                let _ = fs::remove_file(&part);
                return Fetched::Missing;
            }
            Ok(status) => format!("{server} gave no debug information (curl: {status}); it gets no further requests"),
            Err(error) => format!("no debug information is downloaded: cannot start curl ({error})"),
        };
        let _ = fs::remove_file(&part);
        self.silent.insert(server.to_owned());
        (self.notice)(&why);
        Fetched::Failed
    }
}

enum Fetched {
    File(File),
    Missing,
    Failed,
}

fn is_recent(path: &Path) -> bool {
    let written = fs::metadata(path).and_then(|data| data.modified()).ok();
    written.is_some_and(|written| SystemTime::now().duration_since(written).is_ok_and(|age| age < MISSING_FOR))
}
