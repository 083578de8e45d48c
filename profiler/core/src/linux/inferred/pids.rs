//! The threads of processes, their IDs in all namespaces, and when they were started and ran.

use std::collections::BTreeSet;

use super::guest::{Copied, Guest};
use super::tasks::Tasks;
use super::{Inferred, Refusal, only};
use crate::linux::structures::pointer;

/// The most threads of a process that are counted.
const THREADS_MAX: usize = 4096;
/// The most bytes of `struct pid` up to its numbers.
const PID_BYTES: usize = 192;
/// The most levels of namespaces (`MAX_PID_NS_LEVEL`).
const LEVELS_MAX: u32 = 32;
/// The signal that a process sends when it ends (`SIGCHLD`).
const ENDED: u32 = 17;
/// Bits of a state of a task that has ended (`EXIT_*`).
const EXITS: u32 = 0x30;

pub(super) fn infer(guest: &Guest<'_>, tasks: &Tasks, found: &mut Inferred) -> Result<(), Refusal> {
    threads(guest, tasks, found)?;
    let mm = found.at("task_struct.mm") as u32;
    let ends = |task: &Copied, at: u32| {
        let [state, code, signal, of_parent] = [0, 4, 8, 12].map(|further| task.half(at + further));
        let is_signal = signal == ENDED || (signal == 0 && task.word(mm) == 0);
        state & !EXITS == 0 && (code == 0 || state != 0) && is_signal && of_parent == 0
    };
    let signals = |at: &u32| tasks.init().half(at + 8) == ENDED && tasks.most(|task| ends(task, *at));
    found.add("task_struct.exit_state", only("task_struct.exit_state", tasks.halves().filter(signals))?, 4);
    let at = only("task_struct.start_time", tasks.words().filter(|at| are_times(tasks, *at)))?;
    let names = ["task_struct.nvcsw", "task_struct.nivcsw", "task_struct.start_time"];
    (0..).zip(names).for_each(|(index, name)| found.add(name, at + index * 8, 8));
    found.add("task_struct.se.sum_exec_runtime", only("task_struct.se.sum_exec_runtime", runtimes(tasks, at + 16))?, 8);
    ids(guest, tasks, found)
}

/// The list of a process's threads goes through one node that is no task: its head, in front of which the number of threads is, in what the process's signals
/// share. The pointer to the start of that is in the task.
fn threads(guest: &Guest<'_>, tasks: &Tasks, found: &mut Inferred) -> Result<(), Refusal> {
    let [leader, pid] = ["task_struct.group_leader", "task_struct.pid"].map(|path| found.at(path));
    let head = |task: &Copied, at: u32| {
        let (node, mut next, mut head, mut count) = (task.start.wrapping_add(at.into()), task.pointer(at)?, None, 1);
        while next != node {
            let other = next.wrapping_sub(u64::from(at));
            let is_thread = guest.word(other.wrapping_add(leader)) == Some(task.start)
                && guest.half(other.wrapping_add(pid)).is_some_and(|id| id != task.half(pid as u32));
            match (is_thread, head) {
                (true, _) if count < THREADS_MAX => count += 1,
                (false, None) => head = Some(next),
                _ => return None,
            }
            next = guest.pointer(next)?;
        }
        let counts = [12, 8].map(|before| guest.half(head?.wrapping_sub(before)));
        counts.iter().all(|found| *found == Some(count as u32)).then_some(head?)
    };
    let others = &tasks.all[1..];
    let is_node = |at: &u32| {
        others.iter().take(3).all(|task| head(task, *at).is_some())
            && others.iter().filter(|task| head(task, *at).is_some()).count() * 20 >= others.len() * 19
    };
    let node = only("task_struct.thread_node", tasks.words().filter(is_node))?;
    let heads: Vec<(&Copied, u64)> = others.iter().filter_map(|task| Some((task, head(task, node)?))).collect();
    let distances = (8..=64).step_by(8).flat_map(|distance: u64| tasks.words().map(move |at| (at, distance)));
    let is_signal =
        |(at, distance): &(u32, u64)| heads.iter().all(|(task, head)| task.word(*at).wrapping_add(*distance) == *head);
    let (signal, distance) = only("task_struct.signal", distances.filter(is_signal))?;
    found.add("task_struct.thread_node", node, 16);
    found.add("task_struct.signal", signal, 8);
    found.add("signal_struct.thread_head", distance as u32, 16);
    Ok(())
}

/// Whether a task has there: how often it left a CPU by itself and because it had to, when it started, twice (once with times of suspension), and its faults.
/// Tasks are in the order of their starts.
fn are_times(tasks: &Tasks, at: u32) -> bool {
    const COUNT_MAX: u64 = 1 << 40;
    /// Between the two times of one start.
    const APART_NS: u64 = 100_000_000;
    let word = |task: &Copied, index: u32| task.word(at + index * 8);
    let [first, init] = [&tasks.all[0], tasks.init()];
    if word(first, 2) != 0 || word(first, 3) != 0 || word(init, 2) == 0 || word(init, 3) < word(init, 2) {
        return false;
    }
    let suspended = word(init, 3) - word(init, 2);
    let are_valid = |task: &Copied| {
        let [by_itself, forced, start, with_suspension, minor, major] =
            [0, 1, 2, 3, 4, 5].map(|index| word(task, index));
        let apart = with_suspension.wrapping_sub(start).wrapping_sub(suspended).wrapping_add(APART_NS);
        [by_itself, forced, minor, major].iter().all(|count| *count < COUNT_MAX) && by_itself > 0 && apart < 1 << 50
    };
    let others = &tasks.all[1..];
    let in_order = others.windows(2).filter(|pair| word(&pair[0], 2) <= word(&pair[1], 2)).count();
    let is_first = word(&others[0], 2) < word(&others[others.len() - 1], 2);
    is_first
        && in_order * 20 >= (others.len() - 1) * 19
        && others.iter().filter(|task| are_valid(task)).count() * 20 >= others.len() * 18
}

