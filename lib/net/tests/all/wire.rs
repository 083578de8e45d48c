//! Two stacks joined by a wire without faults; platform/sim has the tests on bad networks.

use crate::common::{Wire, config, run};
use core::cell::Cell;
use core::net::SocketAddr;
use core::time::Duration;
use glass_api::{Instant, Listener, Net, NetError, Port, ReadHalf, Split, Stream, WriteHalf};
use glass_lib_net::{Config, Sockets};
use std::rc::Rc;

const PORT: u16 = 80;

async fn echo(sockets: Sockets) {
    let mut listener = sockets.listen(PORT).await.unwrap();
    loop {
        let mut stream = listener.accept().await.unwrap();
        let mut buf = [0; 1000];
        loop {
            match stream.read(&mut buf).await {
                Ok(0) => break stream.close().await.unwrap(),
                Ok(count) => stream.write_all(&buf[..count]).await.unwrap(),
                Err(_) => break,
            }
        }
    }
}

#[test]
fn an_echo_comes_back_and_everything_is_freed() {
    let mut wire = Wire::new();
    wire.spawn(echo(wire.right.sockets()));
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let reply = run(&mut wire, Duration::from_secs(5), async move {
        let mut stream = left.connect(remote).await?;
        assert_eq!(stream.peer(), remote.into());
        stream.write_all(b"hello").await?;
        stream.close().await?;
        let mut reply = [0; 100];
        let mut filled = 0;
        loop {
            match stream.read(&mut reply[filled..]).await? {
                0 => return Ok::<_, NetError>(reply[..filled].to_vec()),
                count => filled += count,
            }
        }
    });
    assert_eq!(reply.unwrap(), b"hello");
    wire.advance(Duration::from_secs(11));
    assert_eq!((wire.left.connection_count(), wire.right.connection_count()), (0, 0));
    assert_eq!(wire.right.counters().accepted, 1);
}

/// A connection has the socket of one that has ended, which was cut with data in both directions, and nothing of what that was.
#[test]
fn a_connection_after_others_has_nothing_of_theirs() {
    let mut wire = Wire::with(Config { spare_bytes: 2 << 20, ..config(2) });
    wire.spawn(echo(wire.right.sockets()));
    for number in 0..40u8 {
        let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
        run(&mut wire, Duration::from_secs(5), async move {
            let mut stream = left.connect(remote).await.unwrap();
            let length = if number % 2 == 0 { 100_000 } else { 1000 };
            stream.write_all(&vec![number; length]).await.unwrap();
            if number % 2 == 0 {
                return;
            }
            stream.close().await.unwrap();
            let (mut reply, mut filled) = ([0; 1001], 0);
            while let count @ 1.. = stream.read(&mut reply[filled..]).await.unwrap() {
                filled += count;
            }
            assert!(filled == length && reply[..filled] == [number; 1000]);
        });
        if number % 8 == 0 {
            wire.advance(Duration::from_secs(11));
        }
    }
    wire.advance(Duration::from_secs(11));
    assert_eq!((wire.left.connection_count(), wire.right.connection_count()), (0, 0));
    assert_eq!(wire.right.counters().accepted, 40);
}

