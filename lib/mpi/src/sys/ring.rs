//! The ring from one rank to another: slots of one cache line each with a stamp, and a ring of bytes for what does not fit into a slot.
//!
//! A slot at position `p` holds a message when its stamp is `p + 1`; so the receiver learns of a message and reads it with one transfer
//! of a cache line, and writes nothing back but, every so often, how far it is (`Credit`).

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
};

#[cfg(not(loom))]
use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
};

use super::Memory;
#[cfg(loom)]
use alloc::vec::Vec;
#[cfg(not(loom))]
use core::ptr;
use core::ptr::NonNull;
#[cfg(not(loom))]
use core::slice;

/// Slots of a ring.
pub const SLOTS: u32 = if cfg!(loom) { 2 } else { 128 };
/// Bytes of a message that fit into its slot.
pub const INLINE_BYTES: usize = 40;
/// Bytes of the ring for longer ones. In a model it is full before the slots are: two pieces of a line.
pub const BULK_BYTES: u32 = if cfg!(loom) { 2 * LINE } else { 32 << 10 };
/// The longest piece: with one unread, one skipped at the end of the ring and an unpublished rest there is still room for one.
pub const CHUNK_BYTES_MAX: usize = if cfg!(loom) { LINE } else { BULK_BYTES / 4 } as usize;
/// The receiver publishes how far it is after so many slots or bytes.
const SLOTS_UNPUBLISHED_MAX: u32 = SLOTS / 4;
const BULK_UNPUBLISHED_MAX: u32 = BULK_BYTES / 8;
const LINE: u32 = 64;

/// What is in a slot.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Body {
    /// Which step of a protocol this is.
    pub kind: u8,
    reserved: u8,
    /// Bytes of a message in `data`.
    pub inline: u16,
    /// Context of the communicator.
    pub context: u32,
    /// Tag of the message.
    pub tag: i32,
    total: [u32; 2],
    /// A short message, or numbers.
    pub data: [u8; INLINE_BYTES],
}

impl Body {
    /// A slot's content with zeros for data.
    #[inline]
    pub fn new(kind: u8, context: u32, tag: i32, total: u64) -> Body {
        let total = [total as u32, (total >> 32) as u32];
        Body { kind, reserved: 0, inline: 0, context, tag, total, data: [0; INLINE_BYTES] }
    }

    /// Length of the whole message.
    #[inline]
    pub fn total(&self) -> u64 {
        u64::from(self.total[0]) | u64::from(self.total[1]) << 32
    }

    /// The number at place `index`, 0 to 4.
    pub fn word(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.data[index * 8..index * 8 + 8]);
        u64::from_ne_bytes(bytes)
    }

    /// Puts a number at place `index`, 0 to 4.
    pub fn set_word(&mut self, index: usize, word: u64) {
        self.data[index * 8..index * 8 + 8].copy_from_slice(&word.to_ne_bytes());
    }
}

/// One line of shared memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    stamp: AtomicU32,
    body: UnsafeCell<Body>,
}

/// How far the receiver is; it alone writes.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Credit {
    slots: AtomicU32,
    bulk: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 64 && size_of::<Credit>() == 64);

#[cfg(loom)]
impl Slot {
    /// An empty slot, for a model.
    pub fn empty() -> Slot {
        Slot { stamp: AtomicU32::new(0), body: UnsafeCell::new(Body::new(0, 0, 0, 0)) }
    }
}

#[cfg(loom)]
impl Credit {
    /// Nothing received, for a model.
    pub fn none() -> Credit {
        Credit { slots: AtomicU32::new(0), bulk: AtomicU32::new(0) }
    }
}

#[cfg(not(loom))]
#[inline]
fn put(slot: &Slot, body: &Body) {
    // SAFETY: the stamp shows that the slot is the sender's (`Producer::has_slot`).
    unsafe { *slot.body.get() = *body };
}

#[cfg(loom)]
fn put(slot: &Slot, body: &Body) {
    // SAFETY: the stamp shows that the slot is the sender's; loom checks it.
    slot.body.with_mut(|place| unsafe { *place = *body });
}

/// A line of the ring of bytes.
#[cfg(not(loom))]
pub type Line = [u8; LINE as usize];

