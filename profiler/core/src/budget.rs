//! What untrusted files may cost: the memory that is held of them, and the work of reading them.
//!
//! A file of a few kilobytes can expand to gigabytes, and its tables can refer to each other so that reading them takes
//! hours. One [`Budget`] is for all files of a recording or a report. Each file has an [`Account`] of it, which all that is read of
//! the file charges. When the budget does not suffice, that file is left out, and everything else continues.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// What a budget allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that are held at one time: contents of files, decompressed sections, tables of symbols.
    pub bytes: u64,
    /// By how much the memory of this process may grow while files are held, in bytes. It includes what is worked out of
    /// debug information when an address is looked up, which is up to fifty times what it is worked out of.
    pub growth_bytes: u64,
    /// Units of work for all files together. A unit is a number that is read, or eight bytes that are decompressed: some 3 to
    /// 5 ns, and at most 50 ns of a file that was made to take long.
    pub work: u64,
}

/// For names.
pub const NAMES: Limits = Limits { bytes: 256 << 20, growth_bytes: 320 << 20, work: 200_000_000 };
/// For unwind tables, which stay while a recording runs.
pub const TABLES: Limits = Limits { bytes: 96 << 20, growth_bytes: u64::MAX, work: 1_000_000_000 };
/// Work that an account takes from its budget at once. Between two of these the process's memory is not looked up.
const WORK_AT_ONCE: u64 = 16 << 10;
/// The longest that a unit of work takes, in nanoseconds.
const NS_PER_UNIT: u64 = 50;
/// Bytes that are decompressed as one unit of work.
const DECOMPRESSED_PER_UNIT: u64 = 8;

/// What this process uses: functions that are called often.
#[derive(Debug, Clone, Copy)]
pub struct Meters {
    /// Its memory, in bytes.
    pub memory: fn() -> u64,
    /// CPU time of this thread, in nanoseconds.
    pub cpu_ns: fn() -> u64,
}

impl Meters {
    /// They show nothing: only what is counted has a limit.
    pub const NONE: Meters = Meters { memory: || 0, cpu_ns: || 0 };
}

/// What all files of a recording or a report may cost together. Copies share it.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    meters: Meters,
    held: AtomicU64,
    work_left: AtomicU64,
    /// The memory of the process when nothing was held yet.
    memory_before: AtomicU64,
}

impl Default for Budget {
    /// For names, by what is counted alone.
    fn default() -> Budget {
        Budget::new(NAMES, Meters::NONE)
    }
}

/// Why a file is left out, as a clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// It needs so many bytes more than are left.
    Bytes {
        /// What it would hold.
        needed: u64,
        /// What may be held.
        max: u64,
    },
    /// What was worked out of it needs more memory.
    Memory {
        /// By how much the process may grow.
        max: u64,
    },
    /// Reading it takes too long.
    Work,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        match *self {
            Over::Bytes { needed, max } => {
                write!(
                    f,
                    "it expands to {} MiB, more than the {} MiB that may be held of all files",
                    mib(needed),
                    mib(max)
                )
            }
            Over::Memory { max } => write!(f, "what it describes needs more than {} MiB of memory", mib(max)),
            Over::Work => write!(f, "reading it takes longer than all files may take together"),
        }
    }
}

impl Budget {
    /// A budget with these limits.
    pub fn new(limits: Limits, meters: Meters) -> Budget {
        Budget(Arc::new(Shared {
            limits,
            meters,
            held: AtomicU64::new(0),
            work_left: AtomicU64::new(limits.work),
            memory_before: AtomicU64::new((meters.memory)()),
        }))
    }

    /// An account for a file. What it holds is released when its last copy is dropped.
    pub fn account(&self) -> Account {
        if self.0.held.load(Relaxed) == 0 {
            self.0.memory_before.store((self.0.meters.memory)(), Relaxed);
        }
        let (held, work) = (AtomicU64::new(0), AtomicU64::new(0));
        Account(Arc::new(Charged { budget: self.clone(), held, work, over: OnceLock::new() }))
    }

