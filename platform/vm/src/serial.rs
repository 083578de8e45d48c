//! The serial port: what the boot and the crash report print on, when no other device is sure to work.
//!
//! A character may cost 28 us (an exit to the VMM), so a running service prints through virtio.

use crate::arch::uart;
use core::fmt::{self, Write};

/// Collects a line so that printing it causes few exits.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Line {
    fn flush(&mut self) {
        uart::write(&self.bytes[..self.len]);
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
