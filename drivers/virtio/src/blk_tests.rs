//! The disk driver against a disk in memory, correct or malfunctioning, with and without tasks.

use crate::blk::Blk;
use crate::fake::{BounceDma, Chain, DAMAGED, Fake, GuardedDma, RecordingDma, State};
use crate::transport::{device, feature, status};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec;
use alloc::vec::Vec;
use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use glass_api::{Block, BlockError, Buf};
use glass_drivers_device::{BlockDevice, Disk, Driver, Request, RequestId, SetupError, SubmitError, Users, Violation};
use proptest::prelude::*;

pub const SECTORS: u64 = 64;
pub const ALL: u64 = feature::INDIRECT | feature::EVENT_IDX | feature::BLK_FLUSH | feature::BLK_SEG_MAX;

/// The configuration: capacity, size_max, seg_max, geometry, blk_size.
pub fn config(size_max: u32, seg_max: u32, blk_size: u32) -> Vec<u8> {
    let mut bytes = SECTORS.to_le_bytes().to_vec();
    bytes.extend(size_max.to_le_bytes());
    bytes.extend(seg_max.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(blk_size.to_le_bytes());
    bytes
}

/// The device's side: a disk in memory and the requests that it has not answered.
pub struct Platter {
    pub fake: Fake,
    pub bytes: Vec<u8>,
    held: Vec<Chain>,
    flushes: usize,
    longest_segment: u32,
    most_segments: usize,
    /// Requests without data: their kind, first sector and number of sectors.
    pub ranges: Vec<(u32, u64, u32)>,
}

impl Platter {
    pub fn new(features: u64, config: &[u8]) -> (Platter, Blk<Fake, GuardedDma>) {
        let fake = Fake::new(device::BLK, features, config);
        let blk = Blk::new(fake.clone(), GuardedDma).unwrap();
        let bytes = (0..SECTORS * 512).map(|index| (index / 512 + index % 251) as u8).collect();
        (
            Platter {
                fake,
                bytes,
                held: Vec::new(),
                flushes: 0,
                longest_segment: 0,
                most_segments: 0,
                ranges: Vec::new(),
            },
            blk,
        )
    }

    pub fn take(&mut self) {
        while let Some(chain) = self.fake.with(0, |queue| queue.take()) {
            self.held.push(chain);
        }
    }

    /// Executes a held request and answers it. Whether the driver wants an interrupt for that.
    pub fn answer(&mut self, which: usize, status: Option<u8>) -> bool {
        let chain = self.held.swap_remove(which);
        let asked = chain.read();
        let kind = u32::from_le_bytes(asked[..4].try_into().unwrap());
        let start = u64::from_le_bytes(asked[8..16].try_into().unwrap()) as usize * 512;
        let data = &chain.segments[1..chain.segments.len() - 1];
        let length: usize = data.iter().map(|segment| segment.bytes as usize).sum();
        self.longest_segment = data.iter().map(|segment| segment.bytes).fold(self.longest_segment, u32::max);
        self.most_segments = self.most_segments.max(data.len());
        let status = status.unwrap_or(0);
        let mut reply = vec![0; chain.writable_bytes() as usize - 1];
        match kind {
            0 if status == 0 => reply.copy_from_slice(&self.bytes[start..start + length]),
            0 => {}
            1 if status == 0 => self.bytes[start..start + length].copy_from_slice(&asked[16..]),
            1 => {}
            4 => self.flushes += 1,
            11 | 13 => {
                assert_eq!((asked.len(), &asked[28..]), (32, &[0; 4][..]), "one range without flags");
                let sector = u64::from_le_bytes(asked[16..24].try_into().unwrap());
                let sectors = u32::from_le_bytes(asked[24..28].try_into().unwrap());
                self.ranges.push((kind, sector, sectors));
                let range = sector as usize * 512..(sector as usize + sectors as usize) * 512;
                self.bytes[range].fill(if kind == 13 { 0 } else { 0xdd });
            }
            _ => panic!("request of kind {kind}"),
        }
        reply.push(status);
        let written = chain.write(&reply);
        self.fake.with(0, |queue| queue.complete(chain.head, written))
    }

    pub fn answer_all(&mut self) {
        self.take();
        while !self.held.is_empty() {
            self.answer(self.held.len() - 1, None);
        }
    }
}

pub type Outcome = (usize, Result<(), BlockError>, Option<Buf>);

fn poll(blk: &mut Blk<Fake, GuardedDma>) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let count = blk.poll(&mut |id: RequestId, result, buf| outcomes.push((id.index(), result, buf)));
    assert_eq!(count, outcomes.len());
    outcomes
}

