//! What a sample of a VM needs beside the registers: plain data that [`VmImage`](crate::systems::image::VmImage) makes of the symbol files, so
//! that the code which stops a VM and copies from it parses no file and no memory of the guest.

use std::ops::Range;

use glass_formats as formats;
use glass_profiler_core::arch::{Registers, Width, x86_64};
use glass_profiler_core::event::{RawSample, RawTask, Segment, Skid};
use glass_profiler_core::guest::{GuestId, Mode, SpaceId};
use glass_profiler_core::model::State;

use crate::arch::CoreState;
use crate::arch::entry::Entry;
use crate::error::GuestError;
use crate::memory::AddressSpace;
use crate::systems::stack;

/// Bytes of the state of a core that are read for a sample.
pub(crate) const CORE_STATE_READ: usize = formats::ACTIVITY_OFFSET as usize + 4;
/// The most that is copied of the stack that an interrupt left: Linux's are of 16 KiB.
const LEFT_STACK_BYTES_MAX: usize = 16 << 10;
/// What is copied of the stack of a goroutine that has called C or Go's runtime: few are larger, and they start with 2 or 4 KiB.
const GOROUTINE_BYTES: usize = 8 << 10;

/// The one guest, and the one address space, of a source of this kind: kernels share their part of each.
pub(crate) const GUEST: GuestId = GuestId(0);
pub(crate) const SPACE: SpaceId = SpaceId(0);

/// A stopped core.
pub(crate) trait HeldCore: AddressSpace {
    /// Whether the core sleeps according to the VMM's side; called only if the guest does not report it.
    fn is_halted(&mut self) -> Result<bool, GuestError>;

    /// Whether the core stands wherever it was, and not only between two blocks of instructions.
    fn is_exact(&self) -> bool {
        true
    }

    /// Where it is not exact: an instruction of the block that was executed before, if that is known.
    fn block_before(&self) -> Option<u64> {
        None
    }

    /// Copies from a physical address; false if that is not possible.
    fn read_physical(&mut self, _address: u64, _into: &mut [u8]) -> bool {
        false
    }
}

/// Room for what a sample copies, all of it touched before the core stops: a page fault would be part of the pause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// For the stack of the code that runs.
    pub(crate) stack: Vec<u8>,
    /// For that of the process that called a kernel.
    user: Vec<u8>,
    /// For a part of the task.
    task: Vec<u8>,
}

/// How a VM is sampled, as far as that depends on what it runs. The default, of a VM of which nothing is known, copies no stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyPlan {
    /// How much of the stack is copied.
    pub(crate) stack_bytes: u32,
    /// A vCPU that sleeps is not stopped: samples of an idle one have a state and no stack.
    pub(crate) leaves_sleepers: bool,
    /// Address of the guest's per-core state, if it is one of ours.
    pub(crate) cores: Option<u64>,
    /// Where the programs of the guest are.
    pub(crate) programs: Vec<Range<u64>>,
    /// Where their machine code is.
    pub(crate) code: Vec<Range<u64>>,
    /// The kernel, if the guest is a Linux.
    pub(crate) linux: Option<LinuxPlan>,
}

/// What is needed of a Linux guest's kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinuxPlan {
    /// The kernel's code and data.
    pub(crate) range: Range<u64>,
    /// Where a core waits for work, if its tasks are not known.
    pub(crate) idle: Vec<Range<u64>>,
    /// Code in which the page tables may be those of another process than the task's: between two tasks.
    pub(crate) between: Vec<Range<u64>>,
    /// How the task of a core is found.
    pub(crate) tasks: Option<TaskPlan>,
}

/// How the task of a core is found: by two reads of physical memory, whose addresses do not change while the kernel runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskPlan {
    /// Where the pointer to the task of each CPU is.
    pub(crate) slots: Vec<u64>,
    /// The virtual address of the physical address 0: where the kernel has all memory.
    pub(crate) direct_map: u64,
    /// The part of a task that is copied: bytes from its start.
    pub(crate) part: Range<u32>,
    /// Where in it the thread ID is.
    pub(crate) tid: u32,
    /// Bytes of the registers that the kernel has at the top of the stack of a process that entered it, where its types say so.
    pub(crate) entry_bytes: u32,
}

