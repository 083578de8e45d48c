//! Trace events of the requests to a process's devices.

use glass_lib_trace::{BlockKind, Operation, block_numbered, complete, intern, submit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A number for each request of the process, whatever its device.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A device. Clones are handles to it.
#[derive(Clone)]
pub(crate) struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    /// Number of its name.
    name: u32,
    in_flight: AtomicU32,
}

/// A request that was submitted or will be.
#[derive(Clone)]
pub(crate) struct Request {
    device: Device,
    number: u64,
    operation: Operation,
    bytes: u32,
    is_submitted: bool,
}

impl Device {
    pub(crate) fn new(name: &str) -> Device {
        Device { inner: Arc::new(Inner { name: intern(name), in_flight: AtomicU32::new(0) }) }
    }

    pub(crate) fn request(&self, operation: Operation, bytes: usize) -> Request {
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Request { device: self.clone(), number, operation, bytes, is_submitted: false }
    }
}

impl Request {
    /// Records the submission of a request that this thread executes first.
    pub(crate) fn submit(&mut self) {
        self.submitted();
        self.is_submitted = true;
    }

    /// Records the submission, if it was not recorded; call it before the executing thread can see the request.
    pub(crate) fn submitted(&self) {
        if self.is_submitted {
            return;
        }
        let Inner { name, in_flight } = &*self.device.inner;
        // Relaxed: a statistic. It counts also while tracing is off, so that it is right when tracing starts.
        let count = in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        submit(*name, self.operation, self.number, self.bytes, count);
    }

    /// Records the completion; call it before the waiting task is woken.
    pub(crate) fn completed(&self, has_failed: bool) {
        let Inner { name, in_flight } = &*self.device.inner;
        let count = in_flight.fetch_sub(1, Ordering::Relaxed).saturating_sub(1);
        complete(*name, self.number, self.bytes, count, has_failed);
    }

    /// Records that the running task waits for it.
    pub(crate) fn block(&self) {
        block_numbered(BlockKind::Request, self.device.inner.name, self.number);
    }
}
