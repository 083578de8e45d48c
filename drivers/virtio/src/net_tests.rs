//! The network driver against a wire in memory.

use crate::fake::{DAMAGED, Fake, GuardedDma};
use crate::net::{Net, NetConfig};
use crate::net_buffers::{Agreed, Plan};
use crate::net_header::{self, HEADER_BYTES};
use crate::transport::{device, feature, status};
use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroUsize;
use core::sync::atomic::Ordering;
use glass_drivers_device::{Driver, NetDevice, NetLimits, NetTransmit, SetupError, Sum, Verdict, Violation, verify};

const PLAIN: u64 = feature::EVENT_IDX | feature::NET_MAC;
const CHECKSUMS: u64 = PLAIN | feature::NET_CSUM | feature::NET_GUEST_CSUM;
const SEGMENTS_V6: u64 = feature::NET_HOST_TSO6 | feature::NET_GUEST_TSO6;
const ALL: u64 = CHECKSUMS | feature::NET_HOST_TSO4 | feature::NET_GUEST_TSO4 | SEGMENTS_V6;
const MERGED: u64 = ALL | feature::NET_MRG_RXBUF;

fn net(features: u64, memory_bytes: usize) -> (Fake, Net<Fake, GuardedDma>) {
    let fake = Fake::new(device::NET, features, &[2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0xdc, 5]);
    let config = NetConfig { memory_bytes, ..NetConfig::default() };
    (fake.clone(), Net::new(fake, GuardedDma, config).unwrap())
}

/// The device hands over a frame, with the length that it claims.
fn deliver(fake: &Fake, header: [u8; HEADER_BYTES], frame: &[u8], claimed: Option<u32>) {
    fake.with(0, |queue| {
        let chain = queue.take().expect("the driver posts buffers");
        let written = chain.write(&[&header[..], frame].concat());
        queue.complete(chain.head, claimed.unwrap_or(written));
    });
}

fn receive(net: &mut Net<Fake, GuardedDma>) -> Option<Vec<u8>> {
    Some(net.receive()?.0.to_vec())
}

/// A TCP or UDP frame over IPv4 or IPv6 with a right checksum.
pub fn frame(version: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let mut l4 = vec![0; if protocol == 6 { 20 } else { 8 }];
    if protocol == 6 {
        l4[12] = 5 << 4;
    } else {
        let length = (8 + payload.len()) as u16;
        l4[4..6].copy_from_slice(&length.to_be_bytes());
    }
    l4.extend_from_slice(payload);
    let length = l4.len() as u16;
    let addresses: Vec<u8> = (1..=if version == 4 { 8 } else { 32 }).collect();
    if version == 4 {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + length).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([protocol, 64]);
    }
    frame.extend(&addresses);
    let sum = Sum::default().with(&addresses).with_word(length).with_word(u16::from(protocol)).with(&l4);
    let checksum = if protocol == 6 { 16 } else { 6 };
    l4[checksum..checksum + 2].copy_from_slice(&(!sum.fold()).to_be_bytes());
    frame.extend(l4);
    frame
}

#[test]
fn frames_arrive_and_their_buffers_go_back() {
    let (fake, mut net) = net(PLAIN, 64 << 10);
    assert_eq!(net.mac(), [2, 0, 0, 0, 0, 1]);
    fake.notifications();
    for round in 0..200u8 {
        deliver(&fake, [0; HEADER_BYTES], &[round; 100], None);
        assert!(net.poll());
        assert_eq!(receive(&mut net), Some(vec![round; 100]));
        assert!(!net.poll());
    }
    // A frame that is not parsed gives its buffer back as well.
    deliver(&fake, [0; HEADER_BYTES], &[0; 100], None);
    assert!(net.receive().is_some());
    assert_eq!(fake.with(0, |queue| queue.available_index()), 16 + 201);
    net.kick();
    assert!(fake.notifications().is_empty(), "a device that has buffers wants no notification");
}

