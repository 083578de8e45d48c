//! The stack of the VMM's code in a vCPU's thread, while that is outside of `KVM_RUN`: what the VMM does for the guest.

use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::event::{RawSample, Segment};
use glass_profiler_core::guest::{Mode, SpaceId};

use super::waiting::Waiting;
use crate::memory::{AddressSpace, ProcessSpace};
use crate::sys::RED_ZONE;
use crate::sys::arch::{self, ThreadRegisters};

/// The address space of the VMM in samples of a VM, whose own is number 0. [`Hosted`](crate::backends::hosted::Hosted) replaces it by that of the process.
pub(crate) const VMM_SPACE: SpaceId = SpaceId(1);
/// How much of its stack is copied: QEMU's and those of VMMs in Rust need some 4 KiB (2026-11-27).
const STACK_BYTES: usize = 24 << 10;

/// Copies the stack of a VMM's threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct VmmStacks {
    space: ProcessSpace,
}

impl VmmStacks {
    pub(super) fn of(pid: u32) -> VmmStacks {
        VmmStacks { space: ProcessSpace { pid } }
    }

    fn copy(mut self, stack_pointer: u64) -> Vec<(u64, Vec<u8>)> {
        let start = stack_pointer.wrapping_sub(RED_ZONE as u64);
        let mut stack = vec![0; STACK_BYTES];
        let copied = self.space.read(start, &mut stack).unwrap_or(0);
        stack.truncate(copied);
        vec![(start, stack)]
    }

    /// Puts what a stopped thread does for its vCPU in front of the vCPU's sample.
    pub(super) fn above(self, sample: RawSample, registers: &ThreadRegisters) -> RawSample {
        let Some(unwound) = arch::for_unwinding(registers) else { return sample };
        let stack = self.copy(arch::sp(registers));
        let user = Segment { space: VMM_SPACE, registers: unwound, stack, ..Default::default() };
        join(sample, user, arch::is_in_call(registers))
    }

    /// The same of a thread that sleeps in a system call, which is not stopped: of its registers two are known.
    pub(super) fn above_waiting(self, sample: RawSample, waiting: &Waiting) -> RawSample {
        let Some((stack_pointer, instruction_pointer)) = waiting.stack_and_instruction() else { return sample };
        let registers = Registers::new(instruction_pointer, stack_pointer, 0).into();
        let user = Segment { space: VMM_SPACE, registers, stack: self.copy(stack_pointer), ..Default::default() };
        join(sample, user, true)
    }
}

fn join(mut sample: RawSample, user: Segment, is_in_call: bool) -> RawSample {
    let kernel = is_in_call.then(|| Segment { space: VMM_SPACE, mode: Mode::Kernel, ..Default::default() });
    sample.segments.splice(0..0, kernel.into_iter().chain([user]));
    sample
}
