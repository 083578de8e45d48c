//! The interface for Rust programs.

use crate::simulated::run;
use glass_lib_mpi::{Error, Predefined, Source};

#[test]
fn slices_are_sent_combined_and_gathered() {
    for count in 1..=5 {
        run(count, count as u64, |rank| {
            let mut peer = rank.world.typed();
            let (number, size) = (peer.rank(), peer.size());
            let mut sum = [number as f64, 1.0];
            peer.allreduce(Predefined::Sum, &mut sum).unwrap();
            assert_eq!(sum, [(size * (size - 1) / 2) as f64, size as f64]);
            peer.send((number + 1) % size, 3, &[number as i32; 4]).unwrap();
            let mut got = [0i32; 4];
            let status = peer.receive(Source::Any, Some(3), &mut got).unwrap();
            assert_eq!((got, status.bytes), ([((number + size - 1) % size) as i32; 4], 16));
            let mut all = vec![0u8; size * 2];
            peer.allgather(&[number as u8; 2], &mut all).unwrap();
            assert_eq!(all, (0..size).flat_map(|other| [other as u8; 2]).collect::<Vec<_>>());
            let mut numbers = [number as u32; 3];
            peer.broadcast(size - 1, &mut numbers).unwrap();
            assert_eq!(numbers, [size as u32 - 1; 3]);
            assert_eq!(peer.broadcast(size, &mut numbers), Err(Error::Root));
            let half = peer.split(number as u32 % 2, |half| half.size()).unwrap();
            assert_eq!(half, if number % 2 == 0 { size.div_ceil(2) } else { size / 2 });
            peer.barrier().unwrap();
        });
    }
}
