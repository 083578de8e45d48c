//! A device between its queues and the host, as QEMU or another VMM has set it up.

use crate::rings::{Place, Position, Ring};
use anyhow::{Context, Result, ensure};
use glass_lib_jail::SystemCalls;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use vm_memory::GuestMemoryMmap;

/// Features of every device (virtio 1.2, section 6): a descriptor may name a table of them; each side states when it wants to be notified.
pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
pub(crate) const EVENT_IDX: u64 = 1 << 29;
/// The device is one of virtio 1.0 or later.
pub(crate) const VERSION_1: u64 = 1 << 32;
/// What every device has, whatever it is.
pub const FEATURES_OF_ALL: u64 = INDIRECT_DESC | EVENT_IDX | VERSION_1;
/// Broken rings that are reported, at most: a guest can break them as often as it likes.
const REPORTS_MAX: u32 = 8;

/// What a device does between its queues and the host.
pub trait Device {
    /// What the guest has by it, in words.
    const NAME: &'static str;
    /// Its number (virtio 1.2, section 5).
    const ID: u32;
    /// How many queues it has.
    const QUEUES: usize;

    /// Adds what it needs of the kernel, once it is open, to what its process may do.
    fn allow(system_calls: SystemCalls) -> SystemCalls;

    /// Called on the thread that serves it, before it does.
    fn begin(&self) {}

    /// Bytes of memory that it takes beside what every device has.
    fn memory_bytes(&self) -> u64 {
        0
    }

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

    /// What shows that the host has something for the device; `None` if it never has.
    fn host(&self) -> Option<Host<'_>>;
}

/// What a device waits for at the host.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// A file that is readable then.
    pub file: BorrowedFd<'a>,
    /// What is wrong if it reports an error instead, which ends the device.
    pub error: &'static str,
}

/// How a turn of a device ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// There may be more to do.
    Busy,
    /// It waits for the guest or the host.
    Done,
    /// It waits for the guest alone.
    NeedsGuest,
}

/// A queue as the guest's driver has set it up, what its notifications make readable, without blocking, and what its interrupts are written to.
pub struct Started {
    /// Where it is.
    pub place: Place,
    /// How far the device is with it; the default for a new one.
    pub position: Position,
    /// Of the driver.
    pub kick: File,
    /// To the driver.
    pub call: File,
}

/// A device, with the memory and the queues that it serves.
pub struct Served<D> {
    pub(crate) device: D,
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) rings: Vec<Ring>,
    /// How many broken rings were reported.
    reports: u32,
}

impl<D: Device> Served<D> {
    /// Prepares this thread, which is to serve the device.
    pub fn begin(&self) {
        self.device.begin();
    }

    /// Without memory, and with queues that do not run.
    pub fn new(device: D) -> Served<D> {
        let rings = (0..D::QUEUES).map(|_| Ring::new()).collect();
        Served { device, memory: GuestMemoryMmap::new(), rings, reports: 0 }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Starts the queues of a device that was stopped. Its driver has agreed to `features`, of the device's and [`FEATURES_OF_ALL`]; it has left
    /// those out that are `None`.
    ///
    /// # Errors
    /// The driver has put a queue where none can be, or the device cannot do what was agreed. It can be started again.
    pub fn start(&mut self, memory: &GuestMemoryMmap, features: u64, queues: Vec<Option<Started>>) -> Result<()> {
        self.device.agree(features)?;
        self.memory = memory.clone();
        for (index, (ring, queue)) in self.rings.iter_mut().zip(queues).enumerate() {
            ring.stop();
            let Some(started) = queue else { continue };
            let is_placed = ring.start(started, features & EVENT_IDX != 0);
            ensure!(is_placed, "queue {index} has no valid size or alignment");
        }
        Ok(())
    }

    /// How far the device is with each of its queues.
    pub fn positions(&self) -> Vec<Position> {
        self.rings.iter().map(Ring::position).collect()
    }

    /// Stops the queues: returns when the device does not use the guest's memory any more.
    pub fn stop(&mut self) -> Result<()> {
        self.finish()?;
        self.rings.iter_mut().for_each(Ring::stop);
        Ok(())
    }

    /// Waits until there is something to do after a turn that ended so. Whether `also` is readable.
    pub fn wait(&self, also: impl AsFd, turn: Turn) -> Result<bool> {
        let mut polled = vec![PollFd::new(&also, PollFlags::IN)];
        polled.extend(self.notifications().map(|notification| PollFd::from_borrowed_fd(notification, PollFlags::IN)));
        let notifications = 1..polled.len();
        let host = self.device.host().filter(|_| turn == Turn::Done);
        polled.extend(host.map(|host| PollFd::from_borrowed_fd(host.file, PollFlags::IN)));
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = if turn == Turn::Busy { Some(&now) } else { None };
        match poll(&mut polled, limit) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the guest"),
        }
        for notification in &polled[notifications.clone()] {
            if !notification.revents().is_empty() {
                // What it counts does not matter.
                let _ = rustix::io::read(notification, &mut [0; 8]);
            }
        }
        if let (Some(host), Some(polled)) = (host, polled.get(notifications.end)) {
            ensure!(!polled.revents().contains(PollFlags::ERR), "{}", host.error);
        }
        Ok(!polled[0].revents().is_empty())
    }

    /// What the guest's notifications make readable.
    pub(crate) fn notifications(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().filter_map(|ring| ring.kick.as_ref()).map(AsFd::as_fd)
    }

    /// Serves the queues for a moment.
    pub fn work(&mut self) -> Result<Turn> {
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
    pub fn violations(&self) -> u64 {
        self.rings.iter().map(Ring::violations).sum()
    }

    /// Returns when the device does not use the guest's memory any more.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.device.finish(&self.memory, &mut self.rings)
    }
}
