//! Goes wrong on purpose, in the way that its argument names. The tests read the reports.
#![cfg_attr(glass_vm, no_std, no_main)]
#![deny(unsafe_code)]

extern crate alloc;

mod wrong;

use alloc::string::String;
use core::time::Duration;
use glasshouse::{Error, Platform};

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
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
        Some("stack") => Err(alloc::format!("{}", wrong::recurse(1)).into()),
        Some("null") => Err(alloc::format!("{}", wrong::read_null()).into()),
        Some("write-code") => Err(alloc::format!("{}", wrong::write_code()).into()),
        Some("run-data") => Err(alloc::format!("{}", wrong::run_data()).into()),
        Some("invalid") => Err(alloc::format!("{}", wrong::invalid_instruction()).into()),
        Some("privileged") => Err(alloc::format!("{}", wrong::privileged_instruction()).into()),
        Some("check-memory-functions") => wrong::check_memory_functions(),
        Some(other) => Err(alloc::format!("`{other}` is no fault this program knows").into()),
        None => Err("say which fault".into()),
    }
}