/// As above: loom reports who reads or writes it while the other writes.
#[cfg(loom)]
pub type Line = UnsafeCell<[u8; LINE as usize]>;

#[cfg(not(loom))]
#[inline]
fn put_bulk(bulk: NonNull<Line>, offset: usize, from: &[u8]) {
    // SAFETY: the piece lies inside of the ring, and the receiver has read what was there (`Producer::push_bulk`); it is another's memory
    // than `from`.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), bulk.as_ptr().cast::<u8>().add(offset), from.len()) };
}

#[cfg(loom)]
fn put_bulk(bulk: NonNull<Line>, offset: usize, from: &[u8]) {
    // SAFETY: as above; loom checks it.
    unsafe {
        bulk.add(offset / LINE as usize).as_ref().with_mut(|line| (&mut *line)[..from.len()].copy_from_slice(from))
    };
}

/// The sender's end.
#[derive(Debug)]
pub struct Producer {
    slots: NonNull<Slot>,
    credit: NonNull<Credit>,
    bulk: NonNull<Line>,
    next: u32,
    /// As the receiver last published.
    taken: u32,
    bulk_next: u32,
    bulk_taken: u32,
}

impl Producer {
    /// The end of a ring in which nothing was sent yet.
    ///
    /// # Safety
    /// `slots` points to [`SLOTS`] slots, `bulk` to [`BULK_BYTES`] bytes, all zero at first and valid while this lives; there is one
    /// producer and one consumer of them.
    pub unsafe fn new(slots: NonNull<Slot>, credit: NonNull<Credit>, bulk: NonNull<Line>) -> Producer {
        Producer { slots, credit, bulk, next: 0, taken: 0, bulk_next: 0, bulk_taken: 0 }
    }

    fn slot(&self) -> &Slot {
        // SAFETY: the index is below SLOTS; the memory is valid by the promise of `new`.
        unsafe { self.slots.add((self.next % SLOTS) as usize).as_ref() }
    }

    fn credit(&self) -> &Credit {
        // SAFETY: valid by the promise of `new`.
        unsafe { self.credit.as_ref() }
    }

    /// Whether a slot is free.
    #[inline]
    pub fn has_slot(&mut self) -> bool {
        if self.next.wrapping_sub(self.taken) < SLOTS {
            return true;
        }
        // Acquire: pairs with the release in `Consumer::publish`; what the receiver read of the slots is read.
        self.taken = self.credit().slots.load(Ordering::Acquire);
        self.next.wrapping_sub(self.taken) < SLOTS
    }

    /// The number of the slot that is sent next.
    #[inline]
    pub fn position(&self) -> u32 {
        self.next
    }

    /// Sends what is in `body`. Only after [`Producer::has_slot`] returned true.
    #[inline]
    pub fn push(&mut self, body: &Body) {
        debug_assert!(self.next.wrapping_sub(self.taken) < SLOTS);
        let next = self.next.wrapping_add(1);
        let slot = self.slot();
        put(slot, body);
        // Release: pairs with the acquire in `Consumer::peek`; the body and its piece of bulk are written.
        slot.stamp.store(next, Ordering::Release);
        self.next = next;
    }

    /// Copies `from`, 1 to [`CHUNK_BYTES_MAX`] bytes, into the ring of bytes; returns its position, or `None` while there is no room.
    pub fn push_bulk(&mut self, from: &Memory) -> Option<u32> {
        let length = from.bytes() as u32;
        assert!(length > 0 && from.bytes() <= CHUNK_BYTES_MAX);
        let to_end = BULK_BYTES - self.bulk_next % BULK_BYTES;
        let start = self.bulk_next.wrapping_add(if length > to_end { to_end } else { 0 });
        let end = start.wrapping_add(length.next_multiple_of(LINE));
        if end.wrapping_sub(self.bulk_taken) > BULK_BYTES {
            // Acquire: as in `has_slot`.
            self.bulk_taken = self.credit().bulk.load(Ordering::Acquire);
            if end.wrapping_sub(self.bulk_taken) > BULK_BYTES {
                return None;
            }
        }
        put_bulk(self.bulk, (start % BULK_BYTES) as usize, from.as_slice());
        self.bulk_next = end;
        Some(start)
    }
}

