//! Malicious peers: invalid segments, floods, peers that vanish.

use crate::common::peer::Peer;
use crate::common::{Wire, config, run};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use glass_api::{Listener, Net, NetError, Stream};
use glass_lib_net::smoltcp::wire::{Ipv4Address, Ipv4Packet, TcpControl, TcpPacket, TcpSeqNumber};
use glass_lib_net::{Config, Congestion, Sockets};
use std::rc::Rc;

const PORT: u16 = 80;

/// Accepts every connection, reads it to its end and closes; counts the ones without an error.
async fn sink(sockets: Sockets, received: Rc<RefCell<Vec<u8>>>, ended: Rc<Cell<u32>>) {
    let mut listener = sockets.listen(PORT).await.unwrap();
    loop {
        let mut stream = listener.accept().await.unwrap();
        let mut buf = [0; 4096];
        loop {
            match stream.read(&mut buf).await {
                Ok(0) => {
                    ended.set(ended.get() + 1);
                    let _ = stream.close().await;
                    break;
                }
                Ok(count) => received.borrow_mut().extend_from_slice(&buf[..count]),
                Err(_) => break,
            }
        }
    }
}

type Received = Rc<RefCell<Vec<u8>>>;

fn sink_wire(config: Config) -> (Wire, Received, Rc<Cell<u32>>) {
    let mut wire = Wire::with(config);
    let (received, ended) = (Received::default(), Rc::new(Cell::new(0)));
    wire.spawn(sink(wire.right.sockets(), received.clone(), ended.clone()));
    wire.settle();
    (wire, received, ended)
}

/// A correct client is still served.
fn assert_serves(wire: &mut Wire, ended: &Cell<u32>) {
    let before = ended.get();
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let result = run(wire, Duration::from_secs(20), async move {
        let mut stream = left.connect(remote).await?;
        stream.write_all(b"honest").await?;
        stream.close().await?;
        stream.read(&mut [0; 1]).await
    });
    assert_eq!((result, ended.get()), (Ok(0), before + 1));
}

#[test]
fn data_behind_the_window_is_not_taken() {
    for receive_bytes in [65_536, 100_000, 262_144, 1 << 20] {
        let (mut wire, received, ended) = sink_wire(Config { receive_bytes, ..config(2) });
        let mut peer = Peer::new(4000, PORT);
        assert!(peer.open(&mut wire));
        // The piece right after the buffer first, and then everything before it, backwards.
        let mut place = receive_bytes;
        loop {
            peer.send(&mut wire, TcpControl::None, peer.seq + place, true, &[7; 1460]);
            wire.right.poll(wire.now);
            if place == 0 {
                break;
            }
            place = place.saturating_sub(1460);
        }
        peer.exchange(&mut wire);
        assert!(received.borrow().iter().all(|byte| *byte == 7));
        assert!(received.borrow().len() >= receive_bytes / 2);
        // The sink takes one connection at a time.
        wire.advance(Duration::from_secs(61));
        assert_serves(&mut wire, &ended);
    }
}

#[test]
fn a_flood_of_syns_is_bounded_and_passes() {
    const HALF_OPEN_MAX: usize = 256;
    let (mut wire, _, ended) = sink_wire(config(2));
    for index in 0..5000u16 {
        let mut peer = Peer::new(1024 + index, PORT);
        peer.address = Ipv4Address::new(10, 0, 0, 100 + (index % 100) as u8);
        peer.send(&mut wire, TcpControl::Syn, peer.seq, false, &[]);
        wire.now = wire.now + Duration::from_millis(1);
        wire.right.poll(wire.now);
        assert_eq!(
            (wire.right.connection_count(), wire.right.half_open_count()),
            (0, HALF_OPEN_MAX.min(index as usize + 1))
        );
    }
    let counters = wire.right.counters();
    assert_eq!((counters.refused_backlog, counters.replaced_opening), (0, 5000 - HALF_OPEN_MAX as u64));
    wire.advance(Duration::from_secs(16));
    assert_eq!((wire.right.connection_count(), wire.right.half_open_count()), (0, 0));
    assert_eq!(wire.right.counters().abandoned_opening, HALF_OPEN_MAX as u64);
    assert_serves(&mut wire, &ended);
}

