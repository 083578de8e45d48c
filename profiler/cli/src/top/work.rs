//! What is behind the screen: the sink that counts what is sampled, and the threads that make pictures of it and read
//! names. Whatever is slow, a parse of a large file first of all, holds no lock that another of them wants.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use glass_profiler_core::event::Event;
use glass_profiler_core::files::FileSource;
use glass_profiler_core::live::activity::Kind;
use glass_profiler_core::live::names::{Loader, NameCache};
use glass_profiler_core::live::threads::By;
use glass_profiler_core::live::view::{Query, View};
use glass_profiler_core::live::{Live, LiveTrack, Settings, Snapshot, Unwinder};
use glass_profiler_core::model::Cost;
use glass_profiler_core::recorder::Progress;
use glass_profiler_guests::files::{HostFiles, OpenedFiles};
use glass_profiler_guests::{Counts, read_clocks};
use glass_profiler_session::Sink;
use glass_profiler_session::target::Target;

use super::names::NameReader;

/// How often a new picture is made.
const PICTURE_PERIOD: Duration = Duration::from_millis(200);
/// Events that are counted before others get a chance at the counts.
const BATCH_EVENTS: u64 = 64;
/// The rate is taken over about this time.
const RATE_NS: u64 = 2_000_000_000;

/// What the session counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Status {
    pub(super) counts: Counts,
    /// Samples that were taken but could not be counted.
    pub(super) dropped: u64,
}

/// Everything that the screen shows, at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Picture {
    pub(super) view: View,
    pub(super) tracks: Vec<LiveTrack>,
    pub(super) progress: Progress,
    pub(super) status: Status,
    pub(super) samples_per_sec: f64,
    /// From the first sample since the start or the last reset.
    pub(super) covered_ns: u64,
    pub(super) warnings: Vec<String>,
}

/// What the threads share.
pub(super) struct Shared {
    live: Mutex<Live>,
    status: Mutex<Status>,
    picture: Mutex<Arc<Picture>>,
    /// What this process may not be able to open again.
    opened: OpenedFiles,
}

/// A thread that panicked has reported it; what it left can still be shown.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Shared {
    /// `by`: what the rows of the first picture are.
    pub(super) fn new(target: &Target, half_life: Option<Duration>, by: By) -> Shared {
        let kind = match target.is_guest {
            true => Kind::Core,
            false => Kind::Thread { period_ns: 1_000_000_000 / u64::from(target.origin.rate_hz.max(1)) },
        };
        let view = View { query: Query { by, ..Query::default() }, ..View::default() };
        let picture = Mutex::new(Arc::new(Picture { view, ..Picture::default() }));
        Shared { opened: target.opened.clone(), picture, ..Shared::of(kind, half_life) }
    }

    fn of(kind: Kind, half_life: Option<Duration>) -> Shared {
        let half_life_ns = half_life.map(|half_life| half_life.as_nanos() as u64);
        Shared {
            live: Mutex::new(Live::new(Settings { half_life_ns, kind })),
            status: Mutex::default(),
            picture: Mutex::default(),
            opened: OpenedFiles::default(),
        }
    }

    pub(super) fn set_status(&self, status: &glass_profiler_session::Status) {
        *lock(&self.status) = Status { counts: status.counts, dropped: status.dropped };
    }

    fn files(&self) -> HostFiles {
        HostFiles::default().with_opened(self.opened.clone())
    }

    /// Forgets all samples.
    pub(super) fn reset(&self) {
        lock(&self.live).reset();
    }

    /// The newest picture.
    pub(super) fn picture(&self) -> Arc<Picture> {
        lock(&self.picture).clone()
    }

    /// A picture of everything that was counted, when sampling is over.
    pub(super) fn last_picture(&self) -> Picture {
        let query = self.picture().view.query.clone();
        let query = Query { focus: None, ..query };
        let (snapshot, _) = self.snapshot();
        let mut files = self.files();
        let mut load = |image: u32| Some(snapshot.images.get(image as usize)?.read(&mut files));
        let mut picture = self.paint(&snapshot, query, &mut NameCache::default(), &mut load);
        let seconds = picture.covered_ns as f64 / 1e9;
        picture.samples_per_sec = if seconds > 0.0 { picture.progress.samples_taken as f64 / seconds } else { 0.0 };
        picture
    }

    fn snapshot(&self) -> (Snapshot, u64) {
        let now_ns = read_clocks().monotonic_ns;
        (lock(&self.live).snapshot(now_ns), now_ns)
    }

    fn paint(&self, snapshot: &Snapshot, query: Query, names: &mut NameCache, load: &mut Loader<'_>) -> Picture {
        let view = View::build(snapshot, query, names, load);
        let mut warnings = snapshot.warnings.clone();
        for warning in names.take_warnings() {
            lock(&self.live).warn(warning.clone());
            warnings.push(warning);
        }
        Picture {
            view,
            tracks: snapshot.tracks.clone(),
            progress: snapshot.progress,
            status: *lock(&self.status),
            samples_per_sec: 0.0,
            covered_ns: snapshot.covered_ns,
            warnings,
        }
    }
}

