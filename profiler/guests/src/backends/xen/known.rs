//! What a sample needs of memory, copied from where earlier samples found it, in as few steps as possible.
//!
//! A domain stands from its pause until the copy is done. Page tables are therefore not walked in this time, registers are not
//! parsed, nothing is allocated or looked up in a tree. When the domain runs again, the tables are walked: a page that is no longer where
//! it was read makes the copy worthless, and it is made again with a walk. (A page that moved away before the pause and back within
//! the microseconds after it would not be noticed.)

use std::ops::Range;

use glass_profiler_core::arch::paging::Translator;

use super::memory::{Frames, Place};
use crate::error::GuestError;
use crate::memory::AddressSpace;
use crate::sys::Map;
use crate::sys::xen::PAGE_BYTES;
use crate::systems::plan::{CORE_STATE_READ, HeldCore};
use crate::systems::stack;

/// The most pages that are known of a vCPU: those of some stacks.
const PAGES: usize = 16;
const PAGE: u64 = PAGE_BYTES as u64;

/// A page whose place is known.
#[derive(Debug, Clone, Copy)]
struct Page {
    /// Its virtual address.
    address: u64,
    frame: u64,
    place: Place,
}

/// The pages that samples of a vCPU read, and what was copied of them.
#[derive(Debug)]
pub(super) struct KnownPages {
    pages: Vec<Page>,
    /// The one that is replaced next.
    next: usize,
    /// The age of the places.
    age: u64,
    /// The address that the copy of the stack starts at, and its bytes.
    start: u64,
    bytes: usize,
    stack: Vec<u8>,
    /// The address of the state that the guest reports of the core, and what was there.
    core: Option<u64>,
    core_state: [u8; CORE_STATE_READ],
}

/// It is not known where a page is.
struct Unknown;

impl KnownPages {
    /// Without a known page. At most so many bytes of a stack are copied.
    pub(super) fn new(stack_bytes: usize) -> KnownPages {
        KnownPages {
            pages: Vec::with_capacity(PAGES),
            next: 0,
            age: 0,
            start: 0,
            bytes: 0,
            // Touched: a page fault would be part of the pause.
            stack: vec![1; stack_bytes],
            core: None,
            core_state: [0; CORE_STATE_READ],
        }
    }

    /// Copies a stack from its pointer on, as far as its chain of frame pointers needs, and the state of the core at an address. `code`:
    /// the addresses between which all code is. False if the place of a page is not known.
    #[inline(always)]
    pub(super) fn copy(
        &mut self,
        maps: &[Map],
        (stack_pointer, frame_pointer): (u64, u64),
        code: &Range<u64>,
        core: Option<u64>,
    ) -> bool {
        let pages = &self.pages;
        let read = |address: u64, into: &mut [u8]| {
            let mut done = 0;
            while done < into.len() {
                let at = address.wrapping_add(done as u64);
                let inside = at % PAGE;
                let count = (PAGE - inside).min((into.len() - done) as u64) as usize;
                let page = pages.iter().find(|page| page.address == at - inside).ok_or(Unknown)?;
                if !page.place.read(maps, inside, &mut into[done..done + count]) {
                    return Err(Unknown);
                }
                done += count;
            }
            Ok(done)
        };
        let is_code = |address| code.contains(&address);
        let copied = stack::copy((stack_pointer, frame_pointer), &mut self.stack, read, is_code);
        (self.start, self.core) = (stack_pointer, core);
        self.bytes = copied.as_ref().map_or(0, |bytes| *bytes);
        copied.is_ok() && core.is_none_or(|address| read(address, &mut self.core_state).is_ok())
    }

    /// Finds the pages again if places have become wrong.
    pub(super) fn renew(&mut self, frames: &Frames) {
        if self.age != frames.age() {
            // A page that cannot be mapped is learned again.
            self.pages.retain_mut(|page| match frames.place(page.frame) {
                Some(place) => {
                    page.place = place;
                    true
                }
                None => false,
            });
            self.age = frames.age();
        }
    }

    /// Learns where the pages of a range are, if they are mapped.
    pub(super) fn learn(&mut self, range: Range<u64>, translator: &mut Translator, frames: &Frames) {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE).min(range.start / PAGE + PAGES as u64);
        for address in pages.map(|page| page * PAGE) {
            let Some(frame) = translator.translate_page(frames, address).map(|physical| physical / PAGE) else {
                continue;
            };
            let Some(place) = frames.place(frame) else { continue };
            let page = Page { address, frame, place };
            match self.pages.iter().position(|known| known.address == address) {
                Some(at) => self.pages[at] = page,
                None if self.pages.len() < PAGES => self.pages.push(page),
                None => {
                    self.pages[self.next] = page;
                    self.next = (self.next + 1) % PAGES;
                }
            }
        }
        // Frames that were mapped meanwhile may have taken the place of all others.
        self.renew(frames);
    }

    /// Forgets all pages.
    pub(super) fn forget(&mut self) {
        self.pages.clear();
    }

    /// Whether the pages that were copied from are where they were taken for.
    pub(super) fn were_right(&self, translator: &mut Translator, frames: &Frames) -> bool {
        let stack = self.start..self.start.saturating_add(self.bytes as u64);
        let core = self.core.map(|address| address..address.saturating_add(CORE_STATE_READ as u64));
        let mut read = self.pages.iter().filter(|page| {
            let is_in = |range: &Range<u64>| range.start < page.address + PAGE && page.address < range.end;
            is_in(&stack) || core.as_ref().is_some_and(is_in)
        });
        read.all(|page| {
            let physical = translator.translate_page(frames, page.address);
            // This marks the frame as used, too.
            physical == Some(page.frame * PAGE) && frames.place(page.frame) == Some(page.place)
        })
    }

    /// The core as it was copied.
    pub(super) fn copied(&self, is_blocked: bool) -> Copied<'_> {
        Copied { known_pages: self, is_blocked, is_insufficient: false }
    }
}