/// 200 SYNs a second from addresses without a host: each real client connects, as soon as without them.
#[test]
fn real_clients_connect_during_a_flood() {
    let (mut wire, _, ended) = sink_wire(config(2));
    let mut port = 1024;
    for client in 0..100 {
        for _ in 0..40 {
            let mut peer = Peer::new(port, PORT);
            port += 1;
            peer.address = Ipv4Address::new(192, 168, (port >> 8) as u8, port as u8);
            peer.send(&mut wire, TcpControl::Syn, peer.seq, false, &[]);
            wire.right.poll(wire.now);
            wire.advance(Duration::from_millis(5));
        }
        let mut client = Peer::new(4000 + client, PORT);
        assert!(client.open(&mut wire), "port {}", client.port);
        client.send(&mut wire, TcpControl::Rst, client.seq, true, &[]);
        client.exchange(&mut wire);
    }
    assert!(wire.right.counters().replaced_opening > 3000);
    assert_eq!((wire.right.counters().accepted, wire.right.counters().refused_backlog), (100, 0));
    drop(ended);
}

/// The answer to a SYN is lost, and the peer sends nothing more: it is retransmitted.
#[test]
fn the_answer_to_a_syn_is_retransmitted() {
    let (mut wire, _, _) = sink_wire(config(2));
    let mut peer = Peer::new(4000, PORT);
    peer.send(&mut wire, TcpControl::Syn, peer.seq, false, &[]);
    let first = peer.exchange(&mut wire);
    assert_eq!(first.iter().map(|segment| segment.control).collect::<Vec<_>>(), [TcpControl::Syn]);
    for seconds in [1, 2, 4] {
        wire.now = wire.now + Duration::from_secs(seconds);
        let again = peer.exchange(&mut wire);
        assert_eq!(again.iter().map(|segment| segment.seq).collect::<Vec<_>>(), [first[0].seq], "after {seconds} s");
    }
    // A reset ends it only with the number that is expected.
    peer.seq += 1;
    peer.ack = first[0].seq + 1;
    peer.send(&mut wire, TcpControl::Rst, peer.seq + 5, false, &[]);
    peer.exchange(&mut wire);
    assert_eq!(wire.right.half_open_count(), 1);
    peer.send(&mut wire, TcpControl::None, peer.seq, true, &[]);
    peer.exchange(&mut wire);
    assert_eq!((wire.right.half_open_count(), wire.right.connection_count()), (0, 1));
    let mut other = Peer::new(4001, PORT);
    other.send(&mut wire, TcpControl::Syn, other.seq, false, &[]);
    other.exchange(&mut wire);
    other.seq += 1;
    other.send(&mut wire, TcpControl::Rst, other.seq, false, &[]);
    other.exchange(&mut wire);
    assert_eq!((wire.right.half_open_count(), wire.right.counters().abandoned_opening), (0, 1));
}

#[test]
fn a_syn_with_a_wrong_checksum_leaves_nothing_behind() {
    let (mut wire, _, ended) = sink_wire(config(2));
    let peer = Peer::new(4000, PORT);
    let mut frame = peer.frame(TcpControl::Syn, peer.seq, None, &[]);
    // A port of the TCP header, which is 34 bytes in.
    frame[35] ^= 1;
    wire.right.device_mut().incoming.borrow_mut().push_back(frame);
    peer.exchange(&mut wire);
    assert_eq!(wire.right.connection_count(), 0);
    assert_serves(&mut wire, &ended);
}

#[test]
fn the_data_of_a_syn_is_not_kept() {
    let (mut wire, received, _) = sink_wire(config(2));
    let mut peer = Peer::new(4000, PORT);
    peer.send(&mut wire, TcpControl::Syn, peer.seq, false, &[1; 1400]);
    assert!(peer.answer(&mut wire).is_some());
    peer.complete(&mut wire);
    assert_eq!((wire.right.connection_count(), received.borrow().len()), (1, 0));
}

#[test]
fn a_repeated_syn_makes_no_second_connection() {
    let (mut wire, _, _) = sink_wire(config(2));
    let peer = Peer::new(4000, PORT);
    for number in 0..5 {
        let mut frame = peer.frame(TcpControl::Syn, peer.seq, None, &[]);
        // The packet's identification, 18 bytes in, and the checksum that makes good for it.
        frame[19] ^= number;
        let checksum = u16::from_be_bytes([frame[24], frame[25]]).wrapping_sub(number.into());
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        wire.right.device_mut().incoming.borrow_mut().push_back(frame);
    }
    let answers = peer.exchange(&mut wire);
    // Another first number would make the peer's acknowledgement of the first answer a wrong one.
    assert_eq!(answers.iter().map(|answer| answer.seq).collect::<Vec<_>>(), [answers[0].seq; 5]);
    assert_eq!((wire.right.connection_count(), wire.right.half_open_count()), (0, 1));
}