    /// As much work again as at the start, for what runs without an end. A file that was too much stays left out.
    pub fn renew(&self) {
        self.0.work_left.store(self.0.limits.work, Relaxed);
    }

    /// Bytes that are held of all files.
    pub fn held(&self) -> u64 {
        self.0.held.load(Relaxed)
    }
}

/// What one file has cost so far. Copies share it.
#[derive(Clone)]
pub struct Account(Arc<Charged>);

struct Charged {
    budget: Budget,
    held: AtomicU64,
    /// Work that was taken from the budget and is not done yet.
    work: AtomicU64,
    over: OnceLock<Over>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an account with {} bytes", self.0.held.load(Relaxed))
    }
}

impl Account {
    /// An account of a budget of its own, for a file that is read alone.
    pub fn alone() -> Account {
        Budget::default().account()
    }

    /// An account of the same budget, for another file.
    pub(crate) fn sibling(&self) -> Account {
        self.0.budget.account()
    }

    /// The limit that ended the reading of the file; `None` before.
    pub fn over(&self) -> Option<Over> {
        self.0.over.get().copied()
    }

    fn fail(&self, over: Over) -> Over {
        *self.0.over.get_or_init(|| over)
    }

    /// Takes note of bytes that are going to be held. Call it before they are allocated.
    pub(crate) fn hold(&self, bytes: u64) -> Result<(), Over> {
        let (shared, max) = (&self.0.budget.0, self.0.budget.0.limits.bytes);
        let add = |held: u64| held.checked_add(bytes).filter(|held| *held <= max);
        match shared.held.fetch_update(Relaxed, Relaxed, add) {
            Ok(_) => {
                self.0.held.fetch_add(bytes, Relaxed);
                Ok(())
            }
            Err(held) => Err(self.fail(Over::Bytes { needed: held.saturating_add(bytes), max })),
        }
    }

    /// Whether so many bytes could be held now; nothing changes.
    pub(crate) fn fits(&self, bytes: u64) -> Result<(), Over> {
        let shared = &self.0.budget.0;
        let (needed, max) = (shared.held.load(Relaxed).saturating_add(bytes), shared.limits.bytes);
        if needed <= max { Ok(()) } else { Err(Over::Bytes { needed, max }) }
    }

    /// They are not held any more.
    pub(crate) fn release(&self, bytes: u64) {
        self.0.held.fetch_sub(bytes, Relaxed);
        self.0.budget.0.held.fetch_sub(bytes, Relaxed);
    }

    /// Takes note of units of work. Fails from the first time on that there is none left.
    ///
    /// Two threads that read the same file at the same time may lose a unit; so the count costs nothing.
    #[inline]
    pub(crate) fn work(&self, units: u64) -> Result<(), Over> {
        let left = self.0.work.load(Relaxed);
        match left.checked_sub(units) {
            Some(left) => {
                self.0.work.store(left, Relaxed);
                Ok(())
            }
            None => self.more_work(units),
        }
    }

    #[cold]
    fn more_work(&self, units: u64) -> Result<(), Over> {
        if let Some(over) = self.over() {
            return Err(over);
        }
        let shared = &self.0.budget.0;
        let wanted = units.saturating_add(WORK_AT_ONCE);
        let take = |left: u64| left.checked_sub(wanted);
        if shared.work_left.fetch_update(Relaxed, Relaxed, take).is_err() {
            return Err(self.fail(Over::Work));
        }
        let max = shared.limits.growth_bytes;
        if (shared.meters.memory)() > shared.memory_before.load(Relaxed).saturating_add(max) {
            return Err(self.fail(Over::Memory { max }));
        }
        self.0.work.fetch_add(WORK_AT_ONCE, Relaxed);
        Ok(())
    }

    /// Does something of which not every step is counted, and takes note of the CPU time that it takes.
    pub(crate) fn timed<T>(&self, action: impl FnOnce() -> T) -> T {
        let cpu_ns = self.0.budget.0.meters.cpu_ns;
        let before = cpu_ns();
        let result = action();
        // If that was too much, the next step finds out.
        let _ = self.work(cpu_ns().saturating_sub(before) / NS_PER_UNIT);
        result
    }

