//! Handshakes with peers made by hand: what is answered and when, and what waits for room.

use crate::common::peer::Peer;
use crate::common::{Wire, config, run};
use core::net::SocketAddr;
use core::time::Duration;
use glass_api::{Instant, Listener, Net, Stream};
use glass_lib_net::Config;
use glass_lib_net::smoltcp::wire::TcpControl;
use std::cell::RefCell;
use std::rc::Rc;

const PORT: u16 = 80;
/// While all handshakes are younger, they are a burst of clients, and each of them is expected to become a connection.
const USUAL_TIME: Duration = Duration::from_millis(100);

/// The right end listens on these ports and accepts nothing.
fn listening(config: Config, ports: &[u16]) -> Wire {
    let mut wire = Wire::with(config);
    for port in ports {
        let (sockets, port) = (wire.right.sockets(), *port);
        wire.spawn(async move {
            let _listener = sockets.listen(port).await.unwrap();
            core::future::pending::<()>().await;
        });
    }
    wire.settle();
    wire
}

fn peers<const COUNT: usize>() -> [Peer; COUNT] {
    core::array::from_fn(|index| Peer::new(4000 + index as u16, PORT))
}

/// An answer goes to where the SYN came from, so no hardware address has to be requested first.
fn is_answered(wire: &mut Wire, peer: &mut Peer) -> bool {
    peer.request(wire).is_some()
}

#[test]
fn an_answer_offers_the_whole_receive_buffer() {
    for (receive_bytes, window, scale) in
        [(1000, 1000, 0), (65_535, 65_535, 0), (131_070, 65_535, 1), (262_140, 65_535, 2), (1 << 20, 65_535, 5)]
    {
        let mut wire = listening(Config { receive_bytes, ..config(2) }, &[PORT]);
        let answer = Peer::new(4000, PORT).request(&mut wire).unwrap();
        assert_eq!((answer.window, answer.window_scale), (window, Some(scale)), "{receive_bytes}");
    }
}

#[test]
fn a_window_allows_for_all_spare_memory() {
    for (spare_bytes, scale) in [(0, 1), (4 << 20, 6), (1 << 30, 9)] {
        let mut wire = listening(Config { spare_bytes, receive_bytes: 64 << 10, ..config(2) }, &[PORT]);
        let answer = Peer::new(4000, PORT).request(&mut wire).unwrap();
        assert_eq!(answer.window_scale, Some(scale), "{spare_bytes}");
    }
}

#[test]
fn a_burst_of_clients_waits_for_the_connections_that_it_becomes_and_a_flood_does_not_count() {
    let mut wire = listening(Config { connections_max: 3, ..config(2) }, &[PORT]);
    let mut peers: [Peer; 5] = peers();
    assert_eq!(peers.each_mut().map(|peer| is_answered(&mut wire, peer)), [true, true, true, false, false]);
    // One of them may repeat its SYN.
    assert!(is_answered(&mut wire, &mut peers[0]));
    wire.now = Instant((wire.now + USUAL_TIME).0 - 1);
    assert!(peers[3].answer(&mut wire).is_none());
    assert_eq!((wire.right.half_open_count(), wire.right.counters().refused_limit), (3, 2));
    wire.now = Instant(wire.now.0 + 1);
    assert!(peers[3].answer(&mut wire).is_some());
    assert_eq!(wire.right.half_open_count(), 5);
}

#[test]
fn the_oldest_handshake_makes_room_for_a_new_one() {
    let mut wire = listening(config(2), &[PORT]);
    let mut peers: [Peer; 258] = peers();
    for peer in &mut peers {
        assert!(is_answered(&mut wire, peer));
        wire.now = wire.now + Duration::from_millis(1);
    }
    let mut is_open = |index: usize| {
        let before = wire.right.connection_count();
        peers[index].complete(&mut wire);
        wire.right.connection_count() > before
    };
    assert_eq!([0, 1, 2, 3, 254, 255, 256, 257].map(&mut is_open), [false, false, true, true, true, true, true, true]);
}