impl TaskPlan {
    /// Copies a part of the task of a CPU to `room`; returns the task's address.
    fn copy(&self, cpu: usize, core: &mut impl HeldCore, room: &mut [u8]) -> Option<u64> {
        let mut pointer = [0; 8];
        if !core.read_physical(*self.slots.get(cpu)?, &mut pointer) {
            return None;
        }
        let address = u64::from_le_bytes(pointer);
        let part = address.checked_sub(self.direct_map)?.checked_add(u64::from(self.part.start))?;
        core.read_physical(part, room).then_some(address)
    }

    /// Whether it is the one that a CPU runs when there is no other: the only one with the thread ID 0.
    fn is_idle(&self, part: &[u8]) -> bool {
        part.get(self.tid as usize..).and_then(|rest| rest.first_chunk()) == Some(&[0; 4])
    }
}

impl LinuxPlan {
    fn is_between(&self, address: u64) -> bool {
        self.between.iter().any(|range| range.contains(&address))
    }

    /// Whether a core at this address waits for work; `None` if it is not in the kernel.
    fn waits(&self, address: u64) -> Option<bool> {
        self.range.contains(&address).then(|| self.idle.iter().any(|range| range.contains(&address)))
    }
}

/// A sample of a core that runs a guest of the guest, of which nothing is known: one frame.
pub(crate) fn nested(track: u32, state: CoreState) -> RawSample {
    let segment = Segment { space: SPACE, mode: Mode::Hypervisor, registers: state.registers, ..Default::default() };
    RawSample { track, segments: vec![segment], ..Default::default() }
}

impl CopyPlan {
    /// How samples get the task of a Linux, if they do.
    pub(crate) fn tasks(&self) -> Option<&TaskPlan> {
        self.linux.as_ref()?.tasks.as_ref()
    }

    /// Room for a sample.
    pub(crate) fn room(&self) -> Room {
        let touched = |bytes: u32| std::hint::black_box(vec![1; bytes as usize]);
        let tasks = self.tasks();
        Room {
            stack: touched(self.stack_bytes),
            user: touched(if tasks.is_some() { self.stack_bytes } else { 0 }),
            task: touched(tasks.map_or(0, |tasks| tasks.part.end - tasks.part.start)),
        }
    }

    /// Copies a sample of a core to `room`; time and pause are not known yet.
    pub(crate) fn sample(
        &self,
        index: usize,
        state: CoreState,
        core: &mut impl HeldCore,
        room: Room,
    ) -> Result<RawSample, GuestError> {
        let track = index as u32;
        if state.is_at_reset {
            return Ok(RawSample { track, state: State::NeverStarted, ..Default::default() });
        }
        let CoreState { registers, width, .. } = state;
        let Room { stack, user, task: mut part } = room;
        let mode = self.mode(&state);
        let task = self.tasks().and_then(|tasks| tasks.copy(index, core, &mut part));
        let segment =
            |registers: Registers, stack| Segment { space: SPACE, mode, width, registers, stack, ..Default::default() };
        if width != Width::Bits64 {
            let segments = vec![segment(registers, Vec::new())];
            return Ok(RawSample { track, state: self.state(core, index)?, segments, ..Default::default() });
        }
        let mut segments = Vec::with_capacity(2);
        let mut outer = registers;
        if state.is_privileged
            && self.cores.is_some()
            && let Registers::X86_64(service) = registers
            && let Some(caller) = self.caller_of_service(core, service)?
        {
            segments.push(segment(registers, Vec::new()));
            outer = caller.into();
        }
        // Without its files the stack of a guest's process cannot be unwound.
        let is_known = task.is_some() || self.linux.is_none() || self.has_image(registers.ip());
        let pieces = if mode == Mode::User && !is_known { Vec::new() } else { self.copy_stack(core, outer, stack)? };
        let waits = self.linux.as_ref().and_then(|linux| match (mode, &linux.tasks, task) {
            (Mode::User, ..) => Some(false),
            // Not on the stack of its interrupts.
            (_, Some(tasks), Some(_)) => Some(tasks.is_idle(&part) && pieces.len() < 2),
            _ => linux.waits(registers.ip()),
        });
        let skid = if core.is_exact() || !segments.is_empty() { Skid::None } else { skid(core, registers)? };
        let state = match waits {
            Some(true) => State::Idle,
            Some(false) => State::Running,
            None => self.state(core, index)?,
        };
        // What called the kernel.
        let is_between = self.linux.as_ref().is_some_and(|linux| linux.is_between(registers.ip()));
        let has_caller = task.is_some() && mode == Mode::Kernel && !is_between;
        let entry = Entry::of(&registers, self.tasks().map_or(0, |tasks| tasks.entry_bytes));
        let caller = if has_caller { stack::registers_of_user(&pieces, entry) } else { None };
        segments.push(segment(outer, pieces));
        if let Some(caller) = caller {
            let stack = self.copy_stack(core, caller, user)?;
            segments.push(Segment { mode: Mode::User, ..segment(caller, stack) });
        }
        if self.leaves_sleepers && state == State::Idle {
            // As those of a vCPU that was not stopped: no names are looked up for them.
            return Ok(RawSample { track, state, ..Default::default() });
        }
        let task = task.map(|address| RawTask { address, bytes: part });
        Ok(RawSample { track, state, skid, segments, task, ..Default::default() })
    }

