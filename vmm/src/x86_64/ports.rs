//! I/O ports: a serial port, on which the boot and crash reports are printed, and the port by which the image ends the VM.

use std::io::{self, Write};

/// A 16550 at the address of the first serial port of a PC.
const SERIAL: u16 = 0x3f8;
const SERIAL_LAST: u16 = SERIAL + 7;
const LINE_STATUS: u16 = SERIAL + 5;
/// The transmitter has room, and has sent all.
const CAN_SEND: u8 = 0x60;
/// QEMU's `isa-debug-exit`.
const EXIT: u16 = 0xf4;
/// Read where nothing is.
const NOTHING: u8 = 0xff;

/// What a write to a port does.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// No more than that.
    Done,
    /// The guest ends the VM; the status is the one that QEMU would exit with.
    End(i32),
}

/// Writes bytes, one after the other, to a port; text goes to `output`.
///
/// # Errors
/// The text cannot be printed.
pub fn write(port: u16, bytes: &[u8], mut output: impl Write) -> io::Result<Written> {
    match port {
        SERIAL => {
            output.write_all(bytes)?;
            output.flush()?;
        }
        EXIT => {
            let code = bytes.iter().take(4).rev().fold(0_u32, |code, byte| code << 8 | u32::from(*byte));
            return Ok(Written::End((code << 1 | 1) as i32 & 0xff));
        }
        _ => {}
    }
    Ok(Written::Done)
}

/// Reads a port.
pub fn read(port: u16, bytes: &mut [u8]) {
    bytes.fill(match port {
        LINE_STATUS => CAN_SEND,
        SERIAL..=SERIAL_LAST => 0,
        _ => NOTHING,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_serial_port_prints_and_the_other_one_ends() {
        let mut text = Vec::new();
        assert_eq!(write(SERIAL, b"a line\n", &mut text).unwrap(), Written::Done);
        assert_eq!(write(SERIAL + 1, b"x", &mut text).unwrap(), Written::Done);
        assert_eq!(text, b"a line\n");
        // glass_formats::Exit::Success, as a byte and as a double word.
        assert_eq!(write(EXIT, &[16], &mut text).unwrap(), Written::End(33));
        assert_eq!(write(EXIT, &[17, 0, 0, 0], &mut text).unwrap(), Written::End(35));
        assert_eq!(write(EXIT, &[0xff; 8], &mut text).unwrap(), Written::End(255));
        let read = |port| {
            let mut bytes = [1; 2];
            super::read(port, &mut bytes);
            bytes[1]
        };
        assert_eq!([LINE_STATUS, SERIAL, 0x40, 0xf4].map(read), [0x60, 0, 0xff, 0xff]);
    }
}
