//! [`Blk`] against a back end that is correct, slow, or wrong in any way.

use crate::blk::{Blk, BlkLimits, without_bus};
use crate::grants::Grants;
use crate::page::{Frames, IdentityFrames, PAGE_BYTES, SharedPages, SmallNumbers};
use crate::ring::RING_HEADER_BYTES;
use crate::{Events, blk_wire as wire};
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use glass_api::{BlockError, BlockInfo, Buf};
use glass_drivers_device::{BlockDevice, Request};
use proptest::prelude::*;

const DISK_BYTES: usize = 4 << 20;
const ENTRIES: u32 = 32;

impl Events for &Cell<u32> {
    fn notify(&self, port: u32) {
        self.set(self.get() + port);
    }
}

fn limits(indirect_segments: u64) -> BlkLimits {
    let info = BlockInfo { sector_bytes: 512, size_bytes: DISK_BYTES as u64, read_only: false };
    BlkLimits { info, indirect_segments, has_flush: true, has_barrier: false }
}

/// A back end with a disk. It reaches the front end's pages by the grants that requests name.
struct Back {
    ring: SharedPages,
    table: SharedPages,
    disk: Vec<u8>,
    consumed: u32,
    /// Answers that were not given yet.
    answers: Vec<[u8; wire::RESPONSE_BYTES]>,
    /// Operations and their bytes, in order.
    seen: Vec<(u8, usize)>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Back {
    /// The page of a grant: the front end's memory, whose addresses the test's frames have lost.
    fn page(blk: &Blk<&Cell<u32>>, reference: u32) -> (SharedPages, usize) {
        blk.granted(reference).expect("a request names a page that is granted")
    }

    /// Takes all requests, and does them.
    fn work(&mut self, blk: &Blk<&Cell<u32>>) {
        let produced = self.ring.word_u32(0).load(Ordering::Acquire);
        while self.consumed != produced {
            let at = RING_HEADER_BYTES + (self.consumed % ENTRIES) as usize * wire::ENTRY_BYTES;
            let mut request = [0; wire::ENTRY_BYTES];
            self.ring.read(at, &mut request);
            self.consumed = self.consumed.wrapping_add(1);
            self.handle(blk, &request);
        }
        self.ring.word_u32(4).store(self.consumed.wrapping_add(1), Ordering::Release);
    }

    fn handle(&mut self, blk: &Blk<&Cell<u32>>, request: &[u8; wire::ENTRY_BYTES]) {
        let (operation, segments) = if request[0] == 6 {
            let count = usize::from(u16::from_le_bytes([request[2], request[3]]));
            let (pages, page) = Back::page(blk, word(request, 28));
            let mut segments = vec![0; count * wire::SEGMENT_BYTES];
            pages.read(page * PAGE_BYTES, &mut segments);
            (request[1], segments)
        } else {
            (request[0], request[24..24 + usize::from(request[1]) * wire::SEGMENT_BYTES].to_vec())
        };
        let mut place = u64::from_le_bytes(request[16..24].try_into().unwrap()) as usize * 512;
        let begin = place;
        for segment in segments.chunks_exact(wire::SEGMENT_BYTES) {
            let (pages, page) = Back::page(blk, word(segment, 0));
            let (first, last) = (usize::from(segment[4]) * 512, (usize::from(segment[5]) + 1) * 512);
            assert!(first < last && last <= PAGE_BYTES);
            let (offset, range) = (page * PAGE_BYTES + first, place..place + last - first);
            match operation {
                0 => pages.write(offset, &self.disk[range]),
                1 => pages.read(offset, &mut self.disk[range]),
                other => panic!("operation {other} with segments"),
            }
            place += last - first;
        }
        self.seen.push((operation, place - begin));
        let mut answer = [0; wire::RESPONSE_BYTES];
        answer[..8].copy_from_slice(&request[8..16]);
        answer[8] = operation;
        self.answers.push(answer);
    }

    /// Gives an answer.
    fn answer(&mut self, answer: &[u8; wire::RESPONSE_BYTES]) {
        let produced = self.ring.word_u32(8).load(Ordering::Relaxed);
        self.ring.write(RING_HEADER_BYTES + (produced % ENTRIES) as usize * wire::ENTRY_BYTES, answer);
        self.ring.word_u32(8).store(produced.wrapping_add(1), Ordering::Release);
    }

    fn answer_all(&mut self) {
        for answer in core::mem::take(&mut self.answers) {
            self.answer(&answer);
        }
    }
}

fn world(limits: BlkLimits, pages: usize, events: &Cell<u32>) -> (Blk<&Cell<u32>>, Back) {
    let (ring, table) = (SmallNumbers::default().allocate(1).unwrap(), IdentityFrames.allocate(32).unwrap());
    let grants = Grants::new(table.clone());
    let blk = without_bus(ring.clone(), &grants, limits, events, pages);
    let disk = (0..DISK_BYTES).map(|at| (at / 512 * 7 + at) as u8).collect();
    (blk, Back { ring, table, disk, consumed: 0, answers: Vec::new(), seen: Vec::new() })
}

type Ended = Vec<(usize, Result<(), BlockError>, Option<Buf>)>;

fn poll(blk: &mut Blk<&Cell<u32>>) -> Ended {
    let mut ended = Vec::new();
    while blk.poll_one(&mut |id, result, buf| ended.push((id.index(), result, buf))) > 0 {}
    ended
}

fn run(blk: &mut Blk<&Cell<u32>>, back: &mut Back) -> Ended {
    let mut all = Vec::new();
    for _ in 0..10_000 {
        let seen = back.seen.len();
        blk.kick();
        back.work(blk);
        back.answer_all();
        all.extend(poll(blk));
        if back.seen.len() == seen && !blk.arm() {
            return all;
        }
    }
    panic!("it does not end");
}

#[test]
fn requests_of_any_length_reach_the_disk() {
    for (indirect, pages, piece) in [(0, 256, 11), (256, 256, 256), (32, 256, 32), (256, 3, 3)] {
        let events = Cell::new(0);
        let (mut blk, mut back) = world(limits(indirect), pages, &events);
        assert_eq!(blk.piece_bytes_max(), piece * PAGE_BYTES);
        for bytes in [512, 4096, 4608, 45_056, 45_568, 300 * 512, 2 << 20] {
            let data: Vec<u8> = (0..bytes).map(|at| (at * 3 + at / 4096) as u8).collect();
            blk.submit(Request::Write { offset: 1024, buf: Buf::copy_of(&data).unwrap() }).unwrap();
            let ended = run(&mut blk, &mut back);
            assert!(matches!(ended[..], [(_, Ok(()), Some(_))]) && back.disk[1024..1024 + bytes] == data[..]);
            blk.submit(Request::Read { offset: 512, buf: Buf::zeroed(bytes).unwrap() }).unwrap();
            let ended = run(&mut blk, &mut back);
            assert!(ended[0].2.as_deref() == Some(&back.disk[512..512 + bytes]), "{bytes} bytes in pieces of {piece}");
        }
        let longest = back.seen.iter().map(|(_, bytes)| *bytes).max();
        assert_eq!(longest, Some((piece * PAGE_BYTES).min(2 << 20)));
        assert!(events.get() > 0 && blk.violation().is_none() && back.table.bytes() > 0);
    }
}

#[test]
fn a_long_request_lets_a_short_one_pass_and_a_flush_is_its_own() {
    let events = Cell::new(0);
    let (mut blk, mut back) = world(limits(256), 1, &events);
    blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(200 * PAGE_BYTES).unwrap() }).unwrap();
    let short = blk.submit(Request::Read { offset: 4096, buf: Buf::zeroed(512).unwrap() }).unwrap();
    blk.submit(Request::Flush).unwrap();
    let ended = run(&mut blk, &mut back);
    assert_eq!(ended[0].0, short.index());
    assert_eq!(back.seen.iter().filter(|(operation, _)| *operation == 3).count(), 1);
    assert_eq!((ended.len(), ended.iter().all(|(_, result, _)| result.is_ok())), (3, true));
}

