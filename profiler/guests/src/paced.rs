//! When to take samples: absolute deadlines with jitter, so that neither the time a sample takes nor a
//! guest that works in step with the clock shifts the picture.

use std::time::Duration;

use glass_profile::event::Event;

use crate::error::GuestError;
use crate::sys::{monotonic_ns, sleep_precisely};
use crate::{Counts, Flow, Guest, Source};

/// Of the time that follows a pause, this many times its length belongs to the guest: looking takes at
/// most a quarter of it.
const REST_PER_PAUSE: u64 = 3;

/// The deadlines of samples. Pure: time is an argument.
#[derive(Debug, Clone)]
pub struct Pacer {
    start_ns: u64,
    period_ns: u64,
    /// Number of the next period.
    index: u64,
    deadline_ns: u64,
    /// The guest has a right to run until then.
    rest_until_ns: u64,
    random: u64,
    skipped: u64,
    /// How many of those were skipped only to let the guest run.
    spared: u64,
    late: u64,
}

impl Pacer {
    /// Deadlines from `start_ns` on. A `seed` gives the same jitter each time.
    pub fn new(start_ns: u64, rate_hz: u32, seed: u64) -> Pacer {
        let period_ns = (1_000_000_000 / u64::from(rate_hz.max(1))).max(1);
        let random = seed | 1;
        let (deadline_ns, rest_until_ns) = (0, 0);
        let mut pacer =
            Pacer { start_ns, period_ns, index: 0, deadline_ns, rest_until_ns, random, skipped: 0, spared: 0, late: 0 };
        pacer.place();
        pacer
    }

    /// A deadline lies anywhere in the middle half of its period, or in what is left of that after the
    /// guest's rest; a period of which nothing is left is skipped.
    fn place(&mut self) {
        // Marsaglia's xorshift: jitter needs no better randomness.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let quarter = self.period_ns / 4;
        let rest_ns = self.rest_until_ns.saturating_sub(self.start_ns);
        let resting = rest_ns.saturating_sub(3 * quarter).div_ceil(self.period_ns);
        if resting > self.index {
            self.skipped += resting - self.index;
            self.spared += resting - self.index;
            self.index = resting;
        }
        let period_start = self.index * self.period_ns;
        let earliest = rest_ns.saturating_sub(period_start).clamp(quarter, 3 * quarter);
        let jitter = earliest + self.random % (3 * quarter - earliest + 1);
        self.deadline_ns = self.start_ns + period_start + jitter;
    }

    /// When the next sample is due.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Notes that a sample was begun at `begun_ns` and over at `now_ns`, for which the guest stood still
    /// for `pause_ns`, and goes on to the first deadline that can still be met and leaves the guest time
    /// to run; those in between are counted as lost.
    pub fn taken(&mut self, begun_ns: u64, now_ns: u64, pause_ns: u64) {
        if begun_ns.saturating_sub(self.deadline_ns) > self.period_ns / 2 {
            self.late += 1;
        }
        self.index += 1;
        let current = now_ns.saturating_sub(self.start_ns) / self.period_ns;
        if current > self.index {
            self.skipped += current - self.index;
            self.index = current;
        }
        self.rest_until_ns = now_ns.saturating_add(pause_ns.saturating_mul(REST_PER_PAUSE));
        self.place();
    }

    /// Samples that were left out only to let the guest run.
    pub fn spared(&self) -> u64 {
        self.spared
    }

    /// Samples that were due before `now_ns`, and of them those that were skipped or are overdue.
    fn wanted_and_lost(&self, now_ns: u64) -> (u64, u64) {
        let overdue = now_ns.saturating_sub(self.deadline_ns) / self.period_ns;
        // Periods that are skipped for the guest's rest, but have not begun yet.
        let ahead = self.index.saturating_sub(now_ns.saturating_sub(self.start_ns) / self.period_ns + 1);
        ((self.index + overdue).saturating_sub(ahead), (self.skipped + overdue).saturating_sub(ahead))
    }
}

/// Samples a guest at a fixed rate.
pub struct Paced<G> {
    guest: G,
    pacer: Pacer,
    /// The end of sampling, once it has come.
    ended_ns: Option<u64>,
    /// Samples of single tracks that the guest did not give.
    missing: u64,
    longest_pause_ns: u64,
}

