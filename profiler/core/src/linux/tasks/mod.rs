//! The tasks of a Linux: its processes and their threads, as the kernel lists them.

mod activity;

use std::ops::Range;

use super::kernel::Kernel;
use super::space::{Space, number, word};
use super::structures::{Field, Layout, pointer};
use crate::memory::Physical;

pub use activity::Activity;

/// The symbol of the number of tasks that have been started (`kernel/fork.c`). A task is in the lists before it is counted, so lists that were read
/// after this number have all tasks of it.
pub const STARTED: &str = "total_forks";
/// The symbol of the first task, at which the list of all begins.
pub(super) const FIRST: &str = "init_task";

/// The most tasks of a guest: Linux has no more than 4 Mi.
const TASKS_MAX: usize = 4 << 20;
/// How often the threads of a process are read that change meanwhile.
const ATTEMPTS_MAX: u32 = 8;
/// The most bytes of a `task_struct` that are read; those of Debian's kernels have up to 10 KiB.
const TASK_BYTES_MAX: u32 = 64 << 10;
/// The most levels of namespaces of process IDs (`MAX_PID_NS_LEVEL`).
const NAMESPACES_MAX: u64 = 32;
/// To read so many bytes more of a task takes no longer than to read a part more.
const NEAR_BYTES: u32 = 256;
/// Bytes of a `comm` (`TASK_COMM_LEN`).
const NAME_BYTES: usize = 16;
/// The most folders of a path of a control group.
const CGROUP_DEPTH_MAX: usize = 64;
const CGROUP_NAME_BYTES_MAX: usize = 256;

/// Where the structures of tasks have what is read of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offsets {
    tasks: u32,
    thread_node: u32,
    thread_head: u32,
    signal: u32,
    /// Thread ID, in the initial namespace.
    pub pid: u32,
    /// Process ID, in the initial namespace.
    pub tgid: u32,
    /// The name.
    pub comm: u32,
    /// The address space, 0 of a kernel thread.
    pub mm: u32,
    /// The lowest address of the kernel stack.
    pub stack: u32,
    /// When it started.
    pub start_time: u32,
    stack_pointer: u32,
    parent: u32,
    leader: u32,
    state: Field,
    exit_state: Field,
    on_cpu: Field,
    flags: Field,
    run_time: u32,
    switches: [u32; 2],
    thread_pid: u32,
    cgroups: Option<CgroupOffsets>,
    pid_level: Field,
    pid_numbers: u32,
    upid_bytes: u32,
    upid_number: u32,
    /// The parts of a `task_struct` that are read, in their order. Most of one is not, and is kibibytes.
    parts: Vec<Range<u32>>,
    /// Those that show whether it did something.
    parts_of_activity: Vec<Range<u32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CgroupOffsets {
    of_task: u32,
    of_set: u32,
    node: u32,
    name: u32,
    parent: u32,
}

impl CgroupOffsets {
    fn of(types: &dyn Layout) -> Option<CgroupOffsets> {
        let at = |structure, path| types.field(structure, path).map(|field| field.at);
        Some(CgroupOffsets {
            of_task: at("task_struct", "cgroups")?,
            of_set: at("css_set", "dfl_cgrp")?,
            node: at("cgroup", "kn")?,
            name: at("kernfs_node", "name")?,
            parent: at("kernfs_node", "__parent").or_else(|| at("kernfs_node", "parent"))?,
        })
    }
}

