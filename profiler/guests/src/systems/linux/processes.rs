//! The processes of a Linux guest, as samples name them: what they are called, which files they have mapped, and what is in those.
//!
//! A sample has a copy of its task. All else is read after the stop, while the guest runs, and the task may have ended by then: it keeps its name,
//! and what was known of its process before.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::guest::{Mode, Process, ProcessId, ProgramSince, SpaceId, Thread, ThreadId};
use glass_profiler_core::linux::files::Version;
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::linux::mappings::{EXECUTE, Vma};
use glass_profiler_core::linux::space::Space;
use glass_profiler_core::linux::tasks::{self, Identity, Task, Tasks};
use glass_profiler_core::linux::{files, mappings, sleeping};
use glass_profiler_core::model::State;
use glass_profiler_core::program::Program;

use super::generated::Generated;
use super::in_ram::Types;
use super::outside::{Memory, Outside};
use super::programs::{Programs, vdso};
use crate::memory::Machine;
use crate::systems::plan::{GUEST, SPACE};

/// How long the mappings of a process are taken for unchanged while its samples are in them.
const MAPPINGS_AGE_MAX_NS: u64 = 200_000_000;
/// The name of the program that the kernel maps into each process.
const VDSO: &str = "[vdso]";
const PAGE_BYTES: u64 = 4096;
/// Functions that switch from one task to the next.
const SWITCHING: [&str; 3] = ["__switch_to_asm", "__switch_to", "cpu_switch_to"];
/// Bytes of the kernel stack of a task, and its alignment (`THREAD_SIZE`).
const STACK_BYTES: u64 = 16 << 10;

/// By what a task, or a process, is known: its ID and when it started, since IDs are used again.
type Key = (u32, u64);

/// A process that was announced.
struct KnownProcess {
    process: Process,
    /// The name that it had last.
    name: String,
}

/// A thread that was announced.
struct KnownThread {
    id: ThreadId,
    process: Key,
    name: String,
    /// The lowest address of its kernel stack, if it could be read.
    stack: Option<u64>,
}

/// An address space that was announced.
struct KnownSpace {
    id: SpaceId,
    /// Its code, when its mappings were read, and which contents the files had.
    code: Vec<(Vma, Option<Version>)>,
    read_ns: Option<u64>,
    /// What it generates, if there is code without a file.
    generated: Option<Generated>,
}

/// How many processes, threads and address spaces were announced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbered {
    processes: u32,
    threads: u32,
    spaces: u32,
}

impl Numbered {
    /// Only the kernel's address space.
    pub(super) const KERNEL: Numbered = Numbered { processes: 0, threads: 0, spaces: SPACE.0 + 1 };

    /// Takes the number of another address space.
    pub(super) fn next_space(&mut self) -> SpaceId {
        self.spaces += 1;
        SpaceId(self.spaces - 1)
    }
}

/// The processes that samples have named until now.
pub(crate) struct Processes {
    memory: Memory,
    kernel: Kernel,
    types: Types,
    processes: HashMap<Key, KnownProcess>,
    threads: HashMap<Key, KnownThread>,
    /// The addresses of tasks by those of their kernel stacks. A stack may be another task's by now.
    stacks: HashMap<u64, u64>,
    /// Code in which a CPU is on the stack of the next task before that is its task.
    switching: Vec<Range<u64>>,
    /// By the address of their `mm_struct` and their process.
    spaces: HashMap<(u64, Key), KnownSpace>,
    programs: Programs,
    vdso: Option<Program>,
    /// Where the number of tasks is that have been started.
    started: Option<u64>,
    /// How many were announced before these, of a kernel that ran before.
    numbered: Numbered,
    outside: Outside,
    /// How often the mappings of a process could not be read.
    unread: u64,
}

impl Processes {
    pub(super) fn new(
        memory: Arc<dyn Machine>,
        mut kernel: Kernel,
        types: Types,
        (numbered, outside): (Numbered, Outside),
    ) -> Processes {
        let switching = SWITCHING.iter().filter_map(|name| kernel.symbols.range(name)).collect();
        let vdso = types.vdso.as_deref().and_then(|bytes| vdso(VDSO, bytes));
        let started = kernel.address(tasks::STARTED);
        kernel.forget_symbols();
        let memory = Memory(memory);
        let programs = Programs::new(memory.clone(), &types, kernel.paging, outside.clone());
        Processes {
            memory,
            kernel,
            types,
            processes: HashMap::new(),
            threads: HashMap::new(),
            stacks: HashMap::new(),
            switching,
            spaces: HashMap::new(),
            programs,
            vdso,
            started,
            numbered,
            outside,
            unread: 0,
        }
    }

