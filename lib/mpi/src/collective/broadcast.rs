//! Broadcast: a binomial tree; long ones to several ranks are scattered and gathered by all, so that all copy.

use crate::error::Error;
use crate::group::Communicator;
use crate::plan::{Buffer, Plan};
use crate::send::EAGER_BYTES_MAX;
use crate::slab::Id;
use crate::sys::Memory;
use crate::world::World;
use alloc::rc::Rc;

/// From here on, and from so many ranks on, all ranks take part in spreading a broadcast.
const SPREAD_BYTES_MIN: usize = 256 << 10;
const SPREAD_RANKS_MIN: usize = 4;

impl World {
    /// Copies the root's buffer to all.
    pub fn broadcast(&mut self, communicator: &Rc<Communicator>, buffer: &Buffer, root: usize) -> Result<(), Error> {
        if let Some(memory) = buffer.region().filter(|memory| memory.bytes() <= EAGER_BYTES_MAX) {
            return self.direct_broadcast(communicator, memory, root);
        }
        let id = self.start_broadcast(communicator, buffer, root);
        self.wait_collective(id)
    }

    /// Begins a broadcast.
    pub fn start_broadcast(&mut self, communicator: &Rc<Communicator>, buffer: &Buffer, root: usize) -> Id {
        let mut plan = Plan::new(communicator, Some(root), buffer.bytes());
        let is_root = plan.rank() == root;
        let memory = if is_root { plan.input(buffer) } else { plan.output(buffer) };
        if memory.bytes() >= SPREAD_BYTES_MIN && plan.size() >= SPREAD_RANKS_MIN {
            spread(&mut plan, memory, root);
        } else {
            tree(&mut plan, memory, root);
        }
        plan.round();
        if !is_root {
            plan.deliver(memory, buffer);
        }
        self.start_plan(plan)
    }
}

/// From the root along a binomial tree.
pub(super) fn tree(plan: &mut Plan, memory: Memory, root: usize) {
    let (size, rank) = (plan.size(), plan.rank());
    let place = (rank + size - root) % size;
    let mut distance = 1;
    while distance < size && place & distance == 0 {
        distance *= 2;
    }
    if place != 0 {
        plan.receive((rank + size - distance) % size, memory);
        plan.round();
    }
    while distance > 1 {
        distance /= 2;
        if place + distance < size {
            plan.send((rank + distance) % size, memory);
        }
    }
}

/// Piece `index` of `count` about equal ones, whose bounds are multiples of a line.
pub(super) fn piece(memory: Memory, index: usize, count: usize) -> Memory {
    let length = memory.bytes().div_ceil(count).next_multiple_of(64);
    let start = (index * length).min(memory.bytes());
    memory.part(start, length.min(memory.bytes() - start))
}

/// The root sends each rank its piece, and each sends its piece to all others.
fn spread(plan: &mut Plan, memory: Memory, root: usize) {
    let (size, rank) = (plan.size(), plan.rank());
    let others = (1..size).map(|distance| (rank + distance) % size);
    if rank == root {
        others.clone().for_each(|other| plan.send(other, piece(memory, other, size)));
        // Its own piece goes to the others straight away.
        others.for_each(|other| plan.send(other, piece(memory, root, size)));
        return;
    }
    let own = piece(memory, rank, size);
    plan.receive(root, own);
    plan.round();
    plan.receive(root, piece(memory, root, size));
    for other in others.filter(|other| *other != root) {
        plan.receive(other, piece(memory, other, size));
        plan.send(other, own);
    }
}