#[test]
fn an_answer_is_retransmitted_after_one_two_and_four_seconds_and_the_handshake_ends_after_eight_more() {
    let mut wire = listening(config(2), &[PORT]);
    let mut peer = Peer::new(4000, PORT);
    assert!(is_answered(&mut wire, &mut peer));
    for at in [1, 3, 7] {
        let deadline = wire.right.next_deadline(wire.now);
        assert_eq!(deadline, Some(Instant(0) + Duration::from_secs(at)));
        wire.now = deadline.unwrap();
        assert_eq!((peer.exchange(&mut wire).len(), wire.right.half_open_count()), (1, 1));
    }
    wire.now = wire.right.next_deadline(wire.now).unwrap();
    assert_eq!(wire.now, Instant(0) + Duration::from_secs(15));
    assert!(peer.answer(&mut wire).is_none());
    assert_eq!((wire.right.half_open_count(), wire.right.counters().abandoned_opening), (0, 1));
    assert_eq!(wire.right.next_deadline(wire.now), None);
}

#[test]
fn only_the_acknowledgement_of_our_answer_opens_a_connection() {
    let mut wire = listening(config(2), &[PORT]);
    let mut peer = Peer::new(4000, PORT);
    assert!(is_answered(&mut wire, &mut peer));
    let ack = peer.ack;
    for wrong in [ack + 1, ack - 1] {
        peer.ack = wrong;
        peer.send(&mut wire, TcpControl::None, peer.seq + 1, true, &[]);
        peer.exchange(&mut wire);
        assert_eq!((wire.right.half_open_count(), wire.right.connection_count()), (1, 0));
    }
    peer.ack = ack;
    peer.complete(&mut wire);
    assert_eq!((wire.right.half_open_count(), wire.right.connection_count()), (0, 1));
}

#[test]
fn first_sequence_numbers_differ() {
    let mut wire = listening(config(2), &[PORT]);
    let [one, other] = peers::<2>().map(|mut peer| peer.request(&mut wire).unwrap().seq);
    assert_ne!(one, other);
}

/// An attacker's own connections show nothing of the generator that makes those of others, because there is none.
#[test]
fn a_first_sequence_number_follows_from_the_ends_and_the_clock_and_from_no_other_handshake() {
    let number_after = |handshakes: u16, time: Duration| {
        let mut wire = listening(config(2), &[PORT]);
        for port in 0..handshakes {
            assert!(is_answered(&mut wire, &mut Peer::new(3000 + port, PORT)));
        }
        wire.advance(time);
        Peer::new(4000, PORT).request(&mut wire).unwrap().seq
    };
    let first = number_after(0, Duration::ZERO);
    assert_eq!([1, 2, 3].map(|handshakes| number_after(handshakes, Duration::ZERO)), [first; 3]);
    assert_eq!(number_after(0, Duration::from_secs(1)) - first, 250_000);
}

#[test]
fn the_end_of_a_listener_ends_its_handshakes_only() {
    let mut wire = Wire::new();
    let (closing, _open) = (listen(&mut wire, PORT), listen(&mut wire, PORT + 1));
    let (mut one, mut other) = (Peer::new(4000, PORT), Peer::new(4001, PORT + 1));
    assert!(is_answered(&mut wire, &mut one) && is_answered(&mut wire, &mut other));
    drop(closing);
    assert_eq!(wire.right.half_open_count(), 1);
    other.complete(&mut wire);
    assert_eq!((wire.right.half_open_count(), wire.right.connection_count()), (0, 1));
}

#[test]
fn a_peer_whose_acknowledgement_is_damaged_can_repeat_it() {
    let mut wire = listening(config(2), &[PORT]);
    let mut peer = Peer::new(4000, PORT);
    assert!(is_answered(&mut wire, &mut peer));
    let mut frame = peer.frame(TcpControl::None, peer.seq + 1, Some(peer.ack), &[]);
    // The window, for which the checksum is wrong then.
    frame[48] ^= 1;
    wire.right.device_mut().incoming.borrow_mut().push_back(frame);
    peer.exchange(&mut wire);
    assert_eq!((wire.right.half_open_count(), wire.right.connection_count()), (1, 0));
    wire.advance(Duration::from_secs(9));
    peer.complete(&mut wire);
    assert_eq!((wire.right.half_open_count(), wire.right.connection_count()), (0, 1));
}

