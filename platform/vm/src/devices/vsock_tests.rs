//! Two virtio socket devices with a stack each, joined by a wire in memory.

use super::{SocketDevice, config};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use core::pin::pin;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use glass_api::{Address, Instant, Listener, MessageListener, Messages, NetError, Stream, VsockAddress};
use glass_drivers_device::Driver;
use glass_drivers_virtio::fake::{DAMAGED, Fake, GuardedDma};
use glass_drivers_virtio::{Vsock, VsockConfig, device, feature};
use glass_lib_vsock::{HEADER_BYTES, Header, Operation, Sockets, Type};

const PORT: u32 = 80;
const SMALL: VsockConfig = VsockConfig { receive_buffers: 8, receive_bytes: 4096 };

struct End {
    fake: Fake,
    driver: SocketDevice<Fake, GuardedDma>,
    sockets: Sockets,
    now: Rc<Cell<Instant>>,
}

/// The device carries messages too (virtio 1.2, section 5.10.3).
const SEQPACKET: u64 = 1 << 1;

fn end(cid: u8, features: u64) -> End {
    let fake = Fake::new(device::VSOCK, feature::EVENT_IDX | features, &[cid, 0, 0, 0, 0, 0, 0, 0]);
    let device = Vsock::new(fake.clone(), GuardedDma, SMALL).unwrap();
    let now = Rc::new(Cell::new(Instant(0)));
    let clock = now.clone();
    let sockets = Sockets::new(cid.into(), config(&device, 1 << 30), 7, move || clock.get());
    End { fake, driver: SocketDevice { device, sockets: sockets.clone() }, sockets, now }
}

/// The wire from one end to the other.
struct Wire {
    /// Packets that wait for a buffer of the receiver.
    packets: VecDeque<Vec<u8>>,
    /// The data of a packet at most.
    piece_bytes: usize,
    /// Addresses of the buffers in which the receiver was given data.
    buffers: BTreeSet<u64>,
}

impl Default for Wire {
    /// A packet fills a buffer of the receiver at most, as with real devices.
    fn default() -> Wire {
        Wire { packets: VecDeque::new(), piece_bytes: SMALL.receive_bytes, buffers: BTreeSet::new() }
    }
}

impl Wire {
    /// Carries what was sent, in pieces.
    fn carry(&mut self, from: &End, to: &End) {
        while let Some(chain) = from.fake.with(1, |queue| queue.take()) {
            from.fake.with(1, |queue| queue.complete(chain.head, 0));
            let packet = chain.read();
            let (header, data) = packet.split_at(HEADER_BYTES);
            let mut pieces: Vec<&[u8]> = data.chunks(self.piece_bytes).collect();
            if pieces.is_empty() {
                pieces.push(&[]);
            }
            let is_message = header[28] == Type::Message as u8;
            let last = pieces.len() - 1;
            for (index, piece) in pieces.into_iter().enumerate() {
                let mut header = header.to_vec();
                if is_message && index < last {
                    // The end of a message is in its last piece.
                    header[32] = 0;
                }
                header[24..28].copy_from_slice(&(piece.len() as u32).to_le_bytes());
                self.packets.push_back([&header[..], piece].concat());
            }
        }
        while let Some(packet) = self.packets.pop_front() {
            let has_buffer = to.fake.with(0, |queue| match queue.take() {
                Some(chain) => {
                    self.buffers.insert(chain.segments[1].address);
                    let written = chain.write(&packet);
                    queue.complete(chain.head, written);
                    true
                }
                None => false,
            });
            if !has_buffer {
                self.packets.push_front(packet);
                return;
            }
        }
    }
}

/// Both machines, and the wires from the host and from the guest.
struct Pair {
    host: End,
    guest: End,
    wires: [Wire; 2],
}

impl Pair {
    fn new() -> Pair {
        Pair::with(0)
    }

    fn with(features: u64) -> Pair {
        Pair { host: end(4, features), guest: end(3, features), wires: Default::default() }
    }

    /// What the loops of both cores do once.
    fn round(&mut self) {
        let Pair { host, guest, wires: [out, back] } = self;
        for end in [&mut *host, &mut *guest] {
            end.driver.poll();
            end.driver.kick();
        }
        out.carry(host, guest);
        back.carry(guest, host);
    }

