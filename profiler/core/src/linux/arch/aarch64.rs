//! Kernels of AArch64. Debian's have symbols of their functions alone (`CONFIG_KALLSYMS_ALL` is off), and describe their types: where their data is
//! follows from these, from their page tables, and from a few instructions.

use super::{Place, banner_between};
use crate::arch::aarch64::paging::Paging;
use crate::linux::kallsyms::{Addresses, Kallsyms};
use crate::linux::kernel::{IMAGE_BYTES_MAX, Kernel};
use crate::linux::space::Space;
use crate::memory::Physical;

/// The function that changes from one task to the next, which no other kernel has.
pub(in crate::linux) const SWITCH: &str = "cpu_switch_to";
/// Where each CPU has the pointer to its task, for its next entry from a process (`arch/arm64/kernel/process.c`); the register for that is the stack
/// pointer of processes, too, and has it in the kernel alone.
pub(in crate::linux) const CURRENT: &str = "__entry_task";

const PAGE_BYTES: u64 = 4096;
/// Bits of a page and of an address, and what selects that granule in TCR_EL1 for processes and for the kernel: the usual ones first.
const GRANULES: [(u32, u64, u64); 7] =
    [(48, 0, 2), (39, 0, 2), (47, 2, 1), (48, 2, 1), (42, 1, 3), (48, 1, 3), (52, 1, 3)];
/// In SCTLR_EL1: addresses are translated. In TCR_EL1: the top byte of a process's addresses is ignored.
const TRANSLATED: u64 = 1;
const TOP_BYTE: u64 = 1 << 37;
/// The most pages between the symbols and the page tables, which are in the image.
const PAGES_MAX: u64 = IMAGE_BYTES_MAX / PAGE_BYTES;
/// Functions that count ticks, and the one that sets [`CURRENT`]; the most instructions of them that are read.
const COUNT_TICKS: [&str; 2] = ["do_timer", "tick_do_update_jiffies64"];
const SETS_CURRENT: &str = "__switch_to";
const INSTRUCTIONS: usize = 128;

/// The registers of a kernel with these page tables.
fn paging(root: u64, (bits, of_processes, own): (u32, u64, u64)) -> Paging {
    let size = u64::from(64 - bits);
    let tcr = size | of_processes << 14 | size << 16 | own << 30 | TOP_BYTE;
    Paging { sctlr: TRANSLATED, tcr, tables: [root, root] }
}

/// The image around the tables of these symbols, by its own page tables (`swapper_pg_dir`): they are behind the symbols, lead to the image, and to all
/// memory in their lower half. The kernel's first tables and those for processes lack that.
pub(super) fn find(memory: &dyn Physical, symbols: &Kallsyms) -> Option<Place> {
    // What is in front of it, as `_text`, is not mapped.
    let text = symbols.address("_stext")?;
    let first = symbols.tokens_at() & !(PAGE_BYTES - 1);
    let roots = (0..PAGES_MAX).map_while(|page| first.checked_add(page * PAGE_BYTES));
    let found = roots.flat_map(|root| GRANULES.map(|granule| paging(root, granule))).find_map(|paging| {
        let space = Space::new(memory, paging);
        let (text, physical) = match symbols.addresses() {
            Addresses::Virtual => (text, space.physical(text)?),
            // Their places do not show where in its address space the kernel is.
            Addresses::Physical => (address_of(memory, &paging, text)?, text),
        };
        let to_tokens = symbols.tokens_at().checked_sub(physical).filter(|bytes| *bytes < IMAGE_BYTES_MAX)?;
        let is_image = space.physical(text.checked_add(to_tokens)?) == Some(symbols.tokens_at());
        (is_image && direct_map(memory, &paging).is_some()).then_some((paging, text, physical))
    });
    let (paging, text, text_physical) = found?;
    let banner_at = banner_between(memory, text_physical, symbols.tokens_at() + IMAGE_BYTES_MAX / 4)?;
    Some(Place { paging: paging.into(), text, text_physical, banner_at })
}

