//! Makes traces for tests, event by event.

use glass_formats::trace::{Event, Kind};
use glass_profiler_core::trace::build;
use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::trace::raw::{ClockPoint, Function, RawChunk, RawRing, RawTrace, Words};

/// A trace in construction. Its clock has a tick a nanosecond, and starts with the recording.
pub struct Builder {
    raw: RawTrace,
    /// Number of the next event of each ring.
    next: Vec<u64>,
}

impl Builder {
    /// Names have numbers from 1 on.
    pub fn new(names: &[&str]) -> Builder {
        let names = std::iter::once("").chain(names.iter().copied()).map(str::to_owned).collect();
        let clock = vec![ClockPoint { ticks: 0, time_ns: 0, ticks_per_second: 1_000_000_000, error_ns: 10 }];
        Builder { raw: RawTrace { names, clock, ..RawTrace::default() }, next: Vec::new() }
    }

    /// Functions have numbers from 0 on.
    pub fn functions(mut self, names: &[&str]) -> Builder {
        let function = |(number, name): (u32, &&str)| Function { number, name: (*name).into(), file: None, line: None };
        self.raw.functions = (0..).zip(names).map(function).collect();
        self
    }

    pub fn names_lost(mut self, names_lost: u32) -> Builder {
        self.raw.names_lost = names_lost;
        self
    }

    pub fn clock(mut self, point: ClockPoint) -> Builder {
        self.raw.clock = vec![point];
        self
    }

    pub fn at(&mut self, ring: u32, ticks: u64, kind: Kind, detail: u16, a: u32, (b, c): (u64, u64)) {
        self.words(ring, Event { ticks, kind: kind as u16, detail, a, b, c }.to_words());
    }

    pub fn raw_kind(&mut self, ring: u32, ticks: u64, kind: u16) {
        self.words(ring, Event { ticks, kind, ..Event::default() }.to_words());
    }

    /// Events that were overwritten before they could be read.
    pub fn lose(&mut self, ring: u32, events: u64) {
        self.ring(ring);
        if events > 0 {
            self.next[ring as usize] += events;
            let first = self.next[ring as usize];
            self.raw.rings[ring as usize].chunks.push(RawChunk { first, events: Vec::new() });
        }
    }

    /// What follows is in a chunk of its own.
    pub fn begin_chunk(&mut self, ring: u32) {
        let first = self.next[ring as usize];
        self.raw.rings[ring as usize].chunks.push(RawChunk { first, events: Vec::new() });
    }

    pub fn words(&mut self, ring: u32, words: Words) {
        self.ring(ring);
        let first = self.next[ring as usize];
        let chunks = &mut self.raw.rings[ring as usize].chunks;
        if chunks.is_empty() {
            chunks.push(RawChunk { first, events: Vec::new() });
        }
        chunks.last_mut().unwrap().events.push(words);
        self.next[ring as usize] += 1;
    }

    fn ring(&mut self, ring: u32) {
        while self.raw.rings.len() <= ring as usize {
            let name = format!("core {}", self.raw.rings.len());
            self.raw.rings.push(RawRing { name, chunks: Vec::new() });
            self.next.push(0);
        }
    }

    pub fn raw(self) -> RawTrace {
        self.raw
    }

    pub fn build(self) -> Trace {
        build(&self.raw)
    }
}
