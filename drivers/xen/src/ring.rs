//! A ring of requests and responses (`xen/include/public/io/ring.h`), the front end's side.
//!
//! Requests and responses share the entries: a response takes the place of a request that the back end has consumed. The four indices are
//! in the shared page, so our two are kept here too and never read back.

use crate::error::BackendViolation;
use crate::page::SharedPages;
use core::sync::atomic::{Ordering, fence};

/// Bytes before the first entry.
pub const RING_HEADER_BYTES: usize = 64;
const REQ_PROD: usize = 0;
const REQ_EVENT: usize = 4;
const RSP_PROD: usize = 8;
const RSP_EVENT: usize = 12;

/// There is no free entry: try again after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// The front end's side of a ring.
#[derive(Debug)]
pub struct FrontRing {
    pages: SharedPages,
    entry_bytes: usize,
    entries: u32,
    /// Requests put, requests made visible, responses taken: counts that wrap.
    put: u32,
    published: u32,
    taken: u32,
    violation: Option<BackendViolation>,
}

impl FrontRing {
    /// Makes an empty ring in `pages`, which no back end has yet. An entry has room for the longer of request and response.
    ///
    /// # Panics
    /// If the pages have no room for an entry.
    pub fn new(pages: SharedPages, entry_bytes: usize) -> FrontRing {
        let entries_max = (pages.bytes() - RING_HEADER_BYTES) / entry_bytes;
        let entries = 1 << entries_max.checked_ilog2().expect("room for an entry");
        for (offset, value) in [(REQ_PROD, 0_u32), (REQ_EVENT, 1), (RSP_PROD, 0), (RSP_EVENT, 1)] {
            pages.word_u32(offset).store(value.to_le(), Ordering::Relaxed);
        }
        FrontRing { pages, entry_bytes, entries, put: 0, published: 0, taken: 0, violation: None }
    }

    /// Number of entries, a power of two.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Requests that can be put now.
    pub fn free_entries(&self) -> u32 {
        self.entries - self.put.wrapping_sub(self.taken)
    }

    /// The back end's violation, if there was one.
    pub fn violation(&self) -> Option<BackendViolation> {
        self.violation
    }

    fn load(&self, offset: usize) -> u32 {
        u32::from_le(self.pages.word_u32(offset).load(Ordering::Acquire))
    }

    fn store(&self, offset: usize, value: u32) {
        self.pages.word_u32(offset).store(value.to_le(), Ordering::Release);
    }

    fn entry(&self, number: u32) -> usize {
        RING_HEADER_BYTES + (number & (self.entries - 1)) as usize * self.entry_bytes
    }

    /// Puts a request. The back end sees it after the next [`FrontRing::publish`].
    ///
    /// # Panics
    /// If the request is longer than an entry.
    pub fn put(&mut self, request: &[u8]) -> Result<(), Full> {
        assert!(request.len() <= self.entry_bytes, "a request is no longer than an entry");
        if self.free_entries() == 0 {
            return Err(Full);
        }
        self.pages.write(self.entry(self.put), request);
        self.put = self.put.wrapping_add(1);
        Ok(())
    }

    /// Makes the requests that were put visible. Returns whether the back end wants to be notified of them.
    pub fn publish(&mut self) -> bool {
        let old = core::mem::replace(&mut self.published, self.put);
        if old == self.put {
            return false;
        }
        self.store(REQ_PROD, self.put);
        // The back end writes its event index, then reads `req_prod`; here it is the other way around, so one of the two sees the other.
        fence(Ordering::SeqCst);
        // Any value may be an old one of a correct back end; a wrong one delays only its own work.
        let event = self.load(REQ_EVENT);
        self.put.wrapping_sub(event) < self.put.wrapping_sub(old)
    }

    /// Copies the next response into `response`. Returns false when there is none.
    ///
    /// # Panics
    /// If `response` is longer than an entry.
    pub fn take(&mut self, response: &mut [u8]) -> Result<bool, BackendViolation> {
        assert!(response.len() <= self.entry_bytes, "a response is no longer than an entry");
        if let Some(violation) = self.violation {
            return Err(violation);
        }
        let count = self.load(RSP_PROD).wrapping_sub(self.taken);
        let in_flight = self.published.wrapping_sub(self.taken);
        if count > in_flight {
            let violation = BackendViolation::TooManyResponses { count, in_flight };
            self.violation = Some(violation);
            return Err(violation);
        }
        if count == 0 {
            return Ok(false);
        }
        self.pages.read(self.entry(self.taken), response);
        self.taken = self.taken.wrapping_add(1);
        Ok(true)
    }

    /// Whether [`FrontRing::take`] has something to return.
    pub fn has_response(&self) -> bool {
        self.violation.is_none() && self.load(RSP_PROD) != self.taken
    }

    /// Requests an event for the next response. Returns true when one is there already, and after a violation.
    pub fn arm(&mut self) -> bool {
        self.store(RSP_EVENT, self.taken.wrapping_add(1));
        fence(Ordering::SeqCst);
        self.violation.is_some() || self.load(RSP_PROD) != self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Frames, IdentityFrames};
    use alloc::collections::VecDeque;
    use proptest::prelude::*;

    /// A correct back end, on the same pages.
    struct Back {
        pages: SharedPages,
        entries: u32,
        consumed: u32,
        produced: u32,
    }

    impl Back {
        fn load(&self, offset: usize) -> u32 {
            self.pages.word_u32(offset).load(Ordering::Acquire)
        }

