//! ptrace of one thread, and descriptors taken from another process.
//!
//! The kernel attaches a tracee to the *thread* that seized it, and releases it when that thread ends,
//! however it ends.

use super::arch::ThreadRegisters;
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::time::Duration;

use libc::{c_long, c_void};

use super::check;

/// The general registers (`linux/elf.h`).
const NT_PRSTATUS: usize = 1;

/// Why a tracee is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// We requested it, or the state of its process has changed. The signal is SIGTRAP, or that of a
    /// stop of the whole process (SIGSTOP and similar), which must stay stopped.
    Event(i32),
    /// It is about to receive a signal, which is lost unless it is passed back.
    Signal(i32),
    /// It enters or exits a system call, see [`Tracee::resume_to_call`].
    Call,
    /// It is gone.
    Ended,
}

/// By this bit the kernel marks stops at system calls, on request.
const CALL_MARK: i32 = 0x80;

/// A thread that this thread traces.
#[derive(Debug)]
pub(crate) struct Tracee {
    thread: libc::pid_t,
    /// Only the thread that seized it may make requests.
    _here: PhantomData<*const ()>,
}

impl Tracee {
    /// Traces a thread without stopping it. Stops at system calls, if there are any, are reported as such.
    pub(crate) fn seize(thread: u32) -> io::Result<Tracee> {
        let tracee = Tracee { thread: thread as libc::pid_t, _here: PhantomData };
        tracee.request(libc::PTRACE_SEIZE, libc::PTRACE_O_TRACESYSGOOD as usize as *mut c_void)?;
        Ok(tracee)
    }

    /// Its thread ID.
    pub(crate) fn id(&self) -> u32 {
        self.thread as u32
    }

    /// A request whose data is a number, or nothing.
    fn request(&self, request: libc::c_uint, data: *mut c_void) -> io::Result<()> {
        // SAFETY: every caller passes a request that takes `data` as a number and touches no memory of
        // ours; the tracee is another thread of another process.
        check(unsafe { libc::ptrace(request, self.thread, null_mut::<c_void>(), data) }).map(|_| ())
    }

    /// Requests a stop; [`Tracee::stop`] returns it.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        self.request(libc::PTRACE_INTERRUPT, null_mut())
    }

    /// A stop that was not returned yet. Does not wait. A stop by a signal is returned until the tracee is resumed.
    pub(crate) fn stop(&self) -> io::Result<Option<Stop>> {
        // Peek first: once the kernel has reported a signal it leaves it to us, and if we die before
        // we have passed it on, it is lost.
        // SAFETY: zeros are a valid value of this structure of numbers.
        let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WNOHANG | libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
        // SAFETY: `information` is a valid place for one such structure.
        check(unsafe { libc::waitid(libc::P_PID, self.thread as libc::id_t, &raw mut information, flags) }.into())?;
        // SAFETY: the fields of a child's signal, which are zero if there was none.
        let (pid, status) = unsafe { (information.si_pid(), information.si_status()) };
        if pid == 0 {
            return Ok(None);
        }
        let is_plain = status >> 8 == 0 && status != libc::SIGTRAP | CALL_MARK;
        if information.si_code == libc::CLD_TRAPPED && is_plain {
            return Ok(Some(Stop::Signal(status)));
        }
        let has_ended = matches!(information.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED);
        if has_ended && self.is_our_child() {
            return Ok(Some(Stop::Ended));
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place for one number.
        let result = unsafe { libc::waitpid(self.thread, &raw mut status, libc::WNOHANG | libc::__WALL) };
        if check(c_long::from(result))? == 0 {
            return Ok(None);
        }
        Ok(Some(if !libc::WIFSTOPPED(status) {
            Stop::Ended
        } else if status >> 16 == libc::PTRACE_EVENT_STOP {
            Stop::Event(libc::WSTOPSIG(status))
        } else if libc::WSTOPSIG(status) == libc::SIGTRAP | CALL_MARK {
            Stop::Call
        } else {
            Stop::Signal(libc::WSTOPSIG(status))
        }))
    }

    /// Whether it is the first thread of a process that we have started: its end is for the code that waits for that process.
    fn is_our_child(&self) -> bool {
        let Ok(status) = fs::read_to_string(format!("/proc/{}/status", self.thread)) else { return false };
        let number = |name| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<libc::pid_t>().ok());
        number("Tgid:") == Some(self.thread) && number("PPid:") == Some(std::process::id() as libc::pid_t)
    }

    /// The registers of a stopped tracee.
    pub(crate) fn registers(&self) -> io::Result<ThreadRegisters> {
        let mut registers = std::mem::MaybeUninit::<ThreadRegisters>::uninit();
        let bytes = size_of::<ThreadRegisters>();
        let mut place = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: bytes };
        // SAFETY: PTRACE_GETREGSET fills at most the bytes that the last argument describes, and sets how many it has.
        check(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, self.thread, NT_PRSTATUS, &raw mut place) })?;
        if place.iov_len != bytes {
            return Err(io::Error::other("a process of another architecture"));
        }
        // SAFETY: the request has succeeded, so all of it is set.
        Ok(unsafe { registers.assume_init() })
    }

    /// Sets the registers of a stopped tracee.
    pub(crate) fn set_registers(&self, registers: &ThreadRegisters) -> io::Result<()> {
        let base = std::ptr::from_ref(registers).cast_mut().cast();
        let mut place = libc::iovec { iov_base: base, iov_len: size_of::<ThreadRegisters>() };
        // SAFETY: PTRACE_SETREGSET only reads what the last argument describes.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGSET, self.thread, NT_PRSTATUS, &raw mut place) }).map(|_| ())
    }

    /// Resumes a stopped tracee, with a signal unless it is 0.
    pub(crate) fn resume(&self, signal: i32) -> io::Result<()> {
        self.request(libc::PTRACE_CONT, signal as usize as *mut c_void)
    }

    /// Resumes a stopped tracee up to the entry or exit of a system call.
    pub(crate) fn resume_to_call(&self) -> io::Result<()> {
        self.resume_to_call_with(0)
    }

    /// The same with a signal unless it is 0.
    pub(crate) fn resume_to_call_with(&self, signal: i32) -> io::Result<()> {
        self.request(libc::PTRACE_SYSCALL, signal as usize as *mut c_void)
    }

    /// Leaves a tracee stopped as part of its process; the kernel reports when that changes.
    pub(crate) fn listen(&self) -> io::Result<()> {
        self.request(libc::PTRACE_LISTEN, null_mut())
    }

    /// Detaches from a stopped tracee, with a signal unless it is 0.
    pub(crate) fn detach(&self, signal: i32) -> io::Result<()> {
        self.request(libc::PTRACE_DETACH, signal as usize as *mut c_void)
    }
}

