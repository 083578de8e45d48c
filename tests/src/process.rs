//! Child processes that are ended, by their pid, with their owner or on an interrupt.

use anyhow::{Context, Result, bail};
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The pids of all children that run, for [`kill_all`].
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// How long a program may take until it has made its socket.
const SOCKET_LIMIT: Duration = Duration::from_secs(120);
/// Interval of polling in a wait.
const POLL: Duration = Duration::from_millis(2);

fn running() -> std::sync::MutexGuard<'static, Vec<u32>> {
    RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Kills every child that any [`Process`] owns, and what they started. For interrupts and time limits.
pub fn kill_all() {
    for pid in std::mem::take(&mut *running()) {
        kill_tree(pid);
    }
}

/// Kills `pid` and everything it started. The children are listed before the kill, while their parent exists.
fn kill_tree(pid: u32) {
    let mut pids = descendants(pid);
    pids.push(pid);
    for pid in pids {
        send(pid, Signal::KILL);
    }
}

/// Sends a signal to a process. One that has ended gets none.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // An error means that it has ended already.
        let _ = kill_process(pid, signal);
    }
}

/// The processes that `pid` started, and those that they started.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for child in children(pid) {
        found.extend(descendants(child));
        found.push(child);
    }
    found
}

/// Kills the processes that `pid` started whose name contains `part`. Returns how many there were.
pub fn kill_descendants(pid: u32, part: &str) -> usize {
    signal_descendants(pid, part, Signal::KILL)
}

/// Sends a signal to the processes that `pid` started whose name contains `part`. Returns how many there were.
pub fn signal_descendants(pid: u32, part: &str, signal: Signal) -> usize {
    let is_meant = |pid: &u32| name(*pid).is_some_and(|name| name.contains(part));
    let meant: Vec<_> = descendants(pid).into_iter().filter(is_meant).collect();
    for pid in meant.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
        // An error means that it has ended with another one.
        let _ = kill_process(pid, signal);
    }
    meant.len()
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The process that started `pid`.
pub fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// The name of a process in the kernel.
pub fn name(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim().to_owned())
}

/// CPU time that the current threads of `pid` have used, including a vCPU's time in the guest.
/// Finer than the clock ticks of `/proc/PID/stat`.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let lines = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    Some(Duration::from_nanos(lines.filter_map(|line| on_cpu_ns(&line)).sum()))
}

/// The first field of a `schedstat` line: nanoseconds on a CPU.
fn on_cpu_ns(line: &str) -> Option<u64> {
    line.split_whitespace().next()?.parse().ok()
}

/// Whether `pid` is stopped by a signal.
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Whether `pid` exists and is not a zombie. A zombie with other threads is alive: until the last one has ended, its files stay open and
/// locked (proc(5), a thread group leader that has ended is shown as `Z`).
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !rest.trim_start().starts_with(['Z', 'X']) || threads > 1
}