        /// Consumes what is there and requests an event for the next; answers each with its own bytes, incremented.
        fn answer(&mut self, max: u32) -> bool {
            let mut left = max;
            while self.consumed != self.load(REQ_PROD) && left > 0 {
                let at = |number: u32| RING_HEADER_BYTES + (number % self.entries) as usize * 8;
                let mut bytes = [0; 8];
                self.pages.read(at(self.consumed), &mut bytes);
                self.consumed = self.consumed.wrapping_add(1);
                self.pages.write(at(self.produced), &(u64::from_le_bytes(bytes) + 1).to_le_bytes());
                self.produced = self.produced.wrapping_add(1);
                left -= 1;
            }
            let old = self.load(RSP_PROD);
            self.pages.word_u32(RSP_PROD).store(self.produced, Ordering::Release);
            if self.consumed == self.load(REQ_PROD) {
                self.pages.word_u32(REQ_EVENT).store(self.consumed.wrapping_add(1), Ordering::Release);
            }
            self.produced.wrapping_sub(self.load(RSP_EVENT)) < self.produced.wrapping_sub(old)
        }
    }

    fn pair(start: u32) -> (FrontRing, Back) {
        let pages = IdentityFrames.allocate(1).unwrap();
        let mut ring = FrontRing::new(pages.clone(), 8);
        (ring.put, ring.published, ring.taken) = (start, start, start);
        for (offset, value) in [(REQ_PROD, start), (RSP_PROD, start), (REQ_EVENT, start.wrapping_add(1))] {
            pages.word_u32(offset).store(value, Ordering::Relaxed);
        }
        let entries = ring.entries();
        (ring, Back { pages, entries, consumed: start, produced: start })
    }

    #[test]
    fn sizes_are_those_of_the_protocol() {
        let ring = |count, bytes| FrontRing::new(IdentityFrames.allocate(count).unwrap(), bytes).entries();
        // Block requests of 112 bytes: 32 in a page (`__CONST_RING_SIZE`), 256 in eight; network entries of 12 and 8 bytes: 256.
        assert_eq!([ring(1, 112), ring(8, 112), ring(1, 12), ring(1, 8)], [32, 256, 256, 256]);
    }

    proptest! {
        #[test]
        fn responses_come_in_order_and_no_event_is_lost(
            start in prop_oneof![Just(0), Just(u32::MAX - 3), any::<u32>()],
            steps in proptest::collection::vec((0_u32..3, 1_u32..400), 1..100),
        ) {
            let (mut ring, mut back) = pair(start);
            let (mut next, mut expected) = (0_u64, VecDeque::new());
            let (mut back_is_notified, mut armed_and_notified) = (false, None);
            for (step, count) in steps {
                match step {
                    0 => {
                        for _ in 0..count {
                            if ring.put(&next.to_le_bytes()).is_ok() {
                                expected.push_back(next + 1);
                                next += 1;
                            } else {
                                prop_assert_eq!(expected.len(), 512 / 2);
                            }
                        }
                        back_is_notified |= ring.publish();
                        // An event has come for what it has not consumed.
                        prop_assert!(back_is_notified || back.consumed == ring.put || back.load(REQ_EVENT) != back.consumed.wrapping_add(1));
                    }
                    1 => {
                        back_is_notified = false;
                        let event = back.answer(count);
                        armed_and_notified = armed_and_notified.map(|was: bool| was || event);
                    }
                    _ => {
                        let mut response = [0; 8];
                        while ring.take(&mut response).unwrap() {
                            prop_assert_eq!(Some(u64::from_le_bytes(response)), expected.pop_front());
                        }
                        if let Some(false) = armed_and_notified {
                            prop_assert!(ring.taken == back.load(RSP_EVENT).wrapping_sub(1), "responses without an event");
                        }
                        armed_and_notified = (!ring.arm()).then_some(false);
                    }
                }
            }
        }

        #[test]
        fn any_index_is_bounded(put in 0_u32..256, index in any::<u32>(), event in any::<u32>()) {
            let (mut ring, back) = pair(0);
            (0..put).for_each(|_| ring.put(&[0; 8]).unwrap());
            back.pages.word_u32(REQ_EVENT).store(event, Ordering::Relaxed);
            back.pages.word_u32(REQ_PROD).store(event, Ordering::Relaxed);
            ring.publish();
            back.pages.word_u32(RSP_PROD).store(index, Ordering::Relaxed);
            let mut taken = 0;
            while let Ok(true) = ring.take(&mut [0; 8]) {
                taken += 1;
            }
            prop_assert_eq!(taken, if index <= put { index } else { 0 });
            prop_assert_eq!(ring.violation().is_some(), index > put);
        }
    }

    #[test]
    fn requests_that_were_not_published_have_no_response() {
        let (mut ring, back) = pair(0);
        ring.put(&[1; 8]).unwrap();
        back.pages.word_u32(RSP_PROD).store(1, Ordering::Relaxed);
        let violation = BackendViolation::TooManyResponses { count: 1, in_flight: 0 };
        assert_eq!(ring.take(&mut [0; 8]), Err(violation));
        // It stays broken, whatever the index is then.
        back.pages.word_u32(RSP_PROD).store(0, Ordering::Relaxed);
        assert_eq!(ring.take(&mut [0; 8]), Err(violation));
        assert!(ring.arm());
    }
}