#[test]
fn frames_leave_with_one_kick_and_their_buffers_come_back() {
    let (fake, mut net) = net(PLAIN, 64 << 10);
    fake.notifications();
    for round in 0..16u8 {
        net.transmit().unwrap().send(60, None, |frame| frame.fill(round));
    }
    assert!(net.transmit().is_none());
    net.kick();
    assert_eq!(fake.notifications(), [1]);
    assert!(!net.arm());
    let mut interrupts = Vec::new();
    for round in 0..16u8 {
        fake.with(1, |queue| {
            let chain = queue.take().unwrap();
            assert_eq!(chain.read(), [&[0; HEADER_BYTES][..], &[round; 60]].concat());
            interrupts.push(queue.complete(chain.head, 0));
        });
    }
    // One interrupt, when half of the buffers are free again.
    assert_eq!(interrupts.iter().filter(|&&wanted| wanted).count(), 1);
    assert!(interrupts[8]);
    assert!(net.arm() && net.poll() && !net.arm());
    assert!(net.transmit().is_some());
    // With room to send, no interrupt is requested for it.
    net.transmit().unwrap().send(60, None, |frame| frame.fill(0));
    assert!(!net.arm());
    assert!(!fake.with(1, |queue| {
        let chain = queue.take().unwrap();
        queue.complete(chain.head, 0)
    }));
}

#[test]
fn interrupts_come_only_while_it_is_armed() {
    let (fake, mut net) = net(PLAIN, 64 << 10);
    for is_armed in [true, false, true] {
        if is_armed {
            assert!(!net.arm());
        } else {
            net.disarm();
        }
        let is_wanted = fake.with(0, |queue| {
            let chain = queue.take().unwrap();
            let written = chain.write(&[0; HEADER_BYTES + 100]);
            queue.complete(chain.head, written)
        });
        assert_eq!(is_wanted, is_armed);
        assert!(receive(&mut net).is_some());
    }
    // Disarmed at once, before the device has seen that it was armed.
    assert!(!net.arm());
    net.disarm();
    assert!(!fake.with(0, |queue| {
        let chain = queue.take().unwrap();
        queue.complete(chain.head, 0)
    }));
}

#[test]
fn a_frame_waits_until_there_is_room_for_its_answer() {
    let (fake, mut net) = net(PLAIN, 64 << 10);
    (0..16).for_each(|_| net.transmit().unwrap().send(60, None, |frame| frame.fill(1)));
    deliver(&fake, [0; HEADER_BYTES], &[7; 100], None);
    assert!(net.receive().is_none());
    fake.with(1, |queue| {
        let chain = queue.take().unwrap();
        queue.complete(chain.head, 0)
    });
    assert_eq!(receive(&mut net), Some(vec![7; 100]));
}

#[test]
fn the_budget_and_the_features_decide_the_buffers() {
    let posted = |features, memory| {
        let (fake, net) = net(features, memory);
        let mut lengths = Vec::new();
        while let Some(chain) = fake.with(0, |queue| queue.take()) {
            lengths.push(chain.writable_bytes());
        }
        assert!(lengths.iter().all(|&length| length == lengths[0]));
        let limits = net.limits();
        let accepted = fake.state().accepted;
        assert_eq!(limits.segment_v4_bytes_max.is_some(), accepted & feature::NET_HOST_TSO4 != 0);
        assert_eq!(limits.segment_v6_bytes_max.is_some(), accepted & feature::NET_HOST_TSO6 != 0);
        (lengths.len(), lengths[0], accepted & MERGED)
    };
    let without_tso = CHECKSUMS;
    assert_eq!(posted(PLAIN, 8 << 20), (32, 2048, PLAIN));
    assert_eq!(posted(ALL, 16 << 20), (32, 69632, ALL));
    // Buffers for frames to be cut, of one version only.
    posted(ALL & !feature::NET_HOST_TSO4, 16 << 20);
    posted(ALL & !feature::NET_HOST_TSO6, 16 << 20);
    assert_eq!(posted(ALL, 2 << 20), (15, 69632, ALL));
    assert_eq!(posted(ALL, 1 << 20), (32, 2048, without_tso));
    assert_eq!(posted(ALL, 128 << 10), (32, 2048, without_tso));
    assert_eq!(posted(ALL, 0), (16, 2048, without_tso));
    assert_eq!(posted(MERGED, 16 << 20), (32, 17408, MERGED));
    assert_eq!(posted(MERGED, 8 << 20), (32, 8704, MERGED));
    assert_eq!(posted(MERGED, 3 << 20), (32, 4352, MERGED));
    assert_eq!(posted(MERGED, 2 << 20), (68, 2048, MERGED));
    assert_eq!(posted(MERGED, 1 << 20), (32, 2048, without_tso));
    let fake = Fake::new(device::NET, ALL, &[2, 0, 0, 0, 0, 1]);
    let config = NetConfig { offload: false, ..NetConfig::default() };
    Net::new(fake.clone(), GuardedDma, config).unwrap();
    assert_eq!(fake.state().accepted & ALL, PLAIN);
}

