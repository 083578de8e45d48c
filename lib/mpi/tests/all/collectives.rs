//! Each collective operation, with all sizes at the bounds of its algorithms, for 1 to 9 ranks, against what it should give.

use crate::simulated::{Rank, buffer, run};
use glass_lib_mpi::{Basic, Buffer, Datatype, EAGER_BYTES_MAX, Error, Id, Operation, Part, Predefined};
use std::rc::Rc;

/// Counts of 64-bit numbers: within a slot, a piece, eager, in pieces, spread.
const COUNTS: [usize; 8] = [0, 1, 5, 6, 513, 2049, 5000, 40_000];
const SUM: Operation = Operation::Predefined(Predefined::Sum);

fn value(rank: usize, index: usize) -> u64 {
    (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64).wrapping_mul(0x0100_0000_01b3)
}

fn values(rank: usize, count: usize) -> Vec<u64> {
    (0..count).map(|index| value(rank, index)).collect()
}

fn sums(ranks: std::ops::Range<usize>, count: usize) -> Vec<u64> {
    (0..count).map(|index| ranks.clone().fold(0, |sum, rank| value(rank, index).wrapping_add(sum))).collect()
}

fn for_all(test: impl Fn(&mut Rank, usize, usize) + Sync) {
    for count in 1..=9 {
        for (seed, length) in COUNTS.iter().enumerate() {
            let seed = (seed * 100 + count) as u64;
            run(count, seed, |rank| {
                let root = seed as usize % count;
                for _ in 0..2 {
                    test(rank, *length, root);
                    rank.stumble();
                }
            });
        }
    }
}

fn finish(rank: &mut Rank, id: Result<Id, Error>) {
    assert_eq!(rank.world.wait(id.unwrap()).unwrap().error, None);
}

#[test]
fn broadcast() {
    for_all(|rank, count, root| {
        let all = rank.all.clone();
        let own = |rank: &Rank| if rank.number() == root { values(root, count) } else { vec![0; count] };
        let mut numbers = own(rank);
        rank.world.broadcast(&all, &buffer(&mut numbers), root).unwrap();
        assert_eq!(numbers, values(root, count));
        let mut numbers = own(rank);
        let id = rank.world.start_broadcast(&all, &buffer(&mut numbers), root);
        rank.stumble();
        finish(rank, Ok(id));
        assert_eq!(numbers, values(root, count));
    });
}

#[test]
fn reductions() {
    for_all(|rank, count, root| {
        let all = rank.all.clone();
        let (size, number) = (rank.count(), rank.number());
        let mut own = values(number, count);
        let mut result = vec![0; count];
        let into = buffer(&mut result);
        rank.world.reduce(&all, Some(&buffer(&mut own)), (number == root).then_some(&into), &SUM, root).unwrap();
        assert_eq!(result, if number == root { sums(0..size, count) } else { vec![0; count] });
        let id = rank.world.start_reduce(&all, Some(&buffer(&mut own)), (number == root).then_some(&into), &SUM, root);
        finish(rank, id);
        assert_eq!(result, if number == root { sums(0..size, count) } else { vec![0; count] });
        rank.world.allreduce(&all, Some(&buffer(&mut own)), &buffer(&mut result), &SUM).unwrap();
        assert_eq!(result, sums(0..size, count));
        assert_eq!(own, values(number, count), "the input changed");
        let mut both = own.clone();
        let id = rank.world.start_allreduce(&all, None, &buffer(&mut both), &SUM);
        finish(rank, id);
        assert_eq!(both, result);
        let mut both = own.clone();
        rank.world.allreduce(&all, None, &buffer(&mut both), &SUM).unwrap();
        assert_eq!(both, result);
    });
}

/// Functions x -> a * x + b, composed: associative, and the order matters.
fn composition() -> Operation {
    Operation::User(
        Rc::new(|first: &mut [u8], second: &mut [u8], count: usize, _: &Rc<Datatype>| {
            let number = |bytes: &[u8], at: usize| u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
            for index in 0..count {
                let (a, b) = (number(first, index * 2), number(first, index * 2 + 1));
                let (c, d) = (number(second, index * 2), number(second, index * 2 + 1));
                let composed = [a.wrapping_mul(c), a.wrapping_mul(d).wrapping_add(b)];
                second[index * 16..index * 16 + 8].copy_from_slice(&composed[0].to_ne_bytes());
                second[index * 16 + 8..index * 16 + 16].copy_from_slice(&composed[1].to_ne_bytes());
            }
        }),
        false,
    )
}

