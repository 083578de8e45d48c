//! When to take samples: absolute deadlines with jitter, so that neither the time a sample takes nor a
//! guest that works in step with the clock shifts the picture.

use std::time::Duration;

use glass_profile::event::Event;

use crate::error::GuestError;
use crate::sys::{monotonic_ns, sleep_precisely};
use crate::{Counts, Flow, Guest, Source};

/// The deadlines of samples. Pure: time is an argument.
#[derive(Debug, Clone)]
pub struct Pacer {
    start_ns: u64,
    period_ns: u64,
    /// Number of the next period.
    index: u64,
    deadline_ns: u64,
    random: u64,
    skipped: u64,
    late: u64,
}

impl Pacer {
    /// Deadlines from `start_ns` on. A `seed` gives the same jitter each time.
    pub fn new(start_ns: u64, rate_hz: u32, seed: u64) -> Pacer {
        let period_ns = (1_000_000_000 / u64::from(rate_hz.max(1))).max(1);
        let mut pacer = Pacer { start_ns, period_ns, index: 0, deadline_ns: 0, random: seed | 1, skipped: 0, late: 0 };
        pacer.place();
        pacer
    }

    /// A deadline lies anywhere in the middle half of its period.
    fn place(&mut self) {
        // Marsaglia's xorshift: jitter needs no better randomness.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let quarter = self.period_ns / 4;
        let jitter = quarter + self.random % (2 * quarter + 1);
        self.deadline_ns = self.start_ns + self.index * self.period_ns + jitter;
    }

    /// When the next sample is due.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Notes that the sample was taken at `now_ns` and goes on to the first deadline that can still be
    /// met; those in between are counted as lost.
    pub fn taken(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.deadline_ns) > self.period_ns / 2 {
            self.late += 1;
        }
        self.index += 1;
        let current = now_ns.saturating_sub(self.start_ns) / self.period_ns;
        if current > self.index {
            self.skipped += current - self.index;
            self.index = current;
        }
        self.place();
    }

    /// Samples that were due before `now_ns`, and of them those that were skipped or are overdue.
    fn wanted_and_lost(&self, now_ns: u64) -> (u64, u64) {
        let overdue = now_ns.saturating_sub(self.deadline_ns) / self.period_ns;
        (self.index + overdue, self.skipped + overdue)
    }
}

/// Samples a guest at a fixed rate.
pub struct Paced<G> {
    guest: G,
    pacer: Pacer,
    /// The end of sampling, once it has come.
    ended_ns: Option<u64>,
}

impl<G: Guest> Paced<G> {
    /// Starts the clock.
    pub fn new(guest: G, rate_hz: u32) -> Paced<G> {
        sleep_precisely();
        let now = monotonic_ns();
        Paced { guest, pacer: Pacer::new(now, rate_hz, now), ended_ns: None }
    }

    /// The guest.
    pub fn guest(&self) -> &G {
        &self.guest
    }
}

impl<G: Guest> Source for Paced<G> {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.guest.announce(sink)?;
        // Announcing takes time that no samples are wanted for.
        let now = monotonic_ns();
        self.pacer.start_ns = now;
        self.pacer.place();
        Ok(())
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        let until = monotonic_ns().saturating_add(wait.as_nanos() as u64);
        loop {
            let deadline = self.pacer.deadline_ns();
            if deadline > until {
                std::thread::sleep(Duration::from_nanos(until.saturating_sub(monotonic_ns())));
                return Ok(Flow::More);
            }
            std::thread::sleep(Duration::from_nanos(deadline.saturating_sub(monotonic_ns())));
            let now = monotonic_ns();
            let Some(events) = self.guest.sample()? else {
                self.ended_ns = Some(now);
                return Ok(Flow::Ended);
            };
            self.pacer.taken(now);
            events.into_iter().for_each(&mut *sink);
        }
    }

    fn counts(&self) -> Counts {
        let (wanted, lost) = self.pacer.wanted_and_lost(self.ended_ns.unwrap_or_else(monotonic_ns));
        let tracks = self.guest.tracks();
        Counts { wanted: wanted * tracks, lost: lost * tracks, late: self.pacer.late * tracks }
    }

    fn detach(&mut self, _sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.ended_ns.get_or_insert_with(monotonic_ns);
        self.guest.detach()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 1_000_000;

    #[test]
    fn deadlines_do_not_drift_and_are_not_regular() {
        let mut pacer = Pacer::new(500, 1000, 7);
        let mut offsets = Vec::new();
        for index in 0..1000 {
            let offset = pacer.deadline_ns() - 500 - index * PERIOD;
            assert!((PERIOD / 4..=PERIOD * 3 / 4).contains(&offset), "{offset} in period {index}");
            offsets.push(offset);
            pacer.taken(pacer.deadline_ns() + 40_000);
        }
        offsets.sort_unstable();
        offsets.dedup();
        assert!(offsets.len() > 900);
        assert_eq!(pacer.wanted_and_lost(pacer.deadline_ns()), (1000, 0));
        assert_eq!(pacer.late, 0);
    }

    #[test]
    fn what_cannot_be_kept_up_with_is_lost_not_hidden() {
        let mut pacer = Pacer::new(0, 1000, 7);
        // One sample that takes from period 0 into period 10.
        pacer.taken(10 * PERIOD + 1);
        assert_eq!(pacer.wanted_and_lost(10 * PERIOD + 1), (10, 9));
        assert_eq!(pacer.late, 1);
        assert!(pacer.deadline_ns() > 10 * PERIOD);
        // Nothing is taken for five more periods.
        let (wanted, lost) = pacer.wanted_and_lost(16 * PERIOD);
        assert_eq!(wanted - lost, 1);
        assert!((15..=16).contains(&wanted), "{wanted}");
    }
}
