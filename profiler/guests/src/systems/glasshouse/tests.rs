//! A guest in our own memory that writes invalid values, writes while it is read, answers, and is dumped into files.

mod dumps;
mod switching;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use glass_formats::trace::{
    CONTROL_BYTES, CONTROL_MAGIC, EVENT_WORDS, NAMES_OFFSET, RING_BYTES, RINGS_MAX, RINGS_OFFSET, Ring, TRACE_VERSION,
    words_of_name,
};
use glass_profiler_core::event::Event;
use glass_profiler_core::trace::raw::{Piece, RawTrace};

use super::memory::TraceMemory;
use super::pages::NoPage;
use super::reader::{Start, TraceReader};

const AREA_ADDRESS: u64 = 0x20_0000;
const CAPACITY: usize = 1024;
/// Rounds of reading an invalid value.
const ROUNDS: usize = 6;

/// Control pages and area of a guest, which a test changes.
#[derive(Clone)]
struct Fake {
    control: Arc<Vec<AtomicU64>>,
    area: Arc<Vec<AtomicU64>>,
    is_process: bool,
}

fn zeros(words: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..words).map(|_| AtomicU64::new(0)).collect())
}

fn copy(words: &[AtomicU64], offset: usize, into: &mut [u8]) -> bool {
    let end = offset.checked_add(into.len());
    if end.is_none_or(|end| end > words.len() * 8) || !offset.is_multiple_of(8) {
        return false;
    }
    for (word, bytes) in words[offset / 8..].iter().zip(into.chunks_mut(8)) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..bytes.len()]);
    }
    true
}

impl TraceMemory for Fake {
    fn read_control(&self, offset: usize, into: &mut [u8]) -> bool {
        copy(&self.control, offset, into)
    }

    fn write_control(&self, offset: usize, value: u64) -> io::Result<()> {
        self.control[offset / 8].store(value, Ordering::Release);
        Ok(())
    }

    fn read_area(&self, area_address: u64, address: u64, into: &mut [u8]) -> bool {
        // Whatever size the guest reports for its area, there is not more memory than this.
        let place = if self.is_process { address.checked_sub(area_address) } else { address.checked_sub(AREA_ADDRESS) };
        place.is_some_and(|place| copy(&self.area, place as usize, into))
    }

    fn has_host_ticks(&self) -> bool {
        self.is_process
    }
}

impl Fake {
    /// Two rings, "core 0" and "core 1", and the name "disk".
    fn new() -> Fake {
        let fake =
            Fake { control: zeros(CONTROL_BYTES / 8), area: zeros(2 * CAPACITY * EVENT_WORDS), is_process: false };
        for (number, name) in [(1, "core 0"), (2, "core 1"), (3, "disk")] {
            for (index, word) in words_of_name(name).into_iter().enumerate() {
                fake.set(NAMES_OFFSET + number * 64 + index * 8, word);
            }
        }
        fake.set(8, u64::from(TRACE_VERSION));
        fake.set(16, 1_000_000_000);
        fake.set(32, AREA_ADDRESS);
        fake.set(40, fake.area.len() as u64 * 8);
        fake.set(144, 4);
        for slot in 0..2 {
            let at = RINGS_OFFSET + slot * RING_BYTES;
            fake.set(at + 8, AREA_ADDRESS + (slot * CAPACITY * 32) as u64);
            fake.set(at + 16, CAPACITY as u64);
            fake.set(at + 24, slot as u64 + 1);
        }
        fake.set(0, CONTROL_MAGIC);
        fake
    }

    fn set(&self, offset: usize, value: u64) {
        self.control[offset / 8].store(value, Ordering::Release);
    }

    fn get(&self, offset: usize) -> u64 {
        self.control[offset / 8].load(Ordering::Acquire)
    }

    fn ring(&self, slot: usize) -> Ring<'_> {
        let start = slot * CAPACITY * EVENT_WORDS;
        let head = &self.control[(RINGS_OFFSET + slot * RING_BYTES) / 8];
        Ring::new(head, &self.area[start..start + CAPACITY * EVENT_WORDS]).unwrap()
    }

    fn push(&self, slot: usize, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| self.ring(slot).push(event(number)));
    }

    fn reader(&self, start: Start) -> TraceReader<Fake> {
        TraceReader::new(self.clone(), start).unwrap()
    }
}

/// An event in which each word contains the number.
fn event(number: u64) -> [u64; EVENT_WORDS] {
    [number, number ^ 0x5555, !number, number.rotate_left(32)]
}