    /// Whose code runs. An image of ours is kernel and service in one, whatever it may do.
    fn mode(&self, state: &CoreState) -> Mode {
        if self.cores.is_some() || state.is_privileged { Mode::Kernel } else { Mode::User }
    }

    fn has_image(&self, address: u64) -> bool {
        self.programs.iter().any(|range| range.contains(&address))
    }

    /// The pieces of memory that hold a stack.
    fn copy_stack(
        &self,
        core: &mut impl HeldCore,
        registers: Registers,
        mut stack: Vec<u8>,
    ) -> Result<Vec<(u64, Vec<u8>)>, GuestError> {
        let (start, bytes) = (registers.sp(), stack.len());
        let copied = match self.linux {
            // Its functions have no frame pointers that would show the end.
            Some(_) => core.read(start, &mut stack)?,
            None => {
                let read = |address, into: &mut [u8]| core.read(address, into);
                stack::copy((start, registers.fp()), &mut stack, read, |address| self.has_code(address))?
            }
        };
        stack.truncate(copied);
        let room = bytes - copied;
        let mut pieces = vec![(start, stack)];
        if self.linux.is_none() {
            return Ok(pieces);
        }
        let is_kernel = registers.ip() >> 63 == 1;
        let of_interrupt = |left: u64| (left, room.min(LEFT_STACK_BYTES_MAX));
        let other = match (registers, stack::left_stack(start, &pieces[0].1)) {
            (Registers::X86_64(_), Some(left)) => Some(of_interrupt(left)),
            // A stack of the kernel is one.
            (Registers::X86_64(_), None) if is_kernel => None,
            (Registers::Aarch64(_), _) if is_kernel => {
                by_frames(core, start, registers.fp(), &pieces[0].1)?.map(of_interrupt).filter(|(_, room)| *room > 0)
            }
            _ => by_frames(core, start, registers.fp(), &pieces[0].1)?.map(|left| (left, GOROUTINE_BYTES)),
        };
        if let Some((other, room)) = other {
            let mut bytes = vec![0; room];
            let copied = core.read(other, &mut bytes)?;
            bytes.truncate(copied);
            pieces.push((other, bytes));
        }
        Ok(pieces)
    }

    fn state(&self, core: &mut impl HeldCore, index: usize) -> Result<State, GuestError> {
        Ok(match self.activity(core, index)? {
            Some(formats::Activity::Idle) => State::Idle,
            Some(formats::Activity::Off) => State::NeverStarted,
            Some(formats::Activity::Spinning) => State::Spinning,
            Some(formats::Activity::Running) => State::Running,
            None if core.is_halted()? => State::Idle,
            None => State::Running,
        })
    }

