//! Whether to poll for a stop before sleeping until the kernel tells of it.
//!
//! A vCPU on a CPU of its own stops within some 10 us of being asked. To sleep and be woken again takes
//! longer than that, most of all on a host that is itself a VM, whose idle CPUs have to be woken by its
//! hypervisor. But where the vCPU needs our CPU to stop, polling only keeps it from that. So it is
//! tried, and given up for a while where it has not helped.
//!
//! Where others compete for the CPUs it changes nothing (2026-11-21, 2 cores, load 7 to 10,
//! `kvm_pause PID 10 997 0,20,40,80`: median pauses of 53, 52, 54 and 50 us, 90 % within 90, 98, 110 and
//! 123 us, so longer polling is no better).

/// How long is polled, in nanoseconds.
const LIMIT_NS: u64 = 20_000;
/// Where it does not help, it is tried this rarely.
const TRY_EVERY: u32 = 32;
/// How much a success counts for, at most.
const TRUST_MAX: u32 = 8;

/// What polling has brought so far.
#[derive(Debug)]
pub(super) struct Polling {
    limit_ns: u64,
    /// Grows by one with each success and is halved by each failure; zero is no trust.
    trust: u32,
    /// Stops that were waited for without polling since it was given up.
    since: u32,
}

impl Default for Polling {
    fn default() -> Polling {
        Polling::new(LIMIT_NS)
    }
}

impl Polling {
    /// Polls for at most this long; 0 is never.
    pub(super) fn new(limit_ns: u64) -> Polling {
        Polling { limit_ns, trust: TRUST_MAX, since: 0 }
    }

    /// Whether to look again at once, so long after the stop was asked for.
    pub(super) fn goes_on(&self, waited_ns: u64) -> bool {
        waited_ns < self.limit_ns && (self.trust > 0 || self.since >= TRY_EVERY)
    }

    /// Notes how long a stop has taken.
    pub(super) fn stopped(&mut self, waited_ns: u64) {
        if self.trust == 0 && self.since < TRY_EVERY {
            self.since += 1;
            return;
        }
        self.since = 0;
        self.trust = if waited_ns < self.limit_ns { (self.trust + 1).min(TRUST_MAX) } else { self.trust / 2 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_that_does_not_help_is_given_up_and_tried_again() {
        let mut polling = Polling::default();
        for _ in 0..4 {
            assert!(polling.goes_on(LIMIT_NS - 1) && !polling.goes_on(LIMIT_NS));
            polling.stopped(200_000);
        }
        let mut without = 0;
        while !polling.goes_on(0) {
            without += 1;
            polling.stopped(10_000);
        }
        assert_eq!(without, TRY_EVERY);
        polling.stopped(10_000);
        assert!(polling.goes_on(0), "it has helped");
        assert!(!Polling::new(0).goes_on(0));
    }
}
