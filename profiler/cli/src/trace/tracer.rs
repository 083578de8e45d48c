//! The thread that drains a guest's rings, beside whatever else is recorded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use glass_guests::trace::{Guest, Live, LiveCounts, LiveSettings};
use glass_guests::{Flow, GuestError, Source};
use glass_profile::event::Event;

use crate::record::pipeline::{Events, Pipeline};

/// How long the thread drains before it looks whether it is to end.
const ROUND: Duration = Duration::from_millis(50);
/// How long a guest that was just started may take until it has a trace.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks for it: what it writes in between waits in its ring.
const START_LOOK: Duration = Duration::from_millis(1);

/// The thread.
pub struct Tracer {
    thread: JoinHandle<Result<LiveCounts>>,
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<LiveCounts>>,
}

impl Tracer {
    /// Switches the guest's groups on, then drains in the background.
    pub fn start(mut live: Live, pipeline: &mut Pipeline) -> Result<Tracer> {
        live.announce(&mut |event| pipeline.event(event))?;
        Ok(Tracer::spawn(pipeline, |events, stop, counts| Ok(drain(live, events, stop, counts)?)))
    }

    /// The same for a guest that is only just starting: `open` is tried until it succeeds.
    pub fn start_with<F>(open: F, settings: LiveSettings, pipeline: &Pipeline) -> Tracer
    where
        F: Fn() -> Result<Guest, GuestError> + Send + 'static,
    {
        Tracer::spawn(pipeline, move |events, stop, counts| {
            let begun = Instant::now();
            let guest = loop {
                match open() {
                    Ok(guest) => break guest,
                    Err(error) => {
                        let is_over = begun.elapsed() > START_PATIENCE || stop.load(Ordering::Relaxed);
                        if is_over || matches!(error, GuestError::NoProcess(_) | GuestError::NotPermitted { .. }) {
                            return Err(error.into());
                        }
                    }
                }
                std::thread::sleep(START_LOOK);
            };
            let mut live = Live::new(guest, settings)?;
            live.announce(&mut |event| events.event(event))?;
            Ok(drain(live, events, stop, counts)?)
        })
    }

    fn spawn<F>(pipeline: &Pipeline, work: F) -> Tracer
    where
        F: FnOnce(&mut Events, &AtomicBool, &Mutex<LiveCounts>) -> Result<LiveCounts> + Send + 'static,
    {
        let mut events = pipeline.another();
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Mutex::new(LiveCounts::default()));
        let (asked, shared) = (stop.clone(), counts.clone());
        let thread = std::thread::spawn(move || {
            let result = work(&mut events, &asked, &shared);
            if let Err(error) = &result {
                events.event(Event::Warning(format!("tracing ended early: {error:#}")));
            }
            result
        });
        Tracer { thread, stop, counts }
    }

    /// Whether there will be no more events: the guest has ended, or something went wrong.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// What was counted until now.
    pub fn counts(&self) -> LiveCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the guest's groups back and reads what is left.
    pub fn finish(self) -> Result<LiveCounts> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the tracing thread ended unexpectedly"))?
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
