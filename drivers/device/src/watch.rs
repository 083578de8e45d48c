//! How long the requests of a disk may take.

use crate::request::RequestId;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use glass_api::Instant;

/// When each request was submitted that the device has not completed.
pub struct Watch {
    clock: Box<dyn Fn() -> Instant>,
    time: Duration,
    /// By the number of the request.
    since: Vec<Option<Instant>>,
    /// No request is late before this; `None` if none is in flight. A request that completes leaves it as it is, so that this costs nothing.
    check_at: Option<Instant>,
    /// What an error states.
    words: &'static str,
}

impl Watch {
    /// For a device with numbers of requests below `requests_max`, each of which may take `time`.
    pub fn new(requests_max: usize, time: Duration, clock: impl Fn() -> Instant + 'static) -> Watch {
        let words = String::leak(format!("it has not answered a request for {} s", time.as_secs_f64()));
        Watch { clock: Box::new(clock), time, since: (0..requests_max).map(|_| None).collect(), check_at: None, words }
    }

    pub fn time(&self) -> Duration {
        self.time
    }

    pub fn words(&self) -> &'static str {
        self.words
    }

    pub fn check_at(&self) -> Option<Instant> {
        self.check_at
    }

    pub fn submitted(&mut self, id: RequestId) {
        let now = (self.clock)();
        self.since[id.index()] = Some(now);
        self.check_at.get_or_insert(now + self.time);
    }

    pub fn completed(&mut self, id: RequestId) {
        self.since[id.index()] = None;
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> impl Iterator<Item = RequestId> {
        self.since.iter().enumerate().filter(|(_, since)| since.is_some()).map(|(id, _)| RequestId::new(id as u16))
    }

    /// Whether a request takes longer than it may.
    pub fn is_late(&mut self) -> bool {
        let Some(check_at) = self.check_at else { return false };
        let now = (self.clock)();
        if now < check_at {
            return false;
        }
        self.check_at = self.since.iter().flatten().min().map(|oldest| *oldest + self.time);
        self.check_at.is_some_and(|end| end <= now)
    }
}