/// A server that closes first keeps its ends of connections for ten seconds, but not the memory that a new connection needs.
#[test]
fn connections_that_are_over_leave_their_memory_to_new_ones() {
    const READ_BYTES: usize = 1 << 20;
    let mut wire = Wire::with(Config { spare_bytes: 32 << 20, ..config(2) });
    let right = wire.right.sockets();
    let written = Rc::new(Cell::new(0));
    let result = written.clone();
    wire.spawn(async move {
        let mut listener = right.listen(PORT).await.unwrap();
        loop {
            let mut stream = listener.accept().await.unwrap();
            result.set(0);
            for _ in 0..64 {
                stream.write_all(&[1; 64 << 10]).await.unwrap();
                result.set(result.get() + (64 << 10));
            }
            stream.close().await.unwrap();
        }
    });
    let mut counts = Vec::new();
    for _ in 0..40 {
        let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
        let mut stream = run(&mut wire, Duration::from_secs(5), async move {
            let mut stream = left.connect(remote).await.unwrap();
            let mut missing_bytes = READ_BYTES;
            while missing_bytes > 0 {
                missing_bytes -= stream.read(&mut [0; 10_000][..missing_bytes.min(10_000)]).await.unwrap();
            }
            stream
        });
        // What the buffers of both ends have room for, which are longer by now.
        wire.advance(Duration::from_millis(100));
        counts.push(written.get() - READ_BYTES);
        run(&mut wire, Duration::from_secs(5), async move {
            while stream.read(&mut [0; 10_000]).await.unwrap() > 0 {}
            stream.close().await.unwrap();
        });
    }
    assert!(counts[0] > 1 << 20 && counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    assert_eq!((wire.right.connection_count(), wire.right.counters().time_wait_reclaimed), (40, 0));
    wire.advance(Duration::from_secs(11));
    assert_eq!(wire.right.connection_count(), 0);
}

#[test]
fn nobody_listening_is_a_reset() {
    let mut wire = Wire::new();
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let refused = run(&mut wire, Duration::from_secs(1), async move { left.connect(remote).await.err() });
    assert_eq!(refused, Some(NetError::Reset));
    wire.advance(Duration::from_secs(2));
    assert_eq!(wire.left.connection_count(), 0);
}

/// Bytes of a stream by their place in it, of which the reader drops some; far more than its buffer has room for.
#[test]
fn what_is_skipped_is_missing_and_nothing_else() {
    let mut wire = Wire::new();
    let (right, total) = (wire.right.sockets(), 300_000_usize);
    wire.spawn(async move {
        let mut stream = right.listen(PORT).await.unwrap().accept().await.unwrap();
        let bytes: Vec<u8> = (0..total).map(|place| (place / 251) as u8).collect();
        stream.write_all(&bytes).await.unwrap();
        stream.close().await.unwrap();
        let _ = stream.read(&mut [0; 1]).await;
    });
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    run(&mut wire, Duration::from_secs(20), async move {
        let mut stream = left.connect(remote).await.unwrap();
        assert_eq!(stream.skip(0).await, Ok(0));
        let (mut place, mut buffer) = (0, [0; 777]);
        loop {
            let skipped = stream.skip(1000).await.unwrap();
            place += skipped;
            if skipped == 0 {
                break;
            }
            assert!(skipped <= 1000);
            let count = stream.read(&mut buffer).await.unwrap();
            assert!((0..count).all(|index| buffer[index] == ((place + index) / 251) as u8), "at {place}");
            place += count;
        }
        assert_eq!((place, stream.skip(1).await), (total, Ok(0)));
        stream.close().await.unwrap();
    });
}

/// Bytes of a stream by their place in it, some of them made in the send buffer; far more than it has room for.
#[test]
fn what_is_made_in_place_is_received_in_its_place() {
    let mut wire = Wire::new();
    let (right, total) = (wire.right.sockets(), 300_000_usize);
    let byte = |place: usize| (place / 251) as u8;
    wire.spawn(async move {
        let mut stream = right.listen(PORT).await.unwrap().accept().await.unwrap();
        assert_eq!(stream.write_with(0, |_| panic!("there is nothing to make")).await, Ok(0));
        let mut place = 0;
        while place < total {
            let mut calls = 0;
            let fill = |piece: &mut [u8]| {
                calls += 1;
                assert!((1..=(total - place).min(70_000)).contains(&piece.len()));
                piece.iter_mut().enumerate().for_each(|(index, made)| *made = byte(place + index));
            };
            place += stream.write_with((total - place).min(70_000), fill).await.unwrap();
            assert_eq!(calls, 1);
            let copied: Vec<u8> = (place..total.min(place + 777)).map(byte).collect();
            stream.write_all(&copied).await.unwrap();
            place += copied.len();
        }
        stream.close().await.unwrap();
        let _ = stream.read(&mut [0; 1]).await;
        assert!(stream.write_with(1, |_| panic!("the connection has ended")).await.is_err());
    });
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    run(&mut wire, Duration::from_secs(20), async move {
        let mut stream = left.connect(remote).await.unwrap();
        let (mut received, mut buffer) = (Vec::new(), [0; 5000]);
        while let count @ 1.. = stream.read(&mut buffer).await.unwrap() {
            received.extend_from_slice(&buffer[..count]);
        }
        assert!(received == (0..total).map(byte).collect::<Vec<_>>());
        stream.close().await.unwrap();
    });
}

/// How long after a stack is made a connection waits for the first listener.
const START_TIME: Duration = Duration::from_millis(400);

#[test]
fn a_connection_waits_for_a_service_that_starts() {
    let mut wire = Wire::new();
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    // A port for datagrams is no listener.
    let right = wire.right.sockets();
    let _datagrams = run(&mut wire, Duration::ZERO, async move { right.bind(PORT).await });
    let answer = Rc::new(Cell::new(None));
    let result = answer.clone();
    wire.spawn(async move {
        let mut stream = left.connect(remote).await.expect("no reset");
        stream.write_all(b"hello").await.unwrap();
        result.set(Some(stream.read(&mut [0; 10]).await));
    });
    wire.advance(START_TIME / 2);
    assert_eq!(answer.get(), None);
    wire.spawn(echo(wire.right.sockets()));
    // The left stack does not send its SYN again before a second has passed.
    wire.settle();
    assert_eq!(answer.get(), Some(Ok(5)));
}

/// Not longer than that, not for a port beside that of a listener, and not once there was a listener.
#[test]
fn a_connection_does_not_wait_for_what_will_not_start() {
    let mut wire = Wire::new();
    let refused = |wire: &mut Wire, port| {
        let (left, remote) = (wire.left.sockets(), wire.right_address(port));
        run(wire, Duration::from_secs(1), async move { left.connect(remote).await.err() })
    };
    assert_eq!((refused(&mut wire, PORT), wire.now), (Some(NetError::Reset), Instant(0) + START_TIME));
    assert_eq!((refused(&mut wire, PORT), wire.now), (Some(NetError::Reset), Instant(0) + START_TIME));
    let mut wire = Wire::new();
    wire.spawn(echo(wire.right.sockets()));
    wire.settle();
    assert_eq!((refused(&mut wire, PORT + 1), wire.now), (Some(NetError::Reset), Instant(0)));
}

#[test]
fn nobody_there_is_a_timeout() {
    let mut wire = Wire::new();
    let (left, remote) = (wire.left.sockets(), "10.0.0.99:80".parse::<SocketAddr>().unwrap());
    let refused = run(&mut wire, Duration::from_secs(15), async move { left.connect(remote).await.err() });
    assert_eq!(refused, Some(NetError::TimedOut));
}

#[test]
fn dropping_a_stream_resets_it() {
    let mut wire = Wire::new();
    let seen = Rc::new(Cell::new(None));
    let (right, result) = (wire.right.sockets(), seen.clone());
    wire.spawn(async move {
        let mut stream = right.listen(PORT).await.unwrap().accept().await.unwrap();
        stream.write_all(b"!").await.unwrap();
        result.set(Some(stream.read(&mut [0; 10]).await));
    });
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    run(&mut wire, Duration::from_secs(1), async move {
        let mut stream = left.connect(remote).await.unwrap();
        assert_eq!(stream.read(&mut [0; 10]).await, Ok(1));
    });
    wire.advance(Duration::from_secs(2));
    assert_eq!(seen.get(), Some(Err(NetError::Reset)));
    assert_eq!((wire.left.connection_count(), wire.right.connection_count()), (0, 0));
    assert_eq!(wire.right.counters().reset_by_peer, 1);
}

#[test]
fn a_closed_connection_takes_what_its_peer_still_sends_without_delay_but_not_all() {
    let mut wire = Wire::new();
    let right = wire.right.sockets();
    wire.spawn(async move {
        right.listen(PORT).await.unwrap().accept().await.unwrap().close().await.unwrap();
    });
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let mut stream = run(&mut wire, Duration::from_secs(1), async move {
        let mut stream = left.connect(remote).await.unwrap();
        stream.write_all(&vec![1; 4_000_000]).await.unwrap();
        stream
    });
    assert!(wire.now <= Instant(0) + Duration::from_millis(10), "{}", wire.now);
    assert_eq!(wire.right.counters().linger_cut, 0);
    let refused = run(&mut wire, Duration::from_secs(1), async move { stream.write_all(&vec![1; 500_000]).await });
    assert_eq!((refused, wire.right.counters().linger_cut), (Err(NetError::Reset), 1));
}

#[test]
fn a_port_has_one_listener_and_can_be_reused() {
    let mut wire = Wire::new();
    let left = wire.left.sockets();
    run(&mut wire, Duration::from_secs(1), async move {
        let first = left.listen(PORT).await.unwrap();
        assert_eq!(left.listen(PORT).await.err(), Some(NetError::PortInUse(PORT.into())));
        drop(first);
        let again = left.listen(PORT).await.unwrap();
        assert_eq!(again.port(), PORT.into());
        let (one, two) = (left.listen(0_u16).await.unwrap(), left.listen(0_u16).await.unwrap());
        assert!(one.port() != Port::Tcp(0) && one.port() != two.port());
    });
}

#[test]
fn a_connection_beyond_the_limit_is_refused_and_counted() {
    let mut wire = Wire::with(Config { connections_max: 1, ..config(2) });
    wire.spawn(echo(wire.right.sockets()));
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let _stream = run(&mut wire, Duration::from_secs(1), async move {
        let stream = left.connect(remote).await.unwrap();
        assert_eq!(left.connect(remote).await.err(), Some(NetError::TooMany));
        stream
    });
    assert_eq!((wire.left.connection_count(), wire.left.counters().refused_limit), (1, 1));
}

#[test]
fn a_port_that_is_chosen_is_not_one_of_a_connection() {
    let mut wire = Wire::new();
    let (left, right, remote) = (wire.left.sockets(), wire.right.sockets(), wire.right_address(PORT));
    run(&mut wire, Duration::from_secs(1), async move {
        let mut listener = right.listen(PORT).await.unwrap();
        let _near = left.connect(remote).await.unwrap();
        let glass_api::Address::Ip(used) = listener.accept().await.unwrap().peer() else { panic!("it is a host") };
        // As many as there are to choose from.
        for _ in 0..16_384 {
            assert_ne!(left.listen(0_u16).await.unwrap().port(), used.port().into());
        }
    });
}

#[test]
fn without_a_device_there_is_no_network() {
    let mut wire = Wire::new();
    run(&mut wire, Duration::from_secs(1), async {
        let none = Sockets::without_device();
        assert_eq!(none.up().await.err(), Some(NetError::NoNetwork));
        assert_eq!(none.listen(PORT).await.err(), Some(NetError::NoNetwork));
    });
}

/// Sends 8 MB from left to right and returns how much time passed, which only timers take.
fn bulk(offloads: bool) -> Duration {
    const BYTES: usize = 8_000_000;
    let mut wire = Wire::between(config(2), offloads);
    let right = wire.right.sockets();
    let received = Rc::new(Cell::new(0));
    let count = received.clone();
    wire.spawn(async move {
        let mut stream = right.listen(PORT).await.unwrap().accept().await.unwrap();
        let mut buf = vec![0; 100_000];
        loop {
            match stream.read(&mut buf).await.unwrap() {
                0 => return stream.close().await.unwrap(),
                bytes => count.set(count.get() + bytes),
            }
        }
    });
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let begun = wire.now;
    let ended = run(&mut wire, Duration::from_secs(10), async move {
        let mut stream = left.connect(remote).await?;
        stream.write_all(&vec![1; BYTES]).await?;
        stream.close().await?;
        stream.read(&mut [0; 1]).await
    });
    assert_eq!((ended, received.get()), (Ok(0), BYTES));
    wire.now.since(begun)
}

#[test]
fn a_bulk_transfer_never_waits_for_a_delayed_acknowledgement() {
    // One wait of 10 ms is for the end of a slow start with an odd number of segments.
    let plain = bulk(false);
    assert!(plain <= Duration::from_millis(10), "{plain:?}");
    let large = bulk(true);
    assert!(large <= Duration::from_millis(10), "{large:?}");
}

#[test]
fn a_device_without_room_delays_and_loses_nothing() {
    let mut wire = Wire::new();
    wire.left.device_mut().frames_max = 1;
    wire.right.device_mut().frames_max = 1;
    wire.spawn(echo(wire.right.sockets()));
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let same = run(&mut wire, Duration::from_secs(60), async move {
        let mut stream = left.connect(remote).await?;
        let data: Vec<u8> = (0..100_000u32).map(|place| (place / 7) as u8).collect();
        stream.write_all(&data).await?;
        stream.close().await?;
        let mut reply = Vec::new();
        let mut buf = [0; 3000];
        while let count @ 1.. = stream.read(&mut buf).await? {
            reply.extend_from_slice(&buf[..count]);
        }
        Ok::<_, NetError>(reply == data)
    });
    assert_eq!(same, Ok(true));
}

#[test]
fn a_stuck_device_is_waited_for_and_not_polled_without_end() {
    let mut wire = Wire::new();
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    wire.spawn(async move {
        let _ = left.connect(remote).await;
    });
    wire.left.device_mut().frames_max = 0;
    wire.settle();
    let deadline = wire.left.next_deadline(wire.now).unwrap();
    assert!(deadline > wire.now, "{deadline}");
}

#[test]
fn two_tasks_use_the_halves_of_a_stream() {
    const BYTES: usize = 1 << 20;
    let mut wire = Wire::new();
    wire.spawn(echo(wire.right.sockets()));
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let executor = wire.executor.clone();
    // More than both buffers hold: only as both directions move does it come to an end.
    let received = run(&mut wire, Duration::from_secs(60), async move {
        let (mut reader, mut writer) = left.connect(remote).await?.split();
        assert_eq!((reader.peer(), writer.peer()), (remote.into(), remote.into()));
        let sender = async move {
            for _ in 0..BYTES / 4096 {
                writer.write_all(&[7; 4096]).await?;
            }
            writer.close().await
        };
        let sender = executor.spawn("sender", sender).unwrap();
        let (mut received, mut buf) = (0, [0; 5000]);
        loop {
            match reader.read(&mut buf).await? {
                0 => break,
                count => received += count,
            }
        }
        sender.await.unwrap()?;
        Ok::<_, NetError>(received)
    });
    assert_eq!(received, Ok(BYTES));
    wire.advance(Duration::from_secs(11));
    assert_eq!((wire.left.connection_count(), wire.right.connection_count()), (0, 0));
}

#[test]
fn a_write_half_that_is_dropped_resets_at_once() {
    let mut wire = Wire::new();
    let (left, right, remote) = (wire.left.sockets(), wire.right.sockets(), wire.right_address(PORT));
    let far = wire.executor.spawn("far", async move {
        let mut stream = right.listen(PORT).await.unwrap().accept().await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        stream.read(&mut [0; 10]).await
    });
    let near = run(&mut wire, Duration::from_secs(5), async move {
        let (mut reader, writer) = left.connect(remote).await.unwrap().split();
        // Then the peer has accepted the connection.
        assert_eq!(reader.read(&mut [0; 10]).await, Ok(5));
        drop(writer);
        reader.read(&mut [0; 10]).await
    });
    assert_eq!(near, Err(NetError::Reset));
    let far = run(&mut wire, Duration::from_secs(5), far.unwrap());
    assert_eq!(far, Ok(Err(NetError::Reset)));
}

#[test]
fn a_read_half_that_is_dropped_leaves_the_writer_alone() {
    let mut wire = Wire::new();
    let (left, right, remote) = (wire.left.sockets(), wire.right.sockets(), wire.right_address(PORT));
    let far = wire.executor.spawn("far", async move {
        let mut stream = right.listen(PORT).await.unwrap().accept().await.unwrap();
        let (mut received, mut buf) = (0, [0; 100]);
        while let count @ 1.. = stream.read(&mut buf).await? {
            received += count;
        }
        stream.close().await.map(|()| received)
    });
    run(&mut wire, Duration::from_secs(5), async move {
        let (reader, mut writer) = left.connect(remote).await.unwrap().split();
        drop(reader);
        writer.write_all(b"hello").await.unwrap();
        writer.close().await.unwrap();
    });
    assert_eq!(run(&mut wire, Duration::from_secs(5), far.unwrap()), Ok(Ok(5)));
}

#[test]
fn a_port_where_nothing_listens_is_reported_once() {
    let mut wire = Wire::new();
    let (left, asked) = (wire.left.sockets(), wire.right_address(PORT + 1));
    let connect = |left: Sockets| async move { left.connect(asked).await.err() };
    run(&mut wire, Duration::from_secs(5), connect(left.clone()));
    assert_eq!(wire.right.take_missed_port(), None, "no service has started yet");
    wire.spawn(echo(wire.right.sockets()));
    wire.settle();
    for expected in [Some((PORT + 1, vec![PORT])), None] {
        assert_eq!(run(&mut wire, Duration::from_secs(5), connect(left.clone())), Some(NetError::Reset));
        assert_eq!(wire.right.take_missed_port(), expected);
    }
}

#[test]
fn what_a_closed_connection_still_has_to_deliver_is_seen() {
    let mut wire = Wire::new();
    let (left, right, remote) = (wire.left.sockets(), wire.right.sockets(), wire.right_address(PORT));
    wire.spawn(async move {
        let mut stream = right.listen(PORT).await.unwrap().accept().await.unwrap();
        stream.write_all(b"last words").await.unwrap();
        stream.close().await.unwrap();
    });
    let connecting = wire.executor.spawn("client", async move { left.connect(remote).await });
    let mut was_delivering = false;
    for _ in 0..100 {
        wire.executor.run_ready();
        wire.left.poll(wire.now);
        wire.right.poll(wire.now);
        was_delivering |= wire.right.is_delivering();
    }
    assert!(was_delivering && !wire.right.is_delivering());
    drop(connecting);
}
