//! Files of `/proc` about tasks and processes, and the kernel's list of blocked tasks.

use super::{hex, read};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The id of its process in the first namespace.
    pub pid: u32,
    /// Its own id in the first namespace.
    pub tid: u32,
    /// Its name (`comm`); of a kernel's worker the part that `/proc` adds is there too.
    pub name: String,
    /// The letter of its state: `R`, `S`, `D`, `I` and others.
    pub state: char,
    /// The id of the process that started it.
    pub parent: u32,
    /// When it was started, in ticks of 10 ms since the boot.
    pub start_ticks: u64,
    /// CPU time in user space and in the kernel, in the same ticks.
    pub cpu_ticks: (u64, u64),
    /// The CPU on which it ran last.
    pub cpu: u32,
    /// Its ids from the first namespace to its own.
    pub namespace_ids: Vec<u32>,
    /// The ids of its process in the same namespaces.
    pub namespace_pids: Vec<u32>,
    /// How often it waited, and how often it was preempted.
    pub switches: (u64, u64),
    /// Its stack in the kernel, innermost first. Functions of the scheduler (its section `.sched.text`) are left out, wherever they are. Of a
    /// task that runs it is empty or nonsense.
    pub stack: Vec<Frame>,
    /// The system call in which it waits.
    pub syscall: Option<Syscall>,
}

/// A place in a function of the kernel, as the kernel prints it: `do_wait+0x5b/0xe0`, with a module behind it if it is in one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The function.
    pub function: String,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Its module.
    pub module: Option<String>,
}

/// What `/proc/PID/syscall` has of a thread that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Syscall {
    /// The number of the system call; -1 if it waits outside of one.
    pub number: i64,
    /// Its six arguments; none outside of a system call.
    pub arguments: Vec<u64>,
    /// Its stack pointer in user space.
    pub stack_pointer: u64,
    /// Its instruction pointer in user space.
    pub instruction: u64,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its memory; empty for the kernel's own.
    pub maps: Vec<MapsLine>,
    /// The path of its control group, of version 2.
    pub control_group: String,
    /// The words of its command line.
    pub command_line: Vec<String>,
    /// Its program.
    pub program: Option<String>,
}

/// A line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapsLine {
    /// The first address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// Its rights: `r-xp`.
    pub rights: String,
    /// Where in the file it starts.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// Number of the file.
    pub inode: u64,
    /// Its path, or what it is (`[stack]`).
    pub path: String,
}

/// A task in the list of blocked tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedTask {
    /// Its name.
    pub name: String,
    /// Its id in the first namespace.
    pub tid: u32,
    /// The letter of its state, `D`.
    pub state: char,
    /// Its stack in the kernel, innermost first.
    pub stack: Vec<Frame>,
}

/// The processes in a copy of `/proc`.
pub fn processes(proc: &Path) -> Result<BTreeMap<u32, Process>> {
    numbers(proc)?.into_iter().map(|pid| Ok((pid, process(&proc.join(pid.to_string()))?))).collect()
}

/// The threads in a copy of `/proc/PID/task`; those that ended while they were copied are left out.
pub fn tasks(folder: &Path, pid: u32) -> Result<BTreeMap<u32, Task>> {
    let mut tasks = BTreeMap::new();
    for tid in numbers(folder)? {
        let file = |name: &str| read(&folder.join(tid.to_string()).join(name)).unwrap_or_default();
        let (stat, status) = (file("stat"), file("status"));
        if stat.is_empty() || status.is_empty() {
            continue;
        }
        let task = task(pid, tid, &stat, &status).with_context(|| format!("no thread: {stat}{status}"))?;
        let task = Task {
            name: file("comm").trim_end_matches('\n').to_owned(),
            stack: file("stack").lines().filter_map(|line| frame(line.strip_prefix("[<0>] ")?)).collect(),
            syscall: syscall(&file("syscall")),
            ..task
        };
        tasks.insert(tid, task);
    }
    Ok(tasks)
}

