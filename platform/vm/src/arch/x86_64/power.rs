//! The end of the VM.

use super::ports::{halt, write_port8, write_port32};
use crate::xen;
use glass_formats::Exit;

const DEBUG_EXIT_PORT: u16 = 0xf4;

/// Ends the VM.
pub fn end(how: Exit) -> ! {
    if xen::is_domain() {
        xen::shut_down(match how {
            Exit::Success | Exit::Error => xen::Reason::PowerOff,
            Exit::Panic | Exit::Exception => xen::Reason::Crash,
        });
    }
    write_port32(DEBUG_EXIT_PORT, how as u32);
    // No such device: request a reset from the keyboard controller, which ends QEMU with -no-reboot.
    write_port8(0x64, 0xfe);
    loop {
        halt();
    }
}
