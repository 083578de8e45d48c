//! [`Net`] against a back end that is correct or wrong.

use crate::grants::Grants;
use crate::net::{Net, NetOffers, without_bus};
use crate::net_wire as wire;
use crate::page::{Frames, IdentityFrames, PAGE_BYTES, SharedPages};
use crate::ring::RING_HEADER_BYTES;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use core::num::NonZeroU16;
use core::sync::atomic::Ordering;
use glass_drivers_device::{Driver, NetDevice, NetTransmit};
use proptest::prelude::*;

/// A frame that was sent: its bytes, the flags of its first part, and how it is to be cut.
type Sent = (Vec<u8>, u16, Option<(u16, u8)>);

const ENTRIES: u32 = 256;
const ALL: NetOffers = NetOffers { parts: true, checksums: true, segments_v4: true, segments_v6: true, mtu: 1500 };

/// The back end's end of a ring, which lies behind the pages.
struct Ring {
    pages: SharedPages,
    ring: SharedPages,
    entry_bytes: usize,
    consumed: u32,
}

impl Ring {
    fn new(pages: SharedPages, entry_bytes: usize) -> Ring {
        let ring = pages.part(ENTRIES as usize, 1);
        Ring { pages, ring, entry_bytes, consumed: 0 }
    }

    fn at(&self, number: u32) -> usize {
        RING_HEADER_BYTES + (number % ENTRIES) as usize * self.entry_bytes
    }

    /// The next request.
    fn take(&mut self) -> Option<[u8; 12]> {
        if self.consumed == self.ring.word_u32(0).load(Ordering::Acquire) {
            return None;
        }
        let mut request = [0; 12];
        self.ring.read(self.at(self.consumed), &mut request[..self.entry_bytes]);
        self.consumed = self.consumed.wrapping_add(1);
        Some(request)
    }

    fn answer(&mut self, response: &[u8]) {
        let produced = self.ring.word_u32(8).load(Ordering::Relaxed);
        self.ring.write(self.at(produced), response);
        self.ring.word_u32(8).store(produced.wrapping_add(1), Ordering::Release);
    }
}

struct Back {
    receive: Ring,
    send: Ring,
}

/// A part of a frame that the back end delivers: its flags and bytes.
type Part<'a> = (u16, &'a [u8]);

impl Back {
    fn part(&mut self, (flags, bytes): Part) {
        let request = self.receive.take().expect("room for a frame");
        let page = usize::from(u16::from_le_bytes([request[0], request[1]]));
        self.receive.pages.write(page * PAGE_BYTES + 16, bytes);
        let [low, high] = (bytes.len() as u16).to_le_bytes();
        let [flag, _] = flags.to_le_bytes();
        self.receive.answer(&[request[0], request[1], 16, 0, flag, 0, low, high]);
    }

    fn extra(&mut self, kind: u8) {
        self.receive.take().expect("room for an entry");
        self.receive.answer(&[1, 0, 0xb4, 5, kind, 0, 0, 0]);
    }

    /// The next frame that was sent: its bytes, the flags of its first part, and how it is to be cut. All parts are answered.
    fn sent(&mut self) -> Option<Sent> {
        let word = |bytes: &[u8; 12], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let first = self.send.take()?;
        let cut = (word(&first, 6) & wire::EXTRA != 0).then(|| {
            let extra = self.send.take().expect("the entry that was announced");
            assert_eq!(extra[0], 1);
            (u16::from_le_bytes([extra[2], extra[3]]), extra[4])
        });
        let mut parts = vec![first];
        while word(parts.last().unwrap(), 6) & wire::MORE != 0 {
            parts.push(self.send.take().expect("the part that was announced"));
        }
        assert!(parts.len() + usize::from(cut.is_some()) <= wire::SLOTS_MAX);
        let rest: usize = parts[1..].iter().map(|part| usize::from(word(part, 10))).sum();
        let mut frame = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let length = usize::from(word(part, 10)) - if index == 0 { rest } else { 0 };
            let mut bytes = vec![0; length];
            self.send.pages.read(usize::from(word(part, 8)) * PAGE_BYTES + usize::from(word(part, 4)), &mut bytes);
            frame.extend(bytes);
        }
        for (index, part) in parts.iter().enumerate() {
            self.send.answer(&[part[8], part[9], 0, 0]);
            if index == 0 && cut.is_some() {
                self.send.answer(&[0xff, 0xff, 1, 0]);
            }
        }
        Some((frame, word(&first, 6), cut))
    }
}

fn world(offers: NetOffers, events: &Cell<u32>) -> (Net<&Cell<u32>>, Back) {
    let grants = Grants::new(IdentityFrames.allocate(4).unwrap());
    let (net, [receive, send]) = without_bus(offers, &grants, events);
    let receive = Ring::new(receive, wire::RECEIVE_BYTES);
    (net, Back { receive, send: Ring::new(send, wire::SEND_BYTES) })
}

/// A frame of TCP over IPv4 with `bytes` bytes, whose checksum is wrong.
fn tcp(bytes: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 256) as u8).collect();
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6]);
    frame[16..18].copy_from_slice(&((bytes - 14) as u16).to_be_bytes());
    frame[46] = 0x50;
    frame
}

fn send(net: &mut Net<&Cell<u32>>, frame: &[u8], segment_bytes: Option<NonZeroU16>) -> bool {
    let Some(transmit) = net.transmit() else { return false };
    transmit.send(frame.len(), segment_bytes, |target| target.copy_from_slice(frame));
    true
}

