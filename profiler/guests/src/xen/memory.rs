//! The memory of a domain: frames that are mapped here, and stay so.
//!
//! Page tables are walked anew for each sample, so what a guest maps elsewhere is seen there. What is kept is which
//! page of ours shows a frame. A guest that gives a frame back to Xen and gets another one for the same number (a
//! balloon) would still be read through the old one, so frames in use are mapped again every second, while it runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;

use glass_profile::memory::Physical;

use crate::sys::xen::{PAGE_BYTES, map_foreign};
use crate::sys::{Map, monotonic_ns};

/// The most frames that are mapped at once: 32 MiB. When they are more, all are given back.
const FRAMES_MAX: usize = 8192;
/// How long a mapping is used.
const KEPT_NS: u64 = 1_000_000_000;

/// Where a frame can be read.
#[derive(Debug)]
struct Shown {
    /// Of which mapping.
    map: usize,
    /// The page in it.
    page: usize,
    /// It was read since the frames were mapped again.
    is_used: bool,
}

#[derive(Debug, Default)]
struct Mapped {
    maps: Vec<Map>,
    shown: BTreeMap<u64, Shown>,
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
        *self.mapped.get_mut() = Mapped::default();
    }

    /// Maps the frames that are in use again, if that was some time ago, and gives the others back. Not while the
    /// domain is held.
    pub(super) fn renew(&mut self) {
        let now = monotonic_ns();
        if now.saturating_sub(self.mapped_ns) < KEPT_NS {
            return;
        }
        self.mapped_ns = now;
        let old = std::mem::take(self.mapped.get_mut());
        let used: Vec<u64> = old.shown.iter().filter(|(_, shown)| shown.is_used).map(|(frame, _)| *frame).collect();
        if used.is_empty() {
            return;
        }
        // What cannot be mapped now is tried again when it is read.
        let Ok((map, is_mapped)) = map_foreign(self.device.as_fd(), self.domain, &used) else { return };
        let pages = used.into_iter().enumerate().filter(|(page, _)| is_mapped[*page]);
        let shown = pages.map(|(page, frame)| (frame, Shown { map: 0, page, is_used: false })).collect();
        *self.mapped.get_mut() = Mapped { maps: vec![map], shown };
    }
}

impl Mapped {
    /// Where a frame can be read, mapped now if it was not.
    fn find(&mut self, device: &File, domain: u16, frame: u64) -> Option<(&Map, usize)> {
        let (map, page) = match self.shown.get_mut(&frame) {
            Some(shown) => {
                shown.is_used = true;
                (shown.map, shown.page)
            }
            None => (self.add(device, domain, frame)?, 0),
        };
        Some((self.maps.get(map)?, page))
    }

    /// Maps a frame; the number of its mapping.
    fn add(&mut self, device: &File, domain: u16, frame: u64) -> Option<usize> {
        let (map, is_mapped) = map_foreign(device.as_fd(), domain, &[frame]).ok()?;
        if is_mapped != [true] {
            return None;
        }
        if self.shown.len() >= FRAMES_MAX {
            *self = Mapped::default();
        }
        self.shown.insert(frame, Shown { map: self.maps.len(), page: 0, is_used: true });
        self.maps.push(map);
        Some(self.maps.len() - 1)
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
        place.is_some_and(|(map, page)| map.read((page * PAGE_BYTES) as u64 + inside, into))
    }
}
