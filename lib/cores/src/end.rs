//! The end of a task, which one core reports and another awaits.

use crate::sys::{AtomicBool, Ordering, WakerCell};
use core::task::Waker;

/// Something that ends once. Who sees that it has ended also sees what was done before the report.
#[derive(Debug)]
pub struct End {
    is_reported: AtomicBool,
    /// Who waits for the report.
    waiter: WakerCell,
}

impl End {
    /// It has not ended.
    pub fn new() -> End {
        End { is_reported: AtomicBool::new(false), waiter: WakerCell::new() }
    }

    /// It has ended; who waits is woken.
    pub fn report(&self) {
        // Release: pairs with the Acquire in `is_reported`.
        self.is_reported.store(true, Ordering::Release);
        self.waiter.wake();
    }

    /// Whether it has ended.
    pub fn is_reported(&self) -> bool {
        // Acquire: pairs with the Release in `report`.
        self.is_reported.load(Ordering::Acquire)
    }

    /// Whether it has ended; if not, `waker` is woken when it does.
    pub fn is_reported_to(&self, waker: &Waker) -> bool {
        self.is_reported() || {
            self.waiter.register(waker);
            self.is_reported()
        }
    }
}

impl Default for End {
    fn default() -> End {
        End::new()
    }
}