/// Answers until nothing is in flight.
pub fn finish(platter: &mut Platter, blk: &mut Blk<Fake, GuardedDma>) -> Vec<Outcome> {
    let mut outcomes = poll(blk);
    loop {
        platter.take();
        if platter.held.is_empty() {
            return outcomes;
        }
        platter.answer_all();
        outcomes.extend(poll(blk));
    }
}

#[test]
fn reads_and_writes_what_is_there() {
    // One piece; many by a short segment; many by few segments; chains instead of tables.
    let small = feature::BLK_SIZE_MAX | feature::BLK_SEG_MAX;
    for (features, config, longest, most) in [
        (ALL, config(0, 126, 512), 16384, 1),
        (ALL | small, config(1024, 126, 512), 1024, 4),
        (ALL | small, config(1500, 2, 512), 1024, 2),
        (small, config(2048, 126, 512), 2048, 4),
        (0, config(0, 0, 512), 16384, 1),
    ] {
        let (mut platter, mut blk) = Platter::new(features, &config);
        let after = platter.bytes[512 + 16384..].to_vec();
        let data: Vec<u8> = (0..16384).map(|index| (index % 241) as u8).collect();
        blk.submit(Request::Write { offset: 512, buf: Buf::copy_of(&data).unwrap() }).unwrap();
        let outcomes = finish(&mut platter, &mut blk);
        assert_eq!((outcomes.len(), outcomes[0].1), (1, Ok(())));
        assert!(platter.bytes[512..512 + 16384] == data[..] && platter.bytes[512 + 16384..] == after);
        blk.submit(Request::Read { offset: 1024, buf: Buf::zeroed(8192).unwrap() }).unwrap();
        let outcomes = finish(&mut platter, &mut blk);
        assert_eq!(outcomes[0].1, Ok(()));
        assert!(outcomes[0].2.as_deref().unwrap() == &data[512..512 + 8192]);
        assert_eq!((platter.longest_segment, platter.most_segments), (longest, most));
    }
}

#[test]
fn a_disk_takes_the_features_that_it_knows() {
    let fake = Fake::new(device::BLK, u64::MAX, &config(4096, 126, 512));
    let blk = Blk::new(fake.clone(), GuardedDma).unwrap();
    let known = feature::BLK_SIZE_MAX | feature::BLK_RO | feature::BLK_BLK_SIZE | feature::VERSION_1 | ALL;
    let ranges = feature::BLK_DISCARD | feature::BLK_WRITE_ZEROES;
    assert_eq!(fake.state().accepted, known | ranges);
    assert!(blk.info().read_only);
}

/// With tables a request takes one descriptor, whatever the number of its segments, so the queue holds as many requests as it can.
#[test]
fn a_long_request_takes_one_descriptor_and_a_table() {
    let fake = Fake::new(device::BLK, ALL | feature::BLK_SIZE_MAX, &config(512, 126, 512));
    let dma = RecordingDma::default();
    let mut blk = Blk::new(fake.clone(), dma.clone()).unwrap();
    // 128 descriptors with their rings, tables of six descriptors, and areas.
    let expected = [(3398, Users::DeviceWrites), (128 * 6 * 16, Users::DeviceReads), (128 * 64, Users::DeviceWrites)];
    assert_eq!(dma.allocated(), expected);
    for _ in 0..128 {
        blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(2048).unwrap() }).unwrap();
        assert_eq!(fake.with(0, |queue| queue.take()).expect("the queue has room").segments.len(), 6);
    }
    assert!(!blk.has_space());
}

#[test]
fn the_last_segment_has_what_is_left() {
    let (Platter { fake, .. }, mut blk) = Platter::new(ALL | feature::BLK_SIZE_MAX, &config(1024, 126, 512));
    blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(5 * 1024 + 512).unwrap() }).unwrap();
    let lengths = || fake.with(0, |queue| queue.take()).unwrap().segments.iter().map(|of| of.bytes).collect::<Vec<_>>();
    // Four segments are a piece, between its header and its status.
    assert_eq!((lengths(), lengths()), (vec![16, 1024, 1024, 1024, 1024, 1], vec![16, 1024, 512, 1]));
}

