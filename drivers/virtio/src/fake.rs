//! A device for tests: the other side of the registers and of the rings, correct or malfunctioning.
//!
//! It plays the device as the specification describes it, on the same memory as the driver, and
//! checks what no driver may do: name memory that was not given to it, or loop a chain. What a
//! request means is up to the test.

use crate::queue::Segment;
use crate::transport::{QueueAddresses, Transport, feature, status};
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicUsize, Ordering, fence};
use glass_drivers_device::{Dma, DmaMemory, IdentityDma, PAGE_BYTES, SetupError, Users};
use std::sync::{Mutex, MutexGuard};

/// What both sides of the fake registers share.
#[derive(Default)]
pub struct State {
    pub id: u32,
    pub status: u8,
    pub offered: u64,
    pub accepted: u64,
    pub config: Vec<u8>,
    pub queue_size_max: u16,
    pub queues: Vec<DeviceQueue>,
    pub notified: Vec<u16>,
    pub acknowledged: usize,
    /// The device does not reset.
    pub stuck: bool,
    /// The device does not agree to any features.
    pub refuses: bool,
    pub resets: usize,
    /// The device has no room for interrupts of queues.
    pub refuses_interrupts: bool,
    /// The configuration changes at each look.
    pub restless: bool,
    pub generation: u32,
    /// Offset and width of each read of the configuration.
    pub config_reads: Vec<(u16, usize)>,
    /// Ticks of the trace's clock that a notification takes at least.
    pub notify_ticks: u64,
}

impl State {
    fn read_config<const BYTES: usize>(&mut self, offset: u16) -> [u8; BYTES] {
        assert!(usize::from(offset).is_multiple_of(BYTES), "a field is aligned");
        self.config_reads.push((offset, BYTES));
        core::array::from_fn(|index| self.config.get(usize::from(offset) + index).copied().unwrap_or(0))
    }
}

/// The registers; clones are handles to one device.
#[derive(Clone)]
pub struct Fake(Arc<Mutex<State>>);

impl Fake {
    /// A device of kind `id` with these features, besides VERSION_1.
    pub fn new(id: u32, offered: u64, config: &[u8]) -> Fake {
        let offered = offered | feature::VERSION_1;
        let state = State { id, offered, config: config.to_vec(), queue_size_max: 1024, ..State::default() };
        Fake(Arc::new(Mutex::new(state)))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Lets `work` play the device on queue number `index`.
    pub fn with<R>(&self, index: u16, work: impl FnOnce(&mut DeviceQueue) -> R) -> R {
        let mut state = self.state();
        work(state.queues.iter_mut().find(|queue| queue.number == index).expect("the driver has set the queue up"))
    }

    /// Takes the notifications since the last call.
    pub fn notifications(&self) -> Vec<u16> {
        core::mem::take(&mut self.state().notified)
    }
}

impl Transport for Fake {
    fn device_id(&self) -> u32 {
        self.state().id
    }
    fn read_status(&mut self) -> u8 {
        self.state().status
    }
    fn write_status(&mut self, value: u8) {
        let mut state = self.state();
        if value == 0 {
            state.resets += 1;
            if !state.stuck {
                state.status = 0;
                state.queues.clear();
            }
            return;
        }
        assert_eq!(state.status & !value & !status::NEEDS_RESET, 0, "a driver clears no bit of the status");
        state.status = value;
        if state.refuses {
            state.status &= !status::FEATURES_OK;
        }
    }
    fn read_features(&mut self) -> u64 {
        self.state().offered
    }
    fn write_features(&mut self, features: u64) {
        let mut state = self.state();
        assert_eq!(features & !state.offered, 0, "a driver accepts only what was offered");
        state.accepted = features;
    }
    fn read_queue_size_max(&mut self, _queue: u16) -> u16 {
        self.state().queue_size_max
    }
    unsafe fn write_queue(&mut self, queue: u16, addresses: &QueueAddresses) -> Result<(), SetupError> {
        let mut state = self.state();
        assert!(addresses.size.is_power_of_two() && addresses.size <= state.queue_size_max);
        assert_eq!(state.status & (status::FEATURES_OK | status::DRIVER_OK), status::FEATURES_OK);
        let event_idx = state.accepted & feature::EVENT_IDX != 0;
        state.queues.push(DeviceQueue::new(queue, *addresses, event_idx));
        if state.refuses_interrupts { Err(SetupError::InterruptRefused { queue }) } else { Ok(()) }
    }
    fn notify(&mut self, queue: u16) {
        let mut state = self.state();
        state.notified.push(queue);
        let end = glass_lib_trace::ticks() + state.notify_ticks;
        while glass_lib_trace::ticks() < end {}
    }
    fn acknowledge_interrupt(&mut self) {
        self.state().acknowledged += 1;
    }
    fn read_config_u8(&mut self, offset: u16) -> u8 {
        u8::from_le_bytes(self.state().read_config(offset))
    }
    fn read_config_u16(&mut self, offset: u16) -> u16 {
        u16::from_le_bytes(self.state().read_config(offset))
    }
    fn read_config_u32(&mut self, offset: u16) -> u32 {
        u32::from_le_bytes(self.state().read_config(offset))
    }
    fn read_config_generation(&mut self) -> u32 {
        let mut state = self.state();
        state.generation += u32::from(state.restless);
        state.generation
    }
}

/// A request as the device sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub head: u16,
    pub segments: Vec<Segment>,
}