/// All pieces that were published are answered before one request is complete: the others are published although no request ends, which
/// is when the core sleeps.
#[test]
fn pieces_that_follow_answers_reach_the_back_end_when_no_request_has_ended() {
    let events = Cell::new(0);
    let (mut blk, mut back) = world(limits(16), 2, &events);
    let requests = (ENTRIES / 2) as usize;
    for number in 0..requests {
        // Four pieces: the first two of each fill the ring.
        let buf = Buf::copy_of(&[number as u8; 4 * 2 * PAGE_BYTES]).unwrap();
        blk.submit(Request::Write { offset: (number * 8 * PAGE_BYTES) as u64, buf }).unwrap();
    }
    blk.kick();
    let mut ended = 0;
    for round in 0.. {
        assert!(round < 10, "{ended} of {requests} requests have ended, and no piece is published");
        back.work(&blk);
        back.answer_all();
        ended += poll(&mut blk).len();
        if ended == requests {
            break;
        }
    }
    assert!(events.get() > 0);
}

#[test]
fn without_a_request_to_flush_there_is_nothing_to_flush() {
    let events = Cell::new(0);
    let (mut blk, mut back) = world(BlkLimits { has_flush: false, ..limits(0) }, 1, &events);
    blk.submit(Request::Flush).unwrap();
    assert!(matches!(run(&mut blk, &mut back)[..], [(_, Ok(()), None)]) && back.seen.is_empty());
    let (mut blk, mut back) = world(BlkLimits { has_flush: false, has_barrier: true, ..limits(0) }, 1, &events);
    blk.submit(Request::Flush).unwrap();
    assert_eq!((run(&mut blk, &mut back).len(), &back.seen[..]), (1, &[(2, 0)][..]));
}