#[test]
fn a_card_takes_the_features_that_it_knows() {
    let fake = Fake::new(device::NET, u64::MAX, &[2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0xdc, 5]);
    Net::new(fake.clone(), GuardedDma, NetConfig::default()).unwrap();
    assert_eq!(fake.state().accepted, MERGED | feature::NET_MTU | feature::VERSION_1);
}

#[test]
fn a_budget_is_divided_between_the_ways() {
    let plan = |memory_bytes, guest_tso_v4, guest_tso_v6, merged, host_tso| {
        let plan = Plan::new(memory_bytes, Agreed { guest_tso_v4, guest_tso_v6, merged, host_tso });
        let receive = (plan.receive_stride, plan.receive_count, plan.receive_bytes_max);
        (receive, plan.small_count, plan.large_count)
    };
    assert_eq!(plan(8 << 20, true, true, true, true), ((8704, 256, 69632), 128, 45));
    assert_eq!(plan(2 << 20, true, false, false, true), ((69632, 15, 69632), 128, 11));
    assert_eq!(plan(3 << 19, true, true, false, true), ((69632, 11, 69632), 96, 8));
    assert_eq!(plan(2 << 20, false, true, false, false), ((69632, 15, 69632), 256, 0));
    assert_eq!(plan(2 << 20, false, false, true, true), ((2048, 256, 2048), 128, 11));
    assert_eq!(plan(2 << 20, false, false, false, false), ((2048, 256, 2048), 256, 0));
    // Too little for large buffers.
    assert_eq!(plan(1 << 20, false, false, false, true), ((2048, 256, 2048), 256, 0));
    assert_eq!(plan(256 << 10, false, false, false, false), ((2048, 64, 2048), 64, 0));
    assert_eq!(plan(0, false, false, false, true), ((2048, 16, 2048), 16, 0));
}

/// A core that spins on completed transmissions would never sleep.
#[test]
fn what_was_sent_is_no_work_while_there_is_room() {
    let (fake, mut net) = net(PLAIN, 64 << 10);
    net.transmit().unwrap().send(60, None, |frame| frame.fill(1));
    net.kick();
    fake.with(1, |queue| {
        let chain = queue.take().unwrap();
        queue.complete(chain.head, 0);
    });
    assert!(!net.poll());
}

#[test]
fn no_frame_is_taken_that_a_short_queue_has_no_room_for() {
    let fake = Fake::new(device::NET, PLAIN, &[2, 0, 0, 0, 0, 1]);
    fake.state().queue_size_max = 8;
    let mut net = Net::new(fake.clone(), GuardedDma, NetConfig::default()).unwrap();
    for _ in 0..8 {
        net.transmit().unwrap().send(60, None, |frame| frame.fill(1));
    }
    assert!(net.transmit().is_none());
    fake.with(1, |queue| {
        let chain = queue.take().unwrap();
        queue.complete(chain.head, 0);
    });
    assert!(net.transmit().is_some());
}

#[test]
fn the_limits_say_what_the_stack_need_not_do() {
    for (features, completes_checksums, verifies_checksums) in [
        (PLAIN, false, false),
        (PLAIN | feature::NET_CSUM, true, false),
        (PLAIN | feature::NET_GUEST_CSUM, false, true),
        (ALL, true, true),
    ] {
        let (_fake, net) = net(features, 8 << 20);
        let longest = if features == ALL { NonZeroUsize::new(65535) } else { None };
        let limits = NetLimits {
            mtu: 1500,
            completes_checksums,
            verifies_checksums,
            segment_v4_bytes_max: longest,
            segment_v6_bytes_max: longest,
        };
        assert_eq!(net.limits(), limits);
    }
}

