//! The 16550 at port 0x3f8, in a domain of Xen its console: what the boot and the crash report print on, when no other device is sure to work.
//!
//! A character may cost 28 us (an exit to the VMM), so a running service prints through virtio.

use crate::arch::ports::{read_port8, write_port_bytes, write_port8};
use crate::xen;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

const DATA: u16 = 0x3f8;
const LINE_STATUS: u16 = DATA + 5;
/// The bit for a transmitter that accepts a byte.
const TRANSMITTER_EMPTY: u8 = 0x20;
/// The value read from a port without a device.
const NO_DEVICE: u8 = 0xff;

/// Whether [`set_up`] was called. Most boots print nothing here.
static IS_SET_UP: AtomicBool = AtomicBool::new(false);

/// No interrupts, 8 bits, FIFO on.
fn set_up() {
    write_port8(DATA + 1, 0);
    write_port8(DATA + 3, 3);
    write_port8(DATA + 2, 7);
}

/// Collects a line so that printing it causes few exits.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Line {
    fn flush(&mut self) {
        if xen::is_domain() {
            xen::console::write(&self.bytes[..self.len]);
            self.len = 0;
            return;
        }
        if !IS_SET_UP.swap(true, Ordering::Relaxed) {
            set_up();
        }
        let status = read_port8(LINE_STATUS);
        if status != NO_DEVICE && status & TRANSMITTER_EMPTY != 0 {
            write_port_bytes(DATA, &self.bytes[..self.len]);
        }
        self.len = 0;
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.len == self.bytes.len() {
                self.flush();
            }
            self.bytes[self.len] = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// Prints one line.
pub fn print_line(text: fmt::Arguments) {
    let mut line = Line { bytes: [0; 256], len: 0 };
    // Writing to a `Line` cannot fail; a failing `Display` leaves a short line.
    let _ = writeln!(line, "{text}");
    line.flush();
}
