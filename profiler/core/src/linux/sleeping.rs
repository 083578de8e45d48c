//! The kernel stack of a task that does not run: where it is, and the registers with which the task continues.

use super::space::{Space, word};
use super::structures::{Layout, pointer};
use super::tasks::Task;
use crate::arch::{Registers, aarch64, x86_64};

/// Bytes of a kernel stack where the kernel does not say (`THREAD_SIZE`).
const STACK_BYTES: u32 = 16 << 10;
/// The most bytes of a kernel stack: those of kernels that check each access (KASAN) have 64 KiB.
const STACK_BYTES_MAX: u32 = 128 << 10;
/// The most bytes of the frame.
const FRAME_BYTES_MAX: u32 = 256;
/// The most bytes of the registers of a process: AArch64's has 336, x86-64's 168.
const ENTRY_BYTES_MAX: u32 = 1024;
/// The names and the DWARF numbers of the registers in the frame, and where they are in kernels from 4.9 to 7.3.
const SAVED: [(&str, usize, u32); 6] =
    [("r15", 15, 0), ("r14", 14, 8), ("r13", 13, 16), ("r12", 12, 24), ("bx", 3, 32), ("bp", 6, 40)];
const RETURN_ADDRESS: u32 = 48;
const FRAME_BYTES: u32 = 56;
const RSP: usize = 7;

/// The first register in the `cpu_context` of AArch64 (`arch/arm64/include/asm/processor.h`), behind which are the others up to the frame pointer, the
/// stack pointer and the program counter; and bytes of all.
const FIRST_IN_TASK: usize = 19;
const IN_TASK_BYTES: usize = 13 * 8;

/// Where a task that does not run has its registers, and how large stacks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    stack_bytes: u32,
    registers: Saved,
    /// Bytes of the registers of a process that entered the kernel (`struct pt_regs`), if the types have them.
    entry_bytes: u32,
}

/// Where the registers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    /// In a frame at the stack pointer (`struct inactive_task_frame` of x86-64).
    OnStack(Frame),
    /// So far in the `task_struct` (AArch64).
    InTask(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    bytes: u32,
    saved: [u32; SAVED.len()],
    return_address: u32,
}

impl Default for Offsets {
    fn default() -> Offsets {
        Offsets { stack_bytes: STACK_BYTES, registers: Saved::OnStack(Frame::default()), entry_bytes: 0 }
    }
}

impl Default for Frame {
    fn default() -> Frame {
        Frame { bytes: FRAME_BYTES, saved: SAVED.map(|(.., at)| at), return_address: RETURN_ADDRESS }
    }
}

impl Offsets {
    /// From a kernel's types, and as usual where these do not have the structures.
    #[must_use]
    pub fn of(types: &dyn Layout) -> Offsets {
        let is_size = |bytes: &u32| bytes.is_power_of_two() && (4096..=STACK_BYTES_MAX).contains(bytes);
        let stack_bytes = types.bytes_of("thread_union").filter(is_size).unwrap_or(STACK_BYTES);
        let registers = match types.field("task_struct", "thread.cpu_context.x19") {
            Some(first) => Saved::InTask(first.at),
            None => Saved::OnStack(Frame::of(types).unwrap_or_default()),
        };
        let entry_bytes = types.bytes_of("pt_regs").filter(|bytes| *bytes <= ENTRY_BYTES_MAX).unwrap_or(0);
        Offsets { stack_bytes, registers, entry_bytes }
    }

    /// Bytes of the registers that the kernel has at the top of the stack of a process that entered it; 0 if they are not known.
    #[must_use]
    pub fn entry_bytes(&self) -> u32 {
        self.entry_bytes
    }

    /// The address behind the stack of a task, of which the stack pointer is in it.
    #[must_use]
    pub fn top(&self, task: &Task) -> Option<u64> {
        let top = pointer(task.stack, 4096)?.checked_add(u64::from(self.stack_bytes))?;
        let frame = pointer(task.stack_pointer, 8)?;
        let bytes = match self.registers {
            Saved::OnStack(Frame { bytes, .. }) => bytes,
            Saved::InTask(_) => 0,
        };
        (frame >= task.stack && top.checked_sub(frame)? >= u64::from(bytes)).then_some(top)
    }

    /// Copies the stack of a task from its stack pointer on. `None` if it has none, as of a task that has ended.
    pub fn copy(&self, space: &Space<'_>, task: &Task) -> Option<Vec<u8>> {
        let bytes = self.top(task)?.checked_sub(task.stack_pointer)?;
        space.bytes(task.stack_pointer, usize::try_from(bytes).ok()?)
    }

    /// The registers with which a task continues whose stack this is.
    #[must_use]
    pub fn registers(&self, space: &Space<'_>, task: &Task, stack: &[u8]) -> Option<Registers> {
        match self.registers {
            Saved::OnStack(frame) => Some(frame.registers(task, stack)?.into()),
            Saved::InTask(at) => {
                let saved = space.bytes(task.address.checked_add(u64::from(at))?, IN_TASK_BYTES)?;
                Some(in_task(&saved, space.address_bits())?.into())
            }
        }
    }
}

/// The registers in a `cpu_context`. The task continues where its last call returns to, so that is in the link register, too.
fn in_task(saved: &[u8], address_bits: u8) -> Option<aarch64::Registers> {
    let mut general = [0; aarch64::GENERAL];
    let (words, _) = saved.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    general[FIRST_IN_TASK..=aarch64::FP].iter_mut().zip(&mut words).for_each(|(register, word)| *register = word);
    let (sp, pc) = (words.next()?, words.next()?);
    general[aarch64::LR] = pc;
    Some(aarch64::Registers { pc, sp, general, address_bits })
}