#[test]
fn what_cannot_succeed_is_refused() {
    let events = Cell::new(0);
    let (mut blk, _) = world(limits(0), 1, &events);
    let past_the_end = Request::Read { offset: DISK_BYTES as u64, buf: Buf::zeroed(512).unwrap() };
    assert!(blk.submit(past_the_end).is_err());
    let buf = Buf::zeroed(512).unwrap();
    assert!(blk.submit(Request::Read { offset: 0, buf: buf.clone() }).is_err(), "shared");
    let read_only = BlkLimits { info: BlockInfo { read_only: true, ..limits(0).info }, ..limits(0) };
    let (mut blk, _) = world(read_only, 1, &events);
    assert!(blk.submit(Request::Write { offset: 0, buf }).is_err() && blk.submit(Request::Flush).is_err());
    let ids: Vec<_> =
        (0..128).map_while(|_| blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(512).unwrap() }).ok()).collect();
    assert!(ids.len() == 128 && !blk.has_space());
}

#[test]
fn an_error_ends_a_request_once() {
    let events = Cell::new(0);
    let (mut blk, mut back) = world(limits(0), 1, &events);
    blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(100 * PAGE_BYTES).unwrap() }).unwrap();
    blk.kick();
    back.work(&blk);
    let mut answers = core::mem::take(&mut back.answers);
    answers[3][10..12].copy_from_slice(&(-1_i16).to_le_bytes());
    answers.iter().for_each(|answer| back.answer(answer));
    let ended = run(&mut blk, &mut back);
    assert!(matches!(ended[..], [(_, Err(BlockError::Device(-1)), Some(_))]));
    assert!(back.seen.len() < 100, "what is left of it is not sent");
    blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(512).unwrap() }).unwrap();
    assert_eq!(run(&mut blk, &mut back).len(), 1);
}

#[test]
fn a_back_end_that_lies_or_closes_fails_all_requests_at_once() {
    type Violate = fn(&mut Back, &Blk<&Cell<u32>>);
    let violations: [Violate; 4] = [
        // An entry that does not exist, one that has no request, one twice, and more answers than requests.
        |back, _| back.answer(&[0xff; 16]),
        |back, _| back.answer(&[31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        |back, _| {
            (0..2).for_each(|_| {
                let first = back.answers[0];
                back.answer(&first)
            })
        },
        |back, _| back.ring.word_u32(8).store(1000, Ordering::Relaxed),
    ];
    for violation in violations.into_iter().map(Some).chain([None]) {
        let events = Cell::new(0);
        let (mut blk, mut back) = world(limits(0), 1, &events);
        for _ in 0..10 {
            blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(3 * PAGE_BYTES).unwrap() }).unwrap();
        }
        // 30 pieces in 32 entries: the last two are free.
        blk.kick();
        back.work(&blk);
        match violation {
            Some(violation) => violation(&mut back, &blk),
            None => blk.closed().set(true),
        }
        let ended = poll(&mut blk);
        assert_eq!(ended.len(), 10);
        assert!(ended.iter().all(|(_, result, buf)| matches!(result, Err(BlockError::Broken(_))) && buf.is_some()));
        assert!(blk.violation().is_some() && !blk.arm() && blk.restart().is_err());
        assert!(blk.submit(Request::Flush).is_err() && poll(&mut blk).is_empty());
    }
}

proptest! {
    #[test]
    fn no_answers_and_no_indices_do_harm(
        steps in proptest::collection::vec((0_u8..6, any::<u32>(), proptest::collection::vec(any::<u8>(), 16)), 1..60),
    ) {
        let events = Cell::new(0);
        let (mut blk, mut back) = world(limits(64), 2, &events);
        let (mut taken, mut ended, mut is_lost) = (0, 0, false);
        for (step, number, bytes) in steps {
            match step {
                0 => {
                    let length = (number as usize % 40 + 1) * 512;
                    let request = Request::Read { offset: 0, buf: Buf::zeroed(length).unwrap() };
                    taken += usize::from(blk.submit(request).is_ok());
                }
                1 => {
                    blk.kick();
                    if !is_lost {
                        back.work(&blk);
                    }
                }
                2 => back.answer_all(),
                3 => {
                    let mut answer: [u8; 16] = bytes.try_into().unwrap();
                    answer[..8].copy_from_slice(&u64::from(number % 40).to_le_bytes());
                    // The answer may be written over a request that the back end has not read.
                    is_lost |= back.consumed != back.ring.word_u32(0).load(Ordering::Acquire);
                    back.answer(&answer);
                }
                4 => back.ring.word_u32(number as usize % 4 * 4).store(number, Ordering::Relaxed),
                _ => back.ring.write(RING_HEADER_BYTES + number as usize % 3000, &bytes),
            }
            // What it has written over may be requests.
            is_lost |= step > 3;
            ended += poll(&mut blk).len();
        }
        blk.closed().set(true);
        ended += poll(&mut blk).len();
        prop_assert_eq!(taken, ended, "each request ends once");
    }
}
