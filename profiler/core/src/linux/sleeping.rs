//! The kernel stack of a task that does not run: where it is, and the registers with which the task continues.

use super::btf::Btf;
use super::space::{Space, word};
use super::structures::pointer;
use super::tasks::Task;
use crate::arch::x86_64::{GENERAL, Registers};

/// Bytes of a kernel stack where the kernel does not say (`THREAD_SIZE`).
const STACK_BYTES: u32 = 16 << 10;
/// The most bytes of a kernel stack: those of kernels that check each access (KASAN) have 64 KiB.
const STACK_BYTES_MAX: u32 = 128 << 10;
/// The most bytes of the frame.
const FRAME_BYTES_MAX: u32 = 256;
/// The names and the DWARF numbers of the registers in the frame, and where they are in kernels from 4.9 to 7.3.
const SAVED: [(&str, usize, u32); 6] =
    [("r15", 15, 0), ("r14", 14, 8), ("r13", 13, 16), ("r12", 12, 24), ("bx", 3, 32), ("bp", 6, 40)];
const RETURN_ADDRESS: u32 = 48;
const FRAME_BYTES: u32 = 56;
const RSP: usize = 7;

/// Where the frame at the stack pointer (`struct inactive_task_frame`) has what is read of it, and how large stacks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    stack_bytes: u32,
    frame_bytes: u32,
    saved: [u32; SAVED.len()],
    return_address: u32,
}

impl Default for Offsets {
    fn default() -> Offsets {
        Offsets {
            stack_bytes: STACK_BYTES,
            frame_bytes: FRAME_BYTES,
            saved: SAVED.map(|(.., at)| at),
            return_address: RETURN_ADDRESS,
        }
    }
}

impl Offsets {
    /// From a kernel's types, and as usual where these do not have the structures.
    #[must_use]
    pub fn of(btf: &Btf<'_>) -> Offsets {
        let is_size = |bytes: &u32| bytes.is_power_of_two() && (4096..=STACK_BYTES_MAX).contains(bytes);
        let stack_bytes = btf.bytes_of("thread_union").filter(is_size).unwrap_or(STACK_BYTES);
        Offsets { stack_bytes, ..Offsets::of_frame(btf).unwrap_or_default() }
    }

    fn of_frame(btf: &Btf<'_>) -> Option<Offsets> {
        const FRAME: &str = "inactive_task_frame";
        let frame_bytes = btf.bytes_of(FRAME).filter(|bytes| (8..=FRAME_BYTES_MAX).contains(bytes))?;
        let at = |name| btf.member(FRAME, name).map(|member| member.offset).filter(|at| *at <= frame_bytes - 8);
        let mut saved = [0; SAVED.len()];
        for (place, (name, ..)) in saved.iter_mut().zip(SAVED) {
            *place = at(name)?;
        }
        Some(Offsets { stack_bytes: STACK_BYTES, frame_bytes, saved, return_address: at("ret_addr")? })
    }

    /// The address behind the stack of a task, of which the stack pointer is in it.
    #[must_use]
    pub fn top(&self, task: &Task) -> Option<u64> {
        let top = pointer(task.stack, 4096)?.checked_add(u64::from(self.stack_bytes))?;
        let frame = pointer(task.stack_pointer, 8)?;
        (frame >= task.stack && top.checked_sub(frame)? >= u64::from(self.frame_bytes)).then_some(top)
    }

    /// Copies the stack of a task from its stack pointer on. `None` if it has none, as of a task that has ended.
    pub fn copy(&self, space: &Space<'_>, task: &Task) -> Option<Vec<u8>> {
        let bytes = self.top(task)?.checked_sub(task.stack_pointer)?;
        space.bytes(task.stack_pointer, usize::try_from(bytes).ok()?)
    }

    /// The registers with which a task continues whose stack this is.
    #[must_use]
    pub fn registers(&self, task: &Task, stack: &[u8]) -> Option<Registers> {
        let mut general = [0; GENERAL];
        for (at, (_, number, _)) in self.saved.iter().zip(SAVED) {
            general[number] = word(stack, *at)?;
        }
        general[RSP] = task.stack_pointer.checked_add(u64::from(self.frame_bytes))?;
        Some(Registers::of_all(word(stack, self.return_address)?, general))
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!((offsets.stack_bytes, offsets.frame_bytes, offsets.return_address), (32 << 10, 64, 56));
        let mut task = Task::default();
        (task.stack, task.stack_pointer) = (0xffff_c900_0000_0000, 0xffff_c900_0000_7f00);
        assert_eq!(offsets.top(&task), Some(0xffff_c900_0000_8000));
        let stack: Vec<u8> = (0..8_u64).flat_map(u64::to_le_bytes).collect();
        let registers = offsets.registers(&task, &stack).unwrap();
        assert_eq!((registers.rip, registers.rsp, registers.rbp), (7, task.stack_pointer + 64, 6));
        assert_eq!(registers.general().map(|general| (general[3], general[15])), Some((5, 1)));
        assert_eq!(offsets.registers(&task, &stack[..60]), None);
        for wrong in [0xffff_c900_0000_7fc8, 0xffff_c8ff_ffff_fff8, 0xffff_c900_0000_8000, u64::MAX - 7, 0] {
            task.stack_pointer = wrong;
            assert_eq!(offsets.top(&task), None, "{wrong:#x}");
        }
        (task.stack, task.stack_pointer) = (0, 0xffff_c900_0000_7f00);
        assert_eq!(offsets.top(&task), None);
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
