//! How the interrupts of devices come to a core: each source of them behind one trait, each driver's vectors in one table.
//!
//! A source is routed before its device may interrupt, and the driver acknowledges once after its device was started: so an
//! interrupt at any moment in between is either delivered or taken down, and none leaves a device deaf. From then on an interrupt that comes
//! while a core runs stays pending in its interrupt controller and ends the next halt.

mod messages;
#[cfg(test)]
mod tests;

pub use messages::Messages;
#[cfg(all(test, target_arch = "x86_64"))]
pub use tests::Window;

use alloc::vec::Vec;
use core::fmt;

/// Devices have the vectors from here on; below are exceptions and the timer.
pub const FIRST_VECTOR: u8 = 0x50;
/// The last vector of devices; above is the spurious one.
const LAST_VECTOR: u8 = 0xef;

/// Why a halt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The deadline was reached.
    Timer,
    /// An interrupt with this vector: it must be ended when its device has been acknowledged.
    Interrupt(u8),
    /// Another core has rung.
    Core,
    /// Something else; look at everything.
    Other,
}

/// When a pin interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// When its line rises.
    ///
    /// Right for a device that has its line to itself, although virtio-mmio drives a level: the line falls when its interrupt is
    /// acknowledged and rises anew with the next, and the queue is looked at after the acknowledgement. A level pin costs one more exit
    /// and, on some hosts, a second wake-up.
    Edge,
    /// As long as its line is up, or down if it is active when low: several devices may share it.
    Level {
        /// The line is active when low.
        is_active_low: bool,
    },
}

/// Where an interrupt arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The core, as its interrupt controller has it: the identifier of its local APIC on x86-64.
    pub processor: u8,
    /// Which of its vectors.
    pub vector: u8,
}

/// A device's interrupts, whatever carries them.
pub trait Source {
    /// How many the device has, at least one.
    fn count(&self) -> u16;

    /// Lets interrupt `index` arrive at `target` from now on. One that came earlier may be lost.
    fn route(&mut self, index: u16, target: Target);

    /// Lets interrupt `index` arrive nowhere.
    fn mask(&mut self, index: u16);
}

/// The device has more interrupts than there are vectors left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfVectors;

impl fmt::Display for OutOfVectors {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("there are no interrupt vectors left")
    }
}

/// A core's vectors, and which driver each belongs to.
pub struct Vectors {
    processor: u8,
    /// By vector, from [`FIRST_VECTOR`] on.
    owners: Vec<Option<usize>>,
}

impl Vectors {
    /// Those of the core whose interrupt controller has this identifier.
    pub fn new(processor: u8) -> Vectors {
        Vectors { processor, owners: Vec::new() }
    }

    /// Routes all interrupts of `source` here, on behalf of driver number `owner`.
    pub fn route(&mut self, source: &mut dyn Source, owner: usize) -> Result<(), OutOfVectors> {
        let free = usize::from(LAST_VECTOR - FIRST_VECTOR) + 1 - self.owners.len();
        if usize::from(source.count()) > free {
            return Err(OutOfVectors);
        }
        for index in 0..source.count() {
            let vector = FIRST_VECTOR + self.owners.len() as u8;
            self.owners.push(Some(owner));
            source.route(index, Target { processor: self.processor, vector });
        }
        Ok(())
    }

    /// Masks all interrupts of `source`, the last one that was routed for `owner`.
    pub fn release(&mut self, source: &mut dyn Source, owner: usize) {
        (0..source.count()).for_each(|index| source.mask(index));
        // One that is pending already arrives still, and has no owner.
        self.owners.iter_mut().filter(|of| **of == Some(owner)).for_each(|of| *of = None);
    }

    /// The driver that an interrupt with this vector belongs to.
    pub fn owner(&self, vector: u8) -> Option<usize> {
        *self.owners.get(usize::from(vector.checked_sub(FIRST_VECTOR)?))?
    }
}