/// A link with longer frames needs room for them both ways.
#[test]
fn the_mtu_is_the_device_s_where_frames_fit() {
    for (features, memory_bytes, mtu) in [
        (ALL, 8 << 20, 9000),
        (MERGED, 8 << 20, 9000),
        (ALL, 64 << 10, 1500),
        (PLAIN, 8 << 20, 1500),
        (CHECKSUMS | feature::NET_GUEST_TSO4, 8 << 20, 1500),
        (CHECKSUMS | feature::NET_HOST_TSO4, 8 << 20, 1500),
    ] {
        let config = [2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x28, 0x23];
        let fake = Fake::new(device::NET, features | feature::NET_MTU, &config);
        let net = Net::new(fake, GuardedDma, NetConfig { memory_bytes, ..NetConfig::default() }).unwrap();
        assert_eq!(net.limits().mtu, mtu, "{features:#x}");
    }
}

/// A header that reports a number of buffers.
fn in_buffers(count: u16) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[10..].copy_from_slice(&count.to_le_bytes());
    header
}

/// The device spreads a frame over buffers and completes them, `count` of them at once.
fn deliver_merged(fake: &Fake, header: [u8; HEADER_BYTES], frame: &[u8], count: usize) {
    let bytes = [&header[..], frame].concat();
    fake.with(0, |queue| {
        let mut rest = &bytes[..];
        for _ in 0..count {
            let chain = queue.take().expect("the driver posts buffers");
            let written = chain.write(rest);
            queue.complete(chain.head, written);
            rest = &rest[written as usize..];
        }
    });
}

#[test]
fn a_frame_is_put_together_from_its_buffers() {
    let (fake, mut net) = net(MERGED, 8 << 20);
    for round in 0..100 {
        for (bytes, count) in [(8704 - HEADER_BYTES, 1), (8704, 2), (60_000, 7), (65_535, 8), (14, 1)] {
            let mut frame: Vec<u8> = (0..bytes).map(|at| (at % 251 + round) as u8).collect();
            frame[12..14].fill(0);
            deliver_merged(&fake, in_buffers(count), &frame, count.into());
            assert!(net.poll() && receive(&mut net) == Some(frame), "{bytes} bytes in round {round}");
        }
    }
    assert_eq!(net.violation(), None);
}

/// The wrong number of buffers would let the next frame start inside another one.
#[test]
fn a_number_of_buffers_that_cannot_be_ends_the_use_of_the_device() {
    for (reported, completed) in [(0, 1), (2, 1), (9, 8), (257, 1), (u16::MAX, 1)] {
        let (fake, mut net) = net(MERGED, 8 << 20);
        deliver_merged(&fake, in_buffers(reported), &vec![0; 8704 * completed - HEADER_BYTES], completed);
        assert!(net.poll() && net.receive().is_none());
        assert_eq!(net.violation(), Some(Violation::BufferCount { buffers: reported }), "{completed}");
        assert!(!net.poll() && net.receive().is_none());
        net.restart().unwrap();
        deliver_merged(&fake, in_buffers(1), &[7; 100], 1);
        assert_eq!(receive(&mut net), Some(vec![7; 100]));
    }
    // Without the feature the field has no meaning.
    let (fake, mut net) = net(ALL, 8 << 20);
    deliver(&fake, in_buffers(0), &[7; 100], None);
    assert_eq!(receive(&mut net), Some(vec![7; 100]));
}

#[test]
fn a_merged_frame_that_is_too_long_is_dropped_and_the_next_one_is_not() {
    let (fake, mut net) = net(MERGED, 8 << 20);
    for count in [9, 20] {
        deliver_merged(&fake, in_buffers(count), &vec![1; 8704 * usize::from(count) - HEADER_BYTES], count.into());
        deliver_merged(&fake, in_buffers(1), &[7; 100], 1);
        assert_eq!(receive(&mut net), Some(vec![7; 100]));
        assert_eq!((receive(&mut net), net.violation()), (None, None));
    }
    // So is a buffer that has no room for a header.
    fake.with(0, |queue| {
        let chain = queue.take().unwrap();
        queue.complete(chain.head, 11);
    });
    deliver_merged(&fake, in_buffers(1), &[7; 100], 1);
    assert_eq!((receive(&mut net), net.violation()), (Some(vec![7; 100]), None));
}

