//! Messages, wake-ups and tasks between core 0 and core 1.

use alloc::sync::Arc;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use glasshouse::cores::channel;
use glasshouse::{Clock, Error, Instant, Platform};

/// Round trips in a measurement, without `--trips`.
pub const TRIPS: u32 = 5_000;
const WAKES: u32 = 5;
const SPAWNS: u32 = 200;
/// Long enough for a core without work to halt.
const REST: Duration = Duration::from_millis(5);
/// Polls of a flag before the core gives way: the other one may have no CPU for a while.
const SPINS_MAX: u32 = 100_000;

/// A flag on a line of its own.
#[repr(align(128))]
struct Flag(AtomicU32);

async fn wait_for(flag: &Flag, value: u32, clock: &impl Clock) {
    loop {
        for _ in 0..SPINS_MAX {
            if flag.0.load(Ordering::Acquire) == value {
                return;
            }
            spin_loop();
        }
        clock.sleep(Duration::ZERO).await;
    }
}

/// A round trip of two cores that do nothing but spin on flags.
pub async fn floor(platform: &impl Platform, trips: u32) -> Result<f64, Error> {
    let flags = Arc::new([Flag(AtomicU32::new(0)), Flag(AtomicU32::new(0))]);
    let theirs = flags.clone();
    let other = platform.spawn_on(1, "floor", move |core| async move {
        for trip in 1..=trips {
            wait_for(&theirs[0], trip, &core).await;
            theirs[1].0.store(trip, Ordering::Release);
        }
    })?;
    flags[0].0.store(1, Ordering::Release);
    wait_for(&flags[1], 1, platform).await;
    let start = platform.now();
    for trip in 2..=trips {
        flags[0].0.store(trip, Ordering::Release);
        wait_for(&flags[1], trip, platform).await;
    }
    let took = platform.now().since(start);
    other.await?;
    Ok(took.as_nanos() as f64 / f64::from(trips - 1))
}

/// A round trip of a value through two channels.
pub async fn ping_pong(platform: &impl Platform, trips: u32) -> Result<f64, Error> {
    let (mut to_core, mut from_here) = channel(4);
    let (mut to_here, mut from_core) = channel(4);
    let other = platform.spawn_on(1, "pong", move |_core| async move {
        while let Some(value) = from_here.recv().await {
            let value: u32 = value;
            if to_here.send(value).await.is_err() {
                break;
            }
        }
    })?;
    let mut start = platform.now();
    for trip in 0..=trips {
        to_core.send(trip).await?;
        let back = from_core.recv().await;
        if back != Some(trip) {
            return Err(alloc::format!("{back:?} came back for {trip}").into());
        }
        if trip == 0 {
            start = platform.now();
        }
    }
    let took = platform.now().since(start);
    drop(to_core);
    other.await?;
    Ok(took.as_nanos() as f64 / f64::from(trips))
}

/// From the send of a value until a core that sleeps has it.
pub async fn wake(platform: &impl Platform) -> Result<f64, Error> {
    let (mut to_core, mut from_here) = channel::<Instant>(1);
    let other = platform.spawn_on(1, "sleeper", move |core| async move {
        let mut took = Duration::ZERO;
        while let Some(sent) = from_here.recv().await {
            took += core.now().since(sent);
        }
        took
    })?;
    for _ in 0..WAKES {
        platform.sleep(REST).await;
        to_core.send(platform.now()).await?;
    }
    drop(to_core);
    Ok(other.await?.as_nanos() as f64 / f64::from(WAKES))
}

/// A task on the other core, which is awake, from its start until its handle has completed.
pub async fn spawn(platform: &impl Platform) -> Result<f64, Error> {
    let start = platform.now();
    for number in 0..SPAWNS {
        let back = platform.spawn_on(1, "short", move |_core| async move { number })?.await?;
        if back != number {
            return Err("another task's value came back".into());
        }
    }
    Ok(platform.now().since(start).as_nanos() as f64 / f64::from(SPAWNS))
}
