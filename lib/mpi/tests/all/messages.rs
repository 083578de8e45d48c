//! Messages between two ranks: order, content, matching, lengths at the bounds of each protocol, and what goes wrong.

use crate::simulated::{Rank, memory, run};
use glass_lib_mpi::{Error, Mode, Source};

const LENGTHS: [usize; 13] = [0, 1, 8, 40, 41, 2048, 2049, 4096, 4097, 16384, 20_000, 70_000, 300_000];
const SEEDS: u64 = 12;

/// The bytes of message `number` from `source`.
fn content(source: usize, number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (source * 31 + number * 7 + index) as u8).collect()
}

/// Every rank sends each other the same lengths in the same order, whose number is the tag.
fn send_all(rank: &mut Rank) -> Vec<(glass_lib_mpi::Id, Vec<u8>)> {
    let all = rank.all.clone();
    let mut sent = Vec::new();
    for (number, length) in LENGTHS.iter().enumerate() {
        for to in 0..rank.count() {
            let mut bytes = content(rank.number(), number, *length);
            let mode = if rank.random.u8(..4) == 0 { Mode::Synchronous } else { Mode::Standard };
            let id = rank.world.start_send(&all, Some(to), number as i32, memory(&mut bytes), mode).unwrap();
            sent.push((id, bytes));
            rank.stumble();
        }
    }
    sent
}

#[test]
fn all_lengths_arrive_in_order_from_each_rank_and_whole() {
    for seed in 0..SEEDS {
        for count in [1, 2, 3, 5] {
            run(count, seed, |rank| {
                let sent = send_all(rank);
                let all = rank.all.clone();
                let mut next = vec![0; count];
                for _ in 0..count * LENGTHS.len() {
                    rank.stumble();
                    let status = rank.world.probe(&all, Source::Any, None).unwrap();
                    let (source, number) = (status.source.unwrap(), next[status.source.unwrap()]);
                    assert_eq!(
                        (status.tag, status.bytes),
                        (Some(number as i32), LENGTHS[number] as u64),
                        "seed {seed}"
                    );
                    let mut bytes = vec![0; LENGTHS[number]];
                    let got = rank.world.receive(&all, Source::Rank(source), None, memory(&mut bytes)).unwrap();
                    assert_eq!((got.source, got.tag, got.error), (Some(source), Some(number as i32), None));
                    assert_eq!(bytes, content(source, number, LENGTHS[number]), "seed {seed}, message {number}");
                    next[source] += 1;
                }
                for (id, _) in &sent {
                    rank.world.wait(*id).unwrap();
                }
            });
        }
    }
}

#[test]
fn receives_that_wait_are_matched_by_tag() {
    for seed in 0..SEEDS {
        run(3, seed, |rank| {
            let all = rank.all.clone();
            // Posted in another order than the messages are sent.
            let mut posted = Vec::new();
            for number in (0..LENGTHS.len()).rev() {
                for from in 0..3 {
                    let mut bytes = vec![0; LENGTHS[number]];
                    let id =
                        rank.world.start_receive(&all, Source::Rank(from), Some(number as i32), memory(&mut bytes));
                    posted.push((id.unwrap(), bytes, from, number));
                }
                rank.stumble();
            }
            let sent = send_all(rank);
            for (id, bytes, from, number) in posted {
                let status = rank.world.wait(id).unwrap();
                assert_eq!((status.source, status.bytes), (Some(from), LENGTHS[number] as u64));
                assert_eq!(bytes, content(from, number, LENGTHS[number]), "seed {seed}, message {number} from {from}");
            }
            sent.iter().for_each(|(id, _)| assert!(rank.world.wait(*id).is_ok()));
        });
    }
}

#[test]
fn a_message_that_is_too_long_is_an_error_and_the_next_is_whole() {
    for seed in 0..SEEDS {
        for length in [10, 1000, 10_000, 100_000] {
            run(2, seed, |rank| {
                let all = rank.all.clone();
                if rank.number() == 0 {
                    for _ in 0..2 {
                        rank.world.send(&all, Some(1), 5, memory(&mut vec![9; length]), Mode::Standard).unwrap();
                    }
                    return;
                }
                let mut bytes = vec![0; length];
                let short = memory(&mut bytes[..length / 2]);
                let status = rank.world.receive(&all, Source::Rank(0), None, short).unwrap();
                assert_eq!((status.error, status.bytes), (Some(Error::Truncate), length as u64 / 2));
                assert!(
                    bytes[..length / 2].iter().all(|byte| *byte == 9)
                        && bytes[length / 2..].iter().all(|byte| *byte == 0)
                );
                let status = rank.world.receive(&all, Source::Any, Some(5), memory(&mut bytes)).unwrap();
                assert_eq!((status.error, status.bytes), (None, length as u64));
                assert!(bytes.iter().all(|byte| *byte == 9));
            });
        }
    }
}

#[test]
fn a_synchronous_send_ends_when_its_receive_begins() {
    run(2, 1, |rank| {
        let all = rank.all.clone();
        let mut bytes = vec![1; 3];
        if rank.number() == 0 {
            let id = rank.world.start_send(&all, Some(1), 0, memory(&mut bytes), Mode::Synchronous).unwrap();
            // The other rank has announced that it has not received yet.
            rank.world.receive(&all, Source::Rank(1), Some(1), memory(&mut [0; 1])).unwrap();
            assert_eq!(rank.world.is_done(id), Ok(false));
            rank.world.send(&all, Some(1), 2, memory(&mut [0; 1]), Mode::Standard).unwrap();
            rank.world.wait(id).unwrap();
        } else {
            rank.world.probe(&all, Source::Rank(0), Some(0)).unwrap();
            rank.world.send(&all, Some(0), 1, memory(&mut [0; 1]), Mode::Standard).unwrap();
            rank.world.receive(&all, Source::Rank(0), Some(2), memory(&mut [0; 1])).unwrap();
            assert_eq!(rank.world.receive(&all, Source::Rank(0), Some(0), memory(&mut bytes)).unwrap().bytes, 3);
        }
    });
}

#[test]
fn a_cancelled_receive_takes_no_message() {
    run(2, 3, |rank| {
        let all = rank.all.clone();
        if rank.number() == 0 {
            let mut bytes = [0; 4];
            let id = rank.world.start_receive(&all, Source::Rank(1), None, memory(&mut bytes)).unwrap();
            rank.world.cancel(id).unwrap();
            assert!(rank.world.wait(id).unwrap().is_cancelled);
            rank.world.barrier(&all).unwrap();
            rank.world.receive(&all, Source::Rank(1), None, memory(&mut bytes)).unwrap();
            assert_eq!(bytes, [7; 4]);
        } else {
            rank.world.barrier(&all).unwrap();
            rank.world.send(&all, Some(0), 0, memory(&mut [7; 4]), Mode::Standard).unwrap();
        }
    });
}

#[test]
fn an_aborted_job_fails_every_wait() {
    let codes = run(3, 5, |rank| {
        let all = rank.all.clone();
        if rank.number() == 2 {
            rank.world.header().abort(2, 9);
        }
        let result = rank.world.receive(&all, Source::Any, None, memory(&mut [0; 4]));
        (result.err(), rank.world.header().aborted())
    });
    assert_eq!(codes, [(Some(Error::ProcAborted), Some((2, 9))); 3]);
}
