//! The PL011 that the device tree names (its technical reference manual, section 3.3).

use core::sync::atomic::{AtomicU64, Ordering};

const DATA: u64 = 0x00;
const FLAGS: u64 = 0x18;
/// The bit for a transmitter that accepts no byte.
const TRANSMIT_FULL: u32 = 1 << 5;
/// Reads of the flags for one byte. Emulated ones take each byte at once.
const READS_MAX: u32 = 100_000;

/// Address of its registers, 0 for none.
static ADDRESS: AtomicU64 = AtomicU64::new(0);

/// The registers at `address` are those of the port from now on.
///
/// # Safety
/// They are a PL011's, and stay mapped at this address.
pub unsafe fn place(address: u64) {
    ADDRESS.store(address, Ordering::Relaxed);
}

/// Writes `bytes`; they are lost without such a device.
pub fn write(bytes: &[u8]) {
    let address = ADDRESS.load(Ordering::Relaxed);
    if address == 0 {
        return;
    }
    // SAFETY: `place` has promised the registers, which touch no memory.
    let is_full = || unsafe { ((address + FLAGS) as *const u32).read_volatile() } & TRANSMIT_FULL != 0;
    for byte in bytes {
        let _ = (0..READS_MAX).find(|_| !is_full());
        // SAFETY: as above.
        unsafe { ((address + DATA) as *mut u32).write_volatile(u32::from(*byte)) };
    }
}
