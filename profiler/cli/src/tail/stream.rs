//! Merges the pieces of several rings into events in order of time.

use std::collections::HashMap;

use glass_formats::trace::Event;
use glass_profiler_core::trace::raw::{ClockPoint, Piece};
use glass_profiler_core::words::Names;

/// Events that wait to be printed; further ones are dropped, counted and reported.
const PENDING_MAX: usize = 1 << 20;
/// Maximum of rings, as in a recording.
const NAMES_MAX: usize = 1 << 20;
const RINGS_MAX: usize = 1 << 12;

/// The next entry of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Event(Event),
    /// So many events are missing before the next.
    Lost(u64),
}

/// An entry of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub ticks: u64,
    pub ring: u32,
    pub what: What,
}

#[derive(Debug, Default)]
struct Ring {
    name: String,
    /// Number of the event that follows; `None` before the first.
    next: Option<u64>,
    last_ticks: u64,
}

/// Rings, names and clock of a guest, and the events that were not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    names: Vec<String>,
    functions: HashMap<u32, String>,
    rings: Vec<Ring>,
    clock: Option<ClockPoint>,
    pending: Vec<Item>,
    newest: u64,
    /// Time of the newest event at the last call: older events are complete now.
    complete_until: u64,
    /// Received events.
    pub events: u64,
    /// Events that are missing.
    pub lost: u64,
}

impl Stream {
    /// Adds a piece; an invalid one is left out.
    pub fn piece(&mut self, piece: Piece) {
        match piece {
            Piece::Ring { ring, name } if (ring as usize) < RINGS_MAX => {
                let index = ring as usize;
                if self.rings.len() <= index {
                    self.rings.resize_with(index + 1, Ring::default);
                }
                self.rings[index].name = name;
            }
            Piece::Names { first, names } if first as usize + names.len() <= NAMES_MAX => {
                let first = first as usize;
                if self.names.len() < first + names.len() {
                    self.names.resize(first + names.len(), String::new());
                }
                self.names[first..first + names.len()].clone_from_slice(&names);
            }
            Piece::Chunk { ring, first, events } => {
                let Some(state) = self.rings.get_mut(ring as usize) else { return };
                let lost = state.next.map_or(0, |next| first.saturating_sub(next));
                state.next = Some(first.saturating_add(events.len() as u64));
                let first_ticks = events.first().map_or(state.last_ticks, |words| words[0].max(state.last_ticks));
                if lost > 0 {
                    self.lost += lost;
                    self.pending.push(Item { ticks: first_ticks, ring, what: What::Lost(lost) });
                }
                self.events += events.len() as u64;
                let space = PENDING_MAX.saturating_sub(self.pending.len());
                for words in events.iter().take(space) {
                    let event = Event::from_words(*words);
                    state.last_ticks = state.last_ticks.max(event.ticks);
                    self.pending.push(Item { ticks: state.last_ticks, ring, what: What::Event(event) });
                }
                let left_out = events.len().saturating_sub(space) as u64;
                if left_out > 0 {
                    self.lost += left_out;
                    self.pending.push(Item { ticks: state.last_ticks, ring, what: What::Lost(left_out) });
                }
                self.newest = self.newest.max(state.last_ticks);
            }
            Piece::Clock(point) => self.clock = Some(point),
            Piece::Functions(functions) => {
                self.functions.extend(functions.into_iter().map(|function| (function.number, function.name)));
            }
            Piece::Ring { .. } | Piece::Names { .. } | Piece::Shortage { .. } => {}
        }
    }

    /// The events up to the newest one of the last call, in order of time: rings are read one after the other, so
    /// newer events of other rings may be missing. With `all`, everything.
    pub fn take(&mut self, all: bool) -> Vec<Item> {
        let until = if all { u64::MAX } else { self.complete_until };
        self.complete_until = self.newest;
        let (mut ready, rest) =
            std::mem::take(&mut self.pending).into_iter().partition::<Vec<Item>, _>(|item| item.ticks <= until);
        self.pending = rest;
        // Stable: events of a ring with equal times keep their order.
        ready.sort_by_key(|item| item.ticks);
        ready
    }

    /// The number of rings.
    pub fn rings(&self) -> u32 {
        self.rings.len() as u32
    }

    /// The name of a ring.
    pub fn ring(&self, ring: u32) -> &str {
        self.rings.get(ring as usize).map_or("", |ring| ring.name.as_str())
    }

