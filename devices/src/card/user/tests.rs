//! A guest, whose end of each connection is `glass_lib_tcp`, too, behind a user network with real sockets of this host.

use super::*;
use glass_lib_tcp::congestion::Kind;
use glass_lib_tcp::wire::Flags;
use glass_lib_tcp::{Connection, End, HalfOpen, Reply, Settings, State};
use proptest::prelude::*;
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::time::Duration;

const CARD: Mac = [2, 0, 0, 0, 0, 9];
/// All that these tests do takes less.
const PATIENCE: Duration = Duration::from_secs(30);
const FEATURES: u64 = CSUM | GUEST_CSUM | GUEST_TSO4 | HOST_TSO4;

/// A guest: what it has sent and received by its connections.
struct Guest {
    user: User,
    port: u16,
    /// The host's port that leads to `port`.
    host_port: u16,
    writer: Writer,
    halves: HashMap<Ends, HalfOpen>,
    connections: HashMap<Ends, Connection>,
    datagrams: Vec<(Ends, Vec<u8>)>,
    others: Vec<Vec<u8>>,
    refused: Vec<Ends>,
    /// Payload of the longest frame that arrived, and whether its checksum was whole.
    longest: usize,
    accepts: bool,
}

fn settings() -> Settings {
    Settings {
        receive_bytes: 256 << 10,
        buffer_bytes_max: 0,
        send_bytes: 256 << 10,
        segment_bytes: 1460,
        congestion: Kind::None,
        open_timeout: PATIENCE,
        peer_timeout: PATIENCE,
        ack_delay: Duration::from_millis(10),
        seed: 3,
    }
}

impl Guest {
    fn new(features: u64) -> Guest {
        // A free port of this host.
        let host_port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut user = User::open(UserNetwork { ports: vec![(host_port, 80)] }.listen().unwrap(), CARD).unwrap();
        user.agree(HEADER_BYTES, features).unwrap();
        Guest {
            user,
            port: 80,
            host_port,
            // It writes to the network what that writes to a guest.
            writer: Writer::new(CARD, GATEWAY_MAC),
            halves: HashMap::new(),
            connections: HashMap::new(),
            datagrams: Vec::new(),
            others: Vec::new(),
            refused: Vec::new(),
            longest: 0,
            accepts: true,
        }
    }

    /// A client of the host.
    fn client(&self) -> TcpStream {
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, self.host_port)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    }

    /// Opens a connection from this port of the guest.
    fn connect(&mut self, port: u16, remote: SocketAddrV4) -> Ends {
        let ends = Ends { guest: SocketAddrV4::new(GUEST, port), remote };
        self.connections.insert(ends, Connection::connect(host::now(), 77, settings()));
        ends
    }

    fn send(&mut self, frame: &[u8]) {
        let mut bytes = [&[0; HEADER_BYTES], frame].concat();
        let middle = bytes.len() / 2;
        let (first, second) = bytes.split_at_mut(middle);
        let pieces =
            [first, second].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: both are parts of `bytes`, which lives until the end.
        unsafe { self.user.write(&pieces) }.unwrap();
    }

    fn send_segment(&mut self, ends: &Ends, header: &glass_lib_tcp::Header, payload: [&[u8]; 2]) {
        let turned = Ends { guest: ends.remote, remote: ends.guest };
        let mut frame = self.writer.segment(&turned, header, payload, Checksum::OfAddresses);
        payload.iter().for_each(|piece| frame.extend(*piece));
        self.send(&frame);
    }

    fn frame(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 70_000];
        let (first, second) = bytes.split_at_mut(61);
        let pieces =
            [first, second].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: both are parts of `bytes`, which is not used meanwhile.
        let count = unsafe { self.user.read(&pieces) }.ok()?;
        bytes.truncate(count);
        Some(bytes)
    }

    /// One turn: what the network has is received, and what the connections have is sent. Waits for the network if there was nothing.
    fn turn(&mut self) {
        let mut is_idle = true;
        while let Some(frame) = self.frame() {
            is_idle = false;
            self.receive(&frame[HEADER_BYTES..]);
        }
        let all: Vec<Ends> = self.connections.keys().copied().collect();
        for ends in all {
            let connection = self.connections.get_mut(&ends).unwrap();
            let mut outgoing = Vec::new();
            while let Some(transmit) = connection.poll_transmit(host::now(), 65_000) {
                let payload = connection.payload(&transmit).map(<[u8]>::to_vec);
                outgoing.push((transmit.header, payload));
            }
            for (header, payload) in outgoing {
                is_idle = false;
                self.send_segment(&ends, &header, [&payload[0], &payload[1]]);
            }
        }
        if is_idle {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn receive(&mut self, frame: &[u8]) {
        let turned = |ends: Ends| Ends { guest: ends.remote, remote: ends.guest };
        match Packet::parse(frame) {
            Some(Packet::Segment(ends, segment)) => self.receive_segment(turned(ends), &segment),
            Some(Packet::Datagram(ends, data)) => self.datagrams.push((turned(ends), data.to_vec())),
            _ => self.others.push(frame.to_vec()),
        }
    }

    fn receive_segment(&mut self, ends: Ends, segment: &glass_lib_tcp::Segment) {
        let now = host::now();
        self.longest = self.longest.max(segment.payload.len());
        if let Some(connection) = self.connections.get_mut(&ends) {
            connection.receive(now, segment);
            if connection.end() == Some(End::Reset) {
                self.refused.push(ends);
            }
            return;
        }
        if segment.header.flags.has(Flags::SYN) && ends.guest.port() == self.port && self.accepts {
            let mut half = HalfOpen::new(now, &segment.header, 99, settings());
            let answer = half.answer(now);
            self.halves.insert(ends, half);
            return self.send_segment(&ends, &answer, [&[], &[]]);
        }
        match self.halves.get(&ends).map(|half| half.reply(segment)) {
            Some(Reply::Opens) => {
                let mut connection = self.halves.remove(&ends).unwrap().open(now);
                connection.receive(now, segment);
                self.connections.insert(ends, connection);
            }
            _ => {
                if let Some(header) = segment.refusal() {
                    self.send_segment(&ends, &header, [&[], &[]]);
                }
            }
        }
    }

    /// Turns until `done` returns something.
    fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Guest) -> Option<T>) -> T {
        let start = std::time::Instant::now();
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            assert!(start.elapsed() < PATIENCE, "{what} did not happen");
            self.turn();
        }
    }

    /// The connection that a client of the host has opened.
    fn accepted(&mut self) -> Ends {
        self.until("a connection", |guest| guest.connections.keys().next().copied())
    }
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 7 + index / 251) as u8).collect()
}

