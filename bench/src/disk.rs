//! `disk`: how fast a disk is read and written, for `bench-disk` on each platform and for fio on the same file, alternating in the
//! same run.

use crate::Part;
use crate::figure::Figure;
use crate::network::VMMS;
use crate::outcome::Outcome;
use crate::peers::linux::{self, Contents, LinuxGuest};
use crate::run::Run;
use crate::statistics::{Summary, geometric_mean, turn};
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Turns of each contestant in each cell.
const ROUNDS: usize = 5;
/// How long one measurement takes.
const MILLISECONDS: u32 = 200;
const MILLISECONDS_SHORT: u32 = 20;
/// A turn that takes longer has failed.
const TURN_LIMIT: Duration = Duration::from_secs(60);
/// The disk's size: more than a second's worth, less than the page cache.
const DISK_BYTES: usize = 256 << 20;
const DISK_BYTES_SHORT: usize = 8 << 20;
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
    /// How long it is measured.
    milliseconds: u32,
    disk_bytes: usize,
}

impl Cell {
    fn all() -> Vec<Cell> {
        let mut cells = Vec::new();
        for is_direct in [true, false] {
            for direction in ["read", "write"] {
                for size in SIZES {
                    cells.extend(IN_FLIGHT.map(|in_flight| Cell {
                        direction,
                        size,
                        in_flight,
                        is_direct,
                        milliseconds: MILLISECONDS,
                        disk_bytes: DISK_BYTES,
                    }));
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
        let numbers = [self.in_flight.to_string(), self.milliseconds.to_string()];
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

/// The kinds of access that are measured: in a short run the first and the last, which differ in all.
fn cells(run: &Run) -> Vec<Cell> {
    let cells = Cell::all();
    let ends = [cells[0], cells[cells.len() - 1]];
    let short = ends.map(|cell| Cell { milliseconds: MILLISECONDS_SHORT, disk_bytes: DISK_BYTES_SHORT, ..cell });
    run.size(cells, short.into())
}

/// The parts, by name.
pub const PARTS: [Part; 2] = [("peers", peers), ("vmms", vmms)];

/// Our own VMM beside QEMU with `glass disk`, each as `glass run` starts it.
fn vmms(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if let Some(reason) = World::Kvm.obstacle() {
        outcome.skip(reason);
        return Ok(());
    }
    let folder = Folder::new("bench-disk")?;
    let disk = full_disk(&folder, run.size(DISK_BYTES, DISK_BYTES_SHORT))?;
    let mut ratios = Vec::new();
    let cells = cells(run);
    for (index, cell) in cells.iter().enumerate() {
        let mut samples = VMMS.map(|_| Vec::new());
        for round in run.part(index, cells.len()).rounds(ROUNDS) {
            for contestant in turn(VMMS.len(), round) {
                let vmm = VMMS[contestant];
                let value = service(World::Kvm, &["--vmm", vmm], cell, &disk, &folder);
                samples[contestant].push(value.with_context(|| format!("{vmm}, {}", cell.name()))?);
            }
        }
        let qemu = Summary::of(&samples[0]).map(|summary| (VMMS[0], summary.median));
        for (vmm, samples) in VMMS.iter().zip(&samples) {
            let figure = Figure::of(&format!("disk.vmm.{vmm}.{}_mb_s", cell.name()), "MB/s", samples);
            let figure = figure.map(|figure| figure.beside(qemu.filter(|(peer, _)| peer != vmm)));
            ratios.extend(figure.as_ref().and_then(|figure| figure.ratio));
            outcome.add(figure);
        }
        run.figures(outcome);
    }
    outcome.add(Figure::of("disk.vmm.own.geomean", "of QEMU", geometric_mean(&ratios).as_slice()));
    outcome.note("the same image by our own VMM and by QEMU with `glass disk`; a VM is booted for each turn, and the boot is not part of the time");
    Ok(())
}

/// Measures beside fio; contestants that this machine lacks are left out with a note.
fn peers(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-disk")?;
    let bytes = run.size(DISK_BYTES, DISK_BYTES_SHORT);
    let disk = full_disk(&folder, bytes)?;
    let worlds = outcome.available([World::Process, World::Kvm, World::Tcg]);
    let has_fio = Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has_fio {
        outcome.note("fio skipped: it is not installed");
    }
    let cells = cells(run);
    // Of its own, because QEMU locks it for as long as the guest runs, which is booted once for each kind of cache.
    let linux_disk = folder.file("linux.img");
    let mut linux = None;
    let mut has_linux = worlds.contains(&World::Tcg) && has_fio;
    if let Some(reason) = linux::obstacle(run).filter(|_| has_linux) {
        outcome.note(format!("linux_guest skipped: {reason}"));
        has_linux = false;
    }
    if has_linux {
        std::fs::copy(&disk, &linux_disk).context("cannot copy the disk")?;
    }
    let mut ratios: Vec<(World, Vec<f64>)> = worlds.iter().map(|world| (*world, Vec::new())).collect();
    for (index, cell) in cells.iter().enumerate() {
        let mut samples = vec![Vec::new(); worlds.len()];
        let (mut floor, mut guest_samples) = (Vec::new(), Vec::new());
        if has_linux && index.is_multiple_of(cells.len() / 2) {
            drop(linux.take());
            match linux_guest(cell.is_direct, &linux_disk) {
                Ok(guest) => linux = Some(guest),
                Err(error) => {
                    outcome.note(format!("linux_guest skipped: {error:#}"));
                    has_linux = false;
                }
            }
        }
        for round in run.part(index, cells.len()).rounds(ROUNDS) {
            for contestant in turn(worlds.len() + 2, round) {
                match worlds.get(contestant) {
                    None if contestant > worlds.len() => {
                        if let Some(guest) = &mut linux {
                            guest_samples.push(fio_in_guest(guest, cell)?);
                        }
                    }
                    // A process always uses the page cache.
                    Some(World::Process) if cell.is_direct => {}
                    Some(world) => samples[contestant].push(
                        service(*world, &[], cell, &disk, &folder)
                            .with_context(|| format!("{world}, {}", cell.name()))?,
                    ),
                    None if has_fio => floor.push(fio(cell, &disk).with_context(|| format!("fio, {}", cell.name()))?),
                    None => {}
                }
            }
        }
        let median = |samples: &[f64]| Summary::of(samples).map(|summary| summary.median);
        let (native, guest) = (median(&floor), median(&guest_samples));
        for ((world, ratios), samples) in ratios.iter_mut().zip(&samples) {
            let peer = match (*world, guest) {
                (World::Tcg, Some(guest)) => Some(("linux_guest", guest)),
                _ => native.map(|native| ("fio", native)),
            };
            let figure = Figure::of(&format!("disk.{world}.{}_mb_s", cell.name()), "MB/s", samples);
            let figure = figure.map(|figure| figure.beside(peer));
            ratios.extend(figure.as_ref().and_then(|figure| figure.ratio));
            outcome.add(figure);
        }
        outcome.add(Figure::of(&format!("floor.fio.{}_mb_s", cell.name()), "MB/s", &floor));
        outcome.add(Figure::of(&format!("disk.linux_guest.{}_mb_s", cell.name()), "MB/s", &guest_samples));
        run.figures(outcome);
    }
    for (world, ratios) in &ratios {
        let mean = geometric_mean(ratios);
        outcome.add(Figure::of(&format!("disk.{world}.geomean"), "of the peer", mean.as_slice()));
    }
    outcome.note(format!(
        "sequential, {MILLISECONDS} ms a turn on a file of {} MiB that has all its blocks; a VM's disk is virtio-blk, with --disk-direct or without, served by `glass disk` under KVM, by QEMU with TCG; flushes are not part of the time",
        DISK_BYTES >> 20
    ));
    outcome.note("fio: io_uring, one job; a VM is booted for each turn, and the boot is not part of the time");
    outcome.note("linux_guest: the same fio in a VM with Debian's kernel (QEMU's q35, TCG), direct both in the guest and on the host, or with the page cache of the host only");
    Ok(())
}

/// A file with all blocks allocated.
fn full_disk(folder: &Folder, bytes: usize) -> Result<PathBuf> {
    let path = folder.file("disk.img");
    let mut file = File::create(&path)?;
    let block = vec![0x5a; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(path)
}

/// Megabytes per second of `bench-disk`, with these options of `glass run`.
fn service(world: World, options: &[&str], cell: &Cell, disk: &Path, folder: &Folder) -> Result<f64> {
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
            run.args(options).args(direct(cell.is_direct)).arg("--").args(cell.service_arguments());
            run
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

/// The kind of access for fio, in the order of its options.
fn fio_arguments(cell: &Cell, file: &str, is_direct: bool) -> Vec<String> {
    let mut arguments =
        ["--name=cell", "--ioengine=io_uring", "--time_based=1", "--output-format=json"].map(str::to_owned).to_vec();
    arguments.push(format!("--filename={file}"));
    arguments.extend([format!("--rw={}", cell.direction), format!("--bs={}", cell.size.1)]);
    arguments.extend([format!("--iodepth={}", cell.in_flight), format!("--direct={}", u8::from(is_direct))]);
    arguments.extend([format!("--runtime={}ms", cell.milliseconds), format!("--size={}", cell.disk_bytes)]);
    arguments
}

/// Megabytes per second of fio.
fn fio(cell: &Cell, disk: &Path) -> Result<f64> {
    let mut command = Command::new("fio");
    let output = command.args(fio_arguments(cell, &disk.display().to_string(), cell.is_direct)).output();
    let output = output.context("cannot start fio")?;
    if !output.status.success() {
        bail!("fio: {}", String::from_utf8_lossy(&output.stderr));
    }
    fio_result(cell, &String::from_utf8_lossy(&output.stdout))
}

/// Megabytes per second of fio in the Linux guest, whose page cache is not used: a service has none either.
fn fio_in_guest(guest: &mut LinuxGuest, cell: &Cell) -> Result<f64> {
    let line = format!("fio {} 2>/dev/null", fio_arguments(cell, "/dev/vda", true).join(" "));
    fio_result(cell, &guest.run(&line, TURN_LIMIT)?)
}

/// The rate in what fio prints as JSON; other lines may precede it.
fn fio_result(cell: &Cell, text: &str) -> Result<f64> {
    let object = text.find('{').zip(text.rfind('}')).map(|(start, end)| &text[start..=end]);
    let result: Value =
        serde_json::from_str(object.unwrap_or_default()).with_context(|| format!("fio did not print JSON: {text}"))?;
    let bytes_per_sec = result["jobs"][0][cell.direction]["bw_bytes"].as_f64().context("no bw_bytes")?;
    Ok(bytes_per_sec / 1e6)
}

/// Boots Linux with fio and the disk.
fn linux_guest(is_direct: bool, disk: &Path) -> Result<LinuxGuest> {
    let mut glass = Command::new(programs::built("glass").context("glass is not built")?);
    glass.arg("run").arg(programs::image("bench-disk").context("the image of bench-disk is not built")?);
    glass.args(linux::MACHINE).args(["--net", "none", "--disk"]).arg(disk).args(direct(is_direct));
    let contents = Contents { programs: &["fio"], files: Vec::new() };
    LinuxGuest::start(None, &mut glass, &contents, &[], &str::to_owned)
}

/// The option of `glass run` for a disk without the page cache of the host.
fn direct(is_direct: bool) -> Option<&'static str> {
    is_direct.then_some("--disk-direct")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_found_behind_other_lines() {
        let cell = Cell { direction: "read", size: SIZES[0], in_flight: 1, ..Cell::all()[0] };
        let text = "note: x\r\n{\"jobs\": [{\"read\": {\"bw_bytes\": 2500000}}]}\r\n";
        assert_eq!(fio_result(&cell, text).unwrap(), 2.5);
        assert!(fio_result(&cell, "no result").is_err());
    }
}
