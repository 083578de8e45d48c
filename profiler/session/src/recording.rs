//! The sink that writes a recording.

use std::io::{self, Write};

use glass_profiler_core::event::Event;
use glass_profiler_core::files::FileSource;
use glass_profiler_core::model::{Cost, Origin};
use glass_profiler_core::recorder::{Progress, Recorder};
use glass_profiler_core::recording::Clocks;
use glass_profiler_guests::cpu_time_ns;

use crate::sink::Sink;

/// What is in a recording that is complete.
#[derive(Debug, Clone)]
pub struct Written {
    /// What it cost, and what it missed.
    pub cost: Cost,
    /// How many vCPUs or threads were sampled.
    pub tracks: u32,
    /// The first warnings of the recording, and how many there are.
    pub warnings: (Vec<String>, usize),
}

/// Warnings that are returned at most; the recording has all.
const WARNINGS_MAX: usize = 8;

/// A recording that is being written.
pub struct Recording<W, F> {
    recorder: Recorder<W>,
    files: F,
    warnings: (Vec<String>, usize),
}

impl<W: Write, F: FileSource> Recording<W, F> {
    /// Writes the start of a recording. `clocks` are those of the session; `files` gives the programs that the guest runs.
    pub fn start(output: W, clocks: Clocks, origin: &Origin, files: F) -> io::Result<Recording<W, F>> {
        let origin = Origin { start_unix_ns: clocks.realtime_ns, ..origin.clone() };
        Ok(Recording { recorder: Recorder::start(output, clocks, &origin)?, files, warnings: Default::default() })
    }
}

impl<W: Write + Send + 'static, F: FileSource + Send + 'static> Sink for Recording<W, F> {
    type Output = Written;

    fn event(&mut self, event: Event) -> io::Result<()> {
        if let Event::Warning(text) = &event {
            self.warnings.1 += 1;
            if self.warnings.1 <= WARNINGS_MAX {
                self.warnings.0.push(text.clone());
            }
        }
        self.recorder.event(event, &mut self.files)
    }

    fn progress(&self) -> Progress {
        self.recorder.progress()
    }

    fn checkpoint(&mut self, cost: &Cost) -> io::Result<()> {
        self.recorder.checkpoint(cost)
    }

    fn finish(mut self, cost: &Cost, end_ns: u64) -> io::Result<Written> {
        let tracks = self.recorder.tracks();
        // Names take time too.
        let (before, start_ns) = (cost.profiler_cpu_ns, cpu_time_ns());
        let at_end_ns = || before + (cpu_time_ns() - start_ns);
        let (cost, mut output) = self.recorder.finish(cost, end_ns, &mut self.files, at_end_ns)?;
        output.flush()?;
        Ok(Written { cost, tracks, warnings: self.warnings })
    }
}
