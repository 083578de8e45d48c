//! The disk between a driver, whose rings the tests write by hand, and a file.

mod recorded;

use super::{Disk, DiskOptions, has_io_uring};
use crate::device::{Device, Turn};
use crate::rings::Ring;
use crate::test_guest::{AVAILABLE, DATA, DESCRIPTORS, Guest, MEMORY_BYTES, NEXT, SIZE, USED, WRITE, message};
use crate::vhost_user::Backend;
use proptest::prelude::*;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddress};

const DISK_BYTES: u64 = 1 << 20;
/// Types of a request (virtio 1.2, section 5.2.6).
const READ: u32 = 0;
const WRITE_DATA: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
/// What a status byte is before the device writes it.
const NO_STATUS: u8 = 0xee;
/// How long the device may take for a request.
const LIMIT: Duration = Duration::from_secs(20);

/// A guest, its disk and the file of it, which is removed at the end.
struct Host {
    guest: Guest,
    disk: Disk,
    file: File,
    path: PathBuf,
}

/// A file of one test whose bytes all differ from zero; `None` without io_uring.
fn file(test: &str) -> Option<PathBuf> {
    if !has_io_uring() {
        println!("skipped: this host has no io_uring");
        return None;
    }
    let path = std::env::temp_dir().join(format!("glass-disk-{}-{test}", std::process::id()));
    let bytes: Vec<u8> = (0..DISK_BYTES).map(|index| (index / 512 % 251) as u8 + 1).collect();
    fs::write(&path, bytes).unwrap();
    Some(path)
}

/// What the file has at first in the sector `sector`.
fn byte(sector: u64) -> u8 {
    (sector % 251) as u8 + 1
}

impl Host {
    fn new(test: &str, options: DiskOptions) -> Option<Host> {
        let path = file(test)?;
        let disk = match Disk::open(&path, &options) {
            Err(error) if options.is_direct => {
                println!("skipped: {error:#}");
                fs::remove_file(&path).unwrap();
                return None;
            }
            disk => disk.unwrap(),
        };
        Some(Host { guest: Guest::new(true), disk, file: File::open(&path).unwrap(), path })
    }

    fn work(&mut self) -> Turn {
        self.disk.work(&self.guest.memory, slice::from_mut(&mut self.guest.ring)).unwrap()
    }

    /// Works until so many requests have ended.
    fn work_until(&mut self, count: u16) {
        let start = Instant::now();
        while self.guest.used_count() < count {
            assert!(start.elapsed() < LIMIT, "{} of {count} requests have ended", self.guest.used_count());
            self.work();
        }
    }

    /// Queues a request as the descriptors from `head` on: header, what the device reads, what it writes, status. Data are in pages of
    /// their own. Returns where the data are.
    fn queue(&mut self, head: u16, kind: u32, sector: u64, read: &[u8], written: u32) -> u64 {
        let at = DATA + u64::from(head) * 0x10000;
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        let (data, status) = (at + 0x1000, at + 16);
        self.guest.memory.write_slice(&header, GuestAddress(at)).unwrap();
        self.guest.memory.write_slice(read, GuestAddress(data)).unwrap();
        self.guest.memory.write_obj(NO_STATUS, GuestAddress(status)).unwrap();
        let mut next = head;
        let mut add = |address: u64, bytes: usize, flags: u16| {
            self.guest.descriptor(next, address, bytes as u32, flags, next + 1);
            next += 1;
        };
        add(at, 16, NEXT);
        if !read.is_empty() {
            add(data, read.len(), NEXT);
        }
        if written > 0 {
            add(data, written as usize, NEXT | WRITE);
        }
        add(status, 1, WRITE);
        self.guest.offer(head);
        data
    }

    fn status(&self, head: u16) -> u8 {
        self.guest.bytes(DATA + u64::from(head) * 0x10000 + 16, 1)[0]
    }

    /// The status of one request on a guest of its own.
    fn outcome(&mut self, kind: u32, sector: u64, read: &[u8], written: u32) -> u8 {
        self.guest = Guest::new(true);
        self.queue(0, kind, sector, read, written);
        self.work_until(1);
        self.status(0)
    }