#[test]
fn frames_of_any_length_are_sent() {
    let events = Cell::new(0);
    let (mut net, mut back) = world(ALL, &events);
    for round in 0..40 {
        for bytes in [60, 1514, 4096, 4097, 20_000, 65_535] {
            let frame = tcp(bytes);
            let segment_bytes = NonZeroU16::new(1460).filter(|_| bytes > 1514);
            assert!(send(&mut net, &frame, segment_bytes), "round {round}");
            net.kick();
            let (sent, flags, cut) = back.sent().unwrap();
            // All but the checksum, which has the sum of the pseudo header.
            assert!(sent[..50] == frame[..50] && sent[52..] == frame[52..] && sent.len() == bytes);
            assert_eq!((flags & 3, cut), (3, segment_bytes.map(|bytes| (bytes.get(), wire::SEGMENTS_V4))));
            assert!(net.poll() && net.violation().is_none());
        }
    }
    assert!(events.get() > 0);
}

#[test]
fn a_full_ring_sends_nothing_until_there_is_room() {
    let events = Cell::new(0);
    let (mut net, mut back) = world(ALL, &events);
    let count = (0..ENTRIES).take_while(|_| send(&mut net, &tcp(60), None)).count();
    assert_eq!(count, 256 - wire::SLOTS_MAX + 1);
    assert!(net.receive().is_none() && !net.arm());
    net.kick();
    assert_eq!(core::iter::from_fn(|| back.sent()).count(), count);
    assert!(net.arm() && net.poll() && send(&mut net, &tcp(60), None));
}

#[test]
fn without_offers_a_frame_is_whole_and_its_checksum_is_the_stacks() {
    let events = Cell::new(0);
    let offers = NetOffers { parts: false, checksums: false, segments_v4: false, segments_v6: false, mtu: 1500 };
    let (mut net, mut back) = world(offers, &events);
    let limits = net.limits();
    assert!(!limits.completes_checksums && limits.segment_v4_bytes_max.is_none());
    assert!(send(&mut net, &tcp(1514), None) && send(&mut net, &tcp(4097), None));
    net.kick();
    assert_eq!(back.sent(), Some((tcp(1514), 0, None)));
    assert_eq!(back.sent(), None, "a frame that is too long is lost");
}

#[test]
fn frames_arrive_in_parts_and_joined() {
    let events = Cell::new(0);
    let (mut net, mut back) = world(ALL, &events);
    let frame = tcp(10_000);
    // More entries than the ring has, so that each page comes again.
    for _ in 0..300 {
        back.part((wire::RECEIVE_PARTIAL | wire::MORE | wire::EXTRA, &frame[..4000]));
        back.extra(wire::SEGMENTS_V4);
        back.part((wire::MORE, &frame[4000..8000]));
        assert!(net.poll() && net.receive().is_none(), "its last part is missing");
        back.part((0, &frame[8000..]));
        assert!(net.poll());
        assert_eq!(net.receive().map(|(received, _)| received == frame), Some(true));
        assert!(net.receive().is_none());
        net.kick();
    }
    assert_eq!(net.violation(), None);
}

#[test]
fn frames_with_a_wrong_checksum_or_an_error_are_dropped() {
    let events = Cell::new(0);
    let (mut net, mut back) = world(ALL, &events);
    let frame = tcp(100);
    back.part((0, &frame));
    back.part((wire::RECEIVE_VALIDATED, &frame[..10]));
    back.part((wire::RECEIVE_VALIDATED | wire::EXTRA, &frame));
    back.extra(9);
    let request = back.receive.take().unwrap();
    back.receive.answer(&[request[0], request[1], 0, 0, 0, 0, 0xff, 0xff]);
    // Longer than any frame, in parts without end.
    (0..40).for_each(|_| back.part((wire::MORE, &[0; 4000])));
    back.part((0, &frame));
    back.part((wire::RECEIVE_VALIDATED, &frame));
    assert_eq!(net.receive().map(|(received, _)| received.to_vec()), Some(frame));
    assert!(net.receive().is_none() && net.violation().is_none());
}

#[test]
fn a_lie_ends_the_use_of_the_card() {
    let violations: [fn(&mut Back); 5] = [
        |back| back.receive.answer(&[1, 0, 0, 0, 0, 0, 60, 0]),
        |back| back.receive.answer(&[0, 0, 0xff, 0xf, 0, 0, 2, 0]),
        |back| back.receive.ring.word_u32(8).store(257, Ordering::Relaxed),
        |back| back.send.answer(&[0, 1, 0, 0]),
        |back| back.send.ring.word_u32(8).store(9, Ordering::Relaxed),
    ];
    for violation in violations.into_iter().map(Some).chain([None]) {
        let events = Cell::new(0);
        let (mut net, mut back) = world(ALL, &events);
        assert!(send(&mut net, &tcp(60), None));
        net.kick();
        match violation {
            Some(violation) => violation(&mut back),
            None => net.closed().set(true),
        }
        net.poll();
        assert!(net.receive().is_none() && net.violation().is_some());
        assert!(net.transmit().is_none() && !net.poll() && !net.arm() && net.restart().is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bytes_do_harm(
        steps in proptest::collection::vec((0_u8..5, any::<u32>(), proptest::collection::vec(any::<u8>(), 12)), 1..200),
    ) {
        let events = Cell::new(0);
        let (mut net, mut back) = world(ALL, &events);
        for (step, number, bytes) in steps {
            match step {
                0 => _ = send(&mut net, &tcp(60 + number as usize % 60_000), NonZeroU16::new(number as u16)),
                1 => _ = net.kick(),
                2 => back.receive.answer(&bytes[..8]),
                3 => back.send.answer(&bytes[..4]),
                _ => back.receive.ring.word_u32(8).store(number % 300, Ordering::Relaxed),
            }
            net.poll();
            let frames = (0..).take_while(|_| net.receive().is_some()).take(1000).count();
            prop_assert!(frames <= 256, "each entry is at most one frame");
        }
    }
}
