//! The mappings of a process, from its `mm_struct`: a maple tree since Linux 6.1, a list before.

use super::maple;
use super::space::Space;
use super::structures::{Fields, Layout, offset, pointer};
use crate::arch::Paging;

/// The most mappings of a process; `vm.max_map_count` is 65,530 unless an administrator raised it, and 1,048,576 in some distributions,
/// which no program is known to need.
pub const MAPPINGS_MAX: usize = 70_000;
/// How often mappings are read that change meanwhile.
const ATTEMPTS: usize = 3;

/// A mapping can be read.
pub const READ: u64 = 1;
/// A mapping can be written.
pub const WRITE: u64 = 2;
/// A mapping can be executed.
pub const EXECUTE: u64 = 4;
/// A mapping is shared, as `/proc/PID/maps` shows it (`VM_MAYSHARE`; `VM_SHARED` is 8).
pub const SHARED: u64 = 0x80;

/// A mapping (`vm_area_struct`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Vma {
    /// Its first address.
    pub start: u64,
    /// The address behind its last byte.
    pub end: u64,
    /// [`READ`], [`WRITE`], [`EXECUTE`], [`SHARED`] and others.
    pub flags: u64,
    /// Where in the file it starts, in pages. Without a file it is a number without a meaning.
    pub page_offset: u64,
    /// The address of its `struct file`.
    pub file: Option<u64>,
}

/// What selects a process's memory, and what names parts of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressSpace {
    /// Its page tables.
    pub paging: Paging,
    /// The address of the `struct file` of its program.
    pub program: Option<u64>,
    /// Where its vDSO is, in its own memory; 0 if it has none.
    pub vdso: u64,
}

/// The mappings changed while they were read, or there are none at this address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torn;

#[derive(Debug, Clone, Copy)]
enum Order {
    /// The tree is so far in `mm_struct`.
    Tree(u32, maple::Offsets),
    /// The pointer to the first is so far in `mm_struct`; those to the next and to the one before it.
    List(u32, Fields<2>),
}

/// Where the structures have what is read of them.
#[derive(Debug, Clone, Copy)]
pub struct Offsets {
    order: Order,
    /// Start, end, owner, flags, offset in pages, file.
    vma: Fields<6>,
    /// Page tables, program, vDSO.
    mm: Fields<3>,
}

impl Offsets {
    /// Those of a kernel; the error is a member that its types lack.
    pub fn of(types: &dyn Layout) -> Result<Offsets, &'static str> {
        let order = match offset(types, "mm_struct.mm_mt") {
            Ok(tree) => Order::Tree(tree, maple::Offsets::of(types)?),
            Err(_) => {
                let links = Fields::of(types, ["vm_area_struct.vm_next", "vm_area_struct.vm_prev"])?;
                Order::List(offset(types, "mm_struct.mmap")?, links)
            }
        };
        let vma = [
            "vm_area_struct.vm_start",
            "vm_area_struct.vm_end",
            "vm_area_struct.vm_mm",
            "vm_area_struct.vm_flags",
            "vm_area_struct.vm_pgoff",
            "vm_area_struct.vm_file",
        ];
        let mm = ["mm_struct.pgd", "mm_struct.exe_file", "mm_struct.context.vdso"];
        Ok(Offsets { order, vma: Fields::of(types, vma)?, mm: Fields::of(types, mm)? })
    }
}

/// The mapping at an address of the kernel, if it belongs to `mm`.
fn vma(space: &Space<'_>, address: u64, mm: u64, offsets: &Offsets) -> Option<Vma> {
    let [start, end, owner, flags, page_offset, file] = offsets.vma.read(space, pointer(address, 8)?)?;
    let file = if file == 0 { None } else { Some(pointer(file, 8)?) };
    (owner == mm && start < end).then_some(Vma { start, end, flags, page_offset, file })
}

