//! `mpi`: OSU-like tables of our MPI as processes and in a VM, of Open MPI and of MPICH, beside the least that two flags take.

mod contestants;

use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::{Summary, geometric_mean, turn};
use anyhow::Result;
use contestants::{Contestant, Platform};
use glass_tests::folder::Folder;
use std::collections::BTreeMap;

/// Times that each benchmark of each contestant is run; they take turns.
const ROUNDS: usize = 5;
/// The tables, and which sizes become figures.
const TABLES: [&str; 6] = ["latency", "bcast", "reduce", "allreduce", "allgather", "alltoall"];
const SIZES: [(u64, &str); 4] = [(8, "8"), (1 << 10, "1k"), (64 << 10, "64k"), (1 << 20, "1m")];
/// Iterations of the barrier, and of one with more ranks than this machine may have cores.
const BARRIERS: [&str; 5] = ["barrier", "-i", "100000", "-x", "1000"];
const CROWDED_RANKS: usize = 4;
const CROWDED_BARRIERS: [&str; 5] = ["barrier", "-i", "1000", "-x", "100"];
/// Iterations where QEMU emulates the CPU.
const FEW: [&str; 4] = ["-i", "100", "-x", "10"];
/// Iterations and sizes of a short run.
const BARRIERS_SHORT: [&str; 5] = ["barrier", "-i", "10", "-x", "1"];
const SMALL: [&str; 6] = ["-i", "10", "-x", "1", "-m", "8:1024"];

/// Microseconds by size, for each round.
type Table = BTreeMap<u64, Vec<f64>>;

impl Platform {
    fn name(self) -> &'static str {
        match self {
            Platform::Process => "process",
            Platform::Kvm => "kvm",
            Platform::Tcg => "tcg",
        }
    }
}

/// Measures all tables.
pub fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-mpi")?;
    let (emulated, contestants): (Vec<_>, Vec<_>) = contestants::all(&folder, outcome, run)?
        .into_iter()
        .partition(|contestant| contestant.platform == Some(Platform::Tcg));
    let tables = run.size(&TABLES[..], &TABLES[..1]);
    let parts = tables.len() + 1 + emulated.len();
    let (mut barriers, mut floors) = (vec![Vec::new(); contestants.len()], Vec::new());
    let mut crowded = vec![Vec::new(); contestants.len()];
    for round in run.part(0, parts).rounds(ROUNDS) {
        for index in turn(contestants.len(), round) {
            barriers[index].extend(contestants[index].one_line(&folder, 2, &run.size(BARRIERS, BARRIERS_SHORT))?);
            // Of the same minute: a busy machine slows both.
            floors.extend(contestants[0].one_line(&folder, 2, &["floor"])?);
            crowded[index].extend(contestants[index].one_line(
                &folder,
                CROWDED_RANKS,
                &run.size(CROWDED_BARRIERS, BARRIERS_SHORT),
            )?);
        }
    }
    add_barriers(outcome, &contestants, &barriers, &floors);
    add_crowded_barriers(outcome, &contestants, &crowded);
    let mut ratios = vec![Vec::new(); contestants.len()];
    for (part, name) in (1..).zip(tables) {
        run.figures(outcome);
        let mut tables = vec![Table::new(); contestants.len()];
        let arguments = run.size(vec![*name], [&[*name], &SMALL[..]].concat());
        for round in run.part(part, parts).rounds(ROUNDS) {
            for index in turn(contestants.len(), round) {
                for (size, us) in contestants[index].table(&folder, 2, &arguments)? {
                    tables[index].entry(size).or_default().push(us);
                }
            }
        }
        add_table(outcome, name, &contestants, &tables, &mut ratios);
    }
    add_means(outcome, &contestants, &ratios);
    for (index, contestant) in emulated.iter().enumerate() {
        run.figures(outcome);
        add_emulated(outcome, contestant, tables, &folder, run)?;
        run.done(1 + tables.len() + index + 1, parts);
    }
    outcome.note("2 ranks; each size is the median of the rounds, and its peer the better of the others' medians");
    Ok(())
}

/// The name of a figure of a contestant.
fn figure_name(contestant: &Contestant, figure: &str) -> String {
    format!("mpi.{}.{figure}", contestant.platform.map_or(contestant.name, Platform::name))
}

fn add_barriers(outcome: &mut Outcome, contestants: &[Contestant], barriers: &[Vec<f64>], floors: &[f64]) {
    let Some(floor) = Summary::of(floors) else { return };
    for (contestant, samples) in contestants.iter().zip(barriers) {
        let figure = Figure::of(&figure_name(contestant, "barrier_us"), "us", samples);
        outcome.add(figure.map(|figure| figure.against("floor", floor.median)));
    }
    outcome.add(Figure::of("mpi.floor_us", "us", floors));
}

