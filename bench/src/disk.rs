//! `disk`: how fast a disk is read and written, for `bench-disk` on each platform and for fio on the same file, alternating in the
//! same run.

use crate::figure::Figure;
use crate::outcome::{Outcome, Progress};
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::queue::World;
use glass_tests::{programs, qemu};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Turns of each contestant in each cell.
const ROUNDS: usize = 5;
/// How long one measurement takes.
const MILLISECONDS: u32 = 300;
/// A turn that takes longer has failed.
const TURN_LIMIT: Duration = Duration::from_secs(60);
/// The disk's size: more than a second's worth, less than the page cache.
const DISK_BYTES: usize = 256 << 20;
const SIZES: [(&str, &str); 3] = [("4k", "4K"), ("64k", "64K"), ("1m", "1M")];
const IN_FLIGHT: [u32; 3] = [1, 4, 16];

/// One kind of access.
#[derive(Debug, Clone, Copy)]
struct Cell {
    direction: &'static str,
    /// Size of a request, in the form of figures and of programs.
    size: (&'static str, &'static str),
    in_flight: u32,
    /// Without the page cache of the host.
    is_direct: bool,
}

impl Cell {
    fn all() -> Vec<Cell> {
        let mut cells = Vec::new();
        for is_direct in [true, false] {
            for direction in ["read", "write"] {
                for size in SIZES {
                    cells.extend(IN_FLIGHT.map(|in_flight| Cell { direction, size, in_flight, is_direct }));
                }
            }
        }
        cells
    }

    fn name(&self) -> String {
        let cache = if self.is_direct { "direct" } else { "cached" };
        format!("{}.{}x{}.{cache}", self.direction, self.size.0, self.in_flight)
    }

    fn service_arguments(&self) -> Vec<String> {
        let numbers = [self.in_flight.to_string(), MILLISECONDS.to_string()];
        let [in_flight, milliseconds] = &numbers;
        [
            "--direction",
            self.direction,
            "--bytes",
            self.size.1,
            "--in-flight",
            in_flight,
            "--milliseconds",
            milliseconds,
        ]
        .map(str::to_owned)
        .into()
    }
}

/// Measures; contestants that this machine lacks are left out with a note.
pub fn run(progress: Progress) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let folder = Folder::new("bench-disk")?;
    let disk = full_disk(&folder)?;
    let worlds = outcome.available([World::Process, World::Kvm, World::Tcg]);
    let has_fio = Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has_fio {
        outcome.note("fio skipped: it is not installed");
    }
    let cells = Cell::all();
    let mut ratios: Vec<(World, Vec<f64>)> = worlds.iter().map(|world| (*world, Vec::new())).collect();
    for (index, cell) in cells.iter().enumerate() {
        let mut samples = vec![Vec::new(); worlds.len()];
        let mut floor = Vec::new();
        for round in 0..ROUNDS {
            for contestant in turn(worlds.len() + 1, round) {
                match worlds.get(contestant) {
                    // A process always uses the page cache.
                    Some(World::Process) if cell.is_direct => {}
                    Some(world) => samples[contestant].push(
                        service(*world, cell, &disk, &folder).with_context(|| format!("{world}, {}", cell.name()))?,
                    ),
                    None if has_fio => floor.push(fio(cell, &disk).with_context(|| format!("fio, {}", cell.name()))?),
                    None => {}
                }
            }
        }
        let peer = Summary::of(&floor).map(|summary| summary.median);
        for ((world, ratios), samples) in ratios.iter_mut().zip(&samples) {
            let figure = Figure::of(&format!("disk.{world}.{}_mb_s", cell.name()), "MB/s", samples);
            let figure = figure.map(|figure| peer.map_or(figure.clone(), |peer| figure.against("fio", peer)));
            ratios.extend(figure.as_ref().and_then(|figure| figure.ratio));
            outcome.add(figure);
        }
        outcome.add(Figure::of(&format!("floor.fio.{}_mb_s", cell.name()), "MB/s", &floor));
        progress(index as u64 + 1, cells.len() as u64);
    }
    for (world, ratios) in &ratios {
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        outcome.add(Figure::of(
            &format!("disk.{world}.geomean"),
            "of fio",
            if ratios.is_empty() { &[] } else { std::slice::from_ref(&mean) },
        ));
    }
    outcome.note(format!(
        "sequential, {MILLISECONDS} ms a turn on a file of {} MiB that has all its blocks; a VM's disk is virtio-blk, direct by cache=none and io_uring, cached by cache=writeback; flushes are not part of the time",
        DISK_BYTES >> 20
    ));
    outcome.note("fio: io_uring, one job; a VM is booted for each turn, and the boot is not part of the time");
    Ok(outcome)
}

