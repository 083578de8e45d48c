//! The card between a driver, whose rings the tests write by hand, and a socket in place of the TAP device: its reads and writes are frames, too.

use crate::card::{Card, HEADER_BYTES, Ring};
use crate::messages::Connection;
use crate::moves::{Receiver, Transmitter, Turn};
use crate::tap::Tap;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const SIZE: u16 = 32;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const DATA: u64 = 0x10000;
const MEMORY_BYTES: usize = 4 << 20;
/// Flags of a descriptor: another follows, the device writes.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// The guest's side of one queue, and the host's side of the network.
struct Guest {
    memory: GuestMemoryMmap,
    ring: Ring,
    offered: u16,
    interrupts: File,
    tap: Tap,
    network: UnixDatagram,
}

impl Guest {
    fn new(has_events: bool) -> Guest {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).unwrap();
        let mut queue = Queue::new(1024).unwrap();
        queue.set_size(SIZE);
        queue.try_set_desc_table_address(GuestAddress(DESCRIPTORS)).unwrap();
        queue.try_set_avail_ring_address(GuestAddress(AVAILABLE)).unwrap();
        queue.try_set_used_ring_address(GuestAddress(USED)).unwrap();
        queue.set_event_idx(has_events);
        queue.set_ready(true);
        let (interrupts, call) = UnixStream::pair().unwrap();
        interrupts.set_nonblocking(true).unwrap();
        let (ours, network) = UnixDatagram::pair().unwrap();
        for socket in [&ours, &network] {
            socket.set_nonblocking(true).unwrap();
        }
        Guest {
            memory,
            ring: Ring::running(queue, OwnedFd::from(call).into()),
            offered: 0,
            interrupts: OwnedFd::from(interrupts).into(),
            tap: Tap::from_file(OwnedFd::from(ours).into()),
            network,
        }
    }

    fn descriptor(&self, index: u16, address: u64, bytes: u32, flags: u16, next: u16) {
        let at = DESCRIPTORS + u64::from(index) * 16;
        self.memory.write_obj(address, GuestAddress(at)).unwrap();
        self.memory.write_obj(bytes, GuestAddress(at + 8)).unwrap();
        self.memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
        self.memory.write_obj(next, GuestAddress(at + 14)).unwrap();
    }

    /// Offers the chain that starts at a descriptor.
    fn offer(&mut self, head: u16) {
        let place = u64::from(self.offered % SIZE);
        self.memory.write_obj(head, GuestAddress(AVAILABLE + 4 + place * 2)).unwrap();
        self.offered += 1;
        self.memory.write_obj(self.offered, GuestAddress(AVAILABLE + 2)).unwrap();
    }

    /// Offers buffers of `bytes` to receive into.
    fn offer_buffers(&mut self, count: u16, bytes: u32) {
        for index in 0..count {
            self.descriptor(index, DATA + u64::from(index) * 0x10000, bytes, WRITE, 0);
            self.offer(index);
        }
    }

    /// Queues a frame to send, its first bytes in a descriptor of their own.
    fn queue_frame(&mut self, head: u16, frame: &[u8]) {
        let at = DATA + u64::from(head) * 0x10000;
        self.memory.write_slice(frame, GuestAddress(at)).unwrap();
        self.descriptor(head, at, HEADER_BYTES as u32, NEXT, head + 1);
        self.descriptor(head + 1, at + HEADER_BYTES as u64, (frame.len() - HEADER_BYTES) as u32, 0, 0);
        self.offer(head);
    }

    fn used_count(&self) -> u16 {
        self.memory.read_obj(GuestAddress(USED + 2)).unwrap()
    }

    /// The chains that were given back, with the bytes written to each.
    fn used(&self) -> Vec<(u32, u32)> {
        let element = |index: u16| {
            let at = USED + 4 + u64::from(index % SIZE) * 8;
            let word = |at: u64| self.memory.read_obj(GuestAddress(at)).unwrap();
            (word(at), word(at + 4))
        };
        (0..self.used_count()).map(element).collect()
    }

    fn bytes(&self, index: u16, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.memory.read_slice(&mut bytes, GuestAddress(DATA + u64::from(index) * 0x10000)).unwrap();
        bytes
    }

    fn interrupts(&mut self) -> usize {
        self.interrupts.read(&mut [0; 4096]).map_or(0, |bytes| bytes / 8)
    }

    fn receive(&mut self, receiver: &mut Receiver) -> Turn {
        receiver.turn(&self.tap, &self.memory, &mut self.ring)
    }

    fn transmit(&mut self, transmitter: &mut Transmitter) -> Turn {
        transmitter.turn(&self.tap, &self.memory, &mut self.ring, HEADER_BYTES)
    }

    /// The frames that were sent.
    fn sent(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; 1 << 17];
        loop {
            match self.network.recv(&mut buffer) {
                Ok(bytes) => frames.push(buffer[..bytes].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return frames,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn receiver(is_merged: bool) -> Receiver {
    let mut receiver = Receiver::new();
    receiver.agree(HEADER_BYTES, is_merged);
    receiver
}

/// A frame with a header of zeroes.
fn frame(bytes: usize, fill: u8) -> Vec<u8> {
    let mut frame = vec![0; HEADER_BYTES];
    frame.resize(HEADER_BYTES + bytes, fill);
    frame
}

#[test]
fn a_frame_takes_as_many_buffers_as_it_needs() {
    let mut guest = Guest::new(false);
    let mut receiver = receiver(true);
    guest.offer_buffers(10, 16384);
    for frame in [frame(40_000, 1), frame(60, 2)] {
        guest.network.send(&frame).unwrap();
    }
    assert_eq!(guest.receive(&mut receiver), Turn::Done);
    assert_eq!(guest.used(), [(0, 16384), (1, 16384), (2, 40_012 - 2 * 16384), (3, 72)]);
    // How many buffers each has is in its header.
    assert_eq!(guest.bytes(0, 13), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 1]);
    assert_eq!(guest.bytes(3, 13), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2]);
    assert_eq!(guest.bytes(1, 16384), vec![1; 16384]);
    assert_eq!(guest.interrupts(), 1);
    // The buffers that were not filled are still there.
    guest.network.send(&frame(100_000 - 40_000, 3)).unwrap();
    assert_eq!(guest.receive(&mut receiver), Turn::Done);
    assert_eq!(guest.used()[4..].iter().map(|used| used.0).collect::<Vec<_>>(), [4, 5, 6, 7]);
}

#[test]
fn a_frame_waits_for_room() {
    let mut guest = Guest::new(true);
    let mut receiver = receiver(true);
    for frame in [frame(3000, 1), frame(500, 2)] {
        guest.network.send(&frame).unwrap();
    }
    assert_eq!(guest.receive(&mut receiver), Turn::Starved);
    guest.offer_buffers(2, 1000);
    assert_eq!(guest.receive(&mut receiver), Turn::Starved);
    assert_eq!(guest.used(), []);
    // The next buffer is one that the guest notifies of.
    let event: u16 = guest.memory.read_obj(GuestAddress(USED + 4 + u64::from(SIZE) * 8)).unwrap();
    assert_eq!(event, 2);
    for index in 2..5 {
        guest.descriptor(index, DATA + u64::from(index) * 0x10000, 1000, WRITE, 0);
        guest.offer(index);
    }
    assert_eq!(guest.receive(&mut receiver), Turn::Starved);
    assert_eq!(guest.used(), [(0, 1000), (1, 1000), (2, 1000), (3, 12), (4, 512)]);
    assert_eq!(guest.bytes(3, 12), [1; 12]);
}

#[test]
fn a_frame_that_is_too_long_for_a_buffer_is_lost_alone() {
    let mut guest = Guest::new(false);
    let mut receiver = receiver(false);
    guest.offer_buffers(2, 1526);
    for frame in [frame(3000, 1), frame(1514, 2)] {
        guest.network.send(&frame).unwrap();
    }
    assert_eq!(guest.receive(&mut receiver), Turn::Done);
    assert_eq!(guest.used(), [(0, 1526)]);
    assert_eq!(guest.bytes(0, 13)[10..], [1, 0, 2]);
}

#[test]
fn what_is_no_buffer_goes_back() {
    let mut guest = Guest::new(false);
    let mut receiver = receiver(true);
    // Outside of the memory, only to be read, and shorter than a header.
    guest.descriptor(0, MEMORY_BYTES as u64 - 10, 100, WRITE, 0);
    guest.descriptor(1, DATA, 2000, 0, 0);
    guest.descriptor(2, DATA, 8, WRITE, 0);
    for head in 0..3 {
        guest.offer(head);
    }
    guest.network.send(&frame(60, 1)).unwrap();
    assert_eq!(guest.receive(&mut receiver), Turn::Starved);
    assert_eq!(guest.used(), [(0, 0), (1, 0), (2, 0)]);
    guest.descriptor(3, DATA, 2000, WRITE, 0);
    guest.offer(3);
    // There may be more frames, but there is no buffer for one.
    assert_eq!(guest.receive(&mut receiver), Turn::Starved);
    assert_eq!(guest.used()[3..], [(3, 72)]);
}

#[test]
fn frames_are_sent_in_their_order() {
    let mut guest = Guest::new(false);
    let mut transmitter = Transmitter::new();
    let frames = [frame(60, 1), frame(20_000, 2), frame(1514, 3)];
    for (head, frame) in (0..).step_by(2).zip(&frames) {
        guest.queue_frame(head, frame);
    }
    // One that the host would have to write to, which is lost.
    guest.descriptor(6, DATA, 100, WRITE, 0);
    guest.offer(6);
    assert_eq!(guest.transmit(&mut transmitter), Turn::Done);
    assert_eq!(guest.sent().into_iter().filter(|frame| !frame.is_empty()).collect::<Vec<_>>(), frames);
    assert_eq!(guest.used(), [(0, 0), (2, 0), (4, 0), (6, 0)]);
    assert_eq!(guest.interrupts(), 1);
}

#[test]
fn interrupts_and_notifications_are_those_that_were_wanted() {
    let mut guest = Guest::new(true);
    let mut transmitter = Transmitter::new();
    let wants_at = |guest: &Guest, event: u16| {
        guest.memory.write_obj(event, GuestAddress(AVAILABLE + 4 + u64::from(SIZE) * 2)).unwrap();
    };
    wants_at(&guest, 3);
    for (head, interrupts) in [(0, 0), (2, 0), (4, 0), (6, 1), (8, 0)] {
        guest.queue_frame(head, &frame(60, 1));
        guest.transmit(&mut transmitter);
        assert_eq!(guest.interrupts(), interrupts, "frame {head}");
        // The guest notifies of the next frame.
        let event: u16 = guest.memory.read_obj(GuestAddress(USED + 4 + u64::from(SIZE) * 8)).unwrap();
        assert_eq!(event, guest.offered);
    }
}

#[test]
fn a_queue_that_does_not_run_moves_nothing() {
    let mut guest = Guest::new(false);
    guest.ring.queue.set_ready(false);
    guest.queue_frame(0, &frame(60, 1));
    assert_eq!(guest.transmit(&mut Transmitter::new()), Turn::Starved);
    assert_eq!(guest.receive(&mut receiver(true)), Turn::Starved);
    assert_eq!((guest.used_count(), guest.sent().len()), (0, 0));
}

/// A datagram of UDP over IPv4 or IPv6 whose checksum the card completes.
fn datagram(is_v4: bool, port: u16, data: &[u8]) -> Vec<u8> {
    let udp = 14 + if is_v4 { 20 } else { 40 };
    let mut frame = vec![1, 0, 0, 0, 0, 0, udp as u8, 0, 6, 0, 0, 0];
    frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    let udp_bytes = 8 + data.len() as u16;
    if is_v4 {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + udp_bytes).to_be_bytes());
        frame.extend([0, 7, 0x40, 0, 64, 17, 0xaa, 0xbb, 10, 0, 0, 1, 10, 0, 0, 2]);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(udp_bytes.to_be_bytes());
        frame.extend([17, 64]);
        frame.extend([[0xfe; 16], [0xfd; 16]].as_flattened());
    }
    frame.extend([0x10, 0]);
    frame.extend(port.to_be_bytes());
    frame.extend(udp_bytes.to_be_bytes());
    frame.extend([0xcc, 0xdd]);
    frame.extend(data);
    frame
}

