//! Interrupts that all cores share: one a device, by a line that it raises and lowers.

use super::distributor::Bank;
use super::{PRIORITY, SPECIAL, is_v3, v2, v3};
use crate::interrupts::{Source, Target, Trigger};
use crate::machine::Machine;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU8, Ordering};

/// Number of the first such interrupt.
const FIRST: u32 = 32;

/// By interrupt: the vector that it was routed to, 0 for none.
static ROUTES: [AtomicU8; SPECIAL as usize] = [const { AtomicU8::new(0) }; SPECIAL as usize];

/// The vector to which `interrupt` was routed.
pub fn vector_of(interrupt: u32) -> Option<u8> {
    let vector = ROUTES.get(interrupt as usize)?.load(Ordering::Relaxed);
    (vector != 0).then_some(vector)
}

/// Notes the vector to which `interrupt` is routed; whether there can be such an interrupt.
pub fn set_vector(interrupt: u32, vector: u8) -> bool {
    let route = ROUTES.get(interrupt as usize).filter(|_| interrupt >= FIRST);
    route.inspect(|route| route.store(vector, Ordering::Relaxed)).is_some()
}

/// A line, which is an interrupt source of one interrupt.
struct Line {
    distributor: Bank,
    interrupt: u32,
    is_edge: bool,
}

/// The line with number `interrupt`; `None` if there can be no such line.
pub fn pin_of(_: &Machine, interrupt: u32, trigger: Trigger) -> Option<Box<dyn Source>> {
    let distributor = if is_v3() { v3::distributor() } else { v2::distributor() };
    let line = Line { distributor, interrupt, is_edge: trigger == Trigger::Edge };
    (FIRST..SPECIAL).contains(&interrupt).then(|| Box::new(line) as Box<dyn Source>)
}

impl Source for Line {
    fn count(&self) -> u16 {
        1
    }

    fn route(&mut self, _index: u16, target: Target) {
        set_vector(self.interrupt, target.vector);
        self.distributor.set_group_1(self.interrupt);
        self.distributor.set_priority(self.interrupt, PRIORITY);
        self.distributor.set_edge(self.interrupt, self.is_edge);
        if is_v3() {
            v3::route_here(self.interrupt)
        } else {
            v2::route_here(self.interrupt)
        }
        self.distributor.enable(self.interrupt);
    }

    fn mask(&mut self, _index: u16) {
        self.distributor.disable(self.interrupt);
    }
}
