//! A process that holds a guest must not be stopped itself: a stopped tracer passes no signal on, so the guest would stop with it.
//!
//! Nothing prevents SIGSTOP. But timers run while a process is stopped, and their signal may be SIGCONT, which resumes it. So some timers
//! are set to moments that a process which runs never reaches, because a thread of it moves them on. SIGCONT itself is ignored, as it is
//! by default.
//!
//! A timer works once: from Linux 6.13 on, one whose signal is ignored is not repeated. There are several, so that a process that is
//! stopped again before the thread ran is resumed again.
//!
//! The kernel's freezer (a cgroup that is frozen, `docker pause`, `systemctl freeze`) stops no process by a signal, and is not undone.

use std::ffi::CStr;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::check;

/// How often the timers are moved on at least by a process that holds guests often.
pub(crate) const AWAKE_PERIOD: Duration = Duration::from_millis(10);
/// The same while nothing is stopped or about to be: each time wakes this process.
const QUIET_PERIOD: Duration = Duration::from_secs(2);
/// After how many periods each timer sends SIGCONT, if it was not moved on.
const AFTER_PERIODS: [u32; 5] = [3, 6, 12, 24, 48];

/// What `timer_create` takes, as the kernel has it (`struct sigevent`, 64 bytes): libc's has no thread in it on all systems.
#[repr(C)]
struct Event {
    value: usize,
    signal: libc::c_int,
    notify: libc::c_int,
    rest: [u8; 48],
}

/// The timers of this process.
struct Timers([libc::c_int; AFTER_PERIODS.len()]);

impl Timers {
    /// Makes only system calls that may be made after a fork.
    fn create() -> io::Result<Timers> {
        let mut timers = [0; AFTER_PERIODS.len()];
        for timer in &mut timers {
            let event = Event { value: 0, signal: libc::SIGCONT, notify: libc::SIGEV_SIGNAL, rest: [0; 48] };
            // SAFETY: `event` is a whole structure, which is read, and `timer` a valid place for one number.
            check(unsafe {
                libc::syscall(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, &raw const event, &raw mut *timer)
            })?;
        }
        Ok(Timers(timers))
    }

    /// Moves all timers on, by so many of these periods each.
    fn put_off(&self, period: Duration) {
        for (timer, periods) in self.0.iter().zip(AFTER_PERIODS) {
            let after = period * periods;
            let time = libc::timespec { tv_sec: after.as_secs() as libc::time_t, tv_nsec: after.subsec_nanos().into() };
            let once = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: time };
            // SAFETY: the timer is ours and `once` a valid time, which is read; there is no place for the old one.
            unsafe { libc::syscall(libc::SYS_timer_settime, *timer, 0, &raw const once, 0usize) };
        }
    }
}

/// The timers with the period at which they are moved on, of a process that holds guests.
static GUARD: OnceLock<(Timers, Duration)> = OnceLock::new();
/// Nothing is stopped or about to be.
static IS_QUIET: AtomicBool = AtomicBool::new(false);
/// The same until the next sample, which is some time away.
static IS_AT_REST: AtomicBool = AtomicBool::new(false);
/// How long it has to be until the next sample for that to be worth the calls that it takes.
const REST_MIN: Duration = Duration::from_millis(200);

/// Whether nothing of a guest is stopped, or will be before this is called again: then this process stays stopped for a longer time, some three times
/// [`QUIET_PERIOD`], and is woken less often.
pub(crate) fn set_quiet(is_quiet: bool) {
    // Relaxed: the thread that moves the timers on may see it a period later.
    let was_at_rest = IS_AT_REST.swap(false, Ordering::Relaxed);
    if (IS_QUIET.swap(is_quiet, Ordering::Relaxed) || was_at_rest)
        && !is_quiet
        && let Some((timers, period)) = GUARD.get()
    {
        // The thread sleeps for some time still. The first ones may end meanwhile, the last ones do not.
        timers.put_off(*period);
    }
}