/// A file with all blocks allocated.
fn full_disk(folder: &Folder) -> Result<PathBuf> {
    let path = folder.file("disk.img");
    let mut file = File::create(&path)?;
    let block = vec![0x5a; 1 << 20];
    for _ in 0..DISK_BYTES >> 20 {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(path)
}

/// Megabytes per second of `bench-disk`.
fn service(world: World, cell: &Cell, disk: &Path, folder: &Folder) -> Result<f64> {
    let mut command = match world {
        World::Process => {
            let mut command = Command::new(programs::built("bench-disk").context("bench-disk is not built")?);
            command.arg("--disk").arg(disk).arg("--").args(cell.service_arguments());
            command
        }
        World::Kvm | World::Tcg => {
            let image = programs::image("bench-disk").context("the image of bench-disk is not built")?;
            let mut run = Command::new(programs::built("glass").context("glass is not built")?);
            run.arg("run").arg(image).args(["--accel", &world.to_string(), "--memory", "128", "--disk"]).arg(disk);
            let arguments = cell.service_arguments();
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let words = qemu::command_words(&mut run, &arguments, folder)?;
            let direct = |word: &String| match cell.is_direct {
                true => word.replace("cache=writeback", "cache=none,aio=io_uring"),
                false => word.clone(),
            };
            let (program, words) = words.split_first().context("an empty command line")?;
            let mut command = Command::new(program);
            command.args(words.iter().map(direct));
            command
        }
    };
    let mut process = Process::spawn(&mut command, &folder.file("service.log"))?;
    process.wait(TURN_LIMIT).context("it does not end")?;
    let output = process.output();
    let line = output.lines().find_map(|line| line.find("{\"direction\"").map(|at| &line[at..]));
    let Some(line) = line else { bail!("it measured nothing: {output}") };
    let result: Value = serde_json::from_str(line.trim()).with_context(|| format!("no JSON: {line}"))?;
    result["mb_s"].as_f64().context("no mb_s")
}

/// Megabytes per second of fio.
fn fio(cell: &Cell, disk: &Path) -> Result<f64> {
    let mut command = Command::new("fio");
    command.args(["--name=cell", "--ioengine=io_uring", "--time_based=1", "--output-format=json"]);
    command.arg(format!("--filename={}", disk.display()));
    command.arg(format!("--rw={}", cell.direction)).arg(format!("--bs={}", cell.size.1));
    command.arg(format!("--iodepth={}", cell.in_flight)).arg(format!("--direct={}", u8::from(cell.is_direct)));
    command.arg(format!("--runtime={MILLISECONDS}ms")).arg(format!("--size={DISK_BYTES}"));
    let output = command.output().context("cannot start fio")?;
    if !output.status.success() {
        bail!("fio: {}", String::from_utf8_lossy(&output.stderr));
    }
    let result: Value = serde_json::from_slice(&output.stdout).context("fio did not print JSON")?;
    let bytes_per_sec = result["jobs"][0][cell.direction]["bw_bytes"].as_f64().context("no bw_bytes")?;
    Ok(bytes_per_sec / 1e6)
}
