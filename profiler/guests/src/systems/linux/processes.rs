//! The processes of a Linux guest, as samples name them: what they are called, which files they have mapped, and what is in those.
//!
//! A sample has a copy of its task. All else is read after the stop, while the guest runs, and the task may have ended by then: it keeps its name,
//! and what was known of its process before.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use glass_profiler_core::budget::Account;
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::guest::{Mode, Process, ProcessId, ProgramSince, SpaceId, Thread, ThreadId};
use glass_profiler_core::image::Image;
use glass_profiler_core::linux::files::File;
use glass_profiler_core::linux::kept::Kept;
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::linux::mappings::{EXECUTE, Vma};
use glass_profiler_core::linux::page_cache::CachedFile;
use glass_profiler_core::linux::space::Space;
use glass_profiler_core::linux::tasks::{self, Identity, Task, Tasks};
use glass_profiler_core::linux::{files, mappings, sleeping};
use glass_profiler_core::program::{NamesFrom, OpenedFile, Parts, Program};
use glass_profiler_core::symbols::Symbols;

use super::in_ram::Types;
use crate::error::GuestError;
use crate::memory::{Machine, Physical};
use crate::systems::plan::{GUEST, SPACE};
use crate::{Counts, Flow, Source};

/// How long the mappings of a process are taken for unchanged while its samples are in them.
const MAPPINGS_AGE_MAX_NS: u64 = 200_000_000;
/// The name of the program that the kernel maps into each process.
const VDSO: &str = "[vdso]";
const PAGE_BYTES: u64 = 4096;

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
}

/// An address space that was announced.
struct KnownSpace {
    id: SpaceId,
    /// Its code, when its mappings were read.
    code: Vec<Vma>,
    read_ns: Option<u64>,
}

/// The RAM of the guest, for what reads files out of it.
#[derive(Clone)]
struct Memory(Arc<dyn Machine>);

impl Physical for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.0.read(address, into)
    }
}

/// By what a file is known: where its contents are, its number, and its length.
type FileKey = (Option<u64>, u64, u64);

/// The processes that samples have named until now.
pub(crate) struct Processes {
    memory: Memory,
    kernel: Kernel,
    types: Types,
    processes: HashMap<Key, KnownProcess>,
    threads: HashMap<Key, KnownThread>,
    /// By the address of their `mm_struct` and their process.
    spaces: HashMap<(u64, Key), KnownSpace>,
    programs: HashMap<FileKey, Option<Program>>,
    vdso: Option<Program>,
    /// How often the mappings of a process could not be read.
    unread: u64,
}

impl Processes {
    pub(super) fn new(memory: Arc<dyn Machine>, kernel: Kernel, types: Types) -> Processes {
        let vdso = types.vdso.as_ref().and_then(|bytes| program(VDSO, Arc::new(bytes.to_vec())));
        Processes {
            memory: Memory(memory),
            kernel,
            types,
            processes: HashMap::new(),
            threads: HashMap::new(),
            spaces: HashMap::new(),
            programs: HashMap::new(),
            vdso,
            unread: 0,
        }
    }