/// The lowest address of the kernel's upper half, in which its image is.
fn upper_half(paging: &Paging) -> u64 {
    u64::MAX << (paging.address_bits(u64::MAX) - 1)
}

/// The address at which a kernel has a page of its image.
fn address_of(memory: &dyn Physical, paging: &Paging, text: u64) -> Option<u64> {
    let upper = upper_half(paging);
    // Nearly all pages are no tables: such a one has at least two others below it.
    let mut table = [0; PAGE_BYTES as usize];
    let is_read = memory.read(paging.tables[1], &mut table);
    let entries = table.as_chunks::<8>().0.iter().map(|entry| u64::from_le_bytes(*entry));
    if !is_read || entries.clone().any(|entry| entry & 3 == 2) || entries.filter(|entry| entry & 3 == 3).count() < 2 {
        return None;
    }
    let is_text = |address: u64, physical: u64| {
        let inside = text.checked_sub(physical)?;
        let address = address.checked_add(inside)?;
        let is_it = address >= upper && Space::new(memory, *paging).physical(address) == Some(text);
        (inside < ALIGNMENT_MAX && is_it).then_some(address)
    };
    paging.find_page(memory, is_text)
}

/// The largest pages that an image is made of.
const ALIGNMENT_MAX: u64 = 2 << 20;

/// The address at which the kernel has the physical address 0 and all behind it, which may be in front of its address space: memory starts later.
fn direct_map(memory: &dyn Physical, paging: &Paging) -> Option<u64> {
    let upper = upper_half(paging);
    let first = paging.find_page(memory, |address, physical| Some((address, physical)));
    first.filter(|(address, _)| *address < upper).map(|(address, physical)| address.wrapping_sub(physical))
}

/// The address at which a kernel has all memory, as [`direct_map`].
pub(in crate::linux) fn direct_map_of(kernel: &Kernel, memory: &dyn Physical) -> Option<u64> {
    direct_map(memory, kernel.paging.aarch64()?)
}

/// The address of the description of the physical page 0, if each has so many bytes (`vmemmap` of `arch/arm64/include/asm/pgtable.h`): the
/// descriptions begin with that of the first page of all memory, at an address by the kernel's version, and that of `page` is mapped.
pub(in crate::linux) fn descriptions(kernel: &Kernel, memory: &dyn Physical, bytes: u64, page: u64) -> Option<u64> {
    let paging = kernel.paging.aarch64()?;
    let (lowest, page_bytes) = (u64::MAX << paging.address_bits(u64::MAX), paging.page_bytes());
    let size = (upper_half(paging).wrapping_sub(lowest) / page_bytes).checked_mul(bytes.next_power_of_two())?;
    // Before the first is nothing; where all memory begins may be a number with a sign.
    let begins = lowest.wrapping_sub(direct_map_of(kernel, memory)?) as i64;
    let before = (begins / page_bytes as i64).checked_mul(bytes as i64)? as u64;
    let [end, with_gap] = [1_u64 << 30, 2 << 20].map(|gap| gap.wrapping_neg().wrapping_sub(size));
    // Linux 6.9 and later, 5.11 to 6.8, 5.10.
    [end, (size << 1).wrapping_neg(), with_gap]
        .into_iter()
        .map(|start| start.wrapping_sub(before))
        .find(|start| kernel.space(memory).physical(start.wrapping_add(page / page_bytes * bytes)).is_some())
}

/// Where a kernel counts its ticks: what a function loads, and stores again.
pub(super) fn ticks_at(space: &Space<'_>, symbols: &Kallsyms) -> Option<u64> {
    COUNT_TICKS.iter().find_map(|name| {
        let (start, code) = code(space, symbols, name)?;
        let places = code.iter().enumerate().filter_map(|(index, instruction)| {
            let (register, page) = page_of(*instruction, start + 4 * index as u64)?;
            let stores = code[index + 1..].iter().filter_map(|instruction| store(*instruction, register));
            stores.map(|inside| page.wrapping_add(inside)).next()
        });
        places.into_iter().next()
    })
}

