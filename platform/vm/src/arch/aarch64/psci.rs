//! Requests to the firmware or the hypervisor about power (Arm DEN 0022, Power State Coordination Interface 1.1).

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

const SYSTEM_OFF: u64 = 0x8400_0008;
const CPU_ON: u64 = 0xc400_0003;

/// Requests are made by SMC, not by HVC.
static IS_BY_SMC: AtomicBool = AtomicBool::new(false);

/// How requests are made, from now on.
pub fn choose(is_by_smc: bool) {
    IS_BY_SMC.store(is_by_smc, Ordering::Relaxed);
}

/// # Safety
/// The request must leave the running code its memory.
unsafe fn request(function: u64, arguments: [u64; 3]) -> i64 {
    let [first, second, third] = arguments;
    let mut result = function;
    // SAFETY: by the SMC Calling Convention 1.1 registers from x4 on are preserved; the caller answers for the request.
    unsafe {
        if IS_BY_SMC.load(Ordering::Relaxed) {
            asm!("smc #0", inout("x0") result, inout("x1") first => _, inout("x2") second => _, inout("x3") third => _,
                options(nostack));
        } else {
            asm!("hvc #0", inout("x0") result, inout("x1") first => _, inout("x2") second => _, inout("x3") third => _,
                options(nostack));
        }
    }
    result as i64
}

/// Switches the machine off, if it can be.
pub fn off() {
    // SAFETY: nothing runs afterwards.
    let _ = unsafe { request(SYSTEM_OFF, [0; 3]) };
}

/// Starts the processor with this affinity at `entry`, which gets `context` in x0. An error if it is refused.
///
/// # Safety
/// `entry` must be code that can run there.
pub unsafe fn start(affinity: u32, entry: u64, context: u64) -> Result<(), i64> {
    // SAFETY: the caller vouches for the code.
    match unsafe { request(CPU_ON, [affinity.into(), entry, context]) } {
        0 => Ok(()),
        error => Err(error),
    }
}
