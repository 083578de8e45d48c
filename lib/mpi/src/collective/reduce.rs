//! Reductions: trees for short buffers; of long ones each rank combines a piece of its own while it arrives.

use super::broadcast;
use crate::datatype::Datatype;
use crate::error::Error;
use crate::group::Communicator;
use crate::operation::{Fold, Operation};
use crate::plan::{Buffer, Plan};
use crate::send::EAGER_BYTES_MAX;
use crate::slab::Id;
use crate::sys::Memory;
use crate::world::World;
use alloc::rc::Rc;

/// From here on each rank combines a piece.
const PIECES_BYTES_MIN: usize = 32 << 10;

/// The function by which received bytes are combined while they arrive, if there is one.
fn fold_of(operation: &Operation, datatype: &Datatype) -> Option<Fold> {
    operation.fold(datatype).filter(|_| operation.commutes())
}

impl World {
    /// Combines the buffers of all ranks at the root. `from` is `None` at a root whose contribution is in `into`.
    pub fn reduce(
        &mut self,
        communicator: &Rc<Communicator>,
        from: Option<&Buffer>,
        into: Option<&Buffer>,
        operation: &Operation,
        root: usize,
    ) -> Result<(), Error> {
        let input = from.or(into).ok_or(Error::Buffer)?;
        if let (Some(memory), Some(fold)) = (short(input), fold_of(operation, &input.datatype)) {
            return self.direct_reduce(communicator, memory, into.and_then(Buffer::region), fold, root);
        }
        let id = self.start_reduce(communicator, from, into, operation, root)?;
        self.wait_collective(id)
    }

    /// Begins a reduction to the root.
    pub fn start_reduce(
        &mut self,
        communicator: &Rc<Communicator>,
        from: Option<&Buffer>,
        into: Option<&Buffer>,
        operation: &Operation,
        root: usize,
    ) -> Result<Id, Error> {
        let input = from.or(into).ok_or(Error::Buffer)?;
        operation.check(&input.datatype)?;
        let mut plan = Plan::new(communicator, Some(root), input.bytes());
        plan.set_reduction(operation, input);
        let own = plan.load(input);
        let result = match fold_of(operation, &input.datatype) {
            Some(fold) => fold_tree(&mut plan, own, into, fold, root),
            None => ordered_tree(&mut plan, own, root),
        };
        if let Some(into) = into.filter(|_| communicator.rank() == root) {
            plan.round();
            plan.store(result, into);
        }
        Ok(self.start_plan(plan))
    }

    /// Combines the buffers of all ranks at all. `from` is `None` where the contribution is in `into`.
    pub fn allreduce(
        &mut self,
        communicator: &Rc<Communicator>,
        from: Option<&Buffer>,
        into: &Buffer,
        operation: &Operation,
    ) -> Result<(), Error> {
        let input = from.unwrap_or(into);
        if let (Some(memory), Some(result), Some(fold)) =
            (short(input), into.region(), fold_of(operation, &input.datatype))
        {
            return self.direct_allreduce(communicator, memory, result, fold);
        }
        let id = self.start_allreduce(communicator, from, into, operation)?;
        self.wait_collective(id)
    }

    /// Begins a reduction to all ranks.
    pub fn start_allreduce(
        &mut self,
        communicator: &Rc<Communicator>,
        from: Option<&Buffer>,
        into: &Buffer,
        operation: &Operation,
    ) -> Result<Id, Error> {
        let input = from.unwrap_or(into);
        operation.check(&input.datatype)?;
        let mut plan = Plan::new(communicator, None, input.bytes());
        plan.set_reduction(operation, input);
        let own = plan.load(input);
        match fold_of(operation, &input.datatype) {
            Some(fold) if own.bytes() >= PIECES_BYTES_MIN && plan.size() > 1 => {
                let result = plan.place(into);
                pieces(&mut plan, own, result, fold);
                plan.round();
                plan.store(result, into);
            }
            fold => {
                let result = match fold {
                    Some(fold) => fold_tree(&mut plan, own, Some(into), fold, 0),
                    None => ordered_tree(&mut plan, own, 0),
                };
                plan.round();
                broadcast::tree(&mut plan, result, 0);
                plan.round();
                plan.store(result, into);
            }
        }
        Ok(self.start_plan(plan))
    }