fn of_tree(space: &Space<'_>, mm: u64, tree: u64, parts: &maple::Offsets, offsets: &Offsets) -> Option<Vec<Vma>> {
    let entries = maple::entries(space, tree, parts, MAPPINGS_MAX)?;
    let found = entries.into_iter().map(|entry| {
        let vma = vma(space, entry.value, mm, offsets)?;
        // The tree's ranges are sorted, so the mappings are.
        (vma.start == entry.first && vma.end - 1 == entry.last).then_some(vma)
    });
    found.collect()
}

fn of_list(space: &Space<'_>, mm: u64, first: u64, links: &Fields<2>, offsets: &Offsets) -> Option<Vec<Vma>> {
    let (mut found, mut before, mut at, mut end) = (Vec::new(), 0, space.word(first)?, 0);
    while at != 0 {
        let vma = vma(space, at, mm, offsets)?;
        let [next, previous] = links.read(space, at)?;
        // Sorted, so a list that comes back to itself ends here too.
        if vma.start < end || previous != before || found.len() == MAPPINGS_MAX {
            return None;
        }
        found.push(vma);
        (before, at, end) = (at, next, vma.end);
    }
    Some(found)
}

/// The mappings of the `mm_struct` at an address of the kernel, sorted and disjoint, read once.
pub fn walk(space: &Space<'_>, mm: u64, offsets: &Offsets) -> Result<Vec<Vma>, Torn> {
    let found = pointer(mm, 8).and_then(|mm| match &offsets.order {
        Order::Tree(tree, parts) => of_tree(space, mm, mm.checked_add((*tree).into())?, parts, offsets),
        Order::List(first, links) => of_list(space, mm, mm.checked_add((*first).into())?, links, offsets),
    });
    found.ok_or(Torn)
}

/// The same, repeated a few times. `None` if the mappings changed each time, or if there is no `mm_struct` at this address.
#[must_use]
pub fn list(space: &Space<'_>, mm: u64, offsets: &Offsets) -> Option<Vec<Vma>> {
    // The structures are where the kernel has all memory, and stays mapped: only their contents have to be read again.
    (0..ATTEMPTS).find_map(|_| walk(space, mm, offsets).ok())
}

/// What selects the memory of the `mm_struct` at an address of the kernel, whose own paging has all but the first table.
#[must_use]
pub fn address_space(space: &Space<'_>, mm: u64, offsets: &Offsets, kernel: impl Into<Paging>) -> Option<AddressSpace> {
    let [tables, program, vdso] = offsets.mm.read(space, pointer(mm, 8)?)?;
    let root = space.physical(pointer(tables, 4096)?)?;
    Some(AddressSpace { paging: kernel.into().of_process(root), program: pointer(program, 8), vdso })
}

#[cfg(test)]
mod tests {
    use super::super::btf::Btf;
    use super::super::testing::{BYTES, DIRECT, Memory, PAGING, offsets, types};
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering;

    const MM: u64 = DIRECT + 0x1000;
    const ROOT: u64 = DIRECT + 0x2000;
    const FILE: u64 = DIRECT + 0x8000;
    const LEAF: u64 = 1;
    const RANGES_WITH_GAPS: u64 = 3;

    fn vma_at(index: u64) -> u64 {
        DIRECT + 0x4000 + index * 0x80
    }

    /// The mapping with a number: every third has a gap in front of it.
    fn example(index: u64) -> Vma {
        let start = 0x1_0000 + index * 0x3000;
        let end = if index % 3 == 2 { start + 0x2000 } else { start + 0x3000 };
        let file = index.is_multiple_of(2).then_some(FILE);
        Vma { start, end, flags: READ | index, page_offset: index * 5, file }
    }

    fn write(memory: &Memory, index: u64) {
        let vma = example(index);
        let words = [vma.start, vma.end, MM, 0, 0, vma.flags, vma.page_offset, vma.file.unwrap_or(0)];
        memory.words(vma_at(index), &words);
    }

