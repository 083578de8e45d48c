//! Copies events from rings that are being written, and determines which of them are whole.

use std::sync::atomic::{Ordering, fence};

use glass_formats::trace::{EVENT_BYTES, EVENT_WORDS, RING_NAME_NONE, readable};
use glass_profiler_core::event::Event;
use glass_profiler_core::trace::raw::{Piece, Words};

use super::memory::TraceMemory;
use super::pages::{HEAD_MAX, NoPage, Page, RingWords, read_head, read_names};

/// Events that are copied at a time: 256 KiB, which takes less time than a busy writer needs to overwrite them.
const COPY_EVENTS: u64 = 8192;
/// Events of a ring that one call of [`TraceReader::drain`] copies at most.
const ROUND_EVENTS: u64 = 256 << 10;
/// Rings that are announced at most; a ring that restarts counts again.
const ANNOUNCED_MAX: u32 = 128;

/// The first event to read in the rings that exist at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The first that was ever written; overwritten events count as lost.
    First,
    /// The oldest that still exists.
    Oldest,
    /// The next that is written.
    Now,
}

/// The counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Events that were copied whole.
    pub events: u64,
    /// Events that were written since the start of reading and overwritten before they could be copied.
    pub lost: u64,
    /// Rings that were announced.
    pub rings: u32,
}

/// The result of one round.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Drained {
    /// Events that were copied.
    pub events: u64,
    /// There are more events than one round copies.
    pub is_more: bool,
    /// The largest share of a ring that was filled since the round before.
    pub fill: f64,
    /// Ticks of the newest event of the round.
    pub newest_ticks: Option<u64>,
}

/// The state of the ring in a slot.
#[derive(Debug, Clone, Copy)]
struct Known {
    words: RingWords,
    /// Its index in the recording; `None` if its entry is invalid.
    index: Option<u32>,
    /// Number of the event that is read next.
    next: u64,
}

/// Reads the trace of one guest.
#[derive(Debug)]
pub struct TraceReader<M> {
    memory: M,
    start: Start,
    is_first_round: bool,
    known: Vec<Option<Known>>,
    /// By number; the table only grows.
    names: Vec<String>,
    counts: ReadCounts,
    shortage: (u32, u32),
    buffer: Vec<u8>,
}

