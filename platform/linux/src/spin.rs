//! How long a core without work polls for what other cores send, before its thread sleeps.
//!
//! A wake-up costs some 10 us, a poll a transfer of a cache line. Only a core that was woken by another one soon after it fell asleep polls,
//! so services of one core, and those that wait for sockets, are not affected.

use glass_lib_trace::{WakeSource, spin_begin, spin_end};
use std::hint::spin_loop;
use std::time::{Duration, Instant};

const SPIN_MIN: Duration = Duration::from_micros(10);
const SPIN_MAX: Duration = Duration::from_micros(50);
/// A core that was woken sooner than this after it fell asleep would better have polled.
const SHORT_SLEEP: Duration = Duration::from_micros(200);
/// Polls in a row that found something, before sockets have their turn.
const ROUNDS_MAX: u32 = 32;
/// Polls between two readings of the clock.
const POLLS: u32 = 32;

/// The polling of one core.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Zero while polling is not worth it.
    length: Duration,
    rounds: u32,
}

impl Spin {
    /// Polls `has_work` for a moment. True when there is work, and sockets can wait a little longer.
    pub(crate) fn finds(&mut self, deadline: Option<Duration>, has_work: impl Fn() -> bool) -> bool {
        let length = deadline.map_or(self.length, |deadline| self.length.min(deadline));
        if length.is_zero() || self.rounds == ROUNDS_MAX {
            self.rounds = 0;
            return false;
        }
        let mut start = None;
        let found = loop {
            if (0..POLLS).any(|_| {
                spin_loop();
                has_work()
            }) {
                break true;
            }
            let start = *start.get_or_insert_with(|| {
                spin_begin();
                Instant::now()
            });
            if start.elapsed() >= length {
                break false;
            }
        };
        if start.is_some() {
            spin_end();
        }
        if found {
            self.rounds += 1;
        } else {
            self.rounds = 0;
            self.length = if self.length > SPIN_MIN { self.length / 2 } else { Duration::ZERO };
        }
        found
    }

    /// The thread has slept for `slept`, until `source` woke it.
    pub(crate) fn slept(&mut self, slept: Duration, source: WakeSource) {
        if source == WakeSource::Core && slept < SHORT_SLEEP {
            self.length = (self.length * 2).clamp(SPIN_MIN, SPIN_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn only_short_sleeps_that_other_cores_end_are_worth_polling() {
        let mut spin = Spin::default();
        assert!(!spin.finds(None, || true));
        spin.slept(Duration::from_micros(50), WakeSource::Device);
        spin.slept(Duration::from_millis(5), WakeSource::Core);
        assert!(!spin.finds(None, || true));
        spin.slept(Duration::from_micros(50), WakeSource::Core);
        assert!(spin.finds(None, || true));
        // A deadline that is there comes first.
        assert!(!spin.finds(Some(Duration::ZERO), || true));
    }

    #[test]
    fn polling_ends_and_is_given_up_when_it_finds_nothing() {
        let mut spin = Spin::default();
        (0..10).for_each(|_| spin.slept(Duration::ZERO, WakeSource::Core));
        assert_eq!(spin.length, SPIN_MAX);
        let polls = Cell::new(0u64);
        while !spin.length.is_zero() {
            assert!(!spin.finds(None, || {
                polls.set(polls.get() + 1);
                false
            }));
        }
        assert!(polls.get() > 0);
    }

    #[test]
    fn sockets_have_their_turn_though_polling_finds_something() {
        let mut spin = Spin::default();
        spin.slept(Duration::ZERO, WakeSource::Core);
        let found = (0..2 * ROUNDS_MAX + 2).map(|_| spin.finds(None, || true)).filter(|found| *found).count();
        assert_eq!(found as u32, 2 * ROUNDS_MAX);
    }
}
