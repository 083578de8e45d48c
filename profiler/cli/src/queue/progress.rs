//! A line that shows how far a long read is.

use crate::console::{columns_max, spinner};
use indicatif::ProgressBar;
use std::cell::OnceCell;
use std::time::{Duration, Instant};

/// Shorter work shows nothing.
const SILENT: Duration = Duration::from_secs(1);

/// The line, if there is a terminal to show it on.
pub(super) struct Progress {
    start: Instant,
    bar: OnceCell<Option<ProgressBar>>,
}

impl Progress {
    pub(super) fn start() -> Progress {
        Progress { start: Instant::now(), bar: OnceCell::new() }
    }

    /// So many bytes of all are done.
    pub(super) fn show(&self, what: &str, done: u64, all: u64) {
        let elapsed = self.start.elapsed();
        if elapsed < SILENT {
            return;
        }
        let Some(bar) = self.bar.get_or_init(spinner) else { return };
        let line = line(what, done, all, elapsed);
        bar.set_message(line.chars().take(columns_max()).collect::<String>());
        bar.tick();
    }

    pub(super) fn clear(&self) {
        if let Some(Some(bar)) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

fn line(what: &str, done: u64, all: u64, elapsed: Duration) -> String {
    let mib = |bytes: u64| bytes >> 20;
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = all.saturating_sub(done) as f64 / rate.max(1.0);
    format!("{what} {} of {} MiB, {:.0} MiB/s, {left:.0} s left", mib(done), mib(all), rate / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_is_done_and_what_is_left() {
        assert_eq!(
            line("checked", 256 << 20, 1 << 30, Duration::from_secs(2)),
            "checked 256 of 1024 MiB, 128 MiB/s, 6 s left"
        );
        // Nothing is divided by zero.
        assert_eq!(line("checked", 0, 1 << 20, Duration::ZERO), "checked 0 of 1 MiB, 0 MiB/s, 1048576 s left");
    }
}
