//! Imports of files of mirage-profile, generated from the description of their format: whole, in another
//! order, cut and damaged.

use glass_formats::trace::{Event, Kind};
use glass_profiler_core::trace::build;
use glass_profiler_core::trace::model::{Cause, Trace};
use glass_profiler_core::trace::raw::{Piece, RawTrace};
use glass_profiler_export::mirage::{Imported, import};
use proptest::prelude::*;

const HEADER: usize = 30;
/// The number that stands for no running thread.
const NONE: u64 = u64::MAX;

/// Writes a file as mirage-profile does: packets of one size, each with its number.
struct File {
    packet_bytes: usize,
    packets: Vec<Vec<u8>>,
    first_count: u16,
}

impl File {
    fn new(packet_bytes: usize, first_count: u16) -> File {
        File { packet_bytes, packets: vec![Vec::new()], first_count }
    }

    fn event(&mut self, time: u64, op: u8, words: &[u64], rest: &[u8]) -> &mut File {
        let mut event = time.to_le_bytes().to_vec();
        event.push(op);
        words.iter().for_each(|word| event.extend(word.to_le_bytes()));
        event.extend(rest);
        if self.packets.last().unwrap().len() + event.len() > self.packet_bytes - HEADER {
            self.packets.push(Vec::new());
        }
        self.packets.last_mut().unwrap().extend(event);
        self
    }

    fn text(&mut self, time: u64, op: u8, words: &[u64], text: &str) -> &mut File {
        let zero_ended: Vec<u8> = text.bytes().chain([0]).collect();
        self.event(time, op, words, &zero_ended)
    }

    fn packet(&self, index: usize) -> Vec<u8> {
        let body = &self.packets[index];
        let mut bytes = 0xc1fc_1fc1u32.to_le_bytes().to_vec();
        bytes.extend(0x0588_3b8d_521a_487b_b397_456a_b150_680cu128.to_be_bytes());
        bytes.extend((self.packet_bytes as u32 * 8).to_le_bytes());
        bytes.extend(self.first_count.wrapping_add(index as u16).to_le_bytes());
        bytes.extend(((HEADER + body.len()) as u32 * 8).to_le_bytes());
        bytes.extend(body);
        bytes.resize(self.packet_bytes, 0xee);
        bytes
    }

    /// The packets in this order, and an unused one.
    fn bytes(&self, order: &[usize]) -> Vec<u8> {
        let mut bytes: Vec<u8> = order.iter().flat_map(|index| self.packet(*index)).collect();
        let mut unused = self.packet(0);
        unused[26..30].copy_from_slice(&(HEADER as u32 * 8).to_le_bytes());
        bytes.extend(unused);
        bytes
    }

    fn all(&self) -> Vec<u8> {
        self.bytes(&(0..self.packets.len()).collect::<Vec<_>>())
    }
}

/// A main thread (1) that makes a promise (2), and a thread (3) that waits for it; an event source (4) fulfils it.
fn story(file: &mut File) {
    const START: u64 = 1_000_000_000_000;
    file.event(START, 7, &[1], &[]);
    file.event(START + 10, 0, &[1, 2], &[1]).text(START + 11, 5, &[2], "packet");
    file.event(START + 20, 0, &[1, 3], &[2]).text(START + 21, 5, &[3], "handler");
    file.event(START + 30, 0, &[NONE, 4], &[0]).text(START + 31, 5, &[4], "network");
    file.event(START + 50, 7, &[NONE], &[]);
    file.event(START + 1_000, 7, &[4], &[]);
    file.event(START + 1_100, 2, &[4, 2], &[]);
    file.event(START + 1_200, 1, &[3, 2], &[]);
    file.text(START + 1_210, 11, &[3, 7], "queue");
    file.text(START + 1_220, 6, &[3, 5], "queue");
    file.event(START + 1_500, 8, &[100], &[]);
    file.text(START + 1_600, 3, &[3, 3], "Failure(\"no route\")");
    file.event(START + 1_700, 7, &[NONE], &[]);
}

fn trace_of(imported: &Imported) -> Trace {
    let mut raw = RawTrace::default();
    for piece in &imported.pieces {
        assert!(raw.add(piece.clone()), "{piece:?}");
    }
    build(&raw)
}

