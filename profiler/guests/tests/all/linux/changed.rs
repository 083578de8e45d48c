//! A thousand dumps of a Linux guest of which words were changed, each in other places: whatever they hold, reading them ends soon, takes little
//! memory, and is no panic. More: `GLASS_DUMP_CASES=100000`. It has found a list of modules that led back to itself, of which none could be read
//! (2026-11-28): to read it had no end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::linux::btf::Btf;
use glass_profiler_core::linux::inferred::Inferred;
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::linux::page_cache::{CachedFile, PageCache};
use glass_profiler_core::linux::structures::Layout;
use glass_profiler_core::linux::{current, files, mappings, modules, sleeping, tasks, vdso};
use glass_profiler_core::memory::Physical;
use glass_profiler_guests::memory::Ram;
use glass_tests::programs::{is_long, number};

const CASES: u64 = 1000;
const CASES_VARIABLE: &str = "GLASS_DUMP_CASES";
/// One of so many cases is read as if nothing were known of its kernel, and one of so many as if the kernel described nothing: both take up to a second.
/// Long tests have more of the latter.
const FIND_EVERY: u64 = 101;
const INFER_EVERY: u64 = 251;
const INFER_EVERY_IN_LONG: u64 = 5;
/// One of so many words is changed; of the kernel's structures some ten thousand are read.
const RARITIES: [u64; 4] = [50, 500, 2000, 10_000];
/// Where a kernel is searched, and its members, more is read: so many times fewer are changed.
const RARER: u64 = 500;
/// The most reads that a case takes: an unchanged dump takes some ten thousand.
const READS_MAX: u64 = 1 << 20;
/// The most reads of four attempts to infer members, each of eight million walks through five tables.
const READS_TO_INFER_MAX: u64 = 4 * 6 * (8 << 20);
/// The most memory that a case takes.
const BYTES_MAX: u64 = 512 << 20;
/// After so many reads the memory is looked at.
const READS_BETWEEN: u64 = 1 << 10;
const PAGE_BYTES: u64 = 4096;
/// Processes of which the mappings are read, files of each, and pages of each file.
const PROCESSES_MAX: usize = 12;
const FILES_MAX: usize = 6;
const PAGES: u64 = 4;

/// A dump of a guest that is stopped, with some words changed. A word always has the same value.
struct Changed<'a> {
    ram: &'a Ram,
    seed: u64,
    rarity: u64,
    reads: AtomicU64,
    /// The most memory that this process had.
    bytes: AtomicU64,
    /// Pointers of the kernel that were read of the dump before it was changed.
    pointers: &'a [u64],
    /// Those that are read of this one.
    read: Mutex<Vec<u64>>,
}

/// A number that shows nothing of the one that it is made of (the finalizer of splitmix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Bytes of memory of this process that are of no file.
fn own_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

impl Changed<'_> {
    /// The word at an address, if it is changed.
    fn word(&self, address: u64) -> Option<u64> {
        let random = mixed(self.seed ^ address);
        if !random.is_multiple_of(self.rarity) {
            return None;
        }
        let choice = mixed(random);
        let mut was = [0; 8];
        let word = if self.ram.read(address, &mut was) { u64::from_le_bytes(was) } else { 0 };
        let other = self.pointers.get((choice >> 8) as usize % self.pointers.len().max(1));
        Some(match choice % 12 {
            0 => 0,
            1 => u64::MAX,
            2 => choice,
            // Pointers into the structure itself, and to its neighbours.
            3 => word & !0xfff | choice >> 52,
            4 => word.wrapping_add((choice >> 32 & 0x1ff) * 8).wrapping_sub(0x800),
            5 => word ^ 1 << (choice >> 58),
            // Small numbers, in both halves.
            6 => choice >> 40 & 0xff_0000_00ff,
            7 => word.rotate_left(32),
            // What another structure has, so that lists lead back or into another one.
            _ => *other.unwrap_or(&0),
        })
    }
}

impl Physical for Changed<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        assert!(reads < READS_TO_INFER_MAX, "the reads have no end");
        if reads.is_multiple_of(READS_BETWEEN) {
            self.bytes.fetch_max(own_bytes(), Ordering::Relaxed);
        }
        if !self.ram.read(address, into) {
            return false;
        }
        if self.pointers.is_empty() && into.len() < PAGE_BYTES as usize {
            let words = into.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            self.read.lock().unwrap().extend(words.filter(|word| word >> 56 == 0xff));
        }
        let end = address + into.len() as u64;
        for at in (address & !7..end).step_by(8) {
            for (place, byte) in (at..).zip(self.word(at).into_iter().flat_map(u64::to_le_bytes)) {
                if let Some(changed) = place.checked_sub(address).and_then(|index| into.get_mut(index as usize)) {
                    *changed = byte;
                }
            }
        }
        true
    }
}

/// How much was found.
#[derive(Debug, Default)]
struct Found {
    tasks: usize,
    stacks: usize,
    modules: usize,
    mappings: usize,
    files: usize,
    pages: usize,
}

