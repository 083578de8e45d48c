//! `cargo xtask bench NAME [PART]`: builds, measures, prints tables as they grow and writes the figures as JSON. With `--short` each
//! measurement only shows that it works.

mod short;

use crate::progress::{Step, Steps, locked};
use crate::{build, packages, run};
use anyhow::{Context, Result, bail};
use glass_bench::figure::Results;
use glass_bench::outcome::Outcome;
use glass_bench::run::{MINUTES, News, Run};
use glass_bench::{BENCHMARKS, Measurement, figure};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub use short::test_all;

/// The interval of tables while a part is measured.
const TABLE_EVERY: Duration = Duration::from_secs(30);

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What to measure; perf compares profiles with those of perf, linux records stock Linux guests
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(BENCHMARKS.map(|benchmark| benchmark.name)))]
    #[arg(required_unless_present = "short")]
    name: Option<String>,
    /// Only this part: of sampling pauses, loss, record, torn or oracle, of tracing cost, instructions, page or throughput, of network tcp, udp, offloads, vmms, flood or loss, of disk peers or vmms, of queue loopback, tap, small or cells, of perf shares, stacks or names, of platform wakes or tx-blocked, of linux guests, pause, shares or off-cpu, of web kvm-tcp, kvm-vsock, kvm-disk, tcg-tcp, tcg-vsock or tcg-disk, of xen traces, block or network
    part: Option<String>,
    /// The time that each part has; five rounds are measured however long they take
    #[arg(long, value_name = "MINUTES", default_value_t = MINUTES, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Also measure what an ordinary run leaves out: all cells of network loss and queue cells
    #[arg(long, conflicts_with = "short")]
    long: bool,
    /// Of network loss only the transfers, and of queue cells only the figures, with this in their names, such as bbr.p3 or tls.put.4k
    #[arg(long, value_name = "TEXT", conflicts_with = "short")]
    only: Option<String>,
    /// Only show that each measurement works, with the programs of `cargo xtask test`: one round, the smallest sizes, figures without a meaning; without NAME all of them
    #[arg(long)]
    short: bool,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<()> {
    let part = options.part.as_deref();
    let Some(name) = options.name.as_deref().filter(|_| !options.short) else {
        return short::run(options.name.as_deref(), part);
    };
    let measurements = glass_bench::measurements(Some(name), part)?;
    packages::ensure(match name {
        "perf" => packages::FOR_BENCH_PERF,
        "mpi" => packages::FOR_BENCH_MPI,
        "queue" => packages::FOR_BENCH_QUEUE,
        "network" => packages::FOR_BENCH_NETWORK,
        "disk" | "store" | "console" | "cores" => packages::FOR_BENCH_DISK,
        "xen" => packages::FOR_BENCH_XEN,
        "web" | "vsock" => packages::FOR_BENCH_WEB,
        _ => packages::FOR_BENCH,
    })?;
    let mut steps = Steps::new(2 + measurements.len());
    let step = steps.begin("build glass and the queue as a process", None);
    match (name, part) {
        // A page is measured without a service.
        ("tracing", Some("page")) => {}
        // Linux guests run no service, and a `glass` that is built already is fast enough.
        ("linux", _) if short::has_programs() => {}
        ("linux", _) => build::for_linux_guests()?,
        ("network", Some("loss")) => {
            build::glass()?;
            build::process("bench-tcp")?;
        }
        ("queue", Some("cells")) => {
            build::glass()?;
            build::process("upload-queue")?;
        }
        _ => build::processes()?,
    }
    step.done("");
    let step = steps.begin("build the images", None);
    step.done(&build::measured(name, part)?);
    let file = part.map_or(name.to_owned(), |part| format!("{name}-{part}"));
    let command = part.map_or(format!("cargo xtask bench {name}"), |part| format!("cargo xtask bench {name} {part}"));
    *locked(&KEPT) = Some(Kept { file, command, measured: Outcome::default(), so_far: Outcome::default() });
    let mut failed = Vec::new();
    for measurement in &measurements {
        // In percent, because the number of rounds is the benchmark's own business.
        let step = steps.begin(&format!("measure {measurement}"), Some(100));
        if let Err(error) = measure(measurement, options, step) {
            eprintln!("{measurement} failed: {error:#}");
            failed.push(measurement.to_string());
        }
    }
    let Some(Kept { file, command, measured, .. }) = locked(&KEPT).take() else { return Ok(()) };
    let results = results(command, measured);
    let path = write(&file, &results)?;
    let Results { machine, commit, command, .. } = &results;
    println!("- {machine}; commit {commit}; {command}\n- written to {}", path.display());
    if !failed.is_empty() {
        bail!("these measurements failed: {}", failed.join(", "));
    }
    Ok(())
}

