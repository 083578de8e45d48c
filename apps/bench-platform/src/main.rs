//! Measures what a wake costs: how long a read of a disk takes if its interrupt must wake a halted core, how long if the core is awake
//! and polls, and how much too late a timer wakes a task.
//!
//! It needs a disk whose reads take much longer than the core spins before it halts, and always equally long, such as QEMU's `null-co` with
//! `latency-ns=5000000`. Then the difference of both reads is the time from the completion by the device to the task. Each repetition prints one
//! line of JSON, after all measurements.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::format;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::time::Duration;
use glasshouse::sync::yield_now;
use glasshouse::{Block, Buf, Error, Platform};

const USAGE: &str = "the arguments are: [--repetitions NUMBER]";
const REPETITIONS_DEFAULT: usize = 50;
const REPETITIONS_MAX: usize = 10_000;
/// Repetitions that are not counted: caches are cold, and the core spins longer at first.
const WARM_UP: usize = 5;
/// The core halts before this timer.
const TIMER: Duration = Duration::from_millis(5);

/// The result of one repetition, in nanoseconds.
struct Repetition {
    /// A read during which the core halts.
    halted_ns: u64,
    /// A read during which the core polls its devices without a pause.
    polled_ns: u64,
    /// From a timer's deadline to the task.
    timer_ns: u64,
}

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let repetitions = match platform.args() {
        [] => REPETITIONS_DEFAULT,
        [option, number] if option == "--repetitions" => {
            let number = number.parse().ok().filter(|number| (1..=REPETITIONS_MAX).contains(number));
            number.ok_or_else(|| format!("--repetitions takes a number from 1 to {REPETITIONS_MAX}"))?
        }
        _ => return Err(USAGE.into()),
    };
    let disk = platform.block(0).ok_or("there is no disk: give one with --disk FILE")?;
    let mut buf = Buf::zeroed(disk.info().sector_bytes as usize)?;
    let mut results = Vec::new();
    for number in 0..WARM_UP + repetitions {
        let (halted_ns, polled_ns);
        (halted_ns, buf) = read(&platform, &disk, buf).await?;
        // Another task that never waits keeps the core awake.
        let is_busy = Rc::new(Cell::new(true));
        let watched = is_busy.clone();
        let busy = platform.spawn("busy", async move {
            while watched.get() {
                yield_now().await;
            }
        })?;
        (polled_ns, buf) = read(&platform, &disk, buf).await?;
        is_busy.set(false);
        busy.await?;
        let deadline = platform.now() + TIMER;
        platform.sleep_until(deadline).await;
        let timer_ns = platform.now().since(deadline).as_nanos() as u64;
        if number >= WARM_UP {
            results.push(Repetition { halted_ns, polled_ns, timer_ns });
        }
    }
    for Repetition { halted_ns, polled_ns, timer_ns } in results {
        let line = format!("{{\"halted_ns\": {halted_ns}, \"polled_ns\": {polled_ns}, \"timer_ns\": {timer_ns}}}");
        platform.writable(line.len() + 1).await;
        platform.print(format_args!("{line}"));
    }
    platform.writable(usize::MAX).await;
    Ok(())
}

/// Reads the first sector; the nanoseconds until this task continued, and the buffer.
async fn read<B: Block>(platform: &impl Platform, disk: &B, buf: Buf) -> Result<(u64, Buf), Error> {
    let start = platform.now();
    let (result, buf) = disk.read(0, buf).await;
    let took_ns = platform.now().since(start).as_nanos() as u64;
    result?;
    Ok((took_ns, buf))
}
