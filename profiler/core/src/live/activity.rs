//! The states of a track in the last seconds: running, spinning, idle, or off.

use std::collections::VecDeque;

use crate::model::State;

/// Length of a bucket.
pub const BUCKET_NS: u64 = 500_000_000;
/// Number of buckets: 20 s.
pub const BUCKETS: usize = 40;
/// The last two seconds are "now".
const BUCKETS_NOW: usize = 4;

/// The meaning of a track's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A core that is sampled regularly: samples have its states.
    Core,
    /// A thread that is sampled only while it uses a CPU, once in each `period_ns` of its CPU time.
    Thread {
        /// CPU time between samples.
        period_ns: u64,
    },
}

/// Shares of time that a track spent in each state, in total 0 to 1. The rest is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shares {
    /// Running code, or in the VMM for it.
    pub running: f64,
    /// Awake, polling for work.
    pub spinning: f64,
    /// Asleep.
    pub idle: f64,
    /// Runnable, while the host ran something else.
    pub stolen: f64,
    /// Not started yet, or paused by the guest's owner.
    pub off: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bucket {
    running: u32,
    spinning: u32,
    idle: u32,
    stolen: u32,
    off: u32,
}

/// Counts of one track's states over the last seconds.
#[derive(Debug, Clone)]
pub struct Activity {
    kind: Kind,
    /// Number of the newest bucket since the clock's start; it is still being filled.
    newest: u64,
    buckets: VecDeque<Bucket>,
}

impl Activity {
    /// No sample yet.
    pub fn new(kind: Kind) -> Activity {
        Activity { kind, newest: 0, buckets: VecDeque::new() }
    }

    /// Counts a sample. One older than the oldest bucket is left out.
    pub fn add(&mut self, time_ns: u64, state: State) {
        self.advance(time_ns);
        let back = self.newest.saturating_sub(time_ns / BUCKET_NS) as usize;
        let Some(index) = self.buckets.len().checked_sub(back + 1) else { return };
        let bucket = &mut self.buckets[index];
        match state {
            State::Spinning => bucket.spinning += 1,
            State::Idle => bucket.idle += 1,
            State::Stolen => bucket.stolen += 1,
            active if active.is_active() => bucket.running += 1,
            _ => bucket.off += 1,
        }
    }

    /// Advances the time.
    pub fn advance(&mut self, now_ns: u64) {
        let now = now_ns / BUCKET_NS;
        if self.buckets.is_empty() {
            self.newest = now;
            self.buckets.push_back(Bucket::default());
        }
        for _ in 0..now.saturating_sub(self.newest).min(BUCKETS as u64 + 1) {
            if self.buckets.len() > BUCKETS {
                self.buckets.pop_front();
            }
            self.buckets.push_back(Bucket::default());
        }
        self.newest = self.newest.max(now);
    }

    /// Whether it had no sample in any bucket.
    pub fn is_quiet(&self) -> bool {
        self.buckets.iter().all(|bucket| *bucket == Bucket::default())
    }

    /// Whole buckets, oldest first: not the newest, nor the oldest, in which sampling may have started.
    fn whole(&self) -> impl DoubleEndedIterator<Item = &Bucket> {
        let count = self.buckets.len();
        self.buckets.iter().take(count.saturating_sub(1)).skip(usize::from(count > 2))
    }

    fn shares(&self, buckets: &[Bucket]) -> Shares {
        let sum = |part: fn(&Bucket) -> u32| buckets.iter().map(|bucket| f64::from(part(bucket))).sum::<f64>();
        let (running, spinning) = (sum(|bucket| bucket.running), sum(|bucket| bucket.spinning));
        let (idle, stolen, off) = (sum(|bucket| bucket.idle), sum(|bucket| bucket.stolen), sum(|bucket| bucket.off));
        match self.kind {
            Kind::Core => {
                let all = (running + spinning + idle + stolen + off).max(1.0);
                let [running, spinning, idle, stolen, off] =
                    [running, spinning, idle, stolen, off].map(|part| part / all);
                Shares { running, spinning, idle, stolen, off }
            }
            Kind::Thread { period_ns } => {
                let wall_ns = (buckets.len().max(1) as u64 * BUCKET_NS) as f64;
                // A bucket's edge can fall beside a sample, so a busy thread may seem to run a little more.
                let running = (running * period_ns as f64 / wall_ns).min(1.0);
                Shares { running, idle: 1.0 - running, ..Shares::default() }
            }
        }
    }

