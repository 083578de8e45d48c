//! Version 3: its CPU interfaces are system registers, and a core's own interrupts are in its redistributor (GIC architecture specification,
//! chapter 12).

use super::PRIORITY_MASK;
use super::distributor::Bank;
use crate::arch::affinity;
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

/// Registers of the distributor.
mod register {
    pub const CONTROL: u64 = 0x0000;
    pub const ROUTES: u64 = 0x6000;
}
/// Both groups, and routes by affinity.
const CONTROL: u32 = 1 | 1 << 1 | 1 << 4;
/// The distributor has not seen the last write.
const IS_WRITING: u32 = 1 << 31;
/// Reads while it has not. Emulated ones have at once.
const READS_MAX: u32 = 100_000;

/// Registers of a redistributor; those of its interrupts follow 64 KiB on.
mod frame {
    pub const TYPE: u64 = 0x08;
    pub const AFFINITY: u64 = 0x0c;
    pub const WAKE: u64 = 0x14;
}
/// Where the registers of a redistributor's interrupts are in its own.
pub const INTERRUPTS_OFFSET: u64 = 0x1_0000;
/// In its type: it has twice as many registers; it is the last one.
const HAS_VIRTUAL: u32 = 1 << 1;
const IS_LAST: u32 = 1 << 4;
const FRAMES_BYTES: u64 = 0x2_0000;
/// Bytes of the registers of a redistributor.
pub const FRAMES_BYTES_MAX: u64 = 2 * FRAMES_BYTES;
/// In its register for waking: the processor sleeps; the redistributor does.
const PROCESSOR_SLEEPS: u32 = 1 << 1;
const SLEEPS: u32 = 1 << 2;

static DISTRIBUTOR: AtomicU64 = AtomicU64::new(0);
static REDISTRIBUTORS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Switches the distributor on. All registers are mapped.
pub fn start(distributor: u64, redistributors: (u64, u64)) {
    DISTRIBUTOR.store(distributor, Ordering::Relaxed);
    REDISTRIBUTORS[0].store(redistributors.0, Ordering::Relaxed);
    REDISTRIBUTORS[1].store(redistributors.1, Ordering::Relaxed);
    self::distributor().write(register::CONTROL, CONTROL);
    let _ = (0..READS_MAX).find(|_| self::distributor().read(register::CONTROL) & IS_WRITING == 0);
}

pub fn distributor() -> Bank {
    // SAFETY: the device tree has the address, and start.rs has mapped the registers.
    unsafe { Bank::new(DISTRIBUTOR.load(Ordering::Relaxed)) }
}

/// The registers of this core's own interrupts, after its redistributor was woken. `None` if it has none.
pub fn redistributor() -> Option<Bank> {
    let own = affinity();
    let mut address = REDISTRIBUTORS[0].load(Ordering::Relaxed);
    while address + FRAMES_BYTES <= REDISTRIBUTORS[1].load(Ordering::Relaxed) {
        // SAFETY: as for `distributor`; of the region those are mapped that exist, and the last one ends the loop.
        let bank = unsafe { Bank::new(address) };
        let kind = bank.read(frame::TYPE);
        if bank.read(frame::AFFINITY) == own {
            bank.write(frame::WAKE, bank.read(frame::WAKE) & !PROCESSOR_SLEEPS);
            let _ = (0..READS_MAX).find(|_| bank.read(frame::WAKE) & SLEEPS == 0);
            // SAFETY: the registers that follow.
            return Some(unsafe { Bank::new(address + INTERRUPTS_OFFSET) });
        }
        if kind & IS_LAST != 0 {
            break;
        }
        address += if kind & HAS_VIRTUAL != 0 { FRAMES_BYTES_MAX } else { FRAMES_BYTES };
    }
    None
}

/// Lets interrupts arrive at this core.
pub fn start_interface() {
    // SAFETY: registers of the CPU interface, which touch no memory: ICC_SRE_EL1, ICC_PMR_EL1, ICC_IGRPEN0_EL1, ICC_IGRPEN1_EL1.
    unsafe {
        asm!("msr s3_0_c12_c12_5, {}", "isb", "msr s3_0_c4_c6_0, {}", "msr s3_0_c12_c12_6, {2}", "msr s3_0_c12_c12_7, {2}", "isb",
            in(reg) 7_u64, in(reg) u64::from(PRIORITY_MASK), in(reg) 1_u64, options(nostack));
    }
}

/// Lets an interrupt that all cores share arrive at this one.
pub fn route_here(interrupt: u32) {
    distributor().write_u64(register::ROUTES + u64::from(interrupt) * 8, affinity().into());
}

pub fn send(processor: u32, interrupt: u32) {
    let [cluster_1, cluster_2] = [processor >> 8 & 0xff, processor >> 16 & 0xff].map(u64::from);
    let request = 1 << (processor & 0xf) | cluster_1 << 16 | u64::from(interrupt) << 24 | cluster_2 << 32;
    // SAFETY: interrupts another core. What was written for it before is visible first. ICC_SGI0R_EL1 and ICC_SGI1R_EL1 are those of the groups.
    unsafe {
        match interrupt {
            super::STOP => asm!("dsb ish", "msr s3_0_c12_c11_7, {}", "isb", in(reg) request, options(nostack)),
            _ => asm!("dsb ish", "msr s3_0_c12_c11_5, {}", "isb", in(reg) request, options(nostack)),
        }
    }
}

pub fn acknowledge() -> u32 {
    let acknowledged: u64;
    // SAFETY: reads ICC_IAR1_EL1.
    unsafe { asm!("mrs {}, s3_0_c12_c12_0", "dsb sy", out(reg) acknowledged, options(nostack)) };
    acknowledged as u32
}

pub fn end(acknowledged: u32) {
    // SAFETY: writes ICC_EOIR1_EL1.
    unsafe { asm!("msr s3_0_c12_c12_1, {}", in(reg) u64::from(acknowledged), options(nostack)) };
}
