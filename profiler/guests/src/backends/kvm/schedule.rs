//! Whether a vCPU's thread was runnable while the host ran something else: its time is stolen from the guest.
//!
//! The kernel counts for how long each thread waits for a CPU, and adds a wait when it is over (`run_delay` of `struct sched_info`). A thread that
//! waits for a CPU does not stop before it gets one. So a thread that was runnable when it was requested to stop, and has waited until it stopped, was waiting
//! already: on a CPU it would have stopped within microseconds. One that was asleep waits because of the request.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// A shorter wait is not counted: our thread may have taken the vCPU's CPU when it woke for this sample.
const WAIT_NS_MIN: u64 = 100_000;
/// A stop that takes less than this is not looked at: the thread was on a CPU, or about to be.
const AT_ONCE_NS: u64 = 30_000;

/// For how long a thread has waited for a CPU since its start. Reading it takes 1.4 us (2026-11-27).
pub(super) fn waited_ns(schedule: &File) -> Option<u64> {
    let mut bytes = [0; 128];
    let count = schedule.read_at(&mut bytes, 0).ok()?;
    parse(std::str::from_utf8(&bytes[..count]).ok()?)
}

/// The second number in `/proc/PID/task/TID/schedstat` (`Documentation/scheduler/sched-stats.rst` of Linux).
fn parse(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whether a thread that was runnable when it was requested to stop was waiting for a CPU; it has just stopped, `took_ns` later. `before_ns` is for how long it had
/// waited until the request.
pub(super) fn was_waiting(schedule: Option<&File>, before_ns: Option<u64>, took_ns: u64) -> bool {
    if took_ns < AT_ONCE_NS {
        return false;
    }
    let (Some(schedule), Some(before_ns)) = (schedule, before_ns) else { return false };
    waited_ns(schedule).is_some_and(|now_ns| is_long(before_ns, now_ns))
}

/// How long a stop takes of a thread that has a CPU: until it leaves the guest, and until we know.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsualStop {
    average_ns: u64,
}

impl UsualStop {
    pub(super) fn new() -> UsualStop {
        UsualStop { average_ns: AT_ONCE_NS }
    }

    /// Takes note of a stop for which the thread did not wait.
    pub(super) fn note(&mut self, took_ns: u64) {
        /// One in so many.
        const WEIGHT: u64 = 16;
        // One that had to be woken on a busy host is none of these.
        let took_ns = took_ns.min(WAIT_NS_MIN);
        self.average_ns = (self.average_ns * (WEIGHT - 1) + took_ns) / WEIGHT;
    }

    /// When a thread that waited for a CPU got it, if it was requested to stop at the start of `stop` and known to have stopped at the end.
    pub(super) fn had_cpu_ns(self, stop: Range<u64>) -> u64 {
        stop.end.saturating_sub(self.average_ns).max(stop.start)
    }
}

fn is_long(before_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(before_ns) >= WAIT_NS_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_numbers() {
        assert_eq!(parse("176755099 25218189 430\n"), Some(25_218_189));
        for text in ["", "1", "1 x 3"] {
            assert_eq!(parse(text), None, "{text}");
        }
        let own = File::open("/proc/thread-self/schedstat").unwrap();
        assert!(waited_ns(&own).is_some());
    }

    #[test]
    fn a_thread_that_waited_had_its_cpu_before_it_was_known_to_have_stopped() {
        let mut usual = UsualStop::new();
        (0..100).for_each(|_| usual.note(60_000));
        let had = usual.had_cpu_ns(1_000_000..3_000_000);
        assert!(had.abs_diff(2_940_000) < 1_000, "{had}");
        assert_eq!(usual.had_cpu_ns(1_000_000..1_010_000), 1_000_000);
        (0..100).for_each(|_| usual.note(50_000_000));
        assert!(usual.had_cpu_ns(0..3_000_000) >= 3_000_000 - WAIT_NS_MIN);
    }

    #[test]
    fn waits_that_are_long_enough() {
        assert!(is_long(1_000_000, 4_000_000));
        assert!(is_long(1_000_000, 1_000_000 + WAIT_NS_MIN));
        // It ran on a CPU; our wake-up preempted it.
        assert!(!is_long(1_000_000, 1_000_000));
        assert!(!is_long(1_000_000, 1_000_000 + WAIT_NS_MIN - 1));
        let own = File::open("/proc/thread-self/schedstat").unwrap();
        // Its wait is longer than this test's, or that until the request was not read: the thread was asleep.
        assert!(!was_waiting(Some(&own), Some(u64::MAX), AT_ONCE_NS));
        assert!(!was_waiting(Some(&own), None, AT_ONCE_NS));
    }
}
