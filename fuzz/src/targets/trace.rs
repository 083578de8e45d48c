//! Contents of a guest's rings, and traces of other tracers.

use std::sync::OnceLock;

use fastrand::Rng;
use glass_profiler_core::model::Profile;
use glass_profiler_core::recording::Recording;
use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::trace::path::{Index, Path};
use glass_profiler_core::trace::raw::{ClockPoint, RawTrace, Words};
use glass_profiler_core::trace::raw::{RawChunk, RawRing};
use glass_profiler_core::trace::{build, example};
use glass_profiler_core::words::{Describer, Names};
use glass_profiler_export::mirage;
use glass_profiler_report::trace::{Settings, View};

use super::Target;
use crate::mutate;

/// A record: the ring, a prefix of the event, six unused bytes, the event.
const RECORD_BYTES: usize = 40;
const EVENTS_MAX: usize = 600;
const RINGS: usize = 4;

/// Bounds of the counts of a trace, and its references.
fn check(trace: &Trace, events: usize) {
    assert!(trace.event_count <= events as u64);
    for (what, count) in [
        ("polls", trace.polls.len()),
        ("waits", trace.waits.len()),
        ("wakes", trace.wakes.len()),
        ("requests", trace.requests.len()),
        ("spans", trace.spans.len()),
        ("calls", trace.calls.len()),
        ("segments", trace.segments.len()),
        ("messages", trace.messages.len()),
    ] {
        // An event may end one item and start another; items open at the start have no event of their own.
        assert!(count <= 2 * events + RINGS, "{count} {what} of {events} events");
    }
    assert!(trace.polls.iter().all(|poll| poll.start_ns <= poll.end_ns && (poll.task as usize) < trace.tasks.len()));
    assert!(trace.calls.iter().all(|call| call.start_ns <= call.end_ns));
    assert!(trace.waits.iter().all(|wait| wait.start_ns <= wait.end_ns && (wait.task as usize) < trace.tasks.len()));
}

/// Shows a trace in every view.
fn show(raw: RawTrace, trace: &Trace) {
    for view in View::ALL {
        let _ = glass_profiler_report::trace::text(trace, view, &Settings::default());
    }
    for span in ["upload", "upload#1", "upload#median"] {
        let settings = Settings { span: Some(span.to_owned()), ..Settings::default() };
        let _ = glass_profiler_report::trace::text(trace, View::Path, &settings);
    }
    let index = Index::new(trace);
    for span in 0..(trace.spans.len() as u32).min(20) {
        let Some(path) = Path::find(trace, &index, span) else { continue };
        let end_ns = path.parts.iter().fold(path.start_ns, |at, part| {
            assert!(part.start_ns == at && part.end_ns >= at, "a path has no gaps");
            part.end_ns
        });
        assert_eq!(end_ns, path.end_ns, "a path is the whole span");
    }
    assert!(glass_profiler_report::trace_html(&Profile::default(), trace).ends_with("</html>\n"));
    let recording = Recording { trace: raw, ..Recording::default() };
    let mut output = Vec::new();
    for format in [glass_profiler_export::Format::Chrome, glass_profiler_export::Format::Perfetto] {
        glass_profiler_export::write(format, &recording, &[], glass_profiler_export::Options::default(), &mut output)
            .expect("memory takes all");
    }
}

/// Events as copied from rings: any words in any order, with gaps, and any clock.
pub struct Rings;

fn example() -> &'static RawTrace {
    static EXAMPLE: OnceLock<RawTrace> = OnceLock::new();
    EXAMPLE.get_or_init(|| example::queue(500, 3))
}

fn record(ring: usize, before: u8, words: &Words) -> Vec<u8> {
    let head = [ring as u8, before, 0, 0, 0, 0, 0, 0];
    head.into_iter().chain(words.iter().flat_map(|word| word.to_le_bytes())).collect()
}

struct Message<'a>(&'a RawTrace);

impl Names for Message<'_> {
    fn name(&self, number: u32) -> Option<&str> {
        self.0.names.get(number as usize).map(String::as_str)
    }

    fn function(&self, _number: u32) -> Option<&str> {
        None
    }
}