    fn on_disk(&self, offset: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The features by their numbers.
fn bits(features: u64) -> Vec<u32> {
    (0..64).filter(|bit| features >> bit & 1 != 0).collect()
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn data_are_read_and_written() {
    for (is_direct, is_slow, has_flush) in
        [(false, false, true), (false, true, true), (true, false, true), (false, false, false)]
    {
        let options = DiskOptions { is_direct, ..DiskOptions::default() };
        let Some(mut host) = Host::new(&format!("data-{is_direct}-{is_slow}-{has_flush}"), options) else { return };
        host.disk.agree(if has_flush { 1 << 9 } else { 0 }).unwrap();
        assert_eq!(host.disk.writes_at_once(), !is_direct && has_flush);
        if is_slow {
            host.disk.slow_until = Some(Instant::now() + LIMIT);
        }
        let read = host.queue(0, READ, 3, &[], 8192);
        host.queue(4, WRITE_DATA, 40, &[0xab; 4096], 0);
        host.queue(8, FLUSH, 0, &[], 0);
        host.work_until(3);
        assert_eq!([0, 4, 8].map(|head| host.status(head)), [0; 3]);
        let sectors: Vec<u8> = (3..19).flat_map(|sector| [byte(sector); 512]).collect();
        assert_eq!(host.guest.bytes(read, 8192), sectors);
        assert_eq!(host.on_disk(40 * 512, 4096), [0xab; 4096]);
        assert_eq!(host.on_disk(48 * 512, 512), [byte(48); 512]);
        let mut used = host.guest.used();
        used.sort_unstable();
        assert_eq!(used, [(0, 8193), (4, 1), (8, 1)]);
    }
}

#[test]
fn a_request_may_be_cut_anywhere() {
    let Some(mut host) = Host::new("cut", DiskOptions::default()) else { return };
    let header = [&READ.to_le_bytes()[..], &[0; 4], &7_u64.to_le_bytes()].concat();
    host.guest.memory.write_slice(&header, GuestAddress(DATA)).unwrap();
    // The header in two, and data and status in one.
    host.guest.descriptor(0, DATA, 5, NEXT, 1);
    host.guest.descriptor(1, DATA + 5, 11, NEXT, 2);
    host.guest.descriptor(2, DATA + 0x1001, 100, NEXT | WRITE, 3);
    host.guest.descriptor(3, DATA + 0x2000, 924, NEXT | WRITE, 4);
    host.guest.descriptor(4, DATA + 0x3000, 1, WRITE, 0);
    host.guest.offer(0);
    host.work_until(1);
    assert_eq!(host.guest.used(), [(0, 1025)]);
    let data = [host.guest.bytes(DATA + 0x1001, 100), host.guest.bytes(DATA + 0x2000, 924)].concat();
    assert_eq!(data, [[byte(7); 512], [byte(8); 512]].concat());
    assert_eq!(host.guest.bytes(DATA + 0x3000, 1), [0]);
    host.guest = Guest::new(false);
    host.guest.memory.write_slice(&header, GuestAddress(DATA)).unwrap();
    host.guest.descriptor(0, DATA, 16, NEXT, 1);
    host.guest.descriptor(1, DATA + 0x1000, 513, WRITE, 0);
    host.guest.offer(0);
    host.work_until(1);
    assert_eq!(host.guest.bytes(DATA + 0x1000, 513), [&[byte(7); 512][..], &[0]].concat());
}

#[test]
fn memory_that_is_not_aligned_is_read_all_the_same() {
    let options = DiskOptions { is_direct: true, ..DiskOptions::default() };
    let Some(mut host) = Host::new("aligned", options) else { return };
    let header = [&READ.to_le_bytes()[..], &[0; 4], &1_u64.to_le_bytes()].concat();
    host.guest.memory.write_slice(&header, GuestAddress(DATA)).unwrap();
    host.guest.descriptor(0, DATA, 16, NEXT, 1);
    host.guest.descriptor(1, DATA + 0x1003, 512, NEXT | WRITE, 2);
    host.guest.descriptor(2, DATA + 0x3000, 1, WRITE, 0);
    host.guest.offer(0);
    host.work_until(1);
    assert_eq!(host.guest.bytes(DATA + 0x3000, 1), [0]);
    assert_eq!(host.guest.bytes(DATA + 0x1003, 512), [byte(1); 512]);
}

#[test]
fn a_wrong_request_is_answered() {
    const FAILED: u8 = 1;
    const UNSUPPORTED: u8 = 2;
    let Some(mut host) = Host::new("wrong", DiskOptions::default()) else { return };
    let end = DISK_BYTES / 512;
    for (kind, sector, read, written, expected) in [
        (READ, end - 1, vec![], 512, 0),
        (READ, end, vec![], 512, FAILED),
        (READ, u64::MAX, vec![], 512, FAILED),
        (READ, u64::MAX / 512, vec![], 1024, FAILED),
        (READ, 0, vec![], 100, FAILED),
        (READ, 0, vec![], 0, 0),
        (WRITE_DATA, end - 1, vec![1; 1024], 0, FAILED),
        (99, 0, vec![], 0, UNSUPPORTED),
        (DISCARD, 0, range(0, 8, 0), 0, 0),
        (DISCARD, 0, range(0, 8, 1), 0, UNSUPPORTED),
        (DISCARD, 0, range(end, 1, 0), 0, FAILED),
        (DISCARD, 0, range(0, 8193, 0), 0, FAILED),
        (DISCARD, 0, vec![0; 15], 0, FAILED),
        (DISCARD, 0, [range(0, 8, 0), range(8, 8, 0)].concat(), 0, FAILED),
        (WRITE_ZEROES, 0, range(0, 8, 2), 0, UNSUPPORTED),
    ] {
        assert_eq!(host.outcome(kind, sector, &read, written), expected, "{kind} {sector} {read:?} {written}");
    }
    // Without a status, and outside of the guest's memory: they go back without a word.
    host.guest = Guest::new(false);
    host.guest.descriptor(0, DATA, 16, 0, 0);
    host.guest.descriptor(1, MEMORY_BYTES as u64, 16, NEXT, 2);
    host.guest.descriptor(2, DATA, 1, WRITE, 0);
    // What the device reads behind what it writes.
    host.guest.descriptor(3, DATA, 16, NEXT | WRITE, 4);
    host.guest.descriptor(4, DATA, 16, 0, 0);
    for head in [0, 1, 3] {
        host.guest.offer(head);
    }
    host.work();
    assert_eq!(host.guest.used(), [(0, 0), (1, 0), (3, 0)]);
}

#[test]
fn a_disk_that_is_read_only_stays_as_it_is() {
    let options = DiskOptions { is_read_only: true, ..DiskOptions::default() };
    let Some(mut host) = Host::new("read-only", options) else { return };
    assert_eq!(host.outcome(READ, 0, &[], 512), 0);
    assert_eq!(host.outcome(WRITE_DATA, 0, &[9; 512], 0), 1);
    assert_eq!(host.outcome(DISCARD, 0, &range(0, 8, 0), 0), 1);
    assert_eq!(host.outcome(WRITE_ZEROES, 0, &range(0, 8, 0), 0), 1);
    assert_eq!(host.on_disk(0, 512), [byte(0); 512]);
    // Its feature, and no others that change the disk.
    assert_eq!(bits(host.disk.features()), [2, 5, 6, 10]);
}

#[test]
fn blocks_are_given_back_and_set_to_zero() {
    let Some(mut host) = Host::new("zeroes", DiskOptions::default()) else { return };
    let blocks = |host: &Host| {
        host.file.sync_all().unwrap();
        host.file.metadata().unwrap().blocks()
    };
    let before = blocks(&host);
    assert_eq!(host.outcome(WRITE_ZEROES, 0, &range(8, 16, 0), 0), 0);
    assert_eq!(host.outcome(WRITE_ZEROES, 0, &range(1000, 48, 1), 0), 0);
    for (sector, count) in [(8, 16), (1000, 48)] {
        assert_eq!(host.on_disk(sector * 512, count * 512), vec![0; count * 512]);
        assert_eq!(host.on_disk((sector - 1) * 512, 512), [byte(sector - 1); 512]);
        let end = sector + count as u64;
        assert_eq!(host.on_disk(end * 512, 512), [byte(end); 512]);
    }
    assert_eq!(host.outcome(DISCARD, 0, &range(1024, 1024, 0), 0), 0);
    let after = blocks(&host);
    assert!(after + 1000 < before, "{before} blocks before, {after} after");
    assert_eq!(host.file.metadata().unwrap().len(), DISK_BYTES);
}

#[test]
fn the_name_of_a_disk_is_empty() {
    let Some(mut host) = Host::new("name", DiskOptions::default()) else { return };
    host.guest.memory.write_slice(&[7; 30], GuestAddress(DATA + 0x1000)).unwrap();
    let name = host.queue(0, GET_ID, 0, &[], 30);
    host.work_until(1);
    assert_eq!(host.status(0), 0);
    assert_eq!(host.guest.used(), [(0, 21)]);
    assert_eq!(host.guest.bytes(name, 30), [&[0; 20][..], &[7; 10]].concat());
}

#[test]
fn a_file_that_became_shorter_is_an_error() {
    let Some(mut host) = Host::new("shorter", DiskOptions::default()) else { return };
    File::options().write(true).open(&host.path).unwrap().set_len(1024).unwrap();
    assert_eq!(host.outcome(READ, 0, &[], 1024), 0);
    assert_eq!(host.outcome(READ, 0, &[], 2048), 1);
}

#[test]
fn interrupts_and_notifications_are_those_that_were_wanted() {
    let Some(mut host) = Host::new("events", DiskOptions::default()) else { return };
    host.guest.memory.write_obj(2_u16, GuestAddress(AVAILABLE + 4 + u64::from(SIZE) * 2)).unwrap();
    for (head, interrupts) in [(0, 0), (4, 0), (8, 1), (12, 0)] {
        host.queue(head, READ, 0, &[], 512);
        host.work_until(head / 4 + 1);
        assert_eq!(host.guest.interrupts(), interrupts, "request {head}");
        // The guest notifies of the next request.
        let event: u16 = host.guest.memory.read_obj(GuestAddress(USED + 4 + u64::from(SIZE) * 8)).unwrap();
        assert_eq!(event, host.guest.offered);
    }
}

#[test]
fn a_queue_that_does_not_run_is_left_alone() {
    let Some(mut host) = Host::new("stopped", DiskOptions::default()) else { return };
    host.guest.ring.queue.set_ready(false);
    host.queue(0, READ, 0, &[], 512);
    assert_eq!(host.work(), Turn::NeedsGuest);
    assert_eq!(host.guest.used_count(), 0);
}

#[test]
fn all_requests_have_ended_before_the_memory_goes() {
    let options = DiskOptions { is_direct: true, ..DiskOptions::default() };
    let Some(mut host) = Host::new("finish", options) else { return };
    for head in (0..28).step_by(4) {
        host.queue(head, READ, u64::from(head) * 8, &[], 0x8000);
    }
    // One round starts them; it does not wait for them.
    let Host { guest, disk, .. } = &mut host;
    disk.round(&guest.memory, &mut guest.ring).unwrap();
    disk.finish(&guest.memory, slice::from_mut(&mut guest.ring)).unwrap();
    assert!(disk.engine.is_empty());
    assert_eq!(guest.used_count(), 7);
    for head in (0..28).step_by(4) {
        assert_eq!(host.status(head), 0);
        assert_eq!(host.guest.bytes(DATA + u64::from(head) * 0x10000 + 0x1000, 512), [byte(u64::from(head) * 8); 512]);
    }
}

#[test]
fn a_disk_has_one_writer() {
    let Some(host) = Host::new("writer", DiskOptions::default()) else { return };
    let refusal = Disk::open(&host.path, &DiskOptions::default()).err().unwrap().to_string();
    assert!(refusal.contains("is in use by another process: stop that"), "{refusal}");
    let path = host.path.with_extension("small");
    fs::write(&path, [0; 511]).unwrap();
    let refusal = Disk::open(&path, &DiskOptions::default()).err().unwrap().to_string();
    assert!(refusal.contains("511 bytes, less than a sector of 512"), "{refusal}");
    fs::remove_file(&path).unwrap();
    let refusal = Disk::open(&path, &DiskOptions::default()).err().unwrap().to_string();
    assert!(refusal.contains("cannot open the disk"), "{refusal}");
}

#[test]
fn qemu_reads_the_configuration() {
    let Some(path) = file("config") else { return };
    let disk = Disk::open(&path, &DiskOptions::default()).unwrap();
    assert_eq!(bits(disk.features()), [2, 6, 9, 10, 13, 14]);
    let mut backend = Backend::new(disk);
    fs::remove_file(&path).unwrap();
    // QEMU reads it only if the device reports this.
    assert_eq!(backend.obey(message(15, &[], None)).unwrap(), Some(512_u64.to_le_bytes().to_vec()));
    let mut read = |offset: u32, bytes: u32| {
        let payload = [[offset, bytes, 0].map(u32::to_le_bytes).concat(), vec![0xff; bytes as usize]].concat();
        backend.obey(message(24, &payload, None)).unwrap().unwrap()
    };
    assert_eq!(read(0, 8)[12..], (DISK_BYTES / 512).to_le_bytes());
    assert_eq!(read(20, 4)[12..], 512_u32.to_le_bytes());
    // Sectors of a page, as a power of two, and as the least that is written at once.
    assert_eq!(read(24, 8)[12..], [3, 0, 8, 0, 0, 0, 0, 0]);
    // The limits of what is discarded and set to zero.
    let limits = [8192_u32, 1, 8, 8192, 1].map(u32::to_le_bytes).concat();
    assert_eq!(read(36, 20)[12..], limits);
    assert_eq!(read(56, 8)[12..], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(read(1000, 4)[12..], [0; 4]);
    let error = backend.obey(message(24, &[0, 8, 0].map(u32::to_le_bytes).concat(), None)).unwrap_err();
    assert!(error.to_string().contains("without room"), "{error}");
}

/// A core of the guest offers each chain again as soon as the disk takes it, which it sees by the name that the disk writes. A round ends
/// nevertheless: it takes no more than was offered when it started.
#[test]
fn a_guest_that_stays_ahead_does_not_hold_a_round() {
    const TABLE: u16 = 4;
    const CHAINS: u16 = 16;
    const PIECES: u16 = 400;
    let Some(mut host) = Host::new("ahead", DiskOptions::default()) else { return };
    let memory = host.guest.memory.clone();
    let name = |chain: u16| GuestAddress(DATA + 0x1000 + u64::from(chain % CHAINS) * 64);
    memory.write_obj(GET_ID, GuestAddress(DATA)).unwrap();
    for chain in 0..SIZE {
        let table = 0x10_0000 + u64::from(chain) * 0x4000;
        host.guest.descriptor(chain, table, u32::from(PIECES) * 16, TABLE, 0);
        for index in 0..PIECES {
            let at = table + u64::from(index) * 16;
            let (address, bytes, flags) = match index {
                0 => (DATA, 16, NEXT),
                1 => (name(chain).0, 20, NEXT | WRITE),
                399 => (DATA + 64, 1, WRITE),
                // Nothing, for which the disk needs some time.
                _ => (DATA, 0, NEXT | WRITE),
            };
            memory.write_obj(u128::from(address) | u128::from(bytes as u32) << 64, GuestAddress(at)).unwrap();
            memory.write_obj([flags, index + 1], GuestAddress(at + 12)).unwrap();
        }
        memory.write_obj(chain, GuestAddress(AVAILABLE + 4 + u64::from(chain) * 2)).unwrap();
        memory.write_obj(1_u8, name(chain)).unwrap();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut taken = 0_u16;
            while !is_over.load(Ordering::Relaxed) {
                memory.store(taken.wrapping_add(CHAINS), GuestAddress(AVAILABLE + 2), Ordering::Release).unwrap();
                if memory.read_obj::<u8>(name(taken)).unwrap() == 0 {
                    memory.write_obj(1_u8, name(taken)).unwrap();
                    taken = taken.wrapping_add(1);
                }
            }
        });
        let Host { guest, disk, .. } = &mut host;
        let mut taken = 0_u32;
        let mut most = 0;
        while taken < 2000 && most <= CHAINS {
            let before = guest.ring.queue.next_avail();
            disk.round(&guest.memory, &mut guest.ring).unwrap();
            let count = guest.ring.queue.next_avail().wrapping_sub(before);
            most = most.max(count);
            taken += u32::from(count);
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(most <= CHAINS, "{most} chains in a round");
    });
}

#[test]
fn an_index_that_jumps_breaks_a_ring_until_it_is_set_up_again() {
    let Some(mut host) = Host::new("jump", DiskOptions::default()) else { return };
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    host.guest.ring.error = Some(OwnedFd::from(theirs).into());
    let read = |mut ours: &UnixStream| ours.read(&mut [0; 64]).unwrap_or(0);
    host.guest.memory.write_obj(SIZE + 1, GuestAddress(AVAILABLE + 2)).unwrap();
    assert_eq!(host.work(), Turn::NeedsGuest);
    assert_eq!((read(&ours), host.guest.ring.violations()), (8, 1));
    let sentence = host.guest.ring.take_report().unwrap().to_string();
    assert_eq!(sentence, "it offered 33 chains of descriptors, more than there is room for");
    // It rests, whatever the guest does, and is reported once.
    host.queue(0, READ, 0, &[], 512);
    assert_eq!(host.work(), Turn::NeedsGuest);
    assert_eq!((host.guest.used_count(), read(&ours), host.guest.ring.take_report()), (0, 0, None));
    host.guest.ring.stop();
    host.guest.ring.queue.set_ready(true);
    host.work_until(1);
    assert_eq!(host.status(0), 0);
}

#[test]
fn a_chain_that_is_too_long_or_has_no_end_goes_back() {
    let Some(mut host) = Host::new("long", DiskOptions::default()) else { return };
    let table = 0x10_0000;
    for (pieces, last_flags) in [(1025_u32, WRITE), (1024, NEXT | WRITE), (20_000, WRITE)] {
        host.guest = Guest::new(false);
        for index in 0..pieces {
            let flags = if index + 1 == pieces { last_flags } else { NEXT | WRITE };
            let at = GuestAddress(table + u64::from(index) * 16);
            host.guest.memory.write_obj(u128::from(DATA) | 1 << 64, at).unwrap();
            host.guest.memory.write_obj([flags, (index + 1) as u16], GuestAddress(at.0 + 12)).unwrap();
        }
        host.guest.descriptor(0, table, pieces * 16, 4, 0);
        host.guest.offer(0);
        host.work();
        assert_eq!((host.guest.used(), host.guest.ring.violations()), (vec![(0, 0)], 1), "{pieces}");
    }
    // As many as Linux reads at once.
    host.guest = Guest::new(false);
    host.guest.memory.write_slice(&[0; 16], GuestAddress(DATA)).unwrap();
    for index in 0..1024_u64 {
        let (bytes, flags) = match index {
            0 => (16_u32, NEXT),
            1023 => (1, WRITE),
            // A sector in all.
            _ => (u32::from(index <= 512), NEXT | WRITE),
        };
        let at = table + index * 16;
        host.guest.memory.write_obj(u128::from(DATA + 0x1000) | u128::from(bytes) << 64, GuestAddress(at)).unwrap();
        host.guest.memory.write_obj([flags, index as u16 + 1], GuestAddress(at + 12)).unwrap();
    }
    host.guest.descriptor(0, table, 1024 * 16, 4, 0);
    host.guest.offer(0);
    host.work_until(1);
    assert_eq!(host.guest.ring.violations(), 0);
}

proptest! {
    /// A guest can write anything to its rings and descriptors, and say so as often as it likes.
    #[test]
    fn no_guest_ends_the_disk(
        rings in prop::collection::vec(any::<u8>(), 0x3000),
        headers in prop::collection::vec((0_u32..15, any::<u16>()), 16),
        descriptors in prop::collection::vec((0_u64..0x500000, any::<u32>(), 0_u16..8, 0_u16..40), 32),
        has_events: bool,
        offered: u16,
    ) {
        let Some(mut host) = Host::new("any", DiskOptions::default()) else { return Ok(()) };
        host.guest = Guest::new(has_events);
        let guest = &mut host.guest;
        guest.memory.write_slice(&rings, GuestAddress(DESCRIPTORS)).unwrap();
        for (index, (address, bytes, flags, next)) in (0..).zip(descriptors) {
            // Half of them start where a header is.
            let is_header = index % 2 == 0;
            let (address, bytes) = if is_header { (DATA + u64::from(index) * 16, 16) } else { (address, bytes % 200_000) };
            guest.descriptor(index, address, bytes, flags, next);
        }
        for (index, (kind, sector)) in (0..).zip(headers) {
            let at = DATA + index * 32;
            guest.memory.write_obj(kind, GuestAddress(at)).unwrap();
            guest.memory.write_obj(u64::from(sector), GuestAddress(at + 8)).unwrap();
        }
        guest.offered = offered;
        guest.memory.write_obj(offered, GuestAddress(AVAILABLE + 2)).unwrap();
        for _ in 0..3 {
            host.work();
        }
        let ring: &mut Ring = &mut host.guest.ring;
        host.disk.finish(&host.guest.memory, slice::from_mut(ring)).unwrap();
        prop_assert!(host.disk.engine.is_empty());
    }
}
