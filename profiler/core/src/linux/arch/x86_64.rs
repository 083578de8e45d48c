//! Kernels of x86-64.

use std::ops::Range;

use super::{Place, banner_between};
use crate::arch::x86_64::paging::Paging;
use crate::linux::kallsyms::{Addresses, Kallsyms};
use crate::linux::kernel::{ALIGNMENT, IMAGE_BYTES_MAX, banner_at};
use crate::linux::space::Space;
use crate::memory::Physical;

/// Where every kernel has its image: its first and its last address (`Documentation/arch/x86/x86_64/mm.rst`).
pub(in crate::linux) const IMAGE: Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;
/// How a function begins that keeps the frame pointer: `push %rbp; mov %rsp, %rbp`.
pub(in crate::linux) const FRAME: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];
const PAGE_BYTES: u64 = 4096;
const ENTRIES: usize = 512;
/// The most page tables that may be a kernel's own.
const ROOTS_MAX: usize = 64;
/// In an entry of a page table: it is there, and it is a page and no table.
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
/// Where every kernel has its interrupt table, whatever its slide (`Documentation/arch/x86/x86_64/mm.rst`: the CPU entry area).
const INTERRUPT_TABLE: u64 = 0xffff_fe00_0000_0000;
/// What the first gate of that leads to, from Linux 5.8 on and before.
const FIRST_HANDLER: [&str; 2] = ["asm_exc_divide_error", "divide_error"];
/// Functions that count ticks, and the most bytes of them that are read.
const COUNT_TICKS: [&str; 2] = ["do_timer", "tick_do_update_jiffies64"];
const CODE_BYTES: usize = 512;

/// The registers of a kernel with these page tables.
fn paging(root: u64, has_five_levels: bool) -> Paging {
    let levels = if has_five_levels { 1 << 12 } else { 0 };
    Paging { cr0: 1 << 31 | 1, cr3: root & !4095, cr4: 1 << 5 | levels, efer: Some(1 << 10) }
}

/// The image of a kernel that has symbols of its data.
pub(super) fn find_by_data(memory: &dyn Physical, symbols: &Kallsyms) -> Option<Place> {
    let text = symbols.address("_text").or_else(|| symbols.address("_stext"))?;
    let banner_inside = symbols.address("linux_banner")?.wrapping_sub(text);
    let tables = symbols.address("init_top_pgt")?.wrapping_sub(text);
    if banner_inside > IMAGE_BYTES_MAX || tables > IMAGE_BYTES_MAX {
        return None;
    }
    // The banner's text also proves that each symbol has its own address, and not that of the next one.
    let has_banner = |physical: &u64| {
        let at = physical.checked_add(banner_inside);
        at.is_some_and(|at| banner_at(memory, at).is_some())
    };
    let text_physical = match symbols.addresses() {
        Addresses::Physical => Some(text).filter(has_banner)?,
        Addresses::Virtual => {
            let first = symbols.tokens_at() & !(ALIGNMENT - 1);
            let inside = text % ALIGNMENT;
            let candidates = (0..IMAGE_BYTES_MAX / ALIGNMENT).map_while(|step| first.checked_sub(step * ALIGNMENT));
            candidates.map(|start| start + inside).find(has_banner)?
        }
    };
    let root = text_physical + tables;
    let leads_home = |paging: Paging, address| Space::new(memory, paging).physical(address) == Some(text_physical);
    let (paging, text) = [false, true].into_iter().find_map(|has_five_levels| {
        let paging = paging(root, has_five_levels);
        let start = match symbols.addresses() {
            Addresses::Virtual => leads_home(paging, text).then_some(text),
            Addresses::Physical => {
                let places = (0..(IMAGE.end - IMAGE.start) / ALIGNMENT).map(|step| IMAGE.start + step * ALIGNMENT);
                places.map(|place| place + text % ALIGNMENT).find(|place| leads_home(paging, *place))
            }
        };
        Some((paging, start?))
    })?;
    Some(Place { paging: paging.into(), text, text_physical, banner_at: text_physical + banner_inside })
}

