//! `cargo xtask bench NAME [PART]`: builds, measures, prints a table and writes the figures as JSON.

use crate::progress::Steps;
use crate::{build, packages, run};
use anyhow::{Context, Result, bail};
use glass_bench::figure;

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What to measure: boot, platform, queue, network, disk, console, idle, sampling, tracing, size, mpi, cores, xen, web or vsock; perf compares profiles with those of perf
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(glass_bench::NAMES))]
    name: String,
    /// Only this part: of sampling pauses, loss, record, torn or oracle, of tracing cost, instructions, page or throughput, of network tcp, udp or offloads, of queue loopback or tap, of platform wakes or tx-blocked, of web kvm-tcp, kvm-vsock, kvm-disk, tcg-tcp, tcg-vsock or tcg-disk, of xen traces, block or network
    part: Option<String>,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<()> {
    let (name, part) = (options.name.as_str(), options.part.as_deref());
    packages::ensure(match name {
        "perf" => packages::FOR_BENCH_PERF,
        "mpi" => packages::FOR_BENCH_MPI,
        "network" => packages::FOR_BENCH_NETWORK,
        "disk" | "console" | "cores" => packages::FOR_BENCH_DISK,
        "xen" => packages::FOR_BENCH_XEN,
        "web" | "vsock" => packages::FOR_BENCH_WEB,
        _ => packages::FOR_BENCH,
    })?;
    let mut steps = Steps::new(3);
    let step = steps.begin("build glass and the queue as a process", None);
    // A page is measured without a service.
    if (name, part) != ("tracing", Some("page")) {
        build::processes()?;
    }
    step.done("");
    let step = steps.begin("build the images", None);
    step.done(&build::measured(name, part)?);
    // In percent, because the number of rounds is the benchmark's own business.
    let step = steps.begin(&format!("measure {name}"), Some(100));
    let outcome = glass_bench::run(name, part, &|done, total| step.set(done * 100 / total.max(1)))?;
    step.done("");
    if outcome.figures.is_empty() {
        bail!("nothing could be measured: {}", outcome.notes.join("; "));
    }
    print!("\n{}", figure::table(&outcome.figures));
    for note in &outcome.notes {
        println!("- {note}");
    }
    let folder = run::target_dir().join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(part.map_or(format!("{name}.json"), |part| format!("{name}-{part}.json")));
    std::fs::write(&path, figure::json(&outcome.figures))
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("- {}\n- written to {}", circumstances(name), path.display());
    Ok(())
}

/// Machine, commit and command of a figure.
fn circumstances(name: &str) -> String {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = processor.lines().filter(|line| line.starts_with("model name")).collect();
    let model = models.first().and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown processor");
    let commit = run::quiet(
        std::process::Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(run::root()),
    );
    let commit = commit.map_or("unknown".to_owned(), |commit| commit.trim().to_owned());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    format!("{} x {model}, load {load}; commit {commit}; cargo xtask bench {name}", models.len())
}
