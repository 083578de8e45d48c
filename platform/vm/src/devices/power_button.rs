//! The power button: a press is a request to end.

use super::{Devices, EndRequests};
use crate::arch::pins::pin_of;
use crate::arch::ports::{read_port16, write_port8, write_port16};
use crate::drivers::Drivers;
use crate::interrupts::{Source, Trigger, Vectors};
use crate::machine::Machine;
use crate::machine::acpi::PowerButton;
use crate::memory::map_device;
use crate::serial::print_line;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::ToString;
use glass_drivers_device::{Driver, MmioRegisters, Registers, SetupError, Violation};

/// The button's bit in the fixed hardware's status and enable registers (ACPI 6.5, section 4.8.4.1).
const FIXED_BIT: u16 = 1 << 8;
/// The enable register is this many ports behind the status register.
const FIXED_ENABLE: u16 = 2;
/// The button's bit of QEMU's event device, and the length of its register.
const EVENT_BIT: u32 = 1 << 1;
const EVENT_BYTES: usize = 4;

/// Where a press is read, which takes it down.
enum Place {
    Fixed { events: u16 },
    Events(MmioRegisters),
}

struct Button {
    place: Place,
    end_requests: Rc<EndRequests>,
}

/// Adds the driver of the power button, if the machine has one.
pub fn start(machine: &Machine, vectors: &mut Vectors, drivers: &mut Drivers, devices: &mut Devices) {
    let Some(button) = machine.power_button else { return };
    let Some((place, mut interrupt)) = open(machine, button) else { return };
    let mut driver = Button { place, end_requests: devices.end_requests.clone() };
    match drivers.route(&mut *interrupt, vectors) {
        Ok(()) => {
            driver.enable();
            driver.acknowledge();
            drivers.add("power button".to_string(), Box::new(driver));
        }
        Err(error) => print_line(format_args!("the power button does not work: {error}")),
    }
}

fn open(machine: &Machine, button: PowerButton) -> Option<(Place, Box<dyn Source>)> {
    match button {
        PowerButton::Fixed { events, source, enable } => {
            // The old PC's interrupts are edges, but this one is a level wherever it is the fixed hardware's.
            let special = machine.overrides.iter().find(|special| special.source == source);
            let is_active_low = special.is_some_and(|special| special.is_active_low);
            let interrupt = special.map_or(u32::from(source), |special| special.interrupt);
            let pin = pin_of(machine, interrupt, Trigger::Level { is_active_low })?;
            if let Some((port, value)) = enable {
                write_port8(port, value);
            }
            Some((Place::Fixed { events }, pin))
        }
        PowerButton::Events { address, interrupt } => {
            let pin = pin_of(machine, interrupt, Trigger::Edge)?;
            map_device(address, address + EVENT_BYTES as u64).ok()?;
            // SAFETY: the register was just mapped one to one as a device, and this driver is its only user.
            Some((Place::Events(unsafe { MmioRegisters::new(address as usize, EVENT_BYTES) }), pin))
        }
    }
}

impl Button {
    /// Lets a press interrupt.
    fn enable(&mut self) {
        if let Place::Fixed { events } = self.place {
            write_port16(events, FIXED_BIT);
            write_port16(events + FIXED_ENABLE, FIXED_BIT);
        }
    }
}

impl Driver for Button {
    /// Looks only when the button interrupts: each look is an exit.
    fn poll(&mut self) -> bool {
        false
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn acknowledge(&mut self) {
        let is_pressed = match &mut self.place {
            Place::Fixed { events } => {
                let is_pressed = read_port16(*events) & FIXED_BIT != 0;
                // Writing the bit takes it down.
                write_port16(*events, FIXED_BIT);
                is_pressed
            }
            Place::Events(register) => register.read_u32(0) & EVENT_BIT != 0,
        };
        if is_pressed {
            self.end_requests.power_button.set(true);
        }
    }

    fn violation(&self) -> Option<Violation> {
        None
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        Ok(())
    }
}
