//! The guest's side of a queue, written by hand, and QEMU's messages.

use crate::rings::Ring;
use crate::vhost_user::{Connection, Message};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

pub(crate) const SIZE: u16 = 32;
pub(crate) const DESCRIPTORS: u64 = 0x1000;
pub(crate) const AVAILABLE: u64 = 0x2000;
pub(crate) const USED: u64 = 0x3000;
pub(crate) const DATA: u64 = 0x10000;
pub(crate) const MEMORY_BYTES: usize = 4 << 20;
/// Flags of a descriptor: another follows, the device writes.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;

/// The guest's side of one queue.
pub(crate) struct Guest {
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) ring: Ring,
    pub(crate) offered: u16,
    interrupts: File,
}

impl Guest {
    pub(crate) fn new(has_events: bool) -> Guest {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).unwrap();
        let mut queue = Queue::new(1024).unwrap();
        queue.set_size(SIZE);
        queue.try_set_desc_table_address(GuestAddress(DESCRIPTORS)).unwrap();
        queue.try_set_avail_ring_address(GuestAddress(AVAILABLE)).unwrap();
        queue.try_set_used_ring_address(GuestAddress(USED)).unwrap();
        queue.set_event_idx(has_events);
        queue.set_ready(true);
        let (interrupts, call) = UnixStream::pair().unwrap();
        interrupts.set_nonblocking(true).unwrap();
        let ring = Ring::running(queue, OwnedFd::from(call).into());
        Guest { memory, ring, offered: 0, interrupts: OwnedFd::from(interrupts).into() }
    }

    pub(crate) fn descriptor(&self, index: u16, address: u64, bytes: u32, flags: u16, next: u16) {
        let at = DESCRIPTORS + u64::from(index) * 16;
        self.memory.write_obj(address, GuestAddress(at)).unwrap();
        self.memory.write_obj(bytes, GuestAddress(at + 8)).unwrap();
        self.memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
        self.memory.write_obj(next, GuestAddress(at + 14)).unwrap();
    }

    /// Offers the chain that starts at a descriptor.
    pub(crate) fn offer(&mut self, head: u16) {
        let place = u64::from(self.offered % SIZE);
        self.memory.write_obj(head, GuestAddress(AVAILABLE + 4 + place * 2)).unwrap();
        self.offered += 1;
        self.memory.write_obj(self.offered, GuestAddress(AVAILABLE + 2)).unwrap();
    }

    pub(crate) fn used_count(&self) -> u16 {
        self.memory.read_obj(GuestAddress(USED + 2)).unwrap()
    }

    /// The chains that were given back, with the bytes written to each.
    pub(crate) fn used(&self) -> Vec<(u32, u32)> {
        let element = |index: u16| {
            let at = USED + 4 + u64::from(index % SIZE) * 8;
            let word = |at: u64| self.memory.read_obj(GuestAddress(at)).unwrap();
            (word(at), word(at + 4))
        };
        (0..self.used_count()).map(element).collect()
    }

    pub(crate) fn bytes(&self, address: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
        bytes
    }

    pub(crate) fn interrupts(&mut self) -> usize {
        self.interrupts.read(&mut [0; 4096]).map_or(0, |bytes| bytes / 8)
    }
}

/// A message of QEMU as a device receives it.
pub(crate) fn message(request: u32, payload: &[u8], file: Option<&File>) -> Message {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let bytes = [&request.to_le_bytes()[..], &[1, 0, 0, 0], &(payload.len() as u32).to_le_bytes(), payload].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file.as_fd()]);
    if let Some(files) = &files {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    sendmsg(&theirs, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
    Connection::new(ours).receive().unwrap().unwrap()
}