/// Writes what there is room for.
fn write_some(stream: &mut TcpStream, from: &[u8], at: &mut usize) {
    if let Ok(count) = stream.write(&from[*at..]) {
        *at += count;
    }
}

/// Reads what there is; whether the other end has closed.
fn read_some(stream: &mut TcpStream, to: &mut Vec<u8>) -> bool {
    let mut buffer = vec![0; 100_000];
    match stream.read(&mut buffer) {
        Ok(0) => true,
        Ok(count) => {
            to.extend(&buffer[..count]);
            false
        }
        Err(_) => false,
    }
}

/// A client of the host sends megabytes and gets them back from the guest. Both ends close their halves one after the other.
fn check_echo(features: u64, longest_min: usize) {
    let mut guest = Guest::new(features);
    let (mut client, sent) = (guest.client(), bytes(5_000_000));
    let ends = guest.accepted();
    let (mut written, mut received, mut is_shut) = (0, Vec::new(), false);
    let mut echoed = 0;
    guest.until("the echo", |guest| {
        write_some(&mut client, &sent, &mut written);
        if written == sent.len() && !is_shut {
            client.shutdown(Shutdown::Write).unwrap();
            is_shut = true;
        }
        let connection = guest.connections.get_mut(&ends).unwrap();
        let mut buffer = vec![0; connection.space().min(connection.readable())];
        connection.read(&mut buffer);
        echoed += connection.write(&buffer);
        if connection.has_peer_closed() && connection.readable() == 0 && connection.state() == State::CloseWait {
            connection.close();
        }
        read_some(&mut client, &mut received).then_some(())
    });
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    assert!(guest.longest >= longest_min, "the longest frame has {} bytes", guest.longest);
    guest.until("the end", |guest| (guest.user.connections.count() == 0).then_some(()));
}

#[test]
fn a_client_of_the_host_gets_its_bytes_back() {
    check_echo(FEATURES, 60_000);
}

#[test]
fn a_guest_without_offloads_gets_ordinary_frames() {
    check_echo(0, 1000);
}

/// A short request takes no megabyte of memory, and a long one has the whole buffer.
#[test]
fn a_connection_has_the_memory_that_it_needs() {
    let mut guest = Guest::new(FEATURES);
    let mut client = guest.client();
    let ends = guest.accepted();
    let allocated = |guest: &mut Guest| guest.user.connections.allocated(&ends);
    client.write_all(&[1; 300]).unwrap();
    guest.until("a request", |guest| (guest.connections[&ends].readable() == 300).then_some(()));
    let little = allocated(&mut guest);
    assert!(little <= 16 << 10, "{little} bytes");
    let (sent, mut written) = (bytes(2_000_000), 0);
    guest.until("a full buffer", |guest| {
        write_some(&mut client, &sent, &mut written);
        (allocated(guest) >= 1 << 20).then_some(())
    });
}

