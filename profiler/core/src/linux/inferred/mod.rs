//! Where a kernel has what is read of it if it describes no types (`CONFIG_DEBUG_INFO_BTF`): inferred from what the structures hold.
//!
//! Nothing is known of such a kernel but the names of its functions, its page tables, and what must be true of each structure whatever its layout: the list
//! of tasks comes back to itself, the first three have the IDs 0, 1 and 2, a stack has a magic number at its end, a node of a tree has the address of the
//! tree. Each rule must leave one place. If it leaves none, or several, the member is refused, and with it all: a wrong offset would show wrong tasks.
//!
//! The guest runs meanwhile and may have written anything, so all reads are counted, and what was read of a task that ended in that moment is outvoted.

mod addresses;
mod cache;
mod described;
mod files;
mod guest;
mod mappings;
mod pids;
mod running;
mod tasks;

use std::collections::HashMap;
use std::fmt;

use super::kernel::Kernel;
use super::structures::{Field, Layout};
use crate::memory::Physical;
use guest::Guest;

/// How often a guest is read that changes meanwhile.
const ATTEMPTS: u32 = 4;
/// The least votes for a place: fewer may be by chance.
const VOTES_MIN: usize = 3;

/// What could not be inferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The member, or the symbol.
    pub what: &'static str,
    /// How many places it may be at.
    pub candidates: usize,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.candidates {
            0 => write!(f, "where it has {} was not found", self.what),
            count => write!(f, "it may have {} in {count} places", self.what),
        }
    }
}

/// The only one of these places.
fn only<T>(what: &'static str, found: impl IntoIterator<Item = T>) -> Result<T, Refusal> {
    let mut found: Vec<T> = found.into_iter().collect();
    match found.len() {
        1 => found.pop().ok_or(Refusal { what, candidates: 0 }),
        candidates => Err(Refusal { what, candidates }),
    }
}

/// The one place that has at least so many votes, and more than twice as many as any other.
fn elected<T: Eq + std::hash::Hash>(
    what: &'static str,
    least: usize,
    votes: impl IntoIterator<Item = T>,
) -> Result<T, Refusal> {
    let mut counts: HashMap<T, usize> = HashMap::new();
    votes.into_iter().for_each(|vote| *counts.entry(vote).or_default() += 1);
    let most = counts.values().copied().max().unwrap_or(0);
    let is_place = |count: usize| count * 2 > most && count >= least.max(VOTES_MIN);
    only(what, counts.into_iter().filter(|(_, count)| is_place(*count)).map(|(place, _)| place))
}

/// The layout of a kernel's structures, as far as something is read of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inferred {
    fields: HashMap<&'static str, Field>,
    sizes: HashMap<&'static str, u32>,
    enumerators: HashMap<&'static str, u32>,
    addresses: HashMap<&'static str, u64>,
    values: HashMap<&'static str, u64>,
    /// Why it is not known where pages of files are, if it is not.
    without_pages: Option<Refusal>,
}

impl Inferred {
    /// That of a kernel which runs meanwhile. Where pages of files are may be [not known](Inferred::without_pages).
    ///
    /// # Errors
    /// The first member of which there is not exactly one place where it may be.
    pub fn of(kernel: &Kernel, memory: &dyn Physical) -> Result<Inferred, Refusal> {
        let mut result = Inferred::once(kernel, memory);
        for _ in 1..ATTEMPTS {
            if result.as_ref().is_ok_and(|found| found.without_pages.is_none()) {
                break;
            }
            let next = Inferred::once(kernel, memory);
            if next.is_ok() || result.is_err() {
                result = next;
            }
        }
        result
    }

    /// Why it is not known where pages of files are, if it is not.
    pub fn without_pages(&self) -> Option<Refusal> {
        self.without_pages
    }

    /// Where data is of a kernel of AArch64 that describes its types.
    ///
    /// # Errors
    /// The first symbol of which there is not exactly one place where it may be.
    pub fn of_described(kernel: &Kernel, memory: &dyn Physical, types: &dyn Layout) -> Result<Inferred, Refusal> {
        described::infer(&Guest::new(kernel, memory), memory, types)
    }

    fn once(kernel: &Kernel, memory: &dyn Physical) -> Result<Inferred, Refusal> {
        let guest = Guest::new(kernel, memory);
        let mut found = Inferred::default();
        let tasks = tasks::infer(&guest, &mut found)?;
        addresses::infer(&guest, &tasks, &mut found)?;
        pids::infer(&guest, &tasks, &mut found)?;
        running::infer(&guest, &tasks, &mut found)?;
        let spaces = mappings::infer(&guest, &tasks, &mut found)?;
        let files = files::infer(&guest, &spaces, &mut found)?;
        // Without pages there are still tasks, and their stacks.
        let mut with_pages = found.clone();
        Ok(match cache::infer(&guest, &files, &spaces, &mut with_pages) {
            Ok(()) => with_pages,
            Err(refusal) => Inferred { without_pages: Some(refusal), ..found },
        })
    }

