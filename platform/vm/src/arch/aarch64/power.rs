//! The end of the VM.

use super::{halt, psci, uart};
use glass_formats::Exit;

/// Ends the VM. The machine has no device for the exit code, so that goes over the serial port.
pub fn end(how: Exit) -> ! {
    uart::write(&how.announcement());
    psci::off();
    loop {
        halt();
    }
}
