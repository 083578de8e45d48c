//! `network loss`: TCP over a wire that delays, loses, reorders and queues, between a Linux client and `bench-tcp` as a VM, and between the
//! client and `bench-tcp` as a process, over the same relay and in turn.

mod bed;
mod cells;
mod figures;
mod sender;

use super::is_impossible;
use super::relay::link::{Conditions, Counts};
use crate::outcome::Outcome;
use crate::plot;
use crate::run::Run;
use crate::statistics::turn;
use anyhow::{Context, Result, ensure};
use bed::{Bed, Transfer};
use cells::Cell;
use glass_tests::folder::Folder;
use glass_tests::programs;
use glass_tests::queue::World;
use std::time::Duration;

/// Turns of each transfer.
const ROUNDS: usize = 3;
/// Duration of a transfer, if the time of the part suffices for that, and the least.
const TRANSFER_TIME: Duration = Duration::from_secs(15);
const TRANSFER_TIME_MIN: Duration = Duration::from_secs(5);
const TRANSFER_TIME_SHORT: Duration = Duration::from_millis(500);
/// The seed of the first round. All transfers of a round and a cell have the same losses.
const SEED: u64 = 41;
/// The congestion controls of senders, each compared with the same of Linux.
const ALGORITHMS: [&str; 2] = ["cubic", "bbr"];
/// Of those that a Linux does not have it has no file.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The direction of a transfer, seen from the far end of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The VM or the process sends.
    Out,
    /// It receives.
    In,
}

impl Direction {
    /// In figures.
    fn name(self) -> &'static str {
        match self {
            Direction::Out => "out",
            Direction::In => "in",
        }
    }
}

/// What is at the far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Far {
    /// `bench-tcp` as a VM.
    Vm,
    /// `bench-tcp` as a process.
    Linux,
}

/// One kind of transfer in a cell, and its results.
#[derive(Debug, Clone)]
struct Column {
    direction: Direction,
    far: Far,
    /// The congestion control of the sender.
    algorithm: &'static str,
    mb_s: Vec<f64>,
}

/// All that was measured.
#[derive(Default)]
struct Results {
    /// The columns of each cell.
    cells: Vec<(Cell, Vec<Column>)>,
    /// What the relay did in each cell to the segments of the direction of the transfer.
    counts: Vec<Counts>,
    /// Linux to Linux over a relay that does nothing.
    relay_mb_s: Vec<f64>,
    /// The shares of two connections of the VM and one of Linux, in thirds of their sum.
    shares: [Vec<f64>; 3],
}

pub(super) fn loss(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if is_impossible(outcome) {
        return Ok(());
    }
    let Some(world) = outcome.available([World::Kvm, World::Tcg]).first().copied() else { return Ok(()) };
    let algorithms = algorithms(outcome)?;
    let cells = cells::chosen(run).into_iter().map(|cell| (cell, columns(cell, &algorithms, run.only())));
    let cells: Vec<_> = cells.filter(|(_, columns)| !columns.is_empty()).collect();
    ensure!(!cells.is_empty(), "no figure of network loss has {:?} in its name, as out.bbr.p1.40ms has", run.only());
    let mut results = Results { counts: vec![Counts::default(); cells.len()], cells, ..Results::default() };
    let folder = Folder::new("bench-loss")?;
    let bed = Bed::new(world, &algorithms, &folder)?;
    // And the two transfers that belong to no cell.
    let transfers: usize = 2 + results.cells.iter().map(|(_, columns)| columns.len()).sum::<usize>();
    let rounds = run.size(ROUNDS, 1);
    let share = run.time_left() / (rounds * transfers) as u32;
    let time = run.size(share.clamp(TRANSFER_TIME_MIN, TRANSFER_TIME), TRANSFER_TIME_SHORT);
    let mut done = 0;
    for round in 0..rounds {
        let seed = SEED + round as u64;
        let mut step = || {
            done += 1;
            run.done(done, rounds * transfers);
        };
        results
            .relay_mb_s
            .push(bed.transfer(&Conditions::default(), seed, (Direction::Out, Far::Linux, "cubic"), time)?.mb_s);
        step();
        for ((cell, columns), total) in results.cells.iter_mut().zip(&mut results.counts) {
            for index in turn(columns.len(), round) {
                let Column { direction, far, algorithm, ref mut mb_s } = columns[index];
                let measured = bed.transfer(&cell.conditions, seed, (direction, far, algorithm), time);
                let Transfer { mb_s: value, counts } =
                    measured.with_context(|| format!("{}, {far:?}, {direction:?}, {algorithm}", cell.name()))?;
                mb_s.push(value);
                *total = total.plus(counts);
                step();
            }
        }
        if !run.is_short() && run.only().is_none() {
            let rates = bed.compete(&cells::fair(), seed, "cubic", 2 * time)?;
            let third = rates.iter().sum::<f64>() / 3.0;
            results.shares.iter_mut().zip(rates).for_each(|(shares, rate)| shares.push(rate / third));
        }
        step();
        run.so_far(outcome, |outcome| figures::add(outcome, &results));
    }
    figures::add(outcome, &results);
    figures::explain(outcome, &results, time);
    if run.is_short() { Ok(()) } else { draw(outcome, &results) }
}

/// Those that this Linux has; a note names those that it does not have.
fn algorithms(outcome: &mut Outcome) -> Result<Vec<&'static str>> {
    let list = std::fs::read_to_string(AVAILABLE).with_context(|| format!("cannot read {AVAILABLE}"))?;
    let (available, missing): (Vec<_>, Vec<_>) =
        ALGORITHMS.into_iter().partition(|name| list.split_whitespace().any(|listed| listed == *name));
    for name in missing {
        outcome.note(format!("{name} skipped: this Linux does not have it ({AVAILABLE}; `modprobe tcp_{name}`)"));
    }
    Ok(available)
}

/// The transfers of a cell: the VM's beside those that they are compared with, all or those with `only` in the names of their figures.
fn columns(cell: Cell, algorithms: &[&'static str], only: Option<&str>) -> Vec<Column> {
    let column = |direction, far, algorithm| Column { direction, far, algorithm, mb_s: Vec::new() };
    let directions = if cell.has_receivers() { &[Direction::Out, Direction::In][..] } else { &[Direction::Out] };
    let mut columns = Vec::new();
    for &algorithm in algorithms {
        for &direction in directions {
            let name = format!("{}.{algorithm}.{}", direction.name(), cell.name());
            if only.is_some_and(|only| !name.contains(only)) {
                continue;
            }
            columns.extend([Far::Vm, Far::Linux].map(|far| column(direction, far, algorithm)));
        }
    }
    columns
}

/// Writes the plot, and a note where it is.
fn draw(outcome: &mut Outcome, results: &Results) -> Result<()> {
    let path = programs::folder().join("../bench/network-loss.svg");
    let folder = path.parent().context("the plot has a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let groups = figures::bars(results);
    std::fs::write(&path, plot::svg(&groups)).with_context(|| format!("cannot write {}", path.display()))?;
    outcome.note(format!("the bars as an image: {}", path.display()));
    Ok(())
}
