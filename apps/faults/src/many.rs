//! What several cores do for each other: tasks, channels in both directions, timers, cancellation, memory that is freed elsewhere.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use glasshouse::cores::{Receiver, Sender, channel};
use glasshouse::{Cancelled, Clock, Console, Cores, Error, Platform, SpawnOnError};

/// Messages to and from each core. Each is a vector that is allocated on one core and freed on the other.
const MESSAGES: usize = 2000;
/// Lines of a flood, far more than a core has room for.
const FLOOD_LINES: usize = 20_000;
/// Bytes of the longest.
const BYTES_MAX: usize = 5000;

/// Uses every core in every way, then prints what came of it.
pub async fn all_cores(platform: &impl Platform) -> Result<(), Error> {
    let mut tasks = Vec::new();
    let mut ends = Vec::new();
    for number in 0..platform.cores() {
        let (to_core, from_here) = channel(16);
        let (to_here, from_core) = channel(3);
        tasks.push(platform.spawn_on(number, "echo", move |core| echo(core, from_here, to_here))?);
        ends.push(platform.spawn("exchange", exchange(number, to_core, from_core))?);
    }
    for (number, (task, end)) in tasks.into_iter().zip(ends).enumerate() {
        let sum = end.await.map_err(|_| "the exchange was cancelled")??;
        let (core, seen) = task.await.map_err(|_| "the task was cancelled")?;
        if core != number || seen != sum {
            return Err(alloc::format!("core {number} returned {core} and {seen}, not {sum}").into());
        }
    }
    let last = platform.cores() - 1;
    let forever = platform.spawn_on(last, "forever", |core| async move {
        loop {
            core.sleep(Duration::from_millis(1)).await;
        }
    })?;
    platform.sleep(Duration::from_millis(5)).await;
    forever.cancel();
    let ended: Result<(), Cancelled> = forever.await;
    let missing = platform.spawn_on(platform.cores(), "nowhere", |_core| async {});
    let (none, cores) = (missing.is_err_and(|error| matches!(error, SpawnOnError::NoCore { .. })), platform.cores());
    // From a secondary core to the first one and back.
    let turns = platform.spawn_on(last, "there", |core| async move {
        let back = core.spawn_on(0, "back", |first| async move { first.core() });
        back.map(|back| async move { back.await.ok() })
    })?;
    let back = match turns.await.map_err(|_| "the task was cancelled")? {
        Ok(back) => back.await,
        Err(error) => return Err(error.into()),
    };
    platform.print(format_args!("cores={cores} cancelled={} none={none} back={back:?}", ended.is_err()));
    Ok(())
}

/// Returns what it gets, twice as long, and adds all of it up.
async fn echo(core: impl Cores, mut from: Receiver<Vec<u64>>, mut to: Sender<Vec<u64>>) -> (usize, u64) {
    core.print(format_args!("core {} runs", core.core()));
    let mut sum = 0;
    while let Some(values) = from.recv().await {
        sum += values.iter().sum::<u64>();
        let twice = [values.as_slice(), values.as_slice()].concat();
        if values.len().is_multiple_of(500) {
            // Asleep when the next one comes.
            core.sleep(Duration::from_millis(2)).await;
        }
        if to.send(twice).await.is_err() {
            break;
        }
    }
    (core.core(), sum)
}

async fn exchange(core: usize, mut to: Sender<Vec<u64>>, mut from: Receiver<Vec<u64>>) -> Result<u64, String> {
    let mut sum = 0;
    for number in 0..MESSAGES {
        let values = vec![(number * 31 + core) as u64; number * 7 % (BYTES_MAX / 8) + 1];
        let (expected, count) = (values.iter().sum::<u64>(), values.len());
        sum += expected;
        to.send(values).await.map_err(|error| alloc::format!("core {core}: {error}"))?;
        let twice = from.recv().await.ok_or("it ends early")?;
        if twice.len() != 2 * count || twice.iter().sum::<u64>() != 2 * expected {
            return Err(alloc::format!("core {core}: message {number} came back wrong"));
        }
    }
    Ok(sum)
}

/// Has the last core print more lines than wait for the first one, which does not take any meanwhile.
pub async fn flood(platform: &impl Platform) -> Result<(), Error> {
    let printed = Arc::new(AtomicUsize::new(0));
    let theirs = printed.clone();
    let task = platform.spawn_on(platform.cores() - 1, "flood", move |core| async move {
        for line in 0..FLOOD_LINES {
            core.print(format_args!("line {line}"));
        }
        theirs.store(FLOOD_LINES, Ordering::Relaxed);
    })?;
    while printed.load(Ordering::Relaxed) == 0 {
        core::hint::spin_loop();
    }
    task.await.map_err(|_| "the task was cancelled".into())
}

/// Panics, or faults, on the last core while the others work.
pub async fn fail_there(platform: &impl Platform, fault: fn() -> u64) -> Result<(), Error> {
    let begun = Arc::new(AtomicUsize::new(0));
    let others = 1..platform.cores() - 1;
    for number in others.clone() {
        let begun = begun.clone();
        platform.spawn_on(number, "busy", move |_core| async move { busy(&begun) })?;
    }
    while begun.load(Ordering::Relaxed) < others.len() {
        platform.sleep(Duration::from_millis(1)).await;
    }
    let task = platform.spawn_on(platform.cores() - 1, "culprit", move |_core| async move { fault() })?;
    let _ = task.await;
    Ok(())
}

/// Never gives way.
fn busy(begun: &AtomicUsize) {
    begun.fetch_add(1, Ordering::Relaxed);
    loop {
        core::hint::black_box(0);
        core::hint::spin_loop();
    }
}
