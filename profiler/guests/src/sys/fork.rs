//! Child processes: a command that waits for us before it runs, and a watchdog that outlives us.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc;

use super::check;

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    check(libc::c_long::from(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }))?;
    // SAFETY: the kernel just made both descriptors and nobody else has them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// A command that exists as a process, but waits for [`Held::release`] before it runs its program.
pub(crate) struct Held {
    pid: u32,
    release: std::fs::File,
    started: mpsc::Receiver<io::Result<Child>>,
}

impl Held {
    /// Forks. The program is looked up when it is released.
    pub(crate) fn start(mut command: Command) -> io::Result<Held> {
        let (hold_read, hold_write) = pipe()?;
        let (pid_read, pid_write) = pipe()?;
        let hold = hold_read.as_raw_fd();
        let tell = pid_write.as_raw_fd();
        let held_end = hold_write.as_raw_fd();
        let before_exec = move || {
            // SAFETY: only calls that are allowed between fork and exec; the descriptors are open in
            // the child because exec has not closed them yet. Our copy of the writing end is closed
            // first, so that the child does not wait for ever if its parent is killed.
            unsafe {
                libc::close(held_end);
                let pid = libc::getpid() as u32;
                if libc::write(tell, (&raw const pid).cast(), 4) != 4 {
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
        // `spawn` returns only after exec, and exec waits for us: it needs a thread of its own.
        std::thread::spawn(move || {
            let result = command.spawn();
            drop((hold_read, pid_write));
            let _ = sender.send(result);
        });
        let mut pid = [0; 4];
        if let Err(error) = std::fs::File::from(pid_read).read_exact(&mut pid) {
            // The fork failed: the thread's end of the pipe closed without a word.
            return Err(started.recv().ok().and_then(Result::err).unwrap_or(error));
        }
        Ok(Held { pid: u32::from_ne_bytes(pid), release: hold_write.into(), started })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it run its program.
    pub(crate) fn release(mut self) -> io::Result<Child> {
        self.release.write_all(&[1])?;
        self.started.recv().map_err(io::Error::other)?
    }
}

/// A process that waits for this one to die and then says good-bye to a gdbstub on our connection,
/// so that the guest runs on.
#[derive(Debug)]
pub(crate) struct Watchdog {
    pid: libc::pid_t,
    /// The watchdog reads the other end: a byte means that all is well, the end of file that we died.
    alive: Option<OwnedFd>,
}

/// Stop, in whatever state the conversation was left, then detach. A stopped stub ignores 0x03; a
/// running one eats any byte and stops.
const STOP: &[u8] = b"\x03";
const DETACH: &[u8] = b"$D#44";

impl Watchdog {
    /// Forks a watchdog for a connection. The socket may be connected later: the child's descriptor
    /// and ours are the same socket.
    pub(crate) fn start(connection: &impl AsRawFd) -> io::Result<Watchdog> {
        let (read_end, write_end) = pipe()?;
        let (wait, keep) = (read_end.as_raw_fd(), connection.as_raw_fd());
        // SAFETY: the child makes only async-signal-safe calls until it ends with `_exit`.
        let pid = check(libc::c_long::from(unsafe { libc::fork() }))? as libc::pid_t;
        if pid == 0 {
            watch(wait, keep);
        }
        Ok(Watchdog { pid, alive: Some(write_end) })
    }
}

impl Watchdog {
    /// Sends the watchdog home: the good-bye was said.
    pub(crate) fn dismiss(&mut self) {
        if let Some(alive) = self.alive.take() {
            // Fails only if somebody killed the watchdog, and then it is home already.
            let _ = std::fs::File::from(alive).write_all(&[1]);
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // If it was not dismissed, its pipe ends now and it acts; its waits are bounded.
        drop(self.alive.take());
        // SAFETY: waits for our own child, which ends now; a null status pointer is allowed.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// The life of the watchdog. Only async-signal-safe calls: its parent may have had threads.
fn watch(wait: i32, connection: i32) -> ! {
    // SAFETY: plain system calls on numbers and on the local arrays; nothing is shared, the process
    // ends with `_exit`.
    unsafe {
        // A terminal's Ctrl-C and a closed terminal are not for us.
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"glass-watchdog".as_ptr());
        // Nothing else of our parent is kept open: neither its output nor its end of the pipe.
        let (low, high) = (wait.min(connection) as u32, wait.max(connection) as u32);
        if low > 0 {
            libc::syscall(libc::SYS_close_range, 0u32, low - 1, 0u32);
        }
        if high - low > 1 {
            libc::syscall(libc::SYS_close_range, low + 1, high - 1, 0u32);
        }
        libc::syscall(libc::SYS_close_range, high + 1, u32::MAX, 0u32);
        let mut byte = 0u8;
        let told = loop {
            let read = libc::read(wait, (&raw mut byte).cast(), 1);
            if read >= 0 || *libc::__errno_location() != libc::EINTR {
                break read;
            }
        };
        if told == 1 {
            libc::_exit(0);
        }
        // Room in the socket: the stub's answers to what our parent had asked.
        let mut answers = [0u8; 8192];
        let mut read_for = |milliseconds: i32| {
            let mut poll = libc::pollfd { fd: connection, events: libc::POLLIN, revents: 0 };
            while libc::poll(&mut poll, 1, milliseconds) > 0 {
                if libc::read(connection, answers.as_mut_ptr().cast(), answers.len()) <= 0 {
                    break;
                }
            }
        };
        read_for(5);
        libc::write(connection, STOP.as_ptr().cast(), STOP.len());
        read_for(50);
        libc::write(connection, DETACH.as_ptr().cast(), DETACH.len());
        read_for(200);
        libc::_exit(0);
    }
}
