//! A source that delivers what a test wants, and a sink that keeps what comes.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::guest::{Guest, GuestId, GuestKind};
use glass_profiler_core::model::Cost;
use glass_profiler_core::recorder::Progress;
use glass_profiler_guests::{Counts, Flow, GuestError, Source, read_clocks};
use glass_profiler_session::Sink;

pub fn guest() -> Guest {
    let kind = GuestKind::Process { pid: 7 };
    Guest { id: GuestId(0), kind, name: "a guest".to_owned(), architecture: Architecture::X86_64 }
}

/// What a source does after some rounds.
#[derive(Debug, Clone, Copy)]
pub enum Then {
    GoesOn,
    Ends(Flow),
    Fails,
}

/// Delivers so many samples a round, three rounds at least.
pub struct FakeSource {
    per_round: u64,
    then: Then,
    pub delivered: u64,
    pub announced_ns: u64,
    pub is_detached: bool,
}

impl FakeSource {
    pub fn new(per_round: u64, then: Then) -> FakeSource {
        FakeSource { per_round, then, delivered: 0, announced_ns: 0, is_detached: false }
    }
}

impl Source for FakeSource {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.announced_ns = read_clocks().monotonic_ns;
        sink(Event::Track { track: 4, guest: GuestId(0), id: 1, name: "a".to_owned() });
        Ok(())
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        if self.delivered >= 3 * self.per_round {
            match self.then {
                Then::GoesOn => std::thread::sleep(wait.min(Duration::from_millis(20))),
                Then::Ends(flow) => return Ok(flow),
                Then::Fails => {
                    let error = io::Error::other("synthetic");
                    return Err(GuestError::System { action: "read a register".to_owned(), error });
                }
            }
        }
        for _ in 0..self.per_round {
            self.delivered += 1;
            let time_ns = read_clocks().monotonic_ns;
            sink(Event::Sample(RawSample { time_ns, track: 4, ..Default::default() }));
        }
        Ok(Flow::More)
    }

    fn counts(&self) -> Counts {
        Counts { delivered: self.delivered, ..Default::default() }
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        assert!(!self.is_detached, "once is enough");
        self.is_detached = true;
        sink(Event::Warning("a word at the end".to_owned()));
        Ok(())
    }
}

/// What a collector has in the end.
#[derive(Debug)]
pub struct Collected {
    pub events: Vec<Event>,
    pub cost: Cost,
    pub end_ns: u64,
}

impl Collected {
    pub fn samples(&self) -> u64 {
        self.events.iter().filter(|event| matches!(event, Event::Sample(_))).count() as u64
    }
}

/// Keeps what comes.
#[derive(Default)]
pub struct Collector {
    pub events: Vec<Event>,
    pub fails_after: Option<usize>,
    pub panics: bool,
    /// It takes nothing until the gate is open.
    pub stands_still: bool,
    pub gate: Arc<AtomicBool>,
}

impl Sink for Collector {
    type Output = Collected;

    fn event(&mut self, event: Event) -> io::Result<()> {
        assert!(!self.panics, "as the test wants");
        while self.stands_still && !self.gate.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.fails_after.is_some_and(|events| self.events.len() >= events) {
            return Err(io::Error::other("no room"));
        }
        self.events.push(event);
        Ok(())
    }

    fn progress(&self) -> Progress {
        Progress::default()
    }

    fn finish(self, cost: &Cost, end_ns: u64) -> io::Result<Collected> {
        Ok(Collected { events: self.events, cost: cost.clone(), end_ns })
    }
}

/// A file that the test reads afterwards.
#[derive(Debug, Clone, Default)]
pub struct Shared(pub Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
