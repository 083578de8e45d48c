//! Plans: a collective operation as steps in rounds, so that it moves on while the program does something else.

use crate::datatype::Datatype;
use crate::group::Communicator;
use crate::operation::{Fold, Operation};
use crate::sys::{Base, Memory, Staging};
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Elements in a buffer of the program.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// Where the first begins.
    pub base: Base,
    /// How many.
    pub count: usize,
    /// Their type.
    pub datatype: Rc<Datatype>,
}

impl Buffer {
    /// Bytes of data.
    pub fn bytes(&self) -> usize {
        self.datatype.size() * self.count
    }

    /// Its memory, if the elements follow each other without gaps.
    #[inline]
    pub fn region(&self) -> Option<Memory> {
        self.datatype.region(self.base, self.count)
    }

    /// The `count` elements from element `first` on.
    pub fn part(&self, first: usize, count: usize) -> Buffer {
        let base = self.base.at(first as isize * self.datatype.extent());
        Buffer { base, count, datatype: Rc::clone(&self.datatype) }
    }
}

/// A step of a plan. Ranks are those of the communicator.
#[derive(Debug)]
pub(crate) enum Step {
    Send {
        to: usize,
        memory: Memory,
    },
    Receive {
        from: usize,
        memory: Memory,
        fold: Option<Fold>,
    },
    /// What follows waits for all messages before.
    Round,
    Copy {
        from: Memory,
        to: Memory,
    },
    /// The first with the second, into the second.
    Combine {
        first: Memory,
        second: Memory,
    },
    Unpack {
        memory: Memory,
        buffer: Buffer,
    },
    /// From the layout of a reduction.
    Store {
        memory: Memory,
        buffer: Buffer,
    },
}

/// A collective operation in progress.
#[derive(Debug)]
pub(crate) struct Plan {
    pub communicator: Rc<Communicator>,
    pub context: u32,
    pub tag: i32,
    pub steps: Vec<Step>,
    pub next: usize,
    pub waiting: Vec<u32>,
    pub staging: Vec<Staging>,
    pub reduction: Option<(Operation, Rc<Datatype>, usize)>,
    pub root: Option<usize>,
    pub bytes: usize,
}

impl Plan {
    /// The next collective operation of the communicator, without steps. The root and the bytes of one rank's part are what a trace shows.
    pub fn new(communicator: &Rc<Communicator>, root: Option<usize>, bytes: usize) -> Plan {
        let (context, tag) = communicator.next_collective();
        let communicator = Rc::clone(communicator);
        let (steps, waiting, staging) = (Vec::new(), Vec::new(), Vec::new());
        Plan { communicator, context, tag, steps, next: 0, waiting, staging, reduction: None, root, bytes }
    }

    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    pub fn send(&mut self, to: usize, memory: Memory) {
        self.steps.push(Step::Send { to, memory });
    }

    pub fn receive(&mut self, from: usize, memory: Memory) {
        self.steps.push(Step::Receive { from, memory, fold: None });
    }

    /// Receives and combines what comes with what is there.
    pub fn receive_and_fold(&mut self, from: usize, memory: Memory, fold: Fold) {
        self.steps.push(Step::Receive { from, memory, fold: Some(fold) });
    }

    pub fn round(&mut self) {
        self.steps.push(Step::Round);
    }

    pub fn copy(&mut self, from: Memory, to: Memory) {
        if from.bytes() > 0 && from.address() != to.address() {
            self.steps.push(Step::Copy { from, to });
        }
    }

    pub fn combine(&mut self, first: Memory, second: Memory) {
        self.steps.push(Step::Combine { first, second });
    }

    /// Memory of the plan.
    pub fn temporary(&mut self, bytes: usize) -> Memory {
        let staging = Staging::new(bytes);
        let memory = staging.memory();
        self.staging.push(staging);
        memory
    }

    /// The data of a buffer, packed if it has gaps.
    pub fn input(&mut self, buffer: &Buffer) -> Memory {
        buffer.region().unwrap_or_else(|| {
            let mut packed = Vec::with_capacity(buffer.bytes());
            buffer.datatype.pack(buffer.base, buffer.count, &mut packed);
            let memory = self.temporary(packed.len());
            memory.write(0, &packed);
            memory
        })
    }

    /// Memory for data that [`Plan::deliver`] puts into a buffer.
    pub fn output(&mut self, buffer: &Buffer) -> Memory {
        buffer.region().unwrap_or_else(|| self.temporary(buffer.bytes()))
    }

    /// Unpacks what came, if the buffer has gaps. After a round.
    pub fn deliver(&mut self, memory: Memory, buffer: &Buffer) {
        if buffer.region().is_none() {
            self.steps.push(Step::Unpack { memory, buffer: buffer.clone() });
        }
    }

    /// What [`Plan::combine`] does to memory in the layout of this buffer.
    pub fn set_reduction(&mut self, operation: &Operation, buffer: &Buffer) {
        self.reduction = Some((operation.clone(), Rc::clone(&buffer.datatype), buffer.count));
    }

    /// The elements of a buffer in the layout of a reduction: with the gaps of their type.
    pub fn load(&mut self, buffer: &Buffer) -> Memory {
        buffer.region().unwrap_or_else(|| {
            let (start, bytes) = buffer.datatype.span(buffer.count);
            let memory = self.temporary(bytes);
            let mut packed = Vec::with_capacity(buffer.bytes());
            buffer.datatype.pack(buffer.base, buffer.count, &mut packed);
            unpack_into(&packed, memory, start, buffer);
            memory
        })
    }

    /// Memory for the elements of a buffer in the layout of a reduction; its own if that has no gaps.
    pub fn place(&mut self, buffer: &Buffer) -> Memory {
        buffer.region().unwrap_or_else(|| self.temporary(buffer.datatype.span(buffer.count).1))
    }

    /// Puts elements in the layout of a reduction into a buffer.
    pub fn store(&mut self, memory: Memory, buffer: &Buffer) {
        match buffer.region() {
            Some(region) => self.copy(memory, region),
            None => self.steps.push(Step::Store { memory, buffer: buffer.clone() }),
        }
    }

    pub fn run_local(&self, step: &Step) {
        match step {
            Step::Copy { from, to } => to.copy_from(from),
            Step::Combine { first, second } => {
                if let Some((operation, datatype, count)) = &self.reduction {
                    let (mut first, mut second) = (*first, *second);
                    let count = (*count).min(if datatype.size() == 0 { 0 } else { *count });
                    operation.combine(first.as_mut_slice(), second.as_mut_slice(), count, datatype);
                }
            }
            Step::Unpack { memory, buffer } => buffer.datatype.unpack(memory.as_slice(), buffer.base, buffer.count),
            Step::Store { memory, buffer } => {
                let start = buffer.datatype.span(buffer.count).0;
                let mut packed = Vec::with_capacity(buffer.bytes());
                buffer.datatype.pack(base_of(*memory, start), buffer.count, &mut packed);
                buffer.datatype.unpack(&packed, buffer.base, buffer.count);
            }
            Step::Send { .. } | Step::Receive { .. } | Step::Round => {}
        }
    }
}

/// The base at which elements whose span begins at `start` lie in `memory`.
fn base_of(memory: Memory, start: isize) -> Base {
    memory.base().at(-start)
}

fn unpack_into(packed: &[u8], memory: Memory, start: isize, buffer: &Buffer) {
    buffer.datatype.unpack(packed, base_of(memory, start), buffer.count);
}
