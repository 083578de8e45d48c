//! What `glass record` prints: a line while it samples, a summary at the end.

use std::path::Path;
use std::time::Duration;

use glass_profiler_core::model::{Distribution, FAULT_BYTES, LOST_PER_FROZEN, Origin};
use glass_profiler_core::names::printable;
use glass_profiler_core::recorder;
use glass_profiler_guests::systems::glasshouse::LiveCounts;
use glass_profiler_session::{Status, Written};
use indicatif::ProgressBar;

use crate::console::{columns_max, say, spinner};
use crate::trace::summary;

/// The line that is shown while sampling, if there is a terminal to show it on.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    duration: Option<Duration>,
}

pub(crate) fn microseconds(nanoseconds: u64) -> String {
    format!("{:.1} us", nanoseconds as f64 / 1000.0)
}

fn pause(pause: &Distribution) -> String {
    if pause.count == 0 {
        return "nothing stopped for samples".to_owned();
    }
    format!("pause median {} p99 {}", microseconds(pause.median_ns), microseconds(pause.p99_ns))
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// A guest loses no more than all of its time, see `glass_profiler_core::format::percent_lost`.
fn percent_lost(lost: u64, time: u64) -> String {
    percent(lost.min(time), time)
}

impl Progress {
    /// Prints what is sampled, and how: a dump has one moment, so it has neither a rate nor an end.
    pub(super) fn start(origin: &Origin, duration: Option<Duration>, is_dump: bool) -> Progress {
        if is_dump {
            say!("glass: reading one sample of each vCPU from {}", origin.guest);
            return Progress { bar: None, duration };
        }
        let until = duration.map_or("until Ctrl-C".to_owned(), |duration| format!("for {} s", duration.as_secs_f64()));
        say!("glass: sampling {} by {} at {} Hz, {until}", origin.guest, origin.backend, origin.rate_hz);
        Progress { bar: spinner(), duration }
    }

    pub(super) fn show(&self, status: &Status) {
        let Some(bar) = &self.bar else { return };
        bar.set_message(line(status.elapsed, self.duration, &status.progress, status.lost(), columns_max()));
        bar.tick();
    }

    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The line while sampling, most important parts first: parts that do not fit into `columns_max` columns are left out.
fn line(
    elapsed: Duration,
    of: Option<Duration>,
    progress: &recorder::Progress,
    lost: u64,
    columns_max: usize,
) -> String {
    let seconds = elapsed.as_secs_f64();
    let of = of.map_or(String::new(), |of| format!(" of {:.0}", of.as_secs_f64()));
    let taken = progress.samples_taken;
    let mut line = format!("{seconds:.0}{of} s: {taken} samples");
    let mut parts = vec![format!("{:.0}/s", taken as f64 / seconds.max(0.001))];
    if lost > 0 {
        parts.push(format!("{lost} lost"));
    }
    parts.push(pause(&progress.pause));
    if progress.stacks_broken > 0 {
        parts.push(format!("{} stacks broken", percent(progress.stacks_broken, taken)));
    }
    fit(&mut line, &parts, columns_max);
    line
}

/// Adds as many of the parts as there is room for.
pub(crate) fn fit(line: &mut String, parts: &[String], columns_max: usize) {
    for part in parts {
        if line.len() + 2 + part.len() <= columns_max {
            line.push_str(", ");
            line.push_str(part);
        }
    }
}

/// What was recorded and what it cost.
pub(super) fn summary(path: &Path, bytes: u64, elapsed: Duration, recorded: &Written, traced: Option<&LiveCounts>) {
    written_bytes(path, bytes, elapsed);
    samples(recorded, elapsed);
    if let Some(counts) = traced {
        summary::summary(counts, Some(elapsed));
    }
    profiler(recorded, elapsed);
}

/// What was written.
pub(crate) fn written(path: &Path, elapsed: Duration) {
    written_bytes(path, std::fs::metadata(path).map_or(0, |metadata| metadata.len()), elapsed);
}

fn written_bytes(path: &Path, bytes: u64, elapsed: Duration) {
    say!("glass: {} written, {} KiB, {:.1} s", path.display(), bytes.div_ceil(1024), elapsed.as_secs_f64());
}

/// What a recording of page faults has.
pub(crate) fn page_faults(recorded: &Written) {
    let cost = &recorded.cost;
    say!("  faults     {}, {} kB", cost.samples_taken, cost.samples_taken * FAULT_BYTES / 1024);
    say!("  stacks     {} broken ({})", cost.stacks_broken, percent(cost.stacks_broken, cost.samples_taken));
    if cost.pause.count > 0 {
        let pause = &cost.pause;
        say!("  pause      median {}, {} altogether", microseconds(pause.median_ns), microseconds(pause.sum_ns));
    }
}

/// What sampling gave and cost.
pub(crate) fn samples(recorded: &Written, elapsed: Duration) {
    let cost = &recorded.cost;
    say!(
        "  samples    {} collected of {} expected, {} lost, {} late",
        cost.samples_taken,
        cost.samples_wanted,
        cost.samples_lost,
        cost.samples_late
    );
    say!("  stacks     {} broken ({})", cost.stacks_broken, percent(cost.stacks_broken, cost.samples_taken));
    if cost.pause.count > 0 {
        say!(
            "  pause      median {}, p99 {}, max {}",
            microseconds(cost.pause.median_ns),
            microseconds(cost.pause.p99_ns),
            microseconds(cost.pause.max_ns)
        );
        let time_ns = elapsed.as_nanos() as u64 * u64::from(recorded.tracks.max(1));
        say!(
            "  guest      paused for {} of its time, and lost about {} including the effects of each pause",
            percent_lost(cost.pause.sum_ns, time_ns),
            percent_lost(cost.pause.sum_ns.saturating_mul(LOST_PER_FROZEN), time_ns)
        );
    } else {
        say!("  pause      none: nothing is stopped for a sample");
    }
}

/// What we took of the machine, and what went wrong.
pub(crate) fn profiler(recorded: &Written, elapsed: Duration) {
    let cpu = Duration::from_nanos(recorded.cost.profiler_cpu_ns);
    say!(
        "  profiler   {:.2} s of CPU time ({} of one core)",
        cpu.as_secs_f64(),
        percent(cpu.as_millis() as u64, elapsed.as_millis() as u64)
    );
    let (warnings, count) = &recorded.warnings;
    warnings.iter().for_each(|warning| say!("glass: warning: {}", printable(warning)));
    if *count > warnings.len() {
        say!("glass: {} more warnings are in the recording", count - warnings.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_as_much_as_there_is_room_for() {
        let pause = Distribution { count: 9, median_ns: 51_300, p99_ns: 210_000, max_ns: 300_000, sum_ns: 500_000 };
        let progress = recorder::Progress { samples_taken: 4985, samples_dropped: 0, stacks_broken: 10, pause };
        let line = |columns_max| line(Duration::from_secs(5), Some(Duration::from_secs(60)), &progress, 7, columns_max);
        assert_eq!(
            line(100),
            "5 of 60 s: 4985 samples, 997/s, 7 lost, pause median 51.3 us p99 210.0 us, 0.20 % stacks broken"
        );
        assert_eq!(line(77), "5 of 60 s: 4985 samples, 997/s, 7 lost, pause median 51.3 us p99 210.0 us");
        assert_eq!(line(45), "5 of 60 s: 4985 samples, 997/s, 7 lost");
        assert_eq!(line(10), "5 of 60 s: 4985 samples");
    }
}