    /// `CLOCK_MONOTONIC` at ticks of the guest, if its clock is known.
    pub fn monotonic_ns(&self, ticks: u64) -> Option<i128> {
        let point = self.clock.filter(|point| point.ticks_per_second > 0)?;
        let since = (i128::from(ticks) - i128::from(point.ticks)) * 1_000_000_000 / i128::from(point.ticks_per_second);
        Some(i128::from(point.time_ns) + since)
    }

    /// A number of ticks in nanoseconds; one for each tick while the clock is not known.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let rate = self.clock.map_or(0, |point| point.ticks_per_second);
        match rate {
            0 => ticks,
            rate => (u128::from(ticks) * 1_000_000_000 / u128::from(rate)).min(u64::MAX.into()) as u64,
        }
    }

    /// The guest's ticks at a time of `CLOCK_MONOTONIC`; the newest event's while the clock is not known.
    pub fn ticks_at(&self, monotonic_ns: u64) -> u64 {
        let Some(point) = self.clock.filter(|point| point.ticks_per_second > 0) else { return self.newest };
        let since = (i128::from(monotonic_ns) - i128::from(point.time_ns)) * i128::from(point.ticks_per_second);
        (i128::from(point.ticks) + since / 1_000_000_000).clamp(0, u64::MAX.into()) as u64
    }
}

impl Names for Stream {
    fn name(&self, number: u32) -> Option<&str> {
        self.names.get(number as usize).map(String::as_str)
    }

    fn function(&self, number: u32) -> Option<&str> {
        self.functions.get(&number).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(ring: u32, first: u64, ticks: &[u64]) -> Piece {
        Piece::Chunk { ring, first, events: ticks.iter().map(|ticks| [*ticks, 20, 0, 0]).collect() }
    }

    fn stream() -> Stream {
        let mut stream = Stream::default();
        for ring in 0..2 {
            stream.piece(Piece::Ring { ring, name: format!("core {ring}") });
        }
        stream
    }

    #[test]
    fn rings_are_merged_by_time() {
        let mut stream = stream();
        stream.piece(chunk(0, 7, &[10, 30]));
        assert!(stream.take(false).is_empty(), "core 1 was not read up to there yet");
        stream.piece(chunk(1, 0, &[20, 40]));
        let taken: Vec<(u64, u32)> = stream.take(false).iter().map(|item| (item.ticks, item.ring)).collect();
        assert_eq!(taken, [(10, 0), (20, 1), (30, 0)]);
        assert_eq!(stream.take(true).len(), 1);
        assert_eq!((stream.events, stream.lost), (4, 0));
    }

    #[test]
    fn what_is_missing_between_chunks_is_told_at_its_place() {
        let mut stream = stream();
        stream.piece(chunk(0, 7, &[10]));
        stream.piece(chunk(0, 20, &[30]));
        let what: Vec<What> = stream.take(true).iter().map(|item| item.what).collect();
        assert_eq!(what[1], What::Lost(12));
        assert_eq!(stream.lost, 12);
    }

    #[test]
    fn what_cannot_be_is_left_out() {
        let mut stream = stream();
        stream.piece(chunk(9, 0, &[10]));
        stream.piece(Piece::Ring { ring: u32::MAX, name: String::new() });
        stream.piece(Piece::Names { first: u32::MAX, names: vec!["x".into()] });
        assert!(stream.take(true).is_empty());
        // Times that go back keep their place.
        stream.piece(chunk(0, 0, &[50, 10]));
        assert_eq!(stream.take(true).iter().map(|item| item.ticks).collect::<Vec<_>>(), [50, 50]);
    }

    #[test]
    fn the_clock_turns_ticks_into_times_and_back() {
        let mut stream = stream();
        assert_eq!(stream.monotonic_ns(5), None);
        let point = ClockPoint { ticks: 1_000, time_ns: 50, ticks_per_second: 2_000_000_000, error_ns: 0 };
        stream.piece(Piece::Clock(point));
        assert_eq!(stream.monotonic_ns(3_000), Some(1_050));
        assert_eq!(stream.monotonic_ns(0), Some(-450));
        assert_eq!((stream.ticks_at(1_050), stream.nanoseconds(10)), (3_000, 5));
        assert_eq!(stream.ticks_at(0), 900);
    }
}
