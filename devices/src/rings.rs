//! The rings of a queue (virtio 1.2, section 2.7): buffers of a chain as memory of this process, and completion of several at once,
//! which `virtio-queue` does not have. A frame in several buffers has to be completed so (section 5.1.6.4).
//!
//! A guest writes to its rings while they are read, and it may do so against the specification. A chain that it may not offer is given
//! back as it is, and counted. A ring that makes no sense any more rests until the guest's driver starts it again, since no device can
//! know what its guest meant.

use crate::device::Started;
use std::fmt;
use std::fs::File;
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

/// As many descriptors as QEMU allows a queue.
pub const QUEUE_SIZE_MAX: u16 = 1024;
/// Descriptors of a chain, and pieces of memory that it has, at most: what Linux reads or writes at once (`UIO_MAXIOV`).
pub(crate) const PIECES_MAX: usize = 1024;
/// Descriptors that are read in a round, at most, and those of one chain: a few milliseconds.
const ROUND_DESCRIPTORS: usize = 4 << 10;

/// How a guest has made a ring useless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// It offered more chains than its queue has room for; how many.
    Jumped(u16),
    /// It offered chains, and changed that while they were taken.
    Changed,
    /// The number of a descriptor that its queue does not have.
    Head(u16),
    /// The ring is in no memory.
    Outside,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Jumped(count) => write!(f, "it offered {count} chains of descriptors, more than there is room for"),
            Broken::Changed => write!(f, "it changed what it had offered"),
            Broken::Head(head) => write!(f, "it offered the descriptor {head}, which it does not have"),
            Broken::Outside => write!(f, "it is outside of the guest's memory"),
        }
    }
}

/// Where a guest's driver has put a queue: its size, and the addresses of its parts in the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Descriptors.
    pub size: u16,
    /// Of the table of descriptors.
    pub descriptors: u64,
    /// Of the available ring.
    pub available: u64,
    /// Of the used ring.
    pub used: u64,
}

/// How far a device is with a queue: the chains that it has taken and given back, both modulo 2^16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The index in the available ring from which it takes the next one.
    pub next_available: u16,
    /// The index in the used ring to which it gives the next one back.
    pub next_used: u16,
}

/// A queue, and how guest and device notify each other.
pub struct Ring {
    pub(crate) queue: Queue,
    /// The guest writes to it; without one the queue is stopped.
    pub(crate) kick: Option<File>,
    /// Written to for an interrupt.
    pub(crate) call: Option<File>,
    /// Written to when the ring is broken.
    pub(crate) error: Option<File>,
    pub(crate) is_enabled: bool,
    /// Until the queue is stopped.
    broken: Option<Broken>,
    is_reported: bool,
    /// What the guest may not do, and did: chains, and broken rings.
    violations: u64,
}

/// What may be taken from a ring until others have their turn: what the guest had offered at the start. Without such a limit a guest that
/// offers chains as fast as they are given back holds the device for as long as it likes.
#[derive(Debug)]
pub(crate) struct Round {
    chains: u16,
    descriptors: usize,
}

impl Round {
    /// Whether there is more, for which there is no room in this round.
    pub(crate) fn is_cut(&self) -> bool {
        self.chains > 0
    }
}

impl Ring {
    pub(crate) fn new() -> Ring {
        let queue = Queue::new(QUEUE_SIZE_MAX).expect("the size is a power of two");
        Ring {
            queue,
            kick: None,
            call: None,
            error: None,
            is_enabled: false,
            broken: None,
            is_reported: false,
            violations: 0,
        }
    }

    /// A queue that runs, whose interrupts are written to `call`.
    #[cfg(test)]
    pub(crate) fn running(queue: Queue, call: File) -> Ring {
        Ring { queue, call: Some(call), is_enabled: true, ..Ring::new() }
    }

