//! Starts workers, reads their reports, keeps the inputs that failed, and continues after a case that ended a worker.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::coverage::Reached;
use crate::engine::Failure;
use crate::targets::Target;
use crate::worker::{self, Order};

/// A target with more different failures is stopped.
const PLACES_MAX: usize = 8;

/// The results of the cases of one target.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Cases that were run.
    pub cases: u64,
    /// Their duration.
    pub time: Duration,
    /// The first failure at each place, its number, and how many there were.
    pub failures: BTreeMap<String, (u64, Failure, u64)>,
    /// What coverage has reached, if it led.
    pub reached: Option<Reached>,
}

/// Runs the cases of a target in workers. Inputs that failed are written to `folder`.
pub fn run(target: &'static dyn Target, order: &Order, folder: &Path) -> Result<Outcome> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let progress = folder.join(format!("{}.{}.case", target.name(), std::process::id()));
    let started = Instant::now();
    let mut outcome = Outcome::default();
    let mut rest = order.clone();
    let end = order.first.saturating_add(order.cases);
    while rest.first < end && outcome.failures.len() < PLACES_MAX {
        rest.cases = end - rest.first;
        rest.time = order.time.saturating_sub(started.elapsed());
        let next = run_worker(target, &rest, &progress, &mut outcome)?;
        outcome.cases += next - rest.first;
        if rest.time.is_zero() || next == rest.first {
            break;
        }
        rest.first = next;
        if started.elapsed() >= order.time {
            break;
        }
    }
    outcome.time = started.elapsed();
    // These exist only after a worker's death.
    let _ = std::fs::remove_file(&progress);
    let _ = std::fs::remove_dir_all(progress.with_extension("scratch"));
    let _ = std::fs::remove_file(worker::input_path(&progress));
    if !outcome.failures.is_empty() && order.corpus.is_none() {
        let plan = order.plan(target)?;
        for (number, ..) in outcome.failures.values() {
            let path = input_path(folder, target, order.seed, *number);
            std::fs::write(&path, plan.input(*number)).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(outcome)
}

/// The path for the input of a failed case.
pub fn input_path(folder: &Path, target: &dyn Target, seed: u64, number: u64) -> PathBuf {
    folder.join(format!("{}-{seed}-{number}", target.name()))
}

/// Runs one worker to its end and returns the number of the case after its last one.
fn run_worker(target: &dyn Target, order: &Order, progress: &Path, outcome: &mut Outcome) -> Result<u64> {
    let program = std::env::current_exe().context("cannot find this program's own path")?;
    let mut child = Command::new(program)
        .args(["--worker", &progress.display().to_string(), target.name()])
        .args(["--seed", &order.seed.to_string(), "--first", &order.first.to_string()])
        .args(["--cases", &order.cases.to_string(), "--seconds", &order.time.as_secs_f64().to_string()])
        .args(["--case-seconds", &order.case_time_max.as_secs_f64().to_string()])
        .args(order.corpus.iter().flat_map(|corpus| [OsStr::new("--corpus"), corpus.as_os_str()]))
        .args(order.valid.iter().flat_map(|valid| [OsStr::new("--valid"), valid.as_os_str()]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start a worker")?;
    let errors = child.stderr.take().map(|stderr| std::thread::spawn(move || std::io::read_to_string(stderr)));
    let mut add = |number: u64, failure: Failure| {
        outcome.failures.entry(failure.place.clone()).or_insert((number, failure, 0)).2 += 1;
    };
    let (mut done, mut last_failed, mut reached) = (None, None, None);
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        let line = line.context("cannot read the worker's output")?;
        let mut words = line.splitn(4, '\t');
        match (words.next(), words.next().and_then(|word| word.parse::<u64>().ok())) {
            (Some("done"), Some(cases)) => done = Some(cases),
            (Some("reached"), Some(edges)) => {
                let inputs = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                let is_full = words.next() == Some("true");
                reached = Some(Reached { edges: edges as usize, inputs, is_full });
            }
            (Some("failure"), Some(number)) => {
                let mut next = || words.next().unwrap_or("?").to_owned();
                add(number, Failure { place: next(), what: next() });
                last_failed = Some(number);
            }
            // The parser may print other lines.
            _ => {}
        }
    }
    let status = child.wait().context("cannot wait for a worker")?;
    let errors = errors.and_then(|thread| thread.join().ok()).and_then(Result::ok).unwrap_or_default();
    outcome.reached = reached.or(outcome.reached);
    if let Some(cases) = done {
        return Ok(order.first + cases);
    }
    let bytes = std::fs::read(progress).unwrap_or_default();
    let current = bytes.first_chunk().map_or(order.first, |number| u64::from_le_bytes(*number));
    // The worker itself has reported one that took too long.
    if last_failed != Some(current) || status.signal().is_some() {
        let last = errors.lines().rfind(|line| !line.is_empty()).unwrap_or("printed nothing").to_owned();
        let place = format!("{status}: {last}");
        add(current, Failure { what: "ended the process".to_owned(), place });
    }
    // An input that coverage has found cannot be made again from its number. The worker has written it before it ran it.
    if order.corpus.is_some()
        && let Some(folder) = progress.parent()
    {
        let (from, to) = (worker::input_path(progress), input_path(folder, target, order.seed, current));
        std::fs::copy(&from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    Ok(current + 1)
}
