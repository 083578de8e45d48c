//! Segments that no correct peer sends, at random and almost right: nothing panics, and memory is bounded.

use crate::common::settings;
use glass_api::Instant;
use glass_lib_tcp::congestion::Kind;
use glass_lib_tcp::wire::{Flags, Options, Timestamps};
use glass_lib_tcp::{Connection, HalfOpen, Header, Segment, Settings, State};
use std::time::Duration;

const OWN: u32 = u32::MAX - 20_000;
const PEER: u32 = u32::MAX - 30_000;

/// A header whose numbers are near what is right, or anywhere.
fn header(random: &mut fastrand::Rng, near: (u32, u32), clock: u32) -> Header {
    let number = |random: &mut fastrand::Rng, near: u32| match random.u32(..8) {
        0 => random.u32(..),
        1 => near,
        _ => near.wrapping_add(random.u32(..70_000)).wrapping_sub(35_000),
    };
    let flags = match random.u32(..12) {
        0 => Flags(random.u8(..32)),
        1 => Flags::ACK | Flags::FIN,
        _ => Flags::ACK,
    };
    let mut options = Options::default();
    if random.bool() {
        let echo = clock.wrapping_sub(random.u32(..200));
        options.timestamps = Some(Timestamps { value: 1000 + random.u32(..50), echo });
    }
    for _ in 0..random.u32(..5) {
        let start = number(random, near.1);
        options.sacks.push(start, start.wrapping_add(random.u32(..5000)));
    }
    let (seq, ack) = (number(random, near.0), number(random, near.1));
    Header { seq, ack, flags, window: random.u16(..), options }
}

#[test]
fn random_segments_do_no_harm() {
    for seed in 0..2000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let kind = *random.choice(&[Kind::NewReno, Kind::Cubic, Kind::Bbr, Kind::None]).expect("there are some");
        let own = Settings { congestion: kind, seed, peer_timeout: Duration::from_secs(3600), ..settings() };
        let mut now = Instant(1_000_000_000);
        let mut syn = Header { seq: PEER, flags: Flags::SYN, window: 60_000, ..Header::default() };
        syn.options.sack_permitted = random.bool();
        syn.options.shift = random.bool().then_some(3);
        syn.options.timestamps = random.bool().then_some(Timestamps { value: 1000, echo: 0 });
        let mut half_open = HalfOpen::new(now, &syn, OWN, own);
        half_open.answer(now);
        let mut connection: Connection = half_open.open(now);
        let (mut sent, mut received) = (OWN.wrapping_add(1), PEER.wrapping_add(1));
        let frame_bytes = if random.bool() { 65_000 } else { 0 };
        for _ in 0..500 {
            let clock = (now.0 / 1_000_000 + seed) as u32;
            let payload = vec![1; if random.bool() { 0 } else { random.usize(..3000) }];
            let header = header(&mut random, (received, sent), clock);
            let segment = Segment { source_port: 1, destination_port: 2, header, payload: &payload };
            connection.receive(now, &segment);
            connection.write(&[7; 10_000][..random.usize(..10_000)]);
            connection.skip(random.usize(..5000));
            if random.u32(..300) == 0 {
                connection.limit_segment(now, sent.wrapping_sub(random.u32(..10_000)), random.u16(..));
            }
            for count in 0.. {
                assert!(count < 1000, "seed {seed}: it sends without an end");
                let Some(transmit) = connection.poll_transmit(now, frame_bytes) else { break };
                assert_eq!(connection.payload(&transmit).concat().len(), transmit.payload_bytes);
                sent = transmit.header.seq.wrapping_add(transmit.payload_bytes as u32);
                received = transmit.header.ack;
            }
            assert!(connection.allocated() <= own.receive_bytes + own.send_bytes, "seed {seed}");
            if connection.state() == State::Closed {
                break;
            }
            let deadline = connection.next_deadline(now);
            assert!(deadline.is_none_or(|at| at > now), "seed {seed}: a deadline that has passed");
            now = now + Duration::from_micros(random.u64(..30_000));
        }
    }
}
