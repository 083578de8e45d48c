//! The tasks of a Linux guest and their stacks, read from its RAM: no vCPU is stopped, and nothing of the VMM but its memory is used.

use std::sync::Arc;

use glass_profiler_core::arch::Registers;
use glass_profiler_core::event::{Event, RawSample, RawTask, Segment};
use glass_profiler_core::guest::{GuestKind, Mode};
use glass_profiler_core::linux::tasks::{Activity, Task, Tasks};
use glass_profiler_core::map::SymbolMap;

use crate::arch::entry::Entry;
use crate::error::GuestError;
use crate::files::OpenedFiles;
use crate::files::disks::disks_of;
use crate::find::architecture_of;
use crate::memory::{Machine, memories_of};
use crate::sys::monotonic_ns;
use crate::systems::image::{VmImage, VmSettings};
use crate::systems::linux::{GuestProcesses, Processes};
use crate::systems::plan::SPACE;

/// How often a stack is read of which the task ran meanwhile.
const ATTEMPTS: u32 = 3;
/// The most bytes that are copied of the stack of a process.
const USER_STACK_BYTES_MAX: usize = 64 << 10;

/// How this process reads a guest.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Called when all is open and nothing of the guest is parsed: it gives up what is not needed, and returns a warning if it cannot.
    pub enter: Option<fn() -> Option<String>>,
    /// How the guest's processes are shown.
    pub processes: GuestProcesses,
    /// Who opens files after that.
    pub opened: OpenedFiles,
}

/// A Linux guest whose tasks can be read.
pub struct LinuxGuest {
    image: VmImage,
    processes: Processes,
    warnings: Vec<String>,
    /// Where the stack of a process is copied to first: most are much shorter.
    copied: Vec<u8>,
}

/// What is known of a task beside itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Belongings {
    /// Its thread ID in each namespace, the initial one first.
    pub namespace_tids: Vec<u32>,
    /// The path of its control group.
    pub cgroup: Option<String>,
}

/// The stack of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stack {
    /// It stood while it was read: what it did in the kernel, and in its process if it has one. No segment: it has no stack any more.
    Stood(Box<RawSample>),
    /// It is on a CPU, so its stack changes all the time.
    OnCpu,
    /// It ran each time while its stack was read.
    Ran,
    /// There is no such task any more.
    Gone,
}

impl LinuxGuest {
    /// The guest of a VMM.
    ///
    /// # Errors
    /// The RAM cannot be read, or has no Linux kernel that describes its structures.
    pub fn of_vmm(pid: u32, name: &str, access: Access) -> Result<LinuxGuest, GuestError> {
        let memories = memories_of(pid, architecture_of(pid));
        if memories.is_empty() {
            return Err(GuestError::NotPermitted {
                action: format!("read the RAM of {name}, process {pid}"),
                remedy: "run glass as root or as the user who started the VM (CAP_SYS_PTRACE permits it, too)"
                    .to_owned(),
            });
        }
        let opened = access.opened.clone().with_disks(disks_of(Some(pid), &access.processes.disks)?);
        let access = Access { opened, ..access };
        let gap = access.enter.and_then(|enter| enter());
        LinuxGuest::of_memories((GuestKind::Vm { vmm: pid }, name), &memories, access, gap)
    }

    /// The guest whose RAM one of these memories is.
    pub(crate) fn of_memories(
        (kind, name): (GuestKind, &str),
        memories: &[Arc<dyn Machine>],
        access: Access,
        warning: Option<String>,
    ) -> Result<LinuxGuest, GuestError> {
        let no_kernel = |_| {
            GuestError::KernelNotFound(
                "no Linux kernel was found in the RAM of the VM: repeat once it has booted".to_owned(),
            )
        };
        let settings = VmSettings {
            stack_bytes: 0,
            leaves_sleepers: false,
            symbols: Vec::new(),
            vcpus: Vec::new(),
            boot_image: None,
            force: false,
            files_only: false,
            processes: access.processes,
        };
        let mut image = VmImage::load_of(kind, name, settings, &access.opened)?;
        let found = image.find_in_ram(memories).map_err(no_kernel)?;
        let warnings = warning.into_iter().chain(found.into_iter().flat_map(|(_, warnings)| warnings)).collect();
        let why = image.unknown().unwrap_or_default();
        let processes = image.take_processes().ok_or(GuestError::Unsupported(why))?;
        Ok(LinuxGuest { image, processes, warnings, copied: vec![0; USER_STACK_BYTES_MAX] })
    }

