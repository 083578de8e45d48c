//! Does something at intervals and stores what it did: after a power cut it continues where it was.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::format;
use core::pin::pin;
use core::time::Duration;
use glasshouse::future::{Either, select};
use glasshouse::store::{Options, Store};
use glasshouse::tracing::{Instrument, info_span, warn};
use glasshouse::{Error, Platform};

/// Works until its end is requested.
pub async fn serve(platform: impl Platform) -> Result<(), Error> {
    let seconds = match platform.args() {
        [] => 10,
        [option, seconds] if option == "--every" => {
            seconds.parse().map_err(|_| format!("{seconds} is no number of seconds"))?
        }
        _ => return Err("the arguments are: [--every SECONDS]".into()),
    };
    let disk = platform.block(0).ok_or("there is no disk for what was done: give one by --disk")?;
    let (store, recovery) = Store::open(disk, &platform, Options::default()).await?;
    platform.print(format_args!("{recovery}"));
    let state = store.map("state")?;
    let done = state.get("rounds").await?;
    let mut rounds = done.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    platform.print(format_args!("my-service works every {seconds} s, {rounds} rounds are done"));

    let mut shutdown = pin!(platform.shutdown());
    let mut next = platform.now();
    loop {
        next = next + Duration::from_secs(seconds);
        if let Either::Second(()) = select(platform.sleep_until(next), shutdown.as_mut()).await {
            return Ok(());
        }
        work(&platform, rounds).instrument(info_span!("round", rounds)).await;
        match state.put("rounds", (rounds + 1).to_le_bytes()).await {
            Ok(()) => rounds += 1,
            Err(error) => warn!("round {rounds} was not stored, and is repeated: {error}"),
        }
    }
}

async fn work(platform: &impl Platform, round: u64) {
    platform.print(format_args!("round {round}"));
}
