//! Two stacks joined by a wire that loses nothing, and peers that break the rules.

use crate::config::Config;
use crate::header::{Ends, Header, Operation, Type};
use crate::stack::{ConnectionId, ListenerId, Stack};
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use glass_api::{Buf, Instant, NetError, Port};
use proptest::prelude::*;

pub(crate) const NOW: Instant = Instant(1_000_000_000);
pub(crate) const GUEST: u64 = 3;
pub(crate) const HOST: u64 = 2;
pub(crate) const PORT: u32 = 80;
/// A device's receive buffer.
pub(crate) const BUFFER_BYTES: usize = 4096;

pub(crate) fn small() -> Config {
    Config { buffer_bytes: 8192, packet_bytes_max: BUFFER_BYTES, ..Config::default() }
}

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn nothing() -> &'static Waker {
    Waker::noop()
}

/// Hands all packets of `from` to `to`; returns their operations.
pub(crate) fn carry(from: &mut Stack, to: &mut Stack) -> Vec<Operation> {
    let mut operations = Vec::new();
    while let Some(packet) = from.next_packet() {
        operations.push(packet.header.operation.unwrap());
        let mut buffer = Buf::zeroed(BUFFER_BYTES).unwrap();
        let bytes = packet.data.map_or(0, |data| {
            buffer.as_mut().unwrap()[..data.len()].copy_from_slice(&data);
            data.len()
        });
        to.receive(NOW, packet.header, buffer, bytes);
    }
    operations
}

pub(crate) fn exchange(a: &mut Stack, b: &mut Stack) {
    for _ in 0..100 {
        if carry(a, b).is_empty() && carry(b, a).is_empty() {
            return;
        }
    }
    panic!("they never stop talking");
}

pub(crate) fn ready<T>(poll: Poll<T>) -> T {
    match poll {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it is not ready"),
    }
}

/// A guest that listens and a host that has connected.
pub(crate) struct Pair {
    pub(crate) guest: Stack,
    pub(crate) host: Stack,
    listener: ListenerId,
    pub(crate) guest_end: ConnectionId,
    pub(crate) host_end: ConnectionId,
}

fn pair(config: Config) -> Pair {
    pair_of(config, Type::Stream)
}

pub(crate) fn pair_of(config: Config, kind: Type) -> Pair {
    let (mut guest, mut host) = (Stack::new(GUEST, config.clone(), 1), Stack::new(HOST, config, 2));
    let (listener, _) = guest.listen(PORT, kind).unwrap();
    let host_end = host.connect(NOW, GUEST, PORT, kind).unwrap();
    assert!(host.poll_connected(host_end, nothing()).is_pending());
    exchange(&mut guest, &mut host);
    ready(host.poll_connected(host_end, nothing())).unwrap();
    let (guest_end, ends) = ready(guest.poll_accept(listener, nothing()));
    assert_eq!((ends.peer_cid, ends.local_port), (HOST, PORT));
    Pair { guest, host, listener, guest_end, host_end }
}

fn read(stack: &mut Stack, id: ConnectionId) -> Vec<u8> {
    let mut all = Vec::new();
    let mut into = [0; 1000];
    while let Poll::Ready(Ok(count @ 1..)) = stack.poll_read(id, &mut into, nothing()) {
        all.extend_from_slice(&into[..count]);
    }
    all
}

#[test]
fn both_directions_and_a_regular_end() {
    let Pair { mut guest, mut host, guest_end, host_end, .. } = pair(small());
    assert_eq!(ready(host.poll_write(host_end, b"question", nothing())), Ok(8));
    exchange(&mut host, &mut guest);
    assert_eq!(read(&mut guest, guest_end), b"question");
    assert_eq!(ready(guest.poll_write(guest_end, b"answer", nothing())), Ok(6));
    guest.close(NOW, guest_end).unwrap();
    exchange(&mut host, &mut guest);
    assert_eq!(read(&mut host, host_end), b"answer");
    assert_eq!(ready(host.poll_read(host_end, &mut [0; 1], nothing())), Ok(0));
    // The other half is open still.
    assert_eq!(ready(host.poll_write(host_end, b"thanks", nothing())), Ok(6));
    host.close(NOW, host_end).unwrap();
    exchange(&mut host, &mut guest);
    assert_eq!(read(&mut guest, guest_end), b"thanks");
    assert_eq!(ready(guest.poll_read(guest_end, &mut [0; 1], nothing())), Ok(0));
    guest.release(NOW, guest_end);
    host.release(NOW, host_end);
    exchange(&mut host, &mut guest);
    assert_eq!((guest.connection_count(), host.connection_count()), (0, 0));
    for stack in [&guest, &host] {
        let counters = stack.counters();
        assert_eq!((counters.opened, counters.reset_by_peer, counters.violations), (1, 0, 0), "{counters:?}");
        assert_eq!(stack.next_deadline(), None);
    }
}

