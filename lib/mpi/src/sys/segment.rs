//! The memory that all ranks share: a page for their launcher, then for each ordered pair a line of signals, the credit and the ring.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};

use super::ring::{BULK_BYTES, Consumer, Credit, Line, Producer, SLOTS, Slot};
use alloc::vec::Vec;
use core::ptr::NonNull;

/// The most ranks: what the launcher's page has room for.
pub const RANKS_MAX: usize = 256;
const HEADER_BYTES: usize = 4096;
const CREDIT_OFFSET: usize = 128;
const SLOTS_OFFSET: usize = 256;
const BULK_OFFSET: usize = SLOTS_OFFSET + SLOTS as usize * 64;
/// Bytes for an ordered pair of ranks.
pub const PAIR_BYTES: usize = (BULK_OFFSET + BULK_BYTES as usize).next_multiple_of(4096);

/// Bytes of the memory that `ranks` ranks share.
pub const fn bytes_of(ranks: usize) -> usize {
    HEADER_BYTES + ranks * ranks * PAIR_BYTES
}

/// A line that one rank writes and one reads: how often the first has arrived at a barrier with the second.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Signal(AtomicU32);

impl Signal {
    /// Publishes the count.
    #[inline]
    pub fn set(&self, count: u32) {
        // Release: pairs with the acquire in `get`; what the rank wrote before the barrier is written.
        self.0.store(count, Ordering::Release);
    }

    /// The count.
    #[inline]
    pub fn get(&self) -> u32 {
        // Acquire: pairs with the release in `set`.
        self.0.load(Ordering::Acquire)
    }
}

/// The first page, which the launcher of processes reads and writes too (docs/formats/mpi-ranks.md).
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Header {
    aborted: AtomicU32,
    code: AtomicU32,
    reserved: [u32; 14],
    states: [AtomicU32; RANKS_MAX],
    pids: [AtomicU32; RANKS_MAX],
}

impl Header {
    /// The rank that aborted the job or died, and the exit code that it requested.
    pub fn aborted(&self) -> Option<(usize, i32)> {
        // Acquire: pairs with the release in `abort`; the code is written.
        let aborted = self.aborted.load(Ordering::Acquire);
        (aborted != 0).then(|| (aborted as usize - 1, self.code.load(Ordering::Relaxed) as i32))
    }

    /// Ends the job of all ranks; the first one is the reason.
    pub fn abort(&self, rank: usize, code: i32) {
        if self.aborted.load(Ordering::Relaxed) == 0 {
            self.code.store(code as u32, Ordering::Relaxed);
            // Release: pairs with the acquire in `aborted`.
            self.aborted.store(rank as u32 + 1, Ordering::Release);
        }
    }

    /// Records that a rank is inside MPI (1) or has left it (2), and which process it is.
    pub fn set_state(&self, rank: usize, state: u32, pid: u32) {
        self.pids[rank].store(pid, Ordering::Relaxed);
        // Release: pairs with the acquire in `state`; the pid is written.
        self.states[rank].store(state, Ordering::Release);
    }

    /// What [`Header::set_state`] recorded.
    pub fn state(&self, rank: usize) -> (u32, u32) {
        // Acquire: pairs with the release in `set_state`.
        let state = self.states[rank].load(Ordering::Acquire);
        (state, self.pids[rank].load(Ordering::Relaxed))
    }
}

/// The shared memory as one rank sees it.
#[derive(Debug)]
pub struct Segment {
    start: NonNull<u8>,
    ranks: usize,
    rank: usize,
    are_ends_taken: bool,
}

impl Segment {
    /// The memory at `start` for `ranks` ranks, as `rank` sees it.
    ///
    /// # Safety
    /// It has [`bytes_of`]`(ranks)` bytes, begins at a page, was zero at first, is written by nothing but this library, and stays valid
    /// while anything made from it lives. Each rank makes one of it.
    pub unsafe fn new(start: NonNull<u8>, ranks: usize, rank: usize) -> Segment {
        assert!(rank < ranks && ranks <= RANKS_MAX && (start.as_ptr() as usize).is_multiple_of(64));
        Segment { start, ranks, rank, are_ends_taken: false }
    }

    /// How many ranks share it.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Which of them sees it so.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The launcher's page.
    pub fn header(&self) -> &Header {
        // SAFETY: the first page of the memory, of atomics for which zero is valid.
        unsafe { self.start.cast::<Header>().as_ref() }
    }

    fn pair(&self, from: usize, to: usize) -> NonNull<u8> {
        assert!(from < self.ranks && to < self.ranks);
        // SAFETY: inside of the memory, as both are below the number of ranks.
        unsafe { self.start.add(HEADER_BYTES + (from * self.ranks + to) * PAIR_BYTES) }
    }

    fn places(&self, from: usize, to: usize) -> (NonNull<Slot>, NonNull<Credit>, NonNull<Line>) {
        let pair = self.pair(from, to);
        // SAFETY: the offsets lie inside of the pair's part and are multiples of a line.
        unsafe { (pair.add(SLOTS_OFFSET).cast(), pair.add(CREDIT_OFFSET).cast(), pair.add(BULK_OFFSET).cast()) }
    }

    /// This rank's ends of the rings to and from each rank, by rank. Its own ring is never used.
    ///
    /// # Panics
    /// When they were taken before.
    pub fn take_ends(&mut self) -> (Vec<Producer>, Vec<Consumer>) {
        assert!(!core::mem::replace(&mut self.are_ends_taken, true), "the ends of the rings are taken twice");
        let others = 0..self.ranks;
        let to = others.clone().map(|other| {
            let (slots, credit, bulk) = self.places(self.rank, other);
            // SAFETY: valid by the promise of `new`; each rank has one segment and takes its ends once.
            unsafe { Producer::new(slots, credit, bulk) }
        });
        let from = others.map(|other| {
            let (slots, credit, bulk) = self.places(other, self.rank);
            // SAFETY: as above.
            unsafe { Consumer::new(slots, credit, bulk) }
        });
        (to.collect(), from.collect())
    }

    /// The line by which `from` signals `to`.
    #[inline]
    pub fn signal(&self, from: usize, to: usize) -> &Signal {
        // SAFETY: a line of the pair's part, of an atomic for which zero is valid.
        unsafe { self.pair(from, to).cast::<Signal>().as_ref() }
    }
}
