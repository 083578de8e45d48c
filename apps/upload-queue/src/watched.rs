//! A disk that shows how long it has not answered.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use glasshouse::{Block, BlockError, BlockInfo, Buf, Clock, Instant};

/// A [`Block`] that remembers which requests are in flight. Clones name the same device.
#[derive(Clone)]
pub(crate) struct Watched<B, C> {
    block: B,
    clock: C,
    requests: Rc<Requests>,
}

#[derive(Default)]
struct Requests {
    made: Cell<u64>,
    /// When each of those in flight started, oldest first.
    in_flight: RefCell<BTreeMap<u64, Instant>>,
}

/// A request in flight, until this is dropped.
struct Running<'a> {
    requests: &'a Requests,
    number: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.requests.in_flight.borrow_mut().remove(&self.number);
    }
}

impl<B, C: Clock> Watched<B, C> {
    pub(crate) fn new(block: B, clock: C) -> Watched<B, C> {
        Watched { block, clock, requests: Rc::default() }
    }

    /// When the oldest request in flight started.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.requests.in_flight.borrow().values().next().copied()
    }

    fn start(&self) -> Running<'_> {
        let number = self.requests.made.get();
        self.requests.made.set(number + 1);
        self.requests.in_flight.borrow_mut().insert(number, self.clock.now());
        Running { requests: &self.requests, number }
    }
}

impl<B: Block, C: Clock + Clone + 'static> Block for Watched<B, C> {
    fn info(&self) -> BlockInfo {
        self.block.info()
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        let _running = self.start();
        self.block.read(offset, buf).await
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        let _running = self.start();
        self.block.write(offset, buf).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        let _running = self.start();
        self.block.flush().await
    }

    async fn discard(&self, offset: u64, len: usize) -> Result<(), BlockError> {
        let _running = self.start();
        self.block.discard(offset, len).await
    }

    async fn write_zeroes(&self, offset: u64, len: usize) -> Result<(), BlockError> {
        let _running = self.start();
        self.block.write_zeroes(offset, len).await
    }
}