#[test]
fn a_reader_that_stops_stops_the_writer_and_loses_nothing() {
    let Pair { mut guest, mut host, guest_end, host_end, .. } = pair(small());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let data: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
    let (mut written, mut received, mut stops) = (0, Vec::new(), 0);
    while written < data.len() {
        match host.poll_write(host_end, &data[written..], &waker) {
            Poll::Ready(count) => written += count.unwrap(),
            Poll::Pending => {
                stops += 1;
                let asked = carry(&mut host, &mut guest);
                assert_eq!(asked.last(), Some(&Operation::CreditRequest));
                exchange(&mut host, &mut guest);
                assert!(host.poll_write(host_end, b"x", &waker).is_pending(), "nothing was read");
                let before = woken.0.load(Ordering::Relaxed);
                received.extend(read(&mut guest, guest_end));
                exchange(&mut host, &mut guest);
                assert!(woken.0.load(Ordering::Relaxed) > before, "there is credit again");
            }
        }
    }
    exchange(&mut host, &mut guest);
    received.extend(read(&mut guest, guest_end));
    assert!(received == data && stops >= 100_000 / 8192 - 1);
    assert_eq!(guest.counters().violations + host.counters().violations, 0);
}

#[test]
fn what_is_large_is_read_and_written_without_a_copy() {
    let Pair { mut guest, mut host, guest_end, host_end, .. } = pair(small());
    let data = Buf::copy_of(&[7; 3000]).unwrap();
    assert_eq!(ready(guest.poll_write_buf(guest_end, &data, nothing())), Ok(3000));
    let packet = guest.next_packet().unwrap();
    assert_eq!(packet.data.as_ref().unwrap().as_ptr(), data.as_ptr());
    let buffer = Buf::copy_of(&[&data[..], &[0; 1096]].concat()).unwrap();
    let address = buffer.as_ptr();
    assert!(host.receive(NOW, packet.header, buffer, 3000).is_none(), "it keeps the buffer");
    let read = ready(host.poll_read_buf(host_end, nothing())).unwrap();
    assert_eq!((read.as_ptr(), &read[..]), (address, &data[..]));
}

#[test]
fn data_of_no_bytes_is_not_the_end() {
    let mut pair = pair(small());
    // Before data in a buffer of its own, after it, and before small data.
    for (empty_before, bytes, empty_after) in [(2, 3000, 0), (0, 3000, 2), (2, 10, 2)] {
        let (before, packet) = (vec![0; empty_before], [bytes]);
        for bytes in before.into_iter().chain(packet).chain(vec![0; empty_after]) {
            pair.receive(header(&pair, Some(Operation::Data), bytes), bytes);
        }
        let read = ready(pair.guest.poll_read_buf(pair.guest_end, nothing())).unwrap();
        assert_eq!(read.len(), bytes);
        assert!(pair.guest.poll_read_buf(pair.guest_end, nothing()).is_pending());
        assert!(pair.guest.poll_read(pair.guest_end, &mut [0; 10], nothing()).is_pending());
    }
    pair.receive(Header { flags: 2, ..header(&pair, Some(Operation::Shutdown), 0) }, 0);
    assert!(ready(pair.guest.poll_read_buf(pair.guest_end, nothing())).unwrap().is_empty());
    assert_eq!(pair.guest.counters().violations, 0);
}

