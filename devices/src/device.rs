//! A device between its queues and the host, as QEMU or another VMM has set it up.

use crate::rings::Ring;
use anyhow::Result;
use std::os::fd::{AsFd, BorrowedFd};
use vm_memory::GuestMemoryMmap;

/// The feature of every device (virtio 1.2, section 6).
pub(crate) const VERSION_1: u64 = 1 << 32;
/// Broken rings that are reported, at most: a guest can break them as often as it likes.
const REPORTS_MAX: u32 = 8;

/// What a device does between its queues and the host.
pub(crate) trait Device {
    /// What the guest has by it, in words.
    const NAME: &'static str;
    /// How many queues it has.
    const QUEUES: usize;

    /// Its features, without those of every device.
    fn features(&self) -> u64;

    /// What the guest can read about it, if there is something.
    fn config(&self) -> Option<&[u8]>;

    /// The guest's driver has agreed to `features`.
    fn agree(&mut self, features: u64) -> Result<()>;

    /// Serves the queues that run, for a moment. Returns whether there may be more to do, or what it waits for.
    fn work(&mut self, memory: &GuestMemoryMmap, rings: &mut [Ring]) -> Result<Turn>;

    /// Returns when the device does not use the guest's memory any more.
    fn finish(&mut self, memory: &GuestMemoryMmap, rings: &mut [Ring]) -> Result<()>;

    /// A file that becomes readable when the host has something for the device, and what is wrong if it reports an error instead, which ends the
    /// device.
    fn host(&self) -> (BorrowedFd<'_>, &'static str);
}

/// How a turn of a device ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There may be more to do.
    Busy,
    /// It waits for the guest or the host.
    Done,
    /// It waits for the guest alone.
    NeedsGuest,
}

/// A device, with the memory and the queues that it serves.
pub(crate) struct Served<D> {
    pub(crate) device: D,
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) rings: Vec<Ring>,
    /// How many broken rings were reported.
    reports: u32,
}

impl<D: Device> Served<D> {
    /// Without memory, and with queues that do not run.
    pub(crate) fn new(device: D) -> Served<D> {
        let rings = (0..D::QUEUES).map(|_| Ring::new()).collect();
        Served { device, memory: GuestMemoryMmap::new(), rings, reports: 0 }
    }

    /// What the guest's notifications make readable.
    pub(crate) fn notifications(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().filter_map(|ring| ring.kick.as_ref()).map(AsFd::as_fd)
    }

    /// Serves the queues for a moment.
    pub(crate) fn work(&mut self) -> Result<Turn> {
        let turn = self.device.work(&self.memory, &mut self.rings)?;
        for (index, ring) in self.rings.iter_mut().enumerate() {
            if let Some(broken) = ring.take_report()
                && self.reports < REPORTS_MAX
            {
                self.reports += 1;
                let name = D::NAME;
                eprintln!(
                    "the guest broke queue {index} of its {name}: {broken}; it rests until the guest's driver starts again"
                );
            }
        }
        Ok(turn)
    }

    /// What the guest may not do, and did: how often.
    pub(crate) fn violations(&self) -> u64 {
        self.rings.iter().map(Ring::violations).sum()
    }

    /// Returns when the device does not use the guest's memory any more.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.device.finish(&self.memory, &mut self.rings)
    }
}
