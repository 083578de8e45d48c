//! Measures what cores cost each other, and prints one line of JSON with a median for each part, in nanoseconds.
//!
//! `gs`, `apic_id`: per-core data through %gs, and the number of the core from its local APIC (only with `--registers`, in a VM). `floor`: two cores that spin on a
//! flag each; `ping_pong`: a value through a channel to another core and back. `wake`: from the send until a core that sleeps has the value.
//! `spawn`: a task on another core, until its handle completes. `alloc_1`, `alloc_2`: an allocation with its release, on one core and on two at once;
//! `alloc_away`: with the release on the other core.
#![cfg_attr(glass_vm, no_std, no_main)]
#![deny(unsafe_code)]

extern crate alloc;

mod exchange;
mod memory;
mod registers;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use glasshouse::{Error, Platform};

/// Rounds of each part, whose median counts, without `--rounds`. They alternate, so that a busy host affects all.
const ROUNDS: usize = 15;

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
    if platform.cores() < 2 {
        return Err("this needs two cores: give --cores 2".into());
    }
    let (mut with_registers, mut rounds, mut trips) = (false, ROUNDS, exchange::TRIPS);
    let mut arguments = platform.args().iter();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.as_slice()) {
            ("--registers", _) => with_registers = true,
            ("--rounds", [number, ..]) => {
                rounds = number.parse().map_err(|error| format!("{number}: {error}"))?;
                arguments.next();
            }
            ("--trips", [number, ..]) => {
                trips = number.parse().map_err(|error| format!("{number}: {error}"))?;
                arguments.next();
            }
            _ => return Err("the arguments are: [--registers] [--rounds NUMBER] [--trips NUMBER]".into()),
        }
    }
    let mut parts: [(&str, Vec<f64>); 9] =
        ["gs", "apic_id", "floor", "ping_pong", "wake", "spawn", "alloc_1", "alloc_2", "alloc_away"]
            .map(|name| (name, Vec::new()));
    for _ in 0..rounds.max(1) {
        let [gs, apic_id] = if with_registers { registers::read(&platform) } else { [0.0; 2] };
        let figures = [
            gs,
            apic_id,
            exchange::floor(&platform, trips.max(2)).await?,
            exchange::ping_pong(&platform, trips.max(2)).await?,
            exchange::wake(&platform).await?,
            exchange::spawn(&platform).await?,
            memory::on_cores(&platform, 1).await?,
            memory::on_cores(&platform, 2).await?,
            memory::released_elsewhere(&platform).await?,
        ];
        parts.iter_mut().zip(figures).for_each(|((_, rounds), figure)| rounds.push(figure));
    }
    let mut line = String::from("{");
    for (name, rounds) in &mut parts {
        rounds.sort_by(f64::total_cmp);
        let separator = if line.len() > 1 { ", " } else { "" };
        write!(line, "{separator}\"{name}_ns\": {:.2}", rounds[rounds.len() / 2])?;
    }
    platform.print(format_args!("{line}}}"));
    Ok(())
}
