//! Allocation on one core, on two at once, and release on another core.

use alloc::vec::Vec;
use core::hint::black_box;
use glasshouse::cores::channel;
use glasshouse::{Clock, Error, Platform};

const ALLOCATIONS: u32 = 20_000;
/// Blocks that exist at a time, of different lengths.
const HELD: usize = 16;
/// Blocks that are released on the other core.
const AWAY: u32 = 5_000;

/// Nanoseconds of an allocation and a release.
fn allocate(clock: &impl Clock) -> f64 {
    let mut held: [Vec<u8>; HELD] = [const { Vec::new() }; HELD];
    let start = clock.now();
    for number in 0..ALLOCATIONS as usize {
        held[number % HELD] = black_box(Vec::with_capacity(16 + number * 37 % 1000));
    }
    clock.now().since(start).as_nanos() as f64 / f64::from(ALLOCATIONS)
}

/// The mean of `cores` cores that allocate at the same time.
pub async fn on_cores(platform: &impl Platform, cores: usize) -> Result<f64, Error> {
    let other = match cores {
        1 => None,
        _ => Some(platform.spawn_on(1, "allocate", |core| async move { allocate(&core) })?),
    };
    let own = allocate(platform);
    match other {
        None => Ok(own),
        Some(other) => Ok((own + other.await?) / 2.0),
    }
}

/// An allocation here, the way to core 1 and the release there.
pub async fn released_elsewhere(platform: &impl Platform) -> Result<f64, Error> {
    let (mut to_core, mut from_here) = channel::<Vec<u8>>(64);
    let other = platform.spawn_on(1, "release", move |_core| async move {
        while let Some(block) = from_here.recv().await {
            drop(black_box(block));
        }
    })?;
    let start = platform.now();
    for number in 0..AWAY as usize {
        to_core.send(Vec::with_capacity(16 + number * 37 % 1000)).await?;
    }
    drop(to_core);
    other.await?;
    Ok(platform.now().since(start).as_nanos() as f64 / f64::from(AWAY))
}