fn sum(bytes: &[u8]) -> u32 {
    let sum = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0))).sum::<u32>();
    (sum & 0xffff) + (sum >> 16)
}

/// The frames that the card makes of datagrams.
fn joined(datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut guest = Guest::new(false);
    for (head, frame) in (0..).step_by(2).zip(datagrams) {
        guest.queue_frame(head, frame);
    }
    guest.transmit(&mut Transmitter::new());
    assert_eq!(usize::from(guest.used_count()), datagrams.len());
    guest.sent()
}

#[test]
fn datagrams_that_follow_each_other_are_one_frame() {
    for (is_v4, ip_bytes) in [(true, 20), (false, 40)] {
        let data = [vec![1; 1000], vec![2; 1000], vec![3; 500]];
        let frames = joined(&data.clone().map(|data| datagram(is_v4, 9, &data)));
        let [frame] = &frames[..] else { panic!("{} frames", frames.len()) };
        let udp = 12 + 14 + ip_bytes;
        // Cut after 1000 bytes of data, with headers of this length.
        assert_eq!(frame[..12], [1, 5, udp as u8 - 12 + 8, 0, 0xe8, 3, udp as u8 - 12, 0, 6, 0, 0, 0]);
        assert_eq!(frame[udp + 8..], data.concat());
        let udp_bytes = 2508_u16.to_be_bytes();
        assert_eq!(frame[udp + 4..udp + 6], udp_bytes);
        let addresses = if is_v4 {
            assert_eq!(frame[28..30], 2528_u16.to_be_bytes());
            assert_eq!(sum(&frame[26..46]), 0xffff);
            38..46
        } else {
            assert_eq!(frame[30..32], udp_bytes);
            34..66
        };
        let pseudo = sum(&[&frame[addresses], &udp_bytes, &[0, 17]].concat());
        assert_eq!(u32::from(frame[udp + 6]) << 8 | u32::from(frame[udp + 7]), pseudo);
    }
}