/// The places of the CPU time of tasks. In front of it is when it was updated last, with which some threads of the kernel were never updated again after their
/// start; behind it, or one further, what it was when the task last got a CPU.
fn runtimes(tasks: &Tasks, start_time: u32) -> Vec<u32> {
    const SECOND_NS: u64 = 1_000_000_000;
    let others = &tasks.all[1..];
    let is_runtime = |at: &u32| {
        let of = |task: &Copied, before: u32| {
            let [start, updated, ran, earlier] = [start_time, at - 8, *at, at + before].map(|at| task.word(at));
            // A task that is to go to another CPU has no time of its last update.
            let is_updated = updated == 0 || (updated.saturating_add(SECOND_NS) >= start && updated >= ran);
            is_updated && ran > 0 && earlier <= ran
        };
        let is_at_start = |task: &&Copied| task.word(at - 8).wrapping_sub(task.word(start_time)) < SECOND_NS;
        let different = |at: u32| others.iter().map(|task| task.word(at)).collect::<BTreeSet<u64>>().len();
        // Tasks that got a CPU once have 0 there. All have the same lengths of slices, behind the deadline and the least virtual time of a queue, which look
        // like times where the kernel has been busy for long.
        let has_before = |before: &u32| {
            different(at + before) * 8 > others.len()
                && others.iter().filter(|task| of(task, *before)).count() * 20 >= others.len() * 18
        };
        [8, 16].iter().any(has_before)
            && different(*at) * 2 > others.len()
            && others.iter().filter(is_at_start).count() >= 4
    };
    // The start with times of suspension looks like that, too, where the clock did not advance between the two readings: it is as much as the start, in front
    // of it.
    let all: Vec<u32> = tasks.words().skip(1).filter(|at| *at != start_time + 8).filter(is_runtime).collect();
    // What it was when the task last got a CPU has in front of it a time, too, by which a busy kernel orders its tasks.
    let is_copy = |at: &u32| [8, 16].iter().any(|before| all.contains(&(at - before)));
    all.iter().copied().filter(|at| !is_copy(at)).collect()
}

/// The IDs of a task in all namespaces.
fn ids(guest: &Guest<'_>, tasks: &Tasks, found: &mut Inferred) -> Result<(), Refusal> {
    let pid = found.at("task_struct.pid") as u32;
    let some: Vec<&Copied> = tasks.all[1..].iter().take(24).chain(tasks.all.iter().rev().take(24)).collect();
    // In each, the ID in the first namespace, and which that is: the same for all, a part of the kernel.
    let numbers = |task: &Copied, at: u32| -> Vec<(u32, u64)> {
        let Some(bytes) = task.pointer(at).and_then(|ids| guest.bytes(ids, PID_BYTES)) else { return Vec::new() };
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        // It begins with counts. Pointers to lists in it are in the task, too.
        if words[0] >> 56 != 0 {
            return Vec::new();
        }
        let pairs = (0..).step_by(8).zip(words.windows(2));
        let is_number = |pair: &[u64]| pair[0] as u32 == task.half(pid) && guest.image.contains(&pair[1]);
        pairs.filter(|(_, pair)| is_number(pair)).map(|(at, pair)| (at, pair[1])).collect()
    };
    let mut places = Vec::new();
    for at in tasks.words() {
        let mut common = numbers(some[0], at);
        for task in &some[1..] {
            if common.is_empty() {
                break;
            }
            let own = numbers(task, at);
            common.retain(|place| own.contains(place));
        }
        places.extend(common.into_iter().map(|(inside, _)| (at, inside)));
    }
    let (at, inside) = only("task_struct.thread_pid", places)?;
    // The level counts the namespaces: the last ID of a task is in the last of them. It is the first number of which that is true: others are 0, too.
    let has_level = |level: &u32| {
        let of = |task: &&Copied| {
            let ids = task.word(at);
            let count = guest.half(ids.wrapping_add((*level).into()))?;
            let last = ids.wrapping_add(u64::from(inside) + u64::from(count.min(LEVELS_MAX)) * 16);
            (count < LEVELS_MAX && guest.half(last)? != 0).then(|| pointer(guest.word(last.wrapping_add(8))?, 8))?
        };
        some.iter().filter(|task| of(task).is_some()).count() * 10 >= some.len() * 9
            && some.iter().any(|task| guest.half(task.word(at).wrapping_add((*level).into())) == Some(0))
    };
    let level = (4..inside).step_by(4).find(has_level).ok_or(Refusal { what: "pid.level", candidates: 0 })?;
    found.add("task_struct.thread_pid", at, 8);
    found.add("pid.level", level, 4);
    found.add("pid.numbers", inside, 16);
    found.add("upid.nr", 0, 4);
    found.sizes.insert("upid", 16);
    Ok(())
}