/// The sink that counts.
pub(super) struct Counting {
    shared: Arc<Shared>,
    unwinder: Unwinder,
    files: Box<dyn FileSource + Send>,
    events: u64,
}

impl Counting {
    /// Counts for those who look at what is shared.
    pub(super) fn new(shared: Arc<Shared>) -> Counting {
        let files = Box::new(shared.files());
        Counting { shared, unwinder: Unwinder::default(), files, events: 0 }
    }
}

impl Sink for Counting {
    type Output = ();

    fn event(&mut self, event: Event) -> io::Result<()> {
        let Counting { shared, unwinder, files, events } = self;
        unwinder.event(event, &mut **files, &mut |update| lock(&shared.live).update(update));
        *events += 1;
        if events.is_multiple_of(BATCH_EVENTS) {
            // A lock that is taken again at once would never be had by others.
            std::thread::yield_now();
        }
        Ok(())
    }

    fn progress(&self) -> Progress {
        lock(&self.shared.live).progress()
    }

    fn finish(self, _cost: &Cost, _end_ns: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the thread that makes pictures, by the queries. It ends when their sender is dropped.
pub(super) fn start_painting(
    shared: Arc<Shared>,
    queries: Receiver<Query>,
    stop: Arc<AtomicBool>,
) -> Result<JoinHandle<()>> {
    let names = NameReader::start(Box::new(shared.files()))?;
    let thread =
        std::thread::Builder::new().name("paint".to_owned()).spawn(move || paint(&shared, names, &queries, &stop));
    thread.context("cannot start a thread")
}

fn paint(shared: &Shared, mut reader: NameReader, queries: &Receiver<Query>, stop: &AtomicBool) {
    let mut names = NameCache::default();
    let mut query = shared.picture().view.query.clone();
    let mut past: VecDeque<(u64, u64)> = VecDeque::new();
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match queries.recv_timeout(next.saturating_duration_since(Instant::now())) {
            // Only the last of several counts.
            Ok(newest) => query = queries.try_iter().last().unwrap_or(newest),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        reader.budget.renew();
        let (snapshot, now_ns) = shared.snapshot();
        let mut load = |image| reader.load(image, &snapshot.images);
        let mut picture = shared.paint(&snapshot, query.clone(), &mut names, &mut load);
        picture.samples_per_sec = rate(&mut past, now_ns, picture.progress.samples_taken);
        *lock(&shared.picture) = Arc::new(picture);
        next = Instant::now() + PICTURE_PERIOD;
    }
}

/// Samples per second of the last seconds. `past` has times and counts.
fn rate(past: &mut VecDeque<(u64, u64)>, now_ns: u64, samples: u64) -> f64 {
    if past.back().is_some_and(|(_, last)| *last > samples) {
        past.clear();
    }
    past.push_back((now_ns, samples));
    while past.len() > 2 && past[1].0 + RATE_NS <= now_ns {
        past.pop_front();
    }
    let (then_ns, before) = past[0];
    let seconds = now_ns.saturating_sub(then_ns) as f64 / 1e9;
    if seconds > 0.0 { (samples - before) as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests;