    /// The state of a core that the guest reports; none for a core that it has not started.
    fn activity(&self, core: &mut impl HeldCore, index: usize) -> Result<Option<formats::Activity>, GuestError> {
        let Some(address) = self.core_state(index) else { return Ok(None) };
        let mut words = [0; CORE_STATE_READ];
        if core.read(address, &mut words)? < words.len() {
            return Ok(None);
        }
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        let activity = formats::Activity::from_word(word(formats::ACTIVITY_OFFSET as usize));
        Ok(activity.filter(|_| word(0) == formats::CORE_MAGIC))
    }

    /// Where the guest has the state of a core, of which [`CORE_STATE_READ`] bytes are read, if it is one of ours.
    pub(crate) fn core_state(&self, index: usize) -> Option<u64> {
        let cores = self.cores.filter(|_| index < formats::CORES_MAX)?;
        Some(cores.wrapping_add(index as u64 * formats::CORE_STATE_BYTES))
    }

    /// The addresses between which all code is, if a sample needs only a core's registers, its stack and its state: not of a Linux.
    pub(crate) fn code_of_simple_guest(&self) -> Option<Range<u64>> {
        let start = self.programs.iter().map(|range| range.start).min().filter(|_| self.linux.is_none())?;
        Some(start..self.programs.iter().map(|range| range.end).max()?)
    }

    fn has_code(&self, address: u64) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }

    /// Our images run in ring 3; ring 0 holds only services on a stack of their own, which return by
    /// `iret`. Finds the registers of the code in ring 3 that called one.
    fn caller_of_service(
        &self,
        core: &mut impl HeldCore,
        service: x86_64::Registers,
    ) -> Result<Option<x86_64::Registers>, GuestError> {
        const FRAME_WORDS: usize = 5;
        // An entry of the interrupt table pushes its number and, for exceptions, a code.
        const PUSHED_MAX: usize = 2;
        // The first frame is the service's own if an interrupt has just ended its halt.
        const FRAMES_MAX: usize = 2;
        let mut stack_pointer = service.rsp;
        for _ in 0..FRAMES_MAX {
            let mut bytes = [0; (PUSHED_MAX + FRAME_WORDS) * 8];
            let read = core.read(stack_pointer, &mut bytes)?;
            let words: [u64; PUSHED_MAX + FRAME_WORDS] =
                std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte])));
            let is_selector = |segment: u64, ring: u64| segment < 0x100 && segment & 3 == ring;
            // In ring 0 and in ring 3, the code and the stack are of one ring.
            let is_frame = |frame: &&[u64]| {
                [0, 3].into_iter().any(|ring| is_selector(frame[1], ring) && is_selector(frame[4], ring))
                    && self.has_code(frame[0])
            };
            let Some(&[rip, code_segment, _, rsp, _]) = words[..read / 8].windows(FRAME_WORDS).find(is_frame) else {
                break;
            };
            if is_selector(code_segment, 3) {
                // The service may have used the others.
                return Ok(Some(x86_64::Registers::new(rip, rsp, service.rbp)));
            }
            stack_pointer = rsp;
        }
        Ok(None)
    }
}

/// Where the frames of a copied stack continue on another.
fn by_frames(
    core: &mut impl HeldCore,
    start: u64,
    frame_pointer: u64,
    copied: &[u8],
) -> Result<Option<u64>, GuestError> {
    let Some(left) = stack::left_by_frames(start, frame_pointer, copied) else { return Ok(None) };
    let mut words = [0; 16];
    let is_frame = core.read(left, &mut words)? == words.len() && stack::is_frame(left, words);
    Ok(is_frame.then_some(left))
}

