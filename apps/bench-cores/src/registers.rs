//! Two ways to the data of the core that runs, in a VM. In a process neither exists, and the caller must not request them there.
#![allow(unsafe_code)]

use core::arch::asm;
use core::hint::black_box;
use glasshouse::Platform;

const REPETITIONS: u32 = 20_000;
/// The local APIC's register with its identifier, which our images map.
const LOCAL_APIC_ID: usize = 0xfee0_0020;

/// Nanoseconds of each, without the loop's.
pub fn read(platform: &impl Platform) -> [f64; 2] {
    let empty = measure(platform, || 0);
    let gs = measure(platform, || {
        let word: u64;
        // SAFETY: in an image, %gs points to the core's block, whose first word is there.
        unsafe { asm!("mov {}, gs:[0]", out(reg) word, options(nostack, preserves_flags, readonly)) };
        word
    });
    let apic = measure(platform, || {
        // SAFETY: an image maps the register, and reading it has no effect.
        u64::from(unsafe { core::ptr::with_exposed_provenance::<u32>(LOCAL_APIC_ID).read_volatile() })
    });
    [(gs - empty).max(0.01), (apic - empty).max(0.01)]
}

fn measure(platform: &impl Platform, read: impl Fn() -> u64) -> f64 {
    let start = platform.now();
    for _ in 0..REPETITIONS {
        black_box(read());
    }
    platform.now().since(start).as_nanos() as f64 / f64::from(REPETITIONS)
}