    /// A node of a tree: the last key of each slot, and its value. The last pivot is left out.
    fn node(memory: &Memory, at: u64, parent: u64, kind: u64, entries: &[(u64, u64)]) -> u64 {
        memory.set(at, parent);
        let slots = if kind == RANGES_WITH_GAPS { 80 } else { 128 };
        for (slot, (last, value)) in (0..).zip(entries) {
            if slot + 1 < entries.len() as u64 {
                memory.set(at + 8 + slot * 8, *last);
            }
            memory.set(at + slots + slot * 8, *value);
        }
        at | kind << 3 | 4
    }

    /// A tree of two levels: a leaf with all slots in use, one with six mappings, and a gap up to the end.
    fn tree() -> Memory {
        let memory = Memory::new();
        let mut entries = vec![(example(0).start - 1, 0)];
        for index in 0..18 {
            write(&memory, index);
            entries.push((example(index).end - 1, vma_at(index)));
            if index % 3 == 2 {
                entries.push((example(index + 1).start - 1, 0));
            }
        }
        // The slot of an entry that is only reserved.
        entries.push((u64::MAX, 0x402));
        let (first, second) = (ROOT + 0x100, ROOT + 0x200);
        let (low, high) = entries.split_at(16);
        let low_node = node(&memory, first, ROOT, LEAF, low);
        let high_node = node(&memory, second, ROOT | 0x0e, LEAF, high);
        let root = node(&memory, ROOT, MM | 1, RANGES_WITH_GAPS, &[(low[15].0, low_node), (u64::MAX, high_node)]);
        memory.set(MM + 8, root | 2);
        memory
    }

    fn listed() -> Memory {
        let memory = Memory::new();
        for index in 0..18 {
            write(&memory, index);
            memory.set(vma_at(index) + 24, if index < 17 { vma_at(index + 1) } else { 0 });
            memory.set(vma_at(index) + 32, if index > 0 { vma_at(index - 1) } else { 0 });
        }
        memory.set(MM, vma_at(0));
        memory
    }

    fn read(memory: &Memory, has_lists: bool) -> Result<Vec<Vma>, Torn> {
        walk(&memory.space(), MM, &offsets(has_lists, Offsets::of))
    }

    #[test]
    fn both_orders() {
        let all: Vec<Vma> = (0..18).map(example).collect();
        assert_eq!(read(&tree(), false), Ok(all.clone()));
        assert_eq!(read(&listed(), true), Ok(all));
        assert_eq!(read(&Memory::new(), false), Ok(Vec::new()));
        assert_eq!(read(&Memory::new(), true), Ok(Vec::new()));
        for mm in [0, MM + 4, 0x1000, u64::MAX - 7, DIRECT + 2 * BYTES] {
            assert_eq!(walk(&tree().space(), mm, &offsets(false, Offsets::of)), Err(Torn), "{mm:#x}");
        }
    }

    #[test]
    fn what_changes_meanwhile_is_recognized() {
        let leaf = ROOT + 0x100;
        let trees = [
            ("a node that was replaced", leaf, leaf),
            ("the root of another tree", ROOT, (DIRECT + 0x7000) | 1),
            ("no node", MM + 8, 0x1002),
            ("a kind that there is not", MM + 8, ROOT | 7 << 3 | 6),
            ("keys that descend", leaf + 16, 5),
            ("a root below itself", ROOT + 80, ROOT | RANGES_WITH_GAPS << 3 | 4),
            ("a mapping of another process", vma_at(3) + 16, MM + 0x100),
            ("another start than the tree has", vma_at(3), example(3).start + 0x1000),
            ("another end", vma_at(3) + 8, example(3).end - 0x1000),
            ("a mapping that is none", leaf + 128 + 16, DIRECT + 0x7ff4),
            ("a mapping in no memory", leaf + 128 + 16, DIRECT + 2 * BYTES),
            ("a file that is none", vma_at(3) + 56, 0x1234),
        ];
        for (what, address, value) in trees {
            let memory = tree();
            memory.set(address, value);
            assert_eq!(read(&memory, false), Err(Torn), "{what}");
        }
        let lists = [
            ("a loop", vma_at(17) + 24, vma_at(2)),
            ("a mapping after itself", vma_at(9) + 24, vma_at(9)),
            ("one that follows another", vma_at(9) + 32, vma_at(2)),
            ("one of another process", vma_at(9) + 16, 0),
            ("no start before its end", vma_at(9) + 8, 0),
            ("a next one in no memory", vma_at(9) + 24, u64::MAX - 7),
        ];
        for (what, address, value) in lists {
            let memory = listed();
            memory.set(address, value);
            assert_eq!(read(&memory, true), Err(Torn), "{what}");
        }
    }