fn pairs(numbers: &mut [u64]) -> Buffer {
    let whole = buffer(numbers);
    let part = Part { displacement: 0, count: 2, datatype: whole.datatype.clone() };
    let datatype = Rc::new(Datatype::of_parts(&[part], false).unwrap());
    Buffer { count: numbers.len() / 2, datatype, ..whole }
}

fn composed(ranks: std::ops::Range<usize>, count: usize) -> Vec<u64> {
    let mut result = values(ranks.start, count);
    for rank in ranks.skip(1) {
        for (index, pair) in values(rank, count).chunks(2).enumerate() {
            let (a, b) = (result[index * 2], result[index * 2 + 1]);
            result[index * 2] = a.wrapping_mul(pair[0]);
            result[index * 2 + 1] = a.wrapping_mul(pair[1]).wrapping_add(b);
        }
    }
    result
}

#[test]
fn an_operation_that_does_not_commute_gets_the_ranks_in_order() {
    for_all(|rank, count, root| {
        let (count, all, operation) = (count & !1, rank.all.clone(), composition());
        let (size, number) = (rank.count(), rank.number());
        let (mut own, mut result) = (values(number, count), vec![0; count]);
        let into = pairs(&mut result);
        rank.world.reduce(&all, Some(&pairs(&mut own)), (number == root).then_some(&into), &operation, root).unwrap();
        assert_eq!(result, if number == root { composed(0..size, count) } else { vec![0; count] });
        rank.world.allreduce(&all, Some(&pairs(&mut own)), &into, &operation).unwrap();
        assert_eq!(result, composed(0..size, count));
        let id = rank.world.start_scan(&all, Some(&pairs(&mut own)), &into, &operation, false);
        finish(rank, id);
        assert_eq!(result, composed(0..number + 1, count));
    });
}

#[test]
fn prefixes() {
    for_all(|rank, count, _| {
        let (all, number) = (rank.all.clone(), rank.number());
        let (mut own, mut result) = (values(number, count), vec![7; count]);
        let id = rank.world.start_scan(&all, Some(&buffer(&mut own)), &buffer(&mut result), &SUM, false);
        finish(rank, id);
        assert_eq!(result, sums(0..number + 1, count));
        let mut result = vec![7; count];
        let id = rank.world.start_scan(&all, Some(&buffer(&mut own)), &buffer(&mut result), &SUM, true);
        finish(rank, id);
        assert_eq!(result, if number == 0 { vec![7; count] } else { sums(0..number, count) });
    });
}

fn parts(numbers: &mut [u64], size: usize) -> Vec<Buffer> {
    let whole = buffer(numbers);
    let count = numbers.len() / size;
    (0..size).map(|rank| whole.part(rank * count, count)).collect()
}

fn all_values(size: usize, count: usize) -> Vec<u64> {
    (0..size).flat_map(|rank| values(rank, count)).collect()
}

#[test]
fn gather_scatter_and_allgather() {
    for_all(|rank, count, root| {
        let (all, size, number) = (rank.all.clone(), rank.count(), rank.number());
        let count = count.min(5000);
        let (mut own, mut every) = (values(number, count), vec![0; count * size]);
        let places = parts(&mut every, size);
        let id = rank.world.start_gather(&all, Some(&buffer(&mut own)), &places, root);
        finish(rank, id);
        assert_eq!(every, if number == root { all_values(size, count) } else { vec![0; count * size] });
        let mut spread = all_values(size, count);
        let from = parts(&mut spread, size);
        let mut mine = vec![0; count];
        let id = rank.world.start_scatter(&all, &from, Some(&buffer(&mut mine)), root);
        finish(rank, id);
        assert_eq!(mine, own);
        let mut every = vec![0; count * size];
        let id = rank.world.start_allgather(&all, Some(&buffer(&mut own)), &parts(&mut every, size));
        finish(rank, id);
        assert_eq!(every, all_values(size, count));
    });
}

#[test]
fn alltoall_and_reduce_scatter() {
    for_all(|rank, count, _| {
        let (all, size, number) = (rank.all.clone(), rank.count(), rank.number());
        let count = count.min(5000);
        // Part `to` of rank `from` begins with the value of (from, to).
        let part = |from: usize, to: usize| values(from * 16 + to, count);
        let mut sent: Vec<u64> = (0..size).flat_map(|to| part(number, to)).collect();
        let expected: Vec<u64> = (0..size).flat_map(|from| part(from, number)).collect();
        let mut received = vec![0; count * size];
        let id = rank.world.start_alltoall(&all, Some(&parts(&mut sent, size)), &parts(&mut received, size));
        finish(rank, id);
        assert_eq!(received, expected);
        let id = rank.world.start_alltoall(&all, None, &parts(&mut sent, size));
        finish(rank, id);
        assert_eq!(sent, expected);
        let (mut own, mut mine) = (values(number, count * size), vec![0; count]);
        let counts = vec![count; size];
        let id = rank.world.start_reduce_scatter(&all, &buffer(&mut own), &buffer(&mut mine), &counts, &SUM);
        finish(rank, id);
        assert_eq!(mine, sums(0..size, count * size)[number * count..(number + 1) * count]);
    });
}

