//! A split virtqueue (virtio 1.2, section 2.7) that trusts nothing the device writes.
//!
//! The rings are shared with the device; which descriptors are free, how long each chain is and how
//! much the device may write are kept apart, in memory that it does not know. A request costs two
//! stores for each segment, one for the available ring and one for its index; a completion three
//! loads of shared memory. Nothing is allocated after the queue is made.

use crate::session::Session;
use crate::transport::{QueueAddresses, Transport};
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use glass_drivers_device::{Dma, DmaMemory, SetupError, Users, Violation};

const DESCRIPTOR_BYTES: usize = 16;
const DESCRIPTOR_NEXT: u16 = 1;
const DESCRIPTOR_WRITE: u16 = 2;
const DESCRIPTOR_INDIRECT: u16 = 4;
/// Offset of the index and of the first entry in either ring.
const RING_INDEX: usize = 2;
const RING_ENTRIES: usize = 4;
const USED_ENTRY_BYTES: usize = 8;
const CACHE_LINE_BYTES: usize = 64;
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// One contiguous piece of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where the device finds it.
    pub address: u64,
    /// Its length.
    pub bytes: u32,
    /// The device writes it; otherwise the device reads it.
    pub device_writes: bool,
}

/// Names a request that is in flight. Small and dense: below the queue's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(crate) u16);

impl Token {
    /// A number below the queue's size, for tables of requests.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Which.
    pub token: Token,
    /// Bytes that the device reports as written, no more than it was allowed to.
    pub bytes_written: u32,
}

/// Why a request was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddError {
    /// Too many requests are in flight.
    Full,
    /// The device has violated the specification.
    Broken(Violation),
}

/// What a queue should be like.
#[derive(Debug, Clone, Copy)]
pub struct QueueOptions {
    /// Wanted number of descriptors, a power of two; the device may allow fewer.
    pub size: u16,
    /// The feature was agreed on.
    pub event_idx: bool,
    /// Longest request that takes one descriptor and a table of its own; 0 without that feature.
    pub table_entries: u16,
}

/// The driver's own data of a descriptor. The device cannot reach it.
#[derive(Clone, Copy)]
struct Shadow {
    /// The next descriptor of the chain or of the free list.
    next: u16,
    /// For the first descriptor of a chain in flight its length, otherwise 0.
    chain_length: u16,
    /// For the first descriptor of a chain in flight: bytes that the device may write.
    writable_bytes: u32,
}

/// One virtqueue.
pub struct Queue {
    number: u16,
    size: u16,
    event_idx: bool,
    rings: DmaMemory,
    available: usize,
    /// Where we say at which completion we want an interrupt.
    used_event: usize,
    used: usize,
    /// At which request the device wants a notification.
    available_event: usize,
    /// `table_entries` descriptors for each of the queue's, if requests use tables.
    tables: Option<DmaMemory>,
    table_entries: u16,
    shadow: Vec<Shadow>,
    free_first: u16,
    free_count: u16,
    in_flight: u16,
    available_index: u16,
    added_since_kick: u32,
    /// Completions up to here were taken.
    last_used: u16,
    /// Completions up to here are known to be there.
    seen_used: u16,
    /// An interrupt was requested, and not cancelled since.
    is_armed: bool,
    violation: Option<Violation>,
}

