//! Tries states one by one, in an order that a seed determines, and looks for the least that is missing where something was lost.

use crate::image::Builder;
use crate::log::{Data, Log};
use crate::progress::{Done, Kept};
use crate::state::{Chooser, State};
use anyhow::{Context, Result, ensure};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// States that were equal to earlier ones, one behind the other, until there are no others.
const EQUAL_MAX: u64 = 4096;

/// A moment at which the power is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The number of the state, from 1 on.
    pub number: u64,
    /// What was acknowledged before must be there: nanoseconds since 1970, by the clock of the log.
    pub time_ns: u64,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All is there.
    Kept,
    /// Something is lost, or there was no answer.
    Lost {
        /// How that was seen.
        why: String,
        /// What the check printed.
        output: String,
    },
    /// The user ended it.
    Stopped,
}

/// Boots and checks a state.
pub trait Tester {
    /// Tests the disk in the file `image`, which it may change.
    ///
    /// # Errors
    /// Nothing can be tested.
    fn test(&mut self, image: &Path, cut: &Cut) -> Result<Verdict>;

    /// What the last boot printed.
    fn boot_output(&self) -> String;
}

/// How much to try.
#[derive(Debug, Clone)]
pub struct Options {
    /// Different states, at most.
    pub states: u64,
    /// Chooses them.
    pub seed: u64,
    /// How long, at most.
    pub time: Option<Duration>,
    /// Whether to continue behind the first loss.
    pub continues: bool,
    /// Tests to find the least that is missing, at most.
    pub reductions: u64,
    /// Where images are made.
    pub folder: PathBuf,
}

/// A state that lost something.
#[derive(Debug, Clone)]
pub struct Loss {
    /// When the power was cut.
    pub cut: Cut,
    /// The state in which the least is missing.
    pub state: State,
    /// How many writes were missing at first.
    pub missing_at_first: usize,
    /// Whether nothing that is missing can be added without that the check succeeds.
    pub is_least: bool,
    /// How it was seen.
    pub why: String,
    /// What the check printed.
    pub output: String,
    /// The end of what the boot printed.
    pub boot_output: String,
}

/// What was tried.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Different states that were tested, those of earlier runs included.
    pub tested: u64,
    /// Those that lost something, each time that they were tested.
    pub losses: Vec<Loss>,
    /// States that lost something when they were tested first, and not when they were tested again: their numbers.
    pub unsteady: Vec<u64>,
    /// Whether there are no other states of these kinds.
    pub is_all: bool,
    /// Whether it ended early, by the time or by the user.
    pub is_cut_short: bool,
    /// How long it took.
    pub duration: Duration,
}

/// Tries states of a log; `report` is called behind each one.
///
/// # Errors
/// A file cannot be made, or a command cannot be run.
pub fn run<D: Data + ?Sized>(
    log: &Log,
    builder: &mut Builder<'_, D>,
    tester: &mut dyn Tester,
    options: &Options,
    kept: &mut dyn Kept,
    mut report: impl FnMut(&Outcome),
) -> Result<Outcome> {
    let start = Instant::now();
    let chooser = Chooser::new(log, options.seed, options.states);
    let mut outcome = Outcome::default();
    let mut known = HashSet::new();
    let (mut number, mut equal) = (0, 0);
    let image = options.folder.join("state.img");
    while outcome.tested < options.states {
        if options.time.is_some_and(|time| start.elapsed() > time) {
            outcome.is_cut_short = true;
            break;
        }
        number += 1;
        if let Some(hash) = kept.known(number) {
            outcome.tested += u64::from(known.insert(hash));
            continue;
        }
        let state = chooser.state(number - 1);
        let hash = builder.hash(&state)?;
        if known.contains(&hash) {
            equal += 1;
            if equal > EQUAL_MAX {
                outcome.is_all = true;
                break;
            }
            continue;
        }
        equal = 0;
        let cut = Cut { number, time_ns: log.epochs[state.epoch].end_ns - 1 };
        let mut test = |state: &State| {
            builder.build(state, &image)?;
            tester.test(&image, &cut)
        };
        let verdict = match test(&state)? {
            Verdict::Lost { .. } => match test(&state)? {
                Verdict::Lost { why, output } => {
                    Some(reduce(log, state, Loss::new(cut, why, output), options, &mut test)?)
                }
                Verdict::Kept => {
                    outcome.unsteady.push(number);
                    None
                }
                Verdict::Stopped => {
                    outcome.is_cut_short = true;
                    break;
                }
            },
            Verdict::Kept => None,
            Verdict::Stopped => {
                outcome.is_cut_short = true;
                break;
            }
        };
        known.insert(hash);
        outcome.tested += 1;
        outcome.duration = start.elapsed();
        let is_lost = verdict.is_some();
        if let Some(mut loss) = verdict {
            loss.boot_output = tester.boot_output();
            outcome.losses.push(loss);
        }
        kept.add(&Done { number, hash, is_lost })?;
        report(&outcome);
        if is_lost && !options.continues {
            break;
        }
    }
    outcome.duration = start.elapsed();
    // The last state, for the user, if it lost something.
    if outcome.losses.is_empty() {
        let _ = std::fs::remove_file(&image);
    }
    Ok(outcome)
}

