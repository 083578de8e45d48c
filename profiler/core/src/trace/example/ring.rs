//! The rings of the example, with the clock of their events.

use glass_formats::trace::{Event, Kind};

use crate::trace::raw::{ClockPoint, RawChunk, RawRing};

/// Ticks of the clock at the start of the recording, and how many of them a microsecond has.
const TICKS_AT_START: u64 = 7_000_000_000;
const TICKS_PER_MICROSECOND: u64 = 2_596;
/// Events that are copied at a time.
const CHUNK_EVENTS: usize = 8_192;
/// The cost of an event for the guest.
const EVENT_NS: u64 = 16;

/// Numbers that look random and are not.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number from `low` to below `high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        low + (self.0 >> 16) % (high - low).max(1)
    }
}

/// One core's ring and its time.
#[derive(Debug)]
pub(super) struct Core {
    name: &'static str,
    chunks: Vec<RawChunk>,
    pub(super) count: usize,
    pub(super) now_ns: u64,
}

impl Core {
    pub(super) fn new(name: &'static str) -> Core {
        Core { name, chunks: Vec::new(), count: 0, now_ns: 1_000 }
    }

    /// An event `after_ns` later.
    pub(super) fn emit(&mut self, after_ns: u64, kind: Kind, detail: u16, a: u32, (b, c): (u64, u64)) {
        self.now_ns += after_ns + EVENT_NS;
        if self.chunks.last().is_none_or(|chunk| chunk.events.len() == CHUNK_EVENTS) {
            self.chunks.push(RawChunk { first: self.count as u64, events: Vec::with_capacity(CHUNK_EVENTS) });
        }
        let event = Event { ticks: ticks(self.now_ns), kind: kind as u16, detail, a, b, c };
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.events.push(event.to_words());
        }
        self.count += 1;
    }

    pub(super) fn into_ring(self) -> RawRing {
        RawRing { name: self.name.into(), chunks: self.chunks }
    }
}

fn ticks(time_ns: u64) -> u64 {
    TICKS_AT_START + time_ns * TICKS_PER_MICROSECOND / 1_000
}

/// The clock point that a recorder would have recorded.
pub(super) fn clock_point(time_ns: u64) -> ClockPoint {
    let ticks_per_second = TICKS_PER_MICROSECOND * 1_000_000;
    ClockPoint { ticks: ticks(time_ns), time_ns, ticks_per_second, error_ns: 40 }
}
