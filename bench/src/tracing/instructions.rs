//! Instructions that the queue executes for the same requests without trace events in its code, with events that are
//! off, and while it writes them. Instruction counts are exact, whereas times of transfers vary by more than the effect.

use super::service::built;
use super::throughput::up_and_down;
use crate::block::Body;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs::{self, Variant};
use glass_tests::qemu::Qemu;
use glass_tests::queue::{self, World, answer};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Rounds; each mode runs once in a round.
const ROUNDS: usize = 5;
/// Items that are uploaded, downloaded and removed in a turn: few segments each, since the segmentation of a long stream depends on time.
const ITEMS: u64 = 120;
const ITEMS_SHORT: u64 = 2;
/// Items before the counted ones.
const ITEMS_FIRST: u64 = 3;
const ITEM_BYTES: u64 = 64 << 10;
/// How long a start or an end may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// A guest has finished a connection and halted this long after its client.
const SETTLE: Duration = Duration::from_millis(100);
/// Counts in the plugin's file: `instructions.c`.
const PLUGIN: &str = include_str!("instructions.c");

/// A mode: the build, and the groups that are on.
struct Mode {
    name: &'static str,
    variant: Variant,
    groups: Option<&'static str>,
}

const MODES: [Mode; 3] = [
    Mode { name: "absent", variant: Variant::WithoutTrace, groups: None },
    Mode { name: "off", variant: Variant::Usual, groups: None },
    Mode { name: "tasks", variant: Variant::Usual, groups: Some("tasks,devices") },
];

/// Adds the figures.
pub fn measure(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let items = run.size(ITEMS, ITEMS_SHORT);
    let modes = MODES.map(|mode| Mode { variant: built("upload-queue", mode.variant, run), ..mode });
    let folder = Folder::new("bench-tracing-instructions")?;
    let note = format!("{ROUNDS} rounds, each of {ITEMS} items of {} KiB up, down and away", ITEM_BYTES >> 10);
    match missing(&["valgrind"]) {
        Some(program) => outcome.note(format!("instructions of the process left out: {program} is not installed")),
        None => {
            add_figures(outcome, "process", &modes, items, &run.part(0, 2), |mode| {
                let first = instructions_of_process(mode, ITEMS_FIRST, &folder)?;
                Ok(instructions_of_process(mode, ITEMS_FIRST + items, &folder)?.saturating_sub(first))
            })?;
            outcome.note(format!(
                "instructions of the process: {note}; of user mode, by callgrind; the kernel's are not among them"
            ));
        }
    }
    match missing(&["qemu-system-x86_64", "gcc"]) {
        Some(program) => outcome.note(format!("instructions of the VM left out: {program} is not installed")),
        None => {
            let plugin = compile_plugin(&folder)?;
            run.figures(outcome);
            let count = |mode: &Mode| instructions_of_vm(mode, items, &plugin, &folder);
            add_figures(outcome, "vm", &modes, items, &run.part(1, 2), count)?;
            outcome.note(format!(
                "instructions of the VM: {note}; all of the guest under TCG, by a plugin of QEMU, without unsuccessful polls for work"
            ));
        }
    }
    Ok(())
}

