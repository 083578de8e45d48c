//! The socket driver against a device in memory, correct or malfunctioning.

use crate::fake::{BounceDma, DAMAGED, Fake, GuardedDma};
use crate::test_allocator::with_less_memory_than;
use crate::transport::{device, feature, status};
use crate::vsock::{VSOCK_HEADER_BYTES, Vsock, VsockConfig};
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use glass_api::Buf;
use glass_drivers_device::{Driver, SetupError, Violation};

const CID: [u8; 8] = [3, 0, 0, 0, 0, 0, 0, 0];
const BYTES: usize = 4096;

fn vsock() -> (Fake, Vsock<Fake, GuardedDma>) {
    vsock_with(feature::EVENT_IDX)
}

fn vsock_with(features: u64) -> (Fake, Vsock<Fake, GuardedDma>) {
    let fake = Fake::new(device::VSOCK, features, &CID);
    let config = VsockConfig { receive_buffers: 8, receive_bytes: BYTES };
    (fake.clone(), Vsock::new(fake, GuardedDma, config).unwrap())
}

/// The device hands over a packet, with the length that it claims. Whether it may interrupt.
fn deliver(fake: &Fake, header: u8, data: &[u8], claimed: Option<u32>) -> bool {
    fake.with(0, |queue| {
        let chain = queue.take().expect("the driver posts buffers");
        assert_eq!(chain.segments.iter().map(|segment| segment.bytes).collect::<Vec<_>>(), [44, BYTES as u32]);
        let written = chain.write(&[&[header; VSOCK_HEADER_BYTES][..], data].concat());
        queue.complete(chain.head, claimed.unwrap_or(written))
    })
}

fn posted(fake: &Fake) -> usize {
    let mut count = 0;
    while fake.with(0, |queue| queue.take()).is_some() {
        count += 1;
    }
    count
}

#[test]
fn packets_are_received_and_their_buffers_go_back() {
    let (fake, mut vsock) = vsock();
    assert_eq!(vsock.cid(), 3);
    for round in 0..100u8 {
        deliver(&fake, round, &vec![round; usize::from(round)], None);
        assert!(vsock.poll());
        let packet = vsock.receive().unwrap();
        assert_eq!((packet.header, packet.bytes), ([round; 44], usize::from(round)));
        assert!(packet.buffer[..packet.bytes].iter().all(|byte| *byte == round));
        match round % 3 {
            0 => vsock.give(packet.buffer),
            // The receiver keeps the data: another buffer takes its place.
            1 => {
                let kept = packet.buffer.clone();
                vsock.give(packet.buffer);
                assert_eq!(kept[..packet.bytes], vec![round; packet.bytes]);
            }
            2 if round < 50 => vsock.give_new(),
            _ => vsock.give(Buf::zeroed(BYTES - 1).unwrap()),
        }
        assert!(!vsock.poll() && vsock.receive().is_none());
    }
    assert_eq!(posted(&fake), 8);
}

#[test]
fn a_device_says_whether_it_carries_messages() {
    for (offered, has_messages) in [(u64::MAX, true), (feature::EVENT_IDX, false)] {
        let (fake, vsock) = vsock_with(offered);
        assert_eq!(vsock.has_messages(), has_messages);
        let known = feature::EVENT_IDX | if has_messages { 1 << 1 } else { 0 };
        assert_eq!(fake.state().accepted, known | feature::VERSION_1);
    }
}

#[test]
fn no_more_buffers_are_made_than_the_queue_holds() {
    for (receive_buffers, count) in [(1, 1), (64, 64), (1000, 64)] {
        let fake = Fake::new(device::VSOCK, 0, &CID);
        let config = VsockConfig { receive_buffers, receive_bytes: BYTES };
        let _vsock = Vsock::new(fake.clone(), GuardedDma, config).unwrap();
        assert_eq!(posted(&fake), count);
    }
}

#[test]
fn buffers_for_which_there_was_no_memory_are_made_later() {
    let (fake, mut vsock) = vsock();
    let receive = |vsock: &mut Vsock<Fake, GuardedDma>| {
        deliver(&fake, 1, b"x", None);
        vsock.receive().unwrap().buffer
    };
    let kept: Vec<Buf> = (0..3).map(|_| receive(&mut vsock)).collect();
    with_less_memory_than(BYTES, || {
        vsock.give_new();
        vsock.give_new();
        vsock.give(kept[0].clone());
        vsock.kick();
    });
    assert_eq!(posted(&fake), 5);
    vsock.kick();
    vsock.kick();
    assert_eq!(posted(&fake), 3, "and the two that were taken are not made again");
}

