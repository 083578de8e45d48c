//! The threads behind the screen: one counts what the sampling thread gets, one makes pictures of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use glass_guests::files::HostFiles;
use glass_guests::{Counts, read_clocks};
use glass_profile::event::Event;
use glass_profile::live::activity::Kind;
use glass_profile::live::names::{Loader, NameCache};
use glass_profile::live::view::{Query, View};
use glass_profile::live::{Live, LiveTrack, Settings, Snapshot};
use glass_profile::recorder::Progress;

use crate::queue::{Consumer, Sender, queue};
use crate::target::Target;

/// How often a new picture is made.
const PICTURE_PERIOD: Duration = Duration::from_millis(200);
/// Events that are counted before others get a chance at the counts.
const BATCH_EVENTS: usize = 64;
/// The rate is taken over about this time.
const RATE_NS: u64 = 2_000_000_000;

/// What the sampling thread tells.
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
}

/// A thread that panicked has told so; what it left is still good to look at.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Shared {
    pub(super) fn new(target: &Target, half_life: Option<Duration>) -> Shared {
        let kind = match target.is_guest {
            true => Kind::Core,
            false => Kind::Thread { period_ns: 1_000_000_000 / u64::from(target.origin.rate_hz.max(1)) },
        };
        let half_life_ns = half_life.map(|half_life| half_life.as_nanos() as u64);
        Shared {
            live: Mutex::new(Live::new(Settings { half_life_ns, kind })),
            status: Mutex::default(),
            picture: Mutex::default(),
        }
    }

    pub(super) fn set_status(&self, status: Status) {
        *lock(&self.status) = status;
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
        let mut picture = self.paint(&snapshot, query, &mut NameCache::default());
        let seconds = picture.covered_ns as f64 / 1e9;
        picture.samples_per_sec = if seconds > 0.0 { picture.progress.samples_taken as f64 / seconds } else { 0.0 };
        picture
    }

    fn snapshot(&self) -> (Snapshot, u64) {
        let now_ns = read_clocks().monotonic_ns;
        (lock(&self.live).snapshot(now_ns), now_ns)
    }

    fn paint(&self, snapshot: &Snapshot, query: Query, names: &mut NameCache) -> Picture {
        // Reading a file's names can take a second; samples wait in the queue meanwhile.
        let load: &mut Loader<'_> = &mut |image, files| lock(&self.live).names(image, files);
        let view = View::build(snapshot, query, names, load, &mut HostFiles::default());
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

/// Starts the thread that counts, and returns the way of events to it. It ends when that is dropped.
pub(super) fn start_counting(shared: Arc<Shared>) -> Result<(Sender<Event>, JoinHandle<()>)> {
    let (sender, consumer) = queue();
    let thread = std::thread::Builder::new().name("count".to_owned()).spawn(move || count(&consumer, &shared));
    Ok((sender, thread.context("cannot start a thread")?))
}

fn count(events: &Consumer<Event>, shared: &Shared) {
    let mut files = HostFiles::default();
    while let Some(first) = events.next() {
        let mut live = lock(&shared.live);
        live.event(first, &mut files);
        for _ in 1..BATCH_EVENTS {
            match events.next_within(Duration::ZERO) {
                Ok(Some(event)) => live.event(event, &mut files),
                _ => break,
            }
        }
        drop(live);
        // A lock that is taken again at once would never be had by others.
        std::thread::yield_now();
    }
}

/// Starts the thread that makes pictures, as the queries ask. It ends when their sender is dropped.
pub(super) fn start_painting(
    shared: Arc<Shared>,
    queries: Receiver<Query>,
    stop: Arc<AtomicBool>,
) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("paint".to_owned()).spawn(move || paint(&shared, &queries, &stop));
    thread.context("cannot start a thread")
}

fn paint(shared: &Shared, queries: &Receiver<Query>, stop: &AtomicBool) {
    let mut names = NameCache::default();
    let mut query = Query::default();
    let mut past: VecDeque<(u64, u64)> = VecDeque::new();
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match queries.recv_timeout(next.saturating_duration_since(Instant::now())) {
            // Only the last of several counts.
            Ok(newest) => query = queries.try_iter().last().unwrap_or(newest),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let (snapshot, now_ns) = shared.snapshot();
        let mut picture = shared.paint(&snapshot, query.clone(), &mut names);
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
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let mut past = VecDeque::new();
        assert_eq!(rate(&mut past, 0, 0), 0.0);
        for tenth in 1..=50u64 {
            let got = rate(&mut past, tenth * 100_000_000, tenth * 10);
            assert!((got - 100.0).abs() < 0.01, "{got}");
        }
        assert!(past.len() <= 22);
        let mut last = 100.0;
        for tenth in 51..=80u64 {
            last = rate(&mut past, tenth * 100_000_000, 500);
        }
        assert_eq!(last, 0.0);
        assert_eq!(rate(&mut past, 9_000_000_000, 3), 0.0, "after a reset");
    }
}