/// A child with its output in a file. Dropping it kills it and what it started.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with both output streams going to the file `log`.
    pub fn spawn(command: &mut Command, log: &Path) -> Result<Process> {
        let output = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
        Process::spawn_into(command.stdin(Stdio::null()), output.try_clone()?.into(), output, log)
    }

    /// Starts `command` with both output streams going to the file `log`, and waits until it has made the unix socket `socket`.
    pub fn spawn_with_socket(command: &mut Command, socket: &Path, log: &Path) -> Result<Process> {
        let mut process = Process::spawn(command, log)?;
        let end = Instant::now() + SOCKET_LIMIT;
        while !socket.exists() {
            if process.ended().is_some() || Instant::now() > end {
                bail!("{} does not start: {}", command.get_program().to_string_lossy(), process.output().trim());
            }
            std::thread::sleep(POLL);
        }
        Ok(process)
    }

    /// Starts `command` with its output going to `output` and only its errors to the file `log`.
    pub fn spawn_with_output(command: &mut Command, output: Stdio, log: &Path) -> Result<Process> {
        let errors = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
        Process::spawn_into(command.stdin(Stdio::null()), output, errors, log)
    }

    /// Starts `command` with both output streams going to the file `log`, and with a pipe to its input.
    pub fn spawn_with_input(command: &mut Command, log: &Path) -> Result<(Process, ChildStdin)> {
        let output = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
        command.stdin(Stdio::piped());
        let mut process = Process::spawn_into(command, output.try_clone()?.into(), output, log)?;
        let input = process.child.stdin.take().context("the child has no input")?;
        Ok((process, input))
    }

    fn spawn_into(command: &mut Command, output: Stdio, errors: File, log: &Path) -> Result<Process> {
        // The lock is held so that an interrupt finds the child in the list or not yet started.
        let mut list = running();
        let child = command.stdout(output).stderr(errors).spawn();
        let child = child.with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        list.push(child.id());
        Ok(Process { child, log: log.to_owned() })
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits at most `limit` for its end.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.ended() {
                None if Instant::now() < deadline => std::thread::sleep(POLL),
                ended => return ended,
            }
        }
    }

    /// Kills it and everything it started with SIGKILL, and waits for all of them to be gone.
    pub fn kill(&mut self) {
        let mut pids = descendants(self.pid());
        kill_tree(self.pid());
        // A killed process always ends; the wait also removes the zombie.
        let _ = self.child.wait();
        running().retain(|pid| *pid != self.child.id());
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            pids.retain(|pid| is_alive(*pid));
            if pids.is_empty() {
                break;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends SIGINT, waits at most `limit`, then kills it. Returns true if it ended by itself.
    pub fn interrupt(&mut self, limit: Duration) -> bool {
        send(self.pid(), Signal::INT);
        let ended = self.wait(limit).is_some();
        self.kill();
        ended
    }

    /// Waits until its output contains `text`; meanwhile calls `act` again and again. Panics after `limit`, or when it has ended without.
    pub fn wait_for_text(&mut self, text: &str, limit: Duration, act: impl Fn()) {
        let end = Instant::now() + limit;
        while !self.output().contains(text) {
            assert!(self.ended().is_none() && Instant::now() < end, "no `{text}`:\n{}", self.output());
            act();
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn a_dropped_process_is_gone_with_its_children() {
        let folder = Folder::new("process").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo started; wait"]);
        let process = Process::spawn(&mut command, &folder.file("log")).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let is_sleeping = || descendants(process.pid()).iter().any(|pid| name(*pid).as_deref() == Some("sleep"));
        while !is_sleeping() || process.output().is_empty() {
            assert!(Instant::now() < deadline, "the shell never started its child");
            std::thread::sleep(POLL);
        }
        let pids = [vec![process.pid()], descendants(process.pid())].concat();
        assert_eq!(pids.len(), 2);
        assert_eq!(process.output(), "started\n");
        assert!(pids.iter().all(|pid| is_alive(*pid)));
        drop(process);
        assert!(!pids.iter().any(|pid| is_alive(*pid)));
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_alive() {
        let folder = Folder::new("leader").unwrap();
        let mut command = Command::new("python3");
        let program = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); ctypes.CDLL(None).syscall(60, 0)";
        let mut process = Process::spawn(command.args(["-c", program]), &folder.file("log")).unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !stat().contains(") Z ") {
            assert!(Instant::now() < deadline, "the first thread does not end: {}", stat());
            std::thread::sleep(POLL);
        }
        assert!(is_alive(process.pid()));
        process.kill();
        assert!(!is_alive(process.pid()));
    }

    #[test]
    fn work_shows_in_the_cpu_time() {
        assert_eq!(on_cpu_ns("123456 77 8\n"), Some(123_456));
        assert_eq!(on_cpu_ns("garbage"), None);
        let own = std::process::id();
        let before = cpu_time(own).unwrap();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {
            std::hint::black_box(name(own));
        }
        assert!(cpu_time(own).unwrap() > before);
    }
}
