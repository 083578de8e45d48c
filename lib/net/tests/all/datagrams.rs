//! UDP between two stacks.

use crate::common::{Wire, config, run};
use core::net::SocketAddr;
use core::time::Duration;
use glass_api::{Datagrams, Net, NetError};
use glass_net::Config;

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
        assert_eq!(socket.send_to(&[0], nowhere).await, Err(NetError::NoNetwork));
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