/// The entries of a folder that are numbers.
fn numbers(folder: &Path) -> Result<Vec<u32>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("the truth has no {}", folder.display()))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

fn process(folder: &Path) -> Result<Process> {
    let file = |name: &str| read(&folder.join(name)).unwrap_or_default();
    let maps = file("maps");
    let maps = maps.lines().map(|line| maps_line(line).with_context(|| format!("no mapping: {line}")));
    let groups = file("cgroup");
    Ok(Process {
        maps: maps.collect::<Result<_>>()?,
        control_group: groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned(),
        command_line: file("cmdline").split_terminator('\0').map(str::to_owned).collect(),
        program: Some(file("exe")).filter(|path| !path.is_empty()),
    })
}

/// The numbers of a thread, by its files `stat` and `status`.
fn task(pid: u32, tid: u32, stat: &str, status: &str) -> Option<Task> {
    // The name, in parentheses, may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // Field 3 of proc(5) is the first one here.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let list = |name: &str| line(name)?.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<u32>>>();
    let count = |name: &str| line(name)?.trim().parse::<u64>().ok();
    Some(Task {
        pid,
        tid,
        name: String::new(),
        state: fields.first()?.chars().next()?,
        parent: number(4)? as u32,
        start_ticks: number(22)?,
        cpu_ticks: (number(14)?, number(15)?),
        cpu: number(39)? as u32,
        namespace_ids: list("NSpid")?,
        namespace_pids: list("NStgid")?,
        switches: (count("voluntary_ctxt_switches")?, count("nonvoluntary_ctxt_switches")?),
        stack: Vec::new(),
        syscall: None,
    })
}

/// Parses `0 0x3 0x7f... ... 0x7ffd... 0x7f...`, `-1 0x7ffd... 0x7f...`; `running` is none.
fn syscall(text: &str) -> Option<Syscall> {
    let (number, rest) = text.trim().split_once(' ')?;
    let mut words = rest.split(' ').map(hex).collect::<Option<Vec<u64>>>()?;
    let (instruction, stack_pointer) = (words.pop()?, words.pop()?);
    Some(Syscall { number: number.parse().ok()?, arguments: words, stack_pointer, instruction })
}

/// Parses `do_wait+0x5b/0xe0` or `virtblk_done+0x5b/0xe0 [virtio_blk]`.
fn frame(text: &str) -> Option<Frame> {
    let (place, module) = match text.trim().split_once(" [") {
        Some((place, module)) => (place, Some(module.split([' ', ']']).next()?.to_owned())),
        None => (text.trim(), None),
    };
    let (function, place) = place.rsplit_once('+')?;
    let (offset, bytes) = place.split_once('/')?;
    Some(Frame { function: function.to_owned(), offset: hex(offset)?, bytes: hex(bytes)?, module })
}

fn maps_line(line: &str) -> Option<MapsLine> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?.to_owned();
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = words.next()?.parse().ok()?;
    let path = words.next().unwrap_or_default().trim_start().to_owned();
    Some(MapsLine { start: hex(start)?, end: hex(end)?, rights, offset, device, inode, path })
}

/// The tasks in what the key w of sysrq prints. Frames that the kernel marks as guesses are left out.
pub fn blocked(text: &str) -> Vec<BlockedTask> {
    let mut tasks: Vec<BlockedTask> = Vec::new();
    let mut is_trace = false;
    for line in text.lines() {
        if let Some(task) = blocked_head(line) {
            tasks.push(task);
            is_trace = false;
        } else if line.trim().eq_ignore_ascii_case("call trace:") {
            is_trace = true;
        } else if !line.starts_with(' ') {
            is_trace = false;
        } else if let (true, Some(task), Some(frame)) = (is_trace, tasks.last_mut(), frame(line)) {
            task.stack.extend(Some(frame).filter(|frame| !frame.function.starts_with('?')));
        }
    }
    tasks
}