/// Nothing of a guest is stopped, nor will be for so long: if that is long enough, this process is woken less often until [`set_quiet`] is called.
pub(crate) fn rest_for(time: Duration) {
    if time >= REST_MIN {
        IS_AT_REST.store(true, Ordering::Relaxed);
    }
}

/// What [`set_quiet`] has set.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Keeps this process from staying stopped, as long as it lives: it is resumed after some three periods. Signals that end or stop a job do
/// nothing to it: it ends when what it waits for does. A thread wakes each period. Called once.
pub(crate) fn stay_awake(period: Duration) -> io::Result<()> {
    const IGNORED: [libc::c_int; 8] = [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGPIPE,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        // A limit of file sizes is then an error like a full disk.
        libc::SIGXFSZ,
    ];
    for signal in IGNORED {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let timers = Timers::create()?;
    timers.put_off(period);
    let (timers, _) = GUARD.get_or_init(|| (timers, period));
    std::thread::Builder::new().name("awake".to_owned()).spawn(move || {
        loop {
            let is_still = is_quiet() || IS_AT_REST.load(Ordering::Relaxed);
            let period = if is_still { QUIET_PERIOD } else { period };
            timers.put_off(period);
            std::thread::sleep(period);
        }
    })?;
    Ok(())
}

/// Makes this process the first of a session of its own, with this name: what a terminal does to its job does not reach it.
pub(crate) fn leave_session(name: &CStr) {
    // SAFETY: `setsid` takes nothing, and fails only for the first process of a group, which a process that was just started is not. The
    // name is a text with an end, of which 15 bytes are copied.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
    }
}

/// Resumes a child that was stopped. Does not wait.
pub(crate) fn resume_if_stopped(child: libc::pid_t) {
    // SAFETY: zeros are a valid value of this structure of numbers.
    let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WSTOPPED | libc::WNOHANG;
    // SAFETY: `information` is a valid place for one such structure.
    let result = unsafe { libc::waitid(libc::P_PID, child as libc::id_t, &raw mut information, flags) };
    // SAFETY: the field of a child's signal, which is zero if there was none.
    if result == 0 && unsafe { information.si_pid() } == child {
        // SAFETY: the child is ours and has not been waited for, so the number is still its own.
        unsafe { libc::kill(child, libc::SIGCONT) };
    }
}

/// Waits for the end of a child, and resumes it as often as it is stopped.
pub(crate) fn wait_for_end(child: libc::pid_t) {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for one number.
        let result = unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) };
        match result {
            result if result == child && libc::WIFSTOPPED(status) => {
                // SAFETY: as in `resume_if_stopped`.
                unsafe { libc::kill(child, libc::SIGCONT) };
            }
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    /// Not a test of its own: the process that the test below stops.
    #[test]
    #[ignore = "runs in a process of its own, started by another test"]
    fn stay_awake_for_a_while() {
        if std::env::var_os("GLASS_TEST_AWAKE").is_some() {
            stay_awake(AWAKE_PERIOD).unwrap();
            // With a hold between two quiet times, and rests between holds.
            for is_quiet in [true, false, true, false, false] {
                set_quiet(is_quiet);
                rest_for(QUIET_PERIOD);
            }
            std::thread::sleep(Duration::from_secs(30));
        }
    }

    fn state_of(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.trim_start().chars().next().unwrap()
    }

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_process_that_stays_awake_resumes_by_itself() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sys::awake::tests::stay_awake_for_a_while", "--ignored"])
            .env("GLASS_TEST_AWAKE", "1")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let is_awake = |entry: std::fs::DirEntry| {
            std::fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.trim_end() == "awake")
        };
        wait_until("it starts no thread", || threads().any(is_awake));
        for signal in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGSTOP, libc::SIGSTOP, libc::SIGTTIN, libc::SIGSTOP] {
            for _ in 0..3 {
                // SAFETY: the child is ours and has not been waited for.
                unsafe { libc::kill(pid as libc::pid_t, signal) };
            }
            wait_until("it stays stopped", || state_of(pid) != 'T');
        }
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