/// Some ranks take the short way and others the long one, as if their types had gaps: they still exchange with each other.
#[test]
fn short_exchanges_are_those_of_plans() {
    for_all(|rank, count, root| {
        let (all, size, number) = (rank.all.clone(), rank.count(), rank.number());
        let count = count.min(5000);
        let is_short = count * size_of::<u64>() <= EAGER_BYTES_MAX;
        let part = |from: usize, to: usize| values(from * 16 + to, count);
        let mut sent: Vec<u64> = (0..size).flat_map(|to| part(number, to)).collect();
        let expected: Vec<u64> = (0..size).flat_map(|from| part(from, number)).collect();
        let mut received = vec![0; count * size];
        let (from, into) = (parts(&mut sent, size), parts(&mut received, size));
        if number == root || !rank.world.short_alltoall(&all, &from[0], &into[0]).unwrap() {
            assert!(number == root || !is_short);
            let id = rank.world.start_alltoall(&all, Some(&from), &into);
            finish(rank, id);
        }
        assert_eq!(received, expected);
        let (mut own, mut every) = (values(number, count), vec![0; count * size]);
        let (own, into) = (buffer(&mut own), parts(&mut every, size));
        if number == root || !rank.world.short_allgather(&all, &own, &into[0]).unwrap() {
            assert!(number == root || !is_short);
            let id = rank.world.start_allgather(&all, Some(&own), &into);
            finish(rank, id);
        }
        assert_eq!(every, all_values(size, count));
    });
}

#[test]
fn barriers_hold_all_ranks() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for count in 1..=9 {
        let arrived = AtomicUsize::new(0);
        run(count, count as u64, |rank| {
            let all = rank.all.clone();
            for round in 1..=20 {
                rank.stumble();
                arrived.fetch_add(1, Ordering::Relaxed);
                match round % 2 {
                    0 => rank.world.barrier(&all).unwrap(),
                    _ => {
                        let id = rank.world.start_barrier(&all);
                        finish(rank, Ok(id));
                    }
                }
                assert!(arrived.load(Ordering::Relaxed) >= round * count);
            }
        });
    }
}

#[test]
fn communicators_are_apart() {
    for count in 1..=7 {
        run(count, count as u64, |rank| {
            let (all, number) = (rank.all.clone(), rank.number());
            let twin = rank.world.duplicate(&all).unwrap();
            // Backwards within each color.
            let part = rank.world.split(&all, Some(number as u32 % 2), -(number as i32)).unwrap().unwrap();
            let members: Vec<usize> = (0..count).filter(|other| other % 2 == number % 2).rev().collect();
            assert_eq!(part.size(), members.len());
            assert_eq!(members[part.rank()], number);
            let mut sum = vec![number as u64];
            rank.world.allreduce(&part, None, &buffer(&mut sum), &SUM).unwrap();
            assert_eq!(sum[0], members.iter().sum::<usize>() as u64);
            rank.world.barrier(&twin).unwrap();
            assert!(rank.world.split(&all, None, 0).unwrap().is_none());
        });
    }
}

#[test]
fn types_with_gaps_move_only_their_data() {
    run(3, 1, |rank| {
        let all = rank.all.clone();
        // Of each three numbers, the first.
        let part = Part { displacement: 0, count: 1, datatype: Rc::new(Datatype::of(Basic::Unsigned(8))) };
        let datatype = Rc::new(Datatype::of_parts(&[part], false).unwrap().resized(0, 24));
        let mut numbers = vec![if rank.number() == 0 { 5 } else { 1 }; 9];
        let gapped = Buffer { count: 3, datatype: datatype.clone(), ..buffer(&mut numbers) };
        rank.world.broadcast(&all, &gapped, 0).unwrap();
        let other = if rank.number() == 0 { 5 } else { 1 };
        assert_eq!(numbers, [5, other, other, 5, other, other, 5, other, other]);
        let mut result = vec![2; 9];
        let into = Buffer { count: 3, datatype, ..buffer(&mut result) };
        rank.world.allreduce(&all, Some(&gapped), &into, &SUM).unwrap();
        assert_eq!(result, [15, 2, 2, 15, 2, 2, 15, 2, 2]);
    });
}