    /// Takes note of bytes that are going to be decompressed and held.
    pub(crate) fn decompress(&self, bytes: u64) -> Result<(), Over> {
        self.hold(bytes)?;
        self.work(bytes / DECOMPRESSED_PER_UNIT)
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.budget.0.held.fetch_sub(*self.held.get_mut(), Relaxed);
        self.budget.0.work_left.fetch_add(*self.work.get_mut(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits = Limits { bytes: 100, growth_bytes: 1000, work: 3 * WORK_AT_ONCE };

    #[test]
    fn what_is_held_is_counted_over_all_files_and_released_with_them() {
        let budget = Budget::new(SMALL, Meters::NONE);
        let (a, b) = (budget.account(), budget.account());
        assert_eq!((a.hold(60), b.hold(30)), (Ok(()), Ok(())));
        assert_eq!(a.hold(11), Err(Over::Bytes { needed: 101, max: 100 }));
        assert_eq!(a.hold(u64::MAX), Err(Over::Bytes { needed: 101, max: 100 }), "the first reason stays");
        assert_eq!(b.over(), None);
        let copy = b.clone();
        drop(b);
        assert_eq!(budget.held(), 90);
        copy.release(10);
        drop(copy);
        assert_eq!(budget.held(), 60);
        drop(a);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn work_ends_for_all_files_together() {
        let budget = Budget::new(SMALL, Meters::NONE);
        let a = budget.account();
        let done = std::iter::repeat_with(|| a.work(1)).take_while(Result::is_ok).count() as u64;
        assert_eq!((done, a.over()), (2 * (WORK_AT_ONCE + 1), Some(Over::Work)));
        assert_eq!(budget.account().work(WORK_AT_ONCE), Err(Over::Work));
        // What an account took and did not need is there for the next one.
        let budget = Budget::new(SMALL, Meters::NONE);
        (0..100).for_each(|_| assert_eq!(budget.account().work(1), Ok(())));
        let a = budget.account();
        assert_eq!((a.work(u64::MAX), a.work(0)), (Err(Over::Work), Ok(())));
        budget.renew();
        assert_eq!((a.work(1), budget.account().work(2 * WORK_AT_ONCE)), (Err(Over::Work), Ok(())));
    }

    #[test]
    fn memory_that_grows_without_being_counted_ends_it() {
        static MEMORY: AtomicU64 = AtomicU64::new(0);
        let budget = Budget::new(SMALL, Meters { memory: || MEMORY.load(Relaxed), ..Meters::NONE });
        MEMORY.store(5000, Relaxed);
        let a = budget.account();
        MEMORY.store(6000, Relaxed);
        (0..WORK_AT_ONCE + 1).for_each(|_| assert_eq!(a.work(1), Ok(())));
        MEMORY.store(6001, Relaxed);
        assert_eq!((0..=WORK_AT_ONCE).find_map(|_| a.work(1).err()), Some(Over::Memory { max: 1000 }));
    }

    #[test]
    fn steps_that_are_not_counted_are_charged_by_their_time() {
        thread_local!(static CPU_NS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
        let budget = Budget::new(SMALL, Meters { cpu_ns: || CPU_NS.get(), ..Meters::NONE });
        let a = budget.account();
        a.timed(|| CPU_NS.set(CPU_NS.get() + NS_PER_UNIT * WORK_AT_ONCE));
        assert_eq!(a.over(), None);
        a.timed(|| CPU_NS.set(CPU_NS.get() + NS_PER_UNIT * WORK_AT_ONCE * 3));
        assert_eq!(a.over(), Some(Over::Work));
    }

    #[test]
    fn a_reason_names_both_sizes() {
        let text = Over::Bytes { needed: 44 << 30, max: 256 << 20 }.to_string();
        assert_eq!(text, "it expands to 45056 MiB, more than the 256 MiB that may be held of all files");
    }
}
