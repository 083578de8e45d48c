//! The memory of a Linux guest, from which its kernel, its processes and their files are read.

use std::ops::Range;
use std::sync::OnceLock;

use fastrand::Rng;
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::linux::btf::Btf;
use glass_profiler_core::linux::inferred::Inferred;
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::linux::page_cache::{CachedFile, PageCache};
use glass_profiler_core::linux::space::Space;
use glass_profiler_core::linux::{current, files, mappings, modules, tasks, vdso};
use glass_profiler_core::memory::Physical;

use super::Target;
use crate::corpus::linux;
use crate::mutate;

/// Physical memory from the address 0 on.
struct Memory<'a>(&'a [u8]);

impl Physical for Memory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let found = usize::try_from(address).ok().and_then(|at| self.0.get(at..)?.get(..into.len()));
        found.map(|found| into.copy_from_slice(found)).is_some()
    }
}

impl Memory<'_> {
    fn ranges(&self) -> Vec<Range<u64>> {
        std::iter::once(0..self.0.len() as u64).collect()
    }
}

/// Where the structures have what is read of them.
struct Offsets {
    tasks: tasks::Offsets,
    modules: modules::Offsets,
    mappings: mappings::Offsets,
    files: files::Offsets,
}

impl Offsets {
    fn of(types: &Btf<'_>) -> Option<Offsets> {
        Some(Offsets {
            tasks: tasks::Offsets::of(types).ok()?,
            modules: modules::Offsets::of(types).ok()?,
            mappings: mappings::Offsets::of(types).ok()?,
            files: files::Offsets::of(types).ok()?,
        })
    }
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    symbols: usize,
    tasks: usize,
    modules: usize,
    mappings: usize,
    paths: usize,
    pages: usize,
}

/// A kernel before its memory was changed, and its types.
fn known() -> &'static (Kernel, Vec<u8>) {
    static KNOWN: OnceLock<(Kernel, Vec<u8>)> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let memory = Memory(&linux::memories()[1]);
        let kernel = Kernel::find(&memory, &memory.ranges()).expect("the example is a kernel");
        let types = kernel.types(&memory).expect("the example describes its types");
        (kernel, types)
    })
}

/// Reads all that there is of a kernel. Its lists are bounded, and what is in them is in order.
fn read(memory: &Memory<'_>, kernel: &Kernel, types: &[u8]) -> Found {
    let mut found = Found { symbols: kernel.symbols.symbols().count(), ..Found::default() };
    assert!(kernel.release().len() <= kernel.banner.len());
    let Some(types) = Btf::parse(types, None) else { return found };
    let Some(offsets) = Offsets::of(&types) else { return found };
    let space = kernel.space(memory);
    assert!(current::slots(kernel, memory, &types).len() <= 8192);
    let _ = (current::direct_map(kernel, memory), kernel.is_there(memory));
    // The same as if there were no types: what may be right of it is not known.
    let _ = Inferred::of(kernel, memory);
    found.modules = modules::list(kernel, memory, &offsets.modules).map_or(0, |modules| modules.len());
    let _ = vdso::vdso(&space, &types, |name| kernel.symbols.address(name));
    let listed = tasks::list(kernel, memory, &offsets.tasks).unwrap_or_default().tasks;
    found.tasks = listed.len();
    let pages = PageCache::of(&types, kernel.paging, kernel.value(memory, "vmemmap_base")).ok();
    for task in listed.iter().take(16) {
        let _ = task.namespace_tids(&space, &offsets.tasks);
        let _ = task.cgroup(&space, &offsets.tasks);
    }
    let [mm, file] = linux::KNOWN;
    let addresses = listed.iter().map(|task| task.mm).filter(|mm| *mm != 0).take(4).chain([mm]);
    for mm in addresses {
        let listed = mappings::list(&space, mm, &offsets.mappings).unwrap_or_default();
        assert!(listed.is_sorted_by(|one, next| one.start < one.end && one.end <= next.start));
        let _ = mappings::address_space(&space, mm, &offsets.mappings, kernel.paging);
        found.mappings += listed.len();
        for at in listed.iter().filter_map(|mapping| mapping.file).take(8) {
            of_file(memory, (&space, at), &offsets, pages, &mut found);
        }
    }
    of_file(memory, (&space, file), &offsets, pages, &mut found);
    found
}

/// Reads a file: its path, and the pages that are there.
fn of_file(
    memory: &Memory<'_>,
    (space, at): (&Space<'_>, u64),
    offsets: &Offsets,
    pages: Option<PageCache>,
    found: &mut Found,
) {
    let Some(file) = files::file(space, at, &offsets.files) else { return };
    found.paths += usize::from(file.path.is_some());
    let (Some(contents), Some(pages)) = (file.contents, pages) else { return };
    let cached = CachedFile::new(Memory(memory.0), pages, contents, file.bytes);
    assert_eq!(cached.bytes(), file.bytes);
    for page in 0..4 {
        found.pages += usize::from(cached.read_at(page * 4096, &mut [0; 4096]));
    }
    assert!(!cached.read_at(file.bytes, &mut [0]), "there is nothing behind the end of a file");
}

/// Memories; the kernel is searched in them, and what is known of one before its memory was changed is read from them too.
pub struct Linux;

impl Target for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        linux::memories().to_vec()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        // Most of the memory has no meaning: pages with structures are changed, their words replaced by others of them.
        if rng.u8(..4) == 0 {
            return mutate::plain(bytes, corpus, rng);
        }
        const STRUCTURES: Range<usize> = 0x1000..0xa000;
        let words = |bytes: &[u8]| {
            let words = bytes.get(STRUCTURES).unwrap_or_default().as_chunks::<8>().0.iter();
            words.map(|word| u64::from_le_bytes(*word)).filter(|word| *word != 0).collect::<Vec<u64>>()
        };
        let known = words(bytes);
        for _ in 0..rng.usize(1..8) {
            let at = rng.usize(STRUCTURES.start / 8..STRUCTURES.end / 8) * 8;
            let other = if known.is_empty() { 0 } else { *mutate::pick(rng, &known) };
            let word = match rng.u8(..4) {
                0 => mutate::interesting(rng),
                1 => other.wrapping_add(rng.u64(..32)),
                2 => other ^ 1 << rng.u32(..64),
                _ => other,
            };
            if let Some(place) = bytes.get_mut(at..at + 8) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    fn run(&self, input: &[u8]) {
        let memory = Memory(input);
        if let Some(kernel) = Kernel::find(&memory, &memory.ranges()) {
            let types = kernel.types(&memory).unwrap_or_default();
            read(&memory, &kernel, &types);
        }
        let (kernel, types) = known();
        read(&memory, kernel, types);
    }

    fn cost(&self) -> u64 {
        20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_of_the_examples_are_found() {
        for memory in linux::memories() {
            let memory = Memory(memory);
            let kernel = Kernel::find(&memory, &memory.ranges()).expect("it is a kernel");
            let types = kernel.types(&memory).expect("it describes its types");
            let found = read(&memory, &kernel, &types);
            // The process and its thread have the same two mappings, of one file with one page, and all is read once more.
            let expected = Found { symbols: 4213, tasks: 2, modules: 1, mappings: 6, paths: 7, pages: 7 };
            assert_eq!(found, expected);
        }
    }
}
