//! The list of tasks, and what each task is known by.

use super::guest::{Copied, Guest, TASK_BYTES};
use super::{Inferred, Refusal, only};
use crate::linux::structures::pointer;

/// The names of the first task, with several CPUs and with one.
const FIRST_NAMES: [&[u8]; 2] = [b"swapper/0\0", b"swapper\0"];
/// The most places of that text that are looked at; Linux 7.3 has 255.
const NAMES_MAX: usize = 4096;
/// How far from its name a task may have other members.
const BEFORE: u64 = 6 << 10;
const AFTER: u64 = 2 << 10;
/// The least tasks of a guest.
const TASKS_MIN: usize = 10;
/// The most tasks of a list.
const TASKS_MAX: usize = 1 << 20;
/// How many of the first and of the last tasks of the list are copied: the oldest are of the kernel.
const FIRST: usize = 96;
const LAST: usize = 160;
/// At the end of each kernel stack (`STACK_END_MAGIC`).
const STACK_END: u32 = 0x57ac_6e9d;
/// Sizes of kernel stacks (`THREAD_SIZE`).
const STACKS: [u64; 3] = [16 << 10, 32 << 10, 64 << 10];
/// Where the frame of a task that does not run has its return address (`struct inactive_task_frame`).
const RETURN_ADDRESS: u64 = 48;
/// In a task's flags: it is of the kernel (`PF_KTHREAD`).
const OF_KERNEL: u32 = 0x20_0000;
/// It has not called `exec` (`PF_FORKNOEXEC`).
const NOT_EXECUTED: u32 = 0x40;
/// A bit that only a task has whose memory is being frozen or dumped (`PF_SUSPEND_TASK`): each pointer has it.
const NEVER: u32 = 0x8000_0000;
/// All bits of states (`TASK_*`), and those of an idle worker of the kernel.
const STATES: u32 = 0xffff;
const IDLE: u32 = 0x402;
const SLEEPS: u32 = 1;

/// The tasks of a guest, of which all are the first thread of their process; in the order in which they were started.
pub(super) struct Tasks {
    pub(super) all: Vec<Copied>,
    /// Where tasks have their last member, that of the processor.
    end: u32,
}

impl Tasks {
    /// The task with the ID 1, the first process.
    pub(super) fn init(&self) -> &Copied {
        &self.all[1]
    }

    /// The one that starts the threads of the kernel.
    pub(super) fn starter(&self) -> &Copied {
        &self.all[2]
    }

    /// The places of words in a task.
    pub(super) fn words(&self) -> impl Iterator<Item = u32> + use<> {
        (0..self.end).step_by(8)
    }

    /// Those of bytes.
    pub(super) fn bytes(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.end
    }

    /// Those of half words.
    pub(super) fn halves(&self) -> impl Iterator<Item = u32> + use<> {
        (0..self.end).step_by(4)
    }

    /// Whether most tasks have something: some end, or begin to do something else, while they are read.
    pub(super) fn most(&self, has: impl Fn(&Copied) -> bool) -> bool {
        self.all.iter().filter(|task| has(task)).count() * 20 >= self.all.len() * 19
    }
}

/// Finds the list, copies tasks of it, and finds what identifies one.
pub(super) fn infer(guest: &Guest<'_>, found: &mut Inferred) -> Result<Tasks, Refusal> {
    let (names, from_name) = list(guest)?;
    let (comm, parent) = start(guest, &names)?;
    let chosen = names.len().saturating_sub(LAST).max(FIRST);
    let chosen = names.iter().take(FIRST).chain(names.iter().skip(chosen));
    let all: Vec<Copied> = chosen.filter_map(|name| Copied::read(guest, name.wrapping_sub(comm.into()))).collect();
    if all.len() < TASKS_MIN
        || all.iter().take(3).zip(&names).any(|(task, name)| task.start.wrapping_add(comm.into()) != *name)
    {
        return Err(Refusal { what: "task_struct.tasks", candidates: 0 });
    }
    let mut tasks = Tasks { all, end: TASK_BYTES - 8 };
    found.addresses.insert("init_task", tasks.all[0].start);
    found.add("task_struct.comm", comm, 16);
    found.add("task_struct.tasks", comm.wrapping_add_signed(from_name as i32), 16);
    found.add("task_struct.real_parent", parent, 8);
    stacks(guest, &mut tasks, found)?;
    members(&tasks, found)?;
    Ok(tasks)
}