#[test]
fn threads_become_tasks() {
    let mut file = File::new(4096, 1);
    story(&mut file);
    let imported = import(&file.all()).unwrap();
    assert!(imported.warnings.is_empty(), "{:?}", imported.warnings);
    assert_eq!((imported.events, imported.duration_ns), (16, 1_700));
    let trace = trace_of(&imported);
    let task = |name: &str| {
        let index = trace.tasks.iter().position(|task| trace.name(task.name) == name);
        index.unwrap_or_else(|| panic!("no {name}: {:?} {:?}", trace.tasks, trace.names)) as u32
    };
    let (handler, packet, network) = (task("handler"), task("packet"), task("network"));
    let parent = trace.tasks[handler as usize].parent.expect("it has a parent");
    assert_eq!(trace.tasks[parent as usize].number, 1);
    // The handler waits for the packet from its start, is woken by the network's thread, and fails.
    let wait = trace.waits.iter().find(|wait| wait.task == handler && wait.reason_count > 0).expect("a wait");
    assert_eq!((wait.start_ns, wait.woken_ns, wait.end_ns), (20, Some(1_100), 1_200));
    assert_eq!(trace.name(trace.reasons[wait.first_reason as usize].name), "packet");
    assert_eq!(trace.wakes[wait.wake.unwrap() as usize].cause, Cause::Task(network));
    assert_eq!(trace.tasks[handler as usize].ended_ns, Some(1_700));
    assert_eq!(trace.tasks[packet as usize].ended_ns, Some(1_100));
    let polls: Vec<(u64, u64)> =
        trace.polls.iter().filter(|poll| poll.task == network).map(|poll| (poll.start_ns, poll.end_ns)).collect();
    assert_eq!(polls, [(1_000, 1_200)]);
    assert_eq!(trace.idles[0].interval.start_ns..trace.idles[0].interval.end_ns, 50..1_000);
    assert_eq!(trace.counters.len(), 1);
    assert_eq!(trace.counters[0].points, [(1_210, 7), (1_220, 12)]);
    let collection = &trace.spans[0];
    assert_eq!(
        (trace.name(collection.name), collection.start_ns, collection.end_ns),
        ("garbage collection", 1_400, Some(1_500))
    );
    let texts: Vec<&str> = trace.messages.iter().map(|message| message.text.as_str()).collect();
    assert!(texts.iter().any(|text| text.ends_with("fails: Failure(\"no route\")")), "{texts:?}");
}

#[test]
fn the_order_of_packets_is_that_of_time() {
    let mut file = File::new(160, u16::MAX);
    story(&mut file);
    assert!(file.packets.len() >= 4, "{}", file.packets.len());
    let whole = import(&file.all()).unwrap();
    let mut order: Vec<usize> = (0..file.packets.len()).collect();
    order.rotate_left(2);
    assert_eq!(import(&file.bytes(&order)).unwrap(), whole);
    assert!(whole.warnings.is_empty(), "numbers that wrap are no loss: {:?}", whole.warnings);
}

#[test]
fn what_is_missing_is_told_and_the_rest_is_used() {
    let mut file = File::new(160, 1);
    story(&mut file);
    let whole = import(&file.all()).unwrap().events;
    let order: Vec<usize> = (0..file.packets.len()).filter(|index| *index != 2).collect();
    let without = import(&file.bytes(&order)).unwrap();
    assert!(without.warnings.iter().any(|text| text.starts_with("1 packets are missing")), "{:?}", without.warnings);
    assert!(without.events < whole);
    let losses = trace_of(&without).losses;
    assert_eq!(losses.iter().map(|loss| loss.events).sum::<u64>(), 1);

    let mut cut = file.all();
    cut.truncate(160 + 50);
    let cut = import(&cut).unwrap();
    assert!(cut.warnings.iter().any(|text| text.contains("cut off within packet 2")), "{:?}", cut.warnings);
    assert!(cut.events > 0 && cut.events < whole);

    // An unknown operation ends its packet only; a broken header costs its packet.
    let mut damaged = file.all();
    damaged[160 + HEADER + 8] = 77;
    damaged[320] = 0;
    let damaged = import(&damaged).unwrap();
    assert!(damaged.warnings.iter().any(|text| text.starts_with("packet 2: 0 events")), "{:?}", damaged.warnings);
    assert!(
        damaged.warnings.iter().any(|text| text.contains("160 bytes of the file are in no packet")),
        "{:?}",
        damaged.warnings
    );
    assert!(damaged.events > 0);
    assert_eq!(import(b"no such thing"), None);
    assert_eq!(import(&[]), None);
}

#[test]
fn every_piece_fits_into_a_trace() {
    let mut file = File::new(1 << 16, 0);
    for index in 0..20_000u64 {
        let time = 1_000 + index * 100;
        file.event(time, 0, &[index, index + 1], &[2]).text(time + 10, 5, &[index + 1], &format!("thread {index}"));
        file.event(time + 20, 7, &[index + 1], &[]);
    }
    let imported = import(&file.all()).unwrap();
    let spawns = imported.pieces.iter().map(|piece| match piece {
        Piece::Chunk { events, .. } => {
            events.iter().filter(|words| Event::from_words(**words).kind == Kind::TaskSpawn as u16).count()
        }
        _ => 0,
    });
    assert_eq!(spawns.sum::<usize>(), 20_000);
    assert_eq!(trace_of(&imported).tasks.len(), 20_001);
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(changes in prop::collection::vec((0usize..2_000, any::<u8>()), 0..40), length in 0usize..2_000) {
        let mut file = File::new(160, 1);
        story(&mut file);
        let mut bytes = file.all();
        for (place, value) in changes {
            let place = place % bytes.len();
            bytes[place] = value;
        }
        bytes.truncate(length);
        if let Some(imported) = import(&bytes) {
            trace_of(&imported);
        }
    }
}