impl Offsets {
    /// From a kernel's types. The error is the first member that they do not have.
    pub fn of(types: &dyn Layout) -> Result<Offsets, String> {
        let field = |structure, paths: &[&str]| Field::of(types, structure, paths);
        let at = |structure, path: &str| field(structure, &[path]).map(|field| field.at);
        let of_task = |path| at("task_struct", path);
        let mut offsets = Offsets {
            tasks: of_task("tasks")?,
            thread_node: of_task("thread_node")?,
            thread_head: at("signal_struct", "thread_head")?,
            signal: of_task("signal")?,
            pid: of_task("pid")?,
            tgid: of_task("tgid")?,
            comm: of_task("comm")?,
            mm: of_task("mm")?,
            stack: of_task("stack")?,
            start_time: of_task("start_time")?,
            stack_pointer: field("task_struct", &["thread.sp", "thread.cpu_context.sp"])?.at,
            parent: of_task("real_parent")?,
            leader: of_task("group_leader")?,
            state: field("task_struct", &["__state", "state"])?,
            exit_state: field("task_struct", &["exit_state"])?,
            on_cpu: field("task_struct", &["on_cpu"])?,
            flags: field("task_struct", &["flags"])?,
            run_time: of_task("se.sum_exec_runtime")?,
            switches: [of_task("nvcsw")?, of_task("nivcsw")?],
            thread_pid: of_task("thread_pid")?,
            cgroups: CgroupOffsets::of(types),
            pid_level: field("pid", &["level"])?,
            pid_numbers: at("pid", "numbers")?,
            upid_bytes: types.bytes_of("upid").ok_or("upid")?,
            upid_number: at("upid", "nr")?,
            parts: Vec::new(),
            parts_of_activity: Vec::new(),
        };
        let [voluntary, involuntary] = offsets.switches;
        let words = [
            offsets.tasks,
            offsets.thread_node,
            offsets.signal,
            offsets.pid,
            offsets.tgid,
            offsets.comm,
            offsets.comm + 8,
            offsets.mm,
            offsets.stack,
            offsets.start_time,
            offsets.stack_pointer,
            offsets.parent,
            offsets.leader,
            offsets.state.at,
            offsets.exit_state.at,
            offsets.on_cpu.at,
            offsets.flags.at,
            offsets.run_time,
            voluntary,
            involuntary,
            offsets.thread_pid,
            offsets.cgroups.map_or(offsets.pid, |cgroups| cgroups.of_task),
        ];
        offsets.parts = parts(&words, NEAR_BYTES);
        offsets.parts_of_activity = activity::parts_of(&offsets);
        let end = offsets.parts.last().map_or(0, |part| part.end);
        if end > TASK_BYTES_MAX {
            return Err(format!("task_struct of less than {end} bytes"));
        }
        Ok(offsets)
    }
}

/// The bytes of a structure with the words at these offsets.
fn around(words: &[u32]) -> Range<u32> {
    let (start, end) = words.iter().fold((u32::MAX, 0), |(start, end), at| (start.min(*at), end.max(at + 8)));
    start..end
}

/// The same in parts, which are one where no more than `near_bytes` are between them.
fn parts(words: &[u32], near_bytes: u32) -> Vec<Range<u32>> {
    let mut words = words.to_vec();
    words.sort_unstable();
    let mut parts: Vec<Range<u32>> = Vec::new();
    for at in words {
        match parts.last_mut() {
            Some(last) if at <= last.end + near_bytes => last.end = last.end.max(at + 8),
            _ => parts.push(at..at + 8),
        }
    }
    parts
}

/// The parts of a structure that were read.
struct Copied<'a> {
    parts: &'a [Range<u32>],
    bytes: &'a [u8],
}

impl Copied<'_> {
    /// What is at an offset and after it in its part.
    fn at(&self, at: u32) -> Option<&[u8]> {
        let mut before = 0;
        for part in self.parts {
            if part.contains(&at) {
                return self.bytes.get((before + at - part.start) as usize..(before + part.end - part.start) as usize);
            }
            before += part.end - part.start;
        }
        None
    }

    fn word(&self, at: u32) -> Option<u64> {
        word(self.at(at)?, 0)
    }

    fn field(&self, field: Field) -> Option<u64> {
        Field { at: 0, ..field }.get(self.at(field.at)?)
    }
}

/// What identifies a task, from a copy of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its thread ID, in the initial namespace.
    pub tid: u32,
    /// Its process ID, in the initial namespace.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// When it started: nanoseconds since the start of the guest, without times of suspension.
    pub start_ns: u64,
    /// Its address space, 0 without one.
    pub mm: u64,
}

