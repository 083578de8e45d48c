//! The card between a driver, whose rings the tests write by hand, and a socket in place of the TAP device: its reads and writes are frames, too.

use super::moves::{Receiver, Transmitter};
use super::{HEADER_BYTES, Tap};
use crate::device::Turn;
use crate::test_guest::{AVAILABLE, DATA, DESCRIPTORS, Guest, MEMORY_BYTES, NEXT, SIZE, USED, WRITE};
use proptest::prelude::*;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddress};

/// A guest, and the host's side of the network.
struct Host {
    guest: Guest,
    tap: Tap,
    network: UnixDatagram,
}

impl Host {
    fn new(has_events: bool) -> Host {
        let (ours, network) = UnixDatagram::pair().unwrap();
        for socket in [&ours, &network] {
            socket.set_nonblocking(true).unwrap();
        }
        Host { guest: Guest::new(has_events), tap: Tap::from_file(OwnedFd::from(ours).into()), network }
    }

    /// Offers buffers of `bytes` to receive into.
    fn offer_buffers(&mut self, count: u16, bytes: u32) {
        for index in 0..count {
            self.guest.descriptor(index, DATA + u64::from(index) * 0x10000, bytes, WRITE, 0);
            self.guest.offer(index);
        }
    }

    /// Queues a frame to send, its first bytes in a descriptor of their own.
    fn queue_frame(&mut self, head: u16, frame: &[u8]) {
        let at = DATA + u64::from(head) * 0x10000;
        self.guest.memory.write_slice(frame, GuestAddress(at)).unwrap();
        self.guest.descriptor(head, at, HEADER_BYTES as u32, NEXT, head + 1);
        self.guest.descriptor(head + 1, at + HEADER_BYTES as u64, (frame.len() - HEADER_BYTES) as u32, 0, 0);
        self.guest.offer(head);
    }

    fn bytes(&self, index: u16, count: usize) -> Vec<u8> {
        self.guest.bytes(DATA + u64::from(index) * 0x10000, count)
    }

    fn receive(&mut self, receiver: &mut Receiver) -> Turn {
        receiver.turn(&mut self.tap, &self.guest.memory, &mut self.guest.ring)
    }

    fn transmit(&mut self, transmitter: &mut Transmitter) -> Turn {
        transmitter.turn(&mut self.tap, &self.guest.memory, &mut self.guest.ring, HEADER_BYTES)
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
    let mut host = Host::new(false);
    let mut receiver = receiver(true);
    host.offer_buffers(10, 16384);
    for frame in [frame(40_000, 1), frame(60, 2)] {
        host.network.send(&frame).unwrap();
    }
    assert_eq!(host.receive(&mut receiver), Turn::Done);
    assert_eq!(host.guest.used(), [(0, 16384), (1, 16384), (2, 40_012 - 2 * 16384), (3, 72)]);
    // How many buffers each has is in its header.
    assert_eq!(host.bytes(0, 13), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 1]);
    assert_eq!(host.bytes(3, 13), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2]);
    assert_eq!(host.bytes(1, 16384), vec![1; 16384]);
    assert_eq!(host.guest.interrupts(), 1);
    // The buffers that were not filled are still there.
    host.network.send(&frame(100_000 - 40_000, 3)).unwrap();
    assert_eq!(host.receive(&mut receiver), Turn::Done);
    assert_eq!(host.guest.used()[4..].iter().map(|used| used.0).collect::<Vec<_>>(), [4, 5, 6, 7]);
}

#[test]
fn a_frame_waits_for_room() {
    let mut host = Host::new(true);
    let mut receiver = receiver(true);
    for frame in [frame(3000, 1), frame(500, 2)] {
        host.network.send(&frame).unwrap();
    }
    assert_eq!(host.receive(&mut receiver), Turn::NeedsGuest);
    host.offer_buffers(2, 1000);
    assert_eq!(host.receive(&mut receiver), Turn::NeedsGuest);
    assert_eq!(host.guest.used(), []);
    // The next buffer is one that the guest notifies of.
    let event: u16 = host.guest.memory.read_obj(GuestAddress(USED + 4 + u64::from(SIZE) * 8)).unwrap();
    assert_eq!(event, 2);
    for index in 2..5 {
        host.guest.descriptor(index, DATA + u64::from(index) * 0x10000, 1000, WRITE, 0);
        host.guest.offer(index);
    }
    assert_eq!(host.receive(&mut receiver), Turn::NeedsGuest);
    assert_eq!(host.guest.used(), [(0, 1000), (1, 1000), (2, 1000), (3, 12), (4, 512)]);
    assert_eq!(host.bytes(3, 12), [1; 12]);
}

#[test]
fn a_frame_that_is_too_long_for_a_buffer_is_lost_alone() {
    let mut host = Host::new(false);
    let mut receiver = receiver(false);
    host.offer_buffers(2, 1526);
    for frame in [frame(3000, 1), frame(1514, 2)] {
        host.network.send(&frame).unwrap();
    }
    assert_eq!(host.receive(&mut receiver), Turn::Done);
    assert_eq!(host.guest.used(), [(0, 1526)]);
    assert_eq!(host.bytes(0, 13)[10..], [1, 0, 2]);
}