    /// Combines the buffers of all ranks and leaves each rank the part of `counts[rank]` elements that is its own. `from` is `None`
    /// where the contribution is in `into`, whose beginning then gets the result.
    pub fn start_reduce_scatter(
        &mut self,
        communicator: &Rc<Communicator>,
        from: &Buffer,
        into: &Buffer,
        counts: &[usize],
        operation: &Operation,
    ) -> Result<Id, Error> {
        operation.check(&from.datatype)?;
        let mut plan = Plan::new(communicator, None, from.bytes());
        let (size, rank) = (plan.size(), plan.rank());
        let starts: alloc::vec::Vec<usize> =
            counts.iter().scan(0, |sum, n| Some(core::mem::replace(sum, *sum + n))).collect();
        match fold_of(operation, &from.datatype).filter(|_| from.region().is_some() && into.region().is_some()) {
            Some(fold) => {
                let own = plan.input(from);
                let each = from.datatype.size();
                let part = |of: usize| own.part(starts[of] * each, counts[of] * each);
                // Apart from the buffers: the result may lie over the input.
                let sum = plan.temporary(part(rank).bytes());
                plan.copy(part(rank), sum);
                for distance in 1..size {
                    let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
                    plan.receive_and_fold(from, sum, fold);
                    plan.send(to, part(to));
                }
                plan.round();
                plan.store(sum, into);
            }
            None => {
                plan.set_reduction(operation, from);
                let own = plan.load(from);
                let result = ordered_tree(&mut plan, own, 0);
                plan.round();
                let extent = from.datatype.extent() as usize;
                let part = |of: usize| {
                    let (_, bytes) = from.datatype.span(counts[of]);
                    result.part((starts[of] * extent).min(result.bytes()), bytes)
                };
                let mine = if rank == 0 { part(0) } else { plan.temporary(from.datatype.span(counts[rank]).1) };
                if rank == 0 {
                    (1..size).for_each(|other| plan.send(other, part(other)));
                } else {
                    plan.receive(0, mine);
                }
                plan.round();
                plan.store(mine, into);
            }
        }
        Ok(self.start_plan(plan))
    }
}

fn short(buffer: &Buffer) -> Option<Memory> {
    buffer.region().filter(|memory| memory.bytes() <= EAGER_BYTES_MAX)
}

/// Along a binomial tree to the root; what arrives is combined as it comes. Returns where the result is, at the root.
fn fold_tree(plan: &mut Plan, own: Memory, into: Option<&Buffer>, fold: Fold, root: usize) -> Memory {
    let (size, rank) = (plan.size(), plan.rank());
    let place = (rank + size - root) % size;
    if place & 1 == 1 {
        plan.send((rank + size - 1) % size, own);
        // Of an allreduce, the result comes here.
        return into.map_or(own, |into| plan.place(into));
    }
    let sum = match into {
        Some(into) => plan.place(into),
        None => plan.temporary(own.bytes()),
    };
    // The first buffer is received where the result will be, and ours is combined with it: ours is not copied.
    let mut has_own = own.address() == sum.address();
    let mut distance = 1;
    while distance < size {
        if place & distance != 0 {
            plan.send((rank + size - distance) % size, if has_own { sum } else { own });
            return sum;
        }
        if place + distance < size {
            let other = (rank + distance) % size;
            if has_own {
                plan.receive_and_fold(other, sum, fold);
                plan.round();
            } else {
                plan.receive(other, sum);
                plan.round();
                plan.combine(own, sum);
                has_own = true;
            }
        }
        distance *= 2;
    }
    if !has_own {
        plan.copy(own, sum);
    }
    sum
}

/// Along a binomial tree to rank 0 in the order of ranks, then to the root. Returns where the result is, at the root; rank 0 keeps it.
fn ordered_tree(plan: &mut Plan, own: Memory, root: usize) -> Memory {
    let (size, rank) = (plan.size(), plan.rank());
    let mut sum = plan.temporary(own.bytes());
    plan.copy(own, sum);
    let mut other = plan.temporary(own.bytes());
    let mut distance = 1;
    while distance < size {
        if rank & distance != 0 {
            plan.send(rank - distance, sum);
            break;
        }
        if rank + distance < size {
            plan.receive(rank + distance, other);
            plan.round();
            // Ours comes from lower ranks: it is the first operand, and the result is where the second was.
            plan.combine(sum, other);
            core::mem::swap(&mut sum, &mut other);
        }
        distance *= 2;
    }
    plan.round();
    if root != 0 {
        match rank {
            0 => plan.send(root, sum),
            _ if rank == root => plan.receive(0, sum),
            _ => {}
        }
    }
    sum
}

/// Each rank combines its piece of all buffers, then sends it to all.
fn pieces(plan: &mut Plan, own: Memory, result: Memory, fold: Fold) {
    let (size, rank) = (plan.size(), plan.rank());
    let mine = broadcast::piece(result, rank, size);
    plan.copy(broadcast::piece(own, rank, size), mine);
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        plan.receive_and_fold(from, mine, fold);
        plan.send(to, broadcast::piece(own, to, size));
    }
    plan.round();
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        plan.receive(from, broadcast::piece(result, from, size));
        plan.send(to, mine);
    }
}
