//! Barriers by dissemination: in round k each rank signals the one 2^k ahead and awaits the one 2^k behind.

use crate::error::Error;
use crate::group::Communicator;
use crate::plan::Plan;
use crate::slab::Id;
use crate::sys::Memory;
use crate::world::World;
use alloc::rc::Rc;
use glass_formats::trace::MpiRole;

/// The most looks at the line of a signal between two looks at everything else.
const SIGNAL_POLLS_MAX: u32 = 32;

impl World {
    /// Waits until all ranks of the communicator are here. A signal is a line that one rank writes and one reads; its count continues over all
    /// barriers, because of two ranks that share several communicators both come to their barriers in the same order.
    pub fn barrier(&mut self, communicator: &Communicator) -> Result<(), Error> {
        let (size, rank) = (communicator.size(), communicator.rank());
        self.about_collective(MpiRole::Barrier, communicator, None, communicator.next_barrier(), 0);
        let mut distance = 1;
        while distance < size {
            let to = communicator.group().member((rank + distance) % size).ok_or(Error::Intern)?;
            let from = communicator.group().member((rank + size - distance) % size).ok_or(Error::Intern)?;
            self.signals[to].0 = self.signals[to].0.wrapping_add(1);
            self.segment.signal(self.rank, to).set(self.signals[to].0);
            self.signals[from].1 = self.signals[from].1.wrapping_add(1);
            self.await_signal(from)?;
            distance *= 2;
        }
        Ok(())
    }

    fn await_signal(&mut self, from: usize) -> Result<(), Error> {
        let wanted = self.signals[from].1;
        let mut fruitless = 0;
        loop {
            let signal = self.segment.signal(from, self.rank);
            for _ in 0..self.polls.min(SIGNAL_POLLS_MAX) {
                // The count may be ahead: the other rank may be in the next barrier already.
                if signal.get().wrapping_sub(wanted) as i32 >= 0 {
                    return Ok(());
                }
                core::hint::spin_loop();
            }
            if self.progress() {
                fruitless = 0;
            } else {
                fruitless += 1;
                self.pause(fruitless)?;
            }
        }
    }

    /// Begins a barrier; the request is done when all ranks have begun it.
    pub fn start_barrier(&mut self, communicator: &Rc<Communicator>) -> Id {
        let mut plan = Plan::new(communicator, None, 0);
        let (size, rank) = (plan.size(), plan.rank());
        let mut distance = 1;
        while distance < size {
            plan.send((rank + distance) % size, Memory::EMPTY);
            plan.receive((rank + size - distance) % size, Memory::EMPTY);
            plan.round();
            distance *= 2;
        }
        self.start_plan(plan)
    }
}
