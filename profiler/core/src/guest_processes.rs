//! Processes of a machine in a profile: the stacks of their samples start with them.

use std::collections::{HashMap, HashSet};

use crate::guest::{Process, ProcessId};
use crate::model::{Frame, Profile, STACK_ENTRIES_MAX, Stack};
use crate::view::Hosts;

/// The image of a frame that stands for a process of a guest.
pub const PROCESS: &str = "[process]";

/// A process for display: its name and its process IDs.
pub(crate) fn label(name: &str, pid: u32, namespace_pid: Option<u32>) -> String {
    match namespace_pid {
        Some(inside) => format!("{name} {pid} ({inside} in its namespace)"),
        None => format!("{name} {pid}"),
    }
}

/// The processes of the profile's guests that are machines, with the idle tasks.
pub(crate) fn of_machines(profile: &Profile) -> impl Iterator<Item = &Process> {
    let machines: HashSet<_> =
        profile.guests.iter().filter(|guest| guest.kind.is_machine()).map(|guest| guest.id).collect();
    profile.processes.iter().filter(move |process| machines.contains(&process.guest))
}

/// The name of a process of a guest without its numbers, which differ from one start of the guest to the next.
#[must_use]
pub fn without_numbers(name: &str) -> &str {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let name =
        name.rsplit_once(" (").filter(|(_, rest)| rest.ends_with(" in its namespace)")).map_or(name, |(name, _)| name);
    name.rsplit_once(' ').filter(|(_, number)| is_number(number)).map_or(name, |(name, _)| name)
}

/// Puts the process of each sample in front of its stack, where a machine's samples have processes. The idle tasks get none. A profile with a side
/// of the host stays as it is: its views divide stacks by segments.
pub(crate) fn add_roots(profile: &mut Profile) {
    if Hosts::of(profile).has_any(profile) || profile.samples.iter().all(|sample| sample.thread.is_none()) {
        return;
    }
    let name = |process: &Process| {
        label(process.programs.last().map_or("", |program| &program.name), process.pid, process.namespace_pid)
    };
    let processes = of_machines(profile).filter(|process| process.pid != 0);
    let names: HashMap<_, String> = processes.map(|process| (process.id, name(process))).collect();
    let process_of: Vec<Option<ProcessId>> =
        profile.threads.iter().map(|thread| Some(thread.process).filter(|id| names.contains_key(id))).collect();
    let mut entries: usize = profile.stacks.iter().map(|stack| stack.frames.len()).sum();
    let (mut roots, mut stacks) = (HashMap::new(), HashMap::new());
    let (mut frames, mut added, mut left_out) = (Vec::new(), Vec::new(), 0u64);
    for sample in &mut profile.samples {
        let process = sample.thread.and_then(|thread| process_of.get(thread as usize).copied().flatten());
        let (Some(process), Some(stack)) = (process, profile.stacks.get(sample.stack as usize)) else { continue };
        let root = *roots.entry(process).or_insert_with(|| {
            let function = names[&process].clone();
            frames.push(Frame { function, image: PROCESS.to_owned(), ..Frame::default() });
            (profile.frames.len() + frames.len() - 1) as u32
        });
        let next = (profile.stacks.len() + added.len()) as u32;
        let index = *stacks.entry((root, sample.stack)).or_insert(next);
        if index == next {
            if entries + stack.frames.len() >= STACK_ENTRIES_MAX {
                left_out += 1;
                stacks.insert((root, sample.stack), sample.stack);
                continue;
            }
            entries += stack.frames.len() + 1;
            added.push(Stack { frames: [&[root][..], &stack.frames].concat(), end: stack.end });
        }
        sample.stack = index;
    }
    profile.frames.extend(frames);
    profile.stacks.extend(added);
    if left_out > 0 {
        profile.warnings.push(format!(
            "{left_out} stacks have no process: all together would hold more than {STACK_ENTRIES_MAX} frames"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Architecture;
    use crate::guest::{Guest, GuestId, GuestKind, ProgramSince, Thread};
    use crate::model::{Sample, StackEnd};

    fn profile() -> Profile {
        let process = |id, pid, namespace_pid, name: &str| Process {
            id: ProcessId(id),
            pid,
            namespace_pid,
            programs: vec![ProgramSince { time_ns: 0, name: name.to_owned() }],
            ..Process::default()
        };
        let thread = |process| Thread { process: ProcessId(process), ..Thread::default() };
        let sample = |thread, stack| Sample { thread, stack, ..Sample::default() };
        let kind = GuestKind::Vm { vmm: 1 };
        Profile {
            guests: vec![Guest { id: GuestId(0), kind, name: String::new(), architecture: Architecture::X86_64 }],
            processes: vec![
                process(7, 0, None, "swapper/0"),
                process(8, 12, Some(3), "redis"),
                process(9, 13, None, "sh"),
            ],
            threads: vec![thread(7), thread(8), thread(8), thread(9)],
            frames: vec![Frame { function: "read".to_owned(), ..Frame::default() }],
            stacks: vec![Stack { frames: vec![0], end: StackEnd::CopyEnded }],
            samples: vec![
                sample(Some(0), 0),
                sample(Some(1), 0),
                sample(Some(2), 0),
                sample(Some(3), 0),
                sample(None, 0),
            ],
            ..Profile::default()
        }
    }

    #[test]
    fn a_stack_starts_with_its_process() {
        let mut profile = profile();
        add_roots(&mut profile);
        let names = |sample: &Sample| -> Vec<String> {
            let stack = &profile.stacks[sample.stack as usize];
            assert_eq!(stack.end, StackEnd::CopyEnded);
            stack.frames.iter().map(|frame| profile.frames[*frame as usize].function.clone()).collect()
        };
        let found: Vec<Vec<String>> = profile.samples.iter().map(names).collect();
        let redis = "redis 12 (3 in its namespace)";
        assert_eq!(found, [&["read"][..], &[redis, "read"], &[redis, "read"], &["sh 13", "read"], &["read"]]);
        assert_eq!((profile.stacks.len(), profile.frames.len()), (3, 3), "threads of a process share its stacks");
        assert_eq!([redis, "sh 13", "a b", "7"].map(without_numbers), ["redis", "sh", "a b", "7"]);
    }

    #[test]
    fn processes_of_this_machine_are_guests_of_their_own() {
        let mut profile = profile();
        profile.guests[0].kind = GuestKind::Process { pid: 1 };
        let before = profile.samples.clone();
        add_roots(&mut profile);
        assert_eq!(profile.samples, before);
    }
}
