//! The output of `glass trace`: a line while it traces, a summary at the end.

use std::time::Duration;

use glass_profiler_core::format::count;
use glass_profiler_guests::systems::glasshouse::LiveCounts;
use indicatif::ProgressBar;

use crate::console::{columns_max, say, spinner};
use crate::record::progress::{fit, microseconds};

/// The line that is shown while tracing, if there is a terminal to show it on.
pub struct Line {
    bar: Option<ProgressBar>,
    duration: Option<Duration>,
}

fn per_second(events: u64, elapsed: Duration) -> String {
    count((events as f64 / elapsed.as_secs_f64().max(0.001)) as u64)
}

impl Line {
    /// Starts with an empty line.
    pub fn start(duration: Option<Duration>) -> Line {
        Line { bar: spinner(), duration }
    }

    /// Shows the counters.
    pub fn show(&self, elapsed: Duration, counts: &LiveCounts) {
        if let Some(bar) = &self.bar {
            bar.set_message(line(elapsed, self.duration, counts, columns_max()));
            bar.tick();
        }
    }

    /// Removes the line.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The parts of the line, most important first.
fn line(elapsed: Duration, of: Option<Duration>, counts: &LiveCounts, columns_max: usize) -> String {
    let of = of.map_or(String::new(), |of| format!(" of {:.0}", of.as_secs_f64()));
    let mut line = format!("{:.0}{of} s: {} events", elapsed.as_secs_f64(), count(counts.read.events));
    let mut parts = vec![format!("{}/s", per_second(counts.read.events, elapsed))];
    if counts.read.lost > 0 {
        parts.push(format!("{} lost", count(counts.read.lost)));
    }
    if !counts.has_answered {
        parts.push("the guest has not switched yet".to_owned());
    }
    if let Some(error_ns) = counts.clock_error_ns {
        parts.push(format!("clock within {}", error(error_ns)));
    }
    fit(&mut line, &parts, columns_max);
    line
}

/// The error of a clock.
pub fn error(error_ns: u64) -> String {
    match error_ns {
        u64::MAX => "unknown bounds".to_owned(),
        0..1_000 => format!("{error_ns} ns"),
        _ => microseconds(error_ns),
    }
}

/// The summary: two lines. `elapsed` is `None` for past events (`--last`, `--post-mortem`).
pub fn summary(counts: &LiveCounts, elapsed: Option<Duration>) {
    let rings = if counts.read.rings == 1 { "ring" } else { "rings" };
    let rate = elapsed.map_or(String::new(), |elapsed| format!(", {}/s", per_second(counts.read.events, elapsed)));
    let (events, lost) = (count(counts.read.events), count(counts.read.lost));
    say!("  events     {events} of {} {rings}, {lost} lost{rate}", counts.read.rings);
    match counts.clock_error_ns {
        Some(u64::MAX) | None => {
            say!("  clock      not related to this machine's: times are those of the service alone")
        }
        Some(error_ns) => say!("  clock      within {} of this machine's", error(error_ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_guests::systems::glasshouse::ReadCounts;

    #[test]
    fn the_line_says_as_much_as_there_is_room_for() {
        let read = ReadCounts { events: 1_234_567, lost: 7, rings: 2 };
        let counts = LiveCounts { read, clock_error_ns: Some(12_300), has_answered: true, groups: 1 };
        let line = |columns_max| line(Duration::from_secs(5), Some(Duration::from_secs(60)), &counts, columns_max);
        assert_eq!(line(100), "5 of 60 s: 1,234,567 events, 246,913/s, 7 lost, clock within 12.3 us");
        assert_eq!(line(50), "5 of 60 s: 1,234,567 events, 246,913/s, 7 lost");
        assert_eq!(error(80), "80 ns");
    }
}