/// The host reads slowly, so the guest may send no more than the buffers have room for; all arrives, after the guest's end, too.
#[test]
fn a_slow_host_makes_the_guest_wait() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut guest = Guest::new(FEATURES);
    let port = listener.local_addr().unwrap().port();
    let ends = guest.connect(4000, SocketAddrV4::new(GATEWAY, port));
    guest.until("the connection", |guest| guest.connections[&ends].is_writable().then_some(()));
    let (mut host, _) = listener.accept().unwrap();
    let (sent, mut written) = (bytes(20_000_000), 0);
    let full = std::time::Instant::now();
    guest.until("a full buffer", |guest| {
        written += guest.connections.get_mut(&ends).unwrap().write(&sent[written..]);
        (full.elapsed() > Duration::from_millis(500)).then_some(())
    });
    assert!(written < sent.len(), "nothing was read, and all was sent");
    host.set_nonblocking(true).unwrap();
    let mut received = Vec::new();
    guest.until("all bytes", |guest| {
        let connection = guest.connections.get_mut(&ends).unwrap();
        written += connection.write(&sent[written..]);
        if written == sent.len() && connection.is_writable() {
            connection.close();
        }
        read_some(&mut host, &mut received).then_some(())
    });
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
}

#[test]
fn a_port_without_a_listener_is_refused() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let mut guest = Guest::new(FEATURES);
    // Not the loopback by its own address, no group, no process else in the network, no other service of the name server.
    let addresses =
        [GATEWAY, Ipv4Addr::LOCALHOST, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::new(10, 0, 2, 77), NAME_SERVER];
    for (index, address) in addresses.into_iter().enumerate() {
        let ends = guest.connect(5000 + index as u16, SocketAddrV4::new(address, free));
        guest.until("a refusal", |guest| guest.refused.contains(&ends).then_some(()));
    }
    assert_eq!(guest.user.connections.count(), 0);
}

#[test]
fn where_a_remote_end_is() {
    let mut user = Guest::new(FEATURES).user;
    user.names = Some(Ipv4Addr::new(9, 9, 9, 9));
    for (remote, expected) in [
        ("10.0.2.2:80", Some("127.0.0.1:80")),
        ("10.0.2.3:53", Some("9.9.9.9:53")),
        ("10.0.2.3:80", None),
        ("10.0.2.7:80", None),
        ("127.0.0.1:80", None),
        ("224.0.0.1:80", None),
        ("255.255.255.255:80", None),
        ("0.0.0.0:80", None),
        ("192.0.2.1:0", None),
        ("192.0.2.1:80", Some("192.0.2.1:80")),
    ] {
        assert_eq!(user.target(remote.parse().unwrap()).map(|target| target.to_string()).as_deref(), expected);
    }
}

#[test]
fn a_reset_is_passed_on_in_both_directions() {
    let mut guest = Guest::new(FEATURES);
    let client = guest.client();
    let ends = guest.accepted();
    set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    drop(client);
    guest.until("the guest's reset", |guest| guest.refused.contains(&ends).then_some(()));
    guest.connections.clear();
    let mut client = guest.client();
    let ends = guest.accepted();
    guest.connections.get_mut(&ends).unwrap().abort();
    let error = guest.until("the client's reset", |_| match client.read(&mut [0; 1]) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Some(error),
        Ok(_) => panic!("it is no end"),
        Err(_) => None,
    });
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(guest.user.connections.count(), 0);
}

/// The client closes after its request, and reads slowly: what the guest has sent before its end is not lost with the connection.
#[test]
fn what_was_sent_before_the_end_arrives() {
    let mut guest = Guest::new(FEATURES);
    let mut client = guest.client();
    let ends = guest.accepted();
    client.shutdown(Shutdown::Write).unwrap();
    // As much as the host's socket, the network and the guest have space for.
    let sent = bytes(40_000_000);
    let (mut written, mut written_at) = (0, std::time::Instant::now());
    guest.until("a full buffer", |guest| {
        let more = guest.connections.get_mut(&ends).unwrap().write(&sent[written..]);
        written += more;
        if more > 0 {
            written_at = std::time::Instant::now();
        }
        (written_at.elapsed() > Duration::from_millis(300)).then_some(())
    });
    let sent = &sent[..written];
    // The guest can end when the client has read what is in the guest, so that the network has the rest.
    let mut received = Vec::new();
    guest.connections.get_mut(&ends).unwrap().close();
    guest.until("the guest's end", |guest| {
        let is_over = guest.connections[&ends].state() == State::Closed;
        if !is_over {
            read_some(&mut client, &mut received);
        }
        is_over.then_some(())
    });
    assert!(received.len() < sent.len(), "all was read before the end");
    guest.until("all bytes", |_| read_some(&mut client, &mut received).then_some(()));
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
}