impl Queue {
    /// Sets up queue `number` between feature negotiation and the device's start.
    pub fn new<T: Transport>(
        session: &mut Session<T>,
        dma: &impl Dma,
        number: u16,
        options: QueueOptions,
    ) -> Result<Queue, SetupError> {
        assert!(options.size.is_power_of_two());
        let allowed = session.transport.read_queue_size_max(number);
        let fitting = if allowed == 0 { 0 } else { 1 << allowed.ilog2() };
        let size = options.size.min(fitting);
        if size < 2 {
            return Err(SetupError::QueueTooShort { queue: number, wanted: 2, allowed });
        }
        let count = usize::from(size);
        let available = count * DESCRIPTOR_BYTES;
        let used_event = available + RING_ENTRIES + 2 * count;
        // A line of its own keeps the device's stores away from ours.
        let used = (used_event / CACHE_LINE_BYTES + 1) * CACHE_LINE_BYTES;
        let available_event = used + RING_ENTRIES + USED_ENTRY_BYTES * count;
        let rings = session.allocate(dma, available_event + 2, Users::DeviceWrites)?;
        let tables = match usize::from(options.table_entries) {
            0 => None,
            entries => Some(session.allocate(dma, entries * DESCRIPTOR_BYTES * count, Users::DeviceReads)?),
        };
        let addresses = QueueAddresses {
            size,
            descriptors: rings.device_address(0),
            available: rings.device_address(available),
            used: rings.device_address(used),
        };
        // SAFETY: the rings were just laid out and zeroed for `size` descriptors. The session keeps them until it has reset the
        // device, and only `add` puts addresses into them.
        unsafe { session.transport.write_queue(number, &addresses) }?;
        let shadow = (1..=size).map(|next| Shadow { next, chain_length: 0, writable_bytes: 0 }).collect();
        let mut queue = Queue {
            number,
            size,
            event_idx: options.event_idx,
            rings,
            available,
            used_event,
            used,
            available_event,
            tables,
            table_entries: options.table_entries,
            shadow,
            free_first: 0,
            free_count: size,
            in_flight: 0,
            available_index: 0,
            added_since_kick: 0,
            last_used: 0,
            seen_used: 0,
            is_armed: false,
            violation: None,
        };
        queue.disarm();
        Ok(queue)
    }

    /// Number of descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Whether a request of `segments` segments fits now.
    pub fn has_space(&self, segments: usize) -> bool {
        self.violation.is_none() && self.slots_for(segments) <= usize::from(self.free_count)
    }

    /// The token that the next [`Queue::add`] returns if it succeeds: lets a driver keep each
    /// request's header at a place of its own.
    pub(crate) fn next_token(&self) -> Token {
        Token(self.free_first & (self.size - 1))
    }

    /// The violation that ended the use of the queue; `None` while it is used.
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// Ends the use of the queue. The first reason stays.
    pub fn break_with(&mut self, violation: Violation) -> Violation {
        *self.violation.get_or_insert(violation)
    }

    fn slots_for(&self, segments: usize) -> usize {
        if segments <= usize::from(self.table_entries) { 1 } else { segments }
    }

