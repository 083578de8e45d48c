//! What a sample needs of memory, copied from where earlier samples found it, in as few steps as possible.
//!
//! A domain stands from its pause until the copy is done. Page tables are therefore not walked in this time, registers are not
//! parsed, nothing is allocated or looked up in a tree. When the domain runs again, the tables are walked: a page that is no longer where
//! it was read makes the copy worthless, and it is made again with a walk. (A page that moved away before the pause and back within
//! the microseconds after it would not be noticed.)

use std::ops::Range;

use glass_profile::arch::x86_64::paging::Translator;

use super::memory::{Frames, Place};
use crate::error::GuestError;
use crate::stack;
use crate::sys::Map;
use crate::sys::xen::PAGE_BYTES;
use crate::vm::{CORE_STATE_READ, HeldCore};

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
pub(super) struct Places {
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

impl Places {
    /// Knows nothing yet. At most so many bytes of a stack are copied.
    pub(super) fn new(stack_bytes: usize) -> Places {
        Places {
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
        Copied { places: self, is_blocked, is_insufficient: false }
    }
}

/// A vCPU of which parts of memory were copied.
pub(super) struct Copied<'a> {
    places: &'a Places,
    is_blocked: bool,
    is_insufficient: bool,
}

impl Copied<'_> {
    /// Whether more was read than was copied.
    pub(super) fn was_insufficient(&self) -> bool {
        self.is_insufficient
    }
}

impl HeldCore for Copied<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        let Places { start, bytes, stack, core, core_state, .. } = self.places;
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

    fn is_halted(&mut self) -> Result<bool, GuestError> {
        Ok(self.is_blocked)
    }
}