#[test]
fn only_datagrams_that_can_be_cut_again_are_joined() {
    let change = |at: usize, byte: u8| {
        let mut frame = datagram(true, 9, &[1; 100]);
        frame[at] = byte;
        frame
    };
    let plain = || datagram(true, 9, &[1; 100]);
    for (why, second) in [
        ("another port", datagram(true, 10, &[1; 100])),
        ("more data", datagram(true, 9, &[1; 101])),
        ("IPv6", datagram(false, 9, &[1; 100])),
        ("a complete checksum", change(0, 0)),
        ("cut already", change(1, 1)),
        ("another start of the checksum", change(6, 0)),
        ("another sender", change(12 + 6, 4)),
        ("TCP", change(26 + 9, 6)),
        ("it may be cut", change(26 + 6, 0)),
        ("a fragment", change(26 + 7, 1)),
        ("options", change(26, 0x46)),
        ("another length of the packet", change(29, 0)),
        ("another length of the datagram", change(26 + 20 + 5, 0)),
        ("another time to live", change(26 + 8, 1)),
        ("another receiver", change(26 + 19, 9)),
    ] {
        assert_eq!(joined(&[plain(), second.clone()]), [plain(), second], "{why}");
    }
    // Behind a shorter one another frame starts; the packet's number does not matter.
    let numbered = change(26 + 5, 8);
    let frames = joined(&[plain(), numbered, datagram(true, 9, &[1; 99]), plain(), plain()]);
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [54 + 299, 54 + 200]);
    // As long as a packet can be.
    let frames = joined(&vec![datagram(true, 9, &[1; 30_000]); 3]);
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [54 + 60_000, 54 + 30_000]);
}