#[test]
fn buffers_are_lent_for_their_packet_only() {
    let fake = Fake::new(device::VSOCK, 0, &CID);
    let dma = BounceDma::default();
    let config = VsockConfig { receive_buffers: 8, receive_bytes: BYTES };
    let mut vsock = Vsock::new(fake.clone(), dma.clone(), config).unwrap();
    assert!(vsock.send(&[1; 44], Some(Buf::zeroed(100).unwrap())) && vsock.send(&[1; 44], None));
    assert_eq!(dma.count(), 9);
    deliver(&fake, 1, b"data", None);
    let packet = vsock.receive().unwrap();
    assert_eq!((&packet.buffer[..4], dma.count()), (&b"data"[..], 8));
    vsock.give(packet.buffer);
    fake.with(1, |queue| {
        let chain = queue.take().unwrap();
        queue.complete(chain.head, 0);
    });
    assert!(vsock.has_space());
    assert_eq!(dma.count(), 9, "what was sent is taken back when room is wanted");
    drop(vsock);
    assert_eq!(dma.count(), 0);
}

#[test]
fn a_packet_that_cannot_be_lent_waits_and_no_other_one_overtakes_it() {
    let fake = Fake::new(device::VSOCK, 0, &CID);
    let dma = BounceDma::default();
    let config = VsockConfig { receive_buffers: 8, receive_bytes: BYTES };
    let mut vsock = Vsock::new(fake.clone(), dma.clone(), config).unwrap();
    let data = |byte| Some(Buf::copy_of(&[byte; 100]).unwrap());
    dma.set_full(true);
    assert!(vsock.send(&[1; 44], data(1)), "it is kept");
    assert!(!vsock.has_space() && !vsock.send(&[2; 44], data(2)));
    vsock.kick();
    dma.set_full(false);
    fake.with(1, |queue| assert!(queue.take().is_none()));
    vsock.kick();
    assert!(vsock.send(&[3; 44], data(3)));
    vsock.kick();
    fake.with(1, |queue| {
        let sent: Vec<_> = [(); 2].map(|()| queue.take().unwrap().read()).into();
        assert_eq!(sent, [1, 3].map(|byte| [&[byte; 44][..], &[byte; 100]].concat()));
    });
}

#[test]
fn packets_are_sent_with_one_kick_and_their_data_is_not_copied() {
    let (fake, mut vsock) = vsock();
    fake.notifications();
    let data = Buf::copy_of(&[7; 3000]).unwrap();
    assert!(vsock.send(&[1; 44], None) && vsock.send(&[2; 44], Some(data.clone())));
    vsock.kick();
    assert_eq!(fake.notifications(), [1]);
    fake.with(1, |queue| {
        let head = queue.take().unwrap();
        assert_eq!(head.read(), [1; 44]);
        let chain = queue.take().unwrap();
        assert_eq!(chain.read(), [&[2; 44][..], &data].concat());
        assert_eq!(chain.segments[1].address, data.as_ptr().expose_provenance() as u64);
        queue.complete(head.head, 0);
        queue.complete(chain.head, 0);
    });
    // The queue holds 64 of two descriptors; what was sent makes room when it is needed.
    let mut count = 0;
    while vsock.has_space() {
        assert!(vsock.send(&[3; 44], Some(data.slice(0..1))));
        count += 1;
    }
    assert_eq!(count, 64);
    assert!(!vsock.send(&[3; 44], None));
    // Only a sender without room wants to hear of what was sent, when half of it was.
    assert!(!vsock.arm());
    let wishes: Vec<bool> = (0..64)
        .map(|_| {
            fake.with(1, |queue| {
                let chain = queue.take().unwrap();
                queue.complete(chain.head, 0)
            })
        })
        .collect();
    assert_eq!(wishes.iter().position(|wanted| *wanted), Some(32));
    assert!(vsock.arm() && vsock.poll() && vsock.has_space());
}