impl Offsets {
    /// The part of a task from which [`identity`](Offsets::identity) reads: bytes from its start.
    #[must_use]
    pub fn part(&self) -> Range<u32> {
        around(&[self.pid, self.tgid, self.comm, self.comm + 8, self.start_time, self.mm])
    }

    /// What identifies a task of which this is the [part](Offsets::part). `None` if it is shorter.
    #[must_use]
    pub fn identity(&self, part: &[u8]) -> Option<Identity> {
        let start = self.part().start;
        self.identity_in(|at| part.get((at - start) as usize..))
    }

    /// The same of a task of which `at` has what is at an offset.
    fn identity_in<'a>(&self, at: impl Fn(u32) -> Option<&'a [u8]>) -> Option<Identity> {
        let half = |offset| number(at(offset)?, 0, 4).and_then(|number| u32::try_from(number).ok());
        Some(Identity {
            tid: half(self.pid)?,
            pid: half(self.tgid)?,
            name: name_of(at(self.comm)?.get(..NAME_BYTES)?),
            start_ns: word(at(self.start_time)?, 0)?,
            mm: word(at(self.mm)?, 0)?,
        })
    }
}

/// What a task does, by the letters of `ps`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TaskState {
    /// On a CPU, or waits for one.
    Runnable,
    /// Waits, and a signal wakes it.
    Sleeping,
    /// Waits, and no signal wakes it.
    Blocked,
    /// Stopped by a signal.
    Stopped,
    /// Stopped by a debugger.
    Traced,
    /// A kernel thread without work.
    Idle,
    /// Ended, and its parent has not waited for it yet.
    Zombie,
    /// Ended.
    Dead,
    /// In no state that is known.
    #[default]
    Other,
}

impl TaskState {
    /// From the numbers of the kernel (`include/linux/sched.h`: `TASK_*`, `EXIT_*`).
    fn of(state: u64, exit: u64) -> TaskState {
        const INTERRUPTIBLE: u64 = 1;
        const UNINTERRUPTIBLE: u64 = 2;
        const STOPPED: u64 = 4;
        const TRACED: u64 = 8;
        const DEAD: u64 = 0x80;
        const NO_LOAD: u64 = 0x400;
        const EXIT_DEAD: u64 = 0x10;
        const EXIT_ZOMBIE: u64 = 0x20;
        match (state, exit) {
            (_, exit) if exit & EXIT_ZOMBIE != 0 => TaskState::Zombie,
            (_, exit) if exit & EXIT_DEAD != 0 => TaskState::Dead,
            (0, _) => TaskState::Runnable,
            (state, _) if state & UNINTERRUPTIBLE != 0 && state & NO_LOAD != 0 => TaskState::Idle,
            (state, _) if state & UNINTERRUPTIBLE != 0 => TaskState::Blocked,
            (state, _) if state & INTERRUPTIBLE != 0 => TaskState::Sleeping,
            (state, _) if state & TRACED != 0 => TaskState::Traced,
            (state, _) if state & STOPPED != 0 => TaskState::Stopped,
            (state, _) if state & DEAD != 0 => TaskState::Dead,
            _ => TaskState::Other,
        }
    }

    /// Its letter in `/proc/PID/stat`.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            TaskState::Runnable => 'R',
            TaskState::Sleeping => 'S',
            TaskState::Blocked => 'D',
            TaskState::Stopped => 'T',
            TaskState::Traced => 't',
            TaskState::Idle => 'I',
            TaskState::Zombie => 'Z',
            TaskState::Dead => 'X',
            TaskState::Other => '?',
        }
    }
}