    /// The shares of the last two seconds.
    pub fn now(&self) -> Shares {
        let mut last: Vec<Bucket> = self.whole().rev().take(BUCKETS_NOW).copied().collect();
        if last.is_empty() {
            last.extend(self.buckets.iter());
        }
        self.shares(&last)
    }

    /// The shares of all buckets, 20 s at most.
    pub fn lately(&self) -> Shares {
        let mut all: Vec<Bucket> = self.whole().copied().collect();
        if all.is_empty() {
            all.extend(self.buckets.iter());
        }
        self.shares(&all)
    }

    /// The shares of each half second, oldest first, at most [`BUCKETS`].
    pub fn history(&self) -> Vec<Shares> {
        self.whole().map(|bucket| self.shares(std::slice::from_ref(bucket))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) -> bool {
        (got - want).abs() < 1e-9
    }

    #[test]
    fn a_core_is_what_its_samples_say() {
        let mut activity = Activity::new(Kind::Core);
        for index in 0..4000u64 {
            let state = [State::Running, State::Idle, State::Idle, State::Spinning][index as usize % 4];
            activity.add(index * 1_000_000, state);
        }
        let now = activity.now();
        assert!(close(now.running, 0.25) && close(now.spinning, 0.25) && close(now.idle, 0.5), "{now:?}");
        assert_eq!(activity.history().len(), 6);
    }

    /// Both were shown as paused (2026-11-27).
    #[test]
    fn a_core_that_is_stolen_or_in_the_vmm_is_not_off() {
        let mut activity = Activity::new(Kind::Core);
        for index in 0..4000u64 {
            let state = [State::Running, State::InVmm, State::Stolen, State::Paused][index as usize % 4];
            activity.add(index * 1_000_000, state);
        }
        let now = activity.now();
        assert!(close(now.running, 0.5) && close(now.stolen, 0.25) && close(now.off, 0.25), "{now:?}");
    }

    #[test]
    fn a_thread_without_samples_is_idle() {
        let mut activity = Activity::new(Kind::Thread { period_ns: 1_000_000 });
        // Busy for two seconds, then asleep for one.
        for index in 0..2000u64 {
            activity.add(index * 1_000_000, State::Running);
        }
        activity.advance(3_100_000_000);
        assert!(close(activity.now().running, 0.5), "{:?}", activity.now());
        assert!(close(activity.lately().running, 0.6), "{:?}", activity.lately());
        let history = activity.history();
        assert_eq!(history.iter().map(|shares| shares.running).collect::<Vec<_>>(), [1.0, 1.0, 1.0, 0.0, 0.0]);
        activity.advance(3_600_000_000_000);
        assert!(activity.is_quiet() && activity.now().running == 0.0);
    }

    #[test]
    fn the_past_is_bounded_and_late_samples_find_their_place() {
        let mut activity = Activity::new(Kind::Core);
        for index in 0..1000u64 {
            activity.add(index * BUCKET_NS, State::Running);
            assert!(activity.buckets.len() <= BUCKETS + 1);
        }
        activity.add(998 * BUCKET_NS, State::Idle);
        assert_eq!(activity.history().last().unwrap().idle, 0.5);
        activity.add(3 * BUCKET_NS, State::Idle);
        assert!(activity.history().iter().rev().skip(1).all(|shares| shares.running == 1.0));
    }
}
