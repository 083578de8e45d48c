//! What is right in the samples of a recording of a Linux guest, and what is not.

use super::equal::is_name;
use glass_profiler_core::guest::Mode;
use glass_profiler_core::model::{Frame, Profile, Sample, StackEnd};
use glass_profiler_core::recording::Recording;
use glass_tests::linux_guest::Release;
use glass_tests::linux_guest::truth::{Process, Truth};
use std::collections::{BTreeMap, BTreeSet};

/// Whose stack it is, if it is no program's.
const KERNEL: &str = "the kernel";
/// The image of a frame that is no function, but a process.
const PROCESS: &str = "[process]";
/// Stands for code of a process of which no file is known.
const NAMELESS: &str = "[guest user space]";
/// Functions with which threads start, by which a whole stack is recognized: those that the kernel starts, and those of libraries behind which
/// there is no more of the program. One without a name is taken for one.
const STARTS: [&str; 12] = [
    "_start",
    "_start_c",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "_dl_start_user",
    "start_thread",
    "libc_start_main_stage2",
    "runtime.goexit",
    "runtime.mstart",
    "runtime.mcall",
];
/// Functions of the kernel that show whose stack it is: that of the idle task, of a thread of the kernel, of a process.
const OF_IDLE: [&str; 2] = ["do_idle", "cpu_startup_entry"];
const OF_KERNEL_THREAD: [&str; 1] = ["kthread"];
const OF_PROCESS: [&str; 2] = ["do_syscall_64", "syscall_exit_to_user_mode"];
/// Where the processor enters the kernel or leaves it, and where its threads start: what else ends a stack of the kernel has cut it. These are the starts of names.
const STARTS_OF_KERNEL: [&str; 12] = [
    "asm_",
    "entry_SYS",
    "ret_from_fork",
    "secondary_startup_64",
    "common_startup_64",
    "common_interrupt_return",
    "error_entry",
    "error_return",
    "paranoid_e",
    "swapgs_restore_regs",
    "syscall_return_via_sysret",
    "x86_64_start_",
];
/// Frames that are shown of a stack.
const FRAMES_SHOWN: usize = 6;
/// Samples with a wrong thread that are shown.
const WRONG_MAX: usize = 8;

/// Why a stack is not whole: whose it is, how it ends, and where.
type Kind = (String, String, String);

/// How often a kind of broken stack was seen, by which kernels, and one of them.
#[derive(Debug, Default, Clone)]
struct Broken {
    count: usize,
    releases: BTreeSet<Release>,
    example: String,
}

/// The stacks of a program in user space.
#[derive(Debug, Default, Clone, Copy)]
struct OfProgram {
    all: usize,
    whole: usize,
    nameless: usize,
}

/// What was seen in recordings.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Samples with a stack.
    pub(super) samples: usize,
    /// Those with a part in the kernel, and those in which that is broken.
    pub(super) with_kernel: usize,
    pub(super) broken_kernel: usize,
    /// Those with a part in user space, those in which that is whole, and those without any file for its innermost frame.
    pub(super) with_user: usize,
    pub(super) whole: usize,
    pub(super) nameless: usize,
    /// Those whose thread is known, those that show whether it is right, and those in which it is.
    pub(super) with_thread: usize,
    pub(super) decided: usize,
    pub(super) right: usize,
    programs: BTreeMap<String, OfProgram>,
    broken: BTreeMap<Kind, Broken>,
    wrong: BTreeMap<String, usize>,
}

/// A part of a stack: its frames, innermost first.
struct Part<'a> {
    mode: Mode,
    end: StackEnd,
    frames: Vec<&'a Frame>,
    /// The address of the innermost one.
    address: u64,
}

