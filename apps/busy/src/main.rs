//! Computes all the time and prints its progress every 100 ms, for measurements of profilers and tracers.
//! Without `--calls`, 10 % of its time are in `light`, 30 % in `medium`, 60 % in `heavy`.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

mod calls;

use alloc::format;
use core::hint::black_box;
use core::time::Duration;
use glasshouse::{Error, Platform};

/// Steps of one unit of work: about 10 us on a current machine.
const STEPS: u64 = 10_000;
/// Interval between lines of progress.
const REPORT: Duration = Duration::from_millis(100);

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let seconds: u64 = match platform.args() {
        [] => u64::MAX,
        [option] if option == "--calls" => return calls::serve(&platform).await,
        [option, number] if option == "--seconds" => {
            number.parse().map_err(|_| format!("{number} is not a number of seconds"))?
        }
        _ => return Err("the arguments are: [--seconds NUMBER | --calls]".into()),
    };
    let start = platform.now();
    let mut seed = 1;
    let mut next = start + REPORT;
    loop {
        let mut rounds = 0u64;
        let mut now = platform.now();
        while now < next {
            seed = round(seed);
            rounds += 1;
            now = platform.now();
        }
        let since_start = now - start;
        platform.print(format_args!("{} rounds until {} us", rounds, since_start.as_micros()));
        if since_start.as_secs() >= seconds {
            return Ok(());
        }
        next = next + REPORT;
        // Other tasks run, and may end this one.
        platform.sleep(Duration::ZERO).await;
    }
}

#[inline(never)]
fn round(seed: u64) -> u64 {
    heavy(medium(light(seed)))
}

#[inline(never)]
fn light(seed: u64) -> u64 {
    steps(seed, STEPS)
}

#[inline(never)]
fn medium(seed: u64) -> u64 {
    steps(seed, 3 * STEPS)
}

#[inline(never)]
fn heavy(seed: u64) -> u64 {
    steps(seed, 6 * STEPS)
}

/// Marsaglia's xorshift: each step needs the one before it, so the compiler can remove none.
#[inline(always)]
fn steps(mut seed: u64, count: u64) -> u64 {
    for _ in 0..count {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
    }
    black_box(seed)
}
