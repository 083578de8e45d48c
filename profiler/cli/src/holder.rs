//! `glass holder`: the process that stops a VM and reads it, for `glass record` and `glass top`. These start it by themselves.

use std::os::fd::AsFd;

use anyhow::{Context, Result, bail};
use glass_guests::remote::{Launcher, Task, serve};

/// The name of the command.
const NAME: &str = "holder";

/// Holds a VM for another process of glass.
#[derive(clap::Args)]
pub struct Args {
    /// The VM, the rate and the vCPUs.
    task: Vec<String>,
}

/// How to start it: from this program itself, also if its file was replaced.
pub fn launcher() -> Launcher {
    Launcher { program: "/proc/self/exe".into(), arguments: vec![NAME.to_owned()] }
}

/// Serves until the other process wants no more, or is gone.
pub fn run(arguments: &Args) -> Result<()> {
    let Some(task) = Task::of_arguments(&arguments.task) else {
        bail!("glass starts this command by itself: use glass record or glass top");
    };
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("cannot use standard input")?;
    Ok(serve(socket, &task)?)
}
