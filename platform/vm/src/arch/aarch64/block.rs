//! The part of a core's block whose offsets boot.s has, and what else only this processor's cores need.

use super::fault::Fault;
use crate::cores::Core;
use core::cell::Cell;
use core::mem::offset_of;

/// It follows the words at the start of a [`Core`].
#[repr(C)]
pub struct Block {
    /// The ends of the stack of Rust code, and of the one on which it reports a fault. Below each is a page that is not mapped.
    pub stack_top: Cell<u64>,
    pub fault_stack_top: Cell<u64>,
    /// What boot.s saves at an exception.
    pub fault: Cell<Fault>,
    /// The interrupt that was acknowledged last, as the interrupt controller has it.
    pub acknowledged: Cell<u32>,
}

const START: usize = offset_of!(Core, arch);
const _: () = assert!(START + offset_of!(Block, stack_top) == 24 && START + offset_of!(Block, fault_stack_top) == 32);
const _: () = assert!(START + offset_of!(Block, fault) == 40);

impl Block {
    /// One of a core that was not prepared.
    pub const fn new() -> Block {
        Block {
            stack_top: Cell::new(0),
            fault_stack_top: Cell::new(0),
            fault: Cell::new(Fault::NONE),
            acknowledged: Cell::new(0),
        }
    }
}
