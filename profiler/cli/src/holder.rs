//! `glass holder`: the process that stops a VM and reads it, or opens the files of a process, for `glass record` and `glass top`; or copies its
//! RAM, or searches the copy, for `glass dump`. These start it by themselves.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use glass_profiler_guests::backends::dump;
use glass_profiler_guests::backends::remote::{Launcher, Task, serve};
use glass_profiler_guests::files::debuginfod::Debuginfod;
use glass_profiler_guests::files::{FILES, serve_files};
use glass_profiler_guests::systems::vmcoreinfo;

use crate::console::{print, say};
use crate::jail;
use crate::record::output::Files;

/// The name of the command.
const NAME: &str = "holder";

/// Holds a VM or opens files for another process of glass.
#[derive(clap::Args)]
pub struct Args {
    /// A file that is removed if it is empty and nothing is sampled: the process that made it may not.
    #[arg(long)]
    new_file: Option<PathBuf>,
    /// A file that gets its name then.
    #[arg(long, requires = "new_file")]
    old_file: Option<PathBuf>,
    /// A file that gets the name of that one then, and is removed otherwise.
    #[arg(long, requires = "old_file")]
    older_file: Option<PathBuf>,
    /// The VM, the rate and the vCPUs; or files.
    task: Vec<String>,
}

/// How to start it: from this program itself, also if its file was replaced.
pub fn launcher() -> Launcher {
    Launcher { program: "/proc/self/exe".into(), arguments: vec![NAME.into()], before_parsing: None }
}

/// The same, for a process that enters this jail before it reads anything; `files` are what it has made and renamed, and could not remove then.
pub fn launcher_of_prisoner(enter: fn() -> Option<String>, files: Option<Files<'_>>) -> Launcher {
    let mut launcher = Launcher { before_parsing: Some(enter), ..launcher() };
    if let Some(Files { path, old, older }) = files {
        launcher.arguments.push(argument("--new-file=", path));
        launcher.arguments.extend(old.map(|old| argument("--old-file=", old)));
        launcher.arguments.extend(older.map(|older| argument("--older-file=", older)));
    }
    launcher
}

fn argument(option: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(option);
    argument.push(path);
    argument
}

/// Serves until the other process wants no more, or is gone.
pub fn run(arguments: &Args) -> Result<()> {
    let socket = || std::io::stdin().as_fd().try_clone_to_owned().context("cannot use standard input");
    let was_sampled = match Task::of_arguments(&arguments.task) {
        // The process that started this one puts its file in order itself then, or records into it in another way.
        Some(task) => match serve(socket()?, &task)? {
            Some(was_sampled) => was_sampled,
            None => return Ok(()),
        },
        None if arguments.task == [dump::SEARCH] => return search(socket()?),
        None if let Some(task) = dump::Task::of_arguments(&arguments.task) => {
            let file = std::io::stdout().as_fd().try_clone_to_owned().context("cannot use standard output")?;
            return Ok(dump::serve(socket()?, file, &task)?);
        }
        None if arguments.task == [FILES] => {
            serve_files(socket()?, Debuginfod::from_environment(|text| say!("glass: {text}")))?;
            // It ends behind the recording, which is written then.
            false
        }
        None => bail!("glass starts this command by itself: use glass record, glass dump or glass top"),
    };
    let Some(path) = &arguments.new_file else { return Ok(()) };
    let files = Files { path, old: arguments.old_file.as_deref(), older: arguments.older_file.as_deref() };
    files.settle(was_sampled).with_context(|| format!("cannot put {} in order with those before it", path.display()))
}

/// Searches a dump, in the jail, and prints where it has `VMCOREINFO`.
fn search(file: OwnedFd) -> Result<()> {
    jail::enter_and_say();
    match vmcoreinfo::find_in(&File::from(file), 0)? {
        Some(found) => {
            print(&format!("{} {} {}\n", found.range.start, found.range.end - found.range.start, found.release))
        }
        None => Ok(()),
    }
}
