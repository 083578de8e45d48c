//! Writes a report of a made-up profile: `synthetic SAMPLES FILE.html [wide]`. Prints what it took.

#[path = "../tests/support/mod.rs"]
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
        Some(other) => return Err(format!("{other:?} is not a kind of profile: there is only \"wide\"")),
    };
    let started = Instant::now();
    let text = glass_report::text(&profile, 20);
    let text_time = started.elapsed();
    let started = Instant::now();
    let html = glass_report::html(&profile);
    let html_time = started.elapsed();
    print!("{text}");
    let tree = glass_report::tree::Tree::build(&profile);
    eprintln!(
        "{} samples, {} stacks, {} functions, {} nodes: text in {text_time:.1?}, page of {} bytes in {html_time:.1?}",
        profile.samples.len(),
        profile.stacks.len(),
        tree.functions.len(),
        tree.nodes.len(),
        html.len()
    );
    std::fs::write(&file, html).map_err(|error| format!("cannot write {file}: {error}"))
}