#[test]
fn a_full_disk_gives_the_request_back() {
    let (_platter, mut blk) = Platter::new(ALL, &config(0, 126, 512));
    while blk.has_space() {
        blk.submit(Request::Flush).unwrap();
    }
    let buf = || Buf::copy_of(&[7; 1024]).unwrap();
    let given_back = |result| match result {
        Err((SubmitError::Full, request)) => request,
        other => panic!("{other:?}"),
    };
    let read = given_back(blk.submit(Request::Read { offset: 512, buf: buf() }));
    assert!(matches!(read, Request::Read { offset: 512, buf } if buf[..] == [7; 1024]));
    let write = given_back(blk.submit(Request::Write { offset: 1024, buf: buf() }));
    assert!(matches!(write, Request::Write { offset: 1024, buf } if buf[..] == [7; 1024]));
    assert!(matches!(given_back(blk.submit(Request::Flush)), Request::Flush));
}

#[test]
fn interrupts_come_only_while_it_is_armed() {
    for features in [ALL, ALL & !feature::EVENT_IDX] {
        let (mut platter, blk) = Platter::new(features, &config(0, 126, 512));
        let mut disk = Disk::new(blk);
        let mut context = Context::from_waker(Waker::noop());
        for is_armed in [true, false, true] {
            let mut read = reads(&disk, 7);
            assert!(read.as_mut().poll(&mut context).is_pending());
            assert!(!disk.arm());
            if !is_armed {
                disk.disarm();
            }
            platter.take();
            assert_eq!(platter.answer(0, None), is_armed, "{features:#x}");
            assert!(disk.poll() && read.as_mut().poll(&mut context).is_ready());
        }
        platter.fake.state().status |= status::NEEDS_RESET;
        disk.acknowledge();
        assert_eq!(platter.fake.state().acknowledged, 1);
        assert!(disk.arm() && disk.violation() == Some(Violation::NeedsReset));
    }
}

#[test]
#[should_panic(expected = "assertion failed: self.session.has_ended()")]
fn a_disk_that_works_is_not_started_again() {
    _ = Platter::new(ALL, &config(0, 126, 512)).1.restart();
}

#[test]
fn a_flush_goes_to_the_device_only_where_there_is_a_cache() {
    for (features, flushes) in [(ALL, 1), (ALL & !feature::BLK_FLUSH, 0)] {
        let (mut platter, mut blk) = Platter::new(features, &config(0, 126, 512));
        blk.submit(Request::Flush).unwrap();
        blk.submit(Request::Read { offset: 512, buf: Buf::zeroed(0).unwrap() }).unwrap();
        assert!(blk.arm(), "an empty read needs no device");
        let outcomes = finish(&mut platter, &mut blk);
        assert!(outcomes.len() == 2 && outcomes.iter().all(|outcome| outcome.1.is_ok()));
        assert_eq!(platter.flushes, flushes);
        assert!(!blk.arm());
    }
}

#[test]
fn impossible_requests_are_refused_with_their_buffer() {
    let (_platter, mut blk) = Platter::new(ALL | feature::BLK_RO | feature::BLK_BLK_SIZE, &config(0, 126, 4096));
    assert!(blk.info().read_only && blk.info().sector_bytes == 4096 && blk.info().size_bytes == 32768);
    let mut refused = |request| match blk.submit(request) {
        Err((SubmitError::Refused(error), _)) => error,
        other => panic!("{other:?}"),
    };
    let buf = Buf::zeroed(4096).unwrap();
    assert!(matches!(refused(Request::Read { offset: 512, buf: buf.clone() }), BlockError::Misaligned { .. }));
    assert!(matches!(refused(Request::Read { offset: 32768, buf: buf.clone() }), BlockError::OutOfRange { .. }));
    assert_eq!(refused(Request::Read { offset: 0, buf: buf.clone() }), BlockError::Shared);
    assert_eq!(refused(Request::Write { offset: 0, buf }), BlockError::ReadOnly);
    assert_eq!(refused(Request::Flush), BlockError::ReadOnly);
}

#[test]
fn impossible_configurations_are_refused() {
    let start = |features, config: &[u8]| Blk::new(Fake::new(device::BLK, features, config), GuardedDma).err();
    let size = ALL | feature::BLK_SIZE_MAX | feature::BLK_BLK_SIZE;
    for (size_max, seg_max, blk_size) in [(511, 1, 512), (4096, 0, 512), (4095, 1, 4096), (4096, 1, 0), (4096, 1, 1000)]
    {
        let error = start(size, &config(size_max, seg_max, blk_size));
        assert!(matches!(error, Some(SetupError::BadConfig(_))), "{size_max} {seg_max} {blk_size}: {error:?}");
    }
    let mut huge = config(0, 1, 512);
    huge[7] = 0xff;
    assert!(matches!(start(ALL, &huge), Some(SetupError::BadConfig(_))));
}