#[test]
fn nobody_listening_is_a_reset_and_nobody_there_a_timeout() {
    let (mut guest, mut host) = (Stack::new(GUEST, small(), 1), Stack::new(HOST, small(), 2));
    let refused = host.connect(NOW, GUEST, PORT, Type::Stream).unwrap();
    exchange(&mut host, &mut guest);
    assert_eq!(ready(host.poll_connected(refused, nothing())), Err(NetError::Reset));
    assert_eq!(guest.counters().refused, 1);
    let lost = host.connect(NOW, 77, PORT, Type::Stream).unwrap();
    assert_eq!(host.next_packet().unwrap().header.operation, Some(Operation::Request));
    let until = host.next_deadline().unwrap();
    host.poll(until);
    assert_eq!(ready(host.poll_connected(lost, nothing())), Err(NetError::TimedOut));
    for id in [refused, lost] {
        host.release(NOW, id);
    }
    assert_eq!(host.connection_count(), 0);
}

#[test]
fn ports_and_connections_are_bounded() {
    let config = Config { backlog_max: 2, connections_max: 3, ..small() };
    let (mut guest, mut host) = (Stack::new(GUEST, config, 1), Stack::new(HOST, small(), 2));
    let (listener, _) = guest.listen(PORT, Type::Stream).unwrap();
    assert_eq!(guest.listen(PORT, Type::Stream).unwrap_err(), NetError::PortInUse(Port::Vsock(80)));
    assert!(guest.listen(0, Type::Stream).unwrap().1 >= 49_152);
    let connect = |guest: &mut Stack, host: &mut Stack| {
        let id = host.connect(NOW, GUEST, PORT, Type::Stream).unwrap();
        exchange(host, guest);
        ready(host.poll_connected(id, nothing()))
    };
    assert_eq!(connect(&mut guest, &mut host), Ok(()));
    assert_eq!(connect(&mut guest, &mut host), Ok(()));
    assert_eq!(connect(&mut guest, &mut host), Err(NetError::Reset), "the backlog is full");
    let _first = ready(guest.poll_accept(listener, nothing()));
    assert_eq!(connect(&mut guest, &mut host), Ok(()));
    let _second = ready(guest.poll_accept(listener, nothing()));
    assert_eq!(connect(&mut guest, &mut host), Err(NetError::Reset), "there are three connections");
    assert_eq!(guest.connect(NOW, HOST, PORT, Type::Stream), Err(NetError::TooMany));
    guest.close_listener(listener);
    exchange(&mut guest, &mut host);
    assert_eq!(guest.connection_count(), 2, "what was not accepted is gone");
    assert_eq!(connect(&mut guest, &mut host), Err(NetError::Reset));
}

#[test]
fn what_was_sent_before_the_accept_is_kept() {
    let (mut guest, mut host) = (Stack::new(GUEST, small(), 1), Stack::new(HOST, small(), 2));
    let (listener, _) = guest.listen(PORT, Type::Stream).unwrap();
    let id = host.connect(NOW, GUEST, PORT, Type::Stream).unwrap();
    exchange(&mut host, &mut guest);
    ready(host.poll_write(id, b"early", nothing())).unwrap();
    host.close(NOW, id).unwrap();
    host.release(NOW, id);
    exchange(&mut host, &mut guest);
    let (accepted, _) = ready(guest.poll_accept(listener, nothing()));
    assert_eq!(read(&mut guest, accepted), b"early");
    assert_eq!(ready(guest.poll_read(accepted, &mut [0; 1], nothing())), Ok(0));
    guest.release(NOW, accepted);
    exchange(&mut host, &mut guest);
    assert_eq!((guest.connection_count(), host.connection_count()), (0, 0));
}

#[test]
fn a_stream_that_is_dropped_resets_and_a_silent_peer_is_given_up() {
    let Pair { mut guest, mut host, guest_end, host_end, listener } = pair(small());
    ready(host.poll_write(host_end, b"unread", nothing())).unwrap();
    guest.release(NOW, guest_end);
    exchange(&mut host, &mut guest);
    assert_eq!(ready(host.poll_read(host_end, &mut [0; 9], nothing())), Err(NetError::Reset));
    host.release(NOW, host_end);
    assert_eq!(guest.connection_count(), 0);
    // One that has closed both halves and hears nothing.
    let id = host.connect(NOW, GUEST, PORT, Type::Stream).unwrap();
    exchange(&mut host, &mut guest);
    let (accepted, _) = ready(guest.poll_accept(listener, nothing()));
    guest.close(NOW, accepted).unwrap();
    guest.release(NOW, accepted);
    while guest.next_packet().is_some() {}
    let until = guest.next_deadline().unwrap();
    assert_eq!(until, NOW + Config::default().close_timeout);
    guest.poll(until);
    assert_eq!(guest.next_packet().unwrap().header.operation, Some(Operation::Reset));
    assert_eq!((guest.connection_count(), guest.next_deadline()), (0, None));
    host.release(NOW, id);
}