proptest! {
    /// A guest can write anything to its rings and descriptors, and say so as often as it likes.
    #[test]
    fn no_guest_ends_the_card(
        rings in prop::collection::vec(any::<u8>(), 0x3000),
        descriptors in prop::collection::vec((0_u64..0x500000, any::<u32>(), 0_u16..8, 0_u16..40), 32),
        has_events: bool,
        is_merged: bool,
        offered: u16,
    ) {
        let mut guest = Guest::new(has_events);
        guest.memory.write_slice(&rings, GuestAddress(DESCRIPTORS)).unwrap();
        for (index, (address, bytes, flags, next)) in (0..).zip(descriptors) {
            guest.descriptor(index, address, bytes % 200_000, flags, next);
        }
        guest.offered = offered;
        guest.memory.write_obj(offered, GuestAddress(AVAILABLE + 2)).unwrap();
        let (mut receiver, mut transmitter) = (receiver(is_merged), Transmitter::new());
        for bytes in [60, 1514, 65_000] {
            guest.network.send(&frame(bytes, 1)).unwrap();
            guest.receive(&mut receiver);
            guest.transmit(&mut transmitter);
            guest.sent();
        }
    }
}

/// A message of QEMU as the card receives it.
fn message(request: u32, payload: &[u8], file: Option<&File>) -> crate::messages::Message {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let bytes = [&request.to_le_bytes()[..], &[1, 0, 0, 0], &(payload.len() as u32).to_le_bytes(), payload].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file.as_fd()]);
    if let Some(files) = &files {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    sendmsg(&theirs, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
    Connection::new(ours).receive().unwrap().unwrap()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A queue's number, and a number.
fn state(index: u32, number: u32) -> Vec<u8> {
    [index, number].map(u32::to_le_bytes).concat()
}

fn card() -> Card {
    let (tap, _) = UnixDatagram::pair().unwrap();
    tap.set_nonblocking(true).unwrap();
    Card::new(Tap::from_file(OwnedFd::from(tap).into()))
}

/// Where QEMU has the guest's memory.
const QEMU: u64 = 0x7f00_0000_0000;

#[test]
fn messages_start_and_stop_a_queue() {
    let mut card = card();
    let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&memory, MEMORY_BYTES as u64).unwrap();
    let features = card.obey(message(1, &[], None)).unwrap().unwrap();
    assert_eq!(features.len(), 8);
    let table = words(&[1, 0, MEMORY_BYTES as u64, QEMU, 0]);
    let (kick, call) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let kick_end = File::from(OwnedFd::from(kick.1));
    for (request, payload, file) in [
        (3, vec![], None),
        (5, table, Some(&memory)),
        (8, state(1, 32), None),
        (10, state(1, 5), None),
        (9, words(&[1, QEMU + DESCRIPTORS, QEMU + USED, QEMU + AVAILABLE, 0]), None),
        (13, words(&[1]), Some(&File::from(OwnedFd::from(call.1)))),
        (18, state(1, 1), None),
        (12, words(&[1]), Some(&kick_end)),
    ] {
        assert_eq!(card.obey(message(request, &payload, file)).unwrap(), None, "message {request}");
    }
    assert_eq!(card.notifications().count(), 1);
    let offer = |next: u16| memory.write_at(&next.to_le_bytes(), AVAILABLE + 2).unwrap();
    let used = || {
        let mut index = [0; 2];
        memory.read_at(&mut index, USED + 2).unwrap();
        u16::from_le_bytes(index)
    };
    offer(6);
    card.work();
    assert_eq!(used(), 1);
    // Where the queue stopped, and that it did.
    assert_eq!(card.obey(message(11, &state(1, 0), None)).unwrap(), Some(state(1, 6)));
    assert_eq!(card.notifications().count(), 0);
    offer(7);
    card.work();
    assert_eq!(used(), 1);
}

#[test]
fn a_wrong_message_is_refused_in_one_sentence() {
    let mut card = card();
    let empty = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    let table = words(&[1, 0, 0x1000, QEMU, 0]);
    for (request, payload, file, expected) in [
        (99, vec![], None, "the message 99, which this card does not know"),
        (2, vec![1, 2], None, "too short"),
        (8, state(2, 32), None, "the queue 2, and there are two"),
        (8, state(0, 31), None, "a queue of 31 descriptors"),
        (8, state(0, 1 << 20), None, "a queue of 65535 descriptors"),
        (9, words(&[0, QEMU, QEMU, QEMU, 0]), None, "outside of the guest's memory"),
        (12, words(&[0]), None, "has no file"),
        (5, table.clone(), None, "without their files"),
        (5, table, Some(&empty), "a region that its file does not have"),
        (18, state(7, 1), None, "the queue 7"),
    ] {
        let error = card.obey(message(request, &payload, file)).unwrap_err();
        assert!(format!("{error:#}").contains(expected), "message {request}: {error:#}");
    }
}

#[test]
fn a_message_that_is_too_long_or_ends_early_is_refused() {
    for (bytes, expected) in [
        (&[5, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f][..], "more than any has"),
        (&[5, 0, 0, 0, 1, 0], "has no end"),
        (&[5, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1], "has no end"),
    ] {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        drop(theirs);
        let error = Connection::new(ours).receive().unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{error:#}");
    }
    let (theirs, ours) = UnixStream::pair().unwrap();
    drop(theirs);
    assert!(Connection::new(ours).receive().unwrap().is_none());
}