/// Keeps SIGCHLD, by which the kernel reports stops, for [`ChildSignals::wait`]. Dropping restores the mask.
#[derive(Debug)]
pub(crate) struct ChildSignals {
    previous: libc::sigset_t,
    set: libc::sigset_t,
    /// The mask is that of this thread.
    _here: PhantomData<*const ()>,
}

impl ChildSignals {
    /// Blocks SIGCHLD in this thread and those it starts later. A thread that does not block it may
    /// swallow one, so a wait must be prepared to miss it.
    pub(crate) fn block() -> io::Result<ChildSignals> {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut previous = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set, the others get initialised sets and a valid place
        // for the old one, which pthread_sigmask has set when it returns 0.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
            match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), previous.as_mut_ptr()) {
                0 => Ok(ChildSignals { previous: previous.assume_init(), set: set.assume_init(), _here: PhantomData }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Waits for SIGCHLD, at most this long.
    pub(crate) fn wait(&self, at_most: Duration) {
        let limit = libc::timespec {
            tv_sec: at_most.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(at_most.subsec_nanos() as i32),
        };
        // SAFETY: set and limit are valid; a null place for details is allowed. The caller checks
        // for itself, whatever it returns.
        unsafe { libc::sigtimedwait(&raw const self.set, null_mut(), &raw const limit) };
    }
}

impl Drop for ChildSignals {
    fn drop(&mut self) {
        // SAFETY: `previous` is a set that pthread_sigmask gave us.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.previous, null_mut()) };
    }
}

/// A process whose descriptors can be taken.
#[derive(Debug)]
pub(crate) struct Process(OwnedFd);

impl Process {
    pub(crate) fn open(pid: u32) -> io::Result<Process> {
        // SAFETY: takes two numbers.
        let descriptor = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) })?;
        // SAFETY: the kernel has just created this descriptor, and no other code has it.
        Ok(Process(unsafe { OwnedFd::from_raw_fd(descriptor as i32) }))
    }

    /// A copy of one of its descriptors. Needs the rights of a debugger.
    pub(crate) fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        // SAFETY: takes three numbers.
        let descriptor = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.0.as_raw_fd(), number, 0) })?;
        // SAFETY: the kernel has just created this descriptor, and no other code has it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
    }
}

/// The answer of `/dev/kvm` about an extension, a number that is 0 if it is missing.
pub(crate) fn kvm_extension(kvm: &OwnedFd, extension: i32) -> io::Result<u64> {
    /// `KVM_CHECK_EXTENSION` of `linux/kvm.h`.
    const CHECK_EXTENSION: libc::c_ulong = 0xae03;
    // SAFETY: this ioctl takes a number; on a descriptor that is not KVM's it fails.
    let result = unsafe { libc::ioctl(kvm.as_raw_fd(), CHECK_EXTENSION, libc::c_long::from(extension)) };
    Ok(check(c_long::from(result))? as u64)
}
