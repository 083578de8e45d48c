//! Stacks in a live dump: copied while their vCPU stands, so that they agree with its registers. The copy of the RAM is seconds later, when the
//! vCPU has long used the same memory for other calls.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::arch::x86_64::all::{AllRegisters, RSP};
use crate::memory::content::{PAGE_BYTES, Piece};
use glass_profiler_core::arch::x86_64::paging::Paging;

use crate::memory::{Physical, Translator};

/// How many pages of a stack are copied: 64 KiB, four stacks of a Linux kernel. A page takes 0.3 us, or 3 us if it is read from the VMM's
/// memory.
const PAGES_MAX: u64 = 16;

/// Pages by their physical addresses.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    pages: Vec<(u64, Vec<u8>)>,
}

impl Stacks {
    /// Copies the stack of a vCPU that stands, from its stack pointer on, up to what is not mapped.
    pub(super) fn copy(&mut self, ram: &impl Physical, all: &AllRegisters) {
        let [cr0, _, _, cr3, cr4] = all.control;
        let mut translator = Translator::new(Paging { cr0, cr3, cr4, efer: None });
        let first = all.general[RSP] & !(PAGE_BYTES - 1);
        for page in (0..PAGES_MAX).map_while(|page| first.checked_add(page * PAGE_BYTES)) {
            let Some(physical) = translator.translate_page(ram, page) else { return };
            let mut bytes = vec![0; PAGE_BYTES as usize];
            if !ram.read(physical, &mut bytes) {
                return;
            }
            self.pages.push((physical, bytes));
        }
    }

    /// Writes them over what was copied of each piece to its offset in the file.
    pub(super) fn write(&self, pieces: &[Piece], offsets: &[u64], file: &File) -> io::Result<()> {
        let ranges: Vec<Range<u64>> = pieces.iter().map(|piece| piece.range.clone()).collect();
        for (physical, bytes) in &self.pages {
            if let Some(offset) = offset_of(*physical, &ranges, offsets) {
                file.write_all_at(bytes, offset)?;
            }
        }
        Ok(())
    }
}

/// Where a page is in the file, if all of it is in one of these ranges of physical addresses.
fn offset_of(page: u64, ranges: &[Range<u64>], offsets: &[u64]) -> Option<u64> {
    let (range, offset) = ranges.iter().zip(offsets).find(|(range, _)| range.contains(&page))?;
    (range.end - page >= PAGE_BYTES).then(|| offset + (page - range.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of which each byte is the number of its page. Without paging, virtual addresses are physical ones.
    struct Numbered(u64);

    impl Physical for Numbered {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let page = address / PAGE_BYTES;
            into.fill(page as u8);
            page < self.0
        }
    }

    fn at(rsp: u64) -> AllRegisters {
        let mut all = AllRegisters::default();
        all.general[RSP] = rsp;
        all
    }

    #[test]
    fn a_stack_is_copied_up_to_what_is_not_there() {
        for (rsp, expected) in [(0x5_f08, 5..8), (0x7_000, 7..8), (0x8_000, 8..8), (u64::MAX, 0..0)] {
            let mut stacks = Stacks::default();
            stacks.copy(&Numbered(8), &at(rsp));
            let pages: Vec<u64> = stacks.pages.iter().map(|(physical, _)| physical / PAGE_BYTES).collect();
            assert_eq!(pages, expected.collect::<Vec<_>>(), "{rsp:#x}");
            assert!(
                stacks.pages.iter().all(|(page, bytes)| bytes.iter().all(|byte| u64::from(*byte) == page / PAGE_BYTES))
            );
        }
        let mut stacks = Stacks::default();
        stacks.copy(&Numbered(100), &at(0x3_000));
        assert_eq!(stacks.pages.len() as u64, PAGES_MAX);
    }

    #[test]
    fn a_page_goes_to_its_place_in_the_file() {
        let (ranges, offsets) = ([0x1000..0x3000, 0x10_0000..0x10_1800], [0x5000, 0x9000]);
        for (page, offset) in [
            (0x1000, Some(0x5000)),
            (0x2000, Some(0x6000)),
            (0x3000, None),
            (0x10_0000, Some(0x9000)),
            (0x10_1000, None),
        ] {
            assert_eq!(offset_of(page, &ranges, &offsets), offset, "{page:#x}");
        }
    }
}