/// The address, of each CPU relative to that of its data, of [`CURRENT`]: what is stored at a distance that a CPU has in a register.
pub(in crate::linux) fn current(kernel: &Kernel, memory: &dyn Physical) -> Option<u64> {
    /// `mrs xN, tpidr_el1`, and `tpidr_el2` where the kernel runs at that level.
    const OF_CPU: [u32; 2] = [0xd538_d080, 0xd53c_d040];
    const REGISTER: u32 = 31;
    let (start, code) = code(&kernel.space(memory), &kernel.symbols, SETS_CURRENT)?;
    code.iter().enumerate().find_map(|(index, instruction)| {
        if !OF_CPU.contains(&(instruction & !REGISTER)) {
            return None;
        }
        // `adrp xM, PAGE` and `add xM, xM, #N` in front of it, and then a store to `[xM, xN]`.
        let distance = instruction & REGISTER;
        let stored = code.get(index + 1..index + 4)?.iter().find_map(|store| {
            let is_store = store & 0xffe0_fc00 == 0xf820_6800;
            let [base, offset] = [store >> 5 & REGISTER, store >> 16 & REGISTER];
            if !is_store {
                return None;
            }
            if offset == distance { Some(base) } else { (base == distance).then_some(offset) }
        })?;
        let before = index.saturating_sub(4);
        let page = code[before..index].iter().zip(before..).find_map(|(instruction, at)| {
            page_of(*instruction, start + 4 * at as u64).filter(|(register, _)| *register == stored)
        });
        let inside = code[before..index].iter().find_map(|instruction| {
            let is_add = instruction & 0xffc0_0000 == 0x9100_0000;
            let is_of = instruction & REGISTER == stored && instruction >> 5 & REGISTER == stored;
            (is_add && is_of).then_some(u64::from(instruction >> 10 & 0xfff))
        });
        Some(page?.1.wrapping_add(inside.unwrap_or(0)))
    })
}

/// The instructions at the start of a function, and where it is.
fn code(space: &Space<'_>, symbols: &Kallsyms, name: &str) -> Option<(u64, Vec<u32>)> {
    let range = symbols.range(name)?;
    let count = (range.end - range.start) as usize / 4;
    let bytes = space.bytes(range.start, count.min(INSTRUCTIONS) * 4)?;
    Some((range.start, bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()))
}

/// The register and the page of `adrp xN, PAGE` at an address.
fn page_of(instruction: u32, at: u64) -> Option<(u32, u64)> {
    if instruction & 0x9f00_0000 != 0x9000_0000 {
        return None;
    }
    let pages = (instruction >> 5 & 0x7_ffff) << 2 | instruction >> 29 & 3;
    // 21 bits with a sign.
    let pages = i64::from((pages << 11) as i32 >> 11);
    Some((instruction & 31, (at & !(PAGE_BYTES - 1)).wrapping_add_signed(pages * PAGE_BYTES as i64)))
}

/// Where in the page that a register points to `str xM, [xN, #OFFSET]` stores a word.
fn store(instruction: u32, register: u32) -> Option<u64> {
    let is_store = instruction & 0xffc0_0000 == 0xf900_0000 && instruction >> 5 & 31 == register;
    is_store.then_some(u64::from(instruction >> 10 & 0xfff) * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_lead_to_data() {
        // adrp x2, 0xffffac45bca17000 at 0xffffac45bb3628bc; adrp x0 backwards by a page; ldr x1, [x2, #2496].
        assert_eq!(page_of(0xb000_b5a2, 0xffff_ac45_bb36_28bc), Some((2, 0xffff_ac45_bca1_7000)));
        assert_eq!(page_of(0xf0ff_ffe0, 0x5008), Some((0, 0x4000)));
        assert_eq!(page_of(0xf944_e041, 0), None);
        // str x1, [x2, #2496]; str x1, [x2, x0]; ldr x1, [x2, #2496].
        assert_eq!([0xf904_e041, 0xf820_6841, 0xf944_e041].map(|code| store(code, 2)), [Some(2496), None, None]);
        assert_eq!(store(0xf904_e041, 3), None);
    }
}
