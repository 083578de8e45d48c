//! `glass holder`: the process that stops a VM and reads it, or opens the files of a process, for `glass record` and `glass top`. These start it by themselves.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use glass_profiler_guests::backends::remote::{Launcher, Task, serve};
use glass_profiler_guests::files::debuginfod::Debuginfod;
use glass_profiler_guests::files::{FILES, serve_files};

use crate::console::say;

/// The name of the command.
const NAME: &str = "holder";

/// Holds a VM or opens files for another process of glass.
#[derive(clap::Args)]
pub struct Args {
    /// A file that is removed if it is empty and nothing is sampled: who made it may not.
    #[arg(long)]
    new_file: Option<PathBuf>,
    /// The VM, the rate and the vCPUs; or files.
    task: Vec<String>,
}

/// How to start it: from this program itself, also if its file was replaced.
pub fn launcher() -> Launcher {
    Launcher { program: "/proc/self/exe".into(), arguments: vec![NAME.to_owned()], before_parsing: None }
}

/// The same, for a process that enters this jail before it reads anything; `new_file` is one that it has made and could not remove then.
pub fn launcher_of_prisoner(enter: fn() -> Option<String>, new_file: Option<&Path>) -> Launcher {
    let mut launcher = Launcher { before_parsing: Some(enter), ..launcher() };
    if let Some(path) = new_file {
        launcher.arguments.push(format!("--new-file={}", path.display()));
    }
    launcher
}

/// Serves until the other process wants no more, or is gone.
pub fn run(arguments: &Args) -> Result<()> {
    let socket = || std::io::stdin().as_fd().try_clone_to_owned().context("cannot use standard input");
    let was_sampled = match Task::of_arguments(&arguments.task) {
        Some(task) => serve(socket()?, &task)?,
        None if arguments.task == [FILES] => {
            serve_files(socket()?, Debuginfod::from_environment(|text| say!("glass: {text}")))?;
            // A recording that was begun is not empty.
            false
        }
        None => bail!("glass starts this command by itself: use glass record or glass top"),
    };
    if let Some(path) = arguments.new_file.as_ref().filter(|_| !was_sampled)
        && fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
    {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}
