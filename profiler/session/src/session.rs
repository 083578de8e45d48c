//! The loop: collects what a guest's sources deliver until it is to end.

use std::io;
use std::time::{Duration, Instant};

use glass_profiler_core::event::Event;
use glass_profiler_core::guest::Guest;
use glass_profiler_core::recorder::Progress;
use glass_profiler_core::recording::Clocks;
use glass_profiler_guests::systems::glasshouse::LiveCounts;
use glass_profiler_guests::{Counts, Flow, GuestError, Source, read_clocks};

use crate::feed::Feed;
use crate::sink::Sink;
use crate::tracer::{Tracer, Tracing};

/// How often a session does what wakes this process.
struct Pace {
    /// How long events are collected before losses, the end and the caller are seen to.
    round: Duration,
    /// Between two checkpoints.
    checkpoints: Duration,
    /// Samples that are passed on together, each time of which wakes the sink's thread; 0: each alone.
    together_max: usize,
}

const WATCHED: Pace = Pace { round: Duration::from_millis(100), checkpoints: Duration::from_secs(1), together_max: 0 };
const UNWATCHED: Pace = Pace { round: Duration::from_secs(5), checkpoints: Duration::from_secs(10), together_max: 64 };

/// What a guest delivers.
#[derive(Default)]
pub struct Sources<'a> {
    /// Its samples. Without them a session lasts until its duration is over or the caller wishes it to end.
    pub samples: Option<&'a mut dyn Source>,
    /// Its own trace, read beside them.
    pub trace: Option<Tracing>,
    /// The guest, where no samples introduce it.
    pub guest: Option<Guest>,
}

/// A guest whose sources have delivered what they have at their start.
pub struct Session<'a> {
    sources: Sources<'a>,
    clocks: Clocks,
    begun: Instant,
    announced: Vec<Event>,
}

/// What the caller of a session wants after each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// It continues.
    Continue,
    /// It ends now.
    Stop,
}

/// Why a session ended.
#[derive(Debug)]
pub enum End {
    /// Its duration is over.
    Duration,
    /// The caller wished so.
    Stopped,
    /// The guest has ended.
    GuestEnded,
    /// The sink can take no more; [`Ended::finish`] returns why.
    SinkFailed,
    /// Sampling failed.
    Failed(GuestError),
}

/// A session as it goes.
#[derive(Debug, Clone, Copy)]
pub struct Status {
    /// Since its start.
    pub elapsed: Duration,
    /// What the samples' source counted.
    pub counts: Counts,
    /// Samples that were taken, and found no room because the sink was too slow.
    pub dropped: u64,
    /// What the sink counted.
    pub progress: Progress,
    /// The guest's own trace, if it is read.
    pub trace: Option<TraceStatus>,
}

/// The trace of a guest as it is read.
#[derive(Debug, Clone, Copy)]
pub struct TraceStatus {
    /// What was counted.
    pub counts: LiveCounts,
    /// There will be no more: the guest has ended, or [`Outcome::traced`] has its error.
    pub has_ended: bool,
}

impl Status {
    /// Samples that were expected and are nowhere.
    pub fn lost(&self) -> u64 {
        self.counts.losses.samples() + self.dropped + self.progress.samples_dropped
    }
}

impl<'a> Session<'a> {
    /// Collects what the samples' source has at its start. Nothing is written yet: an error here costs no earlier recording.
    pub fn announce(sources: Sources<'a>) -> Result<Session<'a>, GuestError> {
        let mut sources = sources;
        let mut clocks = read_clocks();
        let mut begun = Instant::now();
        let mut announced: Vec<Event> = sources.guest.take().map(Event::Guest).into_iter().collect();
        if let Some(samples) = &mut sources.samples {
            let started_ns = samples.started_ns();
            samples.announce(&mut |event| announced.push(event))?;
            begun = Instant::now();
            if let Some(started_ns) = started_ns {
                let since = Duration::from_nanos(read_clocks().monotonic_ns.saturating_sub(started_ns));
                begun = begun.checked_sub(since).unwrap_or(begun);
                clocks = clocks.at(started_ns);
            }
        }
        Ok(Session { sources, clocks, begun, announced })
    }

    /// The clocks at its start, for a sink that relates times to them.
    pub fn clocks(&self) -> Clocks {
        self.clocks
    }

    /// Starts the sink, and reading the guest's trace.
    pub fn start<S: Sink>(self, sink: S) -> Result<Running<'a, S::Output>, GuestError> {
        let Session { sources, clocks, begun, announced } = self;
        let failed = |error| GuestError::System { action: "start a thread".to_owned(), error };
        let mut feed = Feed::start(sink).map_err(failed)?;
        announced.into_iter().for_each(|event| feed.event(event));
        let tracer = match sources.trace {
            Some(tracing) => Some(Tracer::start(tracing, &mut feed)?),
            None => None,
        };
        Ok(Running { samples: sources.samples, tracer, feed, clocks, begun, pace: WATCHED })
    }
}

