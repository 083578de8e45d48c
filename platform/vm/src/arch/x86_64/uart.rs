//! The 16550 at port 0x3f8, in a domain of Xen its console.

use super::ports::{read_port8, write_port_bytes, write_port8};
use crate::xen;
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

/// Writes `bytes` with few exits; they are lost without such a device.
pub fn write(bytes: &[u8]) {
    if xen::is_domain() {
        return xen::console::write(bytes);
    }
    if !IS_SET_UP.swap(true, Ordering::Relaxed) {
        set_up();
    }
    let status = read_port8(LINE_STATUS);
    if status != NO_DEVICE && status & TRANSMITTER_EMPTY != 0 {
        write_port_bytes(DATA, bytes);
    }
}