    /// What could not be done, one sentence each; each is returned once.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// What could not be read of the processes whose stacks were read, in a sentence.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        self.processes.remark()
    }

    /// The tasks that there are now, but the idle ones. `None` if the kernel has no list of them.
    #[must_use]
    pub fn tasks(&self) -> Option<Tasks> {
        self.processes.tasks()
    }

    /// How many tasks the guest has started: while the number is the same, a list of tasks that was read after it has all. `None` if the kernel has
    /// no symbol of it.
    pub(crate) fn tasks_started(&self) -> Option<u64> {
        self.processes.tasks_started()
    }

    /// What reads what the tasks at some addresses do: of the kernel's own (`true`) only those that are busy. `None` if there is no task, and
    /// `Some(None)` of one without work.
    pub(crate) fn activities(&self) -> impl Fn(u64, bool) -> Option<Option<Activity>> {
        let (space, offsets) = (self.processes.kernel_space(), self.processes.task_offsets());
        move |address, is_kernel_thread| {
            if is_kernel_thread && !Activity::is_busy(&space, address, offsets)? {
                return Some(None);
            }
            Activity::read(&space, address, offsets).map(Some)
        }
    }

    /// What else is known of a task, as far as it is still there.
    #[must_use]
    pub fn belongings(&self, task: &Task) -> Belongings {
        let (space, offsets) = (self.processes.kernel_space(), self.processes.task_offsets());
        let namespace_tids = task.namespace_tids(&space, offsets).unwrap_or_default();
        Belongings { namespace_tids, cgroup: task.cgroup(&space, offsets) }
    }

    /// The guest, its kernel's address space, and what is there.
    pub fn announce(&self, sink: &mut dyn FnMut(Event)) {
        self.image.announce(std::iter::empty(), sink);
    }

    /// The functions of the kernel and its modules.
    pub(crate) fn symbol_map(&self) -> Option<&SymbolMap> {
        self.image.symbol_map().map(|map| &**map)
    }

    /// A sample of a task that runs, without a stack. Before it is returned, `sink` receives what is new of its process.
    pub(crate) fn running(&mut self, task: &Task, sink: &mut dyn FnMut(Event)) -> RawSample {
        let part = self.part(task.address);
        self.sample(Vec::new(), part, sink)
    }

    /// What a task is called in recordings.
    pub(crate) fn shown_name(&self, task: &Task) -> String {
        self.processes.shown_name(task)
    }

    /// The stack of a task at a moment at which it does not run. Before it is returned, `sink` receives what is new of its process.
    pub fn stack(&mut self, task: &Task, sink: &mut dyn FnMut(Event)) -> Stack {
        let is_same = |now: &Task| (now.tid, now.start_ns) == (task.tid, task.start_ns);
        for _ in 0..ATTEMPTS {
            let Some(before) = self.read(task.address).filter(is_same) else { return Stack::Gone };
            if before.is_on_cpu {
                return Stack::OnCpu;
            }
            let segments = self.segments(&before);
            let part = self.part(task.address);
            match self.read(task.address).filter(is_same) {
                None => return Stack::Gone,
                Some(after) if !before.stood_still(&after) => {}
                Some(_) => return Stack::Stood(Box::new(self.sample(segments, part, sink))),
            }
        }
        Stack::Ran
    }

    /// The task at an address. `None` if there is none.
    pub(crate) fn read(&self, address: u64) -> Option<Task> {
        Task::read(&self.processes.kernel_space(), address, self.processes.task_offsets())
    }

    /// What identifies a task, as a sample has it.
    fn part(&self, address: u64) -> Option<RawTask> {
        let part = self.processes.task_offsets().part();
        let start = address.checked_add(u64::from(part.start))?;
        let bytes = self.processes.kernel_space().bytes(start, (part.end - part.start) as usize)?;
        Some(RawTask { address, bytes })
    }

    /// Copies of a task's stacks, its kernel stack first.
    fn segments(&mut self, task: &Task) -> Vec<Segment> {
        let offsets = self.processes.sleeping_offsets();
        let copied = offsets.copy(&self.processes.kernel_space(), task);
        let Some((registers, stack)) = copied.and_then(|stack| {
            let registers = offsets.registers(&self.processes.kernel_space(), task, &stack)?;
            Some((registers, stack))
        }) else {
            return Vec::new();
        };
        let user = if task.is_kernel_thread { None } else { self.user_segment(task, registers, &stack) };
        let stack = vec![(task.stack_pointer, stack)];
        let kernel = Segment { space: SPACE, mode: Mode::Kernel, registers, stack, ..Segment::default() };
        [kernel].into_iter().chain(user).collect()
    }

    /// The stack of the process that entered the kernel, whose stack this is.
    fn user_segment(&mut self, task: &Task, in_kernel: Registers, kernel: &[u8]) -> Option<Segment> {
        let offsets = self.processes.sleeping_offsets();
        let (top, entry) = (offsets.top(task)?, Entry::of(&in_kernel, offsets.entry_bytes()));
        // Workers that the kernel adds to a process run none of its code.
        let registers = entry.registers(top, task.stack_pointer, kernel).filter(|registers| registers.sp() != 0)?;
        let bytes = self.processes.user_space(task.mm)?.read_some(registers.sp(), &mut self.copied);
        let stack = vec![(registers.sp(), self.copied[..bytes].to_vec())];
        Some(Segment { space: SPACE, mode: Mode::User, registers, stack, ..Segment::default() })
    }

    /// A sample in the address spaces that it belongs to.
    fn sample(&mut self, segments: Vec<Segment>, task: Option<RawTask>, sink: &mut dyn FnMut(Event)) -> RawSample {
        let mut passed = RawSample::default();
        let sample = RawSample { time_ns: monotonic_ns(), segments, task, ..RawSample::default() };
        self.processes.sample(sample, &mut |event| match event {
            Event::Sample(sample) => passed = sample,
            event => sink(event),
        });
        passed
    }
}