#[test]
fn a_sector_size_that_was_not_agreed_on_does_not_count() {
    let (_platter, blk) = Platter::new(ALL, &config(0, 126, 4096));
    assert_eq!((blk.info().sector_bytes, blk.info().size_bytes), (512, SECTORS * 512));
}

#[test]
fn a_last_sector_that_is_not_whole_is_left_out() {
    for (capacity, blk_size, size_bytes) in [(9u64, 4096, 4096), (16, 4096, 8192), (9, 512, 4608), (7, 4096, 0)] {
        let mut bytes = config(0, 1, blk_size);
        bytes[..8].copy_from_slice(&capacity.to_le_bytes());
        let fake = Fake::new(device::BLK, ALL | feature::BLK_BLK_SIZE, &bytes);
        let info = Blk::new(fake, GuardedDma).unwrap().info();
        assert_eq!((info.size_bytes, info.sector_bytes), (size_bytes, blk_size), "{capacity}");
    }
}

#[test]
fn an_error_of_the_device_ends_a_request_once() {
    let (mut platter, mut blk) = Platter::new(ALL | feature::BLK_SIZE_MAX, &config(512, 1, 512));
    blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(4096).unwrap() }).unwrap();
    platter.take();
    assert_eq!(platter.held.len(), 8, "a piece for each sector");
    platter.answer(3, Some(1));
    assert!(poll(&mut blk).is_empty(), "seven pieces still write to the buffer");
    platter.answer_all();
    let outcomes = poll(&mut blk);
    assert_eq!((outcomes.len(), outcomes[0].1), (1, Err(BlockError::Device(1))));
}

#[test]
fn the_error_of_a_request_holds_up_no_other_one() {
    let features = (ALL | feature::BLK_SIZE_MAX) & !feature::INDIRECT;
    let (mut platter, mut blk) = Platter::new(features, &config(512, 1, 512));
    let [failing, other] =
        [0, 0].map(|offset| blk.submit(Request::Read { offset, buf: Buf::zeroed(64 * 512).unwrap() }).unwrap());
    platter.take();
    assert_eq!(platter.held.len(), 42, "the queue is full of the first one's pieces");
    platter.answer(0, Some(5));
    let mut outcomes = finish(&mut platter, &mut blk);
    outcomes.sort_by_key(|outcome| outcome.0 == other.index());
    assert_eq!((outcomes.len(), outcomes[0].0, outcomes[0].1), (2, failing.index(), Err(BlockError::Device(5))));
    assert!(outcomes[1].1.is_ok() && outcomes[1].2.as_deref().unwrap() == &platter.bytes[..]);
}

#[test]
fn a_long_request_does_not_starve_a_short_one() {
    let features = (ALL | feature::BLK_SIZE_MAX) & !feature::INDIRECT;
    let (mut platter, mut blk) = Platter::new(features, &config(512, 1, 512));
    let long = blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(64 * 512).unwrap() }).unwrap();
    let short = blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(512).unwrap() }).unwrap();
    // The queue is full of the long one's first pieces (3 descriptors each).
    platter.take();
    assert_eq!(platter.held.len(), 42);
    platter.answer(0, None);
    platter.answer(0, None);
    assert!(poll(&mut blk).is_empty());
    platter.take();
    platter.answer(platter.held.len() - 1, None);
    platter.answer(platter.held.len() - 1, None);
    assert_eq!(poll(&mut blk)[0].0, short.index(), "the long one has 20 pieces to send yet");
    let outcomes = finish(&mut platter, &mut blk);
    assert_eq!(outcomes[0].0, long.index());
    assert!(outcomes[0].2.as_deref().unwrap() == &platter.bytes[..]);
}

#[test]
fn one_kick_tells_of_many_requests() {
    let (mut platter, mut blk) = Platter::new(ALL, &config(0, 126, 512));
    for sector in 0..16 {
        blk.submit(Request::Read { offset: sector * 512, buf: Buf::zeroed(512).unwrap() }).unwrap();
    }
    assert_eq!(platter.fake.notifications(), []);
    blk.kick();
    blk.kick();
    assert_eq!(platter.fake.notifications(), [0]);
    assert!(!blk.arm());
    platter.take();
    platter.answer(5, None);
    assert!(blk.arm());
    blk.acknowledge();
    assert_eq!(platter.fake.state().acknowledged, 1);
    assert_eq!(finish(&mut platter, &mut blk).len(), 16);
}

