//! What the core needs of a process: giving way to others, reading another rank's memory, a clock.

use crate::sys::{self, Pids};
use glass_mpi::{Fabric, Memory, Segment};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Fruitless polls with a pause each, while each rank has a core of its own: some milliseconds. A rank that yields earlier on a busy machine
/// loses the core for a time slice.
const SPINS: u32 = 40_000;
/// Before that, looks that are followed by no call at all.
const LOOKS: u32 = 64;
/// After the spins, calls that give the core to another process, before the rank sleeps between polls.
const YIELDS: u32 = 20_000;
const SLEEP: Duration = Duration::from_micros(50);
/// One copy by the kernel beats two in pieces from 4 KiB on, where messages begin to be offered. Measured: decision 14.
const ONE_COPY_BYTES_MIN: usize = 1;

/// A rank as a process.
#[derive(Debug)]
pub struct ProcessFabric {
    spins: u32,
    pids: Pids,
}

impl ProcessFabric {
    pub(crate) fn new(ranks: usize, segment: &Segment) -> ProcessFabric {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // With fewer cores than ranks the one that is awaited may need our core.
        ProcessFabric { spins: if ranks > cores { 0 } else { SPINS }, pids: Pids::of(segment) }
    }
}

/// Nanoseconds since this was first called.
pub(crate) fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl Fabric for ProcessFabric {
    fn looks(&self) -> u32 {
        if self.spins == 0 { 1 } else { LOOKS }
    }

    fn wait(&mut self, fruitless: u32) {
        if fruitless < self.spins {
            std::hint::spin_loop();
        } else if fruitless < self.spins + YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(SLEEP);
        }
    }

    fn read_peer(&mut self, rank: usize, address: u64, into: Memory) -> bool {
        self.pids.of_rank(rank).is_some_and(|pid| sys::read_process(pid, address, into))
    }

    fn one_copy_bytes_min(&self) -> usize {
        ONE_COPY_BYTES_MIN
    }

    fn now_ns(&self) -> u64 {
        now_ns()
    }
}
