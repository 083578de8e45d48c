//! Programs of the host that serve a device of the VM over a unix socket (vhost-user), started before QEMU and ended with it.

use super::ends_with_us;
use crate::console::say;
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a helper may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Interval of the checks whether it does.
const ROUND: Duration = Duration::from_millis(5);
/// Interval of the checks whether it still runs.
const WATCH_ROUND: Duration = Duration::from_millis(500);
/// A helper that ends less than this before QEMU has ended because of it.
const TOGETHER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What a helper is.
#[derive(Clone, Copy)]
pub(super) struct Role {
    /// Its name.
    pub(super) name: &'static str,
    /// What the VM has by it, in words.
    pub(super) serves: &'static str,
    /// Whether the VM ends with it.
    pub(super) is_vital: bool,
}

/// A running helper. Dropping it ends it.
pub(super) struct Helper {
    child: Child,
    role: Role,
    log: PathBuf,
}

impl Helper {
    /// Starts `program` with `arguments`, and waits until it has made the socket `socket`. Its messages are in `log`.
    pub(super) fn start(
        role: Role,
        program: &Path,
        arguments: &[String],
        socket: &Path,
        log: PathBuf,
    ) -> Result<Helper> {
        let messages = fs::File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut command: Command = ends_with_us(program);
        command.args(arguments).process_group(0).stdin(Stdio::null()).stdout(messages.try_clone()?).stderr(messages);
        let child = command.spawn().context("cannot run setpriv: install util-linux")?;
        let mut helper = Helper { child, role, log };
        let end = Instant::now() + START_LIMIT;
        while !socket.exists() {
            let ended = helper.child.try_wait().context("cannot wait for a helper")?;
            if ended.is_some() || Instant::now() > end {
                let messages = fs::read_to_string(&helper.log).unwrap_or_default();
                // Ours write whose message it is.
                let message = messages.trim().trim_start_matches("glass: ");
                bail!("{} does not start: {message}", role.name);
            }
            std::thread::sleep(ROUND);
        }
        Ok(helper)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Watches the helpers of a VM, and ends them when it is dropped.
pub(super) struct Watch {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<bool>>,
}

impl Watch {
    /// Starts to watch the helpers of the VM that `vmm` runs. If one ends, prints one sentence; `is_restarted` is whether the VM is ended
    /// then in any case, so that it can be started again with all of its helpers: QEMU connects to a helper only when it starts.
    pub(super) fn start(helpers: Vec<Helper>, vmm: &Child, is_restarted: bool) -> Result<Watch> {
        if helpers.is_empty() {
            return Ok(Watch { end: None, thread: None });
        }
        let vmm = pidfd_open(Pid::from_child(vmm), PidfdFlags::empty()).context("cannot open QEMU's process")?;
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            watch(helpers, &vmm, is_restarted, || ended.recv_timeout(WATCH_ROUND) == Err(RecvTimeoutError::Timeout))
        });
        Ok(Watch { end: Some(end), thread: Some(thread) })
    }

    /// Ends the helpers. Whether one had ended before, and the VM was ended because of that.
    pub(super) fn finish(mut self) -> bool {
        self.join()
    }

    fn join(&mut self) -> bool {
        drop(self.end.take());
        self.thread.take().is_some_and(|thread| thread.join().unwrap_or(false))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.join();
    }
}

/// Watches until `goes_on` returns false. Whether the VM was ended.
fn watch(mut helpers: Vec<Helper>, vmm: &OwnedFd, is_restarted: bool, goes_on: impl Fn() -> bool) -> bool {
    let mut has_ended_vm = false;
    while goes_on() {
        helpers.retain_mut(|helper| {
            let Ok(Some(status)) = helper.child.try_wait() else { return true };
            // It ends by itself when QEMU does.
            let mut polled = [PollFd::new(vmm, PollFlags::IN)];
            if poll(&mut polled, Some(&TOGETHER)).is_ok_and(|count| count > 0) {
                return false;
            }
            let messages = fs::read_to_string(&helper.log).unwrap_or_default();
            let last = messages.lines().rfind(|line| !line.trim().is_empty());
            let why = last.map(|line| format!(": {}", line.trim())).unwrap_or_default();
            let Role { name, serves, is_vital } = helper.role;
            let then = match (is_restarted, is_vital) {
                (true, _) => "the VM is ended, and starts again with it".to_owned(),
                (false, true) => format!("the VM is ended, because it has no {serves} any more (--restart starts both again)"),
                (false, false) => format!(
                    "the VM has no {serves} until it is started again, because QEMU connects to {name} only at its start (--restart \
                     starts both again)"
                ),
            };
            say!("glass: {name} has ended ({status}){why}; {then}");
            if is_restarted || is_vital {
                has_ended_vm |= pidfd_send_signal(vmm, Signal::KILL).is_ok();
            }
            false
        });
    }
    has_ended_vm
}

/// The program `name` in `PATH` or in one of the folders `other`.
pub(super) fn find(name: &str, other: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(other.iter().cloned())
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}