/// Memory that a device may still write to is not freed.
#[test]
fn a_disk_that_is_dropped_is_reset() {
    let (platter, mut blk) = Platter::new(ALL, &config(0, 126, 512));
    blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(512).unwrap() }).unwrap();
    let resets = platter.fake.state().resets;
    drop(blk);
    assert_eq!(platter.fake.state().resets, resets + 1);
}

#[test]
fn a_lie_fails_everything_and_gives_the_buffers_back() {
    for stuck in [false, true] {
        let (platter, mut blk) = Platter::new(ALL, &config(0, 126, 512));
        blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(512).unwrap() }).unwrap();
        blk.submit(Request::Write { offset: 0, buf: Buf::zeroed(1024).unwrap() }).unwrap();
        platter.fake.with(0, |queue| queue.put(77, 0));
        platter.fake.state().stuck = stuck;
        let resets = platter.fake.state().resets;
        let mut outcomes = poll(&mut blk);
        assert_eq!(platter.fake.state().resets, resets + 1);
        assert_eq!(outcomes.len(), 2);
        for (outcome, bytes) in outcomes.iter_mut().zip([512, 1024]) {
            assert!(matches!(outcome.1, Err(BlockError::Broken(_))));
            let buf = outcome.2.as_mut().unwrap();
            // A device that did not reset may still write: that memory is never used again.
            assert_eq!((buf.len(), buf.as_mut().is_none()), (bytes, stuck));
        }
        assert!(poll(&mut blk).is_empty() && !blk.arm());
        let refused = blk.submit(Request::Flush);
        assert!(matches!(refused, Err((SubmitError::Refused(BlockError::Broken(_)), _))));
    }
}

/// Requests before fail, requests after succeed, and handles stay valid.
#[test]
fn a_disk_that_gave_up_is_started_again() {
    let (mut platter, blk) = Platter::new(ALL, &config(0, 126, 512));
    let mut disk = Disk::new(blk);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        let mut failed = reads(&disk, 1);
        assert!(failed.as_mut().poll(&mut context).is_pending());
        platter.fake.with(0, |queue| queue.put(9999, 0));
        disk.poll();
        assert!(disk.violation().is_some());
        disk.restart().unwrap();
        assert!(disk.violation().is_none());
        assert!(matches!(failed.as_mut().poll(&mut context), Poll::Ready(Err(BlockError::Broken(_)))));
        let mut read = reads(&disk, 7);
        assert!(read.as_mut().poll(&mut context).is_pending());
        platter.held.clear();
        platter.answer_all();
        disk.poll();
        assert!(matches!(read.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    }
    // Another disk in its place is not used.
    platter.fake.with(0, |queue| queue.put(9999, 0));
    disk.poll();
    platter.fake.state().config[0] += 1;
    assert!(matches!(disk.restart(), Err(SetupError::BadConfig(_))) && disk.violation().is_some());
    assert!(matches!(reads(&disk, 7).as_mut().poll(&mut context), Poll::Ready(Err(_))));
    assert_eq!(DAMAGED.load(Ordering::SeqCst), 0);
}

/// Not even a chain in a table may have more descriptors than its queue.
#[test]
fn a_chain_is_no_longer_than_its_queue() {
    let longest = |features, queue_size_max| {
        let fake = Fake::new(device::BLK, features, &config(512, 126, 512));
        fake.state().queue_size_max = queue_size_max;
        let mut blk = Blk::new(fake.clone(), GuardedDma).ok()?;
        blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(8192).unwrap() }).unwrap();
        fake.with(0, |queue| Some(queue.take()?.segments.len()))
    };
    let with_tables = ALL | feature::BLK_SIZE_MAX;
    assert_eq!(longest(with_tables, 128), Some(6));
    assert_eq!(longest(with_tables, 4), Some(4));
    assert_eq!(longest(with_tables & !feature::INDIRECT, 4), Some(4));
    assert_eq!(longest(with_tables, 2), None);
}