#[test]
fn two_ends_can_connect_again_while_the_first_connection_rests_in_time_wait() {
    let mut wire = Wire::new();
    let accepted = Rc::new(Cell::new(0));
    let (sockets, count) = (wire.right.sockets(), accepted.clone());
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        loop {
            // The side that closes first is the one that waits.
            listener.accept().await.unwrap().close().await.unwrap();
            count.set(count.get() + 1);
        }
    });
    let mut peer = Peer::new(4000, PORT);
    for round in 1..=3 {
        assert!(peer.open(&mut wire), "round {round}");
        // Assume that our end's FIN has arrived: acknowledge it together with ours.
        peer.ack += 1;
        peer.send(&mut wire, TcpControl::Fin, peer.seq, true, &[]);
        peer.exchange(&mut wire);
        assert_eq!((accepted.get(), wire.right.connection_count()), (round, 1));
        peer.seq = TcpSeqNumber(peer.seq.0.wrapping_add(100_000));
    }
}

#[test]
fn an_old_syn_does_not_end_time_wait() {
    let mut wire = Wire::new();
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        loop {
            listener.accept().await.unwrap().close().await.unwrap();
        }
    });
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    peer.ack += 1;
    peer.send(&mut wire, TcpControl::Fin, peer.seq, true, &[]);
    peer.exchange(&mut wire);
    // The end has used one number, and all before it are old.
    let next = peer.seq + 1;
    for old in [peer.seq, TcpSeqNumber(peer.seq.0.wrapping_sub(100_000))] {
        peer.send(&mut wire, TcpControl::Syn, old, false, &[]);
        let answers = peer.exchange(&mut wire);
        assert!(answers.iter().all(|answer| answer.control == TcpControl::None && answer.ack == Some(next)));
    }
    peer.seq = next;
    assert!(peer.request(&mut wire).is_some(), "a new one does");
}

#[test]
fn two_ends_can_connect_again_before_the_owner_notices_the_reset() {
    let mut wire = Wire::new();
    let results = Rc::new(RefCell::new(Vec::new()));
    let (sockets, found) = (wire.right.sockets(), results.clone());
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        let mut first = listener.accept().await.unwrap();
        let mut second = listener.accept().await.unwrap();
        let result = first.read(&mut [0; 8]).await;
        found.borrow_mut().push(result);
        // What is left of the first connection has no effect on the second.
        drop(first);
        let result = second.read(&mut [0; 8]).await;
        found.borrow_mut().push(result);
        second.write_all(b"x").await.unwrap();
        core::future::pending::<()>().await;
    });
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    peer.send(&mut wire, TcpControl::Rst, peer.seq, true, &[]);
    peer.seq = TcpSeqNumber(peer.seq.0.wrapping_add(100_000));
    assert!(peer.open(&mut wire));
    assert_eq!((&results.borrow()[..], wire.right.connection_count()), (&[Err(NetError::Reset)][..], 1));
    peer.send(&mut wire, TcpControl::Psh, peer.seq, true, b"second");
    assert!(peer.exchange(&mut wire).iter().all(|answer| answer.control != TcpControl::Rst));
    assert_eq!(results.borrow()[..], [Err(NetError::Reset), Ok(6)]);
}

#[test]
fn connections_in_time_wait_make_room() {
    let mut wire = Wire::with(Config { connections_max: 2, ..config(2) });
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        loop {
            listener.accept().await.unwrap().close().await.unwrap();
        }
    });
    for round in 0..10 {
        let mut peer = Peer::new(4000 + round, PORT);
        assert!(peer.open(&mut wire), "round {round}");
        peer.ack += 1;
        peer.send(&mut wire, TcpControl::Fin, peer.seq, true, &[]);
        peer.exchange(&mut wire);
    }
    assert_eq!(wire.right.connection_count(), 2);
    assert_eq!(wire.right.counters().time_wait_reclaimed, 8);
}

