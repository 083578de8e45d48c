//! A world of ranks in one process: each is a thread, one runs at a time, and who runs next is chosen by the seed.

use glass_lib_mpi::trace::Trace;
use glass_lib_mpi::{Base, Basic, Buffer, Communicator, Datatype, Fabric, Memory, RANKS_MAX, Segment, World, bytes_of};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Turns after which a run counts as hung.
const TURNS_MAX: u64 = 2_000_000;

struct Turns {
    current: usize,
    alive: Vec<bool>,
    random: fastrand::Rng,
    taken: u64,
    has_failed: bool,
}

struct Baton {
    turns: Mutex<Turns>,
    /// One for each rank: its turn has come.
    changed: Vec<Condvar>,
    seed: u64,
}

impl Baton {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose(turns: &mut Turns) {
        let alive: Vec<usize> = (0..turns.alive.len()).filter(|rank| turns.alive[*rank]).collect();
        if !alive.is_empty() {
            turns.current = alive[turns.random.usize(..alive.len())];
        }
    }

    fn notify(&self, turns: &Turns) {
        match turns.has_failed {
            true => self.changed.iter().for_each(Condvar::notify_one),
            false => self.changed[turns.current].notify_one(),
        }
    }

    fn await_turn(&self, rank: usize, mut turns: MutexGuard<'_, Turns>) {
        while turns.current != rank && !turns.has_failed {
            turns = self.changed[rank].wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        let has_failed = turns.has_failed;
        drop(turns);
        assert!(!has_failed, "another rank failed (seed {})", self.seed);
    }

    fn pass(&self, rank: usize) {
        let mut turns = self.lock();
        turns.taken += 1;
        let is_hung = turns.taken > TURNS_MAX;
        turns.has_failed |= is_hung;
        Baton::choose(&mut turns);
        self.notify(&turns);
        assert!(!is_hung, "the ranks wait for each other (seed {})", self.seed);
        self.await_turn(rank, turns);
    }

    fn leave(&self, rank: usize, has_failed: bool) {
        let mut turns = self.lock();
        turns.alive[rank] = false;
        turns.has_failed |= has_failed;
        Baton::choose(&mut turns);
        self.notify(&turns);
    }
}

struct SimulatedFabric {
    rank: usize,
    baton: Arc<Baton>,
    one_copy_bytes_min: usize,
    trace: Trace,
}

impl Fabric for SimulatedFabric {
    fn polls(&self) -> u32 {
        2
    }

    fn wait(&mut self, _fruitless: u32) {
        self.baton.pass(self.rank);
    }

    fn read_peer(&mut self, _rank: usize, address: u64, into: Memory) -> bool {
        // SAFETY: the sender, a thread of this process, lends its memory until it gets the answer.
        let theirs = unsafe { Memory::new(address as *mut u8, into.bytes()) };
        into.copy_from(&theirs);
        true
    }

    fn one_copy_bytes_min(&self) -> usize {
        self.one_copy_bytes_min
    }

    fn now_ns(&self) -> u64 {
        self.baton.lock().taken
    }

    fn trace(&self) -> Trace {
        self.trace
    }
}

struct Shared(NonNull<u8>, Layout);

// SAFETY: the ranks share it by the protocol of the segment.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; all ranks are gone.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

/// What a rank of a test has.
pub struct Rank {
    pub world: World,
    pub all: Rc<Communicator>,
    pub random: fastrand::Rng,
    baton: Arc<Baton>,
}

impl Rank {
    pub fn number(&self) -> usize {
        self.world.rank()
    }

    pub fn count(&self) -> usize {
        self.world.ranks()
    }

    /// Lets another rank run, now and then.
    pub fn stumble(&mut self) {
        while self.random.bool() {
            self.baton.pass(self.world.rank());
        }
    }
}

/// Runs `program` as each of `count` ranks; what they return, by rank. The same seed gives the same order of steps.
pub fn run<R: Send>(count: usize, seed: u64, program: impl Fn(&mut Rank) -> R + Sync) -> Vec<R> {
    run_traced(count, seed, |_| Trace::NONE, program)
}

/// As [`run`], with events.
pub fn run_traced<R: Send>(
    count: usize,
    seed: u64,
    trace: impl Fn(usize) -> Trace + Sync,
    program: impl Fn(&mut Rank) -> R + Sync,
) -> Vec<R> {
    assert!(count <= RANKS_MAX);
    let layout = Layout::from_size_align(bytes_of(count), 4096).unwrap();
    // SAFETY: the layout is not empty.
    let shared = Shared(NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap(), layout);
    let mut random = fastrand::Rng::with_seed(seed);
    let one_copy_bytes_min = if random.bool() { 20_000 } else { usize::MAX };
    let current = random.usize(..count);
    let turns = Turns { current, alive: vec![true; count], random, taken: 0, has_failed: false };
    let baton =
        Arc::new(Baton { turns: Mutex::new(turns), changed: (0..count).map(|_| Condvar::new()).collect(), seed });
    let (shared, trace, program) = (&shared, &trace, &program);
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..count)
            .map(|rank| {
                let baton = baton.clone();
                scope.spawn(move || {
                    let outcome = catch_unwind(AssertUnwindSafe(|| {
                        baton.await_turn(rank, baton.lock());
                        // SAFETY: zeroed memory of this length that lives until all ranks are gone; one segment per rank.
                        let segment = unsafe { Segment::new(shared.0, count, rank) };
                        let fabric =
                            SimulatedFabric { rank, baton: baton.clone(), one_copy_bytes_min, trace: trace(rank) };
                        let world = World::new(Box::new(fabric), segment);
                        let all = world.communicator_of_all();
                        let random = fastrand::Rng::with_seed(seed ^ (rank as u64 + 1) << 32);
                        let mut own = Rank { world, all, random, baton: baton.clone() };
                        let result = program(&mut own);
                        if own.world.header().aborted().is_none() {
                            own.world.drain().unwrap();
                            let all = own.all.clone();
                            own.world.barrier(&all).unwrap();
                        }
                        result
                    }));
                    baton.leave(rank, outcome.is_err());
                    outcome.unwrap_or_else(|panic| resume_unwind(panic))
                })
            })
            .collect();
        // The rank that failed first has the reason; the others failed because of it.
        let outcomes: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
        let mut results = Vec::new();
        for outcome in outcomes {
            match outcome {
                Ok(result) => results.push(result),
                Err(panic) => resume_unwind(panic),
            }
        }
        results
    })
}

/// A buffer of 64-bit numbers.
pub fn buffer(numbers: &mut [u64]) -> Buffer {
    // SAFETY: tests keep the vector until the operation is over.
    let base = unsafe { Base::new(numbers.as_mut_ptr().cast()) };
    Buffer { base, count: numbers.len(), datatype: Rc::new(Datatype::of(Basic::Unsigned(8))) }
}

/// Memory of bytes.
pub fn memory(bytes: &mut [u8]) -> Memory {
    // SAFETY: tests keep the vector until the operation is over.
    unsafe { Memory::new(bytes.as_mut_ptr(), bytes.len()) }
}