    /// Runs a task of either machine.
    fn run<T>(&mut self, task: impl Future<Output = T>) -> T {
        let mut task = pin!(task);
        for _ in 0..100_000 {
            if let Poll::Ready(value) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return value;
            }
            self.round();
        }
        panic!("the task does not end");
    }

    fn settle(&mut self) {
        (0..50).for_each(|_| self.round());
    }

    /// The host sends a data packet on the connection of `server`, whatever its credit is.
    fn force_data(&mut self, server: &impl Stream, data: &[u8]) {
        let Address::Vsock(peer) = server.peer() else { panic!("it is a vsock connection") };
        let header = Header {
            source_cid: peer.cid.into(),
            destination_cid: guest().cid.into(),
            source_port: peer.port,
            destination_port: PORT,
            data_bytes: data.len() as u32,
            kind: Some(Type::Stream),
            operation: Some(Operation::Data),
            flags: 0,
            window_bytes: 64 << 10,
            consumed: 0,
        };
        self.wires[0].packets.push_back([&header.bytes()[..], data].concat());
    }

    /// Nothing is left of any connection, and both devices have all their buffers.
    fn assert_nothing_left(&mut self) {
        self.settle();
        assert_eq!(self.counts(), (0, 0));
        assert!(!self.host.driver.is_delivering() && !self.guest.driver.is_delivering());
        for end in [&self.host, &self.guest] {
            let buffers = core::iter::from_fn(|| end.fake.with(0, |queue| queue.take())).count();
            assert_eq!(buffers, usize::from(SMALL.receive_buffers));
        }
        assert_eq!(DAMAGED.load(Ordering::Relaxed), 0);
    }

    fn counts(&self) -> (usize, usize) {
        (self.host.sockets.connection_count(), self.guest.sockets.connection_count())
    }
}

fn guest() -> VsockAddress {
    VsockAddress { cid: 3, port: PORT }
}

async fn read_all(stream: &mut impl Stream) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 3000]);
    while let count @ 1.. = stream.read(&mut part).await.unwrap() {
        all.extend_from_slice(&part[..count]);
    }
    all
}

async fn read_exactly(stream: &mut impl Stream, bytes: usize) -> Vec<u8> {
    let (mut all, mut filled) = (vec![0; bytes], 0);
    while filled < bytes {
        let count = stream.read(&mut all[filled..]).await.unwrap();
        assert!(count > 0, "it ended after {filled} bytes");
        filled += count;
    }
    all
}

#[test]
fn ten_thousand_connections_leave_nothing_behind() {
    let mut pair = Pair::new();
    let mut listener = pair.guest.sockets.listen(PORT).unwrap();
    for _ in 0..20 {
        let sockets = pair.host.sockets.clone();
        let mut open = Vec::new();
        for _ in 0..500 {
            let mut client = pair.run(sockets.connect(guest())).unwrap();
            // It is written before the connection is accepted, and must not be lost.
            pair.run(client.write_all(b"request")).unwrap();
            open.push((client, pair.run(listener.accept()).unwrap()));
        }
        assert_eq!(pair.counts(), (500, 500));
        for (client, server) in &mut open {
            pair.run(client.close()).unwrap();
            assert_eq!(pair.run(read_all(server)), b"request");
            pair.run(server.write_all(b"answer")).unwrap();
            pair.run(server.close()).unwrap();
            assert_eq!(pair.run(read_all(client)), b"answer");
        }
        drop(open);
        pair.settle();
        assert_eq!(pair.counts(), (0, 0));
    }
    pair.assert_nothing_left();
}