#[test]
fn random_and_broken_frames_do_no_harm() {
    let (mut wire, _, ended) = sink_wire(config(2));
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    let controls = [TcpControl::None, TcpControl::Psh, TcpControl::Fin, TcpControl::Syn, TcpControl::Rst];
    for round in 0..30_000 {
        let control = controls[random() as usize % controls.len()];
        let (seq, ack) = match round % 3 {
            0 => (TcpSeqNumber(random() as i32), TcpSeqNumber(random() as i32)),
            // Almost valid values, which reach deeper code.
            _ => (peer.seq + random() as usize % 3000, peer.ack + random() as usize % 3),
        };
        let ack = (!random().is_multiple_of(4)).then_some(ack);
        let mut frame = peer.frame(control, seq, ack, &vec![1; random() as usize % 1400]);
        match random() % 4 {
            0 => {
                for _ in 0..1 + random() % 4 {
                    let place = random() as usize % frame.len();
                    frame[place] = random() as u8;
                }
            }
            1 => frame.truncate(random() as usize % frame.len()),
            _ => {}
        }
        wire.right.device_mut().incoming.borrow_mut().push_back(frame);
        if round % 8 == 0 {
            peer.exchange(&mut wire);
            wire.advance(Duration::from_millis(random() % 50));
            // The left end is not involved.
            wire.left.device_mut().incoming.borrow_mut().clear();
        }
        if wire.right.connection_count() == 0 {
            peer.port += 1;
            peer.open(&mut wire);
        }
    }
    wire.advance(Duration::from_secs(120));
    assert_eq!(wire.right.connection_count(), 0);
    assert_serves(&mut wire, &ended);
}

#[test]
fn a_peer_that_never_reads_is_given_up_only_when_it_is_silent() {
    let mut wire = Wire::new();
    let result = Rc::new(Cell::new(None));
    let (sockets, slot) = (wire.right.sockets(), result.clone());
    wire.spawn(async move {
        let mut stream = sockets.listen(PORT).await.unwrap().accept().await.unwrap();
        loop {
            if let Err(error) = stream.write(&[0; 1000]).await {
                return slot.set(Some(error));
            }
        }
    });
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    // It acknowledges nothing new, but it is alive.
    for _ in 0..20 {
        wire.advance(Duration::from_secs(10));
        peer.send(&mut wire, TcpControl::None, peer.seq, true, &[]);
        peer.exchange(&mut wire);
        assert_eq!(result.get(), None);
    }
    wire.advance(Duration::from_secs(62));
    assert_eq!(result.get(), Some(NetError::TimedOut));
}

#[test]
fn what_opens_no_connection_is_reset_even_when_there_is_no_room() {
    let mut wire = Wire::with(Config { connections_max: 1, ..config(2) });
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        loop {
            std::mem::forget(listener.accept().await.unwrap());
        }
    });
    assert!(Peer::new(4000, PORT).open(&mut wire));
    let other = Peer::new(4001, PORT);
    let answers = |wire: &mut Wire, control, ack| {
        other.send(wire, control, other.seq, ack, &[]);
        other.exchange(wire).into_iter().map(|segment| segment.control).collect::<Vec<_>>()
    };
    // The first answer is lost, because the peer's hardware address is unknown.
    answers(&mut wire, TcpControl::None, true);
    for (control, ack) in
        [(TcpControl::Syn, true), (TcpControl::None, true), (TcpControl::None, false), (TcpControl::Fin, true)]
    {
        assert_eq!(answers(&mut wire, control, ack), [TcpControl::Rst], "{control:?}, acknowledges: {ack}");
    }
    // A reset is never answered, and a SYN may try again when there is room.
    assert_eq!(answers(&mut wire, TcpControl::Rst, true), []);
    assert_eq!(answers(&mut wire, TcpControl::Syn, false), []);
    assert_eq!(wire.right.connection_count(), 1);
}

/// The first sixteen are acknowledged at once, because the peer's window is small.
#[test]
fn the_acknowledgement_of_one_full_segment_waits_for_a_second_one() {
    let (mut wire, received, _) = sink_wire(config(2));
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    let mut send = |wire: &mut Wire| {
        peer.send(wire, TcpControl::None, peer.seq, true, &[1; 1460]);
        peer.seq += 1460;
        peer.exchange(wire).len()
    };
    assert_eq!((0..16).map(|_| send(&mut wire)).sum::<usize>(), 16);
    assert_eq!((send(&mut wire), send(&mut wire)), (0, 1));
    assert_eq!(received.borrow().len(), 18 * 1460);
}

