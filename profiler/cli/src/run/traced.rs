//! What `glass run --trace` records: all events from the first instruction to the end.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use glass_profiler_guests::systems::glasshouse::{self, LiveSettings, Start};
use glass_profiler_session::target::origin;
use glass_profiler_session::{Session, Sources, Tracing, Wish};

use super::Args;
use crate::console::say;
use crate::record::output::{self, Output};
use crate::record::progress;
use crate::trace::groups::GroupArgs;
use crate::trace::summary;
use crate::trace::traced_guest;

/// Between two checks whether a service has ended that is not recorded any more.
const ROUND: Duration = Duration::from_millis(20);

/// A recording that will begin with the service.
pub(super) struct Recording {
    output: Output,
    path: PathBuf,
    /// What runs in a VM.
    program: PathBuf,
    settings: LiveSettings,
}

impl Recording {
    /// Prepares what must not fail once the service runs. `None` if nothing is to be traced.
    pub(super) fn prepare(args: &Args, program: &Path) -> Result<Option<Recording>> {
        let Some(groups) = args.trace else { return Ok(None) };
        glasshouse::check_program(program)?;
        let wanted = GroupArgs { groups, functions: Vec::new(), exclude: Vec::new() };
        Recording::new(args, program, wanted.settings_of(program, &program.display().to_string())?).map(Some)
    }

    /// As [`Recording::prepare`], of ranks that are processes: the launcher has their trace.
    pub(super) fn of_ranks(args: &Args) -> Result<Option<Recording>> {
        args.trace.map(|groups| Recording::new(args, Path::new(""), groups.live())).transpose()
    }

    fn new(args: &Args, program: &Path, settings: LiveSettings) -> Result<Recording> {
        // A pipe may wait for its reader here, which Ctrl-C ends.
        let output = Output::prepare(&args.output)?;
        Ok(Recording {
            output,
            path: args.output.clone(),
            program: program.to_owned(),
            // What the ring held before the first read counts, or is reported as lost.
            settings: LiveSettings { start: Start::First, ..settings },
        })
    }

    /// Records until the service in `child` ends.
    pub(super) fn run(self, child: &mut Child, title: &str, is_vm: bool) -> Result<ExitStatus> {
        let (mut status, child_id) = (None, child.id());
        let watch = || {
            status = child.try_wait().context("cannot wait for the service")?;
            Ok(if status.is_some() { Wish::Stop } else { Wish::Continue })
        };
        let result = self.record(child_id, title, is_vm, watch);
        if result.is_err() {
            // Whatever went wrong, it was started by us.
            let _ = child.kill();
            let _ = child.wait();
        }
        result?;
        status.context("the service has no status")
    }

    /// Records what process `pid` has a trace of, until `watch`, which is called ten times a second, wishes it to end or fails.
    pub(super) fn record(
        self,
        pid: u32,
        title: &str,
        is_vm: bool,
        mut watch: impl FnMut() -> Result<Wish>,
    ) -> Result<()> {
        let program = self.program;
        let from = "its own trace, from the first instruction on";
        let origin = origin(0, title.to_owned(), from, program.display().to_string());
        let guest = Some(traced_guest(is_vm, pid, title, &program));
        let open = move || if is_vm { glasshouse::open(pid, Some(&program)) } else { glasshouse::open_process(pid) };
        let trace = Tracing::Starting { open: Box::new(open), settings: self.settings };
        let session = Session::announce(Sources { samples: None, trace: Some(trace), guest })?;
        let file = self.output.into_recording(session.clocks(), &origin, output::host_files())?;
        let running = session.start(file)?;
        let mut failed = None;
        let mut watch = || {
            watch().unwrap_or_else(|error| {
                failed = Some(error);
                Wish::Stop
            })
        };
        let ended = running.run(None, |_| watch());
        // A full disk ends the recording, not the service.
        while watch() == Wish::Continue {
            std::thread::sleep(ROUND);
        }
        let (written, outcome) = ended.finish().with_context(|| output::cannot_go_on(&self.path))?;
        let elapsed = outcome.status.elapsed;
        progress::written(&self.path, elapsed);
        match &outcome.traced {
            Some(Ok(counts)) => summary::summary(counts, Some(elapsed)),
            Some(Err(error)) => say!("glass: the service ran, but its trace is not complete: {error}"),
            None => {}
        }
        progress::profiler(&written, elapsed);
        failed.map_or(Ok(()), Err)
    }
}