/// A return leaves its address below the stack pointer, or in the link register.
fn skid(core: &mut impl HeldCore, registers: Registers) -> Result<Skid, GuestError> {
    let has_returned = match registers {
        Registers::X86_64(registers) => {
            let mut left = [0; 8];
            let read = core.read(registers.rsp.wrapping_sub(8), &mut left)?;
            read == left.len() && u64::from_le_bytes(left) == registers.rip
        }
        Registers::Aarch64(registers) => registers.lr() == registers.pc,
    };
    Ok(Skid::NextBlock { has_returned, block: core.block_before() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::arch::x86_64::paging::Paging;

    /// A stack at this address.
    const STACK: u64 = 0x1000;

    struct Fake(Vec<u64>);

    impl AddressSpace for Fake {
        fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
            let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
            let there = bytes.get(address.wrapping_sub(STACK) as usize..).unwrap_or(&[]);
            let count = there.len().min(into.len());
            into[..count].copy_from_slice(&there[..count]);
            Ok(count)
        }
    }

    impl HeldCore for Fake {
        fn is_halted(&mut self) -> Result<bool, GuestError> {
            Ok(false)
        }
    }

    #[test]
    fn an_idle_core_has_no_stack_where_sleepers_are_left() {
        struct Halted;
        impl AddressSpace for Halted {
            fn read(&mut self, _address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
                Ok(into.len())
            }
        }
        impl HeldCore for Halted {
            fn is_halted(&mut self) -> Result<bool, GuestError> {
                Ok(true)
            }
        }
        let state = CoreState {
            registers: x86_64::Registers { rip: 0x20_0000, rsp: STACK, ..Default::default() }.into(),
            paging: Paging { cr0: 1, cr3: 0, cr4: 0, efer: None }.into(),
            width: Width::Bits64,
            is_privileged: true,
            is_at_reset: false,
            interrupt_table: None,
        };
        for (leaves_sleepers, segments) in [(false, 1), (true, 0)] {
            let plan = CopyPlan { leaves_sleepers, ..CopyPlan::default() };
            let sample = plan.sample(0, state, &mut Halted, plan.room()).unwrap();
            assert_eq!((sample.state, sample.segments.len()), (State::Idle, segments));
        }
    }

    /// Between its first instruction and its return, the stub of an interrupt has words of its own on the stack: such stacks were broken (2026-11-27).
    #[test]
    fn the_caller_of_a_service_is_found_at_each_instruction_of_an_interrupt() {
        let code = vec![0x20_0000..0x28_0000, 0x28_0000..0x30_0000];
        let plan = CopyPlan { cores: Some(1), code, ..CopyPlan::default() };
        let caller = [0x28_0000, 0x2b, 0x202, 0x7000, 0x23];
        // The service's own frame: `hlt` was interrupted, and the caller's frame is where its stack pointer was.
        let service = |pushed: u64| [0x20_1025, 0x8, 0x202, STACK + (pushed + 5) * 8, 0];
        let found = |stack: Vec<u64>| {
            let registers = x86_64::Registers::new(0x20_0ffa, STACK, 9);
            plan.caller_of_service(&mut Fake(stack), registers).unwrap()
        };
        let expected = Some(x86_64::Registers::new(0x28_0000, 0x7000, 9));
        for pushed in 0..=2u64 {
            let words: Vec<u64> = (0..pushed).map(|word| 0x20 + word).collect();
            assert_eq!(found([&words[..], &service(pushed), &caller].concat()), expected, "{pushed} words in front");
            assert_eq!(
                found([&words[..], &caller].concat()),
                expected,
                "{pushed} words in front, without an interrupt"
            );
        }
        // Too much in front, another ring for the stack, code that is none, a stack that ends.
        assert_eq!(found([&[0x20, 0x20, 0x20][..], &caller].concat()), None);
        assert_eq!(found(vec![0x28_0000, 0x2b, 0x202, 0x7000, 0x20]), None);
        assert_eq!(found(vec![0x38_0000, 0x2b, 0x202, 0x7000, 0x23]), None);
        assert_eq!(found(caller[..4].to_vec()), None);
        assert_eq!(found(Vec::new()), None);
    }

    const STACK_BYTES: u64 = 0x1000;
    const KERNEL: Range<u64> = 0xffff_ffff_8100_0000..0xffff_ffff_8200_0000;
    const KERNEL_STACK: u64 = 0xffff_c900_0000_4000;
    const USER_STACK: u64 = 0x7fff_0000_0000;
    const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
    const TASK: u64 = 0x5000;

    /// A vCPU of a Linux, which counts how often it is read from.
    #[derive(Default)]
    struct Counted {
        /// What of its kernel stack is in use, up to its end.
        kernel: Vec<u64>,
        tid: u32,
        reads: usize,
    }

    impl Counted {
        /// In a system call of a process, or in a thread of the kernel, whose stacks end without registers.
        fn in_kernel(is_call: bool) -> Counted {
            let mut kernel = vec![0x1111; (STACK_BYTES / 8) as usize];
            let at = kernel.len() - 5;
            if is_call {
                kernel[at..].copy_from_slice(&[0x40_1000, 0x33, 0x246, USER_STACK, 0x2b]);
            }
            Counted { kernel, tid: 7, reads: 0 }
        }

        /// The registers with which it is sampled.
        fn state(&self, is_privileged: bool) -> CoreState {
            let registers = match is_privileged {
                true => x86_64::Registers::new(KERNEL.start + 0x10, KERNEL_STACK - STACK_BYTES, 0),
                false => x86_64::Registers::new(0x40_1000, USER_STACK, 0),
            };
            let (width, paging) = (Width::Bits64, Paging::default());
            let (registers, paging) = (registers.into(), paging.into());
            CoreState { registers, paging, width, is_privileged, is_at_reset: false, interrupt_table: None }
        }
    }

    impl AddressSpace for Counted {
        fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
            self.reads += 1;
            let kernel: Vec<u8> = self.kernel.iter().flat_map(|word| word.to_le_bytes()).collect();
            let there = match address {
                USER_STACK.. if address < USER_STACK + STACK_BYTES => &[0x22; STACK_BYTES as usize][..],
                _ => kernel.get(address.wrapping_sub(KERNEL_STACK - STACK_BYTES) as usize..).unwrap_or(&[]),
            };
            let count = there.len().min(into.len());
            into[..count].copy_from_slice(&there[..count]);
            Ok(count)
        }
    }

    impl HeldCore for Counted {
        fn is_halted(&mut self) -> Result<bool, GuestError> {
            Ok(false)
        }

        fn read_physical(&mut self, address: u64, into: &mut [u8]) -> bool {
            self.reads += 1;
            match (address, into.len()) {
                (0x100, 8) => into.copy_from_slice(&(DIRECT_MAP + TASK).to_le_bytes()),
                (0x5010, _) => into[..4].copy_from_slice(&self.tid.to_le_bytes()),
                _ => return false,
            }
            true
        }
    }

    /// How a Linux is sampled.
    fn linux(tasks: Option<TaskPlan>) -> CopyPlan {
        let linux = LinuxPlan { range: KERNEL, tasks, ..LinuxPlan::default() };
        let programs = vec![KERNEL];
        CopyPlan { stack_bytes: STACK_BYTES as u32, programs, linux: Some(linux), ..CopyPlan::default() }
    }

    #[test]
    fn a_task_takes_at_most_three_reads_of_a_sample() {
        let (slots, direct_map) = (vec![0x100], DIRECT_MAP);
        let tasks = TaskPlan { slots, direct_map, part: 0x10..0x200, tid: 0, entry_bytes: 0 };
        let (with, without) = (linux(Some(tasks)), linux(None));
        let take = |plan: &CopyPlan, mut core: Counted, is_privileged: bool| {
            let state = core.state(is_privileged);
            let sample = plan.sample(0, state, &mut core, plan.room()).unwrap();
            (core.reads, sample)
        };
        // A thread of the kernel: the pointer and the task.
        let thread = || Counted::in_kernel(false);
        let ((before, _), (after, sample)) = (take(&without, thread(), true), take(&with, thread(), true));
        assert_eq!((after - before, sample.segments.len()), (2, 1));
        // A process: the stack too, which cannot be unwound without its files.
        let ((before, _), (after, sample)) = (take(&without, thread(), false), take(&with, thread(), false));
        assert_eq!((before, after, sample.segments[0].stack[0].1.len()), (0, 3, STACK_BYTES as usize));
        // Its system call: two stacks.
        let call = || Counted::in_kernel(true);
        let ((before, _), (after, sample)) = (take(&without, call(), true), take(&with, call(), true));
        assert_eq!((after - before, sample.segments.len(), sample.segments[1].mode), (3, 2, Mode::User));
        assert_eq!(sample.task.map(|task| (task.address, task.bytes.len())), Some((DIRECT_MAP + TASK, 0x1f0)));
        // Of a CPU that has no pointer nothing more is read.
        let plan = linux(Some(TaskPlan::default()));
        assert_eq!(take(&plan, thread(), true).0, take(&without, thread(), true).0);
    }
}
