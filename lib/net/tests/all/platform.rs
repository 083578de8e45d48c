//! What the loop of a platform relies on: whether a poll did something, whether the next one will, and when.

use crate::common::{Wire, config, run};
use core::time::Duration;
use glass_api::{Datagrams, Listener, Net, Stream};
use glass_lib_net::{Config, Ipv6};

const PORT: u16 = 80;
const LIMIT: Duration = Duration::from_secs(1);
/// When a stack takes its first IPv6 address: that much later than it is made.
const START_DELAY: Duration = Duration::from_millis(100);
/// How long a platform may sleep while the device has no room.
const BLOCKED_WAIT: Duration = Duration::from_millis(10);

/// Both ends of a connection, with nothing left to do.
fn connected(wire: &mut Wire) -> (glass_lib_net::Stream, glass_lib_net::Stream) {
    let (left, right, remote) = (wire.left.sockets(), wire.right.sockets(), wire.right_address(PORT));
    let streams = run(wire, LIMIT, async move {
        let mut listener = right.listen(PORT).await.unwrap();
        let near = left.connect(remote).await.unwrap();
        (near, listener.accept().await.unwrap())
    });
    wire.settle();
    streams
}

/// The left end has something to send, sends it in one poll, and has nothing more.
fn assert_sends_once(wire: &mut Wire) {
    wire.executor.run_ready();
    assert!(wire.left.has_work());
    assert!(wire.left.poll(wire.now), "it has sent");
    assert_eq!(wire.left.device().outgoing.borrow().len(), 1);
    assert!(!wire.left.has_work());
    assert!(!wire.left.poll(wire.now), "there was nothing more");
}

#[test]
fn the_data_of_a_connection_is_work() {
    let mut wire = Wire::new();
    let (mut near, far) = connected(&mut wire);
    wire.spawn(async move {
        near.write_all(b"hello").await.unwrap();
        core::future::pending::<()>().await;
    });
    assert_sends_once(&mut wire);
    drop(far);
}

#[test]
fn a_datagram_is_work() {
    let mut wire = Wire::new();
    drop(connected(&mut wire));
    wire.settle();
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    wire.spawn(async move {
        let socket = left.bind(0).await.unwrap();
        socket.send_to(b"hello", remote).await.unwrap();
        core::future::pending::<()>().await;
    });
    assert_sends_once(&mut wire);
}

#[test]
fn the_announcement_of_an_address_is_work() {
    let mut wire = Wire::new();
    let left = wire.left.sockets();
    wire.spawn(async move {
        let _listener = left.listen(PORT).await.unwrap();
        core::future::pending::<()>().await;
    });
    assert_sends_once(&mut wire);
}

#[test]
fn a_message_of_neighbour_discovery_is_work() {
    let mut wire = Wire::with(Config { ipv6: Ipv6::Auto, ..config(2) });
    wire.advance(Duration::from_millis(50));
    wire.now = wire.now + START_DELAY;
    // It takes its address then, and will query for others that have it, and for a router.
    assert!(!wire.left.poll(wire.now));
    assert!(wire.left.has_work());
    assert!(wire.left.poll(wire.now));
    // smoltcp reports the address's group, too.
    while wire.left.poll(wire.now) {}
    assert!(wire.left.device().outgoing.borrow().len() >= 2);
    assert!(!wire.left.has_work());
}

#[test]
fn a_full_device_is_waited_for_whatever_there_is_to_send() {
    let mut wire = Wire::with(Config { ipv6: Ipv6::Auto, ..config(2) });
    wire.left.device_mut().frames_max = 0;
    wire.now = wire.now + START_DELAY;
    wire.left.poll(wire.now);
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    for _ in 0..2 {
        assert!(!wire.left.poll(wire.now) && !wire.left.has_work());
        assert_eq!(wire.left.next_deadline(wire.now), Some(wire.now + BLOCKED_WAIT));
        // Then a segment, in addition to what is sent for the address.
        let left = left.clone();
        wire.spawn(async move { drop(left.connect(remote).await) });
        wire.executor.run_ready();
    }
}

#[test]
fn a_full_device_is_of_no_concern_to_a_stack_that_sends_nothing() {
    let mut wire = Wire::new();
    wire.left.device_mut().frames_max = 0;
    assert!(!wire.left.poll(wire.now) && !wire.left.has_work());
    assert_eq!(wire.left.next_deadline(wire.now), None);
}

#[test]
fn an_idle_connection_sleeps_until_it_asks_whether_its_peer_is_there() {
    let mut wire = Wire::with(Config { peer_timeout: Duration::from_secs(60), ..config(2) });
    let streams = connected(&mut wire);
    // Acknowledgements may be delayed.
    wire.advance(LIMIT);
    assert_eq!(wire.left.next_deadline(wire.now), Some(wire.now + (Duration::from_secs(15) - LIMIT)));
    drop(streams);
}

#[test]
fn one_poll_receives_a_bounded_number_of_frames_and_bytes() {
    for (frame_bytes, received) in [(60, 128), (60_000, 5), (100_000, 3)] {
        let mut wire = Wire::new();
        // No stack receives such a frame, but it has to be taken.
        wire.left.device_mut().incoming.borrow_mut().extend((0..200).map(|_| vec![0; frame_bytes]));
        assert!(wire.left.poll(wire.now));
        assert_eq!(wire.left.device().incoming.borrow().len(), 200 - received, "of {frame_bytes} bytes");
    }
}