impl<G: Guest> Paced<G> {
    /// Starts the clock.
    pub fn new(guest: G, rate_hz: u32) -> Paced<G> {
        sleep_precisely();
        let now = monotonic_ns();
        Paced { guest, pacer: Pacer::new(now, rate_hz, now), ended_ns: None, missing: 0, longest_pause_ns: 0 }
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
                self.guest.rest(until)?;
                return Ok(Flow::More);
            }
            self.guest.rest(deadline)?;
            let now = monotonic_ns();
            let Some(events) = self.guest.sample()? else {
                self.ended_ns = Some(now);
                return Ok(Flow::Ended);
            };
            let pauses = events.iter().map(|event| if let Event::Sample(sample) = event { sample.pause_ns } else { 0 });
            let pause_ns = pauses.max().unwrap_or(0);
            self.pacer.taken(now, monotonic_ns(), pause_ns);
            self.longest_pause_ns = self.longest_pause_ns.max(pause_ns);
            self.missing += self.guest.tracks().saturating_sub(events.len() as u64);
            events.into_iter().for_each(&mut *sink);
        }
    }

    fn counts(&self) -> Counts {
        let (wanted, lost) = self.pacer.wanted_and_lost(self.ended_ns.unwrap_or_else(monotonic_ns));
        let tracks = self.guest.tracks();
        Counts { wanted: wanted * tracks, lost: lost * tracks + self.missing, late: self.pacer.late * tracks }
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.ended_ns.get_or_insert_with(monotonic_ns);
        let spared = self.pacer.spared();
        if spared > 0 {
            sink(Event::Warning(format!(
                "the rate was lowered to keep the guest running: {spared} times there was no sample, because others had held the guest for up to {:.1} ms",
                self.longest_pause_ns as f64 / 1e6
            )));
        }
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
            let now = pacer.deadline_ns() + 40_000;
            pacer.taken(now, now + 60_000, 60_000);
        }
        offsets.sort_unstable();
        offsets.dedup();
        assert!(offsets.len() > 900);
        assert_eq!(pacer.wanted_and_lost(pacer.deadline_ns()), (1000, 0));
        assert_eq!((pacer.late, pacer.spared()), (0, 0));
    }

    #[test]
    fn what_cannot_be_kept_up_with_is_lost_not_hidden() {
        let mut pacer = Pacer::new(0, 1000, 7);
        // One sample that takes from period 0 into period 10.
        pacer.taken(10 * PERIOD + 1, 10 * PERIOD + 1, 0);
        assert_eq!(pacer.wanted_and_lost(10 * PERIOD + 1), (10, 9));
        assert_eq!(pacer.late, 1);
        assert!(pacer.deadline_ns() > 10 * PERIOD);
        // Nothing is taken for five more periods.
        let (wanted, lost) = pacer.wanted_and_lost(16 * PERIOD);
        assert_eq!(wanted - lost, 1);
        assert!((15..=16).contains(&wanted), "{wanted}");
    }

    /// Runs a guest of which each sample takes `pause_ns`; returns the time that it stood still, and the pacer.
    fn run(pause_ns: u64, samples: u64) -> (f64, Pacer) {
        let mut pacer = Pacer::new(0, 1000, 7);
        let (mut still, mut resumed) = (0, 0);
        for index in 0..samples {
            let begun = pacer.deadline_ns();
            assert!(index == 0 || begun >= resumed + 3 * pause_ns, "{begun} after {resumed}");
            resumed = begun + pause_ns;
            still += pause_ns;
            pacer.taken(begun, resumed, pause_ns);
        }
        (still as f64 / pacer.deadline_ns() as f64, pacer)
    }

    #[test]
    fn a_guest_that_is_expensive_to_hold_still_runs() {
        // 8 ms: what QEMU's gdbstub takes to stop a VM with a busy disk.
        for pause_ns in [240_000, 400_000, 2_000_000, 8_000_000] {
            let (share, pacer) = run(pause_ns, 500);
            assert!(share <= 0.25, "{share} at {pause_ns}");
            assert!(share > 0.15, "{share} at {pause_ns}: the rate is lowered more than needed");
            let (wanted, lost) = pacer.wanted_and_lost(pacer.deadline_ns());
            assert_eq!((wanted - lost, pacer.late), (500, 0));
            assert_eq!(pacer.spared() > 0, pause_ns > 250_000);
        }
        assert_eq!(run(50_000, 500).1.spared(), 0);
    }

    #[test]
    fn samples_left_out_count_only_when_their_time_has_come() {
        let mut pacer = Pacer::new(0, 1000, 7);
        let begun = pacer.deadline_ns();
        pacer.taken(begun, begun + 8 * PERIOD, 8 * PERIOD);
        assert!((32..=34).contains(&(pacer.deadline_ns() / PERIOD)), "{}", pacer.deadline_ns());
        let (wanted, lost) = pacer.wanted_and_lost(begun + 10 * PERIOD);
        assert_eq!((wanted, lost), (11, 10));
    }
}
