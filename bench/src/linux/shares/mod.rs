//! Whether the shares that samples give to functions are right: of a guest's kernel against what QEMU counts, of its programs against perf
//! inside of the guest.

mod counted;
mod inside;
mod sampled;

use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Context, Result, ensure};
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::recording::{self, Recording};
use glass_tests::linux_guest::Guest;
use glass_tests::process::Process;
use glass_tests::programs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// What a recording may take beside its length, on a loaded machine.
const AROUND: Duration = Duration::from_secs(120);

/// Both.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if !programs::has_qemu() {
        outcome.skip("qemu-system-x86_64 is not installed");
        return Ok(());
    }
    if run.is_short() {
        outcome.skip("shares of Linux guests are measured in long runs only");
        return Ok(());
    }
    counted::measure(outcome, &run.part(0, 2))?;
    run.figures(outcome);
    inside::measure(outcome, &run.part(1, 2))?;
    if outcome.figures.is_empty() {
        outcome.skip(outcome.notes.join("; "));
    }
    Ok(())
}

/// A recording that runs.
struct Recorder {
    process: Process,
    file: PathBuf,
    seconds: u64,
}

impl Recorder {
    /// Records a guest for so long.
    fn start(guest: &Guest, seconds: u64, options: &[&str]) -> Result<Recorder> {
        let file = guest.folder().file("shares.glass");
        let mut command = Command::new(programs::built("glass").context("glass is not built")?);
        command.args(["record", "--pid", &guest.pid().to_string(), "--duration", &seconds.to_string()]);
        command.args(options).arg("--output").arg(&file);
        let process = Process::spawn(&mut command, &guest.folder().file("shares.log"))?;
        Ok(Recorder { process, file, seconds })
    }

    /// Its file and what is in it.
    fn end(mut self) -> Result<(PathBuf, Recording)> {
        let status = self.process.wait(Duration::from_secs(self.seconds) + AROUND);
        let status = status.with_context(|| format!("glass record does not end: {}", self.process.output()))?;
        ensure!(status.success(), "glass record: {}", self.process.output());
        let recording = recording::open(&std::fs::read(&self.file)?, &mut NoFiles)?;
        Ok((self.file, recording))
    }
}