/// The addresses of the names of all tasks in a list, the first task's first, and how far behind its name a task has its node of the list.
fn list(guest: &Guest<'_>) -> Result<(Vec<u64>, i64), Refusal> {
    const WHAT: &str = "task_struct.tasks";
    let mut found = Vec::new();
    for name in FIRST_NAMES.iter().find_map(|text| guest.places_of(text, NAMES_MAX)).unwrap_or_default() {
        let around = guest.words(name - BEFORE, (BEFORE + AFTER) as usize / 8);
        for (index, next) in around.iter().enumerate() {
            let node = name - BEFORE + index as u64 * 8;
            let is_next =
                pointer(*next, 8).is_some_and(|next| next != node && guest.word(next.wrapping_add(8)) == Some(node));
            if let Some(names) = is_next.then(|| circle(guest, node, name.wrapping_sub(node))).flatten() {
                found.push((names, node.wrapping_sub(name) as i64));
            }
        }
    }
    only(WHAT, found)
}

/// The addresses of the names of a circular list of tasks with this node.
fn circle(guest: &Guest<'_>, node: u64, to_name: u64) -> Option<Vec<u64>> {
    let mut names = vec![node.wrapping_add(to_name)];
    let mut at = guest.pointer(node)?;
    while at != node {
        let name = at.wrapping_add(to_name);
        if names.len() == TASKS_MAX || !guest.has_name(name) {
            return None;
        }
        names.push(name);
        at = guest.pointer(at)?;
    }
    (names.len() >= TASKS_MIN).then_some(names)
}

/// How far behind its start a task has its name, and its parent. The first task is its own parent and that of the next two, and the third that of the kernel's threads.
fn start(guest: &Guest<'_>, names: &[u64]) -> Result<(u32, u32), Refusal> {
    const WHAT: &str = "task_struct.real_parent";
    let around: Vec<_> =
        names[..8].iter().map(|name| guest.words(name - BEFORE, (BEFORE + AFTER) as usize / 8)).collect();
    let mut found = Vec::new();
    for index in 0..around.iter().map(Vec::len).min().unwrap_or(0) {
        let [first, init, starter, third] = [0, 1, 2, 3].map(|task: usize| around[task][index]);
        let is_parent = first == init && first == starter && around[3..].iter().all(|words| words[index] == third);
        let comm = names[0].wrapping_sub(first);
        if is_parent && comm < BEFORE && third.wrapping_sub(first) == names[2].wrapping_sub(names[0]) {
            found.push((comm as u32, (comm + index as u64 * 8).wrapping_sub(BEFORE) as u32));
        }
    }
    // The one that waits for its end is behind the one that started it, and of most tasks the same.
    let (comm, parent) = found.first().copied().ok_or(Refusal { what: WHAT, candidates: 0 })?;
    match found[..] {
        [_, second] if second == (comm, parent + 8) => Ok((comm, parent)),
        _ => Err(Refusal { what: WHAT, candidates: found.len() }),
    }
}