/// A task: a thread of a process, or of the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Where its `task_struct` is.
    pub address: u64,
    /// Its thread ID, in the initial namespace.
    pub tid: u32,
    /// Its process ID, in the initial namespace.
    pub pid: u32,
    /// Its parent's `task_struct`.
    pub parent: u64,
    /// That of the first thread of its process.
    pub leader: u64,
    /// Its name.
    pub name: String,
    /// What it does.
    pub state: TaskState,
    /// It runs on a CPU.
    pub is_on_cpu: bool,
    /// It is a thread of the kernel.
    pub is_kernel_thread: bool,
    /// Its address space, 0 without one.
    pub mm: u64,
    /// The lowest address of its kernel stack.
    pub stack: u64,
    /// Its stack pointer in the kernel, when it does not run.
    pub stack_pointer: u64,
    /// When it started: nanoseconds since the start of the guest, without times of suspension.
    pub start_ns: u64,
    /// Its CPU time.
    pub cpu_ns: u64,
    /// How often it left a CPU: by itself, and because it had to.
    pub switches: [u64; 2],
    /// Of its process ID in all namespaces.
    thread_pid: u64,
    /// Of its control groups.
    cgroups: u64,
}

impl Task {
    /// Reads a task. `None` if there is none at that address.
    pub fn read(space: &Space<'_>, address: u64, offsets: &Offsets) -> Option<Task> {
        let (start, parts) = (pointer(address, 8)?, &offsets.parts[..]);
        let mut bytes = vec![0; parts.iter().map(Range::len).sum()];
        let mut rest = &mut bytes[..];
        for part in parts {
            let (into, behind) = rest.split_at_mut(part.len());
            space.read(start.checked_add(u64::from(part.start))?, into)?;
            rest = behind;
        }
        let copied = Copied { parts, bytes: &bytes };
        let (word, field) = (|at| copied.word(at), |field| copied.field(field));
        let Identity { tid, pid, name, start_ns, mm } = offsets.identity_in(|at| copied.at(at))?;
        const KERNEL_THREAD: u64 = 0x20_0000;
        Some(Task {
            address,
            tid,
            pid,
            parent: word(offsets.parent)?,
            leader: word(offsets.leader)?,
            name,
            state: TaskState::of(field(offsets.state)?, field(offsets.exit_state)?),
            is_on_cpu: field(offsets.on_cpu)? != 0,
            is_kernel_thread: field(offsets.flags)? & KERNEL_THREAD != 0,
            mm,
            stack: word(offsets.stack)?,
            stack_pointer: word(offsets.stack_pointer)?,
            start_ns,
            cpu_ns: word(offsets.run_time)?,
            switches: [word(offsets.switches[0])?, word(offsets.switches[1])?],
            thread_pid: word(offsets.thread_pid)?,
            cgroups: offsets.cgroups.map_or(Some(0), |cgroups| word(cgroups.of_task))?,
        })
    }

    /// Its thread ID in each namespace, the initial one first.
    pub fn namespace_tids(&self, space: &Space<'_>, offsets: &Offsets) -> Option<Vec<u32>> {
        let level = space
            .bytes(pointer(self.thread_pid, 8)?, offsets.pid_level.at as usize + offsets.pid_level.bytes as usize)?;
        let levels = Some(offsets.pid_level.get(&level)?).filter(|level| *level < NAMESPACES_MAX)? + 1;
        let numbers = self.thread_pid + u64::from(offsets.pid_numbers);
        let bytes = space.bytes(numbers, levels as usize * offsets.upid_bytes as usize)?;
        let number = |index: u64| number(&bytes, index as u32 * offsets.upid_bytes + offsets.upid_number, 4);
        (0..levels).map(|index| u32::try_from(number(index)?).ok()).collect()
    }

