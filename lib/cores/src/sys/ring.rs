//! The ring from one core to another: slots of a cache line or more, each with a flag beside its value.
//!
//! The flag and a short value travel in one line. Each end keeps its position to itself, so nothing but the slots is shared.

use super::{AtomicBool, Ordering, UnsafeCell};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem::MaybeUninit;

#[repr(align(64))]
struct Slot<T> {
    /// The value is the consumer's; else the slot is the producer's.
    is_full: AtomicBool,
    value: UnsafeCell<MaybeUninit<T>>,
}

struct Slots<T>(Box<[Slot<T>]>);

// SAFETY: a slot's flag shows which end may touch its value, and there is one producer and one consumer.
unsafe impl<T: Send> Send for Slots<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Slots<T> {}

/// The end that sends.
pub(crate) struct Producer<T> {
    slots: Arc<Slots<T>>,
    at: usize,
}

/// The end that receives.
pub(crate) struct Consumer<T> {
    slots: Arc<Slots<T>>,
    at: usize,
}

/// A ring of `capacity` slots, at least one.
pub(crate) fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let slot = |_| Slot { is_full: AtomicBool::new(false), value: UnsafeCell::new(MaybeUninit::uninit()) };
    let slots = Arc::new(Slots((0..capacity).map(slot).collect()));
    (Producer { slots: slots.clone(), at: 0 }, Consumer { slots, at: 0 })
}

impl<T> Slots<T> {
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.0.len() { 0 } else { at + 1 }
    }
}

impl<T> Producer<T> {
    /// Whether the next value has room.
    #[inline]
    pub(crate) fn has_space(&self) -> bool {
        // Acquire: pairs with the Release in `pop`, so that the value was read before it is overwritten.
        !self.slots.0[self.at].is_full.load(Ordering::Acquire)
    }

    /// Adds a value, or gives it back if there is no room.
    #[inline]
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if !self.has_space() {
            return Err(value);
        }
        let slot = &self.slots.0[self.at];
        // SAFETY: the flag shows that the slot is the producer's, of which there is one, borrowed mutably.
        slot.value.with_mut(|place| unsafe { (*place).write(value) });
        // Release: pairs with the Acquire in `has_value`.
        slot.is_full.store(true, Ordering::Release);
        self.at = self.slots.next(self.at);
        Ok(())
    }
}

impl<T> Consumer<T> {
    /// Whether a value is there.
    #[inline]
    pub(crate) fn has_value(&self) -> bool {
        // Acquire: pairs with the Release in `push`.
        self.slots.0[self.at].is_full.load(Ordering::Acquire)
    }

    /// Takes the next value.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if !self.has_value() {
            return None;
        }
        let slot = &self.slots.0[self.at];
        // SAFETY: the flag shows that the slot has a value and is the consumer's, of which there is one, borrowed mutably.
        let value = slot.value.with_mut(|place| unsafe { (*place).assume_init_read() });
        // Release: pairs with the Acquire in `has_space`.
        slot.is_full.store(false, Ordering::Release);
        self.at = self.slots.next(self.at);
        Some(value)
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        for slot in &self.0 {
            // Both ends are gone, and `Arc` has ordered their last accesses before this.
            if slot.is_full.load(Ordering::Relaxed) {
                // SAFETY: the flag shows that there is a value, which is dropped once.
                slot.value.with_mut(|place| unsafe { (*place).assume_init_drop() });
            }
        }
    }
}