/// The pieces of a round, and separately the warnings.
fn drain(reader: &mut TraceReader<Fake>, trace: &mut RawTrace) -> Vec<String> {
    let mut warnings = Vec::new();
    reader.drain(&mut |event| match event {
        Event::Trace(piece) => assert!(trace.add(piece.clone()), "{piece:?}"),
        Event::Warning(text) => warnings.push(text),
        other => panic!("{other:?}"),
    });
    warnings
}

fn numbers(trace: &RawTrace, ring: usize) -> Vec<u64> {
    let events = trace.rings[ring].chunks.iter().flat_map(|chunk| &chunk.events);
    events.inspect(|words| assert_eq!(**words, event(words[0]), "torn")).map(|words| words[0]).collect()
}

#[test]
fn what_is_written_comes_with_names_and_numbers() {
    let fake = Fake::new();
    fake.push(0, 0..10);
    let (mut reader, mut trace) = (fake.reader(Start::First), RawTrace::default());
    assert_eq!(drain(&mut reader, &mut trace), [""; 0]);
    assert_eq!(trace.names, ["", "core 0", "core 1", "disk"]);
    assert_eq!(trace.rings.iter().map(|ring| ring.name.as_str()).collect::<Vec<_>>(), ["core 0", "core 1"]);
    fake.push(0, 10..3000);
    fake.push(1, 0..5);
    drain(&mut reader, &mut trace);
    // Events that the writer may be overwriting at the moment are dropped.
    let expected: Vec<u64> = (0..10).chain(3000 - 1023..3000).collect();
    assert_eq!(numbers(&trace, 0), expected);
    assert_eq!(trace.rings[0].chunks[1].first, 1977);
    assert_eq!(numbers(&trace, 1), [0, 1, 2, 3, 4]);
    let counts = reader.counts();
    assert_eq!((counts.events, counts.lost, counts.rings), (10 + 1023 + 5, 1967, 2));
}

#[test]
fn reading_begins_where_it_is_to() {
    let fake = Fake::new();
    fake.push(0, 0..2000);
    let read = |start| {
        let (mut reader, mut trace) = (fake.reader(start), RawTrace::default());
        drain(&mut reader, &mut trace);
        (numbers(&trace, 0).len(), reader.counts().lost)
    };
    assert_eq!(read(Start::First), (1023, 977));
    assert_eq!(read(Start::Oldest), (1023, 0));
    assert_eq!(read(Start::Now), (0, 0));
}