impl Loss {
    /// What is missing, in a sentence.
    pub fn sentence(&self, log: &Log) -> String {
        let missing = self.state.missing(log).len();
        let unflushed = log.unflushed(self.state.epoch).len();
        if missing == 0 {
            return "no write is missing: what was acknowledged had not been written to the disk".to_owned();
        }
        let least =
            if self.is_least { "each one is needed for the loss" } else { "perhaps less is enough (--reductions)" };
        format!("{missing} of {unflushed} unflushed writes are missing ({} at first): {least}", self.missing_at_first)
    }

    fn new(cut: Cut, why: String, output: String) -> Loss {
        let state = State { epoch: 0, kept: Vec::new() };
        Loss { cut, state, missing_at_first: 0, is_least: false, why, output, boot_output: String::new() }
    }
}

/// Adds what is missing, in halves and then one by one, as long as the check still fails.
fn reduce(
    log: &Log,
    mut state: State,
    mut loss: Loss,
    options: &Options,
    test: &mut impl FnMut(&State) -> Result<Verdict>,
) -> Result<Loss> {
    let mut missing = state.missing(log);
    loss.missing_at_first = missing.len();
    let mut left = options.reductions;
    let mut size = missing.len().div_ceil(2).max(1);
    // Nothing missing, and it fails: the state itself is what a reset leaves.
    loss.is_least = missing.is_empty();
    while left > 0 && missing.len() > 1 {
        let mut is_changed = false;
        let mut at = 0;
        while at < missing.len() && left > 0 && missing.len() > 1 {
            let end = (at + size).min(missing.len());
            // All of them at once are tried last.
            if end - at == missing.len() {
                break;
            }
            let fuller = state.with_whole(&missing[at..end]);
            left -= 1;
            match test(&fuller)? {
                Verdict::Lost { why, output } => {
                    (loss.why, loss.output) = (why, output);
                    state = fuller;
                    missing.drain(at..end);
                    is_changed = true;
                }
                Verdict::Kept => at = end,
                Verdict::Stopped => left = 0,
            }
        }
        if size == 1 && !is_changed && left > 0 {
            loss.is_least = true;
            break;
        }
        size = size.div_ceil(2).max(1);
    }
    if missing.len() == 1 && left > 0 {
        // Whole, it must be kept, or it has no part in the loss.
        match test(&state.with_whole(&missing))? {
            Verdict::Lost { why, output } => {
                (loss.why, loss.output) = (why, output);
                state = state.with_whole(&missing);
                loss.is_least = true;
            }
            Verdict::Kept => loss.is_least = true,
            Verdict::Stopped => {}
        }
    }
    loss.state = state;
    Ok(loss)
}

/// Makes a folder for images, if it is not there.
///
/// # Errors
/// It cannot be made.
pub fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    ensure!(folder.is_dir(), "{} is no folder", folder.display());
    Ok(())
}