/// A device gets at memory of the service only while a request is in flight, and what it writes later has no effect.
#[test]
fn buffers_are_lent_for_their_request_only() {
    let fake = Fake::new(device::BLK, ALL, &config(0, 126, 512));
    let dma = BounceDma::default();
    let mut blk = Blk::new(fake.clone(), dma.clone()).unwrap();
    let mut data = Buf::zeroed(512).unwrap();
    data.as_mut().unwrap().fill(3);
    blk.submit(Request::Read { offset: 0, buf: Buf::zeroed(1024).unwrap() }).unwrap();
    blk.submit(Request::Write { offset: 0, buf: data }).unwrap();
    assert_eq!(dma.count(), 2);
    let chains: Vec<Chain> = (0..2).map(|_| fake.with(0, |queue| queue.take()).unwrap()).collect();
    assert_eq!(chains[1].read()[16..], [3; 512]);
    for chain in &chains {
        let length = chain.writable_bytes() as usize - 1;
        let written = chain.write(&[vec![7; length], vec![0]].concat());
        fake.with(0, |queue| queue.complete(chain.head, written));
    }
    let mut bufs = Vec::new();
    blk.poll(&mut |_, result, buf| bufs.push((result, buf.unwrap())));
    assert_eq!(dma.count(), 0);
    assert_eq!(bufs[0].1[..], [7; 1024]);
    assert_eq!((bufs[0].0, bufs[1].0), (Ok(()), Ok(())));
    // Refused, failed or dropped: no mapping is left.
    let shared = bufs.pop().unwrap().1;
    assert!(blk.submit(Request::Write { offset: 1 << 40, buf: shared.clone() }).is_err());
    for _ in 0..blk.requests_max() {
        blk.submit(Request::Write { offset: 0, buf: shared.clone() }).unwrap();
    }
    assert!(matches!(blk.submit(Request::Write { offset: 0, buf: shared.clone() }), Err((SubmitError::Full, _))));
    assert_eq!(dma.count(), blk.requests_max());
    fake.with(0, |queue| queue.put(9999, 0));
    poll_bounced(&mut blk);
    assert_eq!(dma.count(), 0);
    blk.restart().unwrap();
    blk.submit(Request::Write { offset: 0, buf: shared }).unwrap();
    drop(blk);
    assert_eq!(dma.count(), 0);
}

fn poll_bounced(blk: &mut Blk<Fake, BounceDma>) {
    blk.poll(&mut |_, result, _| assert!(matches!(result, Err(BlockError::Broken(_)))));
}

/// A device that has got memory is reset before that is freed, however the start goes wrong.
#[test]
fn a_start_that_fails_half_way_resets_the_device() {
    // The queue's interrupt is refused; then the queue is too short for a request, which shows when it is set up.
    let cases: [fn(&mut State); 2] = [|state| state.refuses_interrupts = true, |state| state.queue_size_max = 2];
    for change in cases {
        let fake = Fake::new(device::BLK, ALL, &config(0, 126, 512));
        change(&mut fake.state());
        assert!(Blk::new(fake.clone(), GuardedDma).is_err());
        let state = fake.state();
        assert_eq!((state.resets, state.queues.len(), state.status), (2, 0, status::FAILED));
    }
}

#[test]
fn a_device_that_gives_up_is_noticed_before_sleeping() {
    let (platter, mut blk) = Platter::new(ALL, &config(0, 126, 512));
    blk.submit(Request::Flush).unwrap();
    platter.fake.state().status |= status::NEEDS_RESET;
    assert!(!blk.arm(), "the status is not read without a reason");
    blk.acknowledge();
    assert!(blk.arm());
    assert!(matches!(poll(&mut blk)[0].1, Err(BlockError::Broken(_))));
    assert!(!blk.arm());
}

#[derive(Debug, Clone)]
enum Step {
    Read { sector: u64, sectors: u64 },
    Write { sector: u64, sectors: u64, fill: u8 },
    Flush,
    Answer { which: usize, failed: bool },
    Poll,
    Violation { id: u32, bytes: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..SECTORS, 0u64..20).prop_map(|(sector, sectors)| Step::Read { sector, sectors }),
        4 => (0..SECTORS, 0u64..20, any::<u8>())
            .prop_map(|(sector, sectors, fill)| Step::Write { sector, sectors, fill }),
        1 => Just(Step::Flush),
        12 => (any::<usize>(), prop::bool::weighted(0.05)).prop_map(|(which, failed)| Step::Answer { which, failed }),
        4 => Just(Step::Poll),
    ]
}