/// A listener, and the connection that it accepts as soon as tasks run.
type Accepted = Rc<RefCell<Option<(glass_lib_net::Listener, glass_lib_net::Stream)>>>;

fn listen(wire: &mut Wire, port: u16) -> glass_lib_net::Listener {
    let sockets = wire.right.sockets();
    run(wire, Duration::ZERO, async move { sockets.listen(port).await.unwrap() })
}

fn accept(wire: &Wire, mut listener: glass_lib_net::Listener) -> Accepted {
    let accepted = Accepted::default();
    let slot = accepted.clone();
    wire.spawn(async move {
        let stream = listener.accept().await.unwrap();
        *slot.borrow_mut() = Some((listener, stream));
    });
    accepted
}

#[test]
fn a_syn_waits_for_room_in_the_backlog_of_its_listener() {
    let mut wire = Wire::with(Config { backlog_max: 1, ..config(2) });
    let (listener, _other) = (listen(&mut wire, PORT), listen(&mut wire, PORT + 1));
    let [mut first, mut second] = peers();
    assert!(first.open(&mut wire) && !is_answered(&mut wire, &mut second));
    assert_eq!(wire.right.counters().refused_backlog, 1);
    wire.now = wire.now + USUAL_TIME / 2;
    assert!(second.answer(&mut wire).is_none());
    let accepted = accept(&wire, listener);
    assert!(second.answer(&mut wire).is_some());
    assert!(accepted.borrow().is_some());
}

#[test]
fn a_syn_waits_for_the_end_of_a_connection() {
    let mut wire = Wire::with(Config { connections_max: 1, ..config(2) });
    let listener = listen(&mut wire, PORT);
    let accepted = accept(&wire, listener);
    let [mut first, mut second] = peers();
    assert!(first.open(&mut wire) && !is_answered(&mut wire, &mut second));
    assert_eq!(wire.right.counters().refused_limit, 1);
    let (_listener, stream) = accepted.take().unwrap();
    drop(stream);
    assert!(second.answer(&mut wire).is_some());
}

#[test]
fn an_acknowledgement_waits_for_the_end_of_a_connection() {
    let mut wire = Wire::with(Config { connections_max: 1, ..config(2) });
    let _listener = listen(&mut wire, PORT);
    let [mut first, mut second] = peers();
    assert!(is_answered(&mut wire, &mut first));
    wire.now = wire.now + USUAL_TIME;
    assert!(is_answered(&mut wire, &mut second));
    first.complete(&mut wire);
    second.complete(&mut wire);
    assert_eq!((wire.right.connection_count(), wire.right.half_open_count()), (1, 1));
    first.send(&mut wire, TcpControl::Rst, first.seq, true, &[]);
    first.exchange(&mut wire);
    assert_eq!((wire.right.connection_count(), wire.right.half_open_count()), (1, 0));
    assert_eq!(wire.right.counters().abandoned_opening, 1);
}

#[test]
fn a_connection_that_is_reset_before_it_is_accepted_leaves_the_others() {
    let mut wire = Wire::new();
    let listener = listen(&mut wire, PORT);
    let [mut first, mut second] = peers();
    assert!(first.open(&mut wire) && second.open(&mut wire));
    first.send(&mut wire, TcpControl::Rst, first.seq, true, &[]);
    first.exchange(&mut wire);
    let accepted = accept(&wire, listener);
    second.exchange(&mut wire);
    let (_listener, stream) = accepted.take().unwrap();
    assert_eq!(stream.peer(), SocketAddr::from(([10, 0, 0, 9], second.port)).into());
    assert_eq!(wire.right.connection_count(), 1);
}