/// A vCPU of which parts of memory were copied.
pub(super) struct Copied<'a> {
    known_pages: &'a KnownPages,
    is_blocked: bool,
    is_insufficient: bool,
}

impl Copied<'_> {
    /// Whether more was read than was copied.
    pub(super) fn was_insufficient(&self) -> bool {
        self.is_insufficient
    }
}

impl AddressSpace for Copied<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        let KnownPages { start, bytes, stack, core, core_state, .. } = self.known_pages;
        let parts = [(Some(*start), &stack[..*bytes]), (*core, &core_state[..])];
        let part = parts.into_iter().find_map(|(start, bytes)| {
            let at = usize::try_from(address.checked_sub(start?)?).ok()?;
            bytes.get(at..)?.get(..into.len())
        });
        self.is_insufficient |= part.is_none();
        let Some(part) = part else { return Ok(0) };
        into.copy_from_slice(part);
        Ok(part.len())
    }
}

impl HeldCore for Copied<'_> {
    fn is_halted(&mut self) -> Result<bool, GuestError> {
        Ok(self.is_blocked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::folder::Folder;
    use std::fs::File;
    use std::os::fd::AsFd;

    const START: u64 = 0x7000;
    const CODE: Range<u64> = 0x1000..0x2000;

    /// Two pages from [`START`] on, in the reverse order, and a third that is not known. On them a chain of two frames that crosses pages.
    fn known_pages(folder: &Folder) -> (KnownPages, Vec<Map>) {
        let mut bytes = vec![0; 3 * PAGE_BYTES];
        let mut set = |page: usize, at: usize, words: [u64; 2]| {
            let words = words.map(u64::to_le_bytes);
            bytes[page * PAGE_BYTES + at..][..16].copy_from_slice(words.as_flattened());
        };
        set(1, 0xf80, [START + 0x1020, 0x1234]);
        set(0, 0x20, [0, 0]);
        set(0, 0x800, [0x0123_4567_89ab_cdef, 0]);
        let file = File::open(folder.write("memory", &bytes).unwrap()).unwrap();
        let map = Map::new(file.as_fd(), bytes.len(), false).unwrap();
        let mut known_pages = KnownPages::new(4096);
        for (address, page) in [(START, 1), (START + PAGE, 0)] {
            let place = Place::for_test(0, page * PAGE);
            known_pages.pages.push(Page { address, frame: page, place });
        }
        (known_pages, vec![map])
    }

    fn read(core: &mut Copied, address: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; count];
        let copied = core.read(address, &mut bytes).unwrap();
        bytes.truncate(copied);
        bytes
    }

    #[test]
    fn a_stack_is_copied_across_known_pages() {
        let folder = Folder::new("known").unwrap();
        let (mut known_pages, maps) = known_pages(&folder);
        let registers = (START + 0xf70, START + 0xf80);
        assert!(known_pages.copy(&maps, registers, &CODE, Some(START + 0x1800)));
        assert_eq!(known_pages.bytes, 1024, "the chain ends in the first part");
        let mut core = known_pages.copied(true);
        assert_eq!(read(&mut core, START + 0xf88, 8), 0x1234_u64.to_le_bytes());
        assert_eq!(read(&mut core, START + 0x1800, 8), 0x0123_4567_89ab_cdef_u64.to_le_bytes());
        assert!(core.is_halted().unwrap() && !core.was_insufficient());
        // Below the stack pointer, and above what was copied.
        for (address, count) in [(START + 0xf68, 8), (START + 0xf70, 1025), (0, 1), (u64::MAX, 8)] {
            let mut core = known_pages.copied(false);
            assert!(read(&mut core, address, count).is_empty() && core.was_insufficient(), "{address:#x}");
        }
    }

    #[test]
    fn a_page_that_is_not_known_is_not_guessed() {
        let folder = Folder::new("unknown").unwrap();
        let (mut known_pages, maps) = known_pages(&folder);
        let (chain, end) = ((START + 0xf70, START + 0xf80), START + 2 * PAGE);
        assert!(!known_pages.copy(&maps, chain, &CODE, Some(end)), "the state of the core");
        assert!(!known_pages.copy(&maps, (end - 512, 0), &CODE, None), "the stack's second half");
        assert!(!known_pages.copy(&maps, (u64::MAX - 8, 0), &CODE, None));
        // Without code to return to all that the room takes is wanted, which is more than what is known.
        assert!(!known_pages.copy(&maps, (START + PAGE + 8, 0), &(0..0), None));
        assert!(!known_pages.copy(&[], chain, &CODE, None), "no mapping");
        known_pages.forget();
        assert!(!known_pages.copy(&maps, chain, &CODE, None));
    }
}
