//! `xen network`: TCP between a domain and dom0, with offloads and without, beside a Linux domain with the same program.

use super::is_skipped;
use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result};
use glass_tests::programs;
use glass_tests::xen::domains::Linux;
use glass_tests::xen::{SHARED, World};
use std::time::Duration;

/// Boots of each contestant.
const ROUNDS: usize = 5;
/// Bytes of a transfer.
const BYTES: u64 = 16 << 20;
/// Our domain with and without offloads, in the form of figures and of its command line.
const OURS: [(&str, &str); 2] = [("xen.tcp", ""), ("xen.plain.tcp", "xen-offloads=off ")];
const LINUX: &str = "xen.linux_domu.tcp";
/// Who sends, in the form of figures and of the client's request: out is to dom0.
const DIRECTIONS: [(&str, &str); 2] = [("out", "send"), ("in", "take")];
const DEVICES: &str = "vif = [\"mac=00:16:3e:01:02:03\"]\n";
const MEMORY_MIB: u32 = 128;
const LIMIT: Duration = Duration::from_secs(180);
/// What the program prints when it listens.
const LISTENS: &str = "bench-tcp listens";

/// Megabits per second, by direction.
type Rates = [f64; DIRECTIONS.len()];

/// Measures all contestants in turn.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if is_skipped(outcome, run) {
        return Ok(());
    }
    let image = programs::image("bench-tcp").context("the image of bench-tcp is not built")?;
    let program = programs::built_static("bench-tcp", true).context("bench-tcp is not built for dom0")?;
    let mut world = World::boot()?;
    world.bring(&program)?;
    world.expect(&format!("cp {SHARED}/bench-tcp /usr/bin/client"), LIMIT)?;
    // Of the same name, so not before the program was copied.
    world.bring(&image)?;
    let program = std::fs::read(program)?;
    let measure = |contestant: usize| match OURS.get(contestant) {
        Some((_, words)) => ours(&mut world, words),
        None => linux(&mut world, &program),
    };
    in_turn(outcome, OURS.len() + 1, ROUNDS, run, measure, add)?;
    world.power_off()?;
    outcome.note(format!(
        "bench-tcp in a domain and as the client in dom0, {} MiB a transfer; out is from the domain to dom0; plain: without checksums and segments by the card; linux_domu: Debian's kernel as a PVH domain with the same bench-tcp as a process",
        BYTES >> 20
    ));
    Ok(())
}

fn add(outcome: &mut Outcome, samples: &[Vec<Rates>]) {
    for (index, (direction, _)) in DIRECTIONS.iter().enumerate() {
        let column = |contestant: usize| samples[contestant].iter().map(|rates| rates[index]).collect::<Vec<f64>>();
        let peer = column(OURS.len());
        let median = Summary::of(&peer).map_or(0.0, |summary| summary.median);
        for (contestant, (name, _)) in OURS.iter().enumerate() {
            let figure = Figure::of(&format!("{name}_{direction}_mbit_s"), "Mbit/s", &column(contestant));
            outcome.add(figure.map(|figure| figure.against("linux_domu", median)));
        }
        outcome.add(Figure::of(&format!("{LINUX}_{direction}_mbit_s"), "Mbit/s", &peer));
    }
}

/// Both directions, with the domain that listens.
fn transfers(world: &mut World) -> Result<Rates> {
    let mut rates = Rates::default();
    for ((_, request), rate) in DIRECTIONS.iter().zip(&mut rates) {
        let printed = world.expect(&format!("client -- --client 10.99.0.2:8090 {request} {BYTES}"), LIMIT)?;
        let time = printed.split_once(" bytes in ").and_then(|(_, rest)| rest.split_once(" us"));
        let us: f64 = time.with_context(|| format!("the client has printed {printed:?}"))?.0.parse()?;
        *rate = BYTES as f64 * 8.0 / us.max(1.0);
    }
    Ok(rates)
}

fn ours(world: &mut World, words: &str) -> Result<Rates> {
    world.start_service("bench-tcp", MEMORY_MIB, DEVICES, &format!("{words}ip=10.99.0.2/24 --"))?;
    world.wait_for_service(LISTENS)?;
    let rates = transfers(world)?;
    world.destroy("service")?;
    Ok(rates)
}

fn linux(world: &mut World, program: &[u8]) -> Result<Rates> {
    let mut files = world.linux_files("xen-netfront", LINUX_SCRIPT)?;
    files.file("server", true, program);
    let linux = Linux { name: "linux-net", kind: "pvh", memory_mib: MEMORY_MIB, devices: DEVICES, files };
    world.run_linux(linux, LISTENS, LIMIT)?;
    let rates = transfers(world)?;
    world.destroy("linux-net")?;
    Ok(rates)
}

const LINUX_SCRIPT: &str = "until [ -e /sys/class/net/eth0 ]; do usleep 10000; done
ip addr add 10.99.0.2/24 dev eth0
ip link set lo up
ip link set eth0 up
/server
sleep 1000
";
