//! Progress of a command with several steps: a bar on a terminal, plain lines otherwise.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// How often the bar moves by itself while a step runs.
const TICK: Duration = Duration::from_millis(120);

/// The steps of one command.
pub struct Steps {
    total: usize,
    done: usize,
    is_terminal: bool,
}

/// A step under way. Dropping it without [`Step::done`] means that it failed.
pub struct Step {
    bar: ProgressBar,
    title: String,
    begin: Instant,
    is_terminal: bool,
}

impl Steps {
    /// A command of `total` steps.
    pub fn new(total: usize) -> Steps {
        Steps { total, done: 0, is_terminal: stderr().is_terminal() }
    }

    /// Begins the next step, of `units` units of work if they can be counted.
    pub fn begin(&mut self, title: &str, units: Option<u64>) -> Step {
        self.done += 1;
        let title = format!("[{}/{}] {title}", self.done, self.total);
        let bar = if self.is_terminal { ProgressBar::new(units.unwrap_or(0)) } else { ProgressBar::hidden() };
        if self.is_terminal {
            let template = match units {
                Some(_) => "{prefix} {bar:30} {percent:>3} % {msg}",
                None => "{spinner} {prefix} {elapsed} {msg}",
            };
            bar.set_style(ProgressStyle::with_template(template).expect("the template is constant"));
            bar.set_prefix(title.clone());
            bar.enable_steady_tick(TICK);
        } else {
            eprintln!("{title} ...");
        }
        Step { bar, title, begin: Instant::now(), is_terminal: self.is_terminal }
    }
}

impl Step {
    /// Tells how many units are done.
    pub fn set(&self, units: u64) {
        self.bar.set_position(units);
    }

    /// Ends the step; `note` is what it found, empty for nothing.
    pub fn done(self, note: &str) {
        self.bar.finish_and_clear();
        let seconds = self.begin.elapsed().as_secs_f64();
        let note = if note.is_empty() { String::new() } else { format!(": {note}") };
        if self.is_terminal {
            eprintln!("{} {seconds:.1} s{note}", self.title);
        } else {
            eprintln!("    {seconds:.1} s{note}");
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.bar.is_finished() {
            self.bar.finish_and_clear();
            eprintln!("{} failed after {:.1} s", self.title, self.begin.elapsed().as_secs_f64());
        }
    }
}
