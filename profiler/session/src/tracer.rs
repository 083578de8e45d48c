//! The thread that drains a guest's rings, beside whatever else is collected.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use glass_profiler_core::event::Event;
use glass_profiler_guests::systems::glasshouse::{Guest, Live, LiveCounts, LiveSettings};
use glass_profiler_guests::{Flow, GuestError, Source};

use crate::feed::{Events, Feed};

/// How long the thread drains before it checks whether it is to end.
const ROUND: Duration = Duration::from_millis(50);
/// How long a guest that was just started may take until it has a trace.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts to find it: what it writes in between waits in its ring.
const START_PERIOD: Duration = Duration::from_millis(1);

/// A guest's own trace.
pub enum Tracing {
    /// Of a guest that runs.
    Open(Box<Live>),
    /// Of a guest that is only just starting.
    Starting {
        /// Tried until it succeeds, for ten seconds.
        open: Box<dyn Fn() -> Result<Guest, GuestError> + Send>,
        /// What the guest is to trace then.
        settings: LiveSettings,
    },
}

/// The thread.
pub(crate) struct Tracer {
    thread: JoinHandle<Result<LiveCounts, GuestError>>,
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<LiveCounts>>,
}

impl Tracer {
    /// Switches the guest's groups on, then drains in the background. Fails if the guest that runs refuses.
    pub(crate) fn start<T: Send + 'static>(tracing: Tracing, feed: &mut Feed<T>) -> Result<Tracer, GuestError> {
        match tracing {
            Tracing::Open(mut live) => {
                live.announce(&mut |event| feed.event(event))?;
                Tracer::spawn(feed, |events, stop, counts| drain(*live, events, stop, counts))
            }
            Tracing::Starting { open, settings } => Tracer::spawn(feed, move |events, stop, counts| {
                let mut live = Live::new(started(&*open, stop)?, settings)?;
                live.announce(&mut |event| events.event(event))?;
                drain(live, events, stop, counts)
            }),
        }
    }

    fn spawn<T, F>(feed: &Feed<T>, work: F) -> Result<Tracer, GuestError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Events, &AtomicBool, &Mutex<LiveCounts>) -> Result<LiveCounts, GuestError> + Send + 'static,
    {
        let mut events = feed.another();
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Mutex::new(LiveCounts::default()));
        let (wanted, shared) = (stop.clone(), counts.clone());
        let thread = std::thread::Builder::new().name("trace".to_owned()).spawn(move || {
            let result = work(&mut events, &wanted, &shared);
            if let Err(error) = &result {
                events.event(Event::Warning(format!("tracing ended early: {error}")));
            }
            result
        });
        let thread = thread.map_err(|error| GuestError::System { action: "start a thread".to_owned(), error })?;
        Ok(Tracer { thread, stop, counts })
    }

    /// Whether there will be no more events: the guest has ended, or something went wrong.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// What was counted until now.
    pub(crate) fn counts(&self) -> LiveCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the guest's groups back and reads what is left.
    pub(crate) fn finish(self) -> Result<LiveCounts, GuestError> {
        self.stop.store(true, Ordering::Relaxed);
        let lost = |_| Err(GuestError::Trace("the tracing thread ended unexpectedly".to_owned()));
        self.thread.join().unwrap_or_else(lost)
    }
}

/// The guest, once it keeps a trace.
fn started(open: &dyn Fn() -> Result<Guest, GuestError>, stop: &AtomicBool) -> Result<Guest, GuestError> {
    let begun = Instant::now();
    loop {
        match open() {
            Ok(guest) => return Ok(guest),
            Err(error) => {
                let is_over = begun.elapsed() > START_PATIENCE || stop.load(Ordering::Relaxed);
                if is_over || matches!(error, GuestError::NoProcess(_) | GuestError::NotPermitted { .. }) {
                    return Err(error);
                }
            }
        }
        std::thread::sleep(START_PERIOD);
    }
}

fn drain(
    mut live: Live,
    events: &mut Events,
    stop: &AtomicBool,
    counts: &Mutex<LiveCounts>,
) -> Result<LiveCounts, GuestError> {
    let mut result = Ok(Flow::More);
    while let Ok(Flow::More) = result
        && !stop.load(Ordering::Relaxed)
    {
        result = live.collect(ROUND, &mut |event| events.event(event));
        *counts.lock().unwrap_or_else(PoisonError::into_inner) = live.live_counts();
    }
    live.detach(&mut |event| events.event(event))?;
    result.map(|_| live.live_counts())
}