/// Reads all that there is of a kernel.
fn read(memory: &Changed<'_>, kernel: &Kernel, types: &dyn Layout) -> Result<Found, String> {
    let space = kernel.space(memory);
    let of_tasks = tasks::Offsets::of(types)?;
    let of_mappings = mappings::Offsets::of(types)?;
    let of_files = files::Offsets::of(types)?;
    let of_stacks = sleeping::Offsets::of(types);
    let mut found = Found::default();
    let _ = current::slots(kernel, memory, types);
    let _ = vdso::vdso(&space, types, |name| kernel.address(name));
    let listed = modules::Offsets::of(types).ok().and_then(|offsets| modules::list(kernel, memory, &offsets));
    found.modules = listed.map_or(0, |modules| modules.len());
    let listed = tasks::list(kernel, memory, &of_tasks).unwrap_or_default().tasks;
    found.tasks = listed.len();
    for task in &listed {
        let _ = (task.namespace_tids(&space, &of_tasks), task.cgroup(&space, &of_tasks));
        let _ = tasks::Activity::read(&space, task.address, &of_tasks);
        let stack = of_stacks.copy(&space, task);
        found.stacks += usize::from(stack.and_then(|stack| of_stacks.registers(&space, task, &stack)).is_some());
    }
    let pages = PageCache::of(types, kernel.paging, kernel.value(memory, "vmemmap_base")).ok();
    for task in listed.iter().filter(|task| task.mm != 0).take(PROCESSES_MAX) {
        let listed = mappings::list(&space, task.mm, &of_mappings).unwrap_or_default();
        assert!(listed.is_sorted_by(|one, next| one.start < one.end && one.end <= next.start), "{listed:?}");
        let _ = mappings::address_space(&space, task.mm, &of_mappings, kernel.paging);
        found.mappings += listed.len();
        for at in listed.iter().filter_map(|mapping| mapping.file).take(FILES_MAX) {
            let Some(file) = files::file(&space, at, &of_files) else { continue };
            found.files += usize::from(file.path.is_some());
            let (Some(contents), Some(pages)) = (file.contents, pages) else { continue };
            let cached = CachedFile::new(memory, pages, contents, file.bytes);
            let is_read = |page: &u64| cached.read_at(page * PAGE_BYTES, &mut [0; PAGE_BYTES as usize]);
            found.pages += (0..PAGES).filter(is_read).count();
        }
    }
    Ok(found)
}

/// Reads such dumps of a guest that is stopped, whose kernel is known. Returns what came of it.
pub fn check(ram: &Ram, kernel: &Kernel, types: &dyn Layout) -> String {
    let cases = number(CASES_VARIABLE, CASES);
    let infer_every = if is_long() { INFER_EVERY_IN_LONG } else { INFER_EVERY };
    let dump = |seed: u64, rarity: u64, pointers| Changed {
        ram,
        seed: mixed(seed),
        rarity,
        reads: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        pointers,
        read: Mutex::default(),
    };
    let (before, unchanged) = (own_bytes(), dump(0, u64::MAX, &[]));
    let all = read(&unchanged, kernel, types).unwrap();
    assert!(all.tasks > 60 && all.stacks > 50 && all.files > 20 && all.pages > 20, "{all:?}");
    let pointers = unchanged.read.into_inner().unwrap();
    let (mut reads, mut bytes, mut tasks, mut kernels, mut inferred) = (unchanged.reads.into_inner(), 0, 0, 0, 0);
    for case in 1..=cases {
        let rarity = RARITIES[case as usize % RARITIES.len()];
        let memory = dump(case, rarity, &pointers);
        // The last line of a test that fails shows the case.
        print!("case {case} ");
        tasks += read(&memory, kernel, types).map_or(0, |found| found.tasks);
        let rarer = dump(case, rarity * RARER, &pointers);
        if case.is_multiple_of(FIND_EVERY)
            && let Some(other) = Kernel::find(&rarer, &ram.ranges())
        {
            kernels += 1;
            let types = other.types(&rarer).unwrap_or_default();
            let _ = Btf::parse(&types, None).map(|types| read(&rarer, &other, &types));
        }
        if case.is_multiple_of(infer_every) {
            let result = match kernel.architecture() {
                Architecture::X86_64 => Inferred::of(kernel, &rarer),
                Architecture::Aarch64 => Inferred::of_described(kernel, &rarer, types),
            };
            inferred += u64::from(result.is_ok());
        }
        let count = memory.reads.load(Ordering::Relaxed);
        assert!(count < READS_MAX, "case {case}: {count} reads");
        reads = reads.max(count);
        let most = memory.bytes.into_inner().max(rarer.bytes.into_inner());
        bytes = bytes.max(most.saturating_sub(before));
        assert!(bytes < BYTES_MAX, "case {case}: {bytes} bytes of memory");
    }
    println!();
    // Changes are such that much is found nevertheless, and not all.
    assert!(tasks > 0 && (tasks as u64) < all.tasks as u64 * cases, "{tasks} tasks");
    format!(
        "{cases} changed dumps: {} tasks of {} on average, {kernels} kernels found, {inferred} inferred, at most {reads} reads and {} MiB",
        tasks as u64 / cases.max(1),
        all.tasks,
        bytes >> 20
    )
}
