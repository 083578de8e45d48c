//! The time of day: from the PL031 that the device tree names (its technical reference manual, section 3.3).

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use glass_api::{WallSource, WallTime};

/// Address of its registers, 0 for none. The first one has the seconds since 1970.
static ADDRESS: AtomicU64 = AtomicU64::new(0);

/// The registers at `address` are those of the clock from now on.
///
/// # Safety
/// They are a PL031's, and stay mapped at this address.
pub unsafe fn place(address: u64) {
    ADDRESS.store(address, Ordering::Relaxed);
}

/// The time of day; `None` if the machine has no clock for it.
pub fn read() -> Option<WallTime> {
    let address = ADDRESS.load(Ordering::Relaxed);
    if address == 0 {
        return None;
    }
    // SAFETY: `place` has promised the registers, which touch no memory.
    let secs = unsafe { (address as *const u32).read_volatile() };
    Some(WallTime { since_epoch: Duration::from_secs(secs.into()), source: WallSource::Rtc })
}