/// Parses `task:frozen-write    state:D stack:    0 pid:  123 ppid:     1 flags:0x00004000`.
fn blocked_head(line: &str) -> Option<BlockedTask> {
    let (name, rest) = line.strip_prefix("task:")?.rsplit_once(" state:")?;
    let (_, after) = rest.split_once(" pid:")?;
    Some(BlockedTask {
        name: name.trim_end().to_owned(),
        tid: after.split_whitespace().next()?.parse().ok()?,
        state: rest.chars().next()?,
        stack: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_frame(function: &str, offset: u64, bytes: u64, module: Option<&str>) -> Frame {
        Frame { function: function.to_owned(), offset, bytes, module: module.map(str::to_owned) }
    }

    #[test]
    fn a_thread_has_numbers_a_stack_and_a_system_call() {
        let stat = "12 (a) b) S 1 12 12 0 -1 4194304 1 2 3 4 50 60 0 0 20 0 1 0 777 1000 200 18446744073709551615 \
            1 1 0 0 0 0 0 0 65536 1 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        let status = "Name:\ta) b\nNStgid:\t12\t3\t1\nNSpid:\t12\t3\t1\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n";
        let task = task(12, 12, stat, status).unwrap();
        assert_eq!((task.state, task.parent, task.start_ticks, task.cpu), ('S', 1, 777, 1));
        assert_eq!((task.cpu_ticks, task.switches), ((50, 60), (5, 6)));
        assert_eq!(task.namespace_ids, [12, 3, 1]);
        let found = syscall("0 0x3 0x1 0x1 0x0 0x0 0x0 0x7ffd0 0x7f00\n").unwrap();
        assert_eq!(
            (found.number, found.arguments.len(), found.stack_pointer, found.instruction),
            (0, 6, 0x7ffd0, 0x7f00)
        );
        assert_eq!(syscall("-1 0x7ffd0 0x7f00\n").map(|found| found.number), Some(-1));
        assert_eq!(syscall("running\n"), None);
        assert_eq!(frame("do_wait+0x5b/0xe0"), Some(a_frame("do_wait", 0x5b, 0xe0, None)));
        let of_module = frame("virtblk_done+0x5b/0xe0 [virtio_blk]");
        assert_eq!(of_module, Some(a_frame("virtblk_done", 0x5b, 0xe0, Some("virtio_blk"))));
    }

    #[test]
    fn a_mapping_may_have_a_path_with_spaces() {
        let line = maps_line("7f0-7f8 r-xp 00001000 fe:10 42        /app/a b (deleted)").unwrap();
        assert_eq!(
            (line.start, line.end, line.offset, line.device, line.inode),
            (0x7f0, 0x7f8, 0x1000, (0xfe, 0x10), 42)
        );
        assert_eq!((line.rights.as_str(), line.path.as_str()), ("r-xp", "/app/a b (deleted)"));
        assert_eq!(maps_line("7f0-7f8 rw-p 00000000 00:00 0 ").map(|line| line.path), Some(String::new()));
    }

    #[test]
    fn blocked_tasks_of_old_and_new_kernels() {
        let text = "sysrq: Show Blocked State\n\
            task:vfork parent    state:D stack:    0 pid:  123 ppid:     1 flags:0x00000000\nCall Trace:\n __schedule+0x282/0x870\n ? guess+0x1/0x2\n do_fork+0x1/0x30\n\
            task:frozen-write    state:D stack:0     pid:7     tgid:7     ppid:1      task_flags:0x40 flags:0x0000\nCall trace:\n <TASK>\n a+0x1/0x2\n </TASK>\nRIP: 0033:0x7f\n b+0x1/0x2\n";
        let tasks = blocked(text);
        assert_eq!(tasks.len(), 2);
        assert_eq!((tasks[0].name.as_str(), tasks[0].tid, tasks[0].state), ("vfork parent", 123, 'D'));
        assert_eq!(tasks[0].stack, [a_frame("__schedule", 0x282, 0x870, None), a_frame("do_fork", 1, 0x30, None)]);
        assert_eq!((tasks[1].tid, &tasks[1].stack[..]), (7, &[a_frame("a", 1, 2, None)][..]));
    }
}
