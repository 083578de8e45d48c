//! A process that outlives us to resume a guest.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use super::RawAddress;
use super::awake::{resume_if_stopped, wait_for_end};
use super::check;
use super::fork::pipe;

/// A process that waits for this one to die and then detaches from a gdbstub on our connection,
/// so that the guest resumes. A guest that its owner has paused stays paused.
#[derive(Debug)]
pub(crate) struct Watchdog {
    pid: libc::pid_t,
    /// The watchdog reads the other end: [`DISMISSED`], [`HELD`], [`FREE`] and [`DETACHED`], or the end of file if we died.
    alive: Option<File>,
}

/// A watchdog's action after the detach: it stops the gdbstub, which was off before us.
pub(crate) struct Cleanup {
    /// The address of the monitor.
    pub(crate) monitor: RawAddress,
    /// All bytes to send to it; its answers are not parsed.
    pub(crate) words: Vec<u8>,
    /// The gdbstub's socket and its folder.
    pub(crate) socket: CString,
    pub(crate) folder: CString,
}

/// Detaches from a VM that runs, which continues it; refused by one that its owner has stopped. QEMU keeps the multiprocess mode of an
/// earlier debugger, and then requires the process to detach from: the first, as that is the one that it attaches to.
pub(crate) const LEAVE: &[u8] = b"$$D;1#b0";
/// Detaches from a VM that we have stopped, which continues it.
pub(crate) const LEAVE_HELD: &[u8] = b"+\x03$D;1#b0";

/// Detached: there is nothing left to do.
const DISMISSED: u8 = 1;
/// We may have stopped the guest: it has to be resumed. This is the initial state.
const HELD: u8 = 2;
/// The guest runs, or its owner has stopped it: it is resumed if it runs when the request to detach stops it.
const FREE: u8 = 3;
/// A request to detach was sent, or will be of no use. QEMU (7.2) does not survive a second one.
const DETACHED: u8 = 4;

/// The most reads of answers: a stub that sends without end does not keep the watchdog.
const READS_MAX: usize = 64;
/// How long a busy host may take to answer a detach. A shorter limit would leave the guest stopped.
const PATIENCE_MS: i32 = 4_000;
/// After an answer: how long to wait for another one.
const QUIET_MS: i32 = 200;

impl Watchdog {
    /// Forks a watchdog for a connection. The socket may be connected later: the child's descriptor
    /// and ours are the same socket.
    pub(crate) fn start(connection: &impl AsRawFd, cleanup: Option<&Cleanup>) -> io::Result<Watchdog> {
        let (read_end, write_end) = pipe()?;
        let (wait, keep) = (read_end.as_raw_fd(), connection.as_raw_fd());
        // SAFETY: the child makes only async-signal-safe calls until it ends with `_exit`.
        let pid = check(libc::c_long::from(unsafe { libc::fork() }))? as libc::pid_t;
        if pid == 0 {
            watch(wait, keep, cleanup);
        }
        Ok(Watchdog { pid, alive: Some(write_end.into()) })
    }

    /// Ends the watchdog, after a detach.
    pub(crate) fn dismiss(&mut self) {
        self.note(DISMISSED);
        self.alive = None;
    }

    /// Sets whether we may have stopped the guest: otherwise the watchdog leaves it paused if it is.
    pub(crate) fn note_held(&mut self, is_held: bool) {
        self.note(if is_held { HELD } else { FREE });
    }

    /// Leaves only the cleanup to the watchdog.
    pub(crate) fn note_detached(&mut self) {
        self.note(DETACHED);
    }

    /// Resumes it if it was stopped: it could not act if we died now.
    pub(crate) fn look_after(&self) {
        resume_if_stopped(self.pid);
    }

