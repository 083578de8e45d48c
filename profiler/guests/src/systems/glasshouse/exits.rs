//! The exits of a VM's processors, which our own VMM records: what waited for the VMM, beside the guest's own trace and on the guest's clock.

use glass_formats::trace::{Event as Words, Kind, NAMES_MAX};
use glass_profiler_core::event::Event;
use glass_profiler_core::trace::raw::Piece;

use super::memory::TraceMemory;
use super::reader::{ReadCounts, Start, TraceReader};

/// Pieces that wait for the guest's clock to be known. Then the VMM's rings keep the newest, and what they lose is counted.
const WAITING_MAX: usize = 1024;

/// The record of a VMM.
pub(super) struct Exits {
    reader: TraceReader<Box<dyn TraceMemory>>,
    waiting: Vec<Piece>,
    /// The time of each ring's last event: an estimate of the clock that changes must not let time go backwards.
    last_ticks: Vec<u64>,
}

impl Exits {
    /// Reads `memory` from `start` on; `None` if there is no record in it.
    pub(super) fn new(memory: Box<dyn TraceMemory>, start: Start) -> Option<Exits> {
        let reader = TraceReader::new(memory, start).ok()?;
        Some(Exits { reader, waiting: Vec::new(), last_ticks: Vec::new() })
    }

    pub(super) fn counts(&self) -> ReadCounts {
        self.reader.counts()
    }

    /// Copies what is new. It is passed on with the guest's clock, which is `offset` ahead of this host's; while that is not known, it waits.
    pub(super) fn drain(&mut self, offset: Option<i64>, sink: &mut dyn FnMut(Event)) {
        let waiting = &mut self.waiting;
        if waiting.len() < WAITING_MAX {
            self.reader.drain(&mut |event| match event {
                Event::Trace(piece) => waiting.push(piece),
                other => sink(other),
            });
        }
        let Some(offset) = offset else { return };
        for piece in std::mem::take(&mut self.waiting) {
            if let Some(piece) = self.of_guest(piece, offset) {
                sink(Event::Trace(piece));
            }
        }
    }

    /// The piece on the guest's clock, with names that are not the guest's.
    fn of_guest(&mut self, piece: Piece, offset: i64) -> Option<Piece> {
        match piece {
            Piece::Names { first, names } => {
                Some(Piece::Names { first: first.saturating_add(NAMES_MAX as u32), names })
            }
            Piece::Chunk { ring, first, mut events } => {
                let index = ring as usize;
                if self.last_ticks.len() <= index {
                    self.last_ticks.resize(index + 1, 0);
                }
                for words in &mut events {
                    let mut event = Words::from_words(*words);
                    event.ticks = event.ticks.wrapping_add_signed(offset).max(self.last_ticks[index]);
                    self.last_ticks[index] = event.ticks;
                    if event.kind == Kind::SpanBegin as u16 {
                        event.a = event.a.saturating_add(NAMES_MAX as u32);
                    }
                    *words = event.to_words();
                }
                Some(Piece::Chunk { ring, first, events })
            }
            Piece::Ring { .. } => Some(piece),
            // The VMM has no clock of its own, and cores without a ring are as many as in the guest.
            Piece::Clock(_) | Piece::Functions(_) | Piece::Shortage { .. } => None,
        }
    }
}

/// Numbers the rings of a guest and of its VMM in one series.
#[derive(Debug, Default)]
pub(super) struct RingNumbers {
    used: u32,
    guest: Vec<u32>,
    vmm: Vec<u32>,
}

impl RingNumbers {
    /// The event with the ring's number in the recording.
    pub(super) fn apply(&mut self, is_vmm: bool, mut event: Event) -> Event {
        if let Event::Trace(Piece::Ring { ring, .. } | Piece::Chunk { ring, .. }) = &mut event {
            let known = if is_vmm { &mut self.vmm } else { &mut self.guest };
            // Rings of a reader are numbered from 0 on, in the order in which it announces them.
            while known.len() <= *ring as usize {
                known.push(self.used);
                self.used += 1;
            }
            *ring = known[*ring as usize];
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_both_are_one_series() {
        let mut numbers = RingNumbers::default();
        let mut number =
            |is_vmm, ring| match numbers.apply(is_vmm, Event::Trace(Piece::Ring { ring, name: String::new() })) {
                Event::Trace(Piece::Ring { ring, .. }) => ring,
                _ => u32::MAX,
            };
        assert_eq!([number(false, 0), number(true, 0), number(true, 1), number(false, 1)], [0, 1, 2, 3]);
        assert_eq!([number(false, 0), number(true, 1), number(false, 1)], [0, 2, 3]);
    }
}
