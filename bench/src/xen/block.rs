//! `xen block`: how fast a domain reads a disk of dom0, with each feature of the block protocol and without, beside a Linux domain on the same
//! disk. The features and the sizes of requests are those of the article on MirageOS's block driver.

use super::is_skipped;
use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::peers::linux::add_programs;
use crate::run::Run;
use crate::statistics::{Summary, geometric_mean};
use anyhow::{Context, Result, ensure};
use glass_tests::programs;
use glass_tests::xen::World;
use glass_tests::xen::domains::Linux;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Boots of each contestant; each boot measures all cells.
const ROUNDS: usize = 5;
/// How long one measurement takes.
const MILLISECONDS: u32 = 500;
/// Sizes of requests in the form of figures and of programs. 44 KiB are the most without indirect segments.
const SIZES: [(&str, &str); 3] = [("44k", "44K"), ("256k", "256K"), ("1m", "1M")];
const IN_FLIGHT: [u32; 3] = [1, 4, 16];
/// What our domain uses, in the form of figures and of its command line.
const FEATURES: [(&str, &str); 4] =
    [("none", "none"), ("persistent", "persistent"), ("indirect", "indirect"), ("both", "persistent,indirect")];
/// The disk is in the memory of dom0, so that it is not what limits.
const DISK_MIB: u32 = 48;
const DEVICES: &str = "disk = [\"phy:/dev/loop0,xvda,w\"]\n";
const MEMORY_MIB: u32 = 128;
/// Debian's fio comes with 85 MiB of libraries.
const LINUX_MEMORY_MIB: u32 = 480;
const LIMIT: Duration = Duration::from_secs(180);
/// The last line of the Linux domain.
const ENDED: &str = "ALL CELLS";
/// The field of fio's terse output with KiB read per second, from 0 on (fio(1), terse version 3).
const FIO_READ_RATE: usize = 6;
/// A cell with at least this part of the peer's rate is close to it.
const CLOSE: f64 = 0.9;

/// Megabytes per second, by size and requests in flight.
type Rates = BTreeMap<(usize, u32), f64>;

/// Measures all contestants in turn.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if is_skipped(outcome, run) {
        return Ok(());
    }
    let image = programs::image("bench-disk").context("the image of bench-disk is not built")?;
    let mut world = World::boot()?;
    world.bring(&image)?;
    let disk =
        format!("dd if=/dev/zero of=/tmp/disk bs=1M count={DISK_MIB} 2>/dev/null && losetup /dev/loop0 /tmp/disk");
    world.expect(&disk, LIMIT)?;
    let measure = |contestant: usize| match FEATURES.get(contestant) {
        Some((_, features)) => ours(&mut world, features),
        None => linux(&mut world),
    };
    in_turn(outcome, FEATURES.len() + 1, ROUNDS, run, measure, add)?;
    world.power_off()?;
    outcome.note(format!(
        "sequential reads of {DISK_MIB} MiB in the memory of dom0, {MILLISECONDS} ms a cell, by a domain of {MEMORY_MIB} MiB; linux_domu: Debian's kernel as a PVH domain of {LINUX_MEMORY_MIB} MiB with fio (io_uring, O_DIRECT), which has both features"
    ));
    outcome.note("the article's own figures, of an ARM board with a slow card: 18.3 MB/s without indirect segments, 21.3 MB/s with them");
    Ok(())
}

fn add(outcome: &mut Outcome, samples: &[Vec<Rates>]) {
    let column = |contestant: usize, cell: &(usize, u32)| -> Vec<f64> {
        samples[contestant].iter().filter_map(|rates| rates.get(cell)).copied().collect()
    };
    let cells: Vec<_> = (0..SIZES.len()).flat_map(|size| IN_FLIGHT.map(|in_flight| (size, in_flight))).collect();
    for (contestant, (name, _)) in FEATURES.iter().enumerate() {
        let mut ratios = Vec::new();
        for cell in &cells {
            let figure = format!("xen.block.{name}.{}x{}_mb_s", SIZES[cell.0].0, cell.1);
            let peer = Summary::of(&column(FEATURES.len(), cell)).map_or(0.0, |summary| summary.median);
            let figure = Figure::of(&figure, "MB/s", &column(contestant, cell));
            let figure = figure.map(|figure| figure.against("linux_domu", peer));
            ratios.extend(figure.as_ref().and_then(|figure| figure.ratio));
            outcome.add(figure);
        }
        let mean = geometric_mean(&ratios);
        outcome.add(Figure::of(&format!("xen.block.{name}.geomean"), "of linux_domu", mean.as_slice()));
        let close = ratios.iter().filter(|ratio| **ratio >= CLOSE).count();
        outcome.note(format!("{name}: {close} of {} cells have at least {CLOSE} of the Linux domain", ratios.len()));
    }
    for cell in &cells {
        let name = format!("xen.block.linux_domu.{}x{}_mb_s", SIZES[cell.0].0, cell.1);
        outcome.add(Figure::of(&name, "MB/s", &column(FEATURES.len(), cell)));
    }
}