    /// The tasks that there are now. `None` if the kernel has no list of them.
    pub(crate) fn tasks(&self) -> Option<Tasks> {
        tasks::list(&self.kernel, &self.memory, &self.types.tasks)
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

    /// Passes on a sample, and before it what is new of its thread.
    pub(crate) fn sample(&mut self, mut sample: RawSample, sink: &mut dyn FnMut(Event)) {
        let task = sample.task.take();
        let found = task.and_then(|task| Some((task.address, self.types.tasks.identity(&task.bytes)?)));
        if let Some((address, identity)) = found {
            let memory = self.memory.clone();
            let space = self.kernel.space(&memory);
            let process = self.thread(&space, address, &identity, sample.time_ns, sink);
            sample.thread = self.threads.get(&(identity.tid, identity.start_ns)).map(|thread| thread.id);
            if let Some(user) = sample.segments.iter_mut().find(|segment| segment.mode == Mode::User)
                && identity.mm != 0
            {
                let ip = user.registers.ip();
                user.space = self.space(&space, identity.mm, process, (ip, sample.time_ns), sink);
            }
        }
        sink(Event::Sample(sample));
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
            if is_leader {
                self.process(space, None, process, &identity.name, time_ns, sink);
            }
            return process;
        }
        // What is at its address by now, if that is still the same.
        let is_same = |task: &Task| (task.tid, task.start_ns) == key;
        let task = Task::read(space, address, &self.types.tasks).filter(is_same);
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
        let name = leader.as_ref().map_or(&identity.name, |leader| &leader.name).clone();
        let process_id = self.process(space, leader, process, &name, time_ns, sink);
        let next = ThreadId(self.threads.len() as u32);
        let id = self.threads.get(&key).map_or(next, |thread| thread.id);
        self.threads.insert(key, KnownThread { id, process, name: identity.name.clone() });
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
        let next = ProcessId(self.processes.len() as u32);
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
                let offsets = &self.types.tasks;
                let of_namespaces = leader.as_ref().and_then(|leader| leader.namespace_tids(space, offsets));
                let process = Process {
                    id: next,
                    guest: GUEST,
                    pid: key.0,
                    namespace_pid: of_namespaces.and_then(|tids| tids.last().copied()).filter(|pid| *pid != key.0),
                    parent: None,
                    start_ns: Some(key.1),
                    cgroup: leader.and_then(|leader| leader.cgroup(space, offsets)).unwrap_or_default(),
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
        mm: u64,
        process: Key,
        (ip, time_ns): (u64, u64),
        sink: &mut dyn FnMut(Event),
    ) -> SpaceId {
        let next = SpaceId(SPACE.0 + 1 + self.spaces.len() as u32);
        let owner = self.processes.get(&process).map(|known| known.process.id);
        let known = self.spaces.entry((mm, process)).or_insert_with(|| {
            sink(Event::Space { space: next, guest: GUEST, process: owner, copy_of: None });
            KnownSpace { id: next, code: Vec::new(), read_ns: None }
        });
        let is_covered = known.code.iter().any(|vma| (vma.start..vma.end).contains(&ip));
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
        let code: Vec<Vma> = all.into_iter().filter(|vma| vma.flags & EXECUTE != 0).collect();
        let old = std::mem::replace(&mut known.code, code.clone());
        let vdso = mappings::address_space(space, mm, &self.types.mappings, self.kernel.paging).map_or(0, |of| of.vdso);
        for vma in code.iter().filter(|vma| !old.contains(vma)) {
            if let Some((bias, program)) = self.program(space, vma, vdso) {
                sink(Event::Place { space: id, range: vma.start..vma.end, bias, program });
            }
        }
        id
    }

    /// The program of a mapping, and how far it runs from where it was linked for.
    fn program(&mut self, space: &Space<'_>, vma: &Vma, vdso: u64) -> Option<(u64, Program)> {
        let Some(at) = vma.file else {
            let program = self.vdso.clone().filter(|_| vma.start == vdso)?;
            return Some((program.image.bias_of_mapping(vma.start, 0)?, program));
        };
        let file = files::file(space, at, &self.types.files)?;
        let key = (file.contents, file.inode, file.bytes);
        let program = match self.programs.get(&key) {
            Some(program) => program.clone(),
            None => {
                let program = self.read(&file);
                self.programs.insert(key, program.clone());
                program
            }
        }?;
        Some((program.image.bias_of_mapping(vma.start, vma.page_offset * PAGE_BYTES)?, program))
    }

    /// A program, by what the guest has of its file in memory.
    fn read(&self, file: &File) -> Option<Program> {
        let cached = CachedFile::new(self.memory.clone(), self.types.pages, file.contents?, file.bytes);
        let kept: Arc<dyn ReadAt> = Arc::new(Kept::new(cached));
        let path = file.path.clone().unwrap_or_else(|| format!("[file {}]", file.inode));
        program(&path, kept)
    }
}

/// A program by its file.
fn program(name: &str, file: Arc<dyn ReadAt>) -> Option<Program> {
    let file = OpenedFile(file);
    let image = Arc::new(Image::of_file(Box::new(file.clone()), true, Account::alone()).ok()?);
    // The names are read when the guest may be gone: what is needed for them is kept by this.
    let _ = Symbols::read(&file);
    let names = vec![NamesFrom::Opened(file)];
    Some(Program::new(Parts { name: name.to_owned(), image, names, is_whole: false, is_kernel: false }))
}

/// A source whose samples are those of the processes of a Linux, if these are known.
pub(crate) struct WithProcesses<S> {
    source: S,
    processes: Option<Processes>,
}

impl<S> WithProcesses<S> {
    pub(crate) fn new(source: S, processes: Option<Processes>) -> WithProcesses<S> {
        WithProcesses { source, processes }
    }
}

/// What passes events on, with the processes of the samples among them.
fn through<'a>(processes: &'a mut Option<Processes>, sink: &'a mut dyn FnMut(Event)) -> impl FnMut(Event) + use<'a> {
    move |event| match (event, processes.as_mut()) {
        (Event::Sample(sample), Some(processes)) => processes.sample(sample, sink),
        (event, _) => sink(event),
    }
}

impl<S: Source> Source for WithProcesses<S> {
    fn started_ns(&self) -> Option<u64> {
        self.source.started_ns()
    }

    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.source.announce(&mut through(&mut self.processes, sink))
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        self.source.collect(wait, &mut through(&mut self.processes, sink))
    }

    fn counts(&self) -> Counts {
        self.source.counts()
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        let detached = self.source.detach(&mut through(&mut self.processes, sink));
        if let Some(unread) = self.processes.as_ref().map(|processes| processes.unread).filter(|unread| *unread > 0) {
            sink(Event::Warning(format!(
                "the mappings of the guest's processes changed {unread} times while they were read: some code of theirs may have no name"
            )));
        }
        detached
    }
}
