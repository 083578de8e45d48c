//! `glass stacks`: where the tasks of a Linux guest wait, in the kernel and in their processes.

mod text;

use anyhow::{Context, Result, ensure};
use glass_profiler_core::event::Event;
use glass_profiler_core::files::FileSource;
use glass_profiler_core::images::Images;
use glass_profiler_core::linux::tasks::{Task, TaskState};
use glass_profiler_core::names::printable;
use glass_profiler_guests::systems::linux_guest::Stack;

use crate::console::{self, say};
use crate::linux::{GuestFilesArgs, LinuxArgs, torn};
use crate::record::output;
use text::Writer;

/// Prints the stack of each task of a Linux VM, in the kernel and in its process.
///
/// The VM is not stopped. A task that ran while its stack was read is reported as such; a stack that is printed is of one moment. Names are from
/// the kernel's own table, and from what the guest has of its files in memory.
#[derive(clap::Args)]
#[command(override_usage = "glass stacks [OPTIONS] <--pid PID | --name NAME | --post-mortem FILE>")]
pub struct Args {
    #[command(flatten)]
    guest: LinuxArgs,
    /// Only tasks that wait and are not woken by signals (state D).
    #[arg(long)]
    blocked: bool,
    /// Only the threads of this process, by its ID in the guest's initial PID namespace.
    #[arg(long, value_name = "PID")]
    process: Option<u32>,
    /// Only this thread, by its ID in the guest's initial PID namespace.
    #[arg(long, value_name = "TID")]
    thread: Option<u32>,
    #[command(flatten)]
    files: GuestFilesArgs,
}

impl Args {
    fn is_wanted(&self, task: &Task) -> bool {
        self.process.is_none_or(|pid| pid == task.pid)
            && self.thread.is_none_or(|tid| tid == task.tid)
            && (!self.blocked || task.state == TaskState::Blocked)
    }

    /// What is printed of.
    fn subject(&self) -> String {
        let process = self.process.map(|pid| format!(" of process {pid}"));
        let thread = self.thread.map(|tid| format!(" with the thread ID {tid}"));
        let state = if self.blocked { " in state D" } else { "" };
        format!("task{}{}{state}", process.unwrap_or_default(), thread.unwrap_or_default())
    }
}

/// Prints the stacks.
pub fn run(arguments: &Args) -> Result<()> {
    let (mut guest, opened) = arguments.guest.open(arguments.files.processes(false))?;
    let mut tasks = guest.tasks().context("the list of the guest's tasks cannot be read: repeat")?;
    tasks.tasks.retain(|task| arguments.is_wanted(task));
    tasks.tasks.sort_by_key(|task| (task.pid, task.tid != task.pid, task.tid));
    // That nothing is blocked is a result.
    let is_named = arguments.process.is_some() || arguments.thread.is_some();
    ensure!(!tasks.tasks.is_empty() || !is_named, "the guest has no {}", arguments.subject());
    if tasks.tasks.is_empty() {
        say!("glass: the guest has no {}", arguments.subject());
    }
    let (mut files, mut images) = (output::files_of_guest(opened), Images::default());
    let mut writer = Writer::default();
    guest.announce(&mut |event| learn(&event, &mut images, &mut writer, &mut files));
    if !tasks.tasks.is_empty() {
        console::print(&format!("{}\n", text::HEADING))?;
    }
    for task in &tasks.tasks {
        let stack = guest.stack(task, &mut |event| learn(&event, &mut images, &mut writer, &mut files));
        match stack {
            Stack::Stood(sample) => {
                writer.head(task);
                let joined = images.unwind(&sample);
                writer.stack(&joined, &images, &mut files);
            }
            Stack::OnCpu => writer.without_stack(task, "on a CPU"),
            Stack::Ran => writer.without_stack(task, "ran meanwhile"),
            Stack::Gone => writer.without_stack(task, "has ended meanwhile"),
        }
        console::print(&writer.take())?;
    }
    guest.remark().iter().for_each(|remark| say!("glass: {}", printable(remark)));
    if let Some(sentence) = torn(tasks.torn, tasks.left_out) {
        console::print(&(sentence + "\n"))?;
    }
    Ok(())
}

fn learn(event: &Event, images: &mut Images, writer: &mut Writer, files: &mut dyn FileSource) {
    writer.learn(event);
    images.learn(event, files);
}