/// All cells of our domain with some features.
fn ours(world: &mut World, features: &str) -> Result<Rates> {
    let (sizes, in_flight) =
        (SIZES.map(|(_, size)| size).join(","), IN_FLIGHT.map(|number| number.to_string()).join(","));
    let line = format!(
        "xen-disk={features} -- --direction read --bytes {sizes} --in-flight {in_flight} --milliseconds {MILLISECONDS}"
    );
    world.start_service("bench-disk", MEMORY_MIB, DEVICES, &line)?;
    let (log, _) = world.end_of_service()?;
    let lines = log.lines().filter_map(|line| line.find("{\"direction\"").map(|at| &line[at..]));
    let mut rates = Rates::new();
    for line in lines {
        let cell: Value = serde_json::from_str(line.trim()).with_context(|| format!("no JSON: {line}"))?;
        let size = SIZES.iter().position(|(_, size)| kib(size) << 10 == cell["request_bytes"]);
        let in_flight = cell["in_flight"].as_u64().context("no in_flight")? as u32;
        let rate = cell["mb_s"].as_f64().context("no mb_s")?;
        rates.insert((size.context("another size of requests")?, in_flight), rate);
    }
    whole(rates, &log)
}

/// KiB of a size in the form of programs.
fn kib(size: &str) -> u64 {
    let (number, unit) = size.split_at(size.len() - 1);
    number.parse::<u64>().expect("sizes are numbers") << if unit == "M" { 10 } else { 0 }
}

/// All cells of a Linux domain.
fn linux(world: &mut World) -> Result<Rates> {
    let mut files = world.linux_files("xen-blkfront", &linux_script())?;
    add_programs(&mut files, &["fio"])?;
    let linux = Linux { name: "linux-disk", kind: "pvh", memory_mib: LINUX_MEMORY_MIB, devices: DEVICES, files };
    let printed = world.run_linux(linux, ENDED, LIMIT)?;
    world.destroy("linux-disk")?;
    let mut rates = Rates::new();
    for line in printed.lines() {
        let mut words = line.trim().splitn(4, ' ');
        let (Some("CELL"), Some(size), Some(in_flight), Some(result)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let rate = result.split(';').nth(FIO_READ_RATE).with_context(|| format!("fio has printed {line:?}"))?;
        let size = SIZES.iter().position(|(_, known)| *known == size).context("another size of requests")?;
        rates.insert((size, in_flight.parse()?), rate.parse::<f64>()? * 1024.0 / 1e6);
    }
    whole(rates, &printed)
}

fn linux_script() -> String {
    let sizes = SIZES.map(|(_, size)| size).join(" ");
    let in_flight = IN_FLIGHT.map(|number| number.to_string()).join(" ");
    let fio = format!(
        "fio --name=cell --ioengine=io_uring --time_based=1 --output-format=terse --terse-version=3 --filename=/dev/xvda --rw=read --direct=1 --runtime={MILLISECONDS}ms --size={DISK_MIB}M"
    );
    format!(
        "until [ -b /dev/xvda ]; do usleep 10000; done
for size in {sizes}; do for depth in {in_flight}; do
    echo \"CELL $size $depth $({fio} --bs=$size --iodepth=$depth)\"
done; done
echo '{ENDED}'
sleep 1000
"
    )
}

fn whole(rates: Rates, printed: &str) -> Result<Rates> {
    ensure!(rates.len() == SIZES.len() * IN_FLIGHT.len(), "it has not measured all cells: {printed}");
    Ok(rates)
}
