//! What `glass record` prints: a line while it samples, a summary at the end.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use glass_profile::model::{Cost, Distribution, Origin};
use glass_profile::recorder;
use indicatif::{ProgressBar, ProgressStyle};

/// Without a terminal, a line this often.
const LINE_PERIOD: Duration = Duration::from_secs(5);

/// The line that is shown while sampling.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    last: Duration,
}

fn microseconds(nanoseconds: u64) -> String {
    format!("{:.1} us", nanoseconds as f64 / 1000.0)
}

fn pause(pause: &Distribution) -> String {
    if pause.count == 0 {
        return "guest not stopped".to_owned();
    }
    format!("pause median {} p99 {}", microseconds(pause.median_ns), microseconds(pause.p99_ns))
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2} %", 100.0 * part as f64 / whole.max(1) as f64)
}

impl Progress {
    pub(super) fn start(origin: &Origin, duration: Option<Duration>) -> Progress {
        let until = duration.map_or("until Ctrl-C".to_owned(), |duration| format!("for {} s", duration.as_secs_f64()));
        eprintln!("glass: sampling {} by {} at {} Hz, {until}", origin.guest, origin.backend, origin.rate_hz);
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Progress { bar, last: Duration::ZERO }
    }

    pub(super) fn show(&mut self, elapsed: Duration, progress: &recorder::Progress) {
        let rate = progress.samples_taken as f64 / elapsed.as_secs_f64().max(0.001);
        let line = format!(
            "{:.0} s: {} samples, {rate:.0}/s, {}",
            elapsed.as_secs_f64(),
            progress.samples_taken,
            pause(&progress.pause)
        );
        match &self.bar {
            Some(bar) => {
                bar.set_message(line);
                bar.tick();
            }
            None if elapsed - self.last >= LINE_PERIOD => {
                self.last = elapsed;
                eprintln!("glass: {line}");
            }
            None => {}
        }
    }

    pub(super) fn clear(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What was recorded and what it cost.
pub(super) fn summary(path: &Path, elapsed: Duration, cost: &Cost) {
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    eprintln!("glass: {} written, {} KiB, {:.1} s", path.display(), bytes.div_ceil(1024), elapsed.as_secs_f64());
    eprintln!(
        "  samples    {} wanted, {} taken, {} lost, {} late",
        cost.samples_wanted, cost.samples_taken, cost.samples_lost, cost.samples_late
    );
    eprintln!("  stacks     {} broken ({})", cost.stacks_broken, percent(cost.stacks_broken, cost.samples_taken));
    if cost.pause.count > 0 {
        eprintln!(
            "  pause      median {}, p99 {}, max {}",
            microseconds(cost.pause.median_ns),
            microseconds(cost.pause.p99_ns),
            microseconds(cost.pause.max_ns)
        );
    } else {
        eprintln!("  pause      none: the guest was not stopped");
    }
    let cpu = Duration::from_nanos(cost.profiler_cpu_ns);
    eprintln!(
        "  profiler   {:.2} s of CPU time ({} of one core)",
        cpu.as_secs_f64(),
        percent(cpu.as_millis() as u64, elapsed.as_millis() as u64)
    );
}
