//! The events of all rings in the order of their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use glass_formats::trace::Event;

use super::clock::Clock;
use crate::trace::raw::{RawRing, RawTrace};

/// An event with its time and ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Merged {
    /// Nanoseconds since the start of the recording; negative for events that were in the ring before.
    pub(super) time_ns: i64,
    /// Index of the ring.
    pub(super) ring: u32,
    /// Events of the ring that are missing right before this one.
    pub(super) missing: u64,
    /// Time of the ring's event before, its own if it is the first.
    pub(super) previous_ns: i64,
    /// The event.
    pub(super) event: Event,
}

/// Reads one ring.
struct Reader<'a> {
    ring: &'a RawRing,
    chunk: usize,
    index: usize,
    /// Number that the next event has if nothing is missing; `None` if it is not known where reading started.
    expected: Option<u64>,
    hint: usize,
    last_ns: Option<i64>,
}

/// Results of [`merge`] in addition to the events.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Oddities {
    /// Events for each ring whose clock was behind that of the event before.
    pub(super) backwards: Vec<u64>,
}

impl Reader<'_> {
    fn next(&mut self, clock: &Clock, backwards: &mut u64) -> Option<Merged> {
        let (chunk, words) = loop {
            let chunk = self.ring.chunks.get(self.chunk)?;
            match chunk.events.get(self.index) {
                Some(words) => break (chunk, words),
                None => {
                    // One without events is where reading started.
                    self.expected.get_or_insert(chunk.first);
                    (self.chunk, self.index) = (self.chunk + 1, 0);
                }
            }
        };
        let number = chunk.first.saturating_add(self.index as u64);
        self.index += 1;
        let missing = self.expected.map_or(0, |expected| number.saturating_sub(expected));
        self.expected = Some(number.saturating_add(1));
        let event = Event::from_words(*words);
        let mut time_ns = clock.time_ns(event.ticks, &mut self.hint);
        let previous_ns = self.last_ns.unwrap_or(time_ns);
        if time_ns < previous_ns {
            *backwards += 1;
            time_ns = previous_ns;
        }
        self.last_ns = Some(time_ns);
        Some(Merged { time_ns, ring: 0, missing, previous_ns, event })
    }
}

/// Ticks of the earliest event, 0 if there is none.
pub(super) fn first_ticks(raw: &RawTrace) -> u64 {
    let firsts = raw.rings.iter().filter_map(|ring| ring.chunks.iter().find_map(|chunk| chunk.events.first()));
    firsts.map(|words| words[0]).min().unwrap_or(0)
}

/// Calls `each` with every event. The events of a ring keep their order regardless of their clock.
pub(super) fn merge(raw: &RawTrace, clock: &Clock, mut each: impl FnMut(Merged)) -> Oddities {
    let mut oddities = Oddities { backwards: vec![0; raw.rings.len()] };
    let mut readers: Vec<Reader> = raw
        .rings
        .iter()
        .map(|ring| Reader { ring, chunk: 0, index: 0, expected: None, hint: 0, last_ns: None })
        .collect();
    let mut next: Vec<Option<Merged>> = Vec::with_capacity(readers.len());
    let mut heap = BinaryHeap::with_capacity(readers.len());
    for (index, reader) in readers.iter_mut().enumerate() {
        let first = reader.next(clock, &mut oddities.backwards[index]);
        heap.extend(first.map(|merged| Reverse((merged.time_ns, index))));
        next.push(first);
    }
    while let Some(Reverse((_, index))) = heap.pop() {
        let limit = heap.peek().map(|Reverse(key)| *key);
        // As long as this ring is the earliest, the others need not be checked.
        while let Some(merged) = next[index].take() {
            if limit.is_some_and(|limit| limit < (merged.time_ns, index)) {
                heap.push(Reverse((merged.time_ns, index)));
                next[index] = Some(merged);
                break;
            }
            each(Merged { ring: index as u32, ..merged });
            next[index] = readers[index].next(clock, &mut oddities.backwards[index]);
        }
    }
    oddities
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::raw::RawChunk;

    fn ring(chunks: &[(u64, &[u64])]) -> RawRing {
        let chunk = |(first, ticks): &(u64, &[u64])| RawChunk {
            first: *first,
            events: ticks.iter().map(|ticks| [*ticks, 0, 0, 0]).collect(),
        };
        RawRing { name: String::new(), chunks: chunks.iter().map(chunk).collect() }
    }

    fn merged(rings: Vec<RawRing>) -> (Vec<(i64, u32, u64)>, Vec<u64>) {
        let raw = RawTrace { rings, ..RawTrace::default() };
        let clock = Clock::new(&[], 0);
        let mut seen = Vec::new();
        let oddities = merge(&raw, &clock, |event| seen.push((event.time_ns, event.ring, event.missing)));
        (seen, oddities.backwards)
    }

    #[test]
    fn rings_are_merged_by_time_and_gaps_are_counted() {
        let (seen, backwards) =
            merged(vec![ring(&[(5, &[1, 4]), (7, &[]), (9, &[6])]), ring(&[]), ring(&[(0, &[2, 4, 5, 9])])]);
        assert_eq!(seen, [(1, 0, 0), (2, 2, 0), (4, 0, 0), (4, 2, 0), (5, 2, 0), (6, 0, 2), (9, 2, 0)]);
        assert_eq!(backwards, [0, 0, 0]);
    }

    #[test]
    fn what_is_missing_at_the_start_is_counted_from_where_reading_started() {
        let (seen, _) = merged(vec![ring(&[(3, &[]), (5, &[1])]), ring(&[(5, &[2])])]);
        assert_eq!(seen, [(1, 0, 2), (2, 1, 0)]);
    }

    #[test]
    fn a_clock_that_goes_back_is_held_and_counted() {
        let (seen, backwards) = merged(vec![ring(&[(0, &[10, 3, 11])]), ring(&[(0, &[5])])]);
        assert_eq!(seen, [(5, 1, 0), (10, 0, 0), (10, 0, 0), (11, 0, 0)]);
        assert_eq!(backwards, [1, 0]);
    }
}