#[test]
fn data_of_all_connections_is_bounded() {
    let config = Config { queued_bytes_max: 4096, ..Config::default() };
    let (mut guest, mut host) = (Stack::new(GUEST, config.clone(), 1), Stack::new(HOST, config, 2));
    guest.listen(PORT, Type::Stream).unwrap();
    let ids: Vec<_> = (0..2).map(|_| host.connect(NOW, GUEST, PORT, Type::Stream).unwrap()).collect();
    exchange(&mut host, &mut guest);
    assert_eq!(ready(host.poll_write(ids[0], &[1; 4096], nothing())), Ok(4096));
    let woken = Arc::new(Woken::default());
    assert!(host.poll_write(ids[1], b"x", &Waker::from(woken.clone())).is_pending());
    assert!(host.next_packet().is_some());
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(host.poll_write(ids[1], b"x", nothing()).is_ready());
}

/// A header as the host would send it on the connection.
pub(crate) fn header(pair: &Pair, operation: Option<Operation>, data_bytes: usize) -> Header {
    Header {
        source_cid: HOST,
        destination_cid: GUEST,
        source_port: pair.host_port(),
        destination_port: PORT,
        data_bytes: data_bytes as u32,
        kind: Some(Type::Stream),
        operation,
        flags: 0,
        window_bytes: 8192,
        consumed: 0,
    }
}

impl Pair {
    fn host_port(&self) -> u32 {
        // The first port that `seed` chooses.
        49_152 + 2
    }

    pub(crate) fn receive(&mut self, header: Header, bytes: usize) {
        self.guest.receive(NOW, header, Buf::zeroed(BUFFER_BYTES).unwrap(), bytes);
    }

    /// Whether the guest has reset the connection and still serves another one.
    fn is_reset(&mut self) -> bool {
        let answer = self.guest.next_packet().and_then(|packet| packet.header.operation);
        assert!(self.guest.next_packet().is_none());
        let id = self.host.connect(NOW, GUEST, PORT, Type::Stream).unwrap();
        exchange(&mut self.host, &mut self.guest);
        assert_eq!(ready(self.host.poll_connected(id, nothing())), Ok(()));
        answer == Some(Operation::Reset)
            && ready(self.guest.poll_read(self.guest_end, &mut [0; 1], nothing())) == Err(NetError::Reset)
    }
}

#[test]
fn a_peer_that_breaks_a_rule_is_reset_and_others_are_served() {
    type Break = fn(&mut Pair);
    let rules: [Break; 8] = [
        // Consumed more than was ever sent.
        |pair| pair.receive(Header { consumed: 1, ..header(pair, Some(Operation::CreditUpdate), 0) }, 0),
        // Opened twice.
        |pair| pair.receive(header(pair, Some(Operation::Request), 0), 0),
        |pair| pair.receive(header(pair, Some(Operation::Response), 0), 0),
        // No operation of the specification.
        |pair| pair.receive(header(pair, None, 0), 0),
        // Another length than was received, another kind, data where none belongs.
        |pair| pair.receive(header(pair, Some(Operation::Data), 10), 9),
        |pair| pair.receive(Header { kind: Some(Type::Message), ..header(pair, Some(Operation::Data), 10) }, 10),
        |pair| pair.receive(header(pair, Some(Operation::Shutdown), 10), 10),
        // Data after its end.
        |pair| {
            pair.receive(Header { flags: 2, ..header(pair, Some(Operation::Shutdown), 0) }, 0);
            pair.receive(header(pair, Some(Operation::Data), 10), 10);
        },
    ];
    for (index, rule) in rules.into_iter().enumerate() {
        let mut pair = pair(small());
        rule(&mut pair);
        // After a regular end there is no error, but there is no connection either.
        let is_after_end = index == 7;
        let is_reset = if is_after_end {
            pair.guest.next_packet().is_some_and(|packet| packet.header.operation == Some(Operation::Reset))
        } else {
            pair.is_reset()
        };
        assert!(is_reset, "rule {index}");
        let counters = pair.guest.counters();
        assert_eq!(counters.violations + counters.malformed, 1, "rule {index}: {counters:?}");
    }
}

