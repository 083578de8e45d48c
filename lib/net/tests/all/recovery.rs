//! What is retransmitted to a peer without SACK, which has nothing but repeated acknowledgements; lib/tcp has the tests of all others.

use crate::common::peer::{Peer, Segment};
use crate::common::{Wire, config};
use core::time::Duration;
use glass_api::{Listener, Net, Stream};
use glass_lib_net::smoltcp::wire::{TcpControl, TcpSeqNumber};
use glass_lib_net::{Config, Congestion};

const PORT: u16 = 80;
const SEGMENT_BYTES: usize = 1460;

/// A peer of a service that answers each `x` by ten segments, and then closes.
fn served() -> (Wire, Peer) {
    // Nothing is paced.
    let mut wire = Wire::with(Config { congestion: Congestion::Reno, ..config(2) });
    let sockets = wire.right.sockets();
    wire.spawn(async move {
        let mut listener = sockets.listen(PORT).await.unwrap();
        let mut stream = listener.accept().await.unwrap();
        let mut request = [0];
        while stream.read(&mut request).await.is_ok_and(|bytes| bytes == 1) && request == *b"x" {
            stream.write_all(&[1; 10 * SEGMENT_BYTES]).await.unwrap();
        }
        let _ = stream.close().await;
    });
    let mut peer = Peer::new(4000, PORT);
    assert!(peer.open(&mut wire));
    (wire, peer)
}

/// Requests ten segments; returns where those start that are sent at once.
fn request(wire: &mut Wire, peer: &mut Peer) -> Vec<TcpSeqNumber> {
    peer.send(wire, TcpControl::Psh, peer.seq, true, b"x");
    peer.seq += 1;
    data(&peer.exchange(wire))
}

/// Acknowledges these segments and what is sent then.
fn finish(wire: &mut Wire, peer: &mut Peer, mut sent: Vec<TcpSeqNumber>) {
    while let Some(last) = sent.last() {
        sent = acknowledge(wire, peer, *last + SEGMENT_BYTES);
    }
}

fn acknowledge(wire: &mut Wire, peer: &mut Peer, number: TcpSeqNumber) -> Vec<TcpSeqNumber> {
    peer.ack = number;
    peer.send(wire, TcpControl::None, peer.seq, true, &[]);
    data(&peer.exchange(wire))
}

/// Where the segments with data start.
fn data(segments: &[Segment]) -> Vec<TcpSeqNumber> {
    segments.iter().filter(|segment| segment.bytes > 0).map(|segment| segment.seq).collect()
}

/// What is sent when so much more time has passed.
fn after(wire: &mut Wire, peer: &Peer, duration: Duration) -> Vec<TcpSeqNumber> {
    wire.now = wire.now + duration;
    data(&peer.exchange(wire))
}

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn a_silent_peer_gets_the_first_segment_after_200_400_and_800_milliseconds() {
    let (mut wire, mut peer) = served();
    // Full segments pass, so that none is suspected to be too long.
    let sent = request(&mut wire, &mut peer);
    finish(&mut wire, &mut peer, sent);
    let sent = request(&mut wire, &mut peer);
    assert_eq!(sent.len(), 10);
    for wait in [200, 400, 800] {
        assert_eq!(after(&mut wire, &peer, (wait - 1) * MILLISECOND), []);
        assert_eq!(after(&mut wire, &peer, MILLISECOND), [sent[0]]);
    }
    // An acknowledgement that is damaged changes nothing.
    let mut damaged = peer.frame(TcpControl::None, peer.seq, Some(sent[0] + SEGMENT_BYTES), &[]);
    *damaged.last_mut().unwrap() ^= 1;
    wire.right.device_mut().incoming.borrow_mut().push_back(damaged);
    assert_eq!(after(&mut wire, &peer, 1599 * MILLISECOND), []);
    assert_eq!(after(&mut wire, &peer, MILLISECOND), [sent[0]]);
    finish(&mut wire, &mut peer, vec![sent[9]]);
    // Nothing is on its way.
    assert_eq!(after(&mut wire, &peer, 60_000 * MILLISECOND), []);
}

#[test]
fn a_long_round_trip_is_no_silence() {
    let (mut wire, mut peer) = served();
    request(&mut wire, &mut peer);
    wire.now = wire.now + 190 * MILLISECOND;
    peer.ack += 10 * SEGMENT_BYTES;
    let sent = request(&mut wire, &mut peer);
    // An eighth of the round trip, and the least that is added.
    assert_eq!(after(&mut wire, &peer, 223 * MILLISECOND), []);
    assert_eq!(after(&mut wire, &peer, MILLISECOND), [sent[0]]);
}

/// Of ten segments the first, the fourth and the fifth are lost.
#[test]
fn each_lost_segment_is_retransmitted_as_soon_as_the_one_before_is_acknowledged() {
    let (mut wire, mut peer) = served();
    let sent = request(&mut wire, &mut peer);
    let segment = |number: usize| sent[0] + number * SEGMENT_BYTES;
    assert_eq!(acknowledge(&mut wire, &mut peer, segment(0)), []);
    assert_eq!(acknowledge(&mut wire, &mut peer, segment(0)), []);
    assert_eq!(acknowledge(&mut wire, &mut peer, segment(0)), [segment(0)]);
    assert_eq!(acknowledge(&mut wire, &mut peer, segment(3)), [segment(3)]);
    assert_eq!(acknowledge(&mut wire, &mut peer, segment(4)), [segment(4)]);
    assert_eq!(acknowledge(&mut wire, &mut peer, segment(10)), []);
    // The loss is over.
    let sent = request(&mut wire, &mut peer);
    let more = acknowledge(&mut wire, &mut peer, sent[3]);
    assert!(more.iter().all(|start| *start > sent[4]), "{more:?}");
}

/// After a timeout all of it is retransmitted, and what the peer acknowledges meanwhile is no loss.
#[test]
fn what_is_retransmitted_after_a_timeout_is_retransmitted_once() {
    let (mut wire, mut peer) = served();
    let sent = request(&mut wire, &mut peer);
    finish(&mut wire, &mut peer, sent);
    let first = request(&mut wire, &mut peer);
    let mut sent = after(&mut wire, &peer, 200 * MILLISECOND);
    while sent.len() < 10 {
        let next = *sent.last().unwrap() + SEGMENT_BYTES;
        let more = acknowledge(&mut wire, &mut peer, next);
        assert!(!more.is_empty(), "{sent:?}");
        sent.extend(more);
    }
    assert_eq!(sent, first);
}

#[test]
fn a_lost_end_is_retransmitted_although_the_peer_repeats_its_acknowledgement() {
    let (mut wire, mut peer) = served();
    let sent = request(&mut wire, &mut peer);
    finish(&mut wire, &mut peer, sent);
    let end = |wire: &mut Wire, peer: &Peer| peer.exchange(wire).iter().any(|sent| sent.control == TcpControl::Fin);
    peer.send(&mut wire, TcpControl::Psh, peer.seq, true, b"q");
    peer.seq += 1;
    assert!(end(&mut wire, &peer));
    for _ in 0..5 {
        peer.send(&mut wire, TcpControl::None, peer.seq, true, &[]);
        end(&mut wire, &peer);
    }
    wire.now = wire.now + 1000 * MILLISECOND;
    assert!(end(&mut wire, &peer));
    peer.ack += 1;
    peer.send(&mut wire, TcpControl::Fin, peer.seq, true, &[]);
    peer.exchange(&mut wire);
    wire.now = wire.now + 11_000 * MILLISECOND;
    peer.exchange(&mut wire);
    assert_eq!(wire.right.connection_count(), 0);
}
