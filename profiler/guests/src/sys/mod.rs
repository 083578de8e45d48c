//! System calls without a safe form in the standard library. The only module with `unsafe`.

mod affinity;
#[cfg(target_arch = "aarch64")]
#[path = "arch/aarch64.rs"]
pub(crate) mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64.rs"]
pub(crate) mod arch;
mod awake;
mod bpf;
mod fork;
mod kernel_types;
mod map;
mod other_end;
mod packets;
mod perf;
mod remote;
mod socket;
mod ticks;
mod tracee;
mod watchdog;
pub(crate) mod xen;

pub(crate) use affinity::Cpus;
pub(crate) use awake::{AWAKE_PERIOD, is_quiet, leave_session, rest_for, set_quiet, stay_awake};
pub(crate) use bpf::{FileOffsets, KernelReader, RED_ZONE, RedZone, open_files};
pub(crate) use fork::Held;
pub(crate) use kernel_types::KernelTypes;
pub(crate) use map::Map;
pub(crate) use other_end::OtherEnd;
pub(crate) use packets::{Packets, Received};
pub(crate) use perf::{PerfEvent, PerfSettings};
pub(crate) use remote::{cannot_shrink, read_process, read_process_each};
pub(crate) use socket::{Endpoint, RawAddress, can_read, connect_socket, open_socket};
pub(crate) use ticks::{ClockPair, read_pair};
pub(crate) use tracee::{ChildSignals, Process, Stop, Tracee, kvm_extension};
pub(crate) use watchdog::{Cleanup, LEAVE, LEAVE_HELD, Watchdog};

use std::io;

use glass_profiler_core::recording::Clocks;

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for one timespec. It cannot fail for the clocks used here; if it
    // did, the time stays zero.
    unsafe { libc::clock_gettime(id, &mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// `CLOCK_MONOTONIC` in nanoseconds: the clock of every sample.
pub(crate) fn monotonic_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Reads the machine's clocks.
pub fn read_clocks() -> Clocks {
    Clocks {
        monotonic_ns: monotonic_ns(),
        boottime_ns: clock(libc::CLOCK_BOOTTIME),
        realtime_ns: clock(libc::CLOCK_REALTIME),
    }
}

/// CPU time of this process so far, user and system, all threads.
pub fn cpu_time_ns() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of this thread so far, user and system.
pub(crate) fn thread_cpu_time_ns() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Gives memory that is free back to the system, and from now on large blocks when they are freed. glibc keeps both once it has freed a large block
/// (mallopt(3), `M_MMAP_THRESHOLD`), which is faster while much is read and freed again: for when that is done.
pub fn return_memory() {
    /// What is large before anything is freed.
    #[cfg(target_env = "gnu")]
    const LARGE_BYTES: libc::c_int = 128 << 10;
    // SAFETY: it takes two numbers. If it fails, nothing changes.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES)
    };
    // SAFETY: it takes a number, and touches memory that is free.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// How many steps of the clock of `/proc/PID/stat` a second has.
pub(crate) fn ticks_per_sec() -> u64 {
    // SAFETY: sysconf takes a number and touches no memory of ours.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|ticks| *ticks > 0).unwrap_or(100)
}

/// Ends sleeps of this thread at their time instead of up to 50 us later.
pub(crate) fn sleep_precisely() {
    // SAFETY: PR_SET_TIMERSLACK takes one number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// Gives this thread real-time priority over all ordinary threads, if that is permitted (CAP_SYS_NICE).
/// Threads and processes that it starts are ordinary ones.
pub(crate) fn run_first() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure is a valid one and only read; 0 is this thread. If it is not permitted, nothing changes.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &lowest) };
}

/// Raises the limit of open files as far as it may be: each thread of a process takes one for each CPU.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is one valid structure. If the limit cannot be read or raised, it stays as it is.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Converts a -1 to its error.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_runs_first_starts_ordinary_ones() {
        // SAFETY: it takes a number, 0 is this thread, and touches no memory.
        let policy = || unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
        let (first, started) = std::thread::spawn(move || {
            run_first();
            (policy(), std::thread::spawn(policy).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(started, libc::SCHED_OTHER);
        if first == libc::SCHED_OTHER {
            return glass_tests::programs::skip("a thread may not run first here (CAP_SYS_NICE)");
        }
        assert_eq!(first, libc::SCHED_FIFO);
    }
}
