//! What the core needs of the world in which its ranks run: cores of a VM, processes of a host, or threads of a test.

use crate::sys::Memory;
use crate::trace::Trace;

/// The ranks' world, as one of them sees it.
pub trait Fabric {
    /// How often a wait looks before it calls [`Fabric::wait`]: once where ranks share cores, so that the rank which is awaited gets ours.
    fn polls(&self) -> u32;

    /// Called when `fruitless` polls in a row found nothing: spins, yields or sleeps, but returns within some milliseconds whatever
    /// happens.
    fn wait(&mut self, fruitless: u32);

    /// Copies from the memory of `rank` at `address`, which it lends until it gets our answer. False if that cannot be done here.
    fn read_peer(&mut self, rank: usize, address: u64, into: Memory) -> bool;

    /// From how many bytes on [`Fabric::read_peer`] is faster than a stream through the ring.
    fn one_copy_bytes_min(&self) -> usize;

    /// Nanoseconds from a fixed moment on.
    fn now_ns(&self) -> u64;

    /// Where the events of this rank go.
    fn trace(&self) -> Trace {
        Trace::NONE
    }
}