/// The image of one whose symbols are those of functions alone (`CONFIG_KALLSYMS_ALL` is off).
pub(super) fn find(memory: &dyn Physical, symbols: &Kallsyms) -> Option<Place> {
    let text = symbols.address("_text").or_else(|| symbols.address("_stext"))?;
    let first = symbols.tokens_at() & !(PAGE_BYTES - 1);
    let roots = (first..first.saturating_add(IMAGE_BYTES_MAX)).step_by(PAGE_BYTES as usize);
    let found = roots.filter(|root| may_be_root(memory, *root)).filter_map(|root| {
        [true, false].into_iter().find_map(|has_five_levels| {
            let paging = paging(root, has_five_levels);
            let space = Space::new(memory, paging);
            let (text, physical) = match symbols.addresses() {
                Addresses::Virtual => (text, space.physical(text)?),
                Addresses::Physical => {
                    let places =
                        (IMAGE.start..IMAGE.end).step_by(ALIGNMENT as usize).map(|place| place + text % ALIGNMENT);
                    (places.into_iter().find(|place| space.physical(*place) == Some(text))?, text)
                }
            };
            let to_tokens = symbols.tokens_at().checked_sub(physical).filter(|bytes| *bytes < IMAGE_BYTES_MAX)?;
            let is_image = text % ALIGNMENT == physical % ALIGNMENT
                && space.physical(text.checked_add(to_tokens)?) == Some(symbols.tokens_at());
            is_image.then_some((paging, text, physical))
        })
    });
    let mut found: Vec<(Paging, u64, u64)> = found.take(ROOTS_MAX).collect();
    // Parts of an image that are needed no more are used for other things, such as the tables of processes: the kernel's own are those whose address is in the image.
    retain_known(memory, first, &mut found);
    let [(paging, text, text_physical)] = found[..] else { return None };
    let handler = FIRST_HANDLER.iter().find_map(|name| symbols.address(name))?;
    let handler = match symbols.addresses() {
        Addresses::Virtual => handler,
        Addresses::Physical => handler.wrapping_add(text.wrapping_sub(text_physical)),
    };
    // Which proves that each symbol has its own address, and not that of the next one.
    let gate = Space::new(memory, paging).bytes(INTERRUPT_TABLE, 16)?;
    let part = |at: usize, bytes: usize| {
        gate[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let target = part(0, 2) | part(6, 2) << 16 | part(8, 4) << 32;
    let banner_at = banner_between(memory, text_physical, symbols.tokens_at() + IMAGE_BYTES_MAX / 4)?;
    (target == handler).then_some(Place { paging: paging.into(), text, text_physical, banner_at })
}

/// Leaves those page tables to whose place in the image a word of the image points.
fn retain_known(memory: &dyn Physical, start: u64, found: &mut Vec<(Paging, u64, u64)>) {
    let address = |(paging, text, physical): &(Paging, u64, u64)| (paging.cr3 - physical).wrapping_add(*text);
    let wanted: Vec<u64> = found.iter().map(address).collect();
    let (mut known, mut page) = (vec![false; wanted.len()], [0; PAGE_BYTES as usize]);
    for at in (start..start.saturating_add(IMAGE_BYTES_MAX)).step_by(PAGE_BYTES as usize) {
        if memory.read(at, &mut page) {
            let words = page.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            for word in words.filter(|word| *word >= IMAGE.start) {
                wanted.iter().zip(&mut known).for_each(|(wanted, known)| *known |= *wanted == word);
            }
        }
    }
    let mut known = known.into_iter();
    found.retain(|_| known.next() == Some(true));
}

/// Whether page tables of a kernel may begin there: with its image, other memory, and nothing of a process.
fn may_be_root(memory: &dyn Physical, at: u64) -> bool {
    let mut table = [0; ENTRIES * 8];
    if !memory.read(at, &mut table) {
        return false;
    }
    let entries = table.as_chunks::<8>().0;
    let entry = |index: usize| u64::from_le_bytes(entries[index]);
    let is_table = |index: &usize| entry(*index) & (PRESENT | LARGE) == PRESENT;
    is_table(&(ENTRIES - 1))
        && (ENTRIES / 2..ENTRIES - 1).any(|index| is_table(&index))
        && (0..ENTRIES / 2).all(|index| entry(index) == 0)
}

/// Where a kernel counts its ticks: what a function adds to that counts them.
pub(super) fn ticks_at(space: &Space<'_>, symbols: &Kallsyms) -> Option<u64> {
    COUNT_TICKS.iter().find_map(|name| {
        let range = symbols.range(name)?;
        let mut code = vec![0; CODE_BYTES.min((range.end - range.start) as usize)];
        space.read(range.start, &mut code)?;
        code.windows(7).zip(range.start..).find_map(|(code, at)| {
            // `add register, number(%rip)` of 64 bits.
            let is_add = matches!(code[..2], [0x48 | 0x4c, 0x01]) && code[2] & 0xc7 == 5;
            let distance = i32::from_le_bytes([code[3], code[4], code[5], code[6]]);
            is_add.then(|| at.wrapping_add(7).wrapping_add_signed(distance.into()))
        })
    })
}
