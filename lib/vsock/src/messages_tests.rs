//! Connections of messages between two stacks, and peers that break their rules.

use crate::config::Config;
use crate::header::{END_OF_MESSAGE, Header, Operation, Type};
use crate::stack::{ConnectionId, Stack};
use crate::stack_tests::{
    BUFFER_BYTES, GUEST, HOST, NOW, PORT, Pair, carry, exchange, header, nothing, pair_of, ready, small,
};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::task::Poll;
use glass_api::NetError;
use proptest::prelude::*;

fn messages() -> Pair {
    pair_of(small(), Type::Message)
}

fn message(tag: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + tag) as u8).collect()
}

fn receive(stack: &mut Stack, id: ConnectionId) -> Vec<u8> {
    ready(stack.poll_receive(id, nothing())).unwrap().expect("the peer has not ended").to_vec()
}

/// A part of a message as the host would send it.
fn part(pair: &Pair, bytes: usize, flags: u32) -> Header {
    Header { kind: Some(Type::Message), flags, ..header(pair, Some(Operation::Data), bytes) }
}

#[test]
fn messages_arrive_whole_and_in_order_also_empty_and_long_ones() {
    let Pair { mut guest, mut host, guest_end, host_end, .. } = messages();
    let lengths = [5, 0, 8000, 0, 4096, 4097, 1, 0];
    for (tag, bytes) in lengths.into_iter().enumerate() {
        // There is room for one of the longest at a time; each was read before the next.
        assert!(guest.poll_send(guest_end, &message(tag, bytes), nothing()).is_ready());
        exchange(&mut guest, &mut host);
        assert_eq!(receive(&mut host, host_end), message(tag, bytes));
        assert!(host.poll_receive(host_end, nothing()).is_pending());
        exchange(&mut guest, &mut host);
    }
    // Several that wait keep their ends.
    for tag in 0..10 {
        ready(host.poll_send(host_end, &message(tag, tag * 10), nothing())).unwrap();
    }
    host.close(NOW, host_end).unwrap();
    exchange(&mut guest, &mut host);
    for tag in 0..10 {
        assert_eq!(receive(&mut guest, guest_end), message(tag, tag * 10));
    }
    assert!(ready(guest.poll_receive(guest_end, nothing())).unwrap().is_none());
    guest.close(NOW, guest_end).unwrap();
    guest.release(NOW, guest_end);
    host.release(NOW, host_end);
    exchange(&mut guest, &mut host);
    assert_eq!((guest.connection_count(), host.connection_count()), (0, 0));
    assert_eq!(guest.counters().reset_by_peer + host.counters().reset_by_peer, 0);
}

#[test]
fn the_last_packet_of_a_message_has_the_flag_and_a_large_one_is_not_copied() {
    let Pair { mut guest, mut host, guest_end, host_end, .. } = messages();
    ready(guest.poll_send(guest_end, &message(1, 2 * BUFFER_BYTES), nothing())).unwrap();
    let packets: Vec<_> = core::iter::from_fn(|| guest.next_packet()).collect();
    let flags: Vec<_> = packets.iter().map(|packet| (packet.header.flags, packet.header.kind)).collect();
    assert_eq!(flags, [(0, Some(Type::Message)), (END_OF_MESSAGE, Some(Type::Message))]);
    let mut addresses = Vec::new();
    for packet in packets {
        let data = packet.data.unwrap();
        addresses.push(data.as_ptr());
        let bytes = data.len();
        assert!(host.receive(NOW, packet.header, data, bytes).is_none());
    }
    assert_eq!(receive(&mut host, host_end), message(1, 2 * BUFFER_BYTES));
    carry(&mut host, &mut guest);
    ready(guest.poll_send(guest_end, &message(2, 3000), nothing())).unwrap();
    let packet = guest.next_packet().unwrap();
    let data = packet.data.unwrap();
    let address = data.as_ptr();
    host.receive(NOW, packet.header, data, 3000);
    let received = ready(host.poll_receive(host_end, nothing())).unwrap().unwrap();
    assert_eq!(received.as_ptr(), address);
}

#[test]
fn a_message_waits_until_there_is_room_for_all_of_it() {
    let Pair { mut guest, mut host, guest_end, host_end, .. } = messages();
    let too_long = ready(guest.poll_send(guest_end, &[0; 8193], nothing()));
    assert_eq!(too_long, Err(NetError::TooLong { bytes: 8193, bytes_max: 8192 }));
    ready(guest.poll_send(guest_end, &message(1, 8000), nothing())).unwrap();
    assert!(guest.poll_send(guest_end, &message(2, 193), nothing()).is_pending());
    exchange(&mut guest, &mut host);
    assert!(guest.poll_send(guest_end, &message(2, 193), nothing()).is_pending(), "nothing was read");
    assert!(guest.next_packet().is_none(), "no part of it was queued");
    ready(guest.poll_send(guest_end, &message(3, 192), nothing())).unwrap();
    exchange(&mut guest, &mut host);
    assert_eq!(receive(&mut host, host_end).len(), 8000);
    exchange(&mut guest, &mut host);
    ready(guest.poll_send(guest_end, &message(2, 8000), nothing())).unwrap();
    exchange(&mut guest, &mut host);
    assert_eq!((receive(&mut host, host_end).len(), receive(&mut host, host_end)), (192, message(2, 8000)));
}

