//! What the core needs of a process: giving way to others, reading another rank's memory, a clock.

use crate::sys::{self, Peers};
use core::hint::spin_loop;
use core::time::Duration;
use glass_lib_mpi::trace::Trace;
use glass_lib_mpi::{Fabric, Memory, Segment};

/// Fruitless polls with a pause each, while each rank has a core of its own: some milliseconds. A rank that yields earlier on a busy machine
/// loses the core for a time slice.
const SPINS: u32 = 40_000;
/// Before that, looks that are followed by no call at all.
const POLLS: u32 = 64;
/// After the spins, calls that give the core to another process, before the rank sleeps between polls.
const YIELDS: u32 = 20_000;
const SLEEP: Duration = Duration::from_micros(50);
/// One copy by the kernel beats two in pieces from 4 KiB on, where messages begin to be offered. Measured: decision 14.
const ONE_COPY_BYTES_MIN: usize = 1;

/// A rank as a process.
#[derive(Debug)]
pub struct ProcessFabric {
    spins: u32,
    peers: Peers,
    trace: Trace,
}

impl ProcessFabric {
    pub(crate) fn new(ranks: usize, segment: &Segment) -> ProcessFabric {
        // With fewer cores than ranks the one that is awaited may need our core.
        ProcessFabric {
            spins: if ranks > sys::cores() { 0 } else { SPINS },
            peers: Peers::of(segment),
            trace: sys::trace(segment.rank()),
        }
    }
}

impl Fabric for ProcessFabric {
    fn polls(&self) -> u32 {
        if self.spins == 0 { 1 } else { POLLS }
    }

    fn wait(&mut self, fruitless: u32) {
        if fruitless < self.spins {
            spin_loop();
        } else if fruitless < self.spins + YIELDS {
            sys::yield_now();
        } else {
            sys::sleep(SLEEP);
        }
    }

    fn read_peer(&mut self, rank: usize, address: u64, into: Memory) -> bool {
        self.peers.read(rank, address, into)
    }

    fn one_copy_bytes_min(&self) -> usize {
        ONE_COPY_BYTES_MIN
    }

    fn now_ns(&self) -> u64 {
        sys::now_ns()
    }

    fn trace(&self) -> Trace {
        self.trace
    }
}
