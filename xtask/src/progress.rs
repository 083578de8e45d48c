//! Progress of a command with several steps, and at its end the duration of each.

use indicatif::{ProgressBar, ProgressStyle};

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a bar moves by itself while a step runs.
const TICK: Duration = Duration::from_millis(120);

/// Titles of completed steps, and their durations.
type Times = Arc<Mutex<Vec<(String, Duration)>>>;

/// The steps of one command. Its drop prints the duration of each step, longest first.
pub struct Steps {
    total: usize,
    begun: usize,
    times: Times,
}

/// A step in progress. Dropping it without [`Step::done`] means that it failed.
pub struct Step {
    bar: ProgressBar,
    title: String,
    begin: Instant,
    is_done: bool,
    times: Times,
}

/// The data of a mutex. A thread that panicked has left it consistent.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn record(times: &Times, title: &str, time: Duration) {
    locked(times).push((title.to_owned(), time));
}

impl Steps {
    /// A command of `total` steps.
    pub fn new(total: usize) -> Steps {
        Steps { total, begun: 0, times: Times::default() }
    }

    /// Starts the next step. With `units` of work it has a bar on a terminal; without, its command shows its own progress.
    pub fn begin(&mut self, title: &str, units: Option<u64>) -> Step {
        self.begun += 1;
        let numbered = format!("[{}/{}] {title}", self.begun, self.total);
        let bar = match units {
            Some(units) if stderr().is_terminal() => ProgressBar::new(units),
            _ => ProgressBar::hidden(),
        };
        if bar.is_hidden() {
            eprintln!("{numbered} ...");
        } else {
            let style = ProgressStyle::with_template("{prefix} {bar:30} {percent:>3} %");
            bar.set_style(style.expect("the template is constant"));
            bar.set_prefix(numbered);
            bar.enable_steady_tick(TICK);
        }
        Step { bar, title: title.to_owned(), begin: Instant::now(), is_done: false, times: self.times.clone() }
    }

    /// Adds steps to the plan.
    pub fn more(&mut self, count: usize) {
        self.total += count;
    }

    /// Steps that have not started.
    pub fn left(&self) -> usize {
        self.total.saturating_sub(self.begun)
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        let mut sums = BTreeMap::<String, (Duration, u32)>::new();
        for (title, time) in std::mem::take(&mut *locked(&self.times)) {
            let (sum, count) = sums.entry(title).or_default();
            *sum += time;
            *count += 1;
        }
        if sums.len() < 2 {
            return;
        }
        let mut times: Vec<_> = sums.into_iter().collect();
        times.sort_by_key(|(_, (sum, _))| std::cmp::Reverse(*sum));
        eprintln!("\nduration of each step:");
        for (title, (sum, count)) in times {
            let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
            eprintln!("  {:7.1} s  {title}{times}", sum.as_secs_f64());
        }
    }
}

impl Step {
    /// Reports how many units are done.
    pub fn set(&self, units: u64) {
        self.bar.set_position(units);
    }

    /// Prints to standard output, above the bar.
    pub fn print(&self, text: &str) {
        self.bar.suspend(|| print!("{text}"));
    }

    /// Ends the step; `note` is its result as text, or empty.
    pub fn done(self, note: &str) {
        let time = self.begin.elapsed();
        self.done_within(time, note);
    }

    /// The same for work that ran in parallel with earlier steps and took `time`.
    pub fn done_within(mut self, time: Duration, note: &str) {
        self.is_done = true;
        self.bar.finish_and_clear();
        let note = if note.is_empty() { String::new() } else { format!(": {note}") };
        eprintln!("    {:.1} s{note}", time.as_secs_f64());
        record(&self.times, &self.title, time);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.is_done {
            self.bar.finish_and_clear();
            let time = self.begin.elapsed();
            eprintln!("    failed after {:.1} s", time.as_secs_f64());
            record(&self.times, &format!("{} (failed)", self.title), time);
        }
    }
}