#[test]
fn a_peer_that_breaks_a_rule_of_messages_is_reset() {
    type Break = fn(&mut Pair);
    let rules: [Break; 4] = [
        // A message that is longer than the window never ends.
        |pair| (0..2).for_each(|_| pair.receive(part(pair, 4096, 0), 4096)),
        // Empty messages cost no credit.
        |pair| (0..=2048).for_each(|_| pair.receive(part(pair, 0, END_OF_MESSAGE), 0)),
        |pair| pair.receive(header(pair, Some(Operation::Data), 10), 10),
        // More than was granted, in messages that end.
        |pair| (0..3).for_each(|_| pair.receive(part(pair, 4096, END_OF_MESSAGE), 4096)),
    ];
    for (index, rule) in rules.into_iter().enumerate() {
        let mut pair = messages();
        rule(&mut pair);
        let counters = pair.guest.counters();
        assert_eq!(counters.violations + counters.malformed, 1, "rule {index}: {counters:?}");
        let answer = pair.guest.next_packet().unwrap().header;
        assert_eq!((answer.operation, answer.kind), (Some(Operation::Reset), Some(Type::Message)), "rule {index}");
        let end = loop {
            match ready(pair.guest.poll_receive(pair.guest_end, nothing())) {
                Ok(Some(_)) => {}
                end => break end.map(|_| ()),
            }
        };
        assert_eq!(end, Err(NetError::Reset), "rule {index}");
    }
    // As many short messages as may wait are none.
    let mut pair = messages();
    (0..2048).for_each(|_| pair.receive(part(&pair, 1, END_OF_MESSAGE), 1));
    assert_eq!(pair.guest.counters().violations, 0);
}

#[test]
fn an_end_within_a_message_is_a_reset_and_the_messages_before_it_are_read() {
    let mut pair = messages();
    pair.receive(part(&pair, 100, END_OF_MESSAGE), 100);
    pair.receive(part(&pair, 100, 0), 100);
    let shutdown = Header { kind: Some(Type::Message), flags: 2, ..header(&pair, Some(Operation::Shutdown), 0) };
    pair.receive(shutdown, 0);
    assert_eq!(receive(&mut pair.guest, pair.guest_end).len(), 100);
    let end = ready(pair.guest.poll_receive(pair.guest_end, nothing()));
    assert_eq!(end.map(|_| ()), Err(NetError::Reset));
}

#[test]
fn messages_and_streams_are_apart_and_need_a_device_that_has_them() {
    let (mut guest, mut host) = (Stack::new(GUEST, small(), 1), Stack::new(HOST, small(), 2));
    for (listens, connects) in [(Type::Stream, Type::Message), (Type::Message, Type::Stream)] {
        let (listener, _) = guest.listen(PORT, listens).unwrap();
        let id = host.connect(NOW, GUEST, PORT, connects).unwrap();
        exchange(&mut host, &mut guest);
        assert_eq!(ready(host.poll_connected(id, nothing())), Err(NetError::Reset));
        assert_eq!(guest.counters().opened, 0, "it is refused by the port, not by what the peer makes of the answer");
        host.release(NOW, id);
        guest.close_listener(listener);
    }
    let mut without = Stack::new(GUEST, Config { has_messages: false, ..small() }, 1);
    assert_eq!(without.listen(PORT, Type::Message).err(), Some(NetError::NoMessages));
    assert_eq!(without.connect(NOW, HOST, PORT, Type::Message).err(), Some(NetError::NoMessages));
}

proptest! {
    /// Whatever the order of things: each message arrives once, whole and in order, and nothing is stuck.
    #[test]
    fn every_message_arrives_once(
        steps in prop::collection::vec((0u8..4, 0usize..8193), 1..150),
    ) {
        let Pair { mut guest, mut host, guest_end, host_end, .. } = messages();
        let mut sent = VecDeque::new();
        for (tag, (what, bytes)) in steps.into_iter().enumerate() {
            match what {
                0 | 1 => {
                    // Most messages are short.
                    let bytes = if what == 0 { bytes } else { bytes % 50 };
                    if let Poll::Ready(done) = guest.poll_send(guest_end, &message(tag, bytes), nothing()) {
                        prop_assert_eq!(done, Ok(()));
                        sent.push_back(message(tag, bytes));
                    }
                }
                2 => drop((carry(&mut guest, &mut host), carry(&mut host, &mut guest))),
                _ => {
                    if let Poll::Ready(received) = host.poll_receive(host_end, nothing()) {
                        prop_assert_eq!(received.unwrap().map(|buf| buf.to_vec()), sent.pop_front());
                    }
                }
            }
        }
        while let Some(expected) = sent.pop_front() {
            exchange(&mut guest, &mut host);
            prop_assert_eq!(receive(&mut host, host_end), expected);
        }
        exchange(&mut guest, &mut host);
        // All credit is back.
        prop_assert!(guest.poll_send(guest_end, &vec![1; 8192], nothing()).is_ready());
        prop_assert_eq!(guest.counters().violations + host.counters().violations, 0);
    }
}