/// The first of these programs that cannot be started.
fn missing(names: &[&'static str]) -> Option<&'static str> {
    let starts = |name: &str| {
        let mut command = Command::new(name);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    names.iter().find(|name| !starts(name)).copied()
}

/// `count` returns the instructions that a mode executes for `items` items.
fn add_figures(
    outcome: &mut Outcome,
    place: &str,
    modes: &[Mode; MODES.len()],
    items: u64,
    run: &Run,
    count: impl Fn(&Mode) -> Result<u64>,
) -> Result<()> {
    let mut per_item: [Vec<f64>; MODES.len()] = Default::default();
    for round in run.rounds(ROUNDS) {
        for index in turn(modes.len(), round) {
            let mode = &modes[index];
            let instructions = count(mode).with_context(|| format!("{place}, {}, round {round}", mode.name))?;
            per_item[index].push(instructions as f64 / items as f64);
        }
    }
    let absent = Summary::of(&per_item[0]).context("nothing was counted")?;
    let thousands: Vec<f64> = per_item[0].iter().map(|instructions| instructions / 1e3).collect();
    outcome.add(Figure::of(&format!("tracing.queue.{place}.item_instructions"), "thousand", &thousands));
    for (mode, instructions) in modes.iter().zip(&per_item).skip(1) {
        let percent: Vec<f64> = instructions.iter().map(|count| (count / absent.median - 1.0) * 100.0).collect();
        outcome.add(Figure::of(&format!("tracing.queue.{place}.{}_instructions_percent", mode.name), "%", &percent));
    }
    Ok(())
}

/// The queue as a process, from its start to its end, with `items` in between.
fn instructions_of_process(mode: &Mode, items: u64, folder: &Folder) -> Result<u64> {
    let program = programs::variant("upload-queue", mode.variant, false).context("the queue is not built")?;
    let options = queue::Options { disk_size: "64M".into(), program: Some(program), ..Default::default() };
    let port = free_port()?;
    let service = queue::command(World::Process, &fresh_disk(mode, folder), port, &options);
    let service = service.context("the queue is not built")?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--vgdb=no"]);
    command.arg(service.get_program()).args(service.get_args());
    if let Some(groups) = mode.groups {
        command.env("GLASS_TRACE", groups);
    }
    let mut process = Process::spawn(&mut command, &folder.file("callgrind.log"))?;
    let address = wait_for(&mut process, port)?;
    move_items(address, items)?;
    // Ended by this signal, the program is counted up to here.
    process.interrupt(PATIENCE);
    let output = process.output();
    let count = output.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    count.with_context(|| format!("callgrind prints no number:\n{output}"))
}

fn compile_plugin(folder: &Folder) -> Result<PathBuf> {
    let (source, plugin) = (folder.file("instructions.c"), folder.file("instructions.so"));
    std::fs::write(&source, PLUGIN)?;
    let mut compiler = Command::new("gcc");
    let status = compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&plugin).arg(&source).status();
    let status = status.context("cannot start gcc")?;
    if !status.success() {
        bail!("gcc cannot compile the plugin: {status}");
    }
    Ok(plugin)
}

/// The whole guest, during the transfers.
fn instructions_of_vm(mode: &Mode, items: u64, plugin: &Path, folder: &Folder) -> Result<u64> {
    let glass = programs::built("glass").context("glass is not built")?;
    let image = programs::variant("upload-queue", mode.variant, true).context("the queue's image is not built")?;
    let (port, counts) = (free_port()?, folder.file("counts"));
    let mut glass_run = Command::new(glass);
    glass_run.arg("run").arg(image).args(["--accel", "tcg", "--memory", "64", "--port", &format!("{port}:8080")]);
    glass_run.arg("--disk").arg(fresh_disk(mode, folder)).args(["--disk-size", "64M"]);
    if let Some(groups) = mode.groups {
        glass_run.arg(format!("--trace={groups}"));
    }
    let plugin = ["-plugin".to_owned(), format!("{},counts={}", plugin.display(), counts.display())];
    let mut qemu = Qemu::start(&mut glass_run, &["--port", "8080"], &plugin, folder)?;
    let address = wait_for(&mut qemu.process, port)?;
    move_items(address, ITEMS_FIRST)?;
    let before = plugin_count(&counts)?;
    move_items(address, items)?;
    Ok(plugin_count(&counts)?.saturating_sub(before))
}

/// Instructions that the plugin has counted so far.
fn plugin_count(counts: &Path) -> Result<u64> {
    std::thread::sleep(SETTLE);
    let bytes = std::fs::read(counts).context("the plugin has written nothing")?;
    let word = bytes.first_chunk().context("the plugin's file is too short")?;
    Ok(u64::from_le_bytes(*word))
}

/// A disk that is not there yet, so that each turn writes to the same places.
fn fresh_disk(mode: &Mode, folder: &Folder) -> PathBuf {
    let disk = folder.file(&format!("{}.img", mode.name));
    let _ = std::fs::remove_file(&disk);
    disk
}

/// The queue's address on `port`, once it answers.
fn wait_for(process: &mut Process, port: u16) -> Result<SocketAddr> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let deadline = Instant::now() + PATIENCE;
    while answer(address, Duration::from_secs(2)).is_none() {
        if process.ended().is_some() || Instant::now() > deadline {
            bail!("the queue does not answer:\n{}", process.output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(address)
}

fn move_items(address: SocketAddr, count: u64) -> Result<()> {
    let body = Body::new(ITEM_BYTES);
    (0..count).try_for_each(|_| up_and_down(address, &body).map(drop))
}
