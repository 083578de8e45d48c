//! Which task each CPU of a Linux runs: where the kernel keeps the pointers to them.

use super::arch::aarch64;
use super::kernel::Kernel;
use super::space::number;
use super::structures::{Layout, pointer};
use crate::arch::Architecture;
use crate::memory::Physical;

/// The most CPUs (`CONFIG_NR_CPUS` of Debian's and others' kernels).
const CPUS_MAX: u64 = 8192;
/// CPUs of which the pointers are read where the kernel does not say how many there are.
const CPUS_GUESSED: u64 = 64;
/// Where a kernel has all memory if it does not move that: with four levels of page tables, and with five (`Documentation/arch/x86/x86_64/mm.rst`).
const DIRECT_MAP: [u64; 2] = [0xffff_8880_0000_0000, 0xff11_0000_0000_0000];
const FIVE_LEVELS: u64 = 1 << 12;

/// The physical addresses of the pointers to the tasks that CPUs run, by the CPUs' numbers; they stay the same until the guest starts again. Empty
/// if the kernel has no such pointers where they are known to be.
#[must_use]
pub fn slots(kernel: &Kernel, memory: &dyn Physical, types: &dyn Layout) -> Vec<u64> {
    found(kernel, memory, types).unwrap_or_default()
}

fn found(kernel: &Kernel, memory: &dyn Physical, types: &dyn Layout) -> Option<Vec<u64>> {
    let space = kernel.space(memory);
    let slot = slot(kernel, types)?;
    let offsets = kernel.address("__per_cpu_offset")?;
    let count = kernel.address("nr_cpu_ids").and_then(|at| number(&space.bytes(at, 4)?, 0, 4));
    let count = count.unwrap_or(CPUS_GUESSED).clamp(1, CPUS_MAX);
    let found = (0..count).map_while(|cpu| {
        let offset = space.word(offsets.checked_add(8 * cpu)?)?;
        space.physical(offset.wrapping_add(slot))
    });
    Some(found.collect())
}

/// The per-CPU address of the pointer.
pub(super) fn slot(kernel: &Kernel, types: &dyn Layout) -> Option<u64> {
    // From 6.2 to 6.14 it is the member of a structure.
    if kernel.paging.architecture() == Architecture::Aarch64 {
        return kernel.address(aarch64::CURRENT);
    }
    let hot = kernel.address("pcpu_hot").zip(types.field("pcpu_hot", "current_task"));
    match hot {
        Some((start, field)) => Some(start.wrapping_add(u64::from(field.at))),
        None => kernel.address("current_task"),
    }
}

/// The virtual address at which the kernel has the physical address 0 and all behind it.
#[must_use]
pub fn direct_map(kernel: &Kernel, memory: &dyn Physical) -> u64 {
    let base = kernel.value(memory, "page_offset_base");
    let has_five_levels = kernel.paging.x86_64().is_some_and(|paging| paging.cr4 & FIVE_LEVELS != 0);
    base.and_then(|base| pointer(base, 8)).unwrap_or(DIRECT_MAP[usize::from(has_five_levels)])
}
