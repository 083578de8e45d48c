//! The unsafe code: memory that two cores take turns to use. Each type is sound whatever safe code does with it.

mod inbox;
mod list;
mod once;
mod ring;
mod waker;

pub use inbox::{Full, Inbox};
pub use list::{Link, List};
pub use once::Once;
pub(crate) use ring::{Consumer, Producer, ring};
pub use waker::WakerCell;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence},
};

/// Loom's interface of a cell, without loom.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(*const T) -> R) -> R {
        use_it(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, use_it: impl FnOnce(*mut T) -> R) -> R {
        use_it(self.0.get())
    }
}

/// Defines `new` for both builds: loom's types have no constant constructors.
macro_rules! constructor {
    ($(#[$meta:meta])* $visibility:vis fn new() -> $type:ty { $value:expr }) => {
        $(#[$meta])*
        #[cfg(not(loom))]
        $visibility const fn new() -> $type { $value }
        $(#[$meta])*
        #[cfg(loom)]
        $visibility fn new() -> $type { $value }
    };
}
use constructor;