fn members(tasks: &Tasks, found: &mut Inferred) -> Result<(), Refusal> {
    let [first, init, starter] = [&tasks.all[0], tasks.init(), tasks.starter()];
    let leader = only(
        "task_struct.group_leader",
        tasks.words().filter(|at| tasks.all.iter().all(|task| task.word(*at) == task.start)),
    )?;
    found.add("task_struct.group_leader", leader, 8);
    let has_id = |task: &Copied, at: u32, id: u32| task.half(at) == id && task.half(at + 4) == id;
    let are_ids = |at: &u32| {
        let mut ids: Vec<u32> = tasks.all.iter().map(|task| task.half(*at)).collect();
        ids.sort_unstable();
        let differ = ids.windows(2).all(|pair| pair[0] != pair[1]);
        differ
            && has_id(first, *at, 0)
            && has_id(init, *at, 1)
            && has_id(starter, *at, 2)
            && tasks.all.iter().all(|task| task.half(*at) == task.half(at + 4))
    };
    let pid = only("task_struct.pid", tasks.halves().filter(are_ids))?;
    found.add("task_struct.pid", pid, 4);
    found.add("task_struct.tgid", pid + 4, 4);
    let is_mm = |at: &u32| {
        let may_be = |task: &Copied| {
            let (own, active) = (task.word(*at), task.word(at + 8));
            own == 0 || (pointer(own, 8).is_some() && own == active)
        };
        first.word(*at) == 0 && starter.word(*at) == 0 && init.word(*at) != 0 && tasks.all.iter().all(may_be) && {
            let mut owned: Vec<u64> = tasks.all.iter().map(|task| task.word(*at)).filter(|mm| *mm != 0).collect();
            let count = owned.len();
            owned.sort_unstable();
            owned.dedup();
            owned.len() > 1 && owned.len() * 2 > count
        }
    };
    let mm = only("task_struct.mm", tasks.words().filter(is_mm))?;
    found.add("task_struct.mm", mm, 8);
    let is_flags = |at: &u32| {
        let has = |task: &Copied, bit: u32| task.half(*at) & bit != 0;
        has(starter, NOT_EXECUTED)
            && !has(init, NOT_EXECUTED)
            && tasks.most(|task| has(task, OF_KERNEL) == (task.word(mm) == 0) && !has(task, NEVER))
    };
    found.add("task_struct.flags", only("task_struct.flags", tasks.halves().filter(is_flags))?, 4);
    let is_state = |at: &u32| {
        let has = |state: u32| tasks.all.iter().any(|task| task.half(*at) == state);
        tasks.all.iter().all(|task| task.half(*at) & !STATES == 0) && has(IDLE) && has(SLEEPS)
    };
    // In front of all that may be reordered (`randomized_struct_fields_start`).
    let stack = found.at("task_struct.stack") as u32;
    let state = only("task_struct.__state", tasks.halves().take_while(|at| *at < stack).filter(is_state))?;
    found.add("task_struct.__state", state, 4);
    Ok(())
}

/// Where tasks have their kernel stacks, how large these are, and where tasks that do not run have their stack pointer.
fn stacks(guest: &Guest<'_>, tasks: &mut Tasks, found: &mut Inferred) -> Result<(), Refusal> {
    const POINTER: &str = "task_struct.thread.sp";
    let has_stack = |task: &Copied, at: u32| {
        let stack = pointer(task.word(at), STACKS[0]);
        stack.is_some_and(|stack| guest.half(stack) == Some(STACK_END))
    };
    let is_stack = |at: &u32| tasks.all.iter().take(12).all(|task| has_stack(task, *at));
    let stack = only("task_struct.stack", tasks.words().filter(is_stack))?;
    found.add("task_struct.stack", stack, 8);
    let schedule = guest.function("__schedule").ok_or(Refusal { what: "__schedule", candidates: 0 })?;
    let is_pointer = |at: &u32| {
        let waits = |task: &Copied| {
            let (lowest, value) = (task.word(stack), task.word(*at));
            let is_inside = value > lowest && value - lowest < STACKS[2] && value.is_multiple_of(8);
            is_inside && guest.word(value.wrapping_add(RETURN_ADDRESS)).is_some_and(|to| schedule.contains(&to))
        };
        tasks.all.iter().filter(|task| waits(task)).count() * 2 > tasks.all.len()
    };
    let at = only(POINTER, tasks.words().filter(is_pointer))?;
    found.add(POINTER, at, 8);
    // Each register that is saved is in the last member, whose size depends on the processor.
    tasks.end = at;
    // What a process had in its registers when it called the kernel is at the top of its stack, with or without 16 bytes behind it.
    let (code, data) = (0x33, 0x2b);
    let has_top = |bytes: u64| {
        let is_top =
            |top: u64| guest.word(top.wrapping_sub(32)) == Some(code) && guest.word(top.wrapping_sub(8)) == Some(data);
        let of_task = |task: &&Copied| {
            let top = task.word(stack).wrapping_add(bytes);
            is_top(top) || is_top(top.wrapping_sub(16))
        };
        let last = tasks.all.iter().rev().take(16);
        last.filter(of_task).count() >= 2
    };
    let bytes = only("thread_union", STACKS.into_iter().filter(|bytes| has_top(*bytes)))?;
    found.sizes.insert("thread_union", bytes as u32);
    Ok(())
}