#[test]
fn a_reset_counts_once_and_only_with_a_number_in_the_window() {
    let mut wire = Wire::new();
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let _stream = sockets.listen(PORT).await.unwrap().accept().await.unwrap();
        core::future::pending::<()>().await;
    });
    wire.settle();
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    for (seq, count) in [(peer.seq + 1_000_000, 0), (peer.seq, 1), (peer.seq, 1)] {
        peer.send(&mut wire, TcpControl::Rst, seq, true, &[]);
        peer.exchange(&mut wire);
        assert_eq!((wire.right.counters().reset_by_peer, wire.right.connection_count()), (count, 1));
    }
}

/// A connection that our end has closed, with 10,000 bytes for a peer that has acknowledged none of them.
fn closed_with_data() -> (Wire, Peer) {
    let mut wire = Wire::new();
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut stream = sockets.listen(PORT).await.unwrap().accept().await.unwrap();
        stream.write_all(&[1; 10_000]).await.unwrap();
        stream.close().await.unwrap();
    });
    wire.settle();
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    (wire, peer)
}

#[test]
fn a_closed_connection_has_room_again_at_once_for_what_it_drops() {
    let mut wire = Wire::with(Config { receive_bytes: 4096, ..config(2) });
    let sockets = wire.right.sockets();
    wire.spawn(async move { sockets.listen(PORT).await.unwrap().accept().await.unwrap().close().await.unwrap() });
    wire.settle();
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    for _ in 0..4 {
        peer.send(&mut wire, TcpControl::None, peer.seq, true, &[1; 1024]);
        peer.seq += 1024;
    }
    let answers = peer.exchange(&mut wire);
    let last = answers.last().map(|answer| (answer.ack, answer.window));
    assert_eq!(last, Some((Some(peer.seq), 4096)), "{answers:?}");
}

/// Only connections in TIME-WAIT, which have nothing to deliver, give memory back.
#[test]
fn closed_connections_keep_their_memory_until_their_data_is_delivered() {
    let mut wire = Wire::with(Config { spare_bytes: 4 << 20, ..config(2) });
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        loop {
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(&[1; 10_000]).await.unwrap();
            stream.close().await.unwrap();
        }
    });
    wire.settle();
    for port in 4000..4003 {
        assert!(Peer::new(port, PORT).open(&mut wire));
    }
    wire.advance(Duration::from_secs(20));
    assert_eq!((wire.right.connection_count(), wire.right.counters().time_wait_reclaimed), (3, 0));
}

#[test]
fn a_closed_connection_without_progress_is_cut() {
    let (mut wire, peer) = closed_with_data();
    for _ in 0..5 {
        wire.advance(Duration::from_millis(5900));
        // The peer is there.
        peer.send(&mut wire, TcpControl::None, peer.seq, true, &[]);
        peer.exchange(&mut wire);
    }
    assert_eq!((wire.right.counters().linger_cut, wire.right.connection_count()), (0, 1));
    wire.advance(Duration::from_secs(1));
    assert_eq!((wire.right.counters().linger_cut, wire.right.connection_count()), (1, 0));
}

#[test]
fn a_closed_connection_that_makes_progress_is_cut_late() {
    let (mut wire, mut peer) = closed_with_data();
    for _ in 0..13 {
        wire.advance(Duration::from_secs(23));
        assert_eq!((wire.right.counters().linger_cut, wire.right.connection_count()), (0, 1));
        peer.ack += 500;
        peer.send(&mut wire, TcpControl::None, peer.seq, true, &[]);
        peer.exchange(&mut wire);
    }
    wire.advance(Duration::from_secs(2));
    assert_eq!((wire.right.counters().linger_cut, wire.right.connection_count()), (1, 0));
}

/// A connection that our end has closed first, so that it is in TIME-WAIT; `keep` keeps its stream.
fn in_time_wait(config: Config, keep: bool) -> (Wire, Peer) {
    let mut wire = Wire::with(config);
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        let mut stream = listener.accept().await.unwrap();
        stream.close().await.unwrap();
        if keep {
            core::future::pending::<()>().await;
        }
        drop(stream);
        let _second = listener.accept().await.unwrap();
        core::future::pending::<()>().await;
    });
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    peer.ack += 1;
    peer.send(&mut wire, TcpControl::Fin, peer.seq, true, &[]);
    peer.exchange(&mut wire);
    assert_eq!(wire.right.connection_count(), 1);
    (wire, peer)
}

