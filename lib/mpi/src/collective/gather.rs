//! Gather, scatter and allgather, with equal and unequal parts: every message goes straight to where it belongs.

use crate::error::Error;
use crate::group::Communicator;
use crate::plan::{Buffer, Plan};
use crate::slab::Id;
use crate::sys::Memory;
use crate::world::World;
use alloc::rc::Rc;
use alloc::vec::Vec;

impl World {
    /// Begins to collect a part of each rank at the root: `parts` are the root's buffers by rank. `from` is `None` at a root whose own
    /// part is in its place.
    pub fn start_gather(
        &mut self,
        communicator: &Rc<Communicator>,
        from: Option<&Buffer>,
        parts: &[Buffer],
        root: usize,
    ) -> Result<Id, Error> {
        let mut plan =
            Plan::new(communicator, Some(root), from.or(parts.get(communicator.rank())).map_or(0, Buffer::bytes));
        let rank = plan.rank();
        if rank != root {
            let own = plan.input(from.ok_or(Error::Buffer)?);
            plan.send(root, own);
            return Ok(self.start_plan(plan));
        }
        let places: Vec<Memory> = parts.iter().map(|part| plan.output(part)).collect();
        for (other, place) in places.iter().enumerate().filter(|(other, _)| *other != rank) {
            plan.receive(other, *place);
        }
        if let Some(from) = from {
            let own = plan.input(from);
            plan.copy(shorter(own, places[rank])?, places[rank]);
        }
        plan.round();
        for (other, (place, part)) in places.iter().zip(parts).enumerate() {
            if other != rank || from.is_some() {
                plan.deliver(*place, part);
            }
        }
        Ok(self.start_plan(plan))
    }

    /// Begins to give each rank its part of the root's: `parts` are the root's buffers by rank. `into` is `None` at a root that leaves
    /// its own part in its place.
    pub fn start_scatter(
        &mut self,
        communicator: &Rc<Communicator>,
        parts: &[Buffer],
        into: Option<&Buffer>,
        root: usize,
    ) -> Result<Id, Error> {
        let mut plan =
            Plan::new(communicator, Some(root), into.or(parts.get(communicator.rank())).map_or(0, Buffer::bytes));
        let rank = plan.rank();
        if rank == root {
            for (other, part) in parts.iter().enumerate() {
                let memory = plan.input(part);
                if other != rank {
                    plan.send(other, memory);
                } else if let Some(into) = into {
                    let place = plan.output(into);
                    plan.copy(shorter(memory, place)?, place);
                    plan.deliver(place, into);
                }
            }
        } else {
            let into = into.ok_or(Error::Buffer)?;
            let place = plan.output(into);
            plan.receive(root, place);
            plan.round();
            plan.deliver(place, into);
        }
        Ok(self.start_plan(plan))
    }

    /// Begins to collect a part of each rank at all: `parts` are the buffers by rank. `from` is `None` where the own part is in its place.
    pub fn start_allgather(
        &mut self,
        communicator: &Rc<Communicator>,
        from: Option<&Buffer>,
        parts: &[Buffer],
    ) -> Result<Id, Error> {
        let mut plan = Plan::new(communicator, None, parts.get(communicator.rank()).map_or(0, Buffer::bytes));
        let (size, rank) = (plan.size(), plan.rank());
        let own = plan.input(from.unwrap_or(&parts[rank]));
        let places: Vec<Memory> = parts.iter().map(|part| plan.output(part)).collect();
        for distance in 1..size {
            let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
            plan.receive(from, places[from]);
            plan.send(to, own);
        }
        if from.is_some() {
            plan.copy(shorter(own, places[rank])?, places[rank]);
        }
        plan.round();
        for (other, (place, part)) in places.iter().zip(parts).enumerate() {
            if other != rank || from.is_some() {
                plan.deliver(*place, part);
            }
        }
        Ok(self.start_plan(plan))
    }
}

/// What is copied inside of a rank: a longer one is an error as a message would be.
pub(super) fn shorter(from: Memory, to: Memory) -> Result<Memory, Error> {
    if from.bytes() > to.bytes() { Err(Error::Truncate) } else { Ok(from) }
}