    /// The tasks that there are now. `None` if the kernel has no list of them.
    pub(crate) fn tasks(&self) -> Option<Tasks> {
        tasks::list(&self.kernel, &self.memory, &self.types.tasks)
    }

    /// How many tasks the guest has started. `None` if its kernel has no symbol of that.
    pub(crate) fn tasks_started(&self) -> Option<u64> {
        self.kernel_space().word(self.started?)
    }

    /// What a task is called, if names may be shown.
    pub(crate) fn shown_name(&self, task: &Task) -> String {
        self.outside.thread_name(task.tid, task.name.clone())
    }

    /// The kernel's address space, for one walk.
    pub(crate) fn kernel_space(&self) -> Space<'_> {
        self.kernel.space(&self.memory)
    }

    /// The address space of a process.
    pub(crate) fn user_space(&self, mm: u64) -> Option<Space<'_>> {
        let of = mappings::address_space(&self.kernel_space(), mm, &self.types.mappings, self.kernel.paging)?;
        Some(Space::new(&self.memory, of.paging))
    }

    /// Where tasks have what is read of them.
    pub(crate) fn task_offsets(&self) -> &tasks::Offsets {
        &self.types.tasks
    }

    /// Where the stacks of those have it that do not run.
    pub(crate) fn sleeping_offsets(&self) -> &sleeping::Offsets {
        &self.types.sleeping
    }

    /// The kernel whose processes they are.
    pub(super) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Leaves out a number of an address space, which is used for another.
    pub(super) fn take_space(&mut self) {
        self.numbered.next_space();
    }

    /// How many were announced, these and all before.
    pub(super) fn numbered(&self) -> Numbered {
        Numbered {
            processes: self.numbered.processes + self.processes.len() as u32,
            threads: self.numbered.threads + self.threads.len() as u32,
            spaces: self.numbered.spaces + self.spaces.len() as u32,
        }
    }

    /// What could not be read, in a sentence.
    pub(crate) fn remark(&self) -> Option<String> {
        let unread = self.unread;
        let unread = (unread > 0).then(|| format!(
            "the mappings of the guest's processes changed {unread} times while they were read: some code of theirs may have no name"
        ));
        let remarks: Vec<String> = unread.into_iter().chain(self.programs.remarks()).collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }

    /// Passes on a sample, and before it what is new of its thread.
    pub(crate) fn sample(&mut self, mut sample: RawSample, sink: &mut dyn FnMut(Event)) {
        let task = sample.task.take();
        let found = task.and_then(|task| Some((task.address, self.types.tasks.identity(&task.bytes)?)));
        if let Some((mut address, mut identity)) = found {
            identity.name = self.outside.thread_name(identity.tid, identity.name);
            let memory = self.memory.clone();
            let space = self.kernel.space(&memory);
            let mut process = self.thread(&space, address, &identity, sample.time_ns, sink);
            let mut is_known = true;
            if let Some(stack) = self.other_stack(&sample, (identity.tid, identity.start_ns)) {
                match self.task_of_stack(&space, stack) {
                    Some((of_stack, next)) => {
                        process = self.thread(&space, of_stack, &next, sample.time_ns, sink);
                        (address, identity) = (of_stack, next);
                    }
                    // Elsewhere it is the stack of an interrupt or of an entry, and no other task's.
                    None => is_known = !self.is_switching(&sample),
                }
                // The idle task was left.
                if sample.state == State::Idle {
                    sample.state = State::Running;
                }
            }
            let thread = self.threads.get(&(identity.tid, identity.start_ns)).filter(|_| is_known);
            sample.thread = thread.map(|thread| thread.id);
            if let Some(user) = sample.segments.iter_mut().find(|segment| segment.mode == Mode::User)
                && identity.mm != 0
            {
                let ip = user.registers.ip();
                user.space = self.space(&space, (identity.mm, address), process, (ip, sample.time_ns), sink);
            }
        }
        sink(Event::Sample(sample));
    }

    /// The kernel stack that a sample is on, if that is not the one of its task: while the kernel switches to the next task it is on that one's
    /// stack for some instructions before that is the task of the CPU (`__switch_to`).
    fn other_stack(&self, sample: &RawSample, task: Key) -> Option<u64> {
        let kernel = sample.segments.first().filter(|segment| segment.mode == Mode::Kernel)?;
        // The stack of an interrupt, if there is one, is the first.
        let stack = kernel.stack.last()?.0 & !(STACK_BYTES - 1);
        (self.threads.get(&task)?.stack? != stack).then_some(stack)
    }

    /// Whether the kernel switches from one task to the next.
    fn is_switching(&self, sample: &RawSample) -> bool {
        let at = sample.segments.first().map(|segment| segment.registers.ip());
        at.is_some_and(|at| self.switching.iter().any(|range| range.contains(&at)))
    }

    /// The task that a kernel stack belongs to, if it was seen before.
    fn task_of_stack(&self, space: &Space<'_>, stack: u64) -> Option<(u64, Identity)> {
        let address = *self.stacks.get(&stack)?;
        let next = Task::read(space, address, &self.types.tasks).filter(|next| next.stack == stack)?;
        let Task { tid, pid, start_ns, mm, .. } = next;
        let name = self.outside.thread_name(tid, next.name);
        Some((address, Identity { tid, pid, name, start_ns, mm }))
    }

    /// Announces a thread and its process, if they are new or have another name; returns what the process is known by.
    fn thread(
        &mut self,
        space: &Space<'_>,
        address: u64,
        identity: &Identity,
        time_ns: u64,
        sink: &mut dyn FnMut(Event),
    ) -> Key {
        let key = (identity.tid, identity.start_ns);
        let is_leader = identity.tid == identity.pid;
        if let Some(known) = self.threads.get(&key)
            && known.name == identity.name
        {
            let process = known.process;
            if is_leader && !self.outside.settings.without_names {
                self.process(space, None, process, &identity.name, time_ns, sink);
            }
            return process;
        }
        // What is at its address by now, if that is still the same.
        let is_same = |task: &Task| (task.tid, task.start_ns) == key;
        let task = Task::read(space, address, &self.types.tasks).filter(is_same);
        // A task that has ended has none any more.
        let stack = task.as_ref().map(|task| task.stack).filter(|stack| *stack != 0);
        self.stacks.extend(stack.map(|stack| (stack, address)));
        let leader = match is_leader {
            true => task,
            false => task
                .and_then(|task| Task::read(space, task.leader, &self.types.tasks))
                .filter(|leader| leader.tid == identity.pid),
        };
        let known = self.threads.get(&key).map(|thread| thread.process);
        let process = match (known, is_leader, &leader) {
            (Some(process), ..) => process,
            (_, true, _) => key,
            (_, _, Some(leader)) => (leader.tid, leader.start_ns),
            // It started no later than its thread.
            _ => (identity.pid, identity.start_ns),
        };
        let name = match self.outside.settings.without_names {
            true => format!("process {}", identity.pid),
            false => leader.as_ref().map_or(&identity.name, |leader| &leader.name).clone(),
        };
        let process_id = self.process(space, leader, process, &name, time_ns, sink);
        let next = ThreadId(self.numbered.threads + self.threads.len() as u32);
        let id = self.threads.get(&key).map_or(next, |thread| thread.id);
        self.threads.insert(key, KnownThread { id, process, name: identity.name.clone(), stack });
        let (tid, start_ns) = (identity.tid, Some(identity.start_ns));
        sink(Event::Thread(Thread { id, process: process_id, tid, name: identity.name.clone(), start_ns }));
        process
    }

    /// Announces a process, if it is new or has another name.
    fn process(
        &mut self,
        space: &Space<'_>,
        leader: Option<Task>,
        key: Key,
        name: &str,
        time_ns: u64,
        sink: &mut dyn FnMut(Event),
    ) -> ProcessId {
        let next = ProcessId(self.numbered.processes + self.processes.len() as u32);
        let program = |time_ns| ProgramSince { time_ns, name: name.to_owned() };
        match self.processes.entry(key) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                if known.name != name {
                    name.clone_into(&mut known.name);
                    sink(Event::Process(Process { programs: vec![program(time_ns)], ..known.process.clone() }));
                }
                known.process.id
            }
            Entry::Vacant(place) => {
                let (offsets, has_names) = (&self.types.tasks, !self.outside.settings.without_names);
                let of_namespaces = leader.as_ref().and_then(|leader| leader.namespace_tids(space, offsets));
                let process = Process {
                    id: next,
                    guest: GUEST,
                    pid: key.0,
                    namespace_pid: of_namespaces.and_then(|tids| tids.last().copied()).filter(|pid| *pid != key.0),
                    parent: None,
                    start_ns: Some(key.1),
                    cgroup: leader
                        .filter(|_| has_names)
                        .and_then(|leader| leader.cgroup(space, offsets))
                        .unwrap_or_default(),
                    programs: vec![program(0)],
                };
                sink(Event::Process(process.clone()));
                place.insert(KnownProcess { process, name: name.to_owned() });
                next
            }
        }
    }

    /// The address space of a process, with what it has mapped if a sample at `ip` may need more than is known.
    fn space(
        &mut self,
        space: &Space<'_>,
        (mm, task): (u64, u64),
        process: Key,
        (ip, time_ns): (u64, u64),
        sink: &mut dyn FnMut(Event),
    ) -> SpaceId {
        let next = SpaceId(self.numbered.spaces + self.spaces.len() as u32);
        let owner = self.processes.get(&process).map(|known| known.process.id);
        let known = self.spaces.entry((mm, process)).or_insert_with(|| {
            sink(Event::Space { space: next, guest: GUEST, process: owner, copy_of: None });
            KnownSpace { id: next, code: Vec::new(), read_ns: None, generated: None }
        });
        let is_covered = known.code.iter().any(|(vma, _)| (vma.start..vma.end).contains(&ip));
        let age_ns = known.read_ns.map_or(u64::MAX, |read_ns| time_ns.saturating_sub(read_ns));
        let id = known.id;
        if age_ns < MAPPINGS_AGE_MAX_NS && (is_covered || age_ns < MAPPINGS_AGE_MAX_NS / 10) {
            return id;
        }
        known.read_ns = Some(time_ns);
        let Some(all) = mappings::list(space, mm, &self.types.mappings) else {
            self.unread += 1;
            return id;
        };
        let offsets = &self.types.files;
        let version = |vma: &Vma| Version::of(space, vma.file?, offsets);
        let code = all.into_iter().filter(|vma| vma.flags & EXECUTE != 0).map(|vma| (vma, version(&vma)));
        let code: Vec<_> = code.collect();
        let old: HashSet<_> = std::mem::replace(&mut known.code, code.clone()).into_iter().collect();
        let vdso = mappings::address_space(space, mm, &self.types.mappings, self.kernel.paging).map_or(0, |of| of.vdso);
        let is_generated = |vma: &Vma| vma.file.is_none() && vma.start != vdso;
        let mut generated = None;
        if code.iter().any(|(vma, _)| is_generated(vma)) {
            let of = known.generated.get_or_insert_with(|| Generated::of(process.0));
            // Before and after: another task may be at its address by now.
            let is_of = || Task::read(space, task, &self.types.tasks).is_some_and(|now| now.mm == mm);
            let more = if is_of() { of.read_map(&self.memory, space, task, &self.types) } else { None };
            if let Some(lines) = more.filter(|_| is_of()) {
                of.map.set(lines);
            }
            generated = Some(of.program.clone());
        }
        for (vma, _) in code.iter().filter(|code| !old.contains(code)) {
            let program = match is_generated(vma) {
                true => generated.clone().map(|program| (0, program)),
                false => self.program(space, vma, vdso, !old.is_empty()),
            };
            if let Some((bias, program)) = program {
                sink(Event::Place { space: id, range: vma.start..vma.end, bias, program });
            }
        }
        id
    }

    /// The program of a mapping, and how far it runs from where it was linked for. Where there may have been another one, something stands for a file
    /// without a program.
    fn program(&mut self, space: &Space<'_>, vma: &Vma, vdso: u64, had_others: bool) -> Option<(u64, Program)> {
        let Some(at) = vma.file else {
            let program = self.vdso.clone().filter(|_| vma.start == vdso)?;
            return Some((program.image.bias_of_mapping(vma.start, 0)?, program));
        };
        let file = files::file(space, at, &self.types.files)?;
        let program = self.programs.of(&file);
        let placed = program.and_then(|program| {
            Some((program.image.bias_of_mapping(vma.start, vma.page_offset * PAGE_BYTES)?, program))
        });
        placed.or_else(|| had_others.then(|| (0, self.programs.nothing(&file))))
    }
}
