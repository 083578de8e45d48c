//! All-to-all: every rank sends every other its part, all at once.

use super::gather::shorter;
use crate::error::Error;
use crate::group::Communicator;
use crate::plan::{Buffer, Plan};
use crate::slab::Id;
use crate::sys::Memory;
use crate::world::World;
use alloc::rc::Rc;
use alloc::vec::Vec;

/// A buffer for each rank.
pub type Parts = Vec<Buffer>;

impl World {
    /// Begins to send part `i` of `from` to rank `i`, whose part of our rank it becomes. `from` is `None` where the parts of `into` are
    /// sent and replaced.
    pub fn start_alltoall(
        &mut self,
        communicator: &Rc<Communicator>,
        from: Option<&[Buffer]>,
        into: &[Buffer],
    ) -> Result<Id, Error> {
        let mut plan = Plan::new(communicator, None, into.get(communicator.rank()).map_or(0, Buffer::bytes));
        let (size, rank) = (plan.size(), plan.rank());
        let sent: Vec<Memory> = match from {
            Some(from) => from.iter().map(|part| plan.input(part)).collect(),
            None => into.iter().map(|part| kept(&mut plan, part)).collect(),
        };
        let places: Vec<Memory> = into.iter().map(|part| plan.output(part)).collect();
        for distance in 1..size {
            let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
            plan.receive(from, places[from]);
            plan.send(to, sent[to]);
        }
        if from.is_some() {
            plan.copy(shorter(sent[rank], places[rank])?, places[rank]);
        }
        plan.round();
        for (other, (place, part)) in places.iter().zip(into).enumerate() {
            if other != rank || from.is_some() {
                plan.deliver(*place, part);
            }
        }
        Ok(self.start_plan(plan))
    }
}

/// A copy of what a buffer holds, which may then be overwritten.
fn kept(plan: &mut Plan, part: &Buffer) -> Memory {
    let memory = plan.input(part);
    if part.region().is_none() {
        return memory;
    }
    let copy = plan.temporary(memory.bytes());
    copy.copy_from(&memory);
    copy
}
