//! Runs cases one after the other in a separate process, which a case may end.
//!
//! Failures are lines on standard output; the number of the current case is in a file, for the supervisor to read if this
//! process dies.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::ClockId;

use crate::coverage::Guided;
use crate::engine::{self, Failure, Plan};
use crate::targets::Target;
use crate::{scratch, supervisor, sys};

/// Memory that one case may allocate, in addition to the process's own.
const CASE_BYTES_MAX: u64 = 1 << 30;
/// A case that takes so much longer than it may is ended.
const HANG_FACTOR: u32 = 5;
/// A case that uses no CPU time for so long waits for an event that never happens.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The cases to run.
#[derive(Debug, Clone)]
pub struct Order {
    /// The seed of all of them.
    pub seed: u64,
    /// The first number.
    pub first: u64,
    /// The maximum number.
    pub cases: u64,
    /// The time limit.
    pub time: Duration,
    /// Maximum CPU time of a case.
    pub case_time_max: Duration,
    /// The folder of the inputs of all targets that coverage has found, if coverage leads.
    pub corpus: Option<PathBuf>,
    /// A folder with valid inputs beside the target's own.
    pub valid: Option<PathBuf>,
}

impl Order {
    /// The cases of a target, by their numbers.
    pub fn plan(&self, target: &'static dyn Target) -> Result<Plan> {
        let mut paths = Vec::new();
        if let Some(folder) = &self.valid {
            let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
            paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
            paths.sort();
        }
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        Ok(Plan::new(target, self.seed, paths.iter().map(read).collect::<Result<_>>()?))
    }
}

/// Where the inputs of a worker come from.
enum Cases {
    /// From their numbers.
    Numbered(Plan),
    /// From what the ones before have reached. The file holds the current one, for the supervisor to keep if this process dies.
    Led(Box<Guided>, PathBuf),
}

impl Cases {
    fn new(target: &'static dyn Target, order: &Order, progress: &Path) -> Result<Cases> {
        let Some(corpus) = &order.corpus else { return Ok(Cases::Numbered(order.plan(target)?)) };
        ensure!(
            sys::count() > 0,
            "this program has no counters for coverage: `cargo xtask fuzz --coverage` builds one"
        );
        // After a case that ended a worker the next one does not repeat its numbers.
        let seed = order.seed ^ order.first.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let guided = Guided::new(target, seed, &corpus.join(target.name()), sys::take)?;
        Ok(Cases::Led(Box::new(guided), input_path(progress)))
    }

    fn next(&mut self, number: u64) -> Result<Vec<u8>> {
        match self {
            Cases::Numbered(plan) => Ok(plan.input(number)),
            Cases::Led(guided, path) => {
                let input = guided.next_input();
                std::fs::write(&*path, &input).with_context(|| format!("cannot write {}", path.display()))?;
                guided.clear();
                Ok(input)
            }
        }
    }
}

/// The file of the current input, beside that of its number.
pub fn input_path(progress: &Path) -> PathBuf {
    progress.with_extension("input")
}

/// The start of the current case: in CPU time of this process, and by the clock, both in milliseconds.
struct Watched {
    started: Instant,
    number: AtomicU64,
    cpu_ms: AtomicU64,
    wall_ms: AtomicU64,
}

/// One line about a failure.
fn report(number: u64, failure: &Failure) {
    let mut output = std::io::stdout().lock();
    // The supervisor may be gone; then the report is not needed.
    let _ = writeln!(output, "failure\t{number}\t{}\t{}", failure.place, failure.what);
    let _ = output.flush();
}