#[test]
fn what_is_no_buffer_goes_back() {
    let mut host = Host::new(false);
    let mut receiver = receiver(true);
    // Outside of the memory, only to be read, and shorter than a header.
    host.guest.descriptor(0, MEMORY_BYTES as u64 - 10, 100, WRITE, 0);
    host.guest.descriptor(1, DATA, 2000, 0, 0);
    host.guest.descriptor(2, DATA, 8, WRITE, 0);
    for head in 0..3 {
        host.guest.offer(head);
    }
    host.network.send(&frame(60, 1)).unwrap();
    assert_eq!(host.receive(&mut receiver), Turn::NeedsGuest);
    assert_eq!(host.guest.used(), [(0, 0), (1, 0), (2, 0)]);
    host.guest.descriptor(3, DATA, 2000, WRITE, 0);
    host.guest.offer(3);
    // There may be more frames, but there is no buffer for one.
    assert_eq!(host.receive(&mut receiver), Turn::NeedsGuest);
    assert_eq!(host.guest.used()[3..], [(3, 72)]);
}

#[test]
fn frames_are_sent_in_their_order() {
    let mut host = Host::new(false);
    let mut transmitter = Transmitter::new();
    let frames = [frame(60, 1), frame(20_000, 2), frame(1514, 3)];
    for (head, frame) in (0..).step_by(2).zip(&frames) {
        host.queue_frame(head, frame);
    }
    // One that the host would have to write to, which is lost.
    host.guest.descriptor(6, DATA, 100, WRITE, 0);
    host.guest.offer(6);
    assert_eq!(host.transmit(&mut transmitter), Turn::Done);
    assert_eq!(host.sent().into_iter().filter(|frame| !frame.is_empty()).collect::<Vec<_>>(), frames);
    assert_eq!(host.guest.used(), [(0, 0), (2, 0), (4, 0), (6, 0)]);
    assert_eq!(host.guest.interrupts(), 1);
}

#[test]
fn interrupts_and_notifications_are_those_that_were_wanted() {
    let mut host = Host::new(true);
    let mut transmitter = Transmitter::new();
    let wants_at = |host: &Host, event: u16| {
        host.guest.memory.write_obj(event, GuestAddress(AVAILABLE + 4 + u64::from(SIZE) * 2)).unwrap();
    };
    wants_at(&host, 3);
    for (head, interrupts) in [(0, 0), (2, 0), (4, 0), (6, 1), (8, 0)] {
        host.queue_frame(head, &frame(60, 1));
        host.transmit(&mut transmitter);
        assert_eq!(host.guest.interrupts(), interrupts, "frame {head}");
        // The guest notifies of the next frame.
        let event: u16 = host.guest.memory.read_obj(GuestAddress(USED + 4 + u64::from(SIZE) * 8)).unwrap();
        assert_eq!(event, host.guest.offered);
    }
}

#[test]
fn a_queue_that_does_not_run_moves_nothing() {
    let mut host = Host::new(false);
    host.guest.ring.queue.set_ready(false);
    host.queue_frame(0, &frame(60, 1));
    assert_eq!(host.transmit(&mut Transmitter::new()), Turn::NeedsGuest);
    assert_eq!(host.receive(&mut receiver(true)), Turn::NeedsGuest);
    assert_eq!((host.guest.used_count(), host.sent().len()), (0, 0));
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
fn coalesced(datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut host = Host::new(false);
    for (head, frame) in (0..).step_by(2).zip(datagrams) {
        host.queue_frame(head, frame);
    }
    host.transmit(&mut Transmitter::new());
    assert_eq!(usize::from(host.guest.used_count()), datagrams.len());
    host.sent()
}

#[test]
fn datagrams_that_follow_each_other_are_one_frame() {
    for (is_v4, ip_bytes) in [(true, 20), (false, 40)] {
        let data = [vec![1; 1000], vec![2; 1000], vec![3; 500]];
        let frames = coalesced(&data.clone().map(|data| datagram(is_v4, 9, &data)));
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
        assert_eq!(coalesced(&[plain(), second.clone()]), [plain(), second], "{why}");
    }
    // Behind a shorter one another frame starts; the packet's number does not matter.
    let numbered = change(26 + 5, 8);
    let frames = coalesced(&[plain(), numbered, datagram(true, 9, &[1; 99]), plain(), plain()]);
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [54 + 299, 54 + 200]);
    // As long as a packet can be.
    let frames = coalesced(&vec![datagram(true, 9, &[1; 30_000]); 3]);
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
        let mut host = Host::new(has_events);
        host.guest.memory.write_slice(&rings, GuestAddress(DESCRIPTORS)).unwrap();
        for (index, (address, bytes, flags, next)) in (0..).zip(descriptors) {
            host.guest.descriptor(index, address, bytes % 200_000, flags, next);
        }
        host.guest.offered = offered;
        host.guest.memory.write_obj(offered, GuestAddress(AVAILABLE + 2)).unwrap();
        let (mut receiver, mut transmitter) = (receiver(is_merged), Transmitter::new());
        for bytes in [60, 1514, 65_000] {
            host.network.send(&frame(bytes, 1)).unwrap();
            host.receive(&mut receiver);
            host.transmit(&mut transmitter);
            host.sent();
        }
    }
}
