//! The user's commands for a state: one boots it, the other checks it. Nothing that they start outlives them.

use crate::campaign::{Cut, Tester, Verdict};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, set_child_subreaper, wait};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often the commands are looked at.
const POLL: Duration = Duration::from_millis(2);
/// How long a check may continue when what it checks has ended.
const GRACE: Duration = Duration::from_secs(3);
/// How long processes may take to end when they are killed.
const KILL_LIMIT: Duration = Duration::from_secs(20);
/// What is kept of a command's output: its end.
const OUTPUT_BYTES_MAX: u64 = 32 << 10;

/// The commands, as the shell runs them.
#[derive(Debug, Clone)]
pub struct Commands<'a> {
    /// Boots a state and runs while it is checked; `None` if the check does all.
    pub boot: Option<String>,
    /// Its exit code is the verdict.
    pub check: String,
    /// How long both may take for a state.
    pub limit: Duration,
    /// Where they run, and have their files.
    pub folder: PathBuf,
    /// Set when all has to end.
    pub stop: &'a AtomicBool,
}

impl Commands<'_> {
    /// Prepares this process: what its commands leave behind becomes its child, so that it can be ended.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn prepare() -> Result<()> {
        set_child_subreaper(Some(rustix::process::getpid())).context("cannot take care of processes of the commands")
    }

    fn spawn(&self, command: &str, log: &str, image: &Path, cut: &Cut) -> Result<Child> {
        let path = self.folder.join(log);
        let output = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        shell.env("GLASS_IMAGE", image).env("GLASS_FOLDER", &self.folder);
        shell.env("GLASS_CUT_NS", cut.time_ns.to_string()).env("GLASS_STATE", cut.number.to_string());
        shell.spawn().context("cannot run the shell sh")
    }

    fn output(&self, log: &str) -> String {
        let read = || {
            let mut file = File::open(self.folder.join(log))?;
            let bytes = file.metadata()?.len();
            file.seek(SeekFrom::Start(bytes.saturating_sub(OUTPUT_BYTES_MAX)))?;
            let mut output = Vec::new();
            file.take(OUTPUT_BYTES_MAX).read_to_end(&mut output)?;
            std::io::Result::Ok(output)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).replace('\r', "")
    }

    fn watch(&self, boot: &mut Option<Child>, check: &mut Child) -> Result<Verdict> {
        let start = Instant::now();
        let mut ended: Option<(Instant, ExitStatus)> = None;
        loop {
            if let Some(status) = check.try_wait().context("cannot wait for the check")? {
                let output = self.output("check.log");
                return Ok(match status.code() {
                    Some(0) => Verdict::Kept,
                    Some(126 | 127) => bail!("the check cannot be run: {}", output.trim()),
                    Some(code) => Verdict::Lost { why: format!("the check ended with {code}"), output },
                    None => {
                        let signal = status.signal().unwrap_or_default();
                        Verdict::Lost { why: format!("the check was ended by signal {signal}"), output }
                    }
                });
            }
            if let (Some(boot), None) = (boot.as_mut(), ended)
                && let Some(status) = boot.try_wait().context("cannot wait for the boot")?
            {
                if let Some(126 | 127) = status.code() {
                    bail!("the boot cannot be run: {}", self.output("boot.log").trim());
                }
                ended = Some((Instant::now(), status));
            }
            let why = match ended {
                Some((end, status)) if end.elapsed() > GRACE => {
                    Some(format!("the boot has ended ({status}), and the check has not"))
                }
                _ if start.elapsed() > self.limit => {
                    Some(format!("the check has not ended in {} s", self.limit.as_secs_f64()))
                }
                _ => None,
            };
            if let Some(why) = why {
                return Ok(Verdict::Lost { why, output: self.output("check.log") });
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Verdict::Stopped);
            }
            sleep(POLL);
        }
    }
}

impl Tester for Commands<'_> {
    fn test(&mut self, image: &Path, cut: &Cut) -> Result<Verdict> {
        let mut boot = match &self.boot {
            Some(command) => Some(self.spawn(command, "boot.log", image, cut)?),
            None => None,
        };
        let verdict = match self.spawn(&self.check, "check.log", image, cut) {
            Ok(mut check) => {
                let verdict = self.watch(&mut boot, &mut check);
                end(&mut check);
                verdict
            }
            Err(error) => Err(error),
        };
        if let Some(boot) = &mut boot {
            end(boot);
        }
        end_orphans()?;
        verdict
    }

    fn boot_output(&self) -> String {
        self.boot.as_ref().map(|_| self.output("boot.log")).unwrap_or_default()
    }
}

/// Kills a command with all of its group.
fn end(child: &mut Child) {
    // An error means that all have ended.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}

/// Kills what has left the groups of the commands, until there is nothing.
fn end_orphans() -> Result<()> {
    let start = Instant::now();
    loop {
        match wait(WaitOptions::NOHANG) {
            // There are no children.
            Err(_) => return Ok(()),
            Ok(Some(_)) => continue,
            Ok(None) => {}
        }
        if start.elapsed() > KILL_LIMIT {
            bail!("processes of the commands do not end: see `ps --ppid {}`", std::process::id());
        }
        for pid in children() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        sleep(POLL);
    }
}

fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let words: Vec<String> =
        texts.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    words.iter().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}
