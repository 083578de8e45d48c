//! The memory of a domain: frames that are mapped here, and stay so.
//!
//! Page tables are walked anew for each sample, so what a guest maps elsewhere is seen there. What is kept is which
//! page of ours shows a frame. A guest that gives a frame back to Xen and gets another one for the same number (a
//! balloon) would still be read through the old one, so frames in use are mapped again every second, while it runs.

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;

use glass_profiler_core::memory::Physical;

use crate::sys::xen::{PAGE_BYTES, map_foreign};
use crate::sys::{Map, monotonic_ns};

/// The most frames that are mapped at once: 32 MiB. When they are more, all are given back.
const FRAMES_MAX: usize = 8192;
/// How long a mapping is used.
const KEPT_NS: u64 = 1_000_000_000;

/// Where a frame can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Of which mapping.
    map: usize,
    /// Offset of its first byte there.
    offset: u64,
}

impl Place {
    #[cfg(test)]
    pub(super) fn for_test(map: usize, offset: u64) -> Place {
        Place { map, offset }
    }

    /// Copies from an offset in the frame; false if that is not all in the mapping.
    #[inline(always)]
    pub(super) fn read(self, maps: &[Map], inside: u64, into: &mut [u8]) -> bool {
        maps.get(self.map).is_some_and(|map| map.read(self.offset + inside, into))
    }
}

#[derive(Debug)]
struct Shown {
    place: Place,
    /// It was read since the frames were mapped again.
    is_used: bool,
}

#[derive(Debug, Default)]
struct Mapped {
    maps: Vec<Map>,
    shown: BTreeMap<u64, Shown>,
    /// How often places have become wrong.
    age: u64,
}

/// The frames of a domain, by their numbers: those of the machine for a paravirtualized guest, those of the guest for others.
pub(super) struct Frames {
    device: File,
    domain: u16,
    mapped: RefCell<Mapped>,
    mapped_ns: u64,
}

impl Frames {
    /// Maps nothing yet; `device` is `/dev/xen/privcmd`.
    pub(super) fn new(device: File, domain: u16) -> Frames {
        Frames { device, domain, mapped: RefCell::default(), mapped_ns: monotonic_ns() }
    }

    /// Gives all mappings back: while there is one, a domain that was destroyed does not go away.
    pub(super) fn forget(&mut self) {
        self.mapped.get_mut().renew(Vec::new(), BTreeMap::new());
    }

    /// Where a frame can be read until the [`age`](Frames::age) is another; mapped now if it was not. `None` if it cannot be mapped.
    pub(super) fn place(&self, frame: u64) -> Option<Place> {
        self.mapped.borrow_mut().find(&self.device, self.domain, frame)
    }

    /// Changes when places become wrong.
    pub(super) fn age(&self) -> u64 {
        self.mapped.borrow().age
    }

    /// What places are in.
    pub(super) fn maps(&self) -> Ref<'_, [Map]> {
        Ref::map(self.mapped.borrow(), |mapped| &mapped.maps[..])
    }

    /// Maps the frames that are in use again, if that was some time ago, and gives the others back. Not while the
    /// domain is held.
    pub(super) fn renew(&mut self) {
        let now = monotonic_ns();
        if now.saturating_sub(self.mapped_ns) < KEPT_NS {
            return;
        }
        self.mapped_ns = now;
        let mapped = self.mapped.get_mut();
        let used: Vec<u64> = mapped.shown.iter().filter(|(_, shown)| shown.is_used).map(|(frame, _)| *frame).collect();
        mapped.renew(Vec::new(), BTreeMap::new());
        if used.is_empty() {
            return;
        }
        // What cannot be mapped now is tried again when it is read.
        let Ok((map, is_mapped)) = map_foreign(self.device.as_fd(), self.domain, &used) else { return };
        let pages = used.into_iter().enumerate().filter(|(page, _)| is_mapped[*page]);
        let place = |page: usize| Place { map: 0, offset: (page * PAGE_BYTES) as u64 };
        let shown = pages.map(|(page, frame)| (frame, Shown { place: place(page), is_used: false }));
        mapped.renew(vec![map], shown.collect());
    }
}

impl Mapped {
    /// Replaces all mappings.
    fn renew(&mut self, maps: Vec<Map>, shown: BTreeMap<u64, Shown>) {
        *self = Mapped { maps, shown, age: self.age + 1 };
    }

    /// Where a frame can be read, mapped now if it was not.
    fn find(&mut self, device: &File, domain: u16, frame: u64) -> Option<Place> {
        match self.shown.get_mut(&frame) {
            Some(shown) => {
                shown.is_used = true;
                Some(shown.place)
            }
            None => self.add(device, domain, frame),
        }
    }

    /// Maps a frame.
    fn add(&mut self, device: &File, domain: u16, frame: u64) -> Option<Place> {
        let (map, is_mapped) = map_foreign(device.as_fd(), domain, &[frame]).ok()?;
        if is_mapped != [true] {
            return None;
        }
        if self.shown.len() >= FRAMES_MAX {
            self.renew(Vec::new(), BTreeMap::new());
        }
        let place = Place { map: self.maps.len(), offset: 0 };
        self.shown.insert(frame, Shown { place, is_used: true });
        self.maps.push(map);
        Some(place)
    }
}

impl Physical for Frames {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let (frame, inside) = (address / PAGE_BYTES as u64, address % PAGE_BYTES as u64);
        if inside + into.len() as u64 > PAGE_BYTES as u64 {
            return false;
        }
        let mut mapped = self.mapped.borrow_mut();
        let place = mapped.find(&self.device, self.domain, frame);
        place.is_some_and(|place| place.read(&mapped.maps, inside, into))
    }
}
