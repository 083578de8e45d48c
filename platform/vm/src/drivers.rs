//! A core's list of drivers, and what its loop does with all of them: the one place that has them in turn.

use crate::bus::Found;
use crate::interrupts::{OutOfVectors, Source, Vectors};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use glass_api::Instant;
use glass_drivers_device::{Driver, Notice, SetupError, Violation};
use glass_drivers_virtio::Transport;

/// How often a device that broke is started again. One that breaks again and again is of no use to its service.
const RESTARTS_MAX: u8 = 1;

/// A driver that has a place in the list.
struct Entry {
    driver: Box<dyn Driver>,
    /// What people call the device.
    label: String,
    /// What the trace calls it.
    name: u32,
    restarts_left: u8,
    /// The device is broken, and that was reported.
    is_given_up: bool,
}

impl Entry {
    /// Why the device broke, if that was not handled yet.
    fn unhandled_violation(&self) -> Option<Violation> {
        self.driver.violation().filter(|_| !self.is_given_up)
    }
}

/// The drivers of a core. Their numbers are those of their places.
#[derive(Default)]
pub struct Drivers {
    entries: Vec<Entry>,
}

/// A core that can halt.
pub trait Halt {
    /// Halts until an interrupt comes; at once if one has come since the core last looked. The number of the driver whose interrupt it
    /// was, if it was one's.
    fn halt(&mut self) -> Option<usize>;

    /// The halt is over, because of the device with this name in the trace if it was one.
    fn woken(&mut self, device: Option<u32>);

    /// Lets the interrupt come again.
    fn end_of_interrupt(&mut self);
}

/// What became of a device that broke.
pub struct Broken<'a> {
    /// What people call it.
    pub label: &'a str,
    /// Why it broke.
    pub violation: Violation,
    /// Whether it runs again; `None` if that was not tried.
    pub restarted: Option<Result<(), SetupError>>,
}

impl fmt::Display for Broken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} broke: {}; ", self.label, self.violation)?;
        match self.restarted {
            Some(Ok(())) => write!(f, "it was started again, and its requests in flight have failed"),
            Some(Err(error)) => write!(f, "it is not used any more, because it cannot be started again: {error}"),
            None => write!(f, "it is not used any more, because it broke before"),
        }
    }
}

/// Why a device that was found is not driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartError {
    /// Its driver did not start it.
    Setup(SetupError),
    /// Its interrupts cannot be routed.
    OutOfVectors,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            StartError::Setup(error) => write!(f, "{error}"),
            StartError::OutOfVectors => write!(f, "{OutOfVectors}"),
        }
    }
}

impl Drivers {
    /// Adds a driver.
    pub fn add(&mut self, label: String, mut driver: Box<dyn Driver>) {
        let name = glass_lib_trace::intern(&label);
        driver.set_trace_name(name);
        self.entries.push(Entry { driver, label, name, restarts_left: RESTARTS_MAX, is_given_up: false });
    }

    /// Lets `build` start the device at `found` and adds its driver. Its interrupts are routed before: a device whose line is
    /// up already, or whose message is gone, would never interrupt again.
    pub fn start(
        &mut self,
        found: Found,
        vectors: &mut Vectors,
        build: impl FnOnce(Box<dyn Transport>) -> Result<(String, Box<dyn Driver>), SetupError>,
    ) -> Result<(), StartError> {
        let (owner, mut interrupts) = (self.entries.len(), found.interrupts);
        self.route(&mut *interrupts, vectors)?;
        match build(found.transport) {
            Ok((label, mut driver)) => {
                // It may have interrupted since: a line that is up is taken down, so that it can rise again.
                driver.acknowledge();
                self.add(label, driver);
                Ok(())
            }
            Err(error) => {
                vectors.release(&mut *interrupts, owner);
                Err(StartError::Setup(error))
            }
        }
    }

    /// Routes the interrupts of the next driver to be added.
    pub fn route(&self, interrupts: &mut dyn Source, vectors: &mut Vectors) -> Result<(), StartError> {
        vectors.route(interrupts, self.entries.len()).map_err(|OutOfVectors| StartError::OutOfVectors)
    }

    /// [`Driver::poll`] of each. Whether one had anything.
    pub fn poll(&mut self) -> bool {
        self.entries.iter_mut().fold(false, |any, entry| entry.driver.poll() | any)
    }

    /// [`Driver::kick`] of each. Whether that made work.
    pub fn kick(&mut self) -> bool {
        self.entries.iter_mut().fold(false, |any, entry| entry.driver.kick() | any)
    }

    /// [`Driver::has_work`] of any.
    pub fn has_work(&self) -> bool {
        self.entries.iter().any(|entry| entry.driver.has_work())
    }

    /// [`Driver::is_delivering`] of any.
    pub fn is_delivering(&self) -> bool {
        self.entries.iter().any(|entry| entry.driver.is_delivering())
    }

    /// The earliest [`Driver::deadline`].
    pub fn deadline(&mut self) -> Option<Instant> {
        self.entries.iter_mut().filter_map(|entry| entry.driver.deadline()).min()
    }

    /// [`Driver::announce`] of each.
    pub fn announce(&self, groups: u32) {
        self.entries.iter().for_each(|entry| entry.driver.announce(groups));
    }

    /// Arms all devices and halts, unless one has work already or was found to be broken, which [`Drivers::repair`] handles first: such a
    /// device may never interrupt again. Whether it halted.
    pub fn sleep(&mut self, core: &mut impl Halt) -> bool {
        let has_work = self.entries.iter_mut().fold(false, |any, entry| entry.driver.arm() | any);
        let has_work = has_work || self.entries.iter().any(|entry| entry.unhandled_violation().is_some());
        if !has_work {
            let owner = core.halt();
            let entry = owner.and_then(|index| self.entries.get_mut(index));
            core.woken(entry.as_ref().map(|entry| entry.name));
            if let Some(entry) = entry {
                entry.driver.acknowledge();
            }
            // Not before: a level that is still up would interrupt again.
            core.end_of_interrupt();
        }
        self.entries.iter_mut().for_each(|entry| entry.driver.disarm());
        !has_work
    }

    /// Reports what became of devices that are neither broken nor restarted: what people call each, and what became of it.
    pub fn take_notices(&mut self, mut report: impl FnMut(&str, Notice)) {
        for entry in &mut self.entries {
            if let Some(notice) = entry.driver.take_notice() {
                report(&entry.label, notice);
            }
        }
    }

    /// Starts devices that broke once more, and reports each.
    pub fn repair(&mut self, mut report: impl FnMut(&Broken)) {
        for entry in &mut self.entries {
            let Some(violation) = entry.unhandled_violation() else { continue };
            let restarted = entry.restarts_left.checked_sub(1).map(|left| {
                entry.restarts_left = left;
                entry.driver.restart()
            });
            match restarted {
                Some(Ok(())) => entry.driver.acknowledge(),
                _ => entry.is_given_up = true,
            }
            report(&Broken { label: &entry.label, violation, restarted });
        }
    }
}