#[test]
fn a_peer_that_does_not_read_stops_only_its_own_connection() {
    let mut pair = Pair::new();
    let mut listener = pair.guest.sockets.listen(PORT).unwrap();
    let sockets = pair.host.sockets.clone();
    let mut stalled = pair.run(sockets.connect(guest())).unwrap();
    let mut other = pair.run(sockets.connect(guest())).unwrap();
    let (mut unread, mut read) = (pair.run(listener.accept()).unwrap(), pair.run(listener.accept()).unwrap());
    let mut written = 0;
    for _ in 0..1000 {
        let waker = &mut Context::from_waker(Waker::noop());
        if let Poll::Ready(count) = pin!(stalled.write(&[5; 1000])).poll(waker) {
            written += count.unwrap();
        }
        pair.round();
    }
    // One window.
    assert_eq!(written, 64 << 10);
    let data: Vec<u8> = (0..1_000_000u32).map(|at| (at / 251) as u8).collect();
    let mut received = Vec::new();
    for part in data.chunks(10_000) {
        pair.run(other.write_all(part)).unwrap();
        received.extend(pair.run(read_exactly(&mut read, part.len())));
    }
    assert!(received == data);
    pair.run(stalled.close()).unwrap();
    assert_eq!(pair.run(read_all(&mut unread)), vec![5; written]);
}

/// Connects the host to the guest's `listener`; returns the host's stream and the guest's.
fn connect<L: Listener>(pair: &mut Pair, listener: &mut L) -> (impl Stream + use<L>, L::Stream) {
    let sockets = pair.host.sockets.clone();
    let client = pair.run(async move { sockets.connect(guest()).await }).unwrap();
    (client, pair.run(listener.accept()).unwrap())
}