#[test]
fn interrupts_come_only_while_it_is_armed() {
    for features in [feature::EVENT_IDX, 0] {
        let (fake, mut vsock) = vsock_with(features);
        for is_armed in [true, false, true] {
            if is_armed {
                assert!(!vsock.arm());
            } else {
                vsock.arm();
                vsock.disarm();
            }
            assert_eq!(deliver(&fake, 1, b"x", None), is_armed, "{features:#x}");
            assert!(vsock.arm(), "a packet waits");
            let packet = vsock.receive().unwrap();
            vsock.give(packet.buffer);
        }
    }
}

#[test]
fn a_machine_that_was_moved_has_another_identifier() {
    let (fake, mut vsock) = vsock();
    assert!(!vsock.take_reset());
    // Events are rare: few buffers do for them.
    assert_eq!(fake.with(2, |queue| queue.available_index()), 4);
    let happen = |number: u32| {
        fake.with(2, |queue| {
            let chain = queue.take().unwrap();
            let written = chain.write(&number.to_le_bytes());
            queue.complete(chain.head, written);
        });
    };
    fake.state().config[0] = 9;
    for _ in 0..8 {
        happen(1);
        assert!(vsock.poll() && !vsock.take_reset(), "an event that means something else");
    }
    for _ in 0..20 {
        happen(0);
        assert!(vsock.arm() && vsock.take_reset() && !vsock.take_reset());
    }
    assert_eq!(vsock.cid(), 9);
}

#[test]
fn impossible_identifiers_are_refused() {
    for cid in [0, 1, 2, u64::from(u32::MAX), 1 << 32, 1 << 32 | 3, u64::MAX] {
        let fake = Fake::new(device::VSOCK, feature::EVENT_IDX, &cid.to_le_bytes());
        let error = Vsock::new(fake, GuardedDma, VsockConfig::default()).err();
        assert!(matches!(error, Some(SetupError::BadConfig(_))), "{cid}: {error:?}");
    }
}

#[test]
fn packets_without_a_header_are_dropped() {
    let (fake, mut vsock) = vsock();
    for claimed in [0, 1, 43] {
        deliver(&fake, 1, b"", Some(claimed));
    }
    deliver(&fake, 2, b"", Some(44));
    let packet = vsock.receive().unwrap();
    assert_eq!((packet.header[0], packet.bytes), (2, 0));
    vsock.give(packet.buffer);
    assert_eq!(posted(&fake), 8);
}

#[test]
fn a_liar_is_reset_and_can_be_started_again() {
    let (fake, mut vsock) = vsock();
    let data = Buf::copy_of(&[7; 100]).unwrap();
    assert!(vsock.send(&[1; 44], Some(data.clone())));
    deliver(&fake, 1, b"", Some(44 + BYTES as u32 + 1));
    assert!(vsock.receive().is_none());
    let resets = fake.state().resets;
    assert!(!vsock.poll() && !vsock.arm());
    assert_eq!(vsock.violation(), Some(Violation::LengthTooLong { bytes: 4141, writable: 4140 }));
    assert_eq!(fake.state().resets, resets + 1);
    assert!(!vsock.send(&[1; 44], None) && vsock.receive().is_none());
    // The data is its owner's alone again.
    let mut data = data;
    assert!(data.as_mut().is_some());
    vsock.restart().unwrap();
    assert_eq!(vsock.violation(), None);
    assert!(vsock.send(&[1; 44], Some(data)));
    deliver(&fake, 4, b"again", None);
    assert_eq!(vsock.receive().unwrap().bytes, 5);
    assert_eq!(posted(&fake), 7);
    drop(vsock);
    assert_eq!(fake.state().status, 0);
    assert_eq!(DAMAGED.load(Ordering::SeqCst), 0);
}

#[test]
fn a_device_that_does_not_reset_keeps_what_it_has() {
    for is_noticed_early in [true, false] {
        let (fake, mut vsock) = vsock();
        let mut data = Buf::copy_of(&[7; 100]).unwrap();
        assert!(vsock.send(&[1; 44], Some(data.clone())));
        fake.state().stuck = true;
        if is_noticed_early {
            fake.state().status |= status::NEEDS_RESET;
            vsock.acknowledge();
            assert!(!vsock.arm() && vsock.violation() == Some(Violation::NeedsReset));
        }
        drop(vsock);
        assert!(data.as_mut().is_none(), "the device may still read it");
    }
}
