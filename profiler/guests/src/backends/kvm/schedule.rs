//! Whether a vCPU's thread was runnable while the host ran something else: its time is stolen from the guest.
//!
//! The kernel counts for how long each thread waits for a CPU, and adds a wait when it is over (`run_delay` of `struct sched_info`). A thread that
//! waits for a CPU does not stop before it gets one. So a wait that ended between the request to stop and the stop, and is longer than this, began
//! before the request: the thread was waiting when it was to be sampled. A thread that our own wake-up, or the request, has made wait began later.
//!
//! The stop as we see it includes the time until we notice it, so a wait that is a little shorter may have begun before the request, too. A thread that
//! ran then stops without a wait; so it was waiting if it has code to run, and a CPU that is not ours.

use std::fs::File;
use std::ops::Range;

use crate::backends::thread_stat::waited_ns;

/// By how much a wait has to be longer than the stop took: our thread may have taken the vCPU's CPU when it woke for this sample.
const LONGER_NS: u64 = 50_000;
/// A stop that takes less than this is not looked at, nor is a wait: the thread was on a CPU, or about to be.
const AT_ONCE_NS: u64 = 30_000;
/// Until we notice a stop, with some to spare (80 us on 2026-11-27).
const NOTICED_NS: u64 = 150_000;

/// Whether a thread was waiting for a CPU when it was requested to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WasWaiting {
    No,
    /// It was if it did not sleep then, and did not run on the CPU that our thread took.
    IfRunnable,
    Yes,
}

/// Whether a thread was waiting for a CPU when it was requested to stop, at the start of `stop`; it has just stopped, at the end. `before_ns` is for how
/// long it had waited until the request.
pub(super) fn was_waiting(schedule: Option<&File>, before_ns: Option<u64>, stop: Range<u64>) -> WasWaiting {
    let took_ns = stop.end.saturating_sub(stop.start);
    if took_ns < AT_ONCE_NS {
        return WasWaiting::No;
    }
    match (schedule.and_then(waited_ns), before_ns) {
        (Some(now_ns), Some(before_ns)) => began_before(now_ns.saturating_sub(before_ns), took_ns),
        _ => WasWaiting::No,
    }
}

/// Whether a wait that has ended began before the request to stop, which took so long.
fn began_before(waited_ns: u64, took_ns: u64) -> WasWaiting {
    if waited_ns >= took_ns.saturating_add(LONGER_NS) {
        WasWaiting::Yes
    } else if waited_ns >= AT_ONCE_NS && waited_ns.saturating_add(NOTICED_NS) >= took_ns {
        WasWaiting::IfRunnable
    } else {
        WasWaiting::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_began_before_the_request() {
        assert_eq!(began_before(3_000_000, 1_000_000), WasWaiting::Yes);
        // We noticed the stop some time after it; our wake-up preempted it, or woke it.
        assert_eq!(began_before(990_000, 1_000_000), WasWaiting::IfRunnable);
        assert_eq!(began_before(70_000, 40_000), WasWaiting::IfRunnable);
        // It ran, and was preempted after the request; it ran on a CPU.
        assert_eq!(began_before(800_000, 1_000_000), WasWaiting::No);
        assert_eq!(began_before(0, 40_000), WasWaiting::No);
        assert_eq!(began_before(2_000, 100_000), WasWaiting::No);
    }
}
