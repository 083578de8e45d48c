//! Writes a report of a synthetic profile: `synthetic SAMPLES FILE.html [wide | phases | deep | host | diff]`. Prints how long it took.

#[path = "../tests/all/support/profiles.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod support;

use std::time::Instant;

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let (Some(samples), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("give a number of samples and the name of the file to write".into());
    };
    let samples: usize = samples.parse().map_err(|_| format!("{samples:?} is not a number of samples"))?;
    let profile = match arguments.next().as_deref() {
        None => support::service(samples, 1),
        // Nearly as many stacks as samples.
        Some("wide") => support::wide(samples, 1),
        Some("phases") => support::phases(samples, 0, 1),
        // Tens of thousands of stacks of up to 50 frames.
        Some("deep") => support::phases(samples, 40, 1),
        // As many stacks, and each sample with segments of its own.
        Some("host") => support::with_host(support::phases(samples, 40, 1)),
        Some("diff") => {
            let (a, b) = (support::service(samples, 1), support::faster(samples * 3 / 2, 2));
            print!("{}", glass_profiler_report::difference_text(&[&a], &[&b], 30));
            return write(&file, &glass_profiler_report::difference_html(&a, &b));
        }
        Some(other) => return Err(format!("{other:?} is not a kind of profile")),
    };
    let started = Instant::now();
    let text = glass_profiler_report::text_with_tree(&profile, 20, 1.0);
    let text_time = started.elapsed();
    let started = Instant::now();
    let html = glass_profiler_report::html(&profile);
    let html_time = started.elapsed();
    print!("{text}");
    let tree = glass_profiler_core::tree::Tree::build(&profile);
    eprintln!(
        "{} samples, {} stacks, {} functions, {} nodes: text in {text_time:.1?}, page of {} bytes in {html_time:.1?}",
        profile.samples.len(),
        profile.stacks.len(),
        tree.functions.len(),
        tree.nodes.len(),
        html.len()
    );
    write(&file, &html)
}

fn write(file: &str, html: &str) -> Result<(), String> {
    std::fs::write(file, html).map_err(|error| format!("cannot write {file}: {error}"))
}