impl<M: TraceMemory> TraceReader<M> {
    pub(super) fn new(memory: M, start: Start) -> Result<TraceReader<M>, NoPage> {
        let page = Page::read(&memory)?;
        Ok(TraceReader {
            memory,
            start,
            is_first_round: true,
            known: vec![None; page.rings.len()],
            names: vec![String::new()],
            counts: ReadCounts::default(),
            shortage: (0, 0),
            buffer: vec![0; COPY_EVENTS as usize * EVENT_BYTES],
        })
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    pub(super) fn page(&self) -> Result<Page, NoPage> {
        Page::read(&self.memory)
    }

    /// The counters.
    pub fn counts(&self) -> ReadCounts {
        self.counts
    }

    /// Copies the new events of all rings, up to a bound; new names and rings come first. Each invalid value of the
    /// guest causes one warning, and is ignored.
    pub fn drain(&mut self, sink: &mut dyn FnMut(Event)) -> Drained {
        let Ok(page) = self.page() else { return Drained::default() };
        self.follow_names(&page, sink);
        let mut drained = Drained::default();
        for slot in 0..self.known.len().min(page.rings.len()) {
            if page.rings[slot].capacity == 0 {
                continue;
            }
            if let Some(known) = self.follow_ring(slot, &page, sink) {
                self.drain_ring(slot, known, &page, sink, &mut drained);
            }
        }
        self.is_first_round = false;
        if self.shortage != (page.names_lost, page.rings_lost) {
            self.shortage = (page.names_lost, page.rings_lost);
            sink(Event::Trace(Piece::Shortage { names_lost: page.names_lost, rings_lost: page.rings_lost }));
        }
        drained
    }

    fn follow_names(&mut self, page: &Page, sink: &mut dyn FnMut(Event)) {
        let first = self.names.len() as u32;
        if page.names_used <= first {
            return;
        }
        // The first entry stands for no name.
        if let Some(names) = read_names(&self.memory, first, page.names_used) {
            self.names.extend(names.iter().cloned());
            sink(Event::Trace(Piece::Names { first, names }));
        }
    }

    /// The ring in a slot if it is valid, announced if it is new.
    fn follow_ring(&mut self, slot: usize, page: &Page, sink: &mut dyn FnMut(Event)) -> Option<Known> {
        let words = page.rings[slot];
        let known = self.known[slot];
        if let Some(known) = known
            && (known.words.address, known.words.capacity) == (words.address, words.capacity)
            && words.head >= known.words.head
            && words.head <= HEAD_MAX
        {
            if known.words.name != words.name
                && let Some(index) = known.index
            {
                sink(Event::Trace(Piece::Ring { ring: index, name: self.ring_name(index, words.name) }));
            }
            let known = Known { words: RingWords { head: known.words.head, ..words }, ..known };
            self.known[slot] = Some(known);
            return known.index.map(|_| known);
        }
        let problem = page.problem(&words).or_else(|| {
            (self.counts.rings >= ANNOUNCED_MAX).then(|| format!("more than {ANNOUNCED_MAX} rings have begun"))
        });
        let again = known.is_some_and(|known| known.index.is_some());
        let index = match &problem {
            None => {
                self.counts.rings += 1;
                Some(self.counts.rings - 1)
            }
            Some(_) => None,
        };
        // Reported once, and not again while the words do not change.
        match &problem {
            Some(problem) if known.is_none_or(|known| known.index.is_some()) => {
                sink(Event::Warning(format!("ring {slot} of the service is not read: {problem}")));
            }
            None if again => sink(Event::Warning(format!(
                "ring {slot} of the service has begun again: what it held before may be incomplete"
            ))),
            _ => {}
        }
        let next = match self.start {
            Start::Now if self.is_first_round => words.head,
            Start::Oldest if index.is_some() && self.is_first_round => readable(words.head, words.capacity).start,
            _ => 0,
        };
        let known = Known { words, index, next };
        self.known[slot] = Some(known);
        if let Some(index) = index {
            sink(Event::Trace(Piece::Ring { ring: index, name: self.ring_name(index, words.name) }));
            if self.start == Start::Now && next > 0 {
                sink(Event::Trace(Piece::Chunk { ring: index, first: next, events: Vec::new() }));
            }
        }
        index.map(|_| known)
    }

    fn ring_name(&self, index: u32, name: u32) -> String {
        match self.names.get(name as usize).filter(|_| name != RING_NAME_NONE) {
            Some(name) => name.clone(),
            None => format!("ring {index}"),
        }
    }

    fn drain_ring(
        &mut self,
        slot: usize,
        mut known: Known,
        page: &Page,
        sink: &mut dyn FnMut(Event),
        drained: &mut Drained,
    ) {
        let Some(index) = known.index else { return };
        let capacity = known.words.capacity;
        let mut head = page.rings[slot].head;
        let mut left = ROUND_EVENTS.min(capacity);
        drained.fill = drained.fill.max(head.saturating_sub(known.next) as f64 / capacity as f64);
        let mut lost = Lost::default();
        while left > 0 {
            lost.skip_to(&mut known.next, readable(head, capacity).start);
            if known.next >= head {
                break;
            }
            let position = known.next & (capacity - 1);
            let count = (head - known.next).min(COPY_EVENTS).min(capacity - position).min(left);
            let address = known.words.address.wrapping_add(position * EVENT_BYTES as u64);
            let bytes = &mut self.buffer[..count as usize * EVENT_BYTES];
            if !self.memory.read_area(page.area_address, address, bytes) {
                // A cut dump: missing events are lost, the others may exist.
                let end = known.next + count;
                lost.skip_to(&mut known.next, end);
                left -= count;
                continue;
            }
            // The copies are complete before the head is read again, see `Ring::read`.
            fence(Ordering::Acquire);
            let Some(after) = read_head(&self.memory, slot).filter(|after| (head..=HEAD_MAX).contains(after)) else {
                // It has restarted meanwhile; the next round reports it.
                break;
            };
            let end = known.next + count;
            let whole_from = readable(after, capacity).start.clamp(known.next, end);
            lost.skip_to(&mut known.next, whole_from);
            let skipped = (count - (end - known.next)) as usize * EVENT_BYTES;
            let events: Vec<Words> = bytes[skipped..].chunks_exact(EVENT_BYTES).map(words_of).collect();
            if let Some(last) = events.last() {
                drained.newest_ticks = drained.newest_ticks.max(Some(last[0]));
                drained.events += events.len() as u64;
                self.counts.events += events.len() as u64;
                sink(Event::Trace(Piece::Chunk { ring: index, first: known.next, events }));
            }
            known.next = end;
            left -= count;
            head = head.max(after);
        }
        drained.is_more |= known.next < head;
        self.counts.lost += lost.0;
        known.words.head = page.rings[slot].head;
        self.known[slot] = Some(known);
    }
}

/// Counts skipped events.
#[derive(Default)]
struct Lost(u64);

impl Lost {
    fn skip_to(&mut self, next: &mut u64, to: u64) {
        if to > *next {
            self.0 += to - *next;
            *next = to;
        }
    }
}

fn words_of(bytes: &[u8]) -> Words {
    let mut words = [0; EVENT_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}