    fn add(&mut self, path: &'static str, at: u32, bytes: u32) {
        self.fields.insert(path, Field { at, bytes });
    }

    /// Where a member is that has been found.
    fn at(&self, path: &str) -> u64 {
        self.fields.get(path).map_or(0, |field| field.at.into())
    }

    /// All members: their paths, such as `task_struct.pid`, and places.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, Field)> {
        self.fields.iter().map(|(path, field)| (*path, *field))
    }

    /// Sizes of structures.
    pub fn sizes(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.sizes.iter().map(|(name, bytes)| (*name, *bytes))
    }

    /// Values of names of enumerations: `pageflags.PG_uptodate`.
    pub fn enumerators(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.enumerators.iter().map(|(path, value)| (*path, *value))
    }

    /// Where data with a name is.
    pub(super) fn address(&self, name: &str) -> Option<u64> {
        self.addresses.get(name).copied()
    }

    /// What data with a name holds.
    pub(super) fn value(&self, name: &str) -> Option<u64> {
        self.values.get(name).copied()
    }

    /// Data by its names, and what is there.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.values.iter().map(|(name, value)| (*name, *value))
    }

    /// Data by its names, and where it is.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.addresses.iter().map(|(name, at)| (*name, *at))
    }
}

impl Layout for Inferred {
    fn field(&self, structure: &str, path: &str) -> Option<Field> {
        self.fields.get(format!("{structure}.{path}").as_str()).copied()
    }

    fn bytes_of(&self, structure: &str) -> Option<u32> {
        self.sizes.get(structure).copied()
    }

    fn enumerator(&self, enumeration: &str, name: &str) -> Option<u32> {
        self.enumerators.get(format!("{enumeration}.{name}").as_str()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{BYTES, DIRECT, Memory, PAGING};
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn one_place_or_none() {
        assert_eq!(only("a", [7]), Ok(7));
        assert_eq!(only::<u32>("a", []), Err(Refusal { what: "a", candidates: 0 }));
        assert_eq!(only("a", [7, 7, 8]), Err(Refusal { what: "a", candidates: 3 }));
        // A vote of a task that has ended meanwhile does not count; one of half of them does.
        assert_eq!(elected("a", 3, [1, 1, 2, 1, 1, 1]), Ok(1));
        assert_eq!(elected("a", 6, [1, 1, 2, 1, 1, 1]), Err(Refusal { what: "a", candidates: 0 }));
        assert_eq!(elected("a", 2, [1, 1, 2, 2, 1, 2]), Err(Refusal { what: "a", candidates: 2 }));
        assert_eq!(elected("a", 1, [1, 1]), Err(Refusal { what: "a", candidates: 0 }));
        let said = [0, 2].map(|candidates| Refusal { what: "task_struct.pid", candidates }.to_string());
        assert_eq!(said[0], "where it has task_struct.pid was not found");
        assert_eq!(said[1], "it may have task_struct.pid in 2 places");
    }

    /// Where a task of the example is: a list of twelve, each of which has its name and its node of the list.
    fn tasks(memory: &Memory, from_name: u64) {
        let name = |task: u64| DIRECT + 0x2_0000 + task * 0x4000;
        for task in 0..12 {
            memory.bytes(name(task), if task == 0 { b"swapper/0\0" } else { b"another\0" });
            memory.set(name(task) - from_name, name((task + 1) % 12) - from_name);
            memory.set(name((task + 1) % 12) - from_name + 8, name(task) - from_name);
        }
    }

    #[test]
    fn a_list_is_not_enough() {
        let memory = Memory::new();
        let infer = || Inferred::of(&Kernel::example(PAGING, DIRECT), &memory);
        assert_eq!(infer().unwrap_err().what, "task_struct.tasks");
        tasks(&memory, 0x100);
        assert_eq!(infer().unwrap_err().what, "task_struct.real_parent");
        // A second list in the same tasks.
        tasks(&memory, 0x200);
        assert_eq!(infer().unwrap_err(), Refusal { what: "task_struct.tasks", candidates: 2 });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_memory_is_survived(random in proptest::collection::vec(any::<u64>(), 1..40), start in 0_u64..8) {
            let memory = Memory::new();
            memory.fill(DIRECT + start * 0x2_0000..DIRECT + (start + 1) * 0x2_0000, &random);
            tasks(&memory, 0x100);
            memory.fill(DIRECT + BYTES / 2..DIRECT + BYTES / 2 + 0x8000, &random);
            let _ = Inferred::of(&Kernel::example(PAGING, DIRECT), &memory);
            prop_assert!(memory.reads.load(Ordering::Relaxed) < 4 << 20);
        }
    }
}
