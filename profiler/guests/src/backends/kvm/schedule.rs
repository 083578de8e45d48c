//! Whether a vCPU's thread was runnable while the host ran something else: its time is stolen from the guest.
//!
//! The kernel counts for how long each thread waits for a CPU, and adds a wait when it is over (`run_delay` of `struct sched_info`). A thread that
//! waits for a CPU does not stop before it gets one. So a wait that ended between the request to stop and the stop, and is longer than this, began
//! before the request: the thread was waiting when it was to be sampled. A thread that our own wake-up, or the request, has made wait began later.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// By how much a wait has to be longer than the stop took: our thread may have taken the vCPU's CPU when it woke for this sample.
const LONGER_NS: u64 = 50_000;
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

/// Whether a thread was waiting for a CPU when it was requested to stop, at the start of `stop`; it has just stopped, at the end. `before_ns` is for how
/// long it had waited until the request.
pub(super) fn was_waiting(schedule: Option<&File>, before_ns: Option<u64>, stop: Range<u64>) -> bool {
    let took_ns = stop.end.saturating_sub(stop.start);
    if took_ns < AT_ONCE_NS {
        return false;
    }
    let (Some(schedule), Some(before_ns)) = (schedule, before_ns) else { return false };
    waited_ns(schedule).is_some_and(|now_ns| began_before(now_ns.saturating_sub(before_ns), took_ns))
}

/// Whether a wait that has ended began before the request to stop, which took so long.
fn began_before(waited_ns: u64, took_ns: u64) -> bool {
    waited_ns >= took_ns.saturating_add(LONGER_NS)
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
    fn waits_that_began_before_the_request() {
        assert!(began_before(3_000_000, 1_000_000));
        // It ran, and was preempted after the request; it ran on a CPU; our wake-up preempted it.
        assert!(!began_before(990_000, 1_000_000));
        assert!(!began_before(0, 40_000));
        assert!(!began_before(70_000, 40_000));
    }
}