impl Chain {
    pub fn writable_bytes(&self) -> u32 {
        self.segments.iter().filter(|segment| segment.device_writes).map(|segment| segment.bytes).sum()
    }

    /// Everything that the device may read, one after the other.
    pub fn read(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for segment in self.segments.iter().filter(|segment| !segment.device_writes) {
            let start = bytes.len();
            bytes.resize(start + segment.bytes as usize, 0);
            let source = ptr::with_exposed_provenance::<u8>(segment.address as usize);
            // SAFETY: the driver named the segment in a request that is in flight, so it is readable
            // memory that is not written.
            unsafe { ptr::copy_nonoverlapping(source, bytes[start..].as_mut_ptr(), segment.bytes as usize) }
        }
        bytes
    }

    /// Writes `bytes` to the writable segments, from the first on, and returns how many fitted.
    pub fn write(&self, mut bytes: &[u8]) -> u32 {
        let mut written = 0;
        for segment in self.segments.iter().filter(|segment| segment.device_writes) {
            let count = bytes.len().min(segment.bytes as usize);
            let target = ptr::with_exposed_provenance_mut::<u8>(segment.address as usize);
            // SAFETY: the driver named the segment in a request that is in flight, so it is memory
            // for the device alone.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, count) }
            bytes = &bytes[count..];
            written += count as u32;
        }
        written
    }
}

/// The device's side of a split queue.
pub struct DeviceQueue {
    pub number: u16,
    addresses: QueueAddresses,
    event_idx: bool,
    next_available: u16,
    pub used_index: u16,
}

impl DeviceQueue {
    fn new(number: u16, addresses: QueueAddresses, event_idx: bool) -> DeviceQueue {
        DeviceQueue { number, addresses, event_idx, next_available: 0, used_index: 0 }
    }

    pub fn addresses(&self) -> QueueAddresses {
        self.addresses
    }

    fn u16_at(&self, address: u64) -> &AtomicU16 {
        // SAFETY: the driver's queue keeps the rings until it resets the device, which drops `self`.
        unsafe { AtomicU16::from_ptr(ptr::with_exposed_provenance_mut(address as usize)) }
    }