/// A session that collects.
pub struct Running<'a, T> {
    samples: Option<&'a mut dyn Source>,
    tracer: Option<Tracer>,
    feed: Feed<T>,
    clocks: Clocks,
    begun: Instant,
    pace: Pace,
}

impl<T: Send + 'static> Running<'_, T> {
    /// Without a user who watches: each round wakes this process, so rounds take seconds. A signal ends one.
    pub fn unwatched(self) -> Self {
        Running { pace: UNWATCHED, ..self }
    }

    /// Collects until `duration` is over, the guest or the sink ends, or `watch` wishes it: that is called ten times a
    /// second, unless it is [`unwatched`](Running::unwatched). Then the guest runs without us.
    pub fn run(mut self, duration: Option<Duration>, mut watch: impl FnMut(&Status) -> Wish) -> Ended<T> {
        // The first one is soon, and has what attaching took.
        let mut checkpoint: Option<Instant> = None;
        let end = loop {
            let left = duration.map(|duration| duration.saturating_sub(self.begun.elapsed()));
            if self.feed.has_failed() {
                break End::SinkFailed;
            }
            if watch(&self.status()) == Wish::Stop {
                break End::Stopped;
            }
            if left.is_some_and(|left| left.is_zero()) {
                break End::Duration;
            }
            let round = if checkpoint.is_none() { WATCHED.round } else { self.pace.round };
            match self.collect(left.map_or(round, |left| left.min(round))) {
                Ok(Flow::More) => {}
                Ok(Flow::Ended) => break End::GuestEnded,
                Err(error) => break End::Failed(error),
            }
            if checkpoint.is_none_or(|last| last.elapsed() >= self.pace.checkpoints) {
                checkpoint = Some(Instant::now());
                self.feed.checkpoint(self.counts());
            }
        };
        self.detach(end)
    }

    fn collect(&mut self, wait: Duration) -> Result<Flow, GuestError> {
        let Some(samples) = &mut self.samples else {
            std::thread::sleep(wait);
            return Ok(Flow::More);
        };
        if self.pace.together_max == 0 {
            return samples.collect(wait, &mut |event| self.feed.event(event));
        }
        let mut together = Vec::new();
        let flow = samples.collect(wait, &mut |event| {
            let is_sample = matches!(event, Event::Sample(_));
            if !is_sample || together.len() >= self.pace.together_max {
                self.feed.samples(std::mem::take(&mut together));
            }
            match is_sample {
                true => together.push(event),
                false => self.feed.event(event),
            }
        });
        self.feed.samples(together);
        flow
    }

    fn counts(&self) -> Counts {
        self.samples.as_ref().map_or(Counts::default(), |samples| samples.counts())
    }

    fn status(&self) -> Status {
        let of_trace = |tracer: &Tracer| TraceStatus { counts: tracer.counts(), has_ended: tracer.has_ended() };
        Status {
            elapsed: self.begun.elapsed(),
            counts: self.counts(),
            dropped: self.feed.dropped(),
            progress: self.feed.progress(),
            trace: self.tracer.as_ref().map(of_trace),
        }
    }

    /// What was collected is kept, whatever happened.
    fn detach(mut self, end: End) -> Ended<T> {
        let detached = match &mut self.samples {
            Some(samples) => samples.detach(&mut |event| self.feed.event(event)),
            None => Ok(()),
        };
        let status = self.status();
        let traced = self.tracer.take().map(Tracer::finish);
        if let End::Failed(error) = &end {
            self.feed.event(Event::Warning(format!("recording ended early: {error}")));
        }
        let elapsed = self.begun.elapsed();
        let status = Status { elapsed, dropped: self.feed.dropped(), ..status };
        let end_ns = self.clocks.monotonic_ns + elapsed.as_nanos() as u64;
        Ended { outcome: Outcome { end, status, traced, detached }, feed: self.feed, end_ns }
    }
}

/// A session that is over: the guest runs without us, the sink has not finished yet.
pub struct Ended<T> {
    /// How it went.
    pub outcome: Outcome,
    feed: Feed<T>,
    end_ns: u64,
}

impl<T: Send + 'static> Ended<T> {
    /// Has the sink finish, which may take its time: a recording gets its names now. Returns what the sink left, and how
    /// the session went; or why the sink could not take everything.
    pub fn finish(self) -> io::Result<(T, Outcome)> {
        let output = self.feed.finish(self.outcome.status.counts, self.end_ns)?;
        Ok((output, self.outcome))
    }
}

/// How a session went.
pub struct Outcome {
    /// Why it ended.
    pub end: End,
    /// What was counted until then.
    pub status: Status,
    /// What reading the guest's trace gave, if it was read.
    pub traced: Option<Result<LiveCounts, GuestError>>,
    detached: Result<(), GuestError>,
}

impl Outcome {
    /// What went wrong with the guest, if anything: sampling it, detaching from it, reading its trace.
    pub fn result(self) -> Result<(), GuestError> {
        if let End::Failed(error) = self.end {
            return Err(error);
        }
        self.detached?;
        self.traced.transpose()?;
        Ok(())
    }
}