impl Frame {
    fn of(types: &dyn Layout) -> Option<Frame> {
        const FRAME: &str = "inactive_task_frame";
        let bytes = types.bytes_of(FRAME).filter(|bytes| (8..=FRAME_BYTES_MAX).contains(bytes))?;
        let at = |name| types.field(FRAME, name).map(|field| field.at).filter(|at| *at <= bytes - 8);
        let mut saved = [0; SAVED.len()];
        for (place, (name, ..)) in saved.iter_mut().zip(SAVED) {
            *place = at(name)?;
        }
        Some(Frame { bytes, saved, return_address: at("ret_addr")? })
    }

    fn registers(&self, task: &Task, stack: &[u8]) -> Option<x86_64::Registers> {
        let mut general = [0; x86_64::GENERAL];
        for (at, (_, number, _)) in self.saved.iter().zip(SAVED) {
            general[number] = word(stack, *at)?;
        }
        general[RSP] = task.stack_pointer.checked_add(u64::from(self.bytes))?;
        Some(x86_64::Registers::of_all(word(stack, self.return_address)?, general))
    }
}

#[cfg(test)]
mod tests {
    use super::super::btf::Btf;
    use super::*;
    use glass_tests::btf::Builder;

    fn types(frame_bytes: u32, stack_bytes: u32) -> Vec<u8> {
        let mut kernel = Builder::new(0);
        kernel.other("long", 1 << 24, &[8, 64]);
        let names = ["r15", "r14", "r13", "r12", "bx", "bp", "ret_addr"];
        // One more word than usual, in front.
        let members: Vec<_> = (1..).zip(names).map(|(index, name)| (name, 1, index * 64)).collect();
        kernel.structure("inactive_task_frame", frame_bytes, 0, &members);
        kernel.other("thread_union", 5 << 24 | 1, &[stack_bytes, 0, 1, 0]);
        kernel.file()
    }

    #[test]
    fn the_frame_is_as_the_types_have_it() {
        let file = types(64, 32 << 10);
        let offsets = Offsets::of(&Btf::parse(&file, None).unwrap());
        let Saved::OnStack(frame) = offsets.registers else { panic!("{offsets:?}") };
        assert_eq!((offsets.stack_bytes, frame.bytes, frame.return_address), (32 << 10, 64, 56));
        let mut task = Task::default();
        (task.stack, task.stack_pointer) = (0xffff_c900_0000_0000, 0xffff_c900_0000_7f00);
        assert_eq!(offsets.top(&task), Some(0xffff_c900_0000_8000));
        let stack: Vec<u8> = (0..8_u64).flat_map(u64::to_le_bytes).collect();
        let registers = frame.registers(&task, &stack).unwrap();
        assert_eq!((registers.rip, registers.rsp, registers.rbp), (7, task.stack_pointer + 64, 6));
        assert_eq!(registers.general().map(|general| (general[3], general[15])), Some((5, 1)));
        assert_eq!(frame.registers(&task, &stack[..60]), None);
        for wrong in [0xffff_c900_0000_7fc8, 0xffff_c8ff_ffff_fff8, 0xffff_c900_0000_8000, u64::MAX - 7, 0] {
            task.stack_pointer = wrong;
            assert_eq!(offsets.top(&task), None, "{wrong:#x}");
        }
        (task.stack, task.stack_pointer) = (0, 0xffff_c900_0000_7f00);
        assert_eq!(offsets.top(&task), None);
    }

    #[test]
    fn registers_in_the_task() {
        let saved: Vec<u8> = (19..32_u64).flat_map(u64::to_le_bytes).collect();
        let registers = in_task(&saved, 39).unwrap();
        let general = [18, 19, 28, 29, 30].map(|number: usize| registers.general[number]);
        assert_eq!((general, registers.sp, registers.pc, registers.address_bits), ([0, 19, 28, 29, 31], 30, 31, 39));
        assert_eq!(in_task(&saved[8..], 39), None);
        let mut kernel = Builder::new(0);
        kernel.other("long", 1 << 24, &[8, 64]);
        kernel.structure("cpu_context", 104, 0, &[("x19", 1, 0), ("sp", 1, 11 * 64)]);
        kernel.structure("thread_struct", 128, 0, &[("cpu_context", 2, 64)]);
        kernel.structure("task_struct", 4096, 0, &[("thread", 3, 512)]);
        kernel.structure("pt_regs", 336, 0, &[]);
        let file = kernel.file();
        let offsets = Offsets::of(&Btf::parse(&file, None).unwrap());
        assert_eq!((offsets.registers, offsets.entry_bytes), (Saved::InTask(72), 336));
    }

    #[test]
    fn without_its_types_the_frame_is_as_usual() {
        let mut kernel = Builder::new(0);
        kernel.other("long", 1 << 24, &[8, 64]);
        assert_eq!(Offsets::of(&Btf::parse(&kernel.file(), None).unwrap()), Offsets::default());
        // Sizes that no kernel has.
        for (frame, stack) in [(4, 3 << 10), (1 << 20, 1 << 30)] {
            let file = types(frame, stack);
            assert_eq!(Offsets::of(&Btf::parse(&file, None).unwrap()), Offsets::default());
        }
    }
}
