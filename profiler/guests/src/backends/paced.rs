//! The moments of samples: random and independent of the guest, so that neither the duration of a sample
//! nor periodic behaviour of the guest biases the profile.

use std::time::Duration;

use glass_profiler_core::event::{Event, RawSample};

use crate::backends::load::Load;
use crate::error::GuestError;
use crate::sys::{monotonic_ns, run_first, sleep_precisely};
use crate::systems::linux::Replan;
use crate::systems::plan::CopyPlan;
use crate::{Attempt, Counts, Flow, Guest, Source, Taken};

/// Sampling is to take a fifth of the guest's time at most: it runs this many times as long as it is stopped on average.
const RUN_PER_PAUSE: u64 = 4;
/// Sampling never takes more than one part in so many of the time since its start, for any pauses.
const HELD_SHARE: u64 = 4;
/// Weight of a value in a running average: one in so many. An average that follows what the guest does makes samples rarer where pauses are
/// longer: with one in 16, of some 50 ms, writes to devices had 17.8 % of the samples instead of 19.1 (2026-11-27, a busy host). [`HELD_SHARE`] holds until it has followed.
const AVERAGED: i64 = 256;
/// A pause counts as at most this long in averages: a single outlier must not end the sampling for minutes.
const PAUSE_NS_MAX: u64 = 100_000_000;

/// An average of the last values, `value` being the newest of `count`. Of the first few it is the mean: on a busy host
/// the first pause may be a hundredth of those that follow.
fn follow(average: u64, value: u64, count: u64) -> u64 {
    let weight = (count.clamp(1, AVERAGED as u64)) as i64;
    average.saturating_add_signed((value as i64 - average as i64) / weight)
}

/// The deadlines of samples. Pure: time is an argument.
///
/// The guest runs for a random time between two samples, and regardless of its past, the next one is equally
/// likely at each future moment (the times are distributed exponentially). With more regular intervals, samples would
/// never show the guest just after a pause, when its devices have completed their requests,
/// and would show it half a period later too often.
///
/// No deadline depends on the last sample. If some code of the guest makes a pause long,
/// a rest in proportion to each pause would sample that code less often. Only if the pauses so
/// far exceed a quarter of the time, the next sample waits until they do not.
#[derive(Debug, Clone)]
pub struct Pacer {
    period_ns: u64,
    start_ns: u64,
    deadline_ns: u64,
    /// The total of all pauses.
    held_ns: u64,
    average_pause_ns: u64,
    /// The same of all the time from a deadline until the guest runs again.
    average_spent_ns: u64,
    random: u64,
    taken: u64,
    /// Time without samples although the rate requires some.
    lost_ns: u64,
    /// The part of it that was spent only to let the guest run.
    spared_ns: u64,
    late: u64,
}

impl Pacer {
    /// Deadlines from `start_ns` on. The same `seed` gives the same deadlines.
    pub fn new(start_ns: u64, rate_hz: u32, seed: u64) -> Pacer {
        let period_ns = (1_000_000_000 / u64::from(rate_hz.max(1))).max(1);
        let mut pacer = Pacer {
            period_ns,
            start_ns,
            deadline_ns: start_ns,
            held_ns: 0,
            average_pause_ns: 0,
            average_spent_ns: 0,
            random: seed | 1,
            taken: 0,
            lost_ns: 0,
            spared_ns: 0,
            late: 0,
        };
        pacer.deadline_ns += pacer.random(period_ns);
        pacer
    }