#[test]
fn a_repeated_end_is_acknowledged_in_time_wait() {
    for keep in [false, true] {
        let (mut wire, peer) = in_time_wait(config(2), keep);
        peer.send(&mut wire, TcpControl::Fin, peer.seq, true, &[]);
        let answers = peer.exchange(&mut wire);
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert_eq!((answers[0].control, answers[0].ack), (TcpControl::None, Some(peer.seq + 1)));
        assert_eq!(wire.right.connection_count(), 1);
    }
}

#[test]
fn a_connection_whose_stream_is_held_does_not_make_way_for_a_new_one() {
    for keep in [false, true] {
        let (mut wire, mut peer) = in_time_wait(config(2), keep);
        peer.seq = TcpSeqNumber(peer.seq.0.wrapping_add(100_000));
        assert_eq!(peer.open(&mut wire), !keep);
        assert_eq!(wire.right.connection_count(), 1);
    }
}

#[test]
fn only_a_connection_in_time_wait_without_a_stream_makes_room() {
    for keep in [false, true] {
        let (mut wire, _) = in_time_wait(Config { connections_max: 1, ..config(2) }, keep);
        assert_eq!(Peer::new(4001, PORT).open(&mut wire), !keep);
        assert_eq!((wire.right.connection_count(), wire.right.counters().time_wait_reclaimed), (1, u64::from(!keep)));
    }
    // One that still has to deliver its end does not either.
    let mut wire = Wire::with(Config { connections_max: 1, ..config(2) });
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        sockets.listen(PORT).await.unwrap().accept().await.unwrap().close().await.unwrap();
        let _listener = sockets.listen(PORT).await.unwrap();
        core::future::pending::<()>().await;
    });
    assert!(Peer::new(4000, PORT).open(&mut wire));
    assert!(!Peer::new(4001, PORT).open(&mut wire));
    assert_eq!((wire.right.connection_count(), wire.right.counters().time_wait_reclaimed), (1, 0));
}

#[test]
fn a_syn_for_another_address_is_not_answered() {
    let (mut wire, _, ended) = sink_wire(config(2));
    for address in [[224, 0, 0, 1], [255, 255, 255, 255], [10, 0, 0, 255], [10, 0, 0, 3], [0, 0, 0, 0], [127, 0, 0, 1]]
    {
        let mut frame = Peer::new(4000, PORT).frame(TcpControl::Syn, TcpSeqNumber(1), None, &[]);
        frame[30..34].copy_from_slice(&address);
        let mut packet = Ipv4Packet::new_unchecked(&mut frame[14..]);
        packet.fill_checksum();
        let (source, destination) = (packet.src_addr().into(), packet.dst_addr().into());
        TcpPacket::new_unchecked(packet.payload_mut()).fill_checksum(&source, &destination);
        wire.right.device_mut().incoming.borrow_mut().push_back(frame);
        wire.right.poll(wire.now);
        assert_eq!(wire.right.half_open_count(), 0, "{address:?}");
    }
    assert_serves(&mut wire, &ended);
}

#[test]
fn a_connection_that_is_reset_before_it_is_accepted_is_counted() {
    let mut wire = Wire::new();
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let _listener = sockets.listen(PORT).await.unwrap();
        core::future::pending::<()>().await;
    });
    wire.settle();
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    peer.send(&mut wire, TcpControl::Rst, peer.seq, true, &[]);
    peer.exchange(&mut wire);
    assert_eq!((wire.right.connection_count(), wire.right.counters().abandoned_opening), (0, 1));
}

#[test]
fn one_poll_sends_a_bounded_number_of_segments() {
    let mut wire = Wire::with(Config { send_bytes: 4 << 20, congestion: Congestion::None, ..config(2) });
    wire.right.device_mut().frames_max = usize::MAX;
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut stream = sockets.listen(PORT).await.unwrap().accept().await.unwrap();
        // Before the first one, the peer's hardware address is unknown.
        stream.write_all(b"!").await.unwrap();
        stream.read(&mut [0]).await.unwrap();
        stream.write_all(&vec![0; 4 << 20]).await.unwrap();
        core::future::pending::<()>().await;
    });
    wire.settle();
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    peer.ack += 1;
    peer.send(&mut wire, TcpControl::None, peer.seq, true, b"x");
    wire.right.poll(wire.now);
    wire.executor.run_ready();
    wire.right.poll(wire.now);
    let sent = wire.right.device_mut().outgoing.borrow().len();
    assert_eq!(sent, 1024);
}
