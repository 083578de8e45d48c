//! A process that outlives us to let a domain run on.
//!
//! Xen does not end the pause of a caller that has died. The guardian is a fork of ours that shares the buffer of
//! hypercalls: when our end of a pipe closes, it reads there whether the domain is paused by us, and ends that pause.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use super::super::awake::{resume_if_stopped, wait_for_end};
use super::super::check;
use super::super::fork::pipe;
use super::calls::{ForGuardian, Hypercalls};

/// What is written when there is nothing left to guard.
const DISMISSED: u8 = 1;

/// A guardian. Dropped, it acts if it has to, and ends.
#[derive(Debug)]
pub(crate) struct Guardian {
    pid: libc::pid_t,
    /// It reads the other end: [`DISMISSED`], or the end of file if we died.
    alive: Option<File>,
}

impl Guardian {
    /// Forks one for the domain of `calls`. Early: what we have in memory at this moment stays in its own.
    pub(crate) fn start(calls: &Hypercalls) -> io::Result<Guardian> {
        let (read_end, write_end) = pipe()?;
        let wait = read_end.as_raw_fd();
        let calls = calls.for_guardian();
        // SAFETY: the child makes only async-signal-safe calls until it ends with `_exit`.
        let pid = check(libc::c_long::from(unsafe { libc::fork() }))? as libc::pid_t;
        if pid == 0 {
            watch(wait, calls);
        }
        Ok(Guardian { pid, alive: Some(write_end.into()) })
    }

    /// Resumes it if it was stopped: it could not act if we died now.
    pub(crate) fn look_after(&self) {
        resume_if_stopped(self.pid);
    }

    /// Ends it without its acting: the domain is paused no more, or gone.
    pub(crate) fn dismiss(&mut self) {
        if let Some(mut alive) = self.alive.take() {
            // Fails only if something has killed the guardian.
            let _ = alive.write_all(&[DISMISSED]);
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.alive.take());
        // Another process may have stopped it.
        wait_for_end(self.pid);
    }
}

/// The life of the guardian. Only async-signal-safe calls: its parent may have had threads.
fn watch(wait: i32, calls: ForGuardian<'_>) -> ! {
    // SAFETY: plain system calls on numbers and a local byte; the process ends with `_exit`.
    unsafe {
        // A terminal's Ctrl-C and a closed terminal are not for us.
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"glass-guardian".as_ptr());
        // Nothing else of our parent is kept open: neither its output nor its end of the pipe.
        let (low, high) = (wait.min(calls.device) as u32, wait.max(calls.device) as u32);
        if low > 0 {
            libc::syscall(libc::SYS_close_range, 0u32, low - 1, 0u32);
        }
        if high - low > 1 {
            libc::syscall(libc::SYS_close_range, low + 1, high - 1, 0u32);
        }
        libc::syscall(libc::SYS_close_range, high + 1, u32::MAX, 0u32);
        loop {
            let mut word = 0u8;
            match libc::read(wait, (&raw mut word).cast(), 1) {
                1 => libc::_exit(0),
                0 => break,
                _ if *libc::__errno_location() == libc::EINTR => {}
                _ => break,
            }
        }
    }
    calls.resume();
    // SAFETY: ends the process without running anything of its parent's.
    unsafe { libc::_exit(0) }
}