/// The receiver's end.
#[derive(Debug)]
pub struct Consumer {
    slots: NonNull<Slot>,
    credit: NonNull<Credit>,
    bulk: NonNull<Line>,
    next: u32,
    published: u32,
    bulk_next: u32,
    bulk_published: u32,
}

impl Consumer {
    /// The end of a ring from which nothing was received yet.
    ///
    /// # Safety
    /// As for [`Producer::new`].
    pub unsafe fn new(slots: NonNull<Slot>, credit: NonNull<Credit>, bulk: NonNull<Line>) -> Consumer {
        Consumer { slots, credit, bulk, next: 0, published: 0, bulk_next: 0, bulk_published: 0 }
    }

    /// The number of the slot that is received next.
    #[inline]
    pub fn position(&self) -> u32 {
        self.next
    }

    /// The slot that is received next, if it is written.
    #[inline]
    fn written(&self) -> Option<&Slot> {
        // SAFETY: the index is below SLOTS; the memory is valid by the promise of `new`.
        let slot = unsafe { self.slots.add((self.next % SLOTS) as usize).as_ref() };
        // Acquire: pairs with the release in `Producer::push`.
        (slot.stamp.load(Ordering::Acquire) == self.next.wrapping_add(1)).then_some(slot)
    }

    /// What is received next, if anything is there; it stays there until [`Consumer::advance`].
    #[cfg(not(loom))]
    #[inline]
    pub fn peek(&self) -> Option<&Body> {
        // SAFETY: the slot is written; the sender leaves it alone until `advance` publishes that it is read.
        self.written().map(|slot| unsafe { &*slot.body.get() })
    }

    /// As above, by a copy: a model has no references into its cells.
    #[cfg(loom)]
    pub fn peek(&self) -> Option<Body> {
        // SAFETY: the slot is written; loom checks it.
        self.written().map(|slot| slot.body.with(|body| unsafe { *body }))
    }

    /// The piece of `bytes` bytes at a position of the ring of bytes, which a body names that is not advanced over yet.
    ///
    /// # Panics
    /// When it is not inside of the ring.
    #[cfg(not(loom))]
    pub fn bulk(&self, position: u32, bytes: usize) -> &[u8] {
        let offset = (position % BULK_BYTES) as usize;
        assert!(bytes <= BULK_BYTES as usize - offset, "a piece lies outside of the ring");
        // SAFETY: inside of the ring; the sender does not write it before `advance` publishes that it is read.
        unsafe { slice::from_raw_parts(self.bulk.as_ptr().cast::<u8>().add(offset), bytes) }
    }

    /// As above, by a copy that is never freed.
    #[cfg(loom)]
    pub fn bulk(&self, position: u32, bytes: usize) -> &[u8] {
        let line = (position % BULK_BYTES / LINE) as usize;
        // SAFETY: inside of the ring; loom checks that the sender does not write it.
        unsafe { self.bulk.add(line).as_ref().with(|line| Vec::leak((&*line)[..bytes].to_vec())) }
    }

    /// Leaves what [`Consumer::peek`] returned to the sender, with the piece of `bytes` bytes at `position` if it has one.
    #[inline]
    pub fn advance(&mut self, piece: Option<(u32, usize)>) {
        self.next = self.next.wrapping_add(1);
        if let Some((position, bytes)) = piece {
            self.bulk_next = position.wrapping_add((bytes as u32).next_multiple_of(LINE));
        }
        if self.next.wrapping_sub(self.published) > SLOTS_UNPUBLISHED_MAX
            || self.bulk_next.wrapping_sub(self.bulk_published) > BULK_UNPUBLISHED_MAX
        {
            self.publish();
        }
    }

    fn publish(&mut self) {
        // SAFETY: valid by the promise of `new`.
        let credit = unsafe { self.credit.as_ref() };
        // Release: pairs with the acquire in `Producer::has_slot` and `push_bulk`; the slots and pieces are read.
        credit.slots.store(self.next, Ordering::Release);
        credit.bulk.store(self.bulk_next, Ordering::Release);
        (self.published, self.bulk_published) = (self.next, self.bulk_next);
    }
}

// SAFETY: an end is moved to the thread that uses it; what it points to is shared by the protocol above.
unsafe impl Send for Producer {}
// SAFETY: as above.
unsafe impl Send for Consumer {}
