//! The events of calls and messages: each received message was sent before, and nothing is recorded while the group is off.

use crate::simulated::run_traced;
use glass_formats::trace::{Event, Group, Kind, MPI_ANY, MpiRole, Ring};
use glass_lib_mpi::trace::{Trace, mpi_call};
use glass_lib_mpi::{Predefined, Source};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64};

const EVENTS: usize = 4096;

struct Traced {
    groups: &'static AtomicU32,
    rings: Vec<Ring<'static>>,
}

impl Traced {
    fn new(ranks: usize, groups: u32) -> Traced {
        let ring = |_| {
            let words = Vec::from_iter((0..EVENTS * 4).map(|_| AtomicU64::new(0))).leak();
            Ring::new(Box::leak(Box::default()), words).unwrap()
        };
        Traced { groups: Box::leak(Box::new(AtomicU32::new(groups))), rings: (0..ranks).map(ring).collect() }
    }

    fn of(&self, rank: usize) -> Trace {
        Trace::new(self.groups, self.rings[rank])
    }

    fn events(&self, rank: usize) -> Vec<Event> {
        let mut events = Vec::new();
        self.rings[rank].read(0, |_, words| events.push(Event::from_words(words)));
        assert!(events.len() < EVENTS - 1, "the ring is too short");
        events
    }
}

/// Messages of each length that has a way of its own, expected and unexpected, and a collective operation.
fn exchange(traced: &Traced, ranks: usize, seed: u64) {
    run_traced(
        ranks,
        seed,
        |rank| traced.of(rank),
        |rank| {
            let (number, count) = (rank.number(), rank.count());
            rank.stumble();
            let mut peer = rank.world.typed();
            for bytes in [8, 1000, 3000, 9000] {
                let others: Vec<usize> = (0..count).filter(|other| *other != number).collect();
                if number == 0 {
                    for _ in others {
                        peer.receive(Source::Any, Some(bytes as i32), &mut vec![0u8; bytes]).unwrap();
                    }
                } else {
                    peer.send(0, bytes as i32, &vec![number as u8; bytes]).unwrap();
                }
            }
            let mut sum = [1u32; 4];
            peer.allreduce(Predefined::Sum, &mut sum).unwrap();
            peer.barrier().unwrap();
        },
    );
}

#[test]
fn each_received_message_was_sent_and_belongs_to_a_call() {
    for seed in 0..40 {
        let ranks = 2 + seed as usize % 3;
        let traced = Traced::new(ranks, Group::Mpi as u32);
        exchange(&traced, ranks, seed);
        let mut sent = HashMap::new();
        let mut received = Vec::new();
        for rank in 0..ranks {
            let mut open = Vec::new();
            for event in traced.events(rank) {
                match Kind::from_number(event.kind).unwrap() {
                    Kind::MpiCall => open.push(event.detail),
                    Kind::MpiReturn => assert_eq!(open.pop(), Some(event.detail)),
                    Kind::MpiSent => _ = sent.insert((rank as u32, event.a, event.b), (event.ticks, event.c)),
                    Kind::MpiReceived => received.push(((event.a, rank as u32, event.b), (event.ticks, event.c))),
                    Kind::MpiAbout if event.detail == MpiRole::Receive as u16 => {
                        assert_eq!((open.last(), event.a), (Some(&mpi_call("MPI_Recv")), MPI_ANY));
                    }
                    _ => {}
                }
            }
            assert!(open.is_empty(), "seed {seed}: calls that do not return: {open:?}");
        }
        for (message, (at, bytes)) in &received {
            let (sent_at, sent_bytes) = sent.remove(message).unwrap_or_else(|| panic!("seed {seed}: {message:?}"));
            assert!(sent_at <= *at && sent_bytes == *bytes, "seed {seed}: {message:?}");
        }
        assert!(sent.is_empty(), "seed {seed}: not received: {sent:?}");
        assert!(received.len() >= 4 * (ranks - 1) + ranks, "seed {seed}: {}", received.len());
    }
}

#[test]
fn nothing_is_recorded_while_the_group_is_off() {
    let traced = Traced::new(3, !(Group::Mpi as u32));
    exchange(&traced, 3, 1);
    assert!((0..3).all(|rank| traced.events(rank).is_empty()));
}
