//! A trace as copied from a guest.

use glass_formats::trace::EVENT_WORDS;

/// An event as in a ring; `glass_formats::trace::Event::from_words` decodes it.
pub type Words = [u64; EVENT_WORDS];

/// A piece of a trace, as delivered by the source and as stored in a recording. A ring is announced before its first
/// events, a name before or after the events that use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A ring; the first use defines it, a second changes its name.
    Ring {
        /// Its index, from 0 on.
        ring: u32,
        /// "core 0", or the thread's name.
        name: String,
    },
    /// Names with these numbers and the ones after.
    Names {
        /// Number of the first.
        first: u32,
        /// The names.
        names: Vec<String>,
    },
    /// Consecutive events of a ring. Events between the last chunk of a ring and this one were lost.
    Chunk {
        /// The ring.
        ring: u32,
        /// Number of the first event, counted from the creation of the ring.
        first: u64,
        /// The events.
        events: Vec<Words>,
    },
    /// The clock of events at a moment.
    Clock(ClockPoint),
    /// Functions with these numbers in the image's table of sleds.
    Functions(Vec<Function>),
    /// The guest's own losses: names and rings that found no room.
    Shortage {
        /// Names that had no room in the table.
        names_lost: u32,
        /// Threads that had no ring.
        rings_lost: u32,
    },
}

/// The clock of events and the clock of samples at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockPoint {
    /// Ticks of the guest's TSC.
    pub ticks: u64,
    /// `CLOCK_MONOTONIC` of the host in nanoseconds; after reading a recording, nanoseconds since its start.
    pub time_ns: u64,
    /// Ticks per second; 0 if the guest did not know it yet.
    pub ticks_per_second: u64,
    /// The maximum error of `time_ns`, in nanoseconds.
    pub error_ns: u64,
}

/// A function that can be traced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Function {
    /// Its number in the table of sleds.
    pub number: u32,
    /// Demangled, or `0x...` if nothing is known.
    pub name: String,
    /// Source file as the compiler wrote it.
    pub file: Option<String>,
    /// Line in `file`, from 1 on.
    pub line: Option<u32>,
}

/// The trace of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawTrace {
    /// The rings, by index.
    pub rings: Vec<RawRing>,
    /// The names, by number; number 0 is none.
    pub names: Vec<String>,
    /// In the order in which they were taken; without one the times are ticks at an assumed rate.
    pub clock: Vec<ClockPoint>,
    /// Functions that can be traced, in any order.
    pub functions: Vec<Function>,
    /// Names that the guest had no room for.
    pub names_lost: u32,
    /// Threads that the guest had no ring for.
    pub rings_lost: u32,
}

/// The copied events of a ring.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawRing {
    /// "core 0", or a thread's name.
    pub name: String,
    /// In the order of their numbers.
    pub chunks: Vec<RawChunk>,
}

/// Consecutive events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawChunk {
    /// Number of the first event.
    pub first: u64,
    /// The events.
    pub events: Vec<Words>,
}

impl RawTrace {
    /// Names and rings have a bound in the format; entries beyond it are left out.
    const NAMES_MAX: usize = 1 << 20;
    const RINGS_MAX: usize = 1 << 12;

    /// Adds a piece. Returns false if it is invalid: a ring that was not announced, or numbers beyond the limits.
    pub fn add(&mut self, piece: Piece) -> bool {
        match piece {
            Piece::Ring { ring, name } => {
                let index = ring as usize;
                if index > self.rings.len() || index >= Self::RINGS_MAX {
                    return false;
                }
                if index == self.rings.len() {
                    self.rings.push(RawRing::default());
                }
                self.rings[index].name = name;
            }
            Piece::Names { first, names } => {
                let end = first as usize + names.len();
                if end > Self::NAMES_MAX {
                    return false;
                }
                if self.names.len() < end {
                    self.names.resize(end, String::new());
                }
                for (slot, name) in self.names[first as usize..end].iter_mut().zip(names) {
                    *slot = name;
                }
            }
            Piece::Chunk { ring, first, events } => {
                let Some(ring) = self.rings.get_mut(ring as usize) else { return false };
                let end = ring.chunks.last().map_or(0, |chunk| chunk.first.saturating_add(chunk.events.len() as u64));
                if first < end {
                    return false;
                }
                ring.chunks.push(RawChunk { first, events });
            }
            Piece::Clock(point) => self.clock.push(point),
            Piece::Functions(functions) => self.functions.extend(functions),
            Piece::Shortage { names_lost, rings_lost } => {
                self.names_lost = names_lost;
                self.rings_lost = rings_lost;
            }
        }
        true
    }

    /// Whether the recording has no trace.
    pub fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Events in all rings.
    pub fn event_count(&self) -> u64 {
        self.rings.iter().flat_map(|ring| &ring.chunks).map(|chunk| chunk.events.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused() {
        let mut trace = RawTrace::default();
        assert!(!trace.add(Piece::Chunk { ring: 0, first: 0, events: vec![[0; 4]] }));
        assert!(!trace.add(Piece::Ring { ring: 1, name: "core 1".into() }));
        assert!(trace.add(Piece::Ring { ring: 0, name: "core 0".into() }));
        assert!(trace.add(Piece::Chunk { ring: 0, first: 5, events: vec![[0; 4]; 2] }));
        assert!(!trace.add(Piece::Chunk { ring: 0, first: 6, events: vec![[0; 4]] }));
        assert!(trace.add(Piece::Chunk { ring: 0, first: 7, events: vec![[0; 4]] }));
        assert!(!trace.add(Piece::Names { first: u32::MAX, names: vec!["x".into()] }));
        assert!(trace.add(Piece::Names { first: 2, names: vec!["disk".into()] }));
        assert_eq!(trace.names, ["", "", "disk"]);
        assert_eq!(trace.event_count(), 3);
    }
}