/// A header that was not written is not that of the frame before.
#[test]
fn an_empty_buffer_takes_no_buffer_of_the_next_frame() {
    let (fake, mut net) = net(MERGED, 8 << 20);
    let long = vec![7; 10_000];
    deliver_merged(&fake, in_buffers(2), &long, 2);
    assert_eq!(receive(&mut net), Some(long));
    deliver(&fake, [0; HEADER_BYTES], &[], Some(0));
    deliver_merged(&fake, in_buffers(1), &[7; 100], 1);
    assert_eq!((receive(&mut net), net.violation()), (Some(vec![7; 100]), None));
}

#[test]
fn a_header_may_have_a_buffer_of_its_own() {
    let (fake, mut net) = net(MERGED, 8 << 20);
    deliver(&fake, in_buffers(2), &[], None);
    fake.with(0, |queue| {
        let chain = queue.take().unwrap();
        let written = chain.write(&[7; 100]);
        queue.complete(chain.head, written);
    });
    assert_eq!(receive(&mut net), Some(vec![7; 100]));
}

/// Joined segments that were not agreed on, or of unknown kinds, are no frames for the stack.
#[test]
fn a_frame_of_a_kind_that_was_not_agreed_on_is_dropped() {
    let kinds = |features, memory_bytes| {
        let (fake, mut net) = net(features, memory_bytes);
        (0..=255u8)
            .filter(|kind| {
                let mut header = in_buffers(1);
                // The checksum is vouched for; the length of the pieces and of the headers is any.
                header[..6].copy_from_slice(&[1, *kind, 0xff, 0xff, 0, 0]);
                deliver(&fake, header, &frame(4, 6, &[0; 1000]), None);
                receive(&mut net).is_some()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(MERGED, 8 << 20), [0, 1, 4]);
    assert_eq!(kinds(MERGED & !feature::NET_GUEST_TSO6, 8 << 20), [0, 1]);
    assert_eq!(kinds(ALL & !feature::NET_GUEST_TSO4, 8 << 20), [0, 4]);
    assert_eq!(kinds(ALL, 64 << 10), [0]);
}

/// A device may offer segments without the checksums that they build on.
#[test]
fn a_feature_is_not_taken_without_its_base() {
    for (offered, taken) in [
        (PLAIN | feature::NET_HOST_TSO4 | feature::NET_GUEST_TSO4, PLAIN),
        (PLAIN | feature::NET_HOST_TSO4 | feature::NET_GUEST_CSUM, PLAIN | feature::NET_GUEST_CSUM),
        (PLAIN | feature::NET_CSUM | feature::NET_GUEST_TSO4, PLAIN | feature::NET_CSUM),
        (PLAIN | SEGMENTS_V6, PLAIN),
        (PLAIN | feature::NET_CSUM | SEGMENTS_V6, PLAIN | feature::NET_CSUM | feature::NET_HOST_TSO6),
        (ALL, ALL),
    ] {
        let (fake, _net) = net(offered, 8 << 20);
        assert_eq!(fake.state().accepted & ALL, taken, "{offered:#x}");
    }
}

#[test]
fn fields_of_the_configuration_are_read_in_their_own_width() {
    let (fake, _net) = net(PLAIN | feature::NET_MTU, 64 << 10);
    assert_eq!(fake.state().config_reads, [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (10, 2)]);
}

/// What the device writes into a buffer after its completion has no effect.
#[test]
fn a_frame_is_copied_before_anyone_looks_at_it() {
    let (fake, mut net) = net(PLAIN, 64 << 10);
    let chain = fake.with(0, |queue| {
        let chain = queue.take().unwrap();
        let written = chain.write(&[&[0; HEADER_BYTES][..], &[7; 100]].concat());
        queue.complete(chain.head, written);
        chain
    });
    let (frame, _) = net.receive().unwrap();
    chain.write(&[9; HEADER_BYTES + 100]);
    assert_eq!(frame, [7; 100]);
}

/// All buffers to send from are in flight and a frame waits: the core must sleep until one of them comes back, not look
/// forever at a frame that cannot be taken.
#[test]
fn a_frame_without_room_for_its_answer_is_no_work() {
    let (fake, mut net) = net(PLAIN, 64 << 10);
    (0..16).for_each(|_| net.transmit().unwrap().send(60, None, |frame| frame.fill(1)));
    net.kick();
    deliver(&fake, [0; HEADER_BYTES], &[7; 100], None);
    for _ in 0..3 {
        assert!(net.receive().is_none() && !net.poll() && !net.arm());
        // Of received frames no interrupt is requested now.
        assert!(!fake.with(0, |queue| {
            let chain = queue.take().unwrap();
            let written = chain.write(&[0; HEADER_BYTES + 60]);
            queue.complete(chain.head, written)
        }));
    }
    let mut is_interrupted = false;
    for _ in 0..9 {
        is_interrupted |= fake.with(1, |queue| {
            let chain = queue.take().unwrap();
            queue.complete(chain.head, 0)
        });
    }
    assert!(is_interrupted, "room wakes the core");
    net.acknowledge();
    assert!(net.poll() && receive(&mut net) == Some(vec![7; 100]));
}

#[test]
fn a_card_that_gave_up_is_started_again() {
    let (fake, mut net) = net(ALL, 8 << 20);
    for round in 1..4 {
        fake.state().status |= status::NEEDS_RESET;
        net.acknowledge();
        assert!(!net.arm() && !net.poll());
        assert_eq!(net.violation(), Some(Violation::NeedsReset));
        assert!(net.transmit().is_none() && net.receive().is_none());
        net.restart().unwrap();
        assert_eq!((net.violation(), net.mac()), (None, [2, 0, 0, 0, 0, 1]));
        deliver(&fake, [0; HEADER_BYTES], &[round; 100], None);
        assert!(net.poll() && receive(&mut net) == Some(vec![round; 100]));
        net.transmit().unwrap().send(60, None, |frame| frame.fill(round));
        net.kick();
        assert!(fake.with(1, |queue| queue.take()).is_some());
    }
    // One that comes back as another card stays broken, and so does one that does not come back.
    let changes: [fn(&Fake); 2] = [|fake| fake.state().config[5] = 9, |fake| fake.state().stuck = true];
    for change in changes {
        change(&fake);
        fake.with(0, |queue| queue.put(9999, 0));
        assert!(net.poll() && net.receive().is_none() && !net.poll());
        assert!(net.restart().is_err() && net.violation().is_some() && net.transmit().is_none());
        fake.state().config[5] = 1;
        if net.restart().is_err() {
            break;
        }
    }
    assert_eq!(DAMAGED.load(Ordering::SeqCst), 0);
}

#[test]
fn impossible_configurations_are_refused() {
    let start = |features, config: &[u8]| {
        Net::new(Fake::new(device::NET, features, config), GuardedDma, NetConfig::default()).err()
    };
    let with_mtu = PLAIN | feature::NET_MTU;
    assert_eq!(start(with_mtu, &[2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 5]), None);
    assert!(matches!(start(PLAIN, &[3, 0, 0, 0, 0, 1]), Some(SetupError::BadConfig(_))));
    assert!(matches!(start(PLAIN, &[0; 6]), Some(SetupError::BadConfig(_))));
    assert!(matches!(start(with_mtu, &[2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0xff, 4]), Some(SetupError::BadConfig(_))));
    let fake = Fake::new(device::NET, 0, &[]);
    let net = Net::new(fake, GuardedDma, NetConfig::default()).unwrap();
    assert_eq!(net.mac(), NetConfig::default().fallback_mac);
}

#[test]
fn malformed_lengths_are_dropped() {
    let (fake, mut net) = net(PLAIN, 64 << 10);
    for claimed in [0, 11, 12, 25] {
        deliver(&fake, [0; HEADER_BYTES], &[0; 100], Some(claimed));
    }
    deliver(&fake, [0; HEADER_BYTES], &[7; 14], None);
    assert_eq!(receive(&mut net), Some(vec![7; 14]));
    // All of the buffers are with the device again.
    let mut posted = 0;
    while fake.with(0, |queue| queue.take()).is_some() {
        posted += 1;
    }
    assert_eq!(posted, 16);
}

/// Reading whether the device has given up costs an exit, so it is done only after an interrupt that nothing explains. A frame that was sent
/// explains none, because no interrupt was requested for it: of such frames the card of a server nearly always has some, and the card was
/// never reset.
#[test]
fn an_interrupt_without_completion_is_a_reason_to_ask() {
    for (is_sent, is_received, violation) in [
        (true, false, Some(Violation::NeedsReset)),
        (false, true, None),
        (true, true, None),
        (false, false, Some(Violation::NeedsReset)),
    ] {
        let (fake, mut net) = net(PLAIN, 64 << 10);
        net.transmit().unwrap().send(60, None, |frame| frame.fill(1));
        assert!(!net.arm());
        if is_sent {
            fake.with(1, |queue| {
                let chain = queue.take().unwrap();
                queue.complete(chain.head, 0);
            });
        }
        if is_received {
            deliver(&fake, [0; HEADER_BYTES], &[0; 100], None);
        }
        fake.state().status |= status::NEEDS_RESET;
        net.acknowledge();
        net.arm();
        assert_eq!((fake.state().acknowledged, net.violation()), (1, violation), "{is_sent} {is_received}");
    }
}

/// Such an interrupt is no violation by itself: a configuration that changed sends one, too.
#[test]
fn a_device_that_is_alive_is_used_on_after_an_interrupt_without_completion() {
    let (fake, mut net) = net(PLAIN, 64 << 10);
    assert_eq!(fake.state().status, 15, "acknowledged, driven, agreed on, running");
    net.acknowledge();
    assert!(!net.arm());
    assert_eq!(net.violation(), None);
}

#[test]
fn short_and_long_frames_keep_to_their_own_buffers() {
    let (fake, mut net) = net(ALL, 8 << 20);
    for round in 0..400u16 {
        let long = round % 5 == 0;
        let bytes = if long { 20_000 } else { 60 };
        let transmit = net.transmit().expect("the device has sent what it was given");
        transmit.send(bytes, None, |frame| frame.fill(round as u8));
        fake.with(1, |queue| {
            let chain = queue.take().unwrap();
            let sent = chain.read();
            assert_eq!(sent.len(), HEADER_BYTES + bytes);
            assert!(sent[HEADER_BYTES..].iter().all(|&byte| byte == round as u8));
            queue.complete(chain.head, 0);
        });
        net.poll();
    }
}

/// One frame after the other, a card uses few pages of its VM.
#[test]
fn frames_that_are_sent_one_by_one_share_few_buffers() {
    let (fake, mut net) = net(ALL, 8 << 20);
    let mut used = alloc::collections::BTreeSet::new();
    for round in 0..200u8 {
        net.transmit().unwrap().send(100, None, |frame| frame.fill(round));
        fake.with(1, |queue| {
            let chain = queue.take().unwrap();
            assert_eq!(chain.read()[HEADER_BYTES..], [round; 100]);
            used.insert(chain.segments[0].address);
            queue.complete(chain.head, 0);
        });
    }
    assert!(used.len() <= 17, "{} buffers", used.len());
}

/// A device that has used half of its buffers before the driver looks gets twice as many, up to all.
#[test]
fn a_device_gets_more_buffers_when_it_uses_many() {
    let (fake, mut net) = net(MERGED, 8 << 20);
    let mut used = alloc::collections::BTreeSet::new();
    // The device uses as many as it has, at most `count`; returns how many that were.
    let mut deliver = |count: usize| {
        let mut delivered = 0;
        while delivered < count
            && let Some(chain) = fake.with(0, |queue| queue.take())
        {
            used.insert(chain.segments[0].address);
            let written = chain.write(&[&in_buffers(1)[..], &[delivered as u8; 100]].concat());
            fake.with(0, |queue| queue.complete(chain.head, written));
            delivered += 1;
        }
        for byte in 0..delivered {
            assert_eq!(receive(&mut net), Some(vec![byte as u8; 100]));
        }
        assert_eq!(receive(&mut net), None);
        (delivered, used.len())
    };
    for _ in 0..100 {
        assert_eq!(deliver(3).0, 3);
    }
    assert_eq!(deliver(usize::MAX), (32, 32));
    assert_eq!([(); 3].map(|()| deliver(usize::MAX).0), [63, 125, 249]);
    assert_eq!(deliver(usize::MAX), (256, 256));
    assert_eq!(deliver(usize::MAX), (256, 256));
}

/// All buffers of both sizes at once, again and again.
#[test]
fn frames_in_flight_share_no_buffer() {
    let (fake, mut net) = net(ALL, 8 << 20);
    for round in 0..4u8 {
        let lengths: Vec<usize> = (0..128 + 44).map(|index| if index % 4 == 1 { 20_000 } else { 2036 }).collect();
        for (index, length) in lengths.iter().enumerate() {
            net.transmit().unwrap().send(*length, None, |frame| frame.fill(index as u8 ^ round));
        }
        let heads: Vec<u16> = (lengths.iter().enumerate())
            .map(|(index, length)| {
                let chain = fake.with(1, |queue| queue.take()).unwrap();
                assert_eq!(chain.read()[HEADER_BYTES..], vec![index as u8 ^ round; *length]);
                chain.head
            })
            .collect();
        heads.into_iter().for_each(|head| _ = fake.with(1, |queue| queue.complete(head, 0)));
    }
}

#[test]
fn a_frame_longer_than_any_buffer_is_lost() {
    let (fake, mut net) = net(ALL, 8 << 20);
    let longest = 65536 + 4096 - HEADER_BYTES;
    for (bytes, is_sent) in [(longest, true), (longest + 1, false), (longest + 2, false)] {
        net.transmit().unwrap().send(bytes, None, |frame| assert_eq!(frame.len(), bytes));
        let sent = fake.with(1, |queue| queue.take());
        assert_eq!(sent.is_some_and(|chain| chain.read().len() == HEADER_BYTES + bytes), is_sent, "{bytes}");
    }
}

#[test]
fn a_liar_is_reset_and_left_alone() {
    let (fake, mut net) = net(PLAIN, 64 << 10);
    deliver(&fake, [0; HEADER_BYTES], &[0; 100], Some(2049));
    assert!(net.poll() && net.arm(), "there is something to look at");
    assert!(net.receive().is_none());
    let resets = fake.state().resets;
    assert!(!net.poll() && !net.arm());
    assert_eq!(net.violation(), Some(Violation::LengthTooLong { bytes: 2049, writable: 2048 }));
    assert_eq!(fake.state().resets, resets + 1);
    assert!(net.transmit().is_none() && net.receive().is_none());
    drop(net);
    assert_eq!(fake.state().resets, resets + 1);
    assert_eq!(DAMAGED.load(Ordering::SeqCst), 0);
}

#[test]
fn received_checksums_are_verified_unless_the_device_vouches() {
    let wrong = |mut frame: Vec<u8>| {
        *frame.last_mut().unwrap() ^= 1;
        frame
    };
    let (fake, mut net) = net(CHECKSUMS, 256 << 10);
    for version in [4, 6] {
        for protocol in [6, 17] {
            for payload in [&b""[..], b"odd", b"even", &[0xff; 1400]] {
                let good = frame(version, protocol, payload);
                deliver(&fake, [0; HEADER_BYTES], &good, None);
                assert!(receive(&mut net) == Some(good.clone()), "IPv{version}, {protocol}, {payload:?}");
                deliver(&fake, [0; HEADER_BYTES], &wrong(good.clone()), None);
                assert_eq!(receive(&mut net), None);
                assert!(verify(&good) == Verdict::Good && verify(&wrong(good.clone())) == Verdict::Wrong);
                for vouched in [1, 2] {
                    let mut header = [0; HEADER_BYTES];
                    header[0] = vouched;
                    deliver(&fake, header, &wrong(good.clone()), None);
                    assert!(receive(&mut net) == Some(wrong(good.clone())));
                }
            }
        }
    }
    // A pad after the datagram is not part of it; UDP over IPv4 may go without a checksum.
    let mut padded = frame(4, 17, b"x");
    padded.extend([9; 17]);
    assert_eq!(net_header::verify(&[0; HEADER_BYTES], &padded), Verdict::Good);
    for (version, verdict) in [(4, Verdict::Good), (6, Verdict::Wrong)] {
        let mut without = frame(version, 17, b"x");
        let at = without.len() - 3;
        without[at..at + 2].fill(0);
        assert_eq!(net_header::verify(&[0; HEADER_BYTES], &without), verdict);
    }
    let mut fragment = frame(4, 17, b"x");
    fragment[20] = 0x20;
    assert!(verify(&fragment) != Verdict::Good, "it was not verified");
    deliver(&fake, [0; HEADER_BYTES], &fragment, None);
    assert_eq!(receive(&mut net), None);
    // Without the feature the stack looks for itself.
    let (fake, mut net) = self::net(PLAIN, 256 << 10);
    deliver(&fake, [0; HEADER_BYTES], &fragment, None);
    assert!(receive(&mut net).is_some());
}