    /// The path of its control group of the unified hierarchy, "/" in the outermost.
    pub fn cgroup(&self, space: &Space<'_>, offsets: &Offsets) -> Option<String> {
        let of = offsets.cgroups?;
        let follow = |address: u64, at: u32| pointer(space.word(address.checked_add(u64::from(at))?)?, 8);
        let group = follow(pointer(self.cgroups, 8)?, of.of_set)?;
        let (mut node, mut names) = (follow(group, of.node)?, Vec::new());
        while let Some(parent) = follow(node, of.parent) {
            if names.len() == CGROUP_DEPTH_MAX {
                return None;
            }
            names.push(space.text(follow(node, of.name)?, CGROUP_NAME_BYTES_MAX)?);
            node = parent;
        }
        Some(names.iter().rev().fold(String::new(), |path, name| path + "/" + name))
            .map(|path| if path.is_empty() { "/".to_owned() } else { path })
    }
}

/// A task's name by its bytes.
#[must_use]
pub fn name_of(comm: &[u8]) -> String {
    let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..end]).into_owned()
}

/// The tasks of a guest at about one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Processes in the order of the kernel's list, each with its threads. The idle tasks are not among them.
    pub tasks: Vec<Task>,
    /// How often a list changed where it was read, so that this was read again.
    pub torn: u32,
    /// Processes of which the threads changed at each attempt: they are left out.
    pub left_out: u32,
}

/// Lists all tasks of a running guest. `None` if the kernel has no such list.
pub fn list(kernel: &Kernel, memory: &dyn Physical, offsets: &Offsets) -> Option<Tasks> {
    let first = kernel.address(FIRST)?;
    let (space, mut found) = (kernel.space(memory), Tasks::default());
    for node in nodes(&space, first.wrapping_add(u64::from(offsets.tasks)), &mut found.torn)? {
        let leader = node.wrapping_sub(u64::from(offsets.tasks));
        match (0..ATTEMPTS_MAX).find_map(|_| threads(&space, leader, offsets, &mut found.torn)) {
            Some(threads) => found.tasks.extend(threads),
            // It has ended meanwhile, or its threads have no rest.
            None if is_zombie_or_gone(&space, leader, offsets) => {}
            None => found.left_out += 1,
        }
        if found.tasks.len() > TASKS_MAX {
            return None;
        }
    }
    Some(found)
}

fn is_zombie_or_gone(space: &Space<'_>, leader: u64, offsets: &Offsets) -> bool {
    let task = Task::read(space, leader, offsets);
    task.is_none_or(|task| task.tid != task.pid || matches!(task.state, TaskState::Zombie | TaskState::Dead))
}

/// The threads of a process, the one with its ID first. `None` if what was read is no list of threads of that process.
fn threads(space: &Space<'_>, leader: u64, offsets: &Offsets, torn: &mut u32) -> Option<Vec<Task>> {
    let signal = pointer(space.word(leader.checked_add(u64::from(offsets.signal))?)?, 8)?;
    let mut found: Vec<Task> = Vec::new();
    for node in nodes(space, signal.wrapping_add(u64::from(offsets.thread_head)), torn)? {
        let task = Task::read(space, node.checked_sub(u64::from(offsets.thread_node))?, offsets)?;
        // The memory of a task that has ended is used for another process's.
        if task.pid != found.first().map_or(task.tid, |first| first.pid) || (found.is_empty() && task.address != leader)
        {
            *torn += 1;
            return None;
        }
        found.push(task);
    }
    Some(found)
}

