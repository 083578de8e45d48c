//! The model of one direction of a wire: delay, a bottleneck with a queue, random loss, duplication and reordering. It does no I/O, takes
//! the time as an argument, and decides by a seed: equal arrivals give equal departures.

use fastrand::Rng;
use std::collections::VecDeque;
use std::time::Duration;

/// A segment that is kept back arrives after so many later ones.
pub const REORDERED_BY: u32 = 3;
/// A segment that is kept back and that nothing follows arrives after this time.
pub const HELD_MAX: Duration = Duration::from_millis(10);

/// What one direction does to segments. The default does nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Conditions {
    /// From the end of the bottleneck to the receiver.
    pub delay: Duration,
    /// Share of the segments that are lost at random, 0 to 1.
    pub loss: f64,
    /// Share that arrives twice.
    pub duplication: f64,
    /// Share that arrives after [`REORDERED_BY`] later ones.
    pub reordering: f64,
    /// Without one segments are never queued.
    pub bottleneck: Option<Bottleneck>,
}

/// A slow piece of the wire, behind a queue that drops what does not fit (drop tail).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bottleneck {
    /// The rate, of whole Ethernet frames without preamble.
    pub bits_per_sec: u64,
    /// How many bytes may wait, besides the frame that is being sent.
    pub queue_bytes: u64,
}

impl Bottleneck {
    fn time(self, bytes: u64) -> Duration {
        Duration::from_nanos((u128::from(bytes) * 8_000_000_000 / u128::from(self.bits_per_sec.max(1))) as u64)
    }
}

/// What happened to the segments of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments that arrived at the relay.
    pub segments: u64,
    /// Lost at random.
    pub lost: u64,
    /// Dropped by the full queue.
    pub dropped: u64,
    /// Passed on twice.
    pub duplicated: u64,
    /// Kept back.
    pub reordered: u64,
}

impl Counts {
    /// The sum of both.
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            segments: self.segments + other.segments,
            lost: self.lost + other.lost,
            dropped: self.dropped + other.dropped,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
        }
    }
}

/// A segment that waits for others to pass it.
struct Held<T> {
    item: T,
    /// How many must pass it still.
    behind: u32,
    latest: Duration,
}

/// One direction, with the segments that are on their way. Times count from any moment, the same for all calls.
pub struct Link<T> {
    conditions: Conditions,
    random: Rng,
    /// When the bottleneck has sent all that it has.
    free_at: Duration,
    /// By the time of their arrival; of equal ones in the order of their departure.
    in_flight: VecDeque<(Duration, T)>,
    held: Option<Held<T>>,
    counts: Counts,
}

impl<T: Clone> Link<T> {
    /// An empty one.
    pub fn new(conditions: Conditions, seed: u64) -> Link<T> {
        let (random, free_at) = (Rng::with_seed(seed), Duration::ZERO);
        Link { conditions, random, free_at, in_flight: VecDeque::new(), held: None, counts: Counts::default() }
    }

    /// Takes a segment of so many bytes at the time `now`.
    pub fn push(&mut self, now: Duration, bytes: u64, item: T) {
        self.counts.segments += 1;
        // Each segment draws the same numbers whatever happens to it, so what happens to one does not change the next one's fate.
        let [lost, duplicated, kept] = [self.random.f64(), self.random.f64(), self.random.f64()];
        let Conditions { delay, loss, duplication, reordering, bottleneck } = self.conditions;
        let mut sent_at = now;
        if let Some(bottleneck) = bottleneck {
            let start = self.free_at.max(now);
            if start - now > bottleneck.time(bottleneck.queue_bytes) {
                self.counts.dropped += 1;
                return;
            }
            self.free_at = start + bottleneck.time(bytes);
            sent_at = self.free_at;
        }
        // A segment that the wire loses was sent, so the bottleneck had its time.
        if lost < loss {
            self.counts.lost += 1;
            return;
        }
        let due = sent_at + delay;
        if kept < reordering && self.held.is_none() {
            self.counts.reordered += 1;
            self.held = Some(Held { item, behind: REORDERED_BY, latest: due + HELD_MAX });
            return;
        }
        if duplicated < duplication {
            self.counts.duplicated += 1;
            self.insert(due, item.clone());
        }
        self.insert(due, item);
        self.pass(due);
    }

    /// Takes what is delayed and nothing else, such as a query for the address of a neighbour.
    pub fn push_intact(&mut self, now: Duration, item: T) {
        self.insert(now + self.conditions.delay, item);
    }

