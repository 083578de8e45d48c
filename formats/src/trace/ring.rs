//! A ring that keeps the newest events: one writer, any number of readers, no locks.
//!
//! Besides the events, writer and readers share only the head, the number of events written so far.
//! The writer fills slot `head % capacity`, then adds one to the head. A reader copies, then
//! reads the head again: from it the reader computes which events the writer may have overwritten meanwhile, and drops them.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

use core::ops::Range;

/// Words of an event.
pub const EVENT_WORDS: usize = 4;
/// Size of an event in bytes.
pub const EVENT_BYTES: usize = size_of::<[u64; EVENT_WORDS]>();

/// A ring's memory, for its writer.
#[derive(Debug, Clone, Copy)]
pub struct Ring<'a> {
    head: &'a AtomicU64,
    /// Their number is a power of two above one.
    slots: &'a [[AtomicU64; EVENT_WORDS]],
}

impl<'a> Ring<'a> {
    /// A ring of as many events as `words` holds. `None` unless that is a power of two above one.
    pub fn new(head: &'a AtomicU64, words: &'a [AtomicU64]) -> Option<Ring<'a>> {
        let (slots, rest) = words.as_chunks();
        (rest.is_empty() && slots.len().is_power_of_two() && slots.len() > 1).then_some(Ring { head, slots })
    }

    /// Events that it holds.
    pub fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }

    /// The slot of event `number`; it always exists.
    #[inline(always)]
    fn slot(&self, number: u64) -> Option<&'a [AtomicU64; EVENT_WORDS]> {
        self.slots.get(number as usize & (self.slots.len() - 1))
    }

    /// Writes an event over the oldest one. Only one thread may write a ring.
    #[inline(always)]
    pub fn push(&self, event: [u64; EVENT_WORDS]) {
        let head = self.head.load(Ordering::Relaxed);
        // Pairs with the fence in `read`: a reader that sees a word of this event sees a head of at least `head`,
        // and so detects that the slot's last event is gone.
        fence(Ordering::Release);
        if let Some(slot) = self.slot(head) {
            for (word, value) in slot.iter().zip(event) {
                word.store(value, Ordering::Relaxed);
            }
        }
        self.head.store(head.wrapping_add(1), Ordering::Release);
    }

    /// Passes the whole events from number `from` on to `event`, each with its number, in order, and returns the number to continue
    /// from. Missing numbers were overwritten. A reader in another process does the same with
    /// copies of memory, see [`readable`].
    pub fn read(&self, from: u64, mut event: impl FnMut(u64, [u64; EVENT_WORDS])) -> u64 {
        let before = self.head.load(Ordering::Acquire);
        for number in readable(before, self.capacity()).start.max(from)..before {
            let Some(slot) = self.slot(number) else { break };
            let copy = slot.each_ref().map(|word| word.load(Ordering::Relaxed));
            // Pairs with the fence in `push`.
            fence(Ordering::Acquire);
            let after = self.head.load(Ordering::Relaxed);
            if readable(after, self.capacity()).contains(&number) {
                event(number, copy);
            }
        }
        before
    }
}

/// Numbers of the events that are whole in a ring of `capacity` events if its head was `head_after` when the
/// copy was complete: the writer may be writing event `head_after`, over event `head_after - capacity`.
pub fn readable(head_after: u64, capacity: u64) -> Range<u64> {
    (head_after + 1).saturating_sub(capacity)..head_after
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    fn read(ring: &Ring, from: u64) -> (u64, Vec<u64>) {
        let mut seen = Vec::new();
        let next = ring.read(from, |number, event| {
            assert_eq!(event, [number; EVENT_WORDS]);
            seen.push(number);
        });
        (next, seen)
    }

    #[test]
    fn keeps_the_newest_and_tells_what_is_gone() {
        let head = AtomicU64::new(0);
        let words: Vec<AtomicU64> = (0..4 * EVENT_WORDS).map(|_| AtomicU64::new(0)).collect();
        let ring = Ring::new(&head, &words).unwrap();
        assert_eq!(read(&ring, 0), (0, Vec::new()));
        for number in 0..3 {
            ring.push([number; EVENT_WORDS]);
        }
        assert_eq!(read(&ring, 0), (3, Vec::from([0, 1, 2])));
        for number in 3..10 {
            ring.push([number; EVENT_WORDS]);
        }
        // A reader must assume that event 10 is being written to the slot of event 6.
        assert_eq!(read(&ring, 0), (10, Vec::from([7, 8, 9])));
        assert_eq!(read(&ring, 9), (10, Vec::from([9])));
    }

    #[test]
    fn odd_sizes_are_refused() {
        let head = AtomicU64::new(0);
        let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        for count in [0, 4, 7, 12, 63] {
            assert!(Ring::new(&head, &words[..count]).is_none(), "{count}");
        }
        assert!(Ring::new(&head, &words[..8]).is_some());
    }
}
