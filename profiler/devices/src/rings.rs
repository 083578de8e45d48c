//! The rings of a queue (virtio 1.2, section 2.7): buffers of a chain as memory of this process, and completion of several at once,
//! which `virtio-queue` does not have. A frame in several buffers has to be completed so (section 5.1.6.4).

use std::num::Wrapping;
use std::ops::Deref;
use std::sync::atomic::{Ordering, fence};
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{DescriptorChain, Queue, QueueT};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// Offsets in the used ring, and the length of an element of it.
const USED_INDEX: u64 = 2;
const USED_RING: u64 = 4;
const USED_BYTES: u64 = 8;
/// The same for the available ring.
const AVAILABLE_RING: u64 = 4;
const AVAILABLE_BYTES: u64 = 2;
/// In the available ring's flags: no interrupts, please.
const NO_INTERRUPT: u16 = 1;

/// A buffer that the guest has offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// The number of its first descriptor.
    pub(crate) head: u16,
    pub(crate) bytes: usize,
    /// Pieces of memory that it has.
    pub(crate) pieces: usize,
    /// Where it starts.
    pub(crate) start: GuestAddress,
}

/// The next buffer, whose pieces are appended to `pieces`; they live as long as `memory`. One that is not what the guest may offer has no
/// pieces.
pub(crate) fn next(
    queue: &mut Queue,
    memory: &GuestMemoryMmap,
    is_written: bool,
    pieces: &mut Vec<libc::iovec>,
) -> Option<Buffer> {
    let chain = queue.pop_descriptor_chain(memory)?;
    let (head, first) = (chain.head_index(), pieces.len());
    let empty = Buffer { head, bytes: 0, pieces: 0, start: GuestAddress(0) };
    let mut buffer = empty;
    if append(&mut buffer, chain, memory, is_written, pieces).is_none() {
        pieces.truncate(first);
        return Some(empty);
    }
    Some(buffer)
}

fn append<M: Deref<Target = GuestMemoryMmap> + Clone>(
    buffer: &mut Buffer,
    chain: DescriptorChain<M>,
    memory: &GuestMemoryMmap,
    is_written: bool,
    pieces: &mut Vec<libc::iovec>,
) -> Option<()> {
    let first = pieces.len();
    for descriptor in chain {
        if descriptor.is_write_only() != is_written {
            return None;
        }
        if buffer.bytes == 0 {
            buffer.start = descriptor.addr();
        }
        buffer.bytes += append_descriptor(&descriptor, memory, pieces)?;
    }
    buffer.pieces = pieces.len() - first;
    Some(())
}

/// Appends the pieces of a descriptor: their bytes, `None` if the guest does not have that memory.
fn append_descriptor(
    descriptor: &Descriptor,
    memory: &GuestMemoryMmap,
    pieces: &mut Vec<libc::iovec>,
) -> Option<usize> {
    let mut bytes = 0;
    for slice in GuestMemoryBackend::get_slices(memory, descriptor.addr(), descriptor.len() as usize) {
        let slice = slice.ok()?;
        let start = slice.ptr_guard_mut().as_ptr();
        pieces.push(libc::iovec { iov_base: start.cast(), iov_len: slice.len() });
        bytes += slice.len();
    }
    Some(bytes)
}

/// The first descriptor of the next request, whose pieces replace those in `read` (by the device) and `written`; they live as long as
/// `memory`. One that is not what the guest may offer has none.
pub(crate) fn next_request(
    queue: &mut Queue,
    memory: &GuestMemoryMmap,
    read: &mut Vec<libc::iovec>,
    written: &mut Vec<libc::iovec>,
) -> Option<u16> {
    let chain = queue.pop_descriptor_chain(memory)?;
    let head = chain.head_index();
    read.clear();
    written.clear();
    for descriptor in chain {
        // What the device reads is in front (virtio 1.2, section 2.7.4.2).
        let is_in_order = descriptor.is_write_only() || written.is_empty();
        let pieces = if descriptor.is_write_only() { &mut *written } else { &mut *read };
        if !is_in_order || append_descriptor(&descriptor, memory, pieces).is_none() {
            read.clear();
            written.clear();
            break;
        }
    }
    Some(head)
}

/// Gives buffers back, all at once; each with the number of bytes that were written to it. Whether the guest wants an interrupt, `None`
/// if the rings are not in its memory.
pub(crate) fn complete(queue: &mut Queue, memory: &GuestMemoryMmap, used: &[(u16, u32)]) -> Option<bool> {
    let ring = GuestAddress(queue.used_ring());
    let old = Wrapping(queue.next_used());
    let mut new = old;
    for &(head, bytes) in used {
        let place = u64::from(new.0 % queue.size());
        let element = u64::from(head) | u64::from(bytes) << 32;
        memory.write_obj(element.to_le(), ring.checked_add(USED_RING + place * USED_BYTES)?).ok()?;
        new += 1;
    }
    memory.store(new.0.to_le(), ring.checked_add(USED_INDEX)?, Ordering::Release).ok()?;
    queue.set_next_used(new.0);
    // The guest writes what it wants before it looks for the new index.
    fence(Ordering::SeqCst);
    let available = GuestAddress(queue.avail_ring());
    if !queue.event_idx_enabled() {
        let flags = u16::from_le(memory.load(available, Ordering::Relaxed).ok()?);
        return Some(flags & NO_INTERRUPT == 0);
    }
    let event = available.checked_add(AVAILABLE_RING + u64::from(queue.size()) * AVAILABLE_BYTES)?;
    let event = Wrapping(u16::from_le(memory.load(event, Ordering::Relaxed).ok()?));
    Some(new - event - Wrapping(1) < new - old)
}
