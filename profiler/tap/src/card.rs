//! The card as QEMU sets it up: features, memory and queues (QEMU, docs/interop/vhost-user.rst; virtio 1.2, section 5.1).

use crate::messages::{Message, REGIONS_MAX};
use crate::moves::{Receiver, Transmitter, Turn};
use crate::tap::Tap;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use virtio_queue::{Queue, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// As many descriptors as QEMU allows a card.
const QUEUE_SIZE_MAX: u16 = 1024;

/// Features (virtio 1.2, sections 5.1.3 and 6).
const CSUM: u64 = 1 << 0;
pub(crate) const GUEST_CSUM: u64 = 1 << 1;
pub(crate) const GUEST_TSO4: u64 = 1 << 7;
pub(crate) const GUEST_TSO6: u64 = 1 << 8;
pub(crate) const GUEST_ECN: u64 = 1 << 9;
const HOST_TSO4: u64 = 1 << 11;
const HOST_TSO6: u64 = 1 << 12;
const HOST_ECN: u64 = 1 << 13;
const MRG_RXBUF: u64 = 1 << 15;
const INDIRECT_DESC: u64 = 1 << 28;
const EVENT_IDX: u64 = 1 << 29;
/// Of vhost-user, not of the device: queues are enabled by messages.
const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
const FEATURES: u64 = CSUM
    | GUEST_CSUM
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | MRG_RXBUF
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1;

/// The header in front of each frame, and that of devices before virtio 1.0, which does not count buffers.
pub(crate) const HEADER_BYTES: usize = 12;
const OLD_HEADER_BYTES: usize = 10;

/// QEMU's messages.
mod request {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_OWNER: u32 = 3;
    pub(super) const RESET_OWNER: u32 = 4;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const SET_VRING_ERR: u32 = 14;
    pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
}

/// In the payload of a message with a file: the queue's number, and that there is no file.
const QUEUE_MASK: u64 = 0xff;
const NO_FILE: u64 = 1 << 8;

/// A queue, and how guest and device notify each other.
pub(crate) struct Ring {
    pub(crate) queue: Queue,
    /// The guest writes to it; without one the queue is stopped.
    kick: Option<File>,
    /// Written to for an interrupt.
    call: Option<File>,
    is_enabled: bool,
}

/// Memory of the guest that QEMU has at another address.
struct Region {
    qemu: u64,
    guest: u64,
    bytes: u64,
}

/// The card.
pub(crate) struct Card {
    tap: Tap,
    memory: GuestMemoryMmap,
    regions: Vec<Region>,
    /// To receive, and to transmit.
    rings: [Ring; 2],
    receiver: Receiver,
    transmitter: Transmitter,
}

impl Ring {
    fn new() -> Ring {
        let queue = Queue::new(QUEUE_SIZE_MAX).expect("the size is a power of two");
        Ring { queue, kick: None, call: None, is_enabled: false }
    }

    /// A queue that runs, whose interrupts are written to `call`.
    #[cfg(test)]
    pub(crate) fn running(queue: Queue, call: File) -> Ring {
        Ring { queue, kick: None, call: Some(call), is_enabled: true }
    }

    /// Whether frames may be moved.
    pub(crate) fn is_running(&self) -> bool {
        self.is_enabled && self.queue.ready()
    }

    /// Raises an interrupt.
    pub(crate) fn interrupt(&self) {
        if let Some(call) = &self.call {
            // An error: it has so many that the guest has not seen any of them.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
    }
}

impl Card {
    pub(crate) fn new(tap: Tap) -> Card {
        Card {
            tap,
            memory: GuestMemoryMmap::new(),
            regions: Vec::new(),
            rings: [Ring::new(), Ring::new()],
            receiver: Receiver::new(),
            transmitter: Transmitter::new(),
        }
    }

    pub(crate) fn tap(&self) -> &Tap {
        &self.tap
    }

    /// What the guest's notifications make readable.
    pub(crate) fn notifications(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().filter_map(|ring| ring.kick.as_ref()).map(AsFd::as_fd)
    }

    /// Moves some frames both ways. Whether there may be more, or what is waited for.
    pub(crate) fn work(&mut self) -> Turn {
        let Card { tap, memory, rings: [receive, transmit], receiver, transmitter, .. } = self;
        let sent = transmitter.turn(tap, memory, transmit, receiver.header_bytes);
        let received = receiver.turn(tap, memory, receive);
        if sent == Turn::Busy { Turn::Busy } else { received }
    }

    /// Does what a message requires: the payload of its answer, if it has one.
    pub(crate) fn obey(&mut self, message: Message) -> Result<Option<Vec<u8>>> {
        let word = |word: u64| Ok(Some(word.to_le_bytes().to_vec()));
        match message.request {
            request::GET_FEATURES => return word(FEATURES),
            request::SET_FEATURES => self.agree(message.u64(0)?)?,
            request::GET_PROTOCOL_FEATURES => return word(0),
            request::SET_OWNER | request::RESET_OWNER | request::SET_PROTOCOL_FEATURES | request::SET_VRING_ERR => {}
            request::SET_MEM_TABLE => self.map(message)?,
            request::SET_VRING_NUM => {
                let size = u16::try_from(message.u32(4)?).unwrap_or(u16::MAX);
                let set = ring(&mut self.rings, message.u32(0)?)?.queue.try_set_size(size);
                ensure!(
                    set.is_ok(),
                    "QEMU wants a queue of {size} descriptors, and there are at most {QUEUE_SIZE_MAX}"
                );
            }
            request::SET_VRING_BASE => {
                let next = message.u32(4)? as u16;
                ring(&mut self.rings, message.u32(0)?)?.queue.set_next_avail(next);
            }
            request::SET_VRING_ADDR => self.set_addresses(&message)?,
            request::GET_VRING_BASE => {
                let index = message.u32(0)?;
                let ring = ring(&mut self.rings, index)?;
                ring.queue.set_ready(false);
                (ring.kick, ring.call) = (None, None);
                let state = [index, ring.queue.next_avail().into()];
                return Ok(Some(state.into_iter().flat_map(u32::to_le_bytes).collect()));
            }
            request::SET_VRING_KICK => {
                let ring = ring(&mut self.rings, queue_number(&message)?)?;
                let file = file(message)?;
                // A read must not block when there is nothing to read.
                if let Some(kick) = &file {
                    rustix::io::ioctl_fionbio(kick, true).context("cannot wait for a queue's notifications")?;
                }
                ring.queue.set_ready(file.is_some());
                ring.kick = file;
            }
            request::SET_VRING_CALL => {
                let ring = ring(&mut self.rings, queue_number(&message)?)?;
                ring.call = file(message)?;
            }
            request::SET_VRING_ENABLE => ring(&mut self.rings, message.u32(0)?)?.is_enabled = message.u32(4)? != 0,
            other => bail!("QEMU sent the message {other}, which this card does not know"),
        }
        Ok(None)
    }

    fn agree(&mut self, features: u64) -> Result<()> {
        let has_count = features & (VERSION_1 | MRG_RXBUF) != 0;
        let header_bytes = if has_count { HEADER_BYTES } else { OLD_HEADER_BYTES };
        self.tap.agree(header_bytes, features).context("the TAP device does not have the guest's offloads")?;
        self.receiver.agree(header_bytes, features & MRG_RXBUF != 0);
        for ring in &mut self.rings {
            ring.queue.set_event_idx(features & EVENT_IDX != 0);
            if features & PROTOCOL_FEATURES == 0 {
                ring.is_enabled = true;
            }
        }
        Ok(())
    }

    /// Maps the guest's memory.
    fn map(&mut self, mut message: Message) -> Result<()> {
        let count = message.u32(0)? as usize;
        ensure!(count <= REGIONS_MAX && count == message.files.len(), "QEMU sent {count} regions without their files");
        let (mut regions, mut mapped) = (Vec::new(), Vec::new());
        for (index, file) in std::mem::take(&mut message.files).into_iter().enumerate() {
            let word = |word: usize| message.u64(8 + index * 32 + word * 8);
            let (guest, bytes, qemu, offset) = (word(0)?, word(1)?, word(2)?, word(3)?);
            let end = file.metadata().ok().zip(offset.checked_add(bytes));
            ensure!(end.is_some_and(|(file, end)| end <= file.len()), "QEMU sent a region that its file does not have");
            let region = MmapRegion::from_file(FileOffset::new(file, offset), bytes as usize);
            let region = region.context("cannot map the guest's memory")?;
            let region = GuestRegionMmap::new(region, GuestAddress(guest));
            mapped.push(region.context("the guest's memory is outside of any memory")?);
            regions.push(Region { qemu, guest, bytes });
        }
        self.memory = GuestMemoryMmap::from_regions(mapped).context("cannot map the guest's memory")?;
        self.regions = regions;
        Ok(())
    }

    fn set_addresses(&mut self, message: &Message) -> Result<()> {
        let guest = |offset: usize| -> Result<GuestAddress> {
            let address = message.u64(offset)?;
            let inside = |region: &&Region| address.checked_sub(region.qemu).is_some_and(|at| at < region.bytes);
            let region =
                self.regions.iter().find(inside).context("QEMU named a queue outside of the guest's memory")?;
            Ok(GuestAddress(address - region.qemu + region.guest))
        };
        let (descriptors, used, available) = (guest(8)?, guest(16)?, guest(24)?);
        let Card { memory, rings, .. } = self;
        let queue = &mut ring(rings, message.u32(0)?)?.queue;
        let set = [
            queue.try_set_desc_table_address(descriptors),
            queue.try_set_used_ring_address(used),
            queue.try_set_avail_ring_address(available),
        ];
        ensure!(set.iter().all(Result::is_ok), "QEMU named a queue that is not aligned");
        let next = queue.used_idx(memory, Ordering::Relaxed).map_err(|_| ());
        let Ok(next) = next else { bail!("QEMU named a queue outside of the guest's memory") };
        queue.set_next_used(next.0);
        Ok(())
    }
}

/// A queue by its number.
fn ring(rings: &mut [Ring], index: u32) -> Result<&mut Ring> {
    rings.get_mut(index as usize).with_context(|| format!("QEMU named the queue {index}, and there are two"))
}

/// The queue that a message with a file is about.
fn queue_number(message: &Message) -> Result<u32> {
    Ok((message.u64(0)? & QUEUE_MASK) as u32)
}

/// The file of a message, if it has one.
fn file(mut message: Message) -> Result<Option<File>> {
    let file = message.files.pop();
    ensure!(file.is_some() || message.u64(0)? & NO_FILE != 0, "QEMU's message {} has no file", message.request);
    Ok(file)
}
