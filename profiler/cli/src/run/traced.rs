//! What `glass run --trace` records: all events from the first instruction to the end.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use glass_guests::trace::{self, LiveSettings, Start};
use glass_guests::{Counts, read_clocks};

use super::Args;
use crate::console::say;
use crate::record::output::Output;
use crate::record::pipeline::Pipeline;
use crate::record::{progress, watch_signals};
use crate::target::origin_of;
use crate::trace::tell;
use crate::trace::traced_guest;
use crate::trace::tracer::Tracer;
use crate::trace::wanted::WantedArgs;

/// Between two looks whether the service has ended.
const ROUND: Duration = Duration::from_millis(20);
/// How long a service may take to end by itself once it was asked to.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// A recording that will begin with the service.
pub(super) struct Recording {
    output: Output,
    path: PathBuf,
    program: PathBuf,
    settings: LiveSettings,
    /// Set to end the service.
    pub(super) interrupted: Arc<AtomicBool>,
    is_detached: Arc<AtomicBool>,
}

impl Recording {
    /// Prepares what must not fail once the service runs. `None` if nothing is to be traced.
    pub(super) fn prepare(args: &Args, program: &Path) -> Result<Option<Recording>> {
        let Some(groups) = args.trace else { return Ok(None) };
        trace::check_program(program)?;
        let wanted = WantedArgs { groups, functions: Vec::new(), include: Vec::new(), exclude: Vec::new() };
        let settings = wanted.settings_of(program, &args.app)?;
        // A pipe may wait for its reader here, which Ctrl-C ends.
        let output = Output::prepare(&args.output)?;
        let (interrupted, is_detached) = (Arc::default(), Arc::default());
        watch_signals(&interrupted, &is_detached).context("cannot watch for Ctrl-C")?;
        Ok(Some(Recording {
            output,
            path: args.output.clone(),
            program: program.to_owned(),
            // What the ring held before we looked counts, or is told as lost.
            settings: LiveSettings { start: Start::First, ..settings },
            interrupted,
            is_detached,
        }))
    }

    /// Records until the service in `child` ends. Ctrl-C ends the service, not us.
    pub(super) fn run(self, child: &mut Child, title: &str, is_vm: bool) -> Result<ExitStatus> {
        let result = self.record(child, title, is_vm);
        if result.is_err() {
            // Whatever went wrong, it was started by us.
            let _ = child.kill();
            let _ = child.wait();
        }
        result
    }

    fn record(self, child: &mut Child, title: &str, is_vm: bool) -> Result<ExitStatus> {
        let pid = child.id();
        let clocks = read_clocks();
        let begun = Instant::now();
        let origin = origin_of(
            0,
            title.to_owned(),
            "its own trace, from the first instruction on",
            self.program.display().to_string(),
        );
        let mut pipeline = Pipeline::start(self.output, clocks, &origin)?;
        pipeline.event(traced_guest(is_vm, pid, title));
        let program = self.program;
        let open = move || if is_vm { trace::open(pid, Some(&program)) } else { trace::open_process(pid) };
        let tracer = Tracer::start_with(open, self.settings, &pipeline);
        let mut asked: Option<Instant> = None;
        let mut checkpoint = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().context("cannot wait for the service")? {
                break status;
            }
            if self.interrupted.load(Ordering::Relaxed) {
                // A terminal has told the service too.
                let asked = *asked.get_or_insert_with(Instant::now);
                if is_vm || asked.elapsed() > END_PATIENCE {
                    let _ = child.kill();
                }
            }
            if checkpoint.elapsed() >= Duration::from_secs(1) {
                checkpoint = Instant::now();
                pipeline.checkpoint(Counts::default());
            }
            std::thread::sleep(ROUND);
        };
        let traced = tracer.finish();
        self.is_detached.store(true, Ordering::Relaxed);
        let elapsed = begun.elapsed();
        let written = pipeline.finish(Counts::default(), clocks.monotonic_ns + elapsed.as_nanos() as u64)?;
        progress::written(&self.path, elapsed);
        match &traced {
            Ok(counts) => tell::summary(counts, Some(elapsed)),
            Err(error) => say!("glass: the service ran, but its trace is not complete: {error:#}"),
        }
        progress::profiler(&written.cost, elapsed);
        Ok(status)
    }
}