#[test]
fn a_writer_that_is_too_fast_costs_events_and_no_torn_one() {
    const WRITTEN: u64 = 3_000_000;
    let fake = Fake::new();
    let writer = {
        let fake = fake.clone();
        std::thread::spawn(move || {
            for number in 0..WRITTEN {
                fake.ring(0).push(event(number));
                // Where the reader would never get the CPU, it would never overlap with us.
                if number.is_multiple_of(50_000) {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        })
    };
    let mut reader = fake.reader(Start::First);
    let (mut next, mut read, mut chunks) = (0, 0, 0);
    let begun = Instant::now();
    let mut is_last = false;
    loop {
        let drained = reader.drain(&mut |piece| {
            let Event::Trace(Piece::Chunk { first, events, .. }) = piece else { return };
            assert!(first >= next, "in order");
            for (words, number) in events.iter().zip(first..) {
                assert_eq!(*words, event(number), "torn, or of another number");
            }
            next = first + events.len() as u64;
            read += events.len() as u64;
            chunks += 1;
        });
        if is_last && !drained.is_more {
            break;
        }
        is_last = writer.is_finished();
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    writer.join().unwrap();
    let counts = reader.counts();
    assert_eq!((counts.events, next), (read, WRITTEN));
    assert_eq!(read + counts.lost, WRITTEN, "each event is read or lost");
    assert!(chunks > 10, "{chunks}: nothing was read while it was written");
}

#[test]
fn no_lie_of_any_word_does_harm() {
    let invalid = [1, 7, 64, 1023, 1 << 20, (1 << 20) + 1, 1 << 31, 1 << 32, 1 << 62, (1 << 62) + 1, 1 << 63, u64::MAX];
    let words = (8..RINGS_OFFSET + 3 * RING_BYTES).step_by(8).chain([NAMES_OFFSET, NAMES_OFFSET + 64]);
    for offset in words {
        let is_of_ring_1 = (RINGS_OFFSET + RING_BYTES..RINGS_OFFSET + 2 * RING_BYTES).contains(&offset);
        for value in invalid {
            let fake = Fake::new();
            fake.push(0, 0..5);
            let Ok(mut reader) = TraceReader::new(fake.clone(), Start::First) else { panic!("no page") };
            let (mut trace, mut warnings) = (RawTrace::default(), Vec::new());
            warnings.extend(drain(&mut reader, &mut trace));
            fake.set(offset, value);
            for round in 0..ROUNDS as u64 {
                fake.push(0, 5 + round..6 + round);
                // The value may also change.
                if round == 3 {
                    fake.set(offset, !value);
                }
                let begun = Instant::now();
                warnings.extend(drain_loosely(&mut reader, &mut trace));
                assert!(begun.elapsed() < Duration::from_secs(5), "{offset} {value}");
            }
            assert!(warnings.len() <= 2 * ROUNDS, "{offset} {value}: {warnings:?}");
            if is_of_ring_1 {
                assert_eq!(
                    numbers(&trace, 0).len(),
                    5 + ROUNDS,
                    "{offset} {value}: a lie about one ring spoils another"
                );
            }
        }
    }
}

/// Events need not be whole any more, nor the pieces consistent: the reader of the file leaves invalid ones out.
fn drain_loosely(reader: &mut TraceReader<Fake>, trace: &mut RawTrace) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut events_seen = 0;
    reader.drain(&mut |event| match event {
        Event::Trace(piece) => {
            if let Piece::Chunk { events, .. } = &piece {
                events_seen += events.len();
            }
            trace.add(piece);
        }
        Event::Warning(text) => warnings.push(text),
        other => panic!("{other:?}"),
    });
    assert!(events_seen <= RINGS_MAX * (CAPACITY + 1), "{events_seen}");
    warnings
}

#[test]
fn a_ring_that_cannot_be_is_told_once() {
    let fake = Fake::new();
    fake.set(RINGS_OFFSET + RING_BYTES + 16, 1000);
    let (mut reader, mut trace) = (fake.reader(Start::First), RawTrace::default());
    let warnings = drain(&mut reader, &mut trace);
    assert!(warnings.len() == 1 && warnings[0].contains("ring 1") && warnings[0].contains("1000"), "{warnings:?}");
    assert_eq!(drain(&mut reader, &mut trace), [""; 0]);
    // Later it is one.
    fake.set(RINGS_OFFSET + RING_BYTES + 16, 512);
    fake.push(1, 0..3);
    assert_eq!(drain(&mut reader, &mut trace), [""; 0]);
    assert_eq!(numbers(&trace, 1), [0, 1, 2]);
}

#[test]
fn a_guest_that_begins_again_gets_new_rings() {
    let fake = Fake::new();
    let (mut reader, mut trace) = (fake.reader(Start::First), RawTrace::default());
    fake.push(0, 0..50);
    drain(&mut reader, &mut trace);
    fake.set(RINGS_OFFSET, 0);
    fake.push(0, 0..3);
    let warnings = drain(&mut reader, &mut trace);
    assert!(warnings.len() == 1 && warnings[0].contains("begun again"), "{warnings:?}");
    assert_eq!((numbers(&trace, 0).len(), numbers(&trace, 2)), (50, vec![0, 1, 2]));
}

#[test]
fn names_come_once_and_have_bounds() {
    let fake = Fake::new();
    let (mut reader, mut trace) = (fake.reader(Start::First), RawTrace::default());
    drain(&mut reader, &mut trace);
    // A length beyond the entry, and bytes that are no UTF-8; a number beyond the table.
    fake.set(NAMES_OFFSET + 4 * 64, 0xffff | 0xff << 16 | u64::from(b'x') << 24);
    fake.set(144, 1 << 40 | 5);
    drain(&mut reader, &mut trace);
    assert_eq!(trace.names.len(), 5);
    assert!(trace.names[4].starts_with("\u{fffd}x") && trace.names[4].chars().count() == 62, "{:?}", trace.names[4]);
    fake.set(144, u64::from(u32::MAX));
    drain(&mut reader, &mut trace);
    assert_eq!(trace.names.len(), 1024);
    fake.set(144, 2);
    fake.set(148 & !7, 2 | 9 << 32);
    drain(&mut reader, &mut trace);
    assert_eq!((trace.names.len(), trace.names_lost), (1024, 9));
}

#[test]
fn pages_that_are_none_of_ours() {
    let fake = Fake::new();
    let problem = || TraceReader::new(fake.clone(), Start::First).err();
    fake.set(8, u64::from(TRACE_VERSION) + 1);
    assert_eq!(problem(), Some(NoPage::TooNew(TRACE_VERSION + 1)));
    let text = NoPage::TooNew(9).about("hello").to_string();
    assert!(text.contains("hello") && text.contains("newer glass"), "{text}");
    fake.set(0, 5);
    assert_eq!(problem(), Some(NoPage::NoMagic));
    let none = Fake { control: zeros(10), ..fake.clone() };
    assert_eq!(TraceReader::new(none, Start::First).err(), Some(NoPage::Unreadable));
}
