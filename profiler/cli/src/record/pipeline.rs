//! The thread that unwinds and writes while the guest runs, and the queue to it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail};
use glass_guests::debuginfod::Debuginfod;
use glass_guests::files::HostFiles;
use glass_guests::{Counts, cpu_time_ns};
use glass_profile::event::Event;
use glass_profile::model::{Cost, Origin};
use glass_profile::recorder::{Progress, Recorder};
use glass_profile::recording::Clocks;

use super::output::Output;
use crate::console::say;
use crate::queue::{Consumer, Sender, queue};

/// How often the shared progress is renewed, in events.
const PROGRESS_EVENTS: u64 = 64;

enum Message {
    Event(Event),
    Checkpoint(Cost),
    Finish(Cost, u64),
}

impl From<Event> for Message {
    fn from(event: Event) -> Message {
        Message::Event(event)
    }
}

/// The way into the file for a thread of its own.
pub(crate) struct Events(Sender<Message>);

impl Events {
    /// Queues an event.
    pub(crate) fn event(&mut self, event: Event) {
        self.0.event(event);
    }
}

/// What is in a file that is complete.
pub(crate) struct Written {
    pub(crate) cost: Cost,
    /// How many vCPUs or threads were sampled.
    pub(crate) tracks: u32,
}

/// The way of events into the file.
pub(crate) struct Pipeline {
    queue: Sender<Message>,
    thread: JoinHandle<Result<Written>>,
    progress: Arc<Mutex<Progress>>,
    failed: Arc<AtomicBool>,
}

impl Pipeline {
    /// Writes the recording's start and starts the thread.
    pub(crate) fn start(output: Output, clocks: Clocks, origin: &Origin) -> Result<Pipeline> {
        let path = output.path().to_owned();
        let cannot = || format!("cannot write {}", path.display());
        let file = BufWriter::new(output.begin().with_context(cannot)?);
        let origin = Origin { start_unix_ns: clocks.realtime_ns, ..origin.clone() };
        let recorder = Recorder::start(file, clocks, &origin).with_context(cannot)?;
        let (queue, messages) = queue();
        let progress = Arc::new(Mutex::new(Progress::default()));
        let failed = Arc::new(AtomicBool::new(false));
        let (shared, flag, path) = (progress.clone(), failed.clone(), path.clone());
        let thread = std::thread::spawn(move || {
            let result = work(recorder, &messages, &shared, &path);
            flag.store(result.is_err(), Ordering::Relaxed);
            result
        });
        Ok(Pipeline { queue, thread, progress, failed })
    }

    /// The same for another thread.
    pub(crate) fn another(&self) -> Events {
        Events(self.queue.another())
    }

    /// Queues an event; a sample that finds no room is dropped and counted as lost.
    pub(crate) fn event(&mut self, event: Event) {
        self.queue.event(event);
    }

    pub(crate) fn progress(&self) -> Progress {
        *self.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Samples that were wanted and are not in the recording, so far.
    pub(crate) fn lost(&self, counts: Counts) -> u64 {
        counts.lost + self.queue.dropped() + self.progress().samples_dropped
    }

    fn cost(&self, counts: Counts) -> Cost {
        Cost {
            samples_wanted: counts.wanted,
            samples_lost: counts.lost + self.queue.dropped(),
            samples_late: counts.late,
            profiler_cpu_ns: cpu_time_ns(),
            ..Default::default()
        }
    }

    /// Has the cost so far written down.
    pub(crate) fn checkpoint(&self, counts: Counts) {
        self.queue.offer(Message::Checkpoint(self.cost(counts)));
    }

    /// Writes the names and the end of the recording.
    pub(crate) fn finish(mut self, counts: Counts, end_ns: u64) -> Result<Written> {
        let cost = self.cost(counts);
        self.queue.send(Message::Finish(cost, end_ns));
        self.thread.join().map_err(|_| anyhow!("the recorder's thread ended unexpectedly"))?
    }
}

fn work(
    mut recorder: Recorder<BufWriter<File>>,
    messages: &Consumer<Message>,
    progress: &Mutex<Progress>,
    path: &Path,
) -> Result<Written> {
    let cannot =
        || format!("cannot write {} any further; what was recorded until then can be reported", path.display());
    let debuginfod = Debuginfod::from_environment(|text| say!("glass: {text}"));
    let mut files = HostFiles::with_debuginfod(debuginfod);
    let mut events = 0u64;
    while let Some(message) = messages.next() {
        match message {
            Message::Event(event) => {
                recorder.event(event, &mut files).with_context(cannot)?;
                events += 1;
                if events.is_multiple_of(PROGRESS_EVENTS) {
                    *progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = recorder.progress();
                }
            }
            Message::Checkpoint(cost) => {
                recorder.checkpoint(&cost).with_context(cannot)?;
                *progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = recorder.progress();
            }
            Message::Finish(cost, end_ns) => {
                let tracks = recorder.tracks();
                let (cost, file) = recorder.finish(&cost, end_ns, &mut files, cpu_time_ns).with_context(cannot)?;
                file.into_inner()
                    .map_err(|error| error.into_error())
                    .with_context(cannot)?
                    .flush()
                    .with_context(cannot)?;
                return Ok(Written { cost, tracks });
            }
        }
    }
    bail!("the recorder was not told to finish")
}