/// The parts of a sample's stack, innermost first.
fn parts<'a>(recording: &'a Recording, sample: &Sample) -> Vec<Part<'a>> {
    let profile = &recording.profile;
    let Some(stack) = profile.stacks.get(sample.stack as usize) else { return Vec::new() };
    let mut frames = stack.frames.iter().rev().filter_map(|frame| recording.frame(*frame)).peekable();
    let segments = sample.segments.and_then(|segments| profile.segments.get(segments as usize));
    let Some(segments) = segments else {
        let address = frames.peek().map_or(0, |(_, place)| place.address);
        return vec![Part {
            mode: sample.mode,
            end: stack.end,
            frames: frames.map(|(frame, _)| frame).collect(),
            address,
        }];
    };
    let part = |segment: &glass_profiler_core::model::SegmentOf| {
        // The functions that were inlined at an address precede the one that has it.
        let (mut left, mut found) = (segment.addresses, Vec::new());
        let address = frames.peek().map_or(0, |(_, place)| place.address);
        while left > 0 {
            let Some((frame, _)) = frames.next() else { break };
            left -= u32::from(!frame.inlined);
            found.push(frame);
        }
        Part { mode: segment.mode, end: segment.end, frames: found, address }
    };
    segments.iter().map(part).collect()
}

/// How often the guest was stopped for samples: those of one stop have one time.
pub(super) fn stops(profile: &Profile) -> usize {
    profile.samples.iter().map(|sample| sample.time_ns).collect::<BTreeSet<u64>>().len()
}

/// The end of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn has(part: &Part<'_>, functions: &[&str]) -> bool {
    part.frames.iter().any(|frame| functions.contains(&frame.function.as_str()))
}

impl Part<'_> {
    fn is_nameless(&self) -> bool {
        self.frames.first().is_none_or(|frame| frame.function == NAMELESS || frame.image == NAMELESS)
    }

    /// Why it is not whole.
    fn fault(&self) -> Option<String> {
        if self.mode == Mode::User && self.is_nameless() {
            return Some("no file".to_owned());
        }
        if self.end != StackEnd::Complete {
            return Some(format!("{:?}", self.end));
        }
        // A thread that has no part of a process has its name at the end.
        let outermost = self.frames.iter().rfind(|frame| frame.image != PROCESS)?;
        if self.mode == Mode::Kernel {
            let is_start = STARTS_OF_KERNEL.iter().any(|start| outermost.function.starts_with(start));
            return (!is_start).then(|| "ends early".to_owned());
        }
        let is_start = outermost.function.starts_with("0x") || STARTS.contains(&outermost.function.as_str());
        (!is_start).then(|| "ends early".to_owned())
    }

    /// Its frames, the innermost first; of many the first and the last ones.
    fn shown(&self) -> String {
        let names: Vec<String> =
            self.frames.iter().map(|frame| format!("{} ({})", frame.function, file_name(&frame.image))).collect();
        if self.is_nameless() {
            return format!("{:#x}", self.address);
        }
        if names.len() <= FRAMES_SHOWN {
            return names.join(" < ");
        }
        let (first, last) = (&names[..FRAMES_SHOWN / 2], &names[names.len() - FRAMES_SHOWN / 2..]);
        format!("{} < {} more < {}", first.join(" < "), names.len() - FRAMES_SHOWN, last.join(" < "))
    }
}

impl Seen {
    /// Judges the samples of a recording by the processes that the guest lists afterwards.
    pub(super) fn of(release: Release, recording: &Recording, truth: &Truth) -> Seen {
        let (mut seen, profile) = (Seen::default(), &recording.profile);
        for sample in &profile.samples {
            let parts = parts(recording, sample);
            if parts.is_empty() || parts.iter().all(|part| part.frames.is_empty()) {
                continue;
            }
            seen.samples += 1;
            let thread = sample.thread.and_then(|thread| profile.threads.get(thread as usize));
            let process = thread.and_then(|thread| profile.processes.iter().find(|of| of.id == thread.process));
            let pid = process.map(|process| process.pid);
            let listed = pid.and_then(|pid| truth.processes.get(&pid));
            let program = program(listed, process.and_then(|process| process.programs.last()).map(|of| &*of.name));
            seen.stacks(release, &parts, &program);
            seen.with_thread += usize::from(thread.is_some());
            let (Some(thread), Some(process)) = (thread, process) else {
                *seen.wrong.entry(format!("no thread: {}", parts[0].shown())).or_default() += 1;
                continue;
            };
            let mut verdict = judge(&parts, thread.tid, process.pid, truth);
            let name = truth.tasks.get(&thread.tid);
            verdict.extend(name.map(|task| (is_name(&thread.name, task), "the name of another thread")));
            let wrong = verdict.iter().find(|(is_right, _)| !is_right);
            if let Some((_, what)) = wrong {
                let of = format!("{what}: {} {} of {}: {}", thread.tid, thread.name, process.pid, parts[0].shown());
                *seen.wrong.entry(of).or_default() += 1;
            }
            seen.decided += usize::from(!verdict.is_empty());
            seen.right += usize::from(!verdict.is_empty() && wrong.is_none());
        }
        seen
    }

