//! Measures time and memory of building the tables of a trace: `cargo run --release -p glass-profiler-core --example
//! time_trace [EVENTS]`.

use std::time::Instant;

use glass_profiler_core::trace::{build, example};

fn main() {
    let events = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(10_000_000);
    let raw = example::queue(events, 1);
    println!("{} events generated, {}", raw.event_count(), memory());
    let begin = Instant::now();
    let trace = build(&raw);
    println!("built in {:.2} s, {}", begin.elapsed().as_secs_f64(), memory());
    println!(
        "{} tasks, {} polls, {} waits, {} requests, {} calls, {:.3} s",
        trace.tasks.len(),
        trace.polls.len(),
        trace.waits.len(),
        trace.requests.len(),
        trace.calls.len(),
        (trace.end_ns - trace.start_ns) as f64 / 1e9
    );
}

/// The process's current and peak memory, from Linux.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}
