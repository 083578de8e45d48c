//! UDP between two stacks.

use crate::common::{Wire, config, run};
use core::net::SocketAddr;
use core::time::Duration;
use glass_api::{Datagrams, Instant, Net, NetError};
use glass_lib_net::Config;
use std::cell::RefCell;
use std::rc::Rc;

const PORT: u16 = 53;
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn datagrams_arrive_whole_with_their_sender() {
    let mut wire = Wire::new();
    let (left, right, remote) = (wire.left.sockets(), wire.right.sockets(), wire.right_address(PORT));
    wire.spawn(async move {
        let socket = right.bind(PORT).await.unwrap();
        assert!(matches!(right.bind(PORT).await, Err(NetError::PortInUse(glass_api::Port::Tcp(PORT)))));
        let mut buf = [0; 2000];
        while let Ok((count, from)) = socket.recv_from(&mut buf).await {
            socket.send_to(&buf[..count], from).await.unwrap();
        }
    });
    run(&mut wire, LIMIT, async move {
        let socket = left.bind(0).await.unwrap();
        let mut buf = [0; 2000];
        for bytes in [0, 1, 1000, 1472] {
            let data: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            socket.send_to(&data, remote).await.unwrap();
            assert_eq!(socket.recv_from(&mut buf).await, Ok((bytes, remote)));
            assert_eq!(buf[..bytes], data);
        }
        // Of a longer one the rest is dropped, and the next one is whole again.
        socket.send_to(&[7; 100], remote).await.unwrap();
        assert_eq!(socket.recv_from(&mut buf[..10]).await, Ok((10, remote)));
        socket.send_to(&[8; 20], remote).await.unwrap();
        assert_eq!(socket.recv_from(&mut buf).await, Ok((20, remote)));
        let too_long = NetError::TooLong { bytes: 1473, bytes_max: 1472 };
        assert_eq!(socket.send_to(&[0; 1473], remote).await, Err(too_long));
        let nowhere: SocketAddr = "[fd00::1]:53".parse().unwrap();
        for nowhere in [nowhere, ([10, 0, 0, 2], 0).into(), ([0, 0, 0, 0], PORT).into()] {
            assert_eq!(socket.send_to(&[0], nowhere).await, Err(NetError::NoNetwork), "{nowhere}");
        }
    });
}

/// What nothing receives is dropped, whether by a queue or by a host that does not exist, and keeps no other datagram waiting.
#[test]
fn queues_are_bounded_and_an_absent_host_delays_no_other() {
    let mut wire = Wire::with(Config { datagram_bytes: 64 << 10, ..config(2) });
    let (left, right, remote) = (wire.left.sockets(), wire.right.sockets(), wire.right_address(PORT));
    let sent = run(&mut wire, LIMIT, async move {
        let socket = left.bind(0).await.unwrap();
        let _server = right.bind(PORT).await.unwrap();
        for number in 0..2000u32 {
            let absent: SocketAddr = ([10, 0, 0, 99], 9).into();
            if number % 100 == 0 {
                socket.send_to(&number.to_le_bytes(), absent).await.unwrap();
            }
            socket.send_to(&[1; 1000], remote).await.unwrap();
        }
        std::mem::forget((socket, _server));
        2000
    });
    assert_eq!(sent, 2000);
    // The absent host was waited for by nothing but its own datagrams.
    assert!(wire.now.since(glass_api::Instant(0)) < Duration::from_secs(2), "{}", wire.now);
}

/// The left end sends to the right one; the right one keeps what it receives, as numbers.
fn receiving(wire: &mut Wire) -> (Rc<glass_lib_net::Datagrams>, Rc<RefCell<Vec<u32>>>) {
    let (left, right) = (wire.left.sockets(), wire.right.sockets());
    let (sender, receiver) =
        run(wire, Duration::ZERO, async move { (left.bind(0).await.unwrap(), right.bind(PORT).await.unwrap()) });
    let received = Rc::new(RefCell::new(Vec::new()));
    let numbers = received.clone();
    wire.spawn(async move {
        let mut buf = [0; 4];
        while receiver.recv_from(&mut buf).await.is_ok() {
            numbers.borrow_mut().push(u32::from_le_bytes(buf));
        }
    });
    (Rc::new(sender), received)
}

fn send(wire: &mut Wire, sender: &Rc<glass_lib_net::Datagrams>, numbers: core::ops::Range<u32>) {
    let (sender, remote) = (sender.clone(), wire.right_address(PORT));
    wire.spawn(async move {
        for number in numbers {
            sender.send_to(&number.to_le_bytes(), remote).await.unwrap();
        }
    });
    wire.executor.run_ready();
}

