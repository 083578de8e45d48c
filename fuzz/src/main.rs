//! `glass-fuzz`: what `cargo xtask fuzz` runs.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use glass_fuzz::coverage::Reached;
use glass_fuzz::targets::{self, Target};
use glass_fuzz::worker::{self, Order};
use glass_fuzz::{engine, scratch, supervisor};

#[derive(Parser)]
#[command(about = "Feeds mutated inputs to every parser of untrusted input")]
struct Arguments {
    /// The parser to fuzz; all by default
    target: Option<String>,
    /// Total duration
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Maximum of cases of each target
    #[arg(long, default_value_t = u64::MAX)]
    cases: u64,
    /// Seed of the cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs only this input, which has failed before
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// Folder for inputs that fail
    #[arg(long, value_name = "FOLDER", default_value = "target/fuzz")]
    folder: PathBuf,
    /// Keeps inputs that reach new code in this folder, and changes them further; needs a build by `cargo xtask fuzz --coverage`
    #[arg(long, value_name = "FOLDER")]
    corpus: Option<PathBuf>,
    /// A folder with valid inputs, beside those that the target makes
    #[arg(long, value_name = "FOLDER", requires = "target", conflicts_with = "corpus")]
    valid: Option<PathBuf>,
    /// Maximum CPU time of a case
    #[arg(long, default_value_t = engine::CASE_TIME_MAX.as_secs_f64())]
    case_seconds: f64,
    /// The number of the first case
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Runs the cases in this process, and writes the number of the current one to this file
    #[arg(long, value_name = "FILE", hide = true)]
    worker: Option<PathBuf>,
}

fn seconds(number: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(number).with_context(|| format!("{number} is not a number of seconds"))
}

fn run(arguments: &Arguments) -> Result<bool> {
    let order = Order {
        seed: arguments.seed,
        first: arguments.first,
        cases: arguments.cases,
        time: seconds(arguments.seconds)?,
        case_time_max: seconds(arguments.case_seconds)?,
        corpus: arguments.corpus.clone(),
        valid: arguments.valid.clone(),
    };
    let chosen = match &arguments.target {
        None => targets::ALL.to_vec(),
        Some(name) => {
            let names: Vec<&str> = targets::ALL.iter().map(|target| target.name()).collect();
            vec![targets::find(name).with_context(|| format!("there is no target {name}: {}", names.join(", ")))?]
        }
    };
    if let (Some(progress), [target]) = (&arguments.worker, &chosen[..]) {
        worker::work(*target, &order, progress)?;
        return Ok(true);
    }
    let ours = arguments.folder.join(format!("{}.scratch", std::process::id()));
    scratch::set(&ours).with_context(|| format!("cannot make {}", ours.display()))?;
    let result = watch_or_replay(arguments, chosen, order);
    std::fs::remove_dir_all(&ours).with_context(|| format!("cannot remove {}", ours.display()))?;
    result
}

fn watch_or_replay(arguments: &Arguments, chosen: Vec<&'static dyn Target>, mut order: Order) -> Result<bool> {
    if let (Some(path), [target]) = (&arguments.input, &chosen[..]) {
        let input = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        // Panics print their location themselves.
        engine::run(*target, &input, order.case_time_max)
            .or_else(|failure| bail!("{}: {}", failure.place, failure.what))?;
        println!("{} parses {} without a failure", target.name(), path.display());
        return Ok(true);
    }
    order.time /= chosen.len() as u32;
    let mut is_good = true;
    let led = if order.corpus.is_some() { format!(" {:>8} {:>7}", "edges", "inputs") } else { String::new() };
    println!("{:>14} {:>10} {:>8} {:>9}{led}", "target", "cases", "seconds", "failures");
    for target in chosen {
        is_good &= fuzz(target, &order, arguments)?;
    }
    Ok(is_good)
}

fn fuzz(target: &'static dyn Target, order: &Order, arguments: &Arguments) -> Result<bool> {
    let order = Order { cases: order.cases.div_ceil(target.cost()), ..order.clone() };
    let outcome = supervisor::run(target, &order, &arguments.folder)?;
    let failed: u64 = outcome.failures.values().map(|(_, _, count)| count).sum();
    let (name, took) = (target.name(), outcome.time.as_secs_f64());
    let led = outcome.reached.map_or(String::new(), |Reached { edges, inputs, is_full }| {
        format!(" {edges:>8} {inputs:>7}{}", if is_full { " (no room for more)" } else { "" })
    });
    println!("{name:>14} {:>10} {took:>8.1} {failed:>9}{led}", outcome.cases);
    for (place, (number, failure, count)) in &outcome.failures {
        let path = supervisor::input_path(&arguments.folder, target, order.seed, *number);
        println!(
            "{name}, seed {}, case {number} ({count} alike): {} at {place}\n  again: cargo xtask fuzz {name} --input {}",
            order.seed,
            failure.what,
            path.display()
        );
    }
    Ok(outcome.failures.is_empty())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