    fn mask(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// Queues a request: first the segments that the device reads, then those that it writes. The
    /// device may start at once; the next [`Queue::kick`] notifies it.
    ///
    /// # Safety
    /// Until the token comes back from [`Queue::pop`], or the device was reset, each segment must be
    /// memory that the device may use in that way: no other code writes to it, and where the
    /// device writes, none reads it or holds a reference to it.
    pub unsafe fn add(&mut self, segments: &[Segment]) -> Result<Token, AddError> {
        assert!(!segments.is_empty() && segments.is_sorted_by_key(|segment| segment.device_writes));
        if let Some(violation) = self.violation {
            return Err(AddError::Broken(violation));
        }
        if self.slots_for(segments.len()) > usize::from(self.free_count) {
            return Err(AddError::Full);
        }
        let first = self.free_first;
        let slots = if self.slots_for(segments.len()) < segments.len() {
            self.write_table(first, segments);
            1
        } else {
            self.write_chain(segments)
        };
        let writable = segments.iter().filter(|segment| segment.device_writes);
        let entry = &mut self.shadow[usize::from(first)];
        entry.chain_length = slots;
        entry.writable_bytes = writable.fold(0, |sum, segment| sum.saturating_add(segment.bytes));
        self.free_count -= slots;
        self.in_flight += 1;
        let ring_entry = self.available + RING_ENTRIES + 2 * self.mask(self.available_index);
        self.rings.store_u16(ring_entry, first, Ordering::Relaxed);
        self.available_index = self.available_index.wrapping_add(1);
        self.added_since_kick = self.added_since_kick.saturating_add(1);
        // Release: the device, which loads the index first, sees the descriptors and the entry.
        self.rings.store_u16(self.available + RING_INDEX, self.available_index, Ordering::Release);
        Ok(Token(first))
    }

    /// Writes a chain of descriptors from the free list and takes them off it.
    fn write_chain(&mut self, segments: &[Segment]) -> u16 {
        let mut descriptor = self.free_first;
        for (index, segment) in segments.iter().enumerate() {
            let next = self.shadow[usize::from(descriptor)].next;
            let following = (index + 1 < segments.len()).then_some(next);
            write_descriptor(&self.rings, usize::from(descriptor), segment, 0, following);
            descriptor = next;
        }
        self.free_first = descriptor;
        segments.len() as u16
    }

    /// Writes one descriptor that points to a table of the others.
    fn write_table(&mut self, first: u16, segments: &[Segment]) {
        let tables = self.tables.as_ref().expect("requests take tables only where there are some");
        let start = usize::from(first) * usize::from(self.table_entries);
        for (index, segment) in segments.iter().enumerate() {
            let following = (index + 1 < segments.len()).then_some(index as u16 + 1);
            write_descriptor(tables, start + index, segment, 0, following);
        }
        let table = Segment {
            address: tables.device_address(start * DESCRIPTOR_BYTES),
            bytes: (segments.len() * DESCRIPTOR_BYTES) as u32,
            device_writes: false,
        };
        write_descriptor(&self.rings, usize::from(first), &table, DESCRIPTOR_INDIRECT, None);
        self.free_first = self.shadow[usize::from(first)].next;
    }

    /// Whether a completion waits to be taken. One load of shared memory.
    pub fn has_used(&self) -> bool {
        self.violation.is_none() && self.read_used_index() != self.last_used
    }

    /// Completions that [`Queue::pop`] has seen and not taken yet.
    pub fn pending(&self) -> u16 {
        self.seen_used.wrapping_sub(self.last_used)
    }

    /// Whether this queue explains an interrupt of its device: one was requested, and a completion waits.
    pub fn explains_interrupt(&self) -> bool {
        self.is_armed && self.has_used()
    }

    /// Acquire: pairs with the device's store of the index after it wrote the entry and the data.
    fn read_used_index(&self) -> u16 {
        self.rings.load_u16(self.used + RING_INDEX, Ordering::Acquire)
    }

    /// Takes the next completion. An error ends the use of the queue.
    pub fn pop(&mut self) -> Result<Option<Used>, Violation> {
        if let Some(violation) = self.violation {
            return Err(violation);
        }
        if self.last_used == self.seen_used {
            self.seen_used = self.read_used_index();
            let count = self.seen_used.wrapping_sub(self.last_used);
            if count > self.in_flight {
                return Err(self.break_with(Violation::TooManyCompletions { count, in_flight: self.in_flight }));
            }
            if count == 0 {
                return Ok(None);
            }
        }
        let ring_entry = self.used + RING_ENTRIES + USED_ENTRY_BYTES * self.mask(self.last_used);
        let id = self.rings.load_u32(ring_entry);
        let bytes_written = self.rings.load_u32(ring_entry + 4);
        let first = match u16::try_from(id) {
            Ok(first) if first < self.size => first,
            _ => return Err(self.break_with(Violation::IdOutOfRange { id })),
        };
        let Shadow { chain_length, writable_bytes, .. } = self.shadow[usize::from(first)];
        if chain_length == 0 {
            return Err(self.break_with(Violation::NotInFlight { id: first }));
        }
        if bytes_written > writable_bytes {
            return Err(self.break_with(Violation::LengthTooLong { bytes: bytes_written, writable: writable_bytes }));
        }
        self.free_chain(first, chain_length);
        self.last_used = self.last_used.wrapping_add(1);
        Ok(Some(Used { token: Token(first), bytes_written }))
    }

    /// Puts a chain in front of the free list: its lines are the warmest.
    fn free_chain(&mut self, first: u16, chain_length: u16) {
        self.shadow[usize::from(first)].chain_length = 0;
        let mut last = usize::from(first);
        for _ in 1..chain_length {
            last = usize::from(self.shadow[last].next);
        }
        self.shadow[last].next = self.free_first;
        self.free_first = first;
        self.free_count += chain_length;
        self.in_flight -= 1;
    }

    /// Notifies the device if it requested that at any index since the last call (virtio 1.2,
    /// section 2.7.10). A device may leave any number in its field; a wrong one costs a
    /// notification too many or delays the device's own work, and cannot be distinguished from an old one.
    ///
    /// Returns the ticks of the trace's clock that the notification took, if there was one: the time in which the core executed nothing but
    /// the write to the device's register.
    pub fn kick(&mut self, transport: &mut impl Transport) -> Option<u64> {
        if self.added_since_kick == 0 || self.violation.is_some() {
            return None;
        }
        let added = core::mem::take(&mut self.added_since_kick);
        // The index was stored, the device's wish is loaded: only a full fence keeps them in order.
        fence(Ordering::SeqCst);
        let wanted = if self.event_idx {
            let event = self.rings.load_u16(self.available_event, Ordering::Relaxed);
            event_passed(event, self.available_index, added)
        } else {
            self.rings.load_u16(self.used, Ordering::Relaxed) & NO_NOTIFY == 0
        };
        wanted.then(|| {
            let start = glass_lib_trace::ticks();
            transport.notify(self.number);
            glass_lib_trace::ticks().saturating_sub(start)
        })
    }

    /// Requests an interrupt at the next completion. Returns true if one waits already: an interrupt
    /// may then never come, so do not sleep.
    pub fn arm(&mut self) -> bool {
        self.arm_after(0)
    }

    /// Requests an interrupt when `more` completions have come and then one more, at most all that
    /// are in flight. Returns true if that many wait already.
    pub fn arm_after(&mut self, more: u16) -> bool {
        if self.violation.is_some() {
            return false;
        }
        self.is_armed = true;
        let more = if self.event_idx { more.min(self.in_flight.saturating_sub(1)) } else { 0 };
        if self.event_idx {
            self.rings.store_u16(self.used_event, self.last_used.wrapping_add(more), Ordering::Relaxed);
        } else {
            self.rings.store_u16(self.available, 0, Ordering::Relaxed);
        }
        // Our wish was stored, the device's index is loaded. The device stores its index, then loads
        // our wish, with a fence of its own: so one of the two sees the other's store.
        fence(Ordering::SeqCst);
        self.read_used_index().wrapping_sub(self.last_used) > more
    }

    /// Requests no interrupts. With EVENT_IDX one in 65,536 completions may still send one.
    pub fn disarm(&mut self) {
        self.is_armed = false;
        if self.event_idx {
            self.rings.store_u16(self.used_event, self.last_used.wrapping_sub(1), Ordering::Relaxed);
        } else {
            self.rings.store_u16(self.available, NO_INTERRUPT, Ordering::Relaxed);
        }
    }
}

/// [`Queue::kick`] of each in turn; the ticks of all notifications together, if there was one.
pub fn kick_all<'a>(queues: impl IntoIterator<Item = &'a mut Queue>, transport: &mut impl Transport) -> Option<u64> {
    queues.into_iter().filter_map(|queue| queue.kick(transport)).reduce(|sum, ticks| sum + ticks)
}

/// Whether `event` is among the `added` indices below `new`: the device requested a notification at one of them.
fn event_passed(event: u16, new: u16, added: u32) -> bool {
    u32::from(new.wrapping_sub(event).wrapping_sub(1)) < added
}

fn write_descriptor(memory: &DmaMemory, index: usize, segment: &Segment, flags: u16, next: Option<u16>) {
    let write = if segment.device_writes { DESCRIPTOR_WRITE } else { 0 };
    let more = if next.is_some() { DESCRIPTOR_NEXT } else { 0 };
    let flags = u64::from(flags | write | more);
    let at = index * DESCRIPTOR_BYTES;
    memory.store_u64(at, segment.address);
    memory.store_u64(at + 8, u64::from(segment.bytes) | flags << 32 | u64::from(next.unwrap_or(0)) << 48);
}