#[test]
fn a_request_for_credit_is_answered_once_there_is_some_also_beside_data() {
    let Pair { mut guest, mut host, guest_end, host_end, .. } = pair(small());
    while host.poll_write(host_end, &[7; BUFFER_BYTES], nothing()).is_ready() {}
    assert_eq!(carry(&mut host, &mut guest).last(), Some(&Operation::CreditRequest));
    // The window is full: an answer would only cause the next request.
    assert_eq!(carry(&mut guest, &mut host), []);
    assert_eq!(read(&mut guest, guest_end).len(), 8192);
    assert_eq!(ready(guest.poll_write(guest_end, b"answer", nothing())), Ok(6));
    assert_eq!(carry(&mut guest, &mut host), [Operation::Data, Operation::CreditUpdate]);
    assert_eq!(carry(&mut guest, &mut host), []);
}

#[test]
fn a_peer_that_was_busy_at_the_shutdown_gets_it_again_once_it_has_everything() {
    let mut pair = pair(small());
    assert_eq!(ready(pair.guest.poll_write(pair.guest_end, b"12345", nothing())), Ok(5));
    pair.guest.close(NOW, pair.guest_end).unwrap();
    pair.guest.release(NOW, pair.guest_end);
    let operations = |guest: &mut Stack| {
        let packets = core::iter::from_fn(|| guest.next_packet());
        packets.map(|packet| packet.header.operation.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(operations(&mut pair.guest), [Operation::Data, Operation::Shutdown]);
    for (consumed, expected) in [(4, &[][..]), (5, &[Operation::Shutdown])] {
        let update = Header { consumed, ..header(&pair, Some(Operation::CreditUpdate), 0) };
        pair.receive(update, 0);
        assert_eq!(operations(&mut pair.guest), expected, "{consumed} bytes");
    }
}

#[test]
fn a_peer_that_sends_more_than_it_was_granted_is_reset() {
    let mut pair = pair(small());
    for _ in 0..2 {
        pair.receive(header(&pair, Some(Operation::Data), 4096), 4096);
    }
    assert_eq!(pair.guest.counters().violations, 0);
    pair.receive(header(&pair, Some(Operation::Data), 1), 1);
    assert_eq!(pair.guest.counters().violations, 1);
    // What was within the window is read before the error.
    assert_eq!(read(&mut pair.guest, pair.guest_end).len(), 8192);
    assert_eq!(ready(pair.guest.poll_read(pair.guest_end, &mut [0; 1], nothing())), Err(NetError::Reset));
}

#[test]
fn packets_for_others_are_dropped_and_a_moved_machine_starts_anew() {
    let mut pair = pair(small());
    pair.receive(Header { destination_cid: 9, ..header(&pair, Some(Operation::Data), 1) }, 1);
    assert_eq!((pair.guest.counters().malformed, pair.guest.has_packets()), (1, false));
    pair.guest.reset_all(5);
    assert_eq!(ready(pair.guest.poll_read(pair.guest_end, &mut [0; 1], nothing())), Err(NetError::Reset));
    assert!(pair.guest.poll_accept(pair.listener, nothing()).is_pending());
    let id = pair.host.connect(NOW, 5, PORT, Type::Stream).unwrap();
    exchange(&mut pair.host, &mut pair.guest);
    assert_eq!(ready(pair.host.poll_connected(id, nothing())), Ok(()));
}

#[test]
fn ten_thousand_connections_leave_nothing_behind() {
    let (mut guest, mut host) = (Stack::new(GUEST, small(), 1), Stack::new(HOST, small(), 2));
    let (listener, _) = guest.listen(PORT, Type::Stream).unwrap();
    let mut open = Vec::new();
    for round in 0..10_000 {
        let id = host.connect(NOW, GUEST, PORT, Type::Stream).unwrap();
        ready_write(&mut host, &mut guest, id);
        open.push((id, ready(guest.poll_accept(listener, nothing())).0));
        if open.len() == 500 || round == 9_999 {
            for (host_end, guest_end) in open.drain(..) {
                assert_eq!(read(&mut guest, guest_end), b"x");
                guest.close(NOW, guest_end).unwrap();
                guest.release(NOW, guest_end);
                host.close(NOW, host_end).unwrap();
                host.release(NOW, host_end);
            }
            exchange(&mut host, &mut guest);
            assert_eq!((guest.connection_count(), host.connection_count()), (0, 0), "round {round}");
        }
    }
    assert_eq!((guest.counters().opened, guest.counters().reset_by_peer), (10_000, 0));
    assert!(guest.next_deadline().is_none() && host.next_deadline().is_none());
}

fn ready_write(host: &mut Stack, guest: &mut Stack, id: ConnectionId) {
    exchange(host, guest);
    ready(host.poll_write(id, b"x", nothing())).unwrap();
    exchange(host, guest);
}

/// What a service or the wire does next.
#[derive(Debug, Clone)]
enum Step {
    Write { from_host: bool, bytes: usize },
    Read { at_host: bool, bytes: usize },
    Carry { from_host: bool, packets: usize },
    Close { at_host: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<bool>(), 1usize..6000).prop_map(|(from_host, bytes)| Step::Write { from_host, bytes }),
        4 => (any::<bool>(), 1usize..6000).prop_map(|(at_host, bytes)| Step::Read { at_host, bytes }),
        4 => (any::<bool>(), 1usize..5).prop_map(|(from_host, packets)| Step::Carry { from_host, packets }),
        1 => any::<bool>().prop_map(|at_host| Step::Close { at_host }),
    ];
    prop::collection::vec(step, 1..200)
}

/// One direction of a connection: how much was written and read.
#[derive(Default, Clone, Copy)]
struct Progress {
    written: usize,
    read: usize,
    is_closed: bool,
}

fn byte(at: usize) -> u8 {
    (at * 7 % 251) as u8
}

proptest! {
    /// Whatever the order of things, each byte arrives once and in order, the end after the last one, and nothing is left.
    #[test]
    fn every_byte_arrives_once(steps in steps()) {
        let Pair { mut guest, mut host, guest_end, host_end, .. } = pair(small());
        // By the side that writes: the guest's first.
        let mut progress = [Progress::default(); 2];
        for step in steps {
            match step {
                Step::Write { from_host, bytes } => {
                    let (stack, id) = if from_host { (&mut host, host_end) } else { (&mut guest, guest_end) };
                    let own = &mut progress[usize::from(from_host)];
                    let data: Vec<u8> = (own.written..own.written + bytes).map(byte).collect();
                    match stack.poll_write(id, &data, nothing()) {
                        Poll::Ready(Ok(count)) => own.written += count,
                        Poll::Ready(Err(_)) => prop_assert!(own.is_closed),
                        Poll::Pending => {}
                    }
                }
                Step::Read { at_host, bytes } => {
                    let (stack, id) = if at_host { (&mut host, host_end) } else { (&mut guest, guest_end) };
                    let other = &mut progress[usize::from(!at_host)];
                    let mut into = vec![0; bytes];
                    match stack.poll_read(id, &mut into, nothing()) {
                        Poll::Ready(Ok(0)) => prop_assert!(other.is_closed && other.read == other.written),
                        Poll::Ready(Ok(count)) => {
                            let is_right = |(at, value): (usize, &u8)| *value == byte(other.read + at);
                            prop_assert!(into[..count].iter().enumerate().all(is_right));
                            other.read += count;
                        }
                        Poll::Ready(Err(error)) => prop_assert!(false, "{error}"),
                        Poll::Pending => {}
                    }
                }
                Step::Carry { from_host, packets } => {
                    let (from, to) = if from_host { (&mut host, &mut guest) } else { (&mut guest, &mut host) };
                    for _ in 0..packets {
                        let Some(packet) = from.next_packet() else { break };
                        let mut buffer = Buf::zeroed(BUFFER_BYTES).unwrap();
                        let data = packet.data.as_deref().unwrap_or(&[]);
                        buffer.as_mut().unwrap()[..data.len()].copy_from_slice(data);
                        to.receive(NOW, packet.header, buffer, data.len());
                    }
                }
                Step::Close { at_host } => {
                    let (stack, id) = if at_host { (&mut host, host_end) } else { (&mut guest, guest_end) };
                    stack.close(NOW, id).unwrap();
                    progress[usize::from(at_host)].is_closed = true;
                }
            }
        }
        for (stack, id) in [(&mut host, host_end), (&mut guest, guest_end)] {
            stack.close(NOW, id).unwrap();
        }
        for _ in 0..100 {
            exchange(&mut host, &mut guest);
            progress[0].read += read(&mut host, host_end).len();
            progress[1].read += read(&mut guest, guest_end).len();
        }
        for direction in progress {
            prop_assert_eq!(direction.read, direction.written);
        }
        host.release(NOW, host_end);
        guest.release(NOW, guest_end);
        exchange(&mut host, &mut guest);
        prop_assert_eq!((guest.connection_count(), host.connection_count()), (0, 0));
        prop_assert_eq!(guest.counters().violations + host.counters().violations, 0);
        prop_assert_eq!(guest.counters().reset_by_peer + host.counters().reset_by_peer, 0);
        prop_assert_eq!((guest.next_deadline(), host.next_deadline()), (None, None));
    }

    /// Whatever a peer sends: no panic, and its connections and answers are bounded.
    #[test]
    fn no_packet_does_harm(
        packets in prop::collection::vec((any::<[u8; 12]>(), 0u32..4, 0u32..3, 0u16..9, 0usize..100, 0u8..4), 1..200),
    ) {
        let config = Config { connections_max: 8, backlog_max: 4, ..small() };
        let mut guest = Stack::new(GUEST, config, 1);
        let (listener, _) = guest.listen(PORT, Type::Stream).unwrap();
        let mut accepted = Vec::new();
        let mut now = NOW;
        for (random, source_port, port, operation, bytes, act) in packets {
            let mut raw = [0; crate::HEADER_BYTES];
            raw[..8].copy_from_slice(&HOST.to_le_bytes());
            raw[8..16].copy_from_slice(&GUEST.to_le_bytes());
            raw[16..20].copy_from_slice(&source_port.to_le_bytes());
            raw[20..24].copy_from_slice(&(PORT + port / 2).to_le_bytes());
            raw[24..28].copy_from_slice(&(bytes as u32).to_le_bytes());
            raw[28] = 1;
            raw[30..32].copy_from_slice(&operation.to_le_bytes());
            raw[32] = random[0] & 3;
            raw[36..40].copy_from_slice(&random[4..8]);
            raw[40..44].copy_from_slice(if random[1] < 128 { &[0; 4] } else { &random[8..12] });
            guest.receive(now, Header::parse(&raw), Buf::zeroed(BUFFER_BYTES).unwrap(), bytes);
            match act {
                0 => while guest.next_packet().is_some() {},
                1 => {
                    if let Poll::Ready((id, _)) = guest.poll_accept(listener, nothing()) {
                        accepted.push(id);
                    }
                }
                2 => {
                    for id in &accepted {
                        let _ = guest.poll_read(*id, &mut [0; 10], nothing());
                        let _ = guest.poll_write(*id, b"answer", nothing());
                    }
                }
                _ => {
                    if let Some(id) = accepted.pop() {
                        if random[2] < 128 {
                            let _ = guest.close(now, id);
                        }
                        guest.release(now, id);
                    }
                    now = now + Duration::from_millis(random[3].into());
                    guest.poll(now);
                }
            }
            prop_assert!(guest.connection_count() <= 8 + accepted.len());
        }
        accepted.into_iter().for_each(|id| guest.release(now, id));
        guest.close_listener(listener);
        while guest.next_packet().is_some() {}
        guest.poll(now + Duration::from_secs(60));
        prop_assert_eq!(guest.connection_count(), 0);
        prop_assert_eq!(guest.next_deadline(), None);
    }
}

/// The ends of a connection are its key: two peers may use one port.
#[test]
fn ends_are_ordered_by_our_port_first() {
    let ends = |local_port, peer_cid, peer_port| Ends { local_port, peer_cid, peer_port };
    assert!(ends(1, 9, 9) < ends(2, 0, 0) && ends(1, 1, 9) < ends(1, 2, 0));
}