/// Those for which there is no place wait in the host's queue.
#[test]
fn further_clients_wait_until_others_have_ended() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let mut guest = Guest::new(FEATURES);
    let clients: Vec<TcpStream> = (0..connections::CONNECTIONS_MAX + 20).map(|_| guest.client()).collect();
    guest.until("all that have a place", |guest| {
        (guest.connections.len() == connections::CONNECTIONS_MAX).then_some(())
    });
    (0..50).for_each(|_| guest.turn());
    assert_eq!(guest.connections.len(), connections::CONNECTIONS_MAX);
    guest.connections.values_mut().take(100).for_each(Connection::abort);
    guest.until("the others", |guest| (guest.connections.len() == clients.len()).then_some(()));
}

#[test]
fn a_client_whose_guest_does_not_listen_is_refused() {
    let mut guest = Guest::new(FEATURES);
    guest.accepts = false;
    let mut client = guest.client();
    let error = guest
        .until("a reset", |_| client.read(&mut [0; 1]).err().filter(|error| error.kind() != ErrorKind::WouldBlock));
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn datagrams_are_answered_and_sockets_are_used_again() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let remote = SocketAddrV4::new(GATEWAY, server.local_addr().unwrap().port());
    let mut guest = Guest::new(FEATURES);
    for port in 0..2 * datagrams::SOCKETS_MAX as u16 {
        let ends = Ends { guest: SocketAddrV4::new(GUEST, 1000 + port), remote };
        let turned = Ends { guest: ends.remote, remote: ends.guest };
        let query = guest.writer.datagram(&turned, &port.to_be_bytes());
        guest.send(&query);
        let mut buffer = [0; 10];
        let (count, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..count], port.to_be_bytes());
        server.send_to(b"answer", from).unwrap();
        // What is too long for a frame is lost.
        server.send_to(&[0; 2000], from).unwrap();
        guest.until("an answer", |guest| (guest.datagrams.len() == 1 + usize::from(port)).then_some(()));
        assert_eq!(guest.datagrams.last(), Some(&(ends, b"answer".to_vec())));
    }
    assert_eq!(guest.user.datagrams.count(), datagrams::SOCKETS_MAX);
}

#[test]
fn the_gateway_and_the_name_server_have_a_card() {
    let mut guest = Guest::new(FEATURES);
    for (target, is_answered) in [(GATEWAY, true), (NAME_SERVER, true), (GUEST, false)] {
        let mut request = guest.writer.arp_reply(target, GUEST);
        request[21] = 1;
        guest.send(&request);
        guest.turn();
        assert_eq!(guest.others.pop().is_some_and(|frame| frame[22..28] == GATEWAY_MAC), is_answered, "{target}");
    }
}

#[test]
fn the_first_name_server_with_an_address_of_ipv4() {
    let text = "# nameserver 1.1.1.1\nsearch example\nnameserver fe80::1\nnameserver\nnameserver 9.9.9.9\nnameserver 8.8.8.8\n";
    assert_eq!(name_server(text), Some(Ipv4Addr::new(9, 9, 9, 9)));
    assert_eq!(name_server("nameserver"), None);
}

#[test]
fn a_port_that_is_in_use_is_a_sentence() {
    let used = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = used.local_addr().unwrap().port();
    let error = UserNetwork { ports: vec![(port, 80)] }.listen().err().unwrap();
    assert_eq!(error.to_string(), format!("cannot listen at port {port} of this host: choose another one with --port"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]
    /// A guest that sends anything, most of it almost right, costs nothing but its own connections.
    #[test]
    fn any_frames_are_survived(frames in prop::collection::vec((any::<u8>(), any::<u16>(), any::<u64>(), 0_usize..200), 1..60)) {
        let mut guest = Guest::new(FEATURES);
        let client = guest.client();
        for (kind, port, numbers, payload) in frames {
            let remote = SocketAddrV4::new(GATEWAY, if port % 3 == 0 { client.local_addr().unwrap().port() } else { 1 });
            let ends = Ends { guest: SocketAddrV4::new(GUEST, if port % 2 == 0 { 80 } else { port }), remote };
            let turned = Ends { guest: ends.remote, remote: ends.guest };
            let header = glass_lib_tcp::Header {
                seq: numbers as u32,
                ack: (numbers >> 32) as u32,
                flags: Flags(kind & 31),
                window: numbers as u16,
                ..Default::default()
            };
            let payload = vec![kind; payload];
            let mut frame = guest.writer.segment(&turned, &header, [&payload, &[]], Checksum::Whole);
            frame.extend(&payload);
            if kind & 32 != 0 {
                let at = usize::from(port) % frame.len();
                frame[at] ^= kind;
            }
            guest.send(&frame);
            while guest.frame().is_some() {}
        }
        prop_assert!(guest.user.connections.count() <= connections::CONNECTIONS_MAX);
    }
}
