//! The mappings of a process, from its `mm_struct`: a maple tree since Linux 6.1, a list before.

use super::btf::Btf;
use super::maple;
use super::space::Space;
use super::structures::{Fields, offset, pointer};
use crate::arch::x86_64::paging::Paging;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// The mappings changed while they were read, or are none: nothing can be said.
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
    pub fn of(btf: &Btf<'_>) -> Result<Offsets, &'static str> {
        let order = match offset(btf, "mm_struct.mm_mt") {
            Ok(tree) => Order::Tree(tree, maple::Offsets::of(btf)?),
            Err(_) => {
                let links = Fields::of(btf, ["vm_area_struct.vm_next", "vm_area_struct.vm_prev"])?;
                Order::List(offset(btf, "mm_struct.mmap")?, links)
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
        Ok(Offsets { order, vma: Fields::of(btf, vma)?, mm: Fields::of(btf, mm)? })
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

/// What selects the memory of the `mm_struct` at an address of the kernel, whose own paging has the number of levels.
#[must_use]
pub fn address_space(space: &Space<'_>, mm: u64, offsets: &Offsets, kernel: Paging) -> Option<AddressSpace> {
    let [tables, program, vdso] = offsets.mm.read(space, pointer(mm, 8)?)?;
    let cr3 = space.physical(pointer(tables, 4096)?)?;
    Some(AddressSpace { paging: Paging { cr3, ..kernel }, program: pointer(program, 8), vdso })
}