    fn note(&mut self, word: u8) {
        if let Some(alive) = &mut self.alive {
            // Fails only if the watchdog was killed, and then it has ended.
            let _ = alive.write_all(&[word]);
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // If it was not dismissed, its pipe ends now and it acts; its waits are bounded.
        drop(self.alive.take());
        // Another process may have stopped it.
        wait_for_end(self.pid);
    }
}

/// Reads until nothing has arrived for `quiet_ms`, or for `patience_ms` before the first packet that is `OK`, an error, or a refusal.
///
/// Makes only async-signal-safe calls on numbers and a local array; where `descriptor` is not open it does nothing.
fn read_answers(descriptor: i32, patience_ms: i32, quiet_ms: i32) {
    let mut answers = [0u8; 8192];
    let mut is_answered = false;
    for _ in 0..READS_MAX {
        let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        let limit = if is_answered { quiet_ms } else { patience_ms };
        // SAFETY: `poll` is one valid structure.
        if unsafe { libc::poll(&mut poll, 1, limit) } <= 0 {
            break;
        }
        // SAFETY: `answers` has room for its length.
        let count = unsafe { libc::read(descriptor, answers.as_mut_ptr().cast(), answers.len()) };
        if count <= 0 {
            break;
        }
        let received = &answers[..count as usize];
        is_answered |= received.contains(&b'-') || received.windows(2).any(|pair| pair == b"$O" || pair == b"$E");
    }
}

/// The life of the watchdog. Only async-signal-safe calls: its parent may have had threads.
fn watch(wait: i32, connection: i32, cleanup: Option<&Cleanup>) -> ! {
    // SAFETY: plain system calls on numbers and on the local arrays; nothing is shared, the process
    // ends with `_exit`.
    unsafe {
        // A terminal's Ctrl-C and a closed terminal are not for us.
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"glass-watchdog".as_ptr());
        // No other descriptor of our parent is kept open: neither its output nor its end of the pipe.
        let (low, high) = (wait.min(connection) as u32, wait.max(connection) as u32);
        if low > 0 {
            libc::syscall(libc::SYS_close_range, 0u32, low - 1, 0u32);
        }
        if high - low > 1 {
            libc::syscall(libc::SYS_close_range, low + 1, high - 1, 0u32);
        }
        libc::syscall(libc::SYS_close_range, high + 1, u32::MAX, 0u32);
        let mut state = HELD;
        loop {
            let mut word = 0u8;
            match libc::read(wait, (&raw mut word).cast(), 1) {
                1 if word == DISMISSED => libc::_exit(0),
                1 => state = word,
                0 => break,
                _ if *libc::__errno_location() == libc::EINTR => {}
                _ => break,
            }
        }
        // Room in the socket: the stub's answers to our parent's requests.
        read_answers(connection, 5, 5);
        if state != DETACHED {
            let leave = if state == HELD { LEAVE_HELD } else { LEAVE };
            libc::write(connection, leave.as_ptr().cast(), leave.len());
            read_answers(connection, PATIENCE_MS, QUIET_MS);
        }
        if let Some(cleanup) = cleanup {
            switch_off(cleanup);
        }
        libc::_exit(0);
    }
}

/// Sends the commands to the monitor; if it serves another client at the moment, the stub stays on, in a folder of ours.
fn switch_off(cleanup: &Cleanup) {
    // SAFETY: plain system calls on numbers, on memory of the parent that was copied by the fork, and
    // on a local structure; the strings end with a zero.
    unsafe {
        let monitor = libc::socket(cleanup.monitor.family(), libc::SOCK_STREAM, 0);
        // So that a monitor with a full queue of clients does not block us.
        let limit = libc::timeval { tv_sec: 1, tv_usec: 0 };
        let size = size_of_val(&limit) as libc::socklen_t;
        libc::setsockopt(monitor, libc::SOL_SOCKET, libc::SO_SNDTIMEO, (&raw const limit).cast(), size);
        let (address, size) = cleanup.monitor.pointer();
        if libc::connect(monitor, address, size) == 0 {
            libc::write(monitor, cleanup.words.as_ptr().cast(), cleanup.words.len());
            read_answers(monitor, 300, 300);
        }
        libc::unlink(cleanup.socket.as_ptr());
        libc::rmdir(cleanup.folder.as_ptr());
    }
}
