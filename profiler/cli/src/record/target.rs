//! From the command line to something that can be sampled.

use std::fs;
use std::process::Command;

use anyhow::{Result, bail};
use glass_guests::Source;
use glass_guests::process::{Process, ProcessSettings};
use glass_profile::model::Origin;

use super::Args;

/// What is sampled, and how.
pub(super) struct Target {
    pub(super) source: Box<dyn Source>,
    pub(super) origin: Origin,
    pub(super) is_guest: bool,
    pub(super) pid: u32,
}

fn origin(arguments: &Args, guest: String, backend: &str, symbols: String) -> Origin {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Origin {
        guest,
        backend: backend.to_owned(),
        symbols,
        host: host.trim_end().to_owned(),
        rate_hz: arguments.rate,
        recorder: concat!("glass ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Default::default()
    }
}

/// Finds and attaches to what the arguments name.
pub(super) fn find(arguments: &Args) -> Result<Target> {
    match (&arguments.command[..], arguments.pid) {
        ([program, rest @ ..], _) => command(arguments, program, rest),
        ([], Some(pid)) => attach(arguments, pid),
        ([], None) => bail!("nothing to record: give --pid, --name or `-- COMMAND`"),
    }
}

fn settings(arguments: &Args) -> ProcessSettings {
    ProcessSettings { rate_hz: arguments.rate, stack_bytes: arguments.stack_bytes }
}

fn process_target(arguments: &Args, process: Process, name: &str) -> Target {
    let pid = process.pid();
    let backend = "perf_event_open (cpu-clock: time on a CPU, waiting threads are not sampled)";
    let origin = origin(arguments, format!("{name} (process {pid})"), backend, String::new());
    Target { source: Box::new(process), origin, is_guest: false, pid }
}

fn command(arguments: &Args, program: &str, rest: &[String]) -> Result<Target> {
    let mut command = Command::new(program);
    command.args(rest);
    let process = Process::spawn(command, settings(arguments))?;
    let name = program.rsplit('/').next().unwrap_or(program);
    Ok(process_target(arguments, process, name))
}

fn attach(arguments: &Args, pid: u32) -> Result<Target> {
    let process = Process::attach(pid, settings(arguments))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Ok(process_target(arguments, process, name.trim_end()))
}
