//! Interrupts that are writes of a device: to the frame that version 2 has for them (GICv2m, Arm Server Base System Architecture, appendix E), or to
//! the Interrupt Translation Service of version 3.

use super::distributor::Bank;
use super::{PRIORITY, its, pins, v2};
use crate::interrupts::{FIRST_VECTOR, Target};
use core::sync::atomic::{AtomicU64, Ordering};

/// Where devices' messages are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taker {
    /// A frame at this address.
    Frame(u64),
    /// A service at this address.
    Service(u64),
}

/// Registers of a frame: which interrupts it has, and where they are written to.
const TYPE: u64 = 0x008;
const SET: u64 = 0x040;

static FRAME: AtomicU64 = AtomicU64::new(0);

impl Taker {
    /// The registers that are used.
    pub fn registers(self) -> (u64, u64) {
        match self {
            Taker::Frame(address) => (address, address + 0x1000),
            Taker::Service(address) => (address, address + 0x1_0000),
        }
    }

    /// Lets it take messages. Its registers are mapped, and the controller is on.
    pub fn start(self) {
        match self {
            Taker::Frame(address) => FRAME.store(address, Ordering::Relaxed),
            Taker::Service(address) => its::start(address),
        }
    }
}

/// What a device writes, and where, to interrupt `target`. `device` is its place on the bus. `None` if there is nothing that takes it.
pub fn message(device: u16, target: Target) -> Option<(u64, u32)> {
    let number = u32::from(target.vector - FIRST_VECTOR);
    match FRAME.load(Ordering::Relaxed) {
        0 => its::message(device.into(), number),
        frame => of_frame(frame, number, target.vector),
    }
}

fn of_frame(frame: u64, number: u32, vector: u8) -> Option<(u64, u32)> {
    // SAFETY: the device tree has the address, and start.rs has mapped the registers.
    let kind = unsafe { Bank::new(frame) }.read(TYPE);
    let (first, count) = (kind >> 16 & 0x3ff, kind & 0x3ff);
    let interrupt = first + number;
    if number >= count || !pins::set_vector(interrupt, vector) {
        return None;
    }
    let distributor = v2::distributor();
    distributor.set_group_1(interrupt);
    distributor.set_priority(interrupt, PRIORITY);
    distributor.set_edge(interrupt, true);
    v2::route_here(interrupt);
    distributor.enable(interrupt);
    Some((frame + SET, interrupt))
}