    fn stacks(&mut self, release: Release, parts: &[Part<'_>], program: &str) {
        let broken_kernel = parts.iter().filter(|part| part.mode == Mode::Kernel);
        let (all, broken) =
            broken_kernel.fold((0, 0), |(all, broken), part| (all + 1, broken + usize::from(part.fault().is_some())));
        self.with_kernel += usize::from(all > 0);
        self.broken_kernel += usize::from(broken > 0);
        for part in parts {
            if part.mode == Mode::User {
                let of = self.programs.entry(program.to_owned()).or_default();
                let (whole, nameless) = (usize::from(part.fault().is_none()), usize::from(part.is_nameless()));
                (of.all, of.whole, of.nameless) = (of.all + 1, of.whole + whole, of.nameless + nameless);
                (self.with_user, self.whole) = (self.with_user + 1, self.whole + whole);
                self.nameless += nameless;
            }
            let Some(fault) = part.fault() else { continue };
            let whose = if part.mode == Mode::User { program } else { KERNEL };
            let last = part.frames.last().map_or(String::new(), |frame| {
                // A place without a name is one of many.
                let function = if frame.function.starts_with("0x") { "no name" } else { &frame.function };
                format!("{function} ({})", file_name(&frame.image))
            });
            let kind = self.broken.entry((whose.to_owned(), fault, last)).or_default();
            kind.count += 1;
            kind.releases.insert(release);
            // What the kernel does there may be why.
            kind.example = parts.iter().map(Part::shown).collect::<Vec<_>>().join(" | ");
        }
    }

    /// The same without the stacks of programs among what is broken.
    pub(super) fn of_kernel(mut self) -> Seen {
        self.broken.retain(|(whose, ..), _| whose == KERNEL);
        self
    }

    /// Adds what was seen in another recording.
    pub(super) fn add(&mut self, other: Seen) {
        self.samples += other.samples;
        for (kind, of) in other.broken {
            let broken = self.broken.entry(kind).or_default();
            broken.count += of.count;
            broken.releases.extend(of.releases);
            broken.example = of.example;
        }
    }

    /// The counts of one recording.
    pub(super) fn summary(&self) -> String {
        format!(
            "{} samples; {} with a kernel stack, {} of them broken; {} with a user stack, {} of them whole, {} without a file; {} with a thread; {} of {} show the right one",
            self.samples,
            self.with_kernel,
            self.broken_kernel,
            self.with_user,
            self.whole,
            self.nameless,
            self.with_thread,
            self.right,
            self.decided
        )
    }

    /// A line for each program with a stack in user space.
    pub(super) fn programs(&self) -> Vec<String> {
        let line = |(program, of): (&String, &OfProgram)| {
            format!("{program}: {} of {} user stacks whole, {} without a file", of.whole, of.all, of.nameless)
        };
        self.programs.iter().map(line).collect()
    }

    /// A line for each kind of sample whose thread is not right, the most frequent first.
    pub(super) fn wrong(&self) -> Vec<String> {
        let mut wrong: Vec<(&String, &usize)> = self.wrong.iter().collect();
        wrong.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        wrong.into_iter().take(WRONG_MAX).map(|(what, count)| format!("{count} x {what}")).collect()
    }

    /// A line for each of the most frequent kinds of broken stacks.
    pub(super) fn most_broken(&self, most: usize) -> Vec<String> {
        let mut kinds: Vec<_> = self.broken.iter().collect();
        kinds.sort_by_key(|(_, broken)| std::cmp::Reverse(broken.count));
        let line = |((whose, fault, last), broken): (&Kind, &Broken)| {
            let releases: Vec<String> = broken.releases.iter().map(Release::to_string).collect();
            format!("  {} x {whose}, {fault} at {last}, {}: {}", broken.count, releases.join(" "), broken.example)
        };
        kinds.into_iter().take(most).map(line).collect()
    }
}

/// What a process runs: its program by the guest's list, or its name.
fn program(process: Option<&Process>, name: Option<&str>) -> String {
    let path = process.and_then(|process| process.program.as_deref()).map(file_name);
    path.or(name).unwrap_or("no process").to_owned()
}

/// What in a stack shows whether its thread is right, and what is wrong if it is not.
fn judge(parts: &[Part<'_>], tid: u32, pid: u32, truth: &Truth) -> Vec<(bool, &'static str)> {
    let mut verdict = Vec::new();
    let programs: BTreeSet<&str> =
        truth.processes.values().filter_map(|process| process.program.as_deref()).map(file_name).collect();
    let listed = truth.processes.get(&pid);
    let own = listed.and_then(|process| process.program.as_deref()).map(file_name);
    for part in parts {
        match part.mode {
            Mode::User => {
                if let Some(own) = own {
                    let of_programs = part.frames.iter().map(|frame| file_name(&frame.image));
                    let of_programs: Vec<&str> = of_programs.filter(|image| programs.contains(image)).collect();
                    if !of_programs.is_empty() {
                        verdict.push((of_programs.iter().all(|image| *image == own), "code of another program"));
                    }
                }
                let is_process = listed.map_or(tid != 0, |process| !process.maps.is_empty());
                verdict.push((is_process, "code of a process in a thread of the kernel"));
                if let Some(listed) = listed.filter(|_| part.is_nameless()) {
                    let is_own = listed.maps.iter().any(|line| (line.start..line.end).contains(&part.address));
                    verdict.push((is_own, "an address that its process has not"));
                }
            }
            Mode::Kernel if has(part, &OF_IDLE) => verdict.push((tid == 0, "the idle loop of another task")),
            Mode::Kernel if has(part, &OF_PROCESS) => {
                let is_process = listed.map_or(tid != 0, |process| !process.maps.is_empty());
                verdict.push((is_process, "a system call of a thread of the kernel"));
            }
            Mode::Kernel if has(part, &OF_KERNEL_THREAD) => {
                let is_thread = listed.map_or(tid != 0, |process| process.maps.is_empty());
                verdict.push((is_thread, "a thread of the kernel in a process"));
            }
            _ => {}
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::guest::{ProcessId, Thread, ThreadId};
    use glass_profiler_core::model::{SegmentOf, Stack};
    use glass_tests::linux_guest::truth::MapsLine;

    fn frame(function: &str, image: &str, inlined: bool) -> Frame {
        Frame { function: function.to_owned(), image: image.to_owned(), inlined, ..Frame::default() }
    }

    fn listed(program: Option<&str>) -> Process {
        let line = MapsLine {
            start: 0,
            end: 1,
            rights: String::new(),
            offset: 0,
            device: (0, 0),
            inode: 0,
            path: String::new(),
        };
        Process {
            maps: program.map(|_| line).into_iter().collect(),
            control_group: String::new(),
            command_line: Vec::new(),
            program: program.map(str::to_owned),
        }
    }

    fn truth() -> Truth {
        let processes = [(2, listed(None)), (7, listed(Some("/app/seven"))), (8, listed(Some("/app/eight")))];
        Truth {
            kallsyms: Vec::new(),
            modules: Vec::new(),
            tasks: BTreeMap::new(),
            processes: processes.into(),
            blocked: Vec::new(),
            uname: String::new(),
            banner: String::new(),
            command_line: String::new(),
            memory: BTreeMap::new(),
            physical: Vec::new(),
        }
    }

    /// A sample in a system call, of the process with this pid; its frames from the kernel's entry to `_start`.
    fn recording(pid: u32, frames: Vec<Frame>, ends: [StackEnd; 2]) -> Recording {
        let stack = Stack { frames: (0..frames.len() as u32).rev().collect(), end: StackEnd::Complete };
        let segment = |mode, addresses, end| SegmentOf { mode, addresses, end, ..SegmentOf::default() };
        let process = glass_profiler_core::guest::Process { pid, ..Default::default() };
        let thread = Thread { id: ThreadId(0), process: ProcessId(0), tid: pid, ..Thread::default() };
        let profile = Profile {
            frames,
            stacks: vec![stack],
            segments: vec![vec![segment(Mode::Kernel, 2, ends[0]), segment(Mode::User, 2, ends[1])]],
            samples: vec![Sample { thread: Some(0), segments: Some(0), ..Sample::default() }],
            processes: vec![process],
            threads: vec![thread],
            ..Profile::default()
        };
        Recording { profile, ..Recording::default() }
    }

    fn frames(function: &str, image: &str) -> Vec<Frame> {
        vec![
            frame("do_syscall_64", "linux-6.1", false),
            frame("entry_SYSCALL_64_after_hwframe", "linux-6.1", false),
            frame("inlined", image, true),
            frame("write", image, false),
            frame(function, image, false),
        ]
    }

    #[test]
    fn a_sample_is_judged_by_its_own_stack() {
        let whole = [StackEnd::Complete; 2];
        let of = |of: &Recording| Seen::of(Release::Bookworm61, of, &truth());
        let seen = of(&recording(7, frames("_start", "/app/seven"), whole));
        assert_eq!((seen.samples, seen.with_kernel, seen.broken_kernel), (1, 1, 0));
        assert_eq!((seen.with_user, seen.whole, seen.with_thread, seen.decided, seen.right), (1, 1, 1, 1, 1));
        assert!(seen.broken.is_empty() && seen.wrong.is_empty());
        // Of another process, of a thread of the kernel, and of the idle task.
        for pid in [8, 2, 0] {
            let seen = of(&recording(pid, frames("_start", "/app/seven"), whole));
            assert_eq!((seen.decided, seen.right, seen.wrong.len()), (1, 0, 1), "{pid}");
        }
    }

    #[test]
    fn what_is_not_whole_is_counted_by_what_broke_it() {
        let of = |of: &Recording| Seen::of(Release::Bookworm61, of, &truth());
        let seen = of(&recording(7, frames("main", "/app/seven"), [StackEnd::NoUnwindInfo, StackEnd::Complete]));
        assert_eq!((seen.broken_kernel, seen.whole, seen.broken.len()), (1, 0, 2));
        let mut all = Seen::default();
        all.add(of(&recording(7, frames("_start", "/app/seven"), [StackEnd::Complete, StackEnd::CopyEnded])));
        all.add(seen);
        let lines = all.most_broken(10);
        assert_eq!(lines.len(), 3);
        let early = "1 x seven, ends early at main (seven), 6.1: do_syscall_64 (linux-6.1) < \
            entry_SYSCALL_64_after_hwframe (linux-6.1) | inlined (seven) < write (seven) < main (seven)";
        assert!(lines.iter().any(|line| line.trim() == early), "{lines:?}");
        // The frame of a process is not where its stack ends.
        let mut named = frames("_start", "/app/seven");
        named[1] = frame("kworker/0:1 54", "[process]", false);
        named[0].function = "ret_from_fork_asm".to_owned();
        assert_eq!(of(&recording(7, named, [StackEnd::Complete; 2])).broken_kernel, 0);
        // One that counts as complete, and does not end where the kernel is entered.
        let mut cut = frames("_start", "/app/seven");
        cut[1].function = "__x86_indirect_thunk_rax".to_owned();
        let cut = of(&recording(7, cut, [StackEnd::Complete; 2])).of_kernel();
        assert_eq!((cut.with_kernel, cut.broken_kernel, cut.broken.len()), (1, 1, 1));
        let nameless = of(&recording(7, frames(NAMELESS, NAMELESS), [StackEnd::Complete; 2]));
        assert_eq!((nameless.nameless, nameless.whole), (1, 0));
    }
}