/// Overlapping requests in flight may take effect in any order, so the model lets each sector be
/// touched by one request at a time.
fn run(config: &[u8], features: u64, steps: &[Step], violation_at: Option<(usize, u32, u32)>) {
    let (mut platter, mut blk) = Platter::new(features, config);
    let mut expected = platter.bytes.clone();
    let mut in_flight: Vec<(usize, Note)> = Vec::new();
    let mut busy = vec![false; SECTORS as usize];
    let violation = violation_at.map(|(at, id, bytes)| (at % (steps.len() + 1), Step::Violation { id, bytes }));
    let mut broken = false;
    for index in 0..=steps.len() {
        let violating = violation.iter().filter(|violation| violation.0 == index).map(|violation| &violation.1);
        for step in violating.chain(steps.get(index)) {
            let (sector, sectors, fill) = match *step {
                Step::Read { sector, sectors } => (sector, sectors, None),
                Step::Write { sector, sectors, fill } => (sector, sectors, Some(fill)),
                Step::Flush => {
                    if let Ok(id) = blk.submit(Request::Flush) {
                        in_flight.push((id.index(), Note { sectors: 0..0, fill: None, is_flush: true }));
                    }
                    continue;
                }
                Step::Answer { which, failed } if !broken => {
                    platter.take();
                    if !platter.held.is_empty() {
                        platter.answer(which % platter.held.len(), failed.then_some(1));
                    }
                    continue;
                }
                Step::Answer { .. } => continue,
                Step::Poll => {
                    let outcomes = poll(&mut blk);
                    settle(outcomes, &mut in_flight, &mut expected, &mut busy, &platter);
                    continue;
                }
                Step::Violation { id, bytes } => {
                    broken = true;
                    platter.fake.with(0, |queue| queue.put(id, bytes));
                    continue;
                }
            };
            let range = sector as usize..((sector + sectors).min(SECTORS)) as usize;
            if busy[range.clone()].contains(&true) {
                continue;
            }
            let bytes = range.len() * 512;
            let request = match fill {
                None => Request::Read { offset: sector * 512, buf: Buf::zeroed(bytes).unwrap() },
                Some(fill) => Request::Write { offset: sector * 512, buf: Buf::copy_of(&vec![fill; bytes]).unwrap() },
            };
            if let Ok(id) = blk.submit(request) {
                busy[range.clone()].fill(true);
                in_flight.push((id.index(), Note { sectors: range, fill, is_flush: false }));
            }
        }
    }
    if broken {
        // All that is left comes back; an invalid answer that named a request in flight may not have been detected.
        let outcomes = poll(&mut blk);
        settle(outcomes, &mut in_flight, &mut expected, &mut busy, &platter);
        assert!(blk.violation().is_none() || in_flight.is_empty(), "a buffer was lost");
        return;
    }
    let outcomes = finish(&mut platter, &mut blk);
    settle(outcomes, &mut in_flight, &mut expected, &mut busy, &platter);
    assert!(in_flight.is_empty(), "{in_flight:?} never completed");
}

/// What the model remembers of a request.
#[derive(Debug)]
struct Note {
    sectors: core::ops::Range<usize>,
    fill: Option<u8>,
    is_flush: bool,
}