#[test]
fn the_last_datagrams_wait_for_the_address_of_their_neighbour() {
    let mut wire = Wire::new();
    let (sender, received) = receiving(&mut wire);
    send(&mut wire, &sender, 0..10);
    wire.settle();
    assert_eq!(received.borrow()[..], [2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!((wire.now, wire.left.has_work()), (Instant(0), false));
}

/// The left end sends, and its requests for the right end's address are lost.
fn poll_unheard(wire: &mut Wire) {
    wire.executor.run_ready();
    for _ in 0..10 {
        wire.left.poll(wire.now);
    }
    wire.left.device_mut().outgoing.borrow_mut().clear();
}

#[test]
fn a_datagram_tries_for_three_seconds_and_is_dropped_then() {
    for (unheard_ms, expected) in [(1900, &[0][..]), (3000, &[])] {
        let mut wire = Wire::new();
        let (sender, received) = receiving(&mut wire);
        send(&mut wire, &sender, 0..1);
        let end = wire.now + Duration::from_millis(unheard_ms);
        while wire.now < end {
            poll_unheard(&mut wire);
            let next = wire.left.next_deadline(wire.now).expect("it tries again");
            assert!(!wire.left.has_work() && next == wire.now + Duration::from_secs(1));
            wire.now = next.min(end);
        }
        wire.advance(Duration::from_secs(3));
        assert_eq!(received.borrow()[..], *expected, "after {unheard_ms} ms");
        assert_eq!((wire.left.next_deadline(wire.now), wire.left.has_work()), (None, false));
    }
}

#[test]
fn a_device_without_room_delays_datagrams_and_loses_none() {
    let mut wire = Wire::new();
    let (sender, received) = receiving(&mut wire);
    send(&mut wire, &sender, 0..1);
    wire.settle();
    wire.left.device_mut().frames_max = 1;
    send(&mut wire, &sender, 1..100);
    wire.advance(Duration::from_millis(10) * 100);
    assert_eq!(received.borrow()[..], (0..100).collect::<Vec<_>>());
}

/// It was about to be sent when the device became full, and its time ended before there was room.
#[test]
fn a_datagram_that_is_late_takes_no_other_with_it() {
    let mut wire = Wire::new();
    let (sender, received) = receiving(&mut wire);
    send(&mut wire, &sender, 0..1);
    poll_unheard(&mut wire);
    wire.now = wire.now + Duration::from_millis(2500);
    poll_unheard(&mut wire);
    send(&mut wire, &sender, 1..2);
    poll_unheard(&mut wire);
    wire.left.device_mut().frames_max = 0;
    wire.now = wire.now + Duration::from_millis(400);
    poll_unheard(&mut wire);
    wire.now = wire.now + Duration::from_millis(200);
    poll_unheard(&mut wire);
    // The left end learns the right one's address from a request of that.
    let (right, left_address) = (wire.right.sockets(), SocketAddr::from(([10, 0, 0, 1], PORT)));
    wire.spawn(async move {
        let socket = right.bind(0).await.unwrap();
        socket.send_to(b"hello", left_address).await.unwrap();
        core::future::pending::<()>().await;
    });
    wire.executor.run_ready();
    wire.right.poll(wire.now);
    wire.left.poll(wire.now);
    wire.left.device_mut().frames_max = 256;
    wire.advance(Duration::from_secs(5));
    assert!(received.borrow().contains(&1), "{:?}", received.borrow());
}

#[test]
fn a_port_that_is_closed_can_be_opened_again_and_their_number_is_bounded() {
    let mut wire = Wire::new();
    let right = wire.right.sockets();
    run(&mut wire, LIMIT, async move {
        for _ in 0..100 {
            drop(right.bind(PORT).await.unwrap());
        }
        let mut open = Vec::new();
        let error = loop {
            match right.bind(0).await {
                Ok(socket) => open.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!((open.len(), error), (16, NetError::TooMany));
    });
}

#[test]
fn each_port_receives_its_own_and_the_end_of_one_leaves_the_others() {
    let mut wire = Wire::new();
    let (left, right) = (wire.left.sockets(), wire.right.sockets());
    let (first_remote, second_remote) = (wire.right_address(PORT), wire.right_address(PORT + 1));
    run(&mut wire, LIMIT, async move {
        let (first, second) = (right.bind(PORT).await.unwrap(), right.bind(PORT + 1).await.unwrap());
        let (socket, mut buf) = (left.bind(0).await.unwrap(), [0; 10]);
        socket.send_to(b"two", second_remote).await.unwrap();
        socket.send_to(b"first", first_remote).await.unwrap();
        assert_eq!(second.recv_from(&mut buf).await.unwrap().0, 3);
        assert_eq!(first.recv_from(&mut buf).await.unwrap().0, 5);
        drop(first);
        socket.send_to(b"second", second_remote).await.unwrap();
        assert_eq!(second.recv_from(&mut buf).await.unwrap().0, 6);
    });
}

#[test]
fn a_port_that_is_chosen_is_one_that_nothing_has() {
    let mut wire = Wire::new();
    let right = wire.right.sockets();
    run(&mut wire, LIMIT, async move {
        let chosen = right.bind(0).await.unwrap().port();
        let _datagrams = right.bind(chosen + 1).await.unwrap();
        let _listener = right.listen(chosen + 2).await.unwrap();
        // They are chosen one after the other.
        let next = right.bind(0).await.unwrap();
        assert_eq!(next.port(), chosen + 3);
    });
}