    /// A random time with this mean.
    fn random(&mut self, mean_ns: u64) -> u64 {
        // Marsaglia's xorshift: jitter needs no better randomness.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // Above 0 and at most 1, so that the logarithm is at most 37.
        let uniform = ((self.random >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (mean_ns as f64 * -uniform.ln()) as u64
    }

    /// When the next sample is due.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Records a sample from `begun_ns` to `now_ns` with a pause of `pause_ns`, and sets the next
    /// deadline so that the guest has time to run.
    pub fn taken(&mut self, begun_ns: u64, now_ns: u64, pause_ns: u64) {
        self.taken += 1;
        let late_ns = begun_ns.saturating_sub(self.deadline_ns);
        if late_ns > self.period_ns / 2 {
            self.late += 1;
        }
        self.held_ns = self.held_ns.saturating_add(pause_ns);
        let pause_ns = pause_ns.min(PAUSE_NS_MAX);
        let spent_ns = late_ns.min(self.period_ns) + pause_ns;
        self.average_pause_ns = follow(self.average_pause_ns, pause_ns, self.taken);
        self.average_spent_ns = follow(self.average_spent_ns, spent_ns, self.taken);
        // Together with the duration of a sample it makes a period, unless the guest must get more.
        let wanted_ns = self.period_ns.saturating_sub(self.average_spent_ns);
        let run_ns = wanted_ns.max(RUN_PER_PAUSE * self.average_pause_ns).max(self.period_ns / 4);
        let cycle_ns = run_ns + self.average_spent_ns;
        let gap_ns = self.random(run_ns);
        // The part of the coming time that exceeds the rate's interval.
        let share = cycle_ns.saturating_sub(self.period_ns) as f64 / cycle_ns.max(1) as f64;
        let spared_ns = ((gap_ns + self.average_spent_ns) as f64 * share) as u64;
        self.spared_ns += spared_ns;
        let stalled_ns = now_ns.saturating_sub(self.deadline_ns).saturating_sub(spent_ns);
        self.lost_ns += spared_ns + stalled_ns;
        self.deadline_ns = now_ns + gap_ns;
        let earliest_ns = self.start_ns.saturating_add(HELD_SHARE.saturating_mul(self.held_ns));
        let waits_ns = earliest_ns.saturating_sub(self.deadline_ns);
        self.deadline_ns += waits_ns;
        self.spared_ns += waits_ns;
        self.lost_ns += waits_ns;
    }

    /// Samples that were left out only to let the guest run.
    pub fn spared(&self) -> u64 {
        self.spared_ns / self.period_ns
    }

    /// Samples until `now_ns` that were left out or are overdue. Moments are random: collected and lost samples
    /// together are the rate times the time only approximately.
    fn lost(&self, now_ns: u64) -> u64 {
        let lost = (self.lost_ns + now_ns.saturating_sub(self.deadline_ns)) / self.period_ns;
        // Time that is still to come is not lost yet.
        lost.min((now_ns.saturating_sub(self.start_ns) / self.period_ns).saturating_sub(self.taken))
    }
}

/// Samples a guest at a fixed rate, each of its parts at times of its own: parts that were sampled one just after the other would show what
/// one does while another has just stood, such as waiting for its lock.
pub struct Paced<G> {
    guest: G,
    rate_hz: u32,
    parts: Vec<Part>,
    /// The end of sampling, once it has ended.
    ended_ns: Option<u64>,
    longest_pause_ns: u64,
    /// Samples that the guest had when it was announced.
    announced: u64,
    load: Load,
}

/// A part of a guest.
struct Part {
    pacer: Pacer,
    /// When it was requested to stop, if it has not yet.
    pending_ns: Option<u64>,
    delivered: u64,
    /// Samples of single tracks that were not possible.
    missing: u64,
    /// For how long it ran while it counted as standing, in nanoseconds.
    unseen_ns: u64,
}

impl<G: Guest> Paced<G> {
    /// Starts the clock.
    pub fn new(guest: G, rate_hz: u32) -> Paced<G> {
        sleep_precisely();
        // On a busy host it would wait for a CPU while the guest is stopped, and until a vCPU leaves its own.
        run_first();
        let (ended_ns, longest_pause_ns, announced) = (None, 0, 0);
        let mut paced =
            Paced { guest, rate_hz, parts: Vec::new(), ended_ns, longest_pause_ns, announced, load: Load::new() };
        paced.start();
        paced
    }

    /// Starts the clocks of all parts.
    fn start(&mut self) {
        let now = monotonic_ns();
        let part = |index: usize| Part {
            // Any seeds that are not the same: the deadlines of two parts are independent.
            pacer: Pacer::new(
                now,
                self.rate_hz,
                now.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            ),
            pending_ns: None,
            delivered: 0,
            missing: 0,
            unseen_ns: 0,
        };
        self.parts = (0..self.guest.parts()).map(part).collect();
    }

    /// The guest.
    pub fn guest(&self) -> &G {
        &self.guest
    }

    /// How many tracks a part has.
    fn tracks(&self) -> u64 {
        self.guest.tracks() / (self.parts.len() as u64).max(1)
    }

    /// The part that is due first, and its deadline, among those that are not pending.
    fn next(&self) -> Option<(usize, u64)> {
        let ready = self.parts.iter().enumerate().filter(|(_, part)| part.pending_ns.is_none());
        ready.map(|(index, part)| (index, part.pacer.deadline_ns())).min_by_key(|(_, deadline_ns)| *deadline_ns)
    }

    /// Passes on the samples of a part that was requested at `begun_ns`.
    fn taken(&mut self, index: usize, begun_ns: u64, taken: Taken, sink: &mut dyn FnMut(Event)) {
        let (tracks, period_ns) = (self.tracks(), 1_000_000_000 / u64::from(self.rate_hz.max(1)));
        let part = &mut self.parts[index];
        part.pending_ns = None;
        let pause_ns = taken.samples.iter().map(|sample| sample.frozen_ns).max().unwrap_or(0);
        self.longest_pause_ns = self.longest_pause_ns.max(pause_ns);
        let mut deliver = |part: &mut Part, samples: Vec<RawSample>| {
            let count = samples.len() as u64;
            part.delivered += count;
            part.missing += tracks.saturating_sub(count);
            samples.into_iter().map(Event::Sample).for_each(&mut *sink);
        };
        let Some(stood_until_ns) = taken.stood_until_ns else {
            part.pacer.taken(begun_ns, monotonic_ns(), pause_ns);
            return deliver(part, taken.samples);
        };
        // It was not waited for: what was due meanwhile is known.
        part.pacer.taken(begun_ns, begun_ns, pause_ns);
        let again: Vec<RawSample> =
            taken.samples.iter().map(|sample| RawSample { frozen_ns: 0, ..sample.clone() }).collect();
        deliver(part, taken.samples);
        part.unseen_ns += taken.ran_ns;
        while part.pacer.deadline_ns() < stood_until_ns {
            let time_ns = part.pacer.deadline_ns();
            part.pacer.taken(time_ns, time_ns, 0);
            if part.unseen_ns >= period_ns {
                part.unseen_ns -= period_ns;
                deliver(part, Vec::new());
                continue;
            }
            // It may have been due between the decision to take the first one and the time that this has.
            let at = |sample: &RawSample| RawSample { time_ns: time_ns.max(sample.time_ns), ..sample.clone() };
            deliver(part, again.iter().map(at).collect());
        }
    }

    /// The same of a part that was pending.
    fn pending_taken(&mut self, index: usize, taken: Taken, sink: &mut dyn FnMut(Event)) {
        let begun_ns = self.parts[index].pending_ns.unwrap_or_else(monotonic_ns);
        self.taken(index, begun_ns, taken, sink);
    }
}

impl<G: Replan> Replan for Paced<G> {
    fn replan(&mut self, plan: CopyPlan) -> Result<(), GuestError> {
        self.guest.replan(plan)
    }
}

impl<G: Guest> Source for Paced<G> {
    fn started_ns(&self) -> Option<u64> {
        self.guest.started_ns()
    }

    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        let announced = &mut self.announced;
        self.guest.announce(&mut |event| {
            *announced += u64::from(matches!(event, Event::Sample(_)));
            sink(event);
        })?;
        // The time of announcing does not count for samples.
        self.start();
        Ok(())
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        self.load.look();
        let until_ns = monotonic_ns().saturating_add(wait.as_nanos() as u64);
        loop {
            let due = self.next().filter(|(_, deadline_ns)| *deadline_ns <= until_ns);
            let rested = self.guest.rest(due.map_or(until_ns, |(_, deadline_ns)| deadline_ns))?;
            if let Some((index, taken)) = rested {
                self.pending_taken(index, taken, sink);
                continue;
            }
            let Some((index, _)) = due else { return Ok(Flow::More) };
            let begun_ns = monotonic_ns();
            match self.guest.sample(index)? {
                Attempt::Taken(taken) => self.taken(index, begun_ns, taken, sink),
                Attempt::Pending => self.parts[index].pending_ns = Some(begun_ns),
                Attempt::Ended => {
                    self.ended_ns = Some(begun_ns);
                    return Ok(Flow::Ended);
                }
            }
        }
    }

    fn counts(&self) -> Counts {
        let (now_ns, tracks) = (self.ended_ns.unwrap_or_else(monotonic_ns), self.tracks());
        let mut counts = Counts { delivered: self.announced, ..Counts::default() };
        for part in &self.parts {
            counts.delivered += part.delivered;
            counts.losses.overdue += part.pacer.lost(now_ns) * tracks;
            counts.losses.not_stopped += part.missing;
            counts.late += (part.pacer.late * tracks).min(part.delivered);
        }
        counts
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.ended_ns.get_or_insert_with(monotonic_ns);
        // What is known now of parts that were not waited for. Each has one at most.
        for _ in 0..self.parts.len() {
            let Ok(Some((index, taken))) = self.guest.rest(0) else { break };
            self.pending_taken(index, taken, sink);
        }
        let spared: u64 = self.parts.iter().map(|part| part.pacer.spared()).sum();
        let load = self.load.overload();
        let longest_ms = self.longest_pause_ns as f64 / 1e6;
        if spared > 0 {
            let why = load.map_or(String::new(), |(waiting, cpus)| {
                format!(", as this host is overloaded ({waiting:.1} runnable threads on {cpus} CPUs)")
            });
            sink(Event::Warning(format!(
                "the rate was lowered to keep the guest running: {spared} samples were dropped, because earlier pauses lasted up to {longest_ms:.1} ms{why}; take a lower --rate"
            )));
        } else if let Some((waiting, cpus)) = load {
            sink(Event::Warning(format!(
                "this host is overloaded ({waiting:.1} runnable threads on {cpus} CPUs): the guest lost more than on a quiet one, and samples came late"
            )));
        }
        self.guest.remark().into_iter().for_each(|text| sink(Event::Warning(text)));
        self.guest.detach()?;
        self.guest.left_behind().into_iter().for_each(|text| sink(Event::Warning(text)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 1_000_000;

    #[test]
    fn the_rate_is_kept_and_no_time_is_likelier_than_another() {
        let mut pacer = Pacer::new(500, 1000, 7);
        let (mut shorter, mut resumed) = (0, 500);
        let samples = 100_000;
        for _ in 0..samples {
            let now = pacer.deadline_ns();
            shorter += u64::from(now - resumed < 940_000);
            resumed = now + 60_000;
            pacer.taken(now, resumed, 60_000);
        }
        // Of an exponential distribution 1 - 1/e is below the mean.
        let share = shorter as f64 / f64::from(samples);
        assert!((share - 0.632).abs() < 0.01, "{share}");
        let rate = f64::from(samples) * PERIOD as f64 / resumed as f64;
        assert!((rate - 1.0).abs() < 0.01, "{rate}");
        assert_eq!(pacer.lost(resumed), 0);
        assert_eq!((pacer.late, pacer.spared()), (0, 0));
    }

    #[test]
    fn what_cannot_be_kept_up_with_is_lost_not_hidden() {
        let mut pacer = Pacer::new(0, 1000, 7);
        // One sample that was begun ten periods late.
        let begun = pacer.deadline_ns() + 10 * PERIOD;
        pacer.taken(begun, begun, 0);
        assert_eq!(pacer.lost(begun), 9);
        assert_eq!(pacer.late, 1);
        assert!(pacer.deadline_ns() > begun);
        // No sample for five more periods.
        assert_eq!(pacer.lost(pacer.deadline_ns() + 5 * PERIOD), 14);
        // One that took a second.
        let begun = pacer.deadline_ns();
        let ended = begun + 1000 * PERIOD;
        pacer.taken(begun, ended, 1000 * PERIOD);
        assert_eq!(pacer.lost(ended), ended / PERIOD - 2);
        // Three more compensate for it.
        assert!((3990 * PERIOD..4200 * PERIOD).contains(&pacer.deadline_ns()), "{}", pacer.deadline_ns());
    }

    /// Runs a guest with a pause of `pause_ns` for each sample; returns the share of time for which it was stopped,
    /// and the pacer.
    fn run(pause_ns: u64, samples: u64) -> (f64, Pacer) {
        let mut pacer = Pacer::new(0, 1000, 7);
        let (mut still, mut resumed) = (0, 0);
        for _ in 0..samples {
            let begun = pacer.deadline_ns();
            assert!(begun >= resumed, "{begun} after {resumed}");
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
            let (lost, now) = (pacer.lost(pacer.deadline_ns()), pacer.deadline_ns());
            assert!((now / PERIOD - lost).abs_diff(2000) < 300 && pacer.late == 0, "{now} {lost}");
            assert!(pacer.spared() > 0);
        }
        assert_eq!(run(50_000, 500).1.spared(), 0);
    }

    /// Pauses that grow to a hundred times the first, as on a host that others begin to use: the guest had half its time
    /// until the average had followed (2026-11-22).
    #[test]
    fn the_guest_runs_three_quarters_of_any_time() {
        for seed in 1..50 {
            let mut pacer = Pacer::new(0, 1000, seed);
            let mut held_ns = 0;
            for sample in 0..60 {
                let begun = pacer.deadline_ns();
                let pause_ns = if sample < 3 { 300_000 } else { 40_000_000 + (sample * seed) % 7 * 20_000_000 };
                held_ns += pause_ns;
                pacer.taken(begun, begun + pause_ns, pause_ns);
                let share = held_ns as f64 / pacer.deadline_ns() as f64;
                assert!(share <= 0.2501, "{share} after {sample} samples, seed {seed}");
            }
        }
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

    /// A guest of two parts: the first stops at once, the second stands for some time whenever it is to be sampled.
    struct TwoParts {
        stands_since_ns: Option<u64>,
    }

    const STANDS_NS: u64 = 20 * PERIOD;

    impl TwoParts {
        fn sample_of(track: u32, time_ns: u64) -> RawSample {
            RawSample { time_ns, track, frozen_ns: 1_000, ..RawSample::default() }
        }
    }

    impl Guest for TwoParts {
        fn announce(&mut self, _sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
            Ok(())
        }

        fn parts(&self) -> usize {
            2
        }

        fn sample(&mut self, part: usize) -> Result<Attempt, GuestError> {
            let now_ns = monotonic_ns();
            if part == 1 {
                assert!(self.stands_since_ns.is_none(), "it is pending");
                // The time of its sample is a little after the decision to take it.
                self.stands_since_ns = Some(now_ns + PERIOD / 4);
                return Ok(Attempt::Pending);
            }
            Ok(Attempt::of(vec![TwoParts::sample_of(0, now_ns)]))
        }

        fn rest(&mut self, until_ns: u64) -> Result<Option<(usize, Taken)>, GuestError> {
            let runs_ns = self.stands_since_ns.map(|since_ns| since_ns + STANDS_NS);
            let until_ns = until_ns.min(runs_ns.unwrap_or(u64::MAX));
            std::thread::sleep(Duration::from_nanos(until_ns.saturating_sub(monotonic_ns())));
            let now_ns = monotonic_ns();
            let Some(since_ns) = self.stands_since_ns.filter(|since_ns| now_ns >= since_ns + STANDS_NS) else {
                return Ok(None);
            };
            self.stands_since_ns = None;
            Ok(Some((
                1,
                Taken { samples: vec![TwoParts::sample_of(1, since_ns)], stood_until_ns: Some(now_ns), ran_ns: 0 },
            )))
        }

        fn tracks(&self) -> u64 {
            2
        }

        fn detach(&mut self) -> Result<(), GuestError> {
            Ok(())
        }
    }

    /// A vCPU that the host did not run delayed the others, and had one sample for all the time (2026-11-27).
    #[test]
    fn a_part_that_stands_has_its_samples_and_delays_no_other() {
        let mut source = Paced::new(TwoParts { stands_since_ns: None }, 1000);
        source.announce(&mut |_| ()).unwrap();
        let (start_ns, mut samples) = (monotonic_ns(), Vec::new());
        while samples.len() < 1000 {
            let flow = source.collect(Duration::from_millis(50), &mut |event| {
                if let Event::Sample(sample) = event {
                    samples.push(sample);
                }
            });
            assert_eq!(flow.unwrap(), Flow::More);
        }
        let elapsed = monotonic_ns() - start_ns;
        let of = |track| samples.iter().filter(|sample| sample.track == track).collect::<Vec<_>>();
        let (quick, slow) = (of(0), of(1));
        let rate = |samples: &[&RawSample]| samples.len() as f64 * PERIOD as f64 / elapsed as f64;
        assert!(rate(&slow) > 0.7 && rate(&slow) < 1.3, "{} of {elapsed} ns", slow.len());
        assert!(quick.len() * 2 > slow.len(), "{} and {}", quick.len(), slow.len());
        assert!(slow.is_sorted_by_key(|sample| sample.time_ns), "one moment after the other");
        // Only the stop itself is a pause.
        let stops = slow.iter().filter(|sample| sample.frozen_ns > 0).count();
        assert!(stops > 0 && stops * 5 < slow.len(), "{stops} stops of {}", slow.len());
        let counts = source.counts();
        assert_eq!(counts.delivered, samples.len() as u64);
    }
}
