//! `store`: puts, gets and a scan of a durable map, for `bench-store` on each platform and for redb on a file, alternating in the same
//! run.

use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// Turns of each contestant.
const ROUNDS: usize = 5;
const KEYS: u64 = 100_000;
const KEYS_SHORT: u64 = 2000;
/// How long each measurement takes.
const MILLISECONDS: u64 = 500;
const MILLISECONDS_SHORT: u64 = 20;
/// A turn that takes longer has failed.
const TURN_LIMIT: Duration = Duration::from_secs(180);
const MEASUREMENTS: [&str; 6] = ["fill", "put", "put_64", "put_batch", "get", "scan"];

/// Operations per second of each measurement.
type Rates = BTreeMap<String, f64>;

/// Measures.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-store")?;
    let keys = run.size(KEYS, KEYS_SHORT);
    let milliseconds = run.size(MILLISECONDS, MILLISECONDS_SHORT);
    let worlds = outcome.available([World::Process, World::Kvm]);
    let mut samples: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for round in run.part(0, 1).rounds(ROUNDS) {
        for contestant in turn(worlds.len() + 1, round) {
            let (name, rates) = match worlds.get(contestant) {
                Some(world) => {
                    let rates = service(*world, &folder, keys, milliseconds);
                    (world.to_string(), rates.with_context(|| format!("bench-store, {world}"))?)
                }
                None => ("redb".to_owned(), redb(&folder, keys, milliseconds).context("redb")?),
            };
            for (measurement, rate) in rates {
                samples.entry((name.clone(), measurement)).or_default().push(rate);
            }
        }
        run.figures(outcome);
    }
    let of = |name: &str, measurement: &str| {
        samples.get(&(name.to_owned(), measurement.to_owned())).map(Vec::as_slice).unwrap_or_default()
    };
    for measurement in MEASUREMENTS {
        let peer = Summary::of(of("redb", measurement)).map(|summary| ("redb", summary.median));
        for world in &worlds {
            let name = world.to_string();
            let figure = Figure::of(&format!("store.{name}.{measurement}_s"), "1/s", of(&name, measurement));
            outcome.add(figure.map(|figure| figure.beside(peer)));
        }
        outcome.add(Figure::of(&format!("redb.{measurement}_s"), "1/s", of("redb", measurement)));
    }
    outcome.note(format!(
        "{keys} keys of 16 bytes with values of 100; put: each on stable storage before the next; put_64: 64 tasks, for redb transactions of 64; \
         put_batch and fill: batches of 1000; random keys except in fill and scan; a service is measured with its disk as a file of the same file \
         system as redb's"
    ));
    Ok(())
}

/// What `bench-store` measures.
fn service(world: World, folder: &Folder, keys: u64, milliseconds: u64) -> Result<Rates> {
    let disk = folder.file("store.img");
    let mut command = match world {
        World::Process => Command::new(programs::built("bench-store").context("bench-store is not built")?),
        World::Kvm | World::Tcg => {
            let image = programs::image("bench-store").context("the image of bench-store is not built")?;
            let mut command = Command::new(programs::built("glass").context("glass is not built")?);
            command.arg("run").arg(image).args(["--accel", &world.to_string(), "--net", "none"]);
            command
        }
    };
    command.arg("--disk").arg(&disk).args(["--disk-size", "512M", "--"]);
    command.args(["--keys", &keys.to_string(), "--milliseconds", &milliseconds.to_string()]);
    let rates = rates(command, folder);
    fs::remove_file(&disk).context("there is no disk")?;
    rates
}

/// The same measurements of redb.
fn redb(folder: &Folder, keys: u64, milliseconds: u64) -> Result<Rates> {
    let file = folder.file("redb.db");
    let mut command = Command::new(programs::built("glass-bench-redb").context("glass-bench-redb is not built")?);
    command.arg(&file).args([keys.to_string(), milliseconds.to_string()]);
    let rates = rates(command, folder);
    fs::remove_file(&file).context("there is no file")?;
    rates
}

/// What a program measures, which prints a line of JSON for each.
fn rates(mut command: Command, folder: &Folder) -> Result<Rates> {
    let mut process = Process::spawn(&mut command, &folder.file("log"))?;
    let status = process.wait(TURN_LIMIT).context("it does not end")?;
    let output = process.output();
    let lines = output.lines().filter_map(|line| line.find("{\"measurement\"").map(|at| &line[at..]));
    let results = lines.map(|line| serde_json::from_str(line.trim()).with_context(|| format!("no JSON: {line}")));
    let results = results.collect::<Result<Vec<Value>>>()?;
    if !status.success() || results.len() != MEASUREMENTS.len() {
        bail!("it did not measure everything: {output}");
    }
    let rate = |result: &Value| Some((result["measurement"].as_str()?.to_owned(), result["per_s"].as_f64()?));
    results.iter().map(|result| rate(result).context("a result without a rate")).collect()
}