fn settle(
    outcomes: Vec<Outcome>,
    in_flight: &mut Vec<(usize, Note)>,
    expected: &mut [u8],
    busy: &mut [bool],
    platter: &Platter,
) {
    for (id, result, buf) in outcomes {
        let place = in_flight.iter().position(|request| request.0 == id).expect("completed without being in flight");
        let (_, request) = in_flight.swap_remove(place);
        assert_eq!(request.is_flush, buf.is_none());
        let Some(buf) = buf else { continue };
        let bytes = request.sectors.start * 512..request.sectors.end * 512;
        assert_eq!(buf.len(), bytes.len());
        busy[request.sectors].fill(false);
        match (result, request.fill) {
            (Ok(()), None) => assert!(buf[..] == expected[bytes], "the wrong bytes were read"),
            (Ok(()), Some(fill)) => {
                expected[bytes.clone()].fill(fill);
                assert!(platter.bytes[bytes.clone()] == expected[bytes], "the wrong bytes were written");
            }
            // Some pieces may have been written.
            (Err(_), _) => expected[bytes.clone()].copy_from_slice(&platter.bytes[bytes]),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_request_completes_once_with_its_bytes(
        size_max in prop_oneof![Just(512u32), Just(1024), Just(1 << 20)],
        seg_max in 1u32..6,
        tables in any::<bool>(),
        steps in prop::collection::vec(step(), 0..250),
    ) {
        let features = if tables { ALL } else { ALL & !feature::INDIRECT } | feature::BLK_SIZE_MAX;
        run(&config(size_max, seg_max, 512), features, &steps, None);
        prop_assert_eq!(DAMAGED.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_liar_gets_its_buffers_taken_away(
        tables in any::<bool>(),
        steps in prop::collection::vec(step(), 0..150),
        violation in (any::<usize>(), prop_oneof![128u32..200, any::<u32>()], any::<u32>()),
    ) {
        let features = if tables { ALL } else { ALL & !feature::INDIRECT } | feature::BLK_SIZE_MAX;
        run(&config(1024, 2, 512), features, &steps, Some(violation));
        prop_assert_eq!(DAMAGED.load(Ordering::SeqCst), 0);
    }
}

/// Counts its wakes.
#[derive(Default)]
pub struct Count(pub AtomicUsize);
impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub type Task = Pin<Box<dyn Future<Output = Result<(), BlockError>>>>;

pub fn reads(disk: &Disk<Blk<Fake, GuardedDma>>, sector: u64) -> Task {
    let disk = disk.clone();
    Box::pin(async move {
        let (result, buf) = disk.read(sector * 512, Buf::zeroed(512).unwrap()).await;
        assert!(result.is_err() || buf[1] == (sector + (sector * 512 + 1) % 251) as u8);
        result
    })
}

#[test]
fn tasks_wait_in_order_for_a_free_request() {
    let (mut platter, blk) = Platter::new(ALL, &config(0, 126, 512));
    let most = blk.requests_max() as u64;
    let mut disk = Disk::new(blk);
    let wakes: Vec<Arc<Count>> = (0..most + 3).map(|_| Arc::default()).collect();
    let wakers: Vec<Waker> = wakes.iter().map(|count| Waker::from(count.clone())).collect();
    let mut tasks: Vec<Task> = (0..most + 3).map(|index| reads(&disk, index % SECTORS)).collect();
    let mut poll = |index: usize| tasks[index].as_mut().poll(&mut Context::from_waker(&wakers[index]));
    let most = most as usize;
    (0..most + 3).for_each(|index| assert!(poll(index).is_pending()));
    platter.take();
    assert_eq!(platter.held.len(), most);
    platter.answer(0, None);
    platter.answer(0, None);
    assert!(disk.poll());
    let woken = |index: usize| wakes[index].0.load(Ordering::SeqCst);
    assert_eq!((woken(0), woken(most), woken(most + 1), woken(most + 2)), (1, 1, 0, 0));
    // A task that pushes in is sent back to the end of the queue; the first lets in the second, which
    // was the room there was.
    assert!(poll(most + 1).is_pending() && poll(most).is_pending());
    assert_eq!((woken(most + 1), woken(most + 2)), (1, 0));
    assert!(poll(most + 1).is_pending());
    platter.answer_all();
    disk.poll();
    assert!(poll(most + 2).is_pending());
    platter.answer_all();
    disk.poll();
    (0..most + 3).for_each(|index| assert_eq!(poll(index), Poll::Ready(Ok(()))));
}

#[test]
fn a_dropped_future_leaves_its_buffer_to_the_device() {
    let (mut platter, blk) = Platter::new(ALL, &config(0, 126, 512));
    let most = blk.requests_max();
    let mut disk = Disk::new(blk);
    let mut tasks: Vec<Task> = (0..most + 2).map(|_| reads(&disk, 7)).collect();
    let count = Arc::<Count>::default();
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    tasks.iter_mut().for_each(|task| assert!(task.as_mut().poll(&mut context).is_pending()));
    let last = tasks.pop().unwrap();
    // One that waits goes, then all that are in flight; the device answers into their buffers.
    drop(tasks);
    platter.answer_all();
    assert!(disk.poll());
    assert_eq!(count.0.load(Ordering::SeqCst), 1, "only who waits for room is woken");
    let mut last = last;
    assert!(last.as_mut().poll(&mut context).is_pending());
    platter.answer_all();
    disk.poll();
    assert_eq!(last.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    // An answer that is not fetched is thrown away.
    let mut forgotten = reads(&disk, 7);
    assert!(forgotten.as_mut().poll(&mut context).is_pending());
    platter.answer_all();
    disk.poll();
    drop(forgotten);
    assert!(reads(&disk, 1).as_mut().poll(&mut context).is_pending());
}

#[test]
fn a_broken_disk_answers_everybody() {
    let (platter, blk) = Platter::new(ALL, &config(0, 126, 512));
    let most = blk.requests_max();
    let mut disk = Disk::new(blk);
    let mut tasks: Vec<Task> = (0..most + 5).map(|_| reads(&disk, 7)).collect();
    let count = Arc::<Count>::default();
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    tasks.iter_mut().for_each(|task| assert!(task.as_mut().poll(&mut context).is_pending()));
    platter.fake.with(0, |queue| queue.put(9999, 0));
    assert!(disk.arm());
    disk.poll();
    assert_eq!(count.0.load(Ordering::SeqCst), most + 5);
    for task in &mut tasks {
        assert!(matches!(task.as_mut().poll(&mut context), Poll::Ready(Err(BlockError::Broken(_)))));
    }
    assert!(!disk.arm());
}
