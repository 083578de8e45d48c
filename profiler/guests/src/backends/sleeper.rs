//! A vCPU that sleeps nearly all the time is not looked at for each of its samples, each of which wakes us: its thread's time on a CPU shows, some
//! samples later, that it slept. For what it ran meanwhile, samples are counted as missing once that is as long as they are apart. The vCPUs of a VM that
//! is sampled as a whole count as one.

use glass_profiler_core::event::RawSample;
use glass_profiler_core::model::State;

use crate::Taken;

/// How long it has to have slept nearly all the time.
const JUDGED_NS: u64 = 2_000_000_000;
/// How long it is not looked at.
const LOOK_NS: u64 = 1_000_000_000;
/// The part of some time for which a vCPU may run that sleeps nearly all of it: one in so many, or as much as a few looks at timers and queues. An
/// emulated one takes several times as long for the same.
pub(super) const QUIET_PART: u64 = 400;
pub(super) const QUIET_PART_EMULATED: u64 = 100;
/// The same of a time that was not looked at. If it ran for longer, nothing is known of when.
const UNSEEN_PART: u64 = 100;
const A_FEW_NS: u64 = 500_000;

/// What is known of a vCPU's sleep.
#[derive(Debug)]
pub(super) struct Sleeper {
    /// [`QUIET_PART`], or that of an emulated one.
    part: u64,
    /// The start of the time that is judged, and for how long its thread had run then.
    judged: Option<(u64, u64)>,
    is_quiet: bool,
    /// It was asleep in this state, then, with so much time on a CPU, and was not looked at since.
    asleep: Option<(State, u64, u64)>,
}

/// A time for which a vCPU was not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unseen {
    /// What it was at the start.
    state: State,
    since_ns: u64,
    /// For how long it ran; `None` if for a large part of the time.
    ran_ns: Option<u64>,
}

fn is_part(ran_ns: u64, time_ns: u64, part: u64) -> bool {
    ran_ns <= (time_ns / part).max(A_FEW_NS)
}

impl Sleeper {
    pub(super) fn new(part: u64) -> Sleeper {
        Sleeper { part, judged: None, is_quiet: false, asleep: None }
    }

    /// It is asleep at a sample, and its thread has run for `ran_ns` in all. Returns true if it need not be looked at until [`look`](Sleeper::look).
    pub(super) fn sleeps(&mut self, state: State, now_ns: u64, ran_ns: u64) -> bool {
        let (since_ns, before_ns) = *self.judged.get_or_insert((now_ns, ran_ns));
        let time_ns = now_ns.saturating_sub(since_ns);
        if self.is_quiet || time_ns >= JUDGED_NS {
            self.is_quiet = is_part(ran_ns.saturating_sub(before_ns), time_ns, self.part);
            self.judged = Some((now_ns, ran_ns));
        }
        self.asleep = self.is_quiet.then_some((state, now_ns, ran_ns));
        self.is_quiet
    }

    /// It is awake at a sample.
    pub(super) fn wake(&mut self) {
        *self = Sleeper::new(self.part);
    }

    /// What it has done since [`sleeps`](Sleeper::sleeps) has returned true; `None` if it has not.
    fn look(&mut self, now_ns: u64, ran_ns: u64) -> Option<Unseen> {
        let (state, since_ns, before_ns) = self.asleep.take()?;
        let ran_ns = ran_ns.saturating_sub(before_ns);
        let is_known = is_part(ran_ns, now_ns.saturating_sub(since_ns), UNSEEN_PART);
        if !is_known {
            self.wake();
        }
        Some(Unseen { state, since_ns, ran_ns: is_known.then_some(ran_ns) })
    }

    /// Whether it is asleep, and is not looked at.
    pub(super) fn is_asleep(&self) -> bool {
        self.asleep.is_some()
    }

    /// Whether it is asleep, and was not looked at for so long.
    fn is_unseen(&self, time_ns: u64, now_ns: u64) -> bool {
        self.asleep.is_some_and(|(_, since_ns, _)| now_ns.saturating_sub(since_ns) >= time_ns)
    }

    /// Whether it was not looked at for some time, or at all until the end.
    pub(super) fn is_due(&self, now_ns: u64, is_end: bool) -> bool {
        self.is_unseen(if is_end { 0 } else { LOOK_NS }, now_ns)
    }

    /// The samples of a time for which it was not looked at, of these tracks. Its thread has run for `ran_ns` in all; `None` if that is not known.
    pub(super) fn samples(&mut self, now_ns: u64, ran_ns: Option<u64>, tracks: impl Iterator<Item = u32>) -> Taken {
        let Some(ran_ns) = ran_ns else {
            self.wake();
            return Taken::default();
        };
        let Some(unseen) = self.look(now_ns, ran_ns) else { return Taken::default() };
        Taken {
            samples: tracks.map(|track| idle_sample(track, unseen.state, unseen.since_ns)).collect(),
            stood_until_ns: unseen.ran_ns.map(|_| now_ns),
            ran_ns: unseen.ran_ns.unwrap_or(0),
        }
    }
}

/// The sample of a vCPU that sleeps in this state.
pub(super) fn idle_sample(track: u32, state: State, time_ns: u64) -> RawSample {
    RawSample { track, state, time_ns, ..RawSample::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn only_one_that_sleeps_nearly_always_is_not_looked_at() {
        let mut sleeper = Sleeper::new(QUIET_PART);
        // It runs for 0.1 ms in 250 ms, and is looked at each 50 ms.
        let ran = |ms: u64| ms / 250 * MS / 10;
        let first = (0..100).position(|look| sleeper.sleeps(State::Idle, look * 50 * MS, ran(look * 50)));
        assert_eq!(first, Some(40), "after two seconds");
        assert!(sleeper.is_unseen(100 * MS, 2100 * MS) && !sleeper.is_unseen(LOOK_NS, 2999 * MS));
        let unseen = Unseen { state: State::Idle, since_ns: 2000 * MS, ran_ns: Some(MS / 10) };
        assert_eq!(sleeper.look(2200 * MS, ran(2000) + MS / 10), Some(unseen));
        assert_eq!(sleeper.look(2201 * MS, ran(2000) + MS / 10), None);
        assert!(sleeper.sleeps(State::Idle, 2230 * MS, ran(2250)));
        // Then it works.
        let unseen = Unseen { state: State::Idle, since_ns: 2230 * MS, ran_ns: None };
        assert_eq!(sleeper.look(2400 * MS, ran(2250) + 20 * MS), Some(unseen));
        assert!(!sleeper.sleeps(State::Idle, 2450 * MS, ran(2250) + 21 * MS), "it is judged anew");
        // An emulated one may work for longer.
        let mut sleeper = Sleeper::new(QUIET_PART_EMULATED);
        assert!((0..100).any(|look| sleeper.sleeps(State::Idle, look * 50 * MS, look * MS / 4)));
        // One that works a hundredth of its time is looked at.
        let mut sleeper = Sleeper::new(QUIET_PART);
        assert!(!(0..1000).any(|look| sleeper.sleeps(State::Idle, look * 50 * MS, look * MS / 2)));
        // One that wakes is.
        let mut sleeper = Sleeper::new(QUIET_PART);
        assert!((0..100).any(|look| sleeper.sleeps(State::Idle, look * 50 * MS, 0)));
        sleeper.wake();
        assert!(!sleeper.sleeps(State::Idle, 5000 * MS, 0) && !sleeper.is_unseen(0, 6000 * MS));
    }
}