    fn u32_at(&self, address: u64) -> &AtomicU32 {
        // SAFETY: as in `u16_at`.
        unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(address as usize)) }
    }

    fn size(&self) -> u64 {
        u64::from(self.addresses.size)
    }

    fn read_descriptor(&self, address: u64) -> (Segment, u16, u16) {
        let word = |offset| u64::from(self.u32_at(address + offset).load(Ordering::Relaxed));
        let (flags, next) = (word(12) as u16, (word(12) >> 16) as u16);
        let segment =
            Segment { address: word(0) | word(4) << 32, bytes: word(8) as u32, device_writes: flags & 2 != 0 };
        (segment, flags, next)
    }

    /// The next request, if there is one.
    pub fn take(&mut self) -> Option<Chain> {
        let index = self.u16_at(self.addresses.available + 2).load(Ordering::Acquire);
        if index == self.next_available {
            return None;
        }
        let slot = u64::from(self.next_available) % self.size();
        let head = self.u16_at(self.addresses.available + 4 + 2 * slot).load(Ordering::Relaxed);
        assert!(u64::from(head) < self.size());
        self.next_available = self.next_available.wrapping_add(1);
        let (mut table, mut limit, mut at) = (self.addresses.descriptors, self.size(), u64::from(head));
        let mut segments = Vec::new();
        loop {
            assert!(at < limit && (segments.len() as u64) < limit, "a chain leaves its table");
            let (segment, flags, next) = self.read_descriptor(table + 16 * at);
            if flags & 4 != 0 {
                assert!(segments.is_empty() && flags == 4, "a table stands alone");
                (table, limit, at) = (segment.address, u64::from(segment.bytes / 16), 0);
                continue;
            }
            assert!(segment.bytes > 0, "QEMU refuses a device whose driver sends an empty segment");
            segments.push(segment);
            if flags & 1 == 0 {
                break;
            }
            at = u64::from(next);
        }
        assert!(segments.is_sorted_by_key(|segment| segment.device_writes));
        Some(Chain { head, segments })
    }

    /// Writes a used entry that may be invalid.
    pub fn put(&mut self, id: u32, bytes: u32) {
        let entry = self.addresses.used + 4 + 8 * (u64::from(self.used_index) % self.size());
        self.u32_at(entry).store(id, Ordering::Relaxed);
        self.u32_at(entry + 4).store(bytes, Ordering::Relaxed);
        self.publish(1);
    }

    /// Moves the used index.
    pub fn publish(&mut self, count: u16) {
        self.used_index = self.used_index.wrapping_add(count);
        self.u16_at(self.addresses.used + 2).store(self.used_index, Ordering::Release);
    }

    /// Completes a request and returns whether the driver wants an interrupt for it.
    pub fn complete(&mut self, head: u16, bytes: u32) -> bool {
        let before = self.used_index;
        self.put(u32::from(head), bytes);
        self.wants_interrupt(before)
    }

    /// Whether the driver wants an interrupt for the completions since `before`, index by index.
    pub fn wants_interrupt(&self, before: u16) -> bool {
        fence(Ordering::SeqCst);
        if !self.event_idx {
            return self.u16_at(self.addresses.available).load(Ordering::Relaxed) & 1 == 0;
        }
        let wish = self.used_event();
        (0..self.used_index.wrapping_sub(before)).any(|passed| before.wrapping_add(passed) == wish)
    }

    pub fn used_event(&self) -> u16 {
        self.u16_at(self.addresses.available + 4 + 2 * self.size()).load(Ordering::Relaxed)
    }

    /// The driver's index.
    pub fn available_index(&self) -> u16 {
        self.u16_at(self.addresses.available + 2).load(Ordering::Acquire)
    }

    /// Sets the device's own wish: at which index it wants to be notified.
    pub fn set_available_event(&mut self, index: u16) {
        self.u16_at(self.addresses.used + 4 + 8 * self.size()).store(index, Ordering::Relaxed);
    }

    /// The same without EVENT_IDX.
    pub fn set_no_notify(&mut self, value: bool) {
        self.u16_at(self.addresses.used).store(u16::from(value), Ordering::Relaxed);
    }
}

/// Memory with a guard on either side that must be untouched when it is released, and a count of
/// what is allocated.
#[derive(Clone, Copy, Default)]
pub struct GuardedDma;

const GUARD_BYTES: usize = 4096;
const GUARD: u8 = 0xa5;
/// Pieces of guarded memory whose release found a guard damaged.
pub static DAMAGED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the fake device uses our addresses.
unsafe impl Dma for GuardedDma {
    fn allocate(&self, bytes: usize, users: Users) -> Option<DmaMemory> {
        let total = bytes.checked_next_multiple_of(GUARD_BYTES)?.checked_add(2 * GUARD_BYTES)?;
        let layout = Layout::from_size_align(total, GUARD_BYTES).ok()?;
        // SAFETY: the layout's size is not zero.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // SAFETY: the allocator gave that many zeroed bytes to us alone.
        let slice = unsafe { core::slice::from_raw_parts_mut(pointer.as_ptr(), total) };
        slice[..GUARD_BYTES].fill(GUARD);
        slice[GUARD_BYTES + bytes..].fill(GUARD);
        // SAFETY: the guard is inside the memory.
        let inner = unsafe { pointer.add(GUARD_BYTES) };
        let address = inner.as_ptr().expose_provenance() as u64;
        // SAFETY: `bytes` bytes from there on are initialised, page aligned and without another owner.
        Some(unsafe { DmaMemory::from_parts(inner, bytes, address, users, release_guarded) })
    }

    unsafe fn share(&self, pointer: *mut u8, bytes: usize, users: Users) -> Option<u64> {
        // SAFETY: the caller vouches for it.
        unsafe { IdentityDma.share(pointer, bytes, users) }
    }

    unsafe fn unshare(&self, _address: u64, _pointer: *mut u8, _bytes: usize, _users: Users) {}
}