    /// Runs a queue that was stopped, from `position` on. Returns false, and does not run it, if it cannot be at that place.
    pub(crate) fn start(&mut self, started: Started, has_events: bool) -> bool {
        let Started { place, position, kick, call } = started;
        let queue = &mut self.queue;
        queue.reset();
        queue.set_next_avail(position.next_available);
        queue.set_next_used(position.next_used);
        queue.set_event_idx(has_events);
        let is_placed = queue.try_set_size(place.size).is_ok()
            && queue.try_set_desc_table_address(GuestAddress(place.descriptors)).is_ok()
            && queue.try_set_avail_ring_address(GuestAddress(place.available)).is_ok()
            && queue.try_set_used_ring_address(GuestAddress(place.used)).is_ok();
        queue.set_ready(is_placed);
        (self.kick, self.call, self.is_enabled) = (Some(kick), Some(call), is_placed);
        is_placed
    }

    /// Whether its buffers may be used.
    pub(crate) fn is_running(&self) -> bool {
        self.is_enabled && self.queue.ready() && self.broken.is_none()
    }

    /// Stops: it is set up again before it runs.
    pub(crate) fn stop(&mut self) {
        self.queue.set_ready(false);
        (self.kick, self.call, self.broken) = (None, None, None);
        self.is_reported = false;
    }

    /// How far it is.
    pub(crate) fn position(&self) -> Position {
        Position { next_available: self.queue.next_avail(), next_used: self.queue.next_used() }
    }

    pub(crate) fn violations(&self) -> u64 {
        self.violations
    }

    /// How it was broken, if that was not reported before.
    pub(crate) fn take_report(&mut self) -> Option<Broken> {
        self.broken.filter(|_| !std::mem::replace(&mut self.is_reported, true))
    }

    /// Raises an interrupt.
    pub(crate) fn interrupt(&self) {
        if let Some(call) = &self.call {
            // It fails only if the counter is full: then the guest has not taken 2^64 interrupts, and one more changes nothing.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
    }

    /// Rests from here on.
    fn break_down(&mut self, broken: Broken) {
        self.violations += 1;
        self.broken = Some(broken);
        if let Some(error) = &self.error {
            // An error: QEMU has not read the last ones.
            let _ = rustix::io::write(error, &1_u64.to_ne_bytes());
        }
    }

    /// Starts a round of a ring that runs.
    pub(crate) fn round(&mut self, memory: &GuestMemoryMmap) -> Round {
        let chains = match self.queue.avail_idx(memory, Ordering::Acquire) {
            Ok(index) => (index - Wrapping(self.queue.next_avail())).0,
            Err(_) => {
                self.break_down(Broken::Outside);
                0
            }
        };
        if chains > self.queue.size() {
            self.break_down(Broken::Jumped(chains));
            return Round { chains: 0, descriptors: 0 };
        }
        Round { chains, descriptors: ROUND_DESCRIPTORS }
    }

    /// The next chain of a round.
    fn pop<'a>(
        &mut self,
        memory: &'a GuestMemoryMmap,
        round: &mut Round,
    ) -> Option<DescriptorChain<&'a GuestMemoryMmap>> {
        if round.chains == 0 || round.descriptors == 0 {
            return None;
        }
        let chain = self.queue.pop_descriptor_chain(memory);
        let broken = match &chain {
            None => Broken::Changed,
            Some(chain) if chain.head_index() >= self.queue.size() => Broken::Head(chain.head_index()),
            Some(_) => {
                round.chains -= 1;
                return chain;
            }
        };
        round.chains = 0;
        self.break_down(broken);
        None
    }

    /// The next buffer, whose pieces are appended to `pieces`; they live as long as `memory`. A buffer that violates the specification has no
    /// pieces, and is counted.
    pub(crate) fn next_buffer(
        &mut self,
        memory: &GuestMemoryMmap,
        round: &mut Round,
        is_written: bool,
        pieces: &mut Vec<libc::iovec>,
    ) -> Option<Buffer> {
        let chain = self.pop(memory, round)?;
        let (head, first) = (chain.head_index(), pieces.len());
        let mut buffer = Buffer { head, bytes: 0, pieces: 0, start: GuestAddress(0) };
        let is_valid = walk(chain, round, |descriptor| {
            if descriptor.is_write_only() != is_written {
                return None;
            }
            if buffer.bytes == 0 {
                buffer.start = descriptor.addr();
            }
            buffer.bytes += append(&descriptor, memory, pieces, first + PIECES_MAX)?;
            Some(())
        });
        if is_valid.is_none() {
            self.violations += 1;
            pieces.truncate(first);
            return Some(Buffer { bytes: 0, ..buffer });
        }
        buffer.pieces = pieces.len() - first;
        Some(buffer)
    }

    /// The first descriptor of the next request, whose pieces replace those in `read` (by the device) and `written`; they live as long as
    /// `memory`. A request that violates the specification has none.
    pub(crate) fn next_request(
        &mut self,
        memory: &GuestMemoryMmap,
        round: &mut Round,
        read: &mut Vec<libc::iovec>,
        written: &mut Vec<libc::iovec>,
    ) -> Option<u16> {
        let chain = self.pop(memory, round)?;
        let head = chain.head_index();
        read.clear();
        written.clear();
        let is_valid = walk(chain, round, |descriptor| {
            // What the device reads is in front (virtio 1.2, section 2.7.4.2).
            let is_in_order = descriptor.is_write_only() || written.is_empty();
            let pieces = if descriptor.is_write_only() { &mut *written } else { &mut *read };
            if is_in_order { append(&descriptor, memory, pieces, PIECES_MAX).map(|_| ()) } else { None }
        });
        if is_valid.is_none() {
            self.violations += 1;
            read.clear();
            written.clear();
        }
        Some(head)
    }

    /// Gives buffers back, all at once; each with the number of bytes that were written to it. Whether the guest wants an interrupt.
    pub(crate) fn complete(&mut self, memory: &GuestMemoryMmap, used: &[(u16, u32)]) -> bool {
        if self.broken.is_some() {
            return false;
        }
        complete(&mut self.queue, memory, used).unwrap_or_else(|| {
            self.break_down(Broken::Outside);
            false
        })
    }
}

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

