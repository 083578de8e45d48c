//! A command that exists as a process, but waits for us before it runs.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::check;

/// How long a thread may take to end.
const THREAD_PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    check(libc::c_long::from(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }))?;
    // SAFETY: the kernel has just created both descriptors, and no other code has them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// A command that exists as a process, but waits for [`Held::release`] before it runs its program.
pub(crate) struct Held {
    pid: u32,
    release: std::fs::File,
    started: mpsc::Receiver<io::Result<Child>>,
    /// Its number for the kernel comes first.
    thread: u32,
}

impl Held {
    /// Forks. The program is looked up when it is released.
    pub(crate) fn start(mut command: Command) -> io::Result<Held> {
        let (hold_read, hold_write) = pipe()?;
        let (pid_read, pid_write) = pipe()?;
        let hold = hold_read.as_raw_fd();
        let report = pid_write.as_raw_fd();
        let held_end = hold_write.as_raw_fd();
        let before_exec = move || {
            // SAFETY: only calls that are allowed between fork and exec; the descriptors are open in
            // the child because exec has not closed them yet. Our copy of the writing end is closed
            // first, so that the child does not wait forever if its parent is killed.
            unsafe {
                libc::close(held_end);
                let pid = libc::getpid() as u32;
                if libc::write(report, (&raw const pid).cast(), 4) != 4 {
                    return Err(io::Error::last_os_error());
                }
                let mut byte = 0u8;
                if libc::read(hold, (&raw mut byte).cast(), 1) != 1 {
                    return Err(io::Error::from_raw_os_error(libc::ECANCELED));
                }
            }
            Ok(())
        };
        // SAFETY: the closure only makes async-signal-safe calls and does not allocate.
        unsafe { command.pre_exec(before_exec) };
        let (sender, started) = mpsc::channel();
        let (numbers, number) = mpsc::channel();
        // `spawn` returns only after exec, and exec waits for us: it needs a thread of its own.
        std::thread::spawn(move || {
            let _ = numbers.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
            let result = command.spawn();
            drop((hold_read, pid_write));
            let _ = sender.send(result);
        });
        let mut pid = [0; 4];
        if let Err(error) = std::fs::File::from(pid_read).read_exact(&mut pid) {
            // The fork failed: the thread's end of the pipe closed without a word.
            return Err(started.recv().ok().and_then(Result::err).unwrap_or(error));
        }
        let thread = number.recv().map_err(io::Error::other)?;
        Ok(Held { pid: u32::from_ne_bytes(pid), release: hold_write.into(), started, thread })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Starts its program. The thread that waited for that is gone then, as a process with threads enters no jail.
    pub(crate) fn release(mut self) -> io::Result<Child> {
        self.release.write_all(&[1])?;
        let started = self.started.recv().map_err(io::Error::other)?;
        let (thread, start) = (format!("/proc/self/task/{}", self.thread), Instant::now());
        while Path::new(&thread).exists() && start.elapsed() < THREAD_PATIENCE {
            std::thread::sleep(Duration::from_micros(50));
        }
        started
    }
}