/// # Safety
/// The memory must come from `GuardedDma::allocate` and be unused.
unsafe fn release_guarded(inner: NonNull<u8>, bytes: usize) {
    let total = bytes.next_multiple_of(GUARD_BYTES) + 2 * GUARD_BYTES;
    // SAFETY: `allocate` placed a guard in front.
    let start = unsafe { inner.sub(GUARD_BYTES) };
    // SAFETY: the whole is initialised and by this function's contract unused.
    let slice = unsafe { core::slice::from_raw_parts(start.as_ptr(), total) };
    let intact = |part: &[u8]| part.iter().all(|&byte| byte == GUARD);
    if !intact(&slice[..GUARD_BYTES]) || !intact(&slice[GUARD_BYTES + bytes..]) {
        DAMAGED.fetch_add(1, Ordering::SeqCst);
    }
    let layout = Layout::from_size_align(total, GUARD_BYTES).unwrap();
    // SAFETY: `allocate` got the whole with this layout.
    unsafe { dealloc(start.as_ptr(), layout) }
}

/// Lends copies: a device never sees a buffer itself, and what it writes after a mapping has ended has no effect. For machines whose
/// devices see only a part of the memory; in tests it finds a mapping that is not ended, or too early.
#[derive(Clone, Default)]
pub struct BounceDma(Arc<Mutex<Vec<MappedBuffer>>>, Arc<AtomicBool>);

struct MappedBuffer {
    copy: DmaMemory,
    bytes: usize,
    users: Users,
}

impl BounceDma {
    /// Mappings that have not ended.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Whether nothing can be lent from now on.
    pub fn set_full(&self, is_full: bool) {
        self.1.store(is_full, Ordering::Relaxed);
    }
}

// SAFETY: a mapping's address is that of a copy, which lives until the mapping ends.
unsafe impl Dma for BounceDma {
    fn allocate(&self, bytes: usize, users: Users) -> Option<DmaMemory> {
        IdentityDma.allocate(bytes, users)
    }

    unsafe fn share(&self, pointer: *mut u8, bytes: usize, users: Users) -> Option<u64> {
        if self.1.load(Ordering::Relaxed) {
            return None;
        }
        let mut copy = IdentityDma.allocate(bytes.max(PAGE_BYTES), Users::DeviceReads)?;
        // SAFETY: no device has the copy yet, and the caller lends the bytes.
        unsafe { ptr::copy_nonoverlapping(pointer, copy.slice_mut(0..bytes).as_mut_ptr(), bytes) };
        let address = copy.device_address(0);
        self.0.lock().unwrap().push(MappedBuffer { copy, bytes, users });
        Some(address)
    }

    unsafe fn unshare(&self, address: u64, pointer: *mut u8, bytes: usize, users: Users) {
        let mut mapped = self.0.lock().unwrap();
        let found =
            mapped.iter().position(|mapped| mapped.copy.device_address(0) == address).expect("the mapping exists");
        let mapping = mapped.swap_remove(found);
        assert_eq!((mapping.bytes, mapping.users), (bytes, users));
        if users == Users::DeviceWrites {
            // SAFETY: the caller vouches for the memory, which is as long as the mapping.
            mapping.copy.copy_to(0, unsafe { core::slice::from_raw_parts_mut(pointer, bytes) });
        }
    }
}

/// As [`GuardedDma`], and remembers what was allocated.
#[derive(Clone, Default)]
pub struct RecordingDma(Arc<Mutex<Vec<(usize, Users)>>>);

impl RecordingDma {
    /// Takes the lengths of what was allocated since the last call, with their users.
    pub fn allocated(&self) -> Vec<(usize, Users)> {
        core::mem::take(&mut self.0.lock().unwrap())
    }
}

// SAFETY: all memory is of `GuardedDma`.
unsafe impl Dma for RecordingDma {
    fn allocate(&self, bytes: usize, users: Users) -> Option<DmaMemory> {
        self.0.lock().unwrap().push((bytes, users));
        GuardedDma.allocate(bytes, users)
    }

    unsafe fn share(&self, pointer: *mut u8, bytes: usize, users: Users) -> Option<u64> {
        // SAFETY: the caller vouches for it.
        unsafe { GuardedDma.share(pointer, bytes, users) }
    }

    unsafe fn unshare(&self, address: u64, pointer: *mut u8, bytes: usize, users: Users) {
        // SAFETY: the caller vouches for it.
        unsafe { GuardedDma.unshare(address, pointer, bytes, users) }
    }
}