/// The addresses of the nodes of a circular list, without its head. `torn` counts where it changed in that moment.
fn nodes(space: &Space<'_>, head: u64, torn: &mut u32) -> Option<Vec<u64>> {
    /// How often a walk goes back.
    const BACK_MAX: u32 = 1 << 16;
    let follow = |node: u64| {
        let next = pointer(space.word(node)?, 8)?;
        Some((next, space.word(next.checked_add(8)?)?))
    };
    let (mut way, mut back, mut starts) = (vec![head], 0, 0);
    // Where the list was torn last, and how many nodes the walk went back then.
    let mut last = (0, 1usize);
    loop {
        let node = *way.last()?;
        let before = way.len().checked_sub(2).map(|at| way[at]);
        let next = match follow(node) {
            Some((next, previous)) if previous == node => Some(next),
            // It is being removed, or it is the last one and being added: it is left out.
            Some((next, previous)) if Some(previous) == before => {
                way.pop();
                back += 1;
                Some(next)
            }
            // It was removed: the walk goes back to a node that is still in the list. That may be further in front.
            _ => {
                last = (node, if last.0 == node { last.1.saturating_mul(2) } else { 1 });
                way.truncate(way.len().saturating_sub(last.1).max(1));
                (back, starts) = (back + 1, starts + u32::from(way.len() == 1));
                None
            }
        };
        if next == Some(head) {
            *torn += back;
            way.remove(0);
            return Some(way);
        }
        way.extend(next);
        if way.len() > TASKS_MAX || back > BACK_MAX || starts > ATTEMPTS_MAX {
            *torn += back;
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{DIRECT, Memory};
    use super::*;

    /// A node with a number; the first is the head.
    fn node(number: u64) -> u64 {
        DIRECT + 0x1000 + number * 16
    }

    fn link(memory: &Memory, list: &[u64]) {
        for (number, next) in list.iter().zip(list.iter().cycle().skip(1)) {
            memory.set(node(*number), node(*next));
            memory.set(node(*next) + 8, node(*number));
        }
    }

    /// The numbers of the nodes that are found, and how often the list changed.
    fn walk(memory: &Memory) -> (Option<Vec<u64>>, u32) {
        let mut torn = 0;
        let found = nodes(&memory.space(), node(0), &mut torn);
        (found.map(|found| found.iter().map(|address| (address - node(0)) / 16).collect()), torn)
    }

    #[test]
    fn a_list_that_changes_has_each_node_once() {
        let memory = Memory::new();
        link(&memory, &[0]);
        assert_eq!(walk(&memory), (Some(vec![]), 0));
        link(&memory, &[0, 1, 2, 3, 4]);
        assert_eq!(walk(&memory), (Some(vec![1, 2, 3, 4]), 0));
        // The guest was interrupted while it removed a node: until it continues, the node's successor has its predecessor.
        memory.set(node(3) + 8, node(1));
        assert_eq!(walk(&memory), (Some(vec![1, 3, 4]), 1));
        // The same of the last one, and the only one.
        link(&memory, &[0, 1, 2, 3, 4]);
        memory.set(node(0) + 8, node(3));
        assert_eq!(walk(&memory), (Some(vec![1, 2, 3]), 1));
        link(&memory, &[0, 1]);
        memory.set(node(0) + 8, node(0));
        assert_eq!(walk(&memory), (Some(vec![]), 1));
    }

    /// Lists had nodes twice, of which the threads were listed again (2026-11-27).
    #[test]
    fn a_walk_goes_back_from_a_node_that_was_removed() {
        let memory = Memory::new();
        for reads in 0..40 {
            link(&memory, &[0, 1, 2, 3, 4, 5]);
            // Nodes 2 and 3 were removed, and the last one is in another list by now.
            memory.set_later(reads, node(1), node(4));
            memory.set(node(4) + 8, node(1));
            memory.set(node(3), node(20));
            let (found, torn) = walk(&memory);
            let found = found.expect("the list can be read");
            let is_sorted = found.is_sorted() && found.windows(2).all(|pair| pair[0] != pair[1]);
            assert!(is_sorted && found.starts_with(&[1]) && found.ends_with(&[4, 5]), "{reads}: {found:?}, {torn}");
        }
    }

    #[test]
    fn a_list_without_an_end_is_given_up() {
        let memory = Memory::new();
        link(&memory, &[0, 1, 2, 3]);
        memory.set(node(3), 0);
        memory.set(node(0) + 8, node(9));
        let (found, torn) = walk(&memory);
        assert!(found.is_none() && torn > 8, "{found:?}, {torn}");
        // A circle that leaves out its head.
        link(&memory, &[0, 1, 2, 3]);
        memory.set(node(3), node(1));
        assert_eq!(walk(&memory).0, None);
    }
}