    #[test]
    fn a_walk_is_repeated() {
        let (memory, offsets) = (tree(), offsets(false, Offsets::of));
        let space = memory.space();
        assert_eq!(list(&space, MM, &offsets).map(|list| list.len()), Some(18));
        let one = memory.reads.load(Ordering::Relaxed);
        // During the second walk, the node becomes one again.
        memory.set(ROOT, 0);
        memory.set_later(3, ROOT, MM | 1);
        assert_eq!(list(&space, MM, &offsets).map(|list| list.len()), Some(18));
        memory.set(ROOT, 0);
        assert_eq!(list(&space, MM, &offsets), None);
        assert!(memory.reads.load(Ordering::Relaxed) < 3 * one);
    }

    #[test]
    fn what_selects_memory() {
        let (memory, offsets) = (tree(), offsets(false, Offsets::of));
        memory.words(MM + 600, &[FILE, 0x7ffc_0000_1000]);
        memory.set(MM + 72, DIRECT + 0x6000);
        let found = address_space(&memory.space(), MM, &offsets, PAGING).unwrap();
        let expected = Paging::from(PAGING).of_process(0x6000);
        assert_eq!(found, AddressSpace { paging: expected, program: Some(FILE), vdso: 0x7ffc_0000_1000 });
        memory.set(MM + 72, DIRECT + 0x6008);
        assert_eq!(address_space(&memory.space(), MM, &offsets, PAGING), None);
    }

    #[test]
    fn a_member_that_is_missing_is_named() {
        let types = types(false);
        for (name, missing) in
            [("pgd", "mm_struct.pgd"), ("vm_mm", "vm_area_struct.vm_mm"), ("ma_root", "maple_tree.ma_root")]
        {
            let mut types = types.clone();
            let at = types.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
            types[at] = b'?';
            assert_eq!(Offsets::of(&Btf::parse(&types, None).unwrap()).err(), Some(missing));
        }
    }

    proptest! {
        /// Whatever a guest writes, a walk ends, and takes a bounded number of reads.
        #[test]
        fn any_memory_is_survived(random in proptest::collection::vec(any::<u64>(), 1..40), has_lists: bool) {
            let memory = if has_lists { listed() } else { tree() };
            let size = 0x8000;
            // Nodes whose parents fit, half of the time.
            memory.fill(DIRECT + 0x2000..DIRECT + size, &random);
            for (node, random) in (DIRECT + 0x2000..DIRECT + size).step_by(256).zip(random.iter().cycle()) {
                if random & 1 == 0 {
                    memory.set(node, if random & 2 == 0 { ROOT } else { node - 0x100 });
                }
            }
            memory.set(ROOT, MM | 1);
            let offsets = offsets(has_lists, Offsets::of);
            let found = list(&memory.space(), MM, &offsets);
            prop_assert!(memory.reads.load(Ordering::Relaxed) < ATTEMPTS * MAPPINGS_MAX * 2 * 6);
            for pair in found.unwrap_or_default().windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
        }
    }
}
