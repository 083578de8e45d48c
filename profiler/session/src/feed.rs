//! The thread of a sink, and the queue to it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use glass_profiler_core::event::Event;
use glass_profiler_core::model::{Cost, Losses};
use glass_profiler_core::recorder::Progress;
use glass_profiler_guests::{Counts, cpu_time_ns};

use crate::queue::{Consumer, Sender, queue};
use crate::sink::Sink;

/// How often the shared progress is renewed, in events.
const PROGRESS_EVENTS: u64 = 64;

enum Message {
    Event(Event),
    Samples(Vec<Event>),
    Checkpoint(Cost),
    Finish(Cost, u64),
}

impl From<Event> for Message {
    fn from(event: Event) -> Message {
        Message::Event(event)
    }
}

impl From<Vec<Event>> for Message {
    fn from(samples: Vec<Event>) -> Message {
        Message::Samples(samples)
    }
}

/// The way into a sink for a thread of its own.
pub(crate) struct Events(Sender<Message>);

impl Events {
    /// Queues an event.
    pub(crate) fn event(&mut self, event: Event) {
        self.0.event(event);
    }
}

/// The way of events into a sink, for what collects them without a [`Session`](crate::Session). Dropped without
/// [`finish`](Feed::finish), it leaves the sink unfinished.
pub struct Feed<T> {
    queue: Sender<Message>,
    thread: JoinHandle<io::Result<T>>,
    progress: Arc<Mutex<Progress>>,
    has_failed: Arc<AtomicBool>,
}

impl<T: Send + 'static> Feed<T> {
    /// Starts the thread. Fails if there can be none.
    pub fn start<S: Sink<Output = T>>(sink: S) -> io::Result<Feed<T>> {
        let (queue, messages) = queue();
        let progress = Arc::new(Mutex::new(Progress::default()));
        let has_failed = Arc::new(AtomicBool::new(false));
        let (shared, flag) = (progress.clone(), has_failed.clone());
        let thread = std::thread::Builder::new().name("sink".to_owned()).spawn(move || {
            let result = work(sink, &messages, &shared);
            flag.store(result.is_err(), Ordering::Relaxed);
            result
        })?;
        Ok(Feed { queue, thread, progress, has_failed })
    }

    /// Queues an event; a sample that finds no room is dropped and counted as lost.
    pub fn event(&mut self, event: Event) {
        self.queue.event(event);
    }

    /// Queues samples together; if they find no room all are dropped, and counted as lost.
    pub(crate) fn samples(&mut self, samples: Vec<Event>) {
        self.queue.samples(samples);
    }

    /// Writes the end. Returns what the sink left, or why it could take no more.
    pub fn finish(mut self, counts: Counts, end_ns: u64) -> io::Result<T> {
        let cost = self.cost(counts);
        self.queue.send(Message::Finish(cost, end_ns));
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread ended unexpectedly")))
    }

    /// The same way for another thread.
    pub(crate) fn another(&self) -> Events {
        Events(self.queue.another())
    }

    /// What the sink has counted.
    pub(crate) fn progress(&self) -> Progress {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the sink can take no more.
    pub(crate) fn has_failed(&self) -> bool {
        // A thread that panicked has set nothing.
        self.has_failed.load(Ordering::Relaxed) || self.thread.is_finished()
    }

    /// Samples that found no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    /// Has the sink take note of the overhead so far, unless it is busy.
    pub(crate) fn checkpoint(&self, counts: Counts) {
        self.queue.offer(Message::Checkpoint(self.cost(counts)));
    }

    fn cost(&self, counts: Counts) -> Cost {
        let queue_full = counts.losses.queue_full + self.queue.dropped();
        let losses = Losses { queue_full, ..counts.losses };
        Cost {
            samples_wanted: counts.expected(),
            samples_lost: losses.samples(),
            losses,
            samples_late: counts.late,
            // That of this process is added where the cost is used.
            profiler_cpu_ns: counts.helpers_cpu_ns,
            ..Default::default()
        }
    }
}

fn with_own_time(cost: Cost) -> Cost {
    Cost { profiler_cpu_ns: cost.profiler_cpu_ns + cpu_time_ns(), ..cost }
}

fn work<S: Sink>(mut sink: S, messages: &Consumer<Message>, progress: &Mutex<Progress>) -> io::Result<S::Output> {
    let mut events = 0u64;
    while let Some(message) = messages.next() {
        match message {
            Message::Event(event) => {
                sink.event(event)?;
                events += 1;
                if !events.is_multiple_of(PROGRESS_EVENTS) {
                    continue;
                }
            }
            Message::Samples(samples) => {
                events += samples.len() as u64;
                samples.into_iter().try_for_each(|sample| sink.event(sample))?;
            }
            Message::Checkpoint(cost) => sink.checkpoint(&with_own_time(cost))?,
            Message::Finish(cost, end_ns) => return sink.finish(&with_own_time(cost), end_ns),
        }
        *progress.lock().unwrap_or_else(PoisonError::into_inner) = sink.progress();
    }
    Err(io::Error::other("it was left without an end"))
}
