//! The result in words, for a terminal.

use crate::campaign::{Loss, Outcome};
use crate::log::Log;
use crate::timeline::{self, bytes};
use glass_profiler_core::names::printable;
use std::fmt::Write as _;

/// Lines of a command's output that are printed, the last ones.
const LINES_MAX: usize = 20;

/// What a log contains, in one line.
pub fn of_log(log: &Log) -> String {
    let written: u64 = log.writes.iter().map(|write| write.bytes).sum();
    format!(
        "{} writes with {} and {} flushes in {:.1} s; {} moments at which more became durable",
        log.writes.len(),
        bytes(written),
        log.flushes,
        (log.end_ns - log.header.start_ns) as f64 / 1e9,
        log.epochs.len() - 1,
    )
}

/// What was tried, in one line.
pub fn summary(outcome: &Outcome) -> String {
    let Outcome { tested, losses, unsteady, is_all, is_cut_short, duration } = outcome;
    let states = if *tested == 1 { "state" } else { "states" };
    let mut text = format!("{tested} different {states} tested in {:.1} s: ", duration.as_secs_f64());
    match losses.len() {
        0 => text.push_str("none lost what was acknowledged"),
        1 => text.push_str("one lost something"),
        many => _ = write!(text, "{many} lost something"),
    }
    if *is_all {
        text.push_str("; there are no others of these kinds");
    }
    if *is_cut_short {
        text.push_str("; ended early");
    }
    if !unsteady.is_empty() {
        let numbers: Vec<String> = unsteady.iter().take(10).map(u64::to_string).collect();
        let _ = write!(
            text,
            "; {} failed once and not again (state {}): the check is not steady",
            unsteady.len(),
            numbers.join(", ")
        );
    }
    text
}

/// A loss, in lines.
pub fn loss(log: &Log, loss: &Loss) -> String {
    let mut text = String::new();
    let start = log.header.start_ns;
    let at = |time_ns: u64| (time_ns as f64 - start as f64) / 1e9;
    let _ = writeln!(
        text,
        "state {}: power cut {:.6} s after the start of the log; tested twice, and lost both times",
        loss.cut.number,
        at(loss.cut.time_ns)
    );
    let _ = writeln!(text, "  {}", printable(&loss.why));
    let _ = writeln!(text, "  {}", loss.sentence(log));
    let _ = writeln!(text, "  time in s      event");
    for row in timeline::rows(log, loss) {
        let _ = writeln!(text, "  {:<14.6} {}", at(row.time_ns), printable(&row.text));
    }
    output(&mut text, "the check printed", &loss.output);
    output(&mut text, "the boot printed", &loss.boot_output);
    text
}

fn output(text: &mut String, title: &str, output: &str) {
    let lines: Vec<&str> = output.lines().collect();
    if lines.is_empty() {
        return;
    }
    let left_out = lines.len().saturating_sub(LINES_MAX);
    let more = if left_out > 0 { format!(", without the first {left_out} lines") } else { String::new() };
    let _ = writeln!(text, "  {title}{more}:");
    for line in &lines[left_out..] {
        let _ = writeln!(text, "    {}", printable(line));
    }
}
