//! Fails on purpose, in the way that its argument names, or prints facts about its platform. The tests read its output.
#![cfg_attr(glass_vm, no_std, no_main)]
#![deny(unsafe_code)]

extern crate alloc;

mod copied;
mod handlers;
#[cfg_attr(target_arch = "aarch64", path = "instructions/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "instructions/x86_64.rs")]
mod instructions;
mod many;
mod pages;
mod wrong;

use alloc::string::String;
use core::time::Duration;
use glasshouse::tracing::{debug, error, info, trace, warn};
use glasshouse::{Error, Net, Platform};

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
    if platform.args().first().is_some_and(|arg| arg == "copied") {
        return copied::serve(&platform).await;
    }
    if platform.args().first().is_some_and(|arg| arg == "pages") {
        return pages::serve(&platform).await;
    }
    // A task that sleeps, so that the faults happen in a system with timers and more than one task.
    let clock = platform.clone();
    platform.spawn("bystander", async move {
        loop {
            clock.sleep(Duration::from_millis(1)).await;
        }
    })?;
    platform.sleep(Duration::from_millis(5)).await;
    match platform.args().first().map(String::as_str) {
        Some("ok") => Ok(()),
        Some("error") => Err("this service always fails".into()),
        Some("panic") => panic!("on purpose, number {}", platform.args().len()),
        Some("bounds") => Err(alloc::format!("{}", wrong::past_the_end(platform.args().len())).into()),
        Some("memory") => Err(alloc::format!("{} bytes", wrong::all_memory()).into()),
        Some("large-memory") => {
            let (mib, last) = wrong::large_memory();
            platform.print(format_args!("{mib} MiB are usable, up to {last:#x}"));
            Ok(())
        }
        Some("stack") => Err(alloc::format!("{}", wrong::recurse(1)).into()),
        Some("null") => Err(alloc::format!("{}", wrong::read_null()).into()),
        Some("write-code") => Err(alloc::format!("{}", wrong::write_code()).into()),
        Some("run-data") => Err(alloc::format!("{}", wrong::run_data()).into()),
        Some("invalid") => Err(alloc::format!("{}", wrong::invalid_instruction()).into()),
        Some("privileged") => Err(alloc::format!("{}", wrong::privileged_instruction()).into()),
        Some("cores") => many::all_cores(&platform).await,
        Some("flood") => many::flood(&platform).await,
        Some("panic-there") => many::fail_there(&platform, || panic!("on purpose, elsewhere")).await,
        Some("null-there") => many::fail_there(&platform, wrong::read_null).await,
        Some("stack-there") => many::fail_there(&platform, || wrong::recurse(1)).await,
        Some("handlers") => handlers::serve(&platform).await,
        Some("facts") => facts(&platform),
        Some("resolve") => resolve(&platform).await,
        Some("messages") => {
            messages();
            Ok(())
        }
        Some("wait") => {
            platform.print(format_args!("waiting"));
            core::future::pending().await
        }
        Some("check-memory-functions") => wrong::check_memory_functions(),
        Some(other) => Err(alloc::format!("`{other}` is not a fault of this program").into()),
        None => Err("give the name of a fault".into()),
    }
}

/// Prints the addresses of the name that the second argument gives.
async fn resolve(platform: &impl Platform) -> Result<(), Error> {
    let args = platform.args();
    let name = args.get(1).ok_or("give a name after `resolve`")?;
    let net = platform.net();
    net.up().await?;
    for address in net.resolve(name).await? {
        platform.print(format_args!("{name} is {address}"));
    }
    Ok(())
}

/// Prints the platform's time and memory.
fn facts(platform: &impl Platform) -> Result<(), Error> {
    let wall = platform.wall().ok_or("there is no time of day")?;
    let used = platform.memory().used_bytes;
    let piece = core::hint::black_box(alloc::vec![1u8; 1 << 20]);
    let held = platform.memory().used_bytes;
    drop(piece);
    let (secs, after) = (wall.since_epoch.as_secs_f64(), platform.memory());
    platform.print(format_args!("wall={secs} source={} {wall}", wall.source));
    platform.print(format_args!(
        "used={used} held={held} freed={} peak={} total={}",
        after.used_bytes, after.peak_bytes, after.total_bytes
    ));
    Ok(())
}

fn messages() {
    trace!(number = 7, "a message");
    debug!(number = 7, "a message");
    info!(number = 7, "a message");
    warn!(number = 7, "a message");
    error!(number = 7, "a message");
}
