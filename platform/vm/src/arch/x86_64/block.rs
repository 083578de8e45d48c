//! The part of a core's block whose offsets boot.s and program.s have, and what else only this processor's cores need.

use super::fault::Fault;
use crate::cores::Core;
use crate::program::Process;
use core::cell::{Cell, RefCell};
use core::mem::offset_of;

/// Entries of a core's table of segments: those of boot.s, and the core's own task state segment, which takes two.
pub const SEGMENTS: usize = 9;

/// It follows the words at the start of a [`Core`].
#[repr(C)]
pub struct Block {
    /// Where the CPU puts what it saves when it enters ring 0.
    pub ring0_stack_top: Cell<u64>,
    /// The ends of the stack of Rust code, and of the one on which it reports a fault. Below each is a page that is not mapped.
    pub stack_top: Cell<u64>,
    pub fault_stack_top: Cell<u64>,
    /// What LGDT loads: the table's last byte, then its address.
    pub segments_pointer: Cell<[u16; 5]>,
    /// What boot.s saves at an exception.
    pub fault: Cell<Fault>,
    /// While a C program runs here: the stack on which its system calls are answered, and the program's at a system call (program.s).
    pub kernel_stack: Cell<u64>,
    pub program_stack: Cell<u64>,
    /// The table of segments of a core that is not the boot core.
    pub segments: [Cell<u64>; SEGMENTS],
    /// The C program that runs here.
    pub program: RefCell<Option<Process>>,
}

const START: usize = offset_of!(Core, arch);
const _: () = assert!(START + offset_of!(Block, ring0_stack_top) == 24 && START + offset_of!(Block, stack_top) == 32);
const _: () = assert!(START + offset_of!(Block, fault_stack_top) == 40);
const _: () = assert!(START + offset_of!(Block, segments_pointer) == 48 && START + offset_of!(Block, fault) == 64);
const _: () =
    assert!(START + offset_of!(Block, kernel_stack) == 240 && START + offset_of!(Block, program_stack) == 248);

impl Block {
    /// One of a core that was not prepared.
    pub const fn new() -> Block {
        Block {
            ring0_stack_top: Cell::new(0),
            stack_top: Cell::new(0),
            fault_stack_top: Cell::new(0),
            segments_pointer: Cell::new([0; 5]),
            fault: Cell::new(Fault::NONE),
            kernel_stack: Cell::new(0),
            program_stack: Cell::new(0),
            segments: [const { Cell::new(0) }; SEGMENTS],
            program: RefCell::new(None),
        }
    }
}