impl Target for Rings {
    fn name(&self) -> &'static str {
        "rings"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let of = |events: usize, seed: u64| {
            let mut bytes = Vec::new();
            let trace = example::queue(events, seed);
            for (index, ring) in trace.rings.iter().enumerate() {
                bytes.extend(
                    ring.chunks
                        .iter()
                        .flat_map(|chunk| &chunk.events)
                        .take(events)
                        .flat_map(|event| record(index, 0, event)),
                );
            }
            bytes
        };
        vec![of(60, 1), of(200, 2), of(250, 3), of(300, 9)]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..8) {
            0 => mutate::plain(bytes, corpus, rng),
            1 => {
                // A kind that must not occur here.
                let count = bytes.len() / RECORD_BYTES;
                if count > 0 {
                    let at = RECORD_BYTES * rng.usize(..count);
                    bytes[at + 16] = rng.u8(..112);
                }
            }
            _ => mutate::words(bytes, 0, RECORD_BYTES, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        RECORD_BYTES * EVENTS_MAX
    }

    fn run(&self, input: &[u8]) {
        let known = example();
        let mut raw = RawTrace {
            rings: (0..RINGS).map(|ring| RawRing { name: format!("core {ring}"), chunks: Vec::new() }).collect(),
            names: known.names.clone(),
            clock: known.clock.clone(),
            functions: known.functions.clone(),
            names_lost: 0,
            rings_lost: 0,
        };
        let mut next = [0u64; RINGS];
        let (records, _) = input.as_chunks::<RECORD_BYTES>();
        let mut describer = Describer::default();
        for record in records {
            let mut words = record[8..].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            let words: Words = std::array::from_fn(|_| words.next().unwrap_or(0));
            let ring = usize::from(record[0]) % RINGS;
            if record[1] & 0xc0 == 0xc0 {
                let [ticks, time_ns, ticks_per_second, error_ns] = words;
                raw.clock.push(ClockPoint { ticks, time_ns, ticks_per_second, error_ns });
                continue;
            }
            next[ring] += u64::from(record[1]);
            let chunks = &mut raw.rings[ring].chunks;
            if record[1] > 0 || chunks.is_empty() {
                chunks.push(RawChunk { first: next[ring], events: Vec::new() });
            }
            if let Some(chunk) = chunks.last_mut() {
                chunk.events.push(words);
            }
            next[ring] += 1;
            let event = glass_formats::trace::Event::from_words(words);
            describer.push(ring as u32, &event, &Message(known), &mut |_| {});
        }
        (0..RINGS as u32).for_each(|ring| describer.finish(ring, &Message(known), &mut |_| {}));
        let trace = build(&raw);
        check(&trace, records.len());
        show(raw, &trace);
    }
}

/// Files of mirage-profile, in the Common Trace Format.
pub struct Mirage;

/// A packet of 512 bytes: magic number and UUID, its bits, its number, the bits in use, the events.
fn packet(number: u16, events: &[u8]) -> Vec<u8> {
    const PACKET_BYTES: usize = 512;
    let mut bytes = 0xc1fc_1fc1u32.to_le_bytes().to_vec();
    bytes.extend(0x0588_3b8d_521a_487b_b397_456a_b150_680cu128.to_be_bytes());
    bytes.extend((PACKET_BYTES as u32 * 8).to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(((30 + events.len() as u32) * 8).to_le_bytes());
    bytes.extend(events);
    bytes.resize(PACKET_BYTES, 0xee);
    bytes
}

fn event(time_ns: u64, operation: u8, words: &[u64], rest: &[u8]) -> Vec<u8> {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    time_ns.to_le_bytes().into_iter().chain([operation]).chain(words).chain(rest.iter().copied()).collect()
}

impl Target for Mirage {
    fn name(&self) -> &'static str {
        "mirage"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let story = |start: u64| {
            [
                event(start, 7, &[1], &[]),
                event(start + 10, 0, &[1, 2], &[1]),
                event(start + 11, 5, &[2], b"packet\0"),
                event(start + 20, 0, &[1, 3], &[2]),
                event(start + 30, 10, &[3, 2], &[]),
                event(start + 50, 7, &[u64::MAX], &[]),
                event(start + 60, 9, &[4, 3], &[]),
                event(start + 70, 2, &[4, 2], &[]),
                event(start + 80, 12, &[3, 2], &[]),
                event(start + 90, 13, &[3, 4], &[]),
                event(start + 100, 1, &[3, 2], &[]),
                event(start + 110, 11, &[3, 7], b"queue\0"),
                event(start + 120, 6, &[3, 5], b"queue\0"),
                event(start + 200, 8, &[100], &[]),
                event(start + 210, 4, &[3, 1], &[]),
                event(start + 220, 3, &[3, 3], b"Failure(\"no route\")\0"),
            ]
            .concat()
        };
        let whole: Vec<u8> =
            (0..4).flat_map(|index| packet(index, &story(1_000_000 + u64::from(index) * 1_000))).collect();
        let turned = [&whole[1024..], &whole[..1024]].concat();
        vec![packet(u16::MAX, &story(5)), whole, turned]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..4) {
            0 => {
                let start = 512 * rng.usize(..=bytes.len() / 512);
                mutate::fields(bytes, &[(start + 20, 4), (start + 24, 2), (start + 26, 4)], rng);
            }
            1 if bytes.len() > 30 => {
                let at = rng.usize(30..bytes.len());
                mutate::fields(bytes, &[(at, 1), (at, 8)], rng);
            }
            _ => mutate::plain(bytes, corpus, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        16 << 10
    }

    fn run(&self, input: &[u8]) {
        let Some(imported) = mirage::import(input) else { return };
        assert!(imported.events <= input.len() as u64 / 17);
        let mut raw = RawTrace::default();
        for piece in imported.pieces {
            assert!(raw.add(piece), "the import is a trace");
        }
        let trace = build(&raw);
        show(raw, &trace);
    }
}