/// What has been measured, for the end of the command and for an interrupt.
struct Kept {
    /// The name of the file, without its ending.
    file: String,
    /// The command that measures.
    command: String,
    /// By the parts that are done.
    measured: Outcome,
    /// By the part that is being measured.
    so_far: Outcome,
}

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// Measures one part; prints its figures meanwhile, and what there is when it fails.
fn measure(measurement: &Measurement, options: &Options, step: Step) -> Result<()> {
    let printed = Cell::new(Instant::now());
    let show = |news: News| match news {
        News::Done(share) => step.set((share * 100.0) as u64),
        News::SoFar(outcome) => {
            if let Some(kept) = &mut *locked(&KEPT) {
                kept.so_far.clone_from(outcome);
            }
            if printed.get().elapsed() >= TABLE_EVERY {
                printed.set(Instant::now());
                step.print(&format!("\n{measurement}, so far:\n{}", figure::table(&outcome.figures)));
            }
        }
    };
    let time = Duration::from_secs(options.minutes * 60);
    let result = measurement.run(&Run::new(&show, time).with_long(options.long).with_only(options.only.as_deref()));
    let mut kept = locked(&KEPT);
    let kept = kept.as_mut().context("figures are kept until the end")?;
    let so_far = std::mem::take(&mut kept.so_far);
    let outcome = result.as_ref().unwrap_or(&so_far);
    step.print(&text(measurement, outcome));
    kept.measured.extend(outcome.clone());
    result?;
    step.done("");
    Ok(())
}

/// The table and the notes of a part.
fn text(measurement: &Measurement, outcome: &Outcome) -> String {
    if let Some(reason) = &outcome.skipped {
        return format!("skipped {measurement}: {reason}\n");
    }
    let notes = outcome.notes.iter().map(|note| format!("- {note}\n"));
    format!("\n{}{}", figure::table(&outcome.figures), notes.collect::<String>())
}

/// Prints and writes what has been measured until an interrupt.
pub fn keep_interrupted() {
    let Some(Kept { file, command, mut measured, so_far }) = locked(&KEPT).take() else { return };
    if !so_far.figures.is_empty() {
        println!("\nuntil the interrupt:\n{}", figure::table(&so_far.figures));
    }
    measured.extend(so_far);
    if !measured.figures.is_empty() {
        match write(&format!("{file}-interrupted"), &results(command, measured)) {
            Ok(path) => println!("- written to {}", path.display()),
            Err(error) => eprintln!("error: {error:#}"),
        }
    }
}

fn write(file: &str, results: &Results) -> Result<PathBuf> {
    let folder = run::target_dir().join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path: PathBuf = folder.join(Path::new(file).with_extension("json"));
    std::fs::write(&path, results.json()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The figures, with machine, day, commit and command.
fn results(command: String, measured: Outcome) -> Results {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = processor.lines().filter(|line| line.starts_with("model name")).collect();
    let model = models.first().and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown processor");
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    let printed = |program: &str, arguments: &[&str]| {
        let text = run::quiet(std::process::Command::new(program).args(arguments).current_dir(run::root()));
        text.map_or("unknown".to_owned(), |text| text.trim().to_owned())
    };
    Results {
        machine: format!("{} x {model}, load {load}", models.len()),
        date: printed("date", &["-u", "+%F"]),
        commit: printed("git", &["describe", "--always", "--dirty"]),
        command,
        figures: measured.figures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_named_by_the_help_and_runs_for_a_moment() {
        let command = <Options as clap::Args>::augment_args(clap::Command::new("bench"));
        let part = command.get_arguments().find(|argument| argument.get_id() == "part").unwrap();
        let help = part.get_help().unwrap().to_string();
        let runs: Vec<String> = short::measurements(None, None).unwrap().iter().map(Measurement::to_string).collect();
        for benchmark in &BENCHMARKS {
            for part in benchmark.part_names() {
                let name = format!("{} {part}", benchmark.name);
                assert!(runs.iter().any(|run| run == name.trim()), "{name} does not run with --short");
                let words = help.split([' ', ',']).collect::<Vec<_>>();
                assert!(part.is_empty() || words.contains(&part), "the help does not name {name}");
            }
        }
    }

    #[test]
    fn a_part_that_was_left_out_has_a_line() {
        let measurement = glass_bench::measurements(Some("size"), None).unwrap()[0];
        let outcome = Outcome { skipped: Some("no strip".to_owned()), ..Outcome::default() };
        assert_eq!(text(&measurement, &outcome), "skipped size: no strip\n");
    }
}
