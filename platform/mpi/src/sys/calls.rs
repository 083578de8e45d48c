//! Calls of the C library that concern the process.

use super::arch::ticks;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use core::ffi::CStr;
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// In a VM: TSC at the clock's zero, a colon, and nanoseconds a tick times 2^32. There a system call costs 8 us.
const CLOCK: &str = "GLASS_MPI_CLOCK";
const MACHINE_BYTES_MAX: usize = 256;
/// Names a place that was not determined yet: no clock's zero is there.
const UNKNOWN: u64 = u64::MAX;

/// A variable of the environment; what is no UTF-8 is as if it were not set.
pub(crate) fn variable(name: &str) -> Option<String> {
    let name = CString::new(name).ok()?;
    // SAFETY: both are strings with an end; MPI is called by one thread at a time, and the text is copied before it returns.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))?
    };
    value.to_str().ok().map(String::from)
}

static CLOCK_ORIGIN: AtomicU64 = AtomicU64::new(UNKNOWN);
/// 0 where the C library's clock is used.
static CLOCK_SCALE: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds from a fixed moment on, the same for all ranks.
pub(crate) fn now_ns() -> u64 {
    if CLOCK_ORIGIN.load(Ordering::Relaxed) == UNKNOWN {
        let numbers = variable(CLOCK).and_then(|text| {
            let (origin, scale) = text.split_once(':')?;
            Some((origin.parse().ok()?, scale.parse().ok()?))
        });
        let (origin, scale) = numbers.unwrap_or((0, 0));
        CLOCK_SCALE.store(scale, Ordering::Relaxed);
        CLOCK_ORIGIN.store(origin, Ordering::Relaxed);
    }
    match CLOCK_SCALE.load(Ordering::Relaxed) {
        0 => monotonic_ns(),
        scale => {
            let ticks = ticks().saturating_sub(CLOCK_ORIGIN.load(Ordering::Relaxed));
            ((u128::from(ticks) * u128::from(scale)) >> 32) as u64
        }
    }
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How many cores this process may run on.
pub(crate) fn cores() -> usize {
    // SAFETY: a set of bits, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the call writes one set.
    match unsafe { libc::sched_getaffinity(0, mem::size_of::<libc::cpu_set_t>(), &mut set) } {
        // SAFETY: reads the set.
        0 => (unsafe { libc::CPU_COUNT(&set) } as usize).max(1),
        _ => 1,
    }
}

/// Gives the core to another process.
pub(crate) fn yield_now() {
    // SAFETY: no arguments.
    unsafe { libc::sched_yield() };
}

/// Sleeps; a signal may end it earlier.
pub(crate) fn sleep(duration: Duration) {
    let time = libc::timespec { tv_sec: duration.as_secs() as libc::time_t, tv_nsec: duration.subsec_nanos().into() };
    // SAFETY: the call reads one structure.
    unsafe { libc::nanosleep(&time, ptr::null_mut()) };
}

/// Prints a line to standard error. There is no other place to report to when that is closed.
pub(crate) fn print_error(line: &str) {
    let line = format!("{line}\n");
    // SAFETY: the call reads these bytes.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// The machine's name.
pub(crate) fn machine() -> String {
    let mut name = [0u8; MACHINE_BYTES_MAX];
    // SAFETY: the call writes at most one byte less than there is room for, so there is an end.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let text = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok());
    text.filter(|name| !name.is_empty()).map_or_else(|| String::from("localhost"), String::from)
}

/// The number of this process.
pub(crate) fn process() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::getpid() as u32 }
}

/// Ends the process without running what other threads or the program have registered: its memory may be in use.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}
