//! Prefix reductions: in round k each rank sends what it has combined to the one 2^k ahead.

use crate::error::Error;
use crate::group::Communicator;
use crate::operation::Operation;
use crate::plan::{Buffer, Plan};
use crate::slab::Id;
use crate::world::World;
use alloc::rc::Rc;

impl World {
    /// Begins to combine, at each rank, the buffers of all ranks up to it; without its own if `is_exclusive`, and then rank 0's result is
    /// left alone. `from` is `None` where the contribution is in `into`.
    pub fn start_scan(
        &mut self,
        communicator: &Rc<Communicator>,
        from: Option<&Buffer>,
        into: &Buffer,
        operation: &Operation,
        is_exclusive: bool,
    ) -> Result<Id, Error> {
        let input = from.unwrap_or(into);
        operation.check(&input.datatype)?;
        let mut plan = Plan::new(communicator, None, input.bytes());
        plan.set_reduction(operation, input);
        let (size, rank) = (plan.size(), plan.rank());
        let own = plan.load(input);
        // `sum` covers the ranks from one 2^k behind up to this one; `before` all ranks below this one that were heard of.
        let (mut sum, mut other) = (plan.temporary(own.bytes()), plan.temporary(own.bytes()));
        let mut before = None;
        plan.copy(own, sum);
        let mut distance = 1;
        while distance < size {
            if rank + distance < size {
                plan.send(rank + distance, sum);
            }
            if rank >= distance {
                plan.receive(rank - distance, other);
            }
            plan.round();
            if rank >= distance {
                let below = plan.temporary(own.bytes());
                plan.copy(other, below);
                before = Some(match before {
                    None => below,
                    // What came is from lower ranks than what was there.
                    Some(known) => {
                        plan.combine(below, known);
                        known
                    }
                });
                plan.combine(other, sum);
            }
            distance *= 2;
        }
        core::mem::swap(&mut sum, &mut other);
        match (is_exclusive, before) {
            (false, _) => plan.store(other, into),
            (true, Some(before)) => plan.store(before, into),
            (true, None) => {}
        }
        Ok(self.start_plan(plan))
    }
}