/// Runs cases and reports each failure; `progress` is the file for the number of the current case.
pub fn work(target: &'static dyn Target, order: &Order, progress: &Path) -> Result<()> {
    scratch::set(&progress.with_extension("scratch")).context("cannot make a folder")?;
    let file = File::create(progress).with_context(|| format!("cannot write {}", progress.display()))?;
    let mut cases = Cases::new(target, order, progress)?;
    engine::quiet_panics();
    limit_memory()?;
    let watched = Watched {
        started: Instant::now(),
        number: AtomicU64::new(order.first),
        cpu_ms: AtomicU64::new(0),
        wall_ms: AtomicU64::new(0),
    };
    // The code that ends the process takes this lock too, so that no line is cut.
    let done = Mutex::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&watched, &done, order.case_time_max));
        let mut number = order.first;
        let end = order.first.saturating_add(order.cases);
        while number < end && watched.started.elapsed() < order.time {
            file.write_all_at(&number.to_le_bytes(), 0).context("cannot write the number of a case")?;
            watched.number.store(number, Ordering::Relaxed);
            watched.cpu_ms.store(process_ms(), Ordering::Relaxed);
            watched.wall_ms.store(wall_ms(&watched), Ordering::Relaxed);
            let input = cases.next(number)?;
            match (engine::run(target, &input, order.case_time_max), &mut cases) {
                (Ok(()), Cases::Led(guided, _)) => guided.learn(input)?,
                (Ok(()), Cases::Numbered(_)) => {}
                (Err(failure), Cases::Numbered(_)) => report(number, &failure),
                (Err(failure), Cases::Led(..)) => {
                    let folder = progress.parent().context("the progress has a folder")?;
                    let path = supervisor::input_path(folder, target, order.seed, number);
                    std::fs::write(&path, input).with_context(|| format!("cannot write {}", path.display()))?;
                    report(number, &failure);
                }
            }
            number += 1;
        }
        if let Ok(mut done) = done.lock() {
            *done = true;
        }
        watcher.thread().unpark();
        if let Cases::Led(guided, _) = &cases {
            let reached = guided.reached();
            println!("reached\t{}\t{}\t{}", reached.edges, reached.inputs, reached.is_full);
        }
        println!("done\t{}", number - order.first);
        Ok(())
    })
}

fn process_ms() -> u64 {
    engine::cpu_time(ClockId::ProcessCPUTime).as_millis() as u64
}

fn wall_ms(watched: &Watched) -> u64 {
    watched.started.elapsed().as_millis() as u64
}

/// Ends the process when a case does not end.
fn watch(watched: &Watched, done: &Mutex<bool>, case_time_max: Duration) {
    let cpu_ms_max = (case_time_max * HANG_FACTOR).as_millis() as u64;
    loop {
        std::thread::park_timeout(Duration::from_millis(200));
        if done.lock().is_ok_and(|done| *done) {
            return;
        }
        let number = watched.number.load(Ordering::Relaxed);
        let cpu_ms = process_ms().saturating_sub(watched.cpu_ms.load(Ordering::Relaxed));
        let waited_ms = wall_ms(watched).saturating_sub(watched.wall_ms.load(Ordering::Relaxed));
        let what = if cpu_ms > cpu_ms_max {
            format!("still busy after {cpu_ms} ms of CPU time")
        } else if waited_ms > WAIT_MAX.as_millis() as u64 && cpu_ms < waited_ms / 20 {
            format!("waits for {waited_ms} ms")
        } else {
            continue;
        };
        if number == watched.number.load(Ordering::Relaxed) {
            report(number, &Failure { what, place: "time".to_owned() });
            std::process::exit(1);
        }
    }
}

/// Limits this process to so much more memory than it has now, in address space: reserved memory
/// counts too, as a parser that trusts a length reserves it first.
fn limit_memory() -> Result<()> {
    let pages = std::fs::read_to_string("/proc/self/statm").context("cannot read our own size")?;
    let pages: u64 =
        pages.split(' ').next().and_then(|pages| pages.parse().ok()).context("our size is not a number")?;
    // A thread that a case starts reserves an arena for the allocator and a stack.
    let bytes = pages * 4096 + CASE_BYTES_MAX + (256 << 20);
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::As, limit).context("cannot limit our memory")
}
