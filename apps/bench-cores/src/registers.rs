//! Two ways to the data of the core that runs, in a VM. In a process neither exists, and the caller must not request them there.
#![allow(unsafe_code)]

use core::arch::asm;
use core::hint::black_box;
use glasshouse::Platform;

const REPETITIONS: u32 = 20_000;
/// Reads of a repetition, one after the other: each needs the result of the one before, so that none overlaps with it.
const READS: u32 = 16;
/// The local APIC's register with its identifier, which our images map.
const LOCAL_APIC_ID: usize = 0xfee0_0020;

/// Nanoseconds of each, without the loop's.
pub fn read(platform: &impl Platform) -> [f64; 2] {
    let this: u64;
    // SAFETY: in an image, %gs points to the core's block, whose first word is there: its own address.
    unsafe { asm!("mov {}, gs:[0]", out(reg) this, options(nostack, readonly)) };
    // XOR with what was read makes an offset of 0 of it, and the CPU has to wait for the result.
    let zero = black_box(0u64);
    let empty = measure(platform, || {
        let mut word = 0u64;
        // SAFETY: changes one register.
        unsafe {
            asm!(".rept 16", "xor {word}, {zero}", ".endr", word = inout(reg) word, zero = in(reg) zero, options(nomem, nostack))
        };
        word
    });
    let gs = measure(platform, || {
        let mut word = 0u64;
        // SAFETY: as above.
        unsafe {
            asm!(".rept 16", "mov {word}, gs:[{word}]", "xor {word}, {this}", ".endr",
                word = inout(reg) word, this = in(reg) this, options(nostack));
        }
        word
    });
    let apic = measure(platform, || {
        (0..READS).fold(0, |sum, _| {
            // SAFETY: an image maps the register, and reading it has no effect.
            sum + u64::from(unsafe { core::ptr::with_exposed_provenance::<u32>(LOCAL_APIC_ID).read_volatile() })
        })
    });
    [(gs - empty).max(0.01), (apic - empty).max(0.01)]
}

/// Nanoseconds of one of the [`READS`] of `read`.
fn measure(platform: &impl Platform, read: impl Fn() -> u64) -> f64 {
    let start = platform.now();
    for _ in 0..REPETITIONS {
        black_box(read());
    }
    platform.now().since(start).as_nanos() as f64 / f64::from(REPETITIONS * READS)
}
