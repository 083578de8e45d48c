//! The process or the thread that a view of a recording is restricted to, on the command line.

use std::path::Path;

use anyhow::{Result, anyhow};
use glass_profiler_core::recording::Recording;
use glass_profiler_core::threads::Wanted;

/// Which samples of a recording are used.
#[derive(Debug, Clone, clap::Args)]
pub struct OnlyArgs {
    /// Only samples of this process, by its name or its process ID: one of a Linux guest, or of a recording of processes.
    #[arg(long, value_name = "NAME|PID")]
    process: Option<String>,
    /// Only samples of this thread, by its name or its thread ID; with --process, of that process.
    #[arg(long, value_name = "NAME|TID")]
    thread: Option<String>,
}

impl OnlyArgs {
    /// Whether samples are left out.
    pub fn is_given(&self) -> bool {
        self.process.is_some() || self.thread.is_some()
    }

    /// Leaves out the samples of other processes and threads; it is an error if none is left.
    pub fn apply(&self, file: &Path, recording: &mut Recording) -> Result<()> {
        let wanted = Wanted { process: self.process.clone(), thread: self.thread.clone() };
        wanted.keep(&mut recording.profile).map_err(|error| anyhow!("{} {error}", file.display()))
    }
}