    /// When [`Link::pop`] has something.
    pub fn due(&self) -> Option<Duration> {
        let first = self.in_flight.front().map(|(due, _)| *due);
        let held = self.held.as_ref().map(|held| held.latest);
        first.into_iter().chain(held).min()
    }

    /// The next segment that has arrived at the time `now`.
    pub fn pop(&mut self, now: Duration) -> Option<T> {
        if let Some(held) = self.held.take_if(|held| held.latest <= now) {
            self.insert(held.latest, held.item);
        }
        let is_due = self.in_flight.front().is_some_and(|(due, _)| *due <= now);
        if is_due { self.in_flight.pop_front().map(|(_, item)| item) } else { None }
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn insert(&mut self, due: Duration, item: T) {
        // Nearly always the last place.
        let place = self.in_flight.iter().rposition(|(other, _)| *other <= due).map_or(0, |before| before + 1);
        self.in_flight.insert(place, (due, item));
    }

    /// A segment that arrives at `due` has passed the one that is kept back.
    fn pass(&mut self, due: Duration) {
        if let Some(held) = &mut self.held {
            held.behind -= 1;
        }
        if let Some(held) = self.held.take_if(|held| held.behind == 0) {
            self.insert(due.min(held.latest), held.item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SEGMENT_BYTES: u64 = 1500;

    /// Sends so many segments, one each `interval`, and returns their numbers with the times of their arrival.
    fn arrivals(conditions: Conditions, seed: u64, count: u32, interval: Duration) -> (Vec<(Duration, u32)>, Counts) {
        let mut link = Link::new(conditions, seed);
        let mut arrived = Vec::new();
        let mut take = |link: &mut Link<u32>, until: Duration| {
            while let Some(due) = link.due().filter(|due| *due <= until) {
                arrived.push((due, link.pop(due).expect("it is due")));
            }
        };
        for number in 0..count {
            let now = interval * number;
            take(&mut link, now);
            link.push(now, SEGMENT_BYTES, number);
        }
        take(&mut link, Duration::MAX);
        (arrived, link.counts())
    }

    #[test]
    fn a_delay_keeps_the_order_and_the_intervals() {
        let (arrived, counts) = arrivals(Conditions { delay: 20 * MS, ..Conditions::default() }, 1, 50, MS);
        assert!(arrived.iter().copied().eq((0..50).map(|number| (20 * MS + MS * number, number))));
        assert_eq!(counts, Counts { segments: 50, ..Counts::default() });
    }

    #[test]
    fn nothing_arrives_early() {
        let mut link = Link::new(Conditions { delay: 20 * MS, ..Conditions::default() }, 1);
        link.push(Duration::ZERO, SEGMENT_BYTES, 7);
        assert_eq!((link.due(), link.pop(19 * MS), link.pop(20 * MS)), (Some(20 * MS), None, Some(7)));
        assert_eq!((link.due(), link.pop(Duration::MAX)), (None, None));
    }

    #[test]
    fn the_share_of_lost_segments_is_what_was_requested() {
        for loss in [0.0, 0.001, 0.01, 0.03] {
            let (count, conditions) = (400_000, Conditions { loss, ..Conditions::default() });
            let (arrived, counts) = arrivals(conditions, 3, count, Duration::from_micros(1));
            assert_eq!(arrived.len() as u64 + counts.lost, u64::from(count));
            // Five standard deviations of a binomial distribution.
            let expected = loss * f64::from(count);
            let error = (counts.lost as f64 - expected).abs();
            assert!(error <= 5.0 * (expected * (1.0 - loss)).sqrt(), "{counts:?} for {loss}");
        }
    }

    #[test]
    fn losses_are_independent() {
        let (arrived, counts) =
            arrivals(Conditions { loss: 0.1, ..Conditions::default() }, 5, 200_000, Duration::from_micros(1));
        let pairs = arrived.windows(2).filter(|pair| pair[1].1 == pair[0].1 + 1).count() as f64;
        // Two that follow each other both arrive with 0.9 squared.
        let share = pairs / counts.segments as f64;
        assert!((share - 0.81).abs() < 0.005, "{share}");
    }

    #[test]
    fn a_bottleneck_sends_at_its_rate_and_its_queue_has_its_length() {
        let bottleneck = Bottleneck { bits_per_sec: 12_000_000, queue_bytes: 10 * SEGMENT_BYTES };
        let conditions = Conditions { bottleneck: Some(bottleneck), delay: 5 * MS, ..Conditions::default() };
        // All at once: one is being sent, ten wait. At 12 Mbit/s each takes a millisecond.
        let (arrived, counts) = arrivals(conditions, 1, 100, Duration::ZERO);
        assert!(arrived.iter().copied().eq((0..11).map(|number| (6 * MS + MS * number, number))), "{arrived:?}");
        assert_eq!(counts.dropped, 89);
        // At half of the rate nothing waits, at twice the rate half is dropped.
        let (_, slow) = arrivals(conditions, 1, 1000, 2 * MS);
        let (arrived, fast) = arrivals(conditions, 1, 1000, MS / 2);
        assert_eq!(slow.dropped, 0);
        assert!((480..=500).contains(&fast.dropped), "{fast:?}");
        let last = arrived.last().expect("some arrive").0;
        assert_eq!(last, 5 * MS + MS * arrived.len() as u32);
    }

    #[test]
    fn what_the_wire_loses_had_its_time_at_the_bottleneck() {
        let bottleneck = Bottleneck { bits_per_sec: 12_000_000, queue_bytes: u64::MAX / 16_000_000_000 };
        let conditions = Conditions { bottleneck: Some(bottleneck), loss: 0.5, ..Conditions::default() };
        let (arrived, _) = arrivals(conditions, 1, 1000, Duration::ZERO);
        assert!(arrived.iter().all(|(time, number)| *time == MS * (number + 1)));
    }

    #[test]
    fn a_segment_is_passed_by_three() {
        let (arrived, counts) = arrivals(Conditions { reordering: 0.02, ..Conditions::default() }, 9, 10_000, MS / 10);
        assert!((150..=250).contains(&counts.reordered), "{counts:?}");
        let numbers: Vec<u32> = arrived.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers.len(), 10_000);
        let late = numbers.windows(2).enumerate().filter(|(_, pair)| pair[1] < pair[0]);
        let late: Vec<usize> = late.map(|(index, _)| index + 1).collect();
        assert_eq!(late.len() as u64, counts.reordered);
        // The last ones may have had nothing behind them.
        for place in late.into_iter().filter(|place| *place < 9_990) {
            let passed = numbers[..place].iter().filter(|other| **other > numbers[place]).count();
            assert_eq!(passed, REORDERED_BY as usize, "{}", numbers[place]);
        }
    }

    #[test]
    fn a_segment_that_nothing_follows_still_arrives() {
        let (arrived, _) = arrivals(Conditions { reordering: 1.0, delay: MS, ..Conditions::default() }, 1, 1, MS);
        assert_eq!(arrived, [(MS + HELD_MAX, 0)]);
    }

    #[test]
    fn some_arrive_twice() {
        let (arrived, counts) = arrivals(Conditions { duplication: 0.05, ..Conditions::default() }, 2, 10_000, MS);
        assert!((400..=600).contains(&counts.duplicated), "{counts:?}");
        assert_eq!(arrived.len() as u64, 10_000 + counts.duplicated);
        let twice = arrived.windows(2).filter(|pair| pair[0].1 == pair[1].1).count();
        assert_eq!(twice as u64, counts.duplicated);
    }

    #[test]
    fn the_seed_decides_and_nothing_else() {
        let conditions = Conditions { loss: 0.1, duplication: 0.1, reordering: 0.1, ..Conditions::default() };
        let run = |seed| arrivals(conditions, seed, 1000, MS).0;
        assert_eq!(run(4), run(4));
        assert_ne!(run(4), run(5));
        // A neighbour's query changes no segment's fate.
        let mut link = Link::new(conditions, 4);
        let mut numbers = Vec::new();
        for number in 0..1000 {
            link.push_intact(MS * number, u32::MAX);
            link.push(MS * number, SEGMENT_BYTES, number);
        }
        while let Some(number) = link.pop(Duration::MAX) {
            numbers.extend(Some(number).filter(|number| *number != u32::MAX));
        }
        numbers.sort_unstable();
        let mut expected: Vec<u32> = run(4).into_iter().map(|(_, number)| number).collect();
        expected.sort_unstable();
        assert_eq!(numbers, expected);
    }

    #[test]
    fn a_query_is_delayed_and_never_lost() {
        let mut link = Link::new(Conditions { delay: MS, loss: 1.0, ..Conditions::default() }, 1);
        link.push(Duration::ZERO, SEGMENT_BYTES, 1);
        link.push_intact(Duration::ZERO, 2);
        assert_eq!((link.pop(MS), link.pop(Duration::MAX)), (Some(2), None));
    }
}
