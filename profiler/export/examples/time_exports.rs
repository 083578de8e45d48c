//! Times reading and every export of a synthetic recording of a million samples: `cargo run --release -p glass-profiler-export --example
//! time_exports`, with another number of samples as its argument.

#[path = "../tests/all/common/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod common;

use std::time::Instant;

use glass_profiler_export::{Format, Options, States, write};

const SAMPLES: u64 = 1_000_000;
const REPEATS: usize = 5;

fn median_ms(mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[REPEATS / 2]
}

fn main() {
    let samples = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(SAMPLES);
    let bytes = common::recording(samples);
    println!("{samples} samples, a file of {} bytes; medians of {REPEATS}", bytes.len());
    println!("{:<12} {:>9.0} ms", "read", median_ms(|| drop(common::read(&bytes))));
    let recording = common::read(&bytes);
    for format in Format::ALL.into_iter().filter(|format| !format.is_of_trace()) {
        for states in [States::Running, States::All] {
            let mut made = Vec::new();
            let time = median_ms(|| {
                made.clear();
                write(format, &recording, &bytes, Options { states, ..Options::default() }, &mut made).unwrap();
            });
            println!("{:<12} {time:>9.0} ms  {:>12} bytes  {states:?}", format.name(), made.len());
        }
    }
}