fn content(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn a_peer_that_sends_single_bytes_is_read_whole_and_holds_no_buffers() {
    let mut pair = Pair::new();
    pair.wires[0].piece_bytes = 1;
    let mut listener = pair.guest.sockets.listen(PORT).unwrap();
    let (mut client, mut server) = connect(&mut pair, &mut listener);
    // As many packets as bytes fit into a window, and nothing is read meanwhile.
    let data = content(64 << 10);
    pair.run(client.write_all(&data)).unwrap();
    pair.run(client.close()).unwrap();
    for _ in 0..20_000 {
        pair.round();
    }
    assert!(pair.wires[0].packets.is_empty(), "each packet found a buffer, though nothing is read");
    assert_eq!(pair.wires[0].buffers.len(), usize::from(SMALL.receive_buffers), "no buffer is kept for a byte");
    assert!(pair.run(read_all(&mut server)) == data);
    pair.run(server.write_all(&data)).unwrap();
    pair.run(server.close()).unwrap();
    assert!(pair.run(read_all(&mut client)) == data);
    drop((client, server));
    pair.assert_nothing_left();
}

#[test]
fn a_peer_that_ignores_its_credit_is_reset_alone() {
    let mut pair = Pair::new();
    let mut listener = pair.guest.sockets.listen(PORT).unwrap();
    let (greedy, mut flooded) = connect(&mut pair, &mut listener);
    let (mut client, mut server) = connect(&mut pair, &mut listener);
    for _ in 0..32 {
        pair.force_data(&flooded, &[5; 4096]);
    }
    pair.settle();
    // What was within the window is read, and then the error.
    let mut read = 0;
    let end = loop {
        match pair.run(flooded.read(&mut [0; 1000])) {
            Ok(count @ 1..) => read += count,
            other => break other,
        }
    };
    assert_eq!((read, end), (64 << 10, Err(NetError::Reset)));
    let data = content(300_000);
    for part in data.chunks(30_000) {
        pair.run(client.write_all(part)).unwrap();
        assert!(pair.run(read_exactly(&mut server, part.len())) == part);
    }
    drop((greedy, flooded, client, server));
    pair.assert_nothing_left();
}

#[test]
fn a_reset_during_a_transfer_ends_both_directions_of_that_connection_alone() {
    for rounds in 0..12 {
        let mut pair = Pair::new();
        let mut listener = pair.guest.sockets.listen(PORT).unwrap();
        let (mut client, mut server) = connect(&mut pair, &mut listener);
        let (mut other, mut served) = connect(&mut pair, &mut listener);
        let data = content(60_000);
        pair.run(client.write_all(&data)).unwrap();
        pair.run(server.write_all(&data)).unwrap();
        pair.run(other.write_all(&data)).unwrap();
        (0..rounds).for_each(|_| pair.round());
        // It is reset, as it was not closed.
        drop(client);
        pair.settle();
        assert_eq!(pair.run(server.write(b"x")), Err(NetError::Reset));
        let (mut read, mut part) = (0, [0; 1000]);
        while let Ok(count) = pair.run(server.read(&mut part)) {
            assert!(count > 0, "a reset is not an end");
            assert!(part[..count] == data[read..read + count]);
            read += count;
        }
        pair.run(other.close()).unwrap();
        assert!(pair.run(read_all(&mut served)) == data);
        drop((server, other, served));
        pair.assert_nothing_left();
    }
}

#[test]
fn a_device_that_breaks_resets_all_connections_and_serves_new_ones() {
    let mut pair = Pair::new();
    let mut listener = pair.guest.sockets.listen(PORT).unwrap();
    let sockets = pair.host.sockets.clone();
    let _client = pair.run(sockets.connect(guest())).unwrap();
    let mut server = pair.run(listener.accept()).unwrap();
    pair.guest.fake.with(0, |queue| queue.put(60_000, 44));
    pair.guest.fake.with(0, |queue| queue.publish(1));
    pair.guest.driver.poll();
    assert!(pair.guest.driver.violation().is_some());
    pair.guest.driver.restart().unwrap();
    assert_eq!(pair.run(server.read(&mut [0; 10])), Err(NetError::Reset));
    let mut again = pair.run(sockets.connect(guest())).unwrap();
    let mut server = pair.run(listener.accept()).unwrap();
    pair.run(again.write_all(b"x")).unwrap();
    assert_eq!(pair.run(server.read(&mut [0; 10])), Ok(1));
}

#[test]
fn a_host_that_does_not_answer_is_a_time_out() {
    let mut pair = Pair::new();
    let sockets = pair.guest.sockets.clone();
    let mut connect = pin!(sockets.connect(VsockAddress { cid: VsockAddress::HOST, port: 9 }));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(connect.as_mut().poll(context).is_pending());
    pair.guest.driver.kick();
    let deadline = pair.guest.driver.deadline().unwrap();
    assert_eq!(deadline, Instant(0) + Duration::from_secs(2));
    pair.guest.now.set(deadline);
    pair.guest.driver.kick();
    assert_eq!(connect.as_mut().poll(context).map(|result| result.err()), Poll::Ready(Some(NetError::TimedOut)));
}

#[test]
fn messages_keep_their_ends_through_devices_that_carry_them() {
    let mut pair = Pair::with(SEQPACKET);
    assert_ne!(pair.guest.fake.state().accepted & SEQPACKET, 0);
    let mut listener = pair.guest.sockets.listen_messages(PORT).unwrap();
    let sockets = pair.host.sockets.clone();
    let mut client = pair.run(sockets.connect_messages(guest())).unwrap();
    let mut server = pair.run(listener.accept()).unwrap();
    // Shorter and longer than a buffer of the device, as long as the window, and empty.
    for bytes in [1, 0, 4096, 4097, 64 << 10, 0, 20_000] {
        pair.run(client.send(&content(bytes))).unwrap();
        let received = pair.run(server.receive()).unwrap().unwrap();
        assert!(received[..] == content(bytes), "{bytes} bytes");
        pair.run(server.send(&received)).unwrap();
        assert!(pair.run(client.receive()).unwrap().unwrap()[..] == content(bytes), "{bytes} bytes");
    }
    // A stream finds no port of messages.
    assert_eq!(pair.run(sockets.connect(guest())).err(), Some(NetError::Reset));
    pair.run(client.send(b"last")).unwrap();
    pair.run(client.close()).unwrap();
    assert_eq!(&pair.run(server.receive()).unwrap().unwrap()[..], b"last");
    assert!(pair.run(server.receive()).unwrap().is_none());
    pair.run(server.close()).unwrap();
    drop((client, server));
    pair.assert_nothing_left();
}

#[test]
fn without_the_feature_there_are_no_messages() {
    let mut pair = Pair::new();
    assert_eq!(pair.guest.sockets.listen_messages(PORT).err(), Some(NetError::NoMessages));
    let sockets = pair.guest.sockets.clone();
    assert_eq!(pair.run(sockets.connect_messages(guest())).err(), Some(NetError::NoMessages));
}
