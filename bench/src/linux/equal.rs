//! How much of what is read out of RAM is what the guest lists.

use super::ram::Ram;
use anyhow::{Context, Result};
use glass_profiler_core::linux::btf::Btf;
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::linux::mappings::{self, EXECUTE, READ, SHARED, Vma, WRITE};
use glass_profiler_core::linux::space::Space;
use glass_profiler_core::linux::{files, tasks};
use glass_tests::linux_guest::truth::{MapsLine, Task, Truth};
use std::collections::{BTreeMap, HashSet};

/// The process that writes the truth has ended when the guest is stopped, and so has the shell that started it.
const COLLECTS: &str = "collect";
/// The page that the kernel shows in each process and has in none.
const GATE: &str = "[vsyscall]";
/// The longest name of a task.
const NAME_BYTES: usize = 15;
/// Differences that are kept.
const DIFFERENCES_MAX: usize = 5;
const PAGE_BYTES: u64 = 4096;

/// What was compared, how much of it is equal, of how much, and a few of the differences.
#[derive(Debug, Default)]
struct Part {
    equal: usize,
    all: usize,
    differences: Vec<String>,
}

impl Part {
    fn add(&mut self, is_equal: bool, what: impl FnOnce() -> String) {
        self.all += 1;
        if is_equal {
            self.equal += 1;
        } else if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(what());
        }
    }
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Equal {
    names: Part,
    threads: Part,
    maps: Part,
}

impl Equal {
    /// The name of each part, how much is equal, of how much, and a few differences.
    pub(super) fn counts(&self) -> [(&'static str, (usize, usize), &[String]); 3] {
        [("names", &self.names), ("threads", &self.threads), ("maps", &self.maps)]
            .map(|(name, part)| (name, (part.equal, part.all), &part.differences[..]))
    }
}

/// Compares with a guest that is stopped.
pub(super) fn compare(ram: &Ram, kernel: &Kernel, truth: &Truth) -> Result<Equal> {
    let mut equal = Equal::default();
    names(&mut equal.names, kernel, truth);
    let types = kernel.types(ram).context("the kernel does not describe its types")?;
    let types = Btf::parse(&types, None).context("the description of types cannot be parsed")?;
    let of_tasks = tasks::Offsets::of(&types).map_err(anyhow::Error::msg)?;
    let found = tasks::list(kernel, ram, &of_tasks).context("the kernel has no list of tasks")?;
    let by_tid: BTreeMap<u32, &tasks::Task> = found.tasks.iter().map(|task| (task.tid, task)).collect();
    let collects = truth.tasks_named(COLLECTS).next();
    let is_gone = |tid: u32| collects.is_some_and(|task| tid == task.tid || tid == task.parent);
    for expected in truth.tasks.values().filter(|task| !is_gone(task.tid)) {
        let found = by_tid.get(&expected.tid);
        // Workers come and go.
        if found.is_none() && expected.name.starts_with("kworker/") {
            continue;
        }
        let is_equal = found.is_some_and(|found| (found.pid, is_name(&found.name, expected)) == (expected.pid, true));
        equal.threads.add(is_equal, || format!("{} {}: {found:?}", expected.tid, expected.name));
    }
    let of_mappings = mappings::Offsets::of(&types).map_err(anyhow::Error::msg)?;
    let of_files = files::Offsets::of(&types).map_err(anyhow::Error::msg)?;
    let space = kernel.space(ram);
    for (pid, process) in truth.processes.iter().filter(|(pid, _)| !is_gone(**pid)) {
        let Some(task) = by_tid.get(pid).filter(|task| task.mm != 0) else { continue };
        let found = mappings::list(&space, task.mm, &of_mappings).unwrap_or_default();
        let lines: HashSet<String> = found.iter().map(|vma| line(&space, vma, &of_files)).collect();
        for expected in process.maps.iter().filter(|line| line.path != GATE) {
            let expected = shown(expected);
            equal.maps.add(lines.contains(&expected), || format!("{} {pid}: {expected}", task.name));
        }
    }
    Ok(equal)
}

/// The kernel's own symbols, in its order.
fn names(part: &mut Part, kernel: &Kernel, truth: &Truth) {
    let mut found = kernel.symbols.symbols();
    for expected in truth.kallsyms.iter().filter(|symbol| symbol.module.is_none()) {
        let found = found.next();
        let is_equal = found.is_some_and(|found| {
            (found.address, char::from(found.kind), found.name)
                == (expected.address, expected.kind, expected.name.as_str())
        });
        part.add(is_equal, || format!("{expected:?}: {found:?}"));
    }
}

/// Whether a thread has this name: of the kernel's own, `/proc` has some that do not fit into a `comm`, and adds what a worker works at.
pub(super) fn is_name(found: &str, expected: &Task) -> bool {
    let is_part = found.starts_with("kworker/") || found.len() == NAME_BYTES;
    found == expected.name || is_part && expected.name.starts_with(found)
}

/// A mapping as a line; without the name that the kernel gives to one without a file.
fn line(space: &Space<'_>, vma: &Vma, offsets: &files::Offsets) -> String {
    let letter = |flag: u64, letter: char| if vma.flags & flag != 0 { letter } else { '-' };
    let shared = if vma.flags & SHARED != 0 { 's' } else { 'p' };
    let rights: String = [letter(READ, 'r'), letter(WRITE, 'w'), letter(EXECUTE, 'x'), shared].iter().collect();
    let head = format!("{:x}-{:x} {rights}", vma.start, vma.end);
    let Some(at) = vma.file else { return head };
    let Some(file) = files::file(space, at, offsets) else { return format!("{head} no file") };
    let (device, deleted) = (file.device, if file.is_deleted { " (deleted)" } else { "" });
    let path = file.path.unwrap_or_else(|| "no path".to_owned());
    let offset = vma.page_offset * PAGE_BYTES;
    format!("{head} {offset:x} {:x}:{:x} {} {path}{deleted}", device.major, device.minor, file.inode)
}

/// A line of the guest in the same form.
fn shown(line: &MapsLine) -> String {
    let head = format!("{:x}-{:x} {}", line.start, line.end, line.rights);
    if line.path.is_empty() || line.path.starts_with('[') {
        return head;
    }
    let ((major, minor), inode) = (line.device, line.inode);
    format!("{head} {:x} {major:x}:{minor:x} {inode} {}", line.offset, line.path)
}