/// Gives each descriptor of a chain to `take`. `None` if that returns it, or if the chain is too long or has no end.
fn walk<M: Deref<Target = GuestMemoryMmap>>(
    chain: DescriptorChain<M>,
    round: &mut Round,
    mut take: impl FnMut(Descriptor) -> Option<()>,
) -> Option<()> {
    // One that ends within a descriptor, or has nothing, has a descriptor that cannot be read.
    let mut is_open = true;
    for (index, descriptor) in chain.enumerate() {
        round.descriptors = round.descriptors.saturating_sub(1);
        if index == PIECES_MAX {
            return None;
        }
        is_open = descriptor.has_next();
        take(descriptor)?;
    }
    (!is_open).then_some(())
}

/// Appends the pieces of a descriptor: their bytes, `None` if the guest does not have that memory, or if there are more than `pieces_max`.
fn append(
    descriptor: &Descriptor,
    memory: &GuestMemoryMmap,
    pieces: &mut Vec<libc::iovec>,
    pieces_max: usize,
) -> Option<usize> {
    let mut bytes = 0;
    for slice in GuestMemoryBackend::get_slices(memory, descriptor.addr(), descriptor.len() as usize) {
        let slice = slice.ok()?;
        if pieces.len() == pieces_max {
            return None;
        }
        let start = slice.ptr_guard_mut().as_ptr();
        pieces.push(libc::iovec { iov_base: start.cast(), iov_len: slice.len() });
        bytes += slice.len();
    }
    Some(bytes)
}

/// [`Ring::complete`]; `None` if the rings are not in the guest's memory.
fn complete(queue: &mut Queue, memory: &GuestMemoryMmap, used: &[(u16, u32)]) -> Option<bool> {
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

/// Copies `parts` one behind the other into the pieces; returns how much that was. What has no room is lost.
///
/// # Safety
/// The pieces are memory that may be written and that no reference leads to.
pub(crate) unsafe fn copy_to(pieces: &[libc::iovec], parts: &[&[u8]]) -> usize {
    let (mut index, mut used, mut all) = (0, 0, 0);
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty()
            && let Some(piece) = pieces.get(index)
        {
            let (now, later) = rest.split_at(rest.len().min(piece.iov_len - used));
            let to = piece.iov_base.wrapping_byte_add(used).cast::<u8>();
            // SAFETY: the caller's promise; a piece is as long as it states.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), to, now.len()) };
            (rest, used, all) = (later, used + now.len(), all + now.len());
            if used == piece.iov_len {
                (index, used) = (index + 1, 0);
            }
        }
    }
    all
}