fn add_crowded_barriers(outcome: &mut Outcome, contestants: &[Contestant], samples: &[Vec<f64>]) {
    let best = best_peer(contestants, |index| Some(Summary::of(&samples[index])?.median));
    for (contestant, samples) in contestants.iter().zip(samples) {
        let figure = Figure::of(&figure_name(contestant, "barrier_4_ranks_us"), "us", samples);
        let is_ours = contestant.platform.is_some();
        let against = best.filter(|_| is_ours);
        outcome.add(figure.map(|figure| against.iter().fold(figure, |figure, (us, name)| figure.against(name, *us))));
    }
}

/// The contestant that is not ours with the lowest value.
fn best_peer(contestants: &[Contestant], value: impl Fn(usize) -> Option<f64>) -> Option<(f64, &'static str)> {
    let peers = contestants.iter().enumerate().filter(|(_, contestant)| contestant.platform.is_none());
    let values = peers.filter_map(|(index, contestant)| Some((value(index)?, contestant.name)));
    values.min_by(|a, b| a.0.total_cmp(&b.0))
}

/// Adds the figures of a table, and of each of ours the ratio to the better peer at every size to `ratios`.
fn add_table(outcome: &mut Outcome, name: &str, contestants: &[Contestant], tables: &[Table], ratios: &mut [Vec<f64>]) {
    let median = |index: usize, size: u64| Some(Summary::of(tables[index].get(&size)?)?.median);
    let mut lines = format!("{name} (us): size");
    contestants.iter().for_each(|contestant| lines += &format!(" / {}", contestant.name));
    for size in tables[0].keys() {
        lines += &format!("; {size}");
        (0..contestants.len())
            .for_each(|index| lines += &format!(" / {:.2}", median(index, *size).unwrap_or(f64::NAN)));
        let best = best_peer(contestants, |index| median(index, *size));
        for (index, contestant) in contestants.iter().enumerate().filter(|(_, found)| found.platform.is_some()) {
            let Some(samples) = tables[index].get(size) else { continue };
            if let (Some(own), Some((peer, _))) = (median(index, *size), best) {
                ratios[index].push(own / peer);
            }
            let Some((_, short)) = SIZES.iter().find(|(known, _)| known == size).filter(|_| name != "allgather") else {
                continue;
            };
            let figure = Figure::of(&figure_name(contestant, &format!("{name}.{short}_us")), "us", samples);
            outcome.add(figure.map(|figure| best.iter().fold(figure, |figure, (us, name)| figure.against(name, *us))));
        }
    }
    outcome.note(lines);
}

fn add_means(outcome: &mut Outcome, contestants: &[Contestant], ratios: &[Vec<f64>]) {
    for (contestant, ratios) in contestants.iter().zip(ratios).filter(|(_, ratios)| !ratios.is_empty()) {
        let mean = geometric_mean(ratios);
        let within = ratios.iter().filter(|ratio| **ratio <= 1.1).count() * 100 / ratios.len();
        let figure = Figure::of(&figure_name(contestant, "geomean"), "ratio", mean.as_slice());
        outcome.add(figure.map(|figure| figure.against("best peer", 1.0)));
        let (name, sizes) = (contestant.name, ratios.len());
        outcome.note(format!("{name}: of {sizes} sizes, {within} % are within 10 % of the better peer"));
    }
}

/// Where QEMU emulates the CPU, figures are compared with nothing: one run of each table, with few iterations.
fn add_emulated(
    outcome: &mut Outcome,
    contestant: &Contestant,
    tables: &[&str],
    folder: &Folder,
    run: &Run,
) -> Result<()> {
    let few = run.size(&FEW[..], &SMALL[..]);
    let barrier = contestant.one_line(folder, 2, &[&["barrier"], few].concat())?;
    outcome.add(Figure::of(&figure_name(contestant, "barrier_us"), "us", barrier.as_slice()));
    for name in tables {
        let mut line = format!("{} {name} (us): size", contestant.name);
        for (size, us) in contestant.table(folder, 2, &[&[*name], few].concat())? {
            line += &format!("; {size} / {us:.2}");
        }
        outcome.note(line);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_are_compared_with_the_better_peer() {
        let contestants = [
            Contestant::named("glass", Some(Platform::Process)),
            Contestant::named("glass kvm", Some(Platform::Kvm)),
            Contestant::named("openmpi", None),
            Contestant::named("mpich", None),
        ];
        let table = |us| Table::from([(8, vec![us])]);
        let (mut outcome, mut ratios) = (Outcome::default(), vec![Vec::new(); 4]);
        let tables = [table(1.0), table(6.0), table(4.0), table(2.0)];
        add_table(&mut outcome, "bcast", &contestants, &tables, &mut ratios);
        assert_eq!(ratios, [vec![0.5], vec![3.0], vec![], vec![]]);
        let names: Vec<&str> = outcome.figures.iter().map(|figure| figure.figure.as_str()).collect();
        assert_eq!(names, ["mpi.process.bcast.8_us", "mpi.kvm.bcast.8_us"]);
        assert_eq!((outcome.figures[1].against.as_deref(), outcome.figures[1].ratio), (Some("mpich"), Some(3.0)));
        add_means(&mut outcome, &contestants, &ratios);
        assert_eq!(outcome.figures[3].figure, "mpi.kvm.geomean");
    }
}
