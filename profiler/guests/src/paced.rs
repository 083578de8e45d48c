//! When to take samples: absolute deadlines with jitter, so that neither the time a sample takes nor a
//! guest that works in step with the clock shifts the picture.

use std::time::Duration;

use glass_profile::event::Event;

use crate::error::GuestError;
use crate::sys::{monotonic_ns, sleep_precisely};
use crate::{Counts, Flow, Guest, Source};

/// Looking may take at most a quarter of the guest's time: on average it runs this many times as long
/// as it is held.
const RUN_PER_PAUSE: u64 = 3;
/// The average pause follows the last pauses, of which this one counts as one of so many.
const AVERAGED_PAUSES: i64 = 16;
/// A pause counts as at most this long: one accident shall not end the sampling for minutes.
const PAUSE_NS_MAX: u64 = 100_000_000;

/// The deadlines of samples. Pure: time is an argument.
///
/// No deadline depends on what the guest did when it was sampled last. Where a pause is long because
/// of what the guest does, a rest after each pause by its length would look less often at that.
#[derive(Debug, Clone)]
pub struct Pacer {
    start_ns: u64,
    period_ns: u64,
    /// Number of the next period.
    index: u64,
    deadline_ns: u64,
    average_pause_ns: u64,
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
        let mut pacer = Pacer {
            start_ns,
            period_ns,
            index: 0,
            deadline_ns: 0,
            average_pause_ns: 0,
            random: seed | 1,
            skipped: 0,
            spared: 0,
            late: 0,
        };
        pacer.place();
        pacer
    }

    /// A number from 0 to `most`.
    fn random(&mut self, most: u64) -> u64 {
        // Marsaglia's xorshift: jitter needs no better randomness.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % (most + 1)
    }

    /// A deadline lies anywhere in the middle half of its period.
    fn place(&mut self) {
        let quarter = self.period_ns / 4;
        self.deadline_ns = self.start_ns + self.index * self.period_ns + quarter + self.random(2 * quarter);
    }

    /// Leaves out as many periods as the guest's right to run calls for, a random number around it.
    fn spare(&mut self) {
        let run_ns = RUN_PER_PAUSE * self.average_pause_ns;
        if run_ns > self.period_ns / 4 * 3 {
            let spared = self.random(2 * run_ns.div_ceil(self.period_ns) - 1);
            self.skipped += spared;
            self.spared += spared;
            if spared > 0 {
                self.index += spared;
                self.place();
            }
        }
    }

    /// When the next sample is due.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Notes that a sample was begun at `begun_ns` and over at `now_ns`, for which the guest stood still
    /// for `pause_ns`, and goes on to a deadline that leaves the guest time to run; those in between are
    /// counted as lost.
    pub fn taken(&mut self, begun_ns: u64, now_ns: u64, pause_ns: u64) {
        if begun_ns.saturating_sub(self.deadline_ns) > self.period_ns / 2 {
            self.late += 1;
        }
        let pause_ns = pause_ns.min(PAUSE_NS_MAX);
        if self.average_pause_ns == 0 {
            self.average_pause_ns = pause_ns;
        }
        let change = (pause_ns as i64 - self.average_pause_ns as i64) / AVERAGED_PAUSES;
        self.average_pause_ns = self.average_pause_ns.saturating_add_signed(change);
        self.index += 1;
        let current = now_ns.saturating_sub(self.start_ns) / self.period_ns;
        self.skipped += current.saturating_sub(self.index);
        self.index = self.index.max(current);
        self.place();
        // A time in which the guest was held is no time to look at it, and looking at once when it runs
        // again would show what it did before.
        if self.deadline_ns <= now_ns {
            self.skipped += 1;
            self.index += 1;
            self.place();
        }
        self.spare();
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

    /// Runs a guest of which each sample takes `pause_ns`; returns the share of time that it stood still,
    /// and the pacer.
    fn run(pause_ns: u64, samples: u64) -> (f64, Pacer) {
        let mut pacer = Pacer::new(0, 1000, 7);
        let (mut still, mut resumed) = (0, 0);
        for _ in 0..samples {
            let begun = pacer.deadline_ns();
            assert!(begun > resumed, "{begun} after {resumed}");
            resumed = begun + pause_ns;
            still += pause_ns;
            pacer.taken(begun, resumed, pause_ns);
        }
        (still as f64 / pacer.deadline_ns() as f64, pacer)
    }

    #[test]
    fn a_guest_that_is_expensive_to_hold_still_runs() {
        // 8 ms: what QEMU's gdbstub takes to stop a VM with a busy disk.
        for pause_ns in [260_000, 400_000, 2_000_000, 8_000_000] {
            let (share, pacer) = run(pause_ns, 2000);
            assert!(share <= 0.26, "{share} at {pause_ns}");
            assert!(share > 0.14, "{share} at {pause_ns}: the rate is lowered more than needed");
            let (wanted, lost) = pacer.wanted_and_lost(pacer.deadline_ns());
            assert_eq!((wanted - lost, pacer.late), (2000, 0));
            assert!(pacer.spared() > 0);
        }
        assert_eq!(run(50_000, 500).1.spared(), 0);
    }

    /// A guest that in turn does something for 5 ms of which a sample takes long, and something else.
    #[test]
    fn what_is_expensive_to_look_at_is_seen_as_often() {
        let mut pacer = Pacer::new(0, 1000, 7);
        let (mut held_ns, mut slow, samples) = (0, 0, 20_000);
        for _ in 0..samples {
            let begun = pacer.deadline_ns();
            let is_slow = ((begun - held_ns) / 5_000_000).is_multiple_of(2);
            let pause_ns = if is_slow { 2_000_000 } else { 100_000 };
            slow += u64::from(is_slow);
            held_ns += pause_ns;
            pacer.taken(begun, begun + pause_ns, pause_ns);
        }
        let share = slow as f64 / f64::from(samples);
        assert!((share - 0.5).abs() < 0.03, "{share}");
    }

    #[test]
    fn samples_left_out_count_only_when_their_time_has_come() {
        let mut pacer = Pacer::new(0, 1000, 7);
        let begun = pacer.deadline_ns();
        pacer.taken(begun, begun + 8 * PERIOD, 8 * PERIOD);
        let next = pacer.deadline_ns() / PERIOD;
        assert!((8..=57).contains(&next), "{next}");
        let (wanted, lost) = pacer.wanted_and_lost(begun + 8 * PERIOD);
        assert_eq!((wanted, lost), (9, 8));
    }
}
