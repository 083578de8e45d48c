//! `cargo xtask demo`: boots the queue, pushes and pulls files with curl while the profiler samples and traces it,
//! and writes the report: where its CPU time went, and the timeline of each upload with its waits.

use crate::progress::Steps;
use crate::{build, demo_files, packages, run};
use anyhow::{Context, Result, bail};
use demo_files::{File, sha256};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::queue::{Options as QueueOptions, Queue, World};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Uploads at the same time.
const UPLOADERS: usize = 4;
/// Samples a second; not a round number, so that it does not beat with timers.
const SAMPLES_PER_SEC: &str = "499";
/// The longest recording; the demo ends it after the load.
const RECORDING_SECONDS_MAX: &str = "600";
/// How long a single transfer may take.
const TRANSFER_SECONDS_MAX: &str = "300";
/// Functions that are printed.
const FUNCTIONS: usize = 5;

/// Options of `cargo xtask demo`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Run the queue as a VM, or as a process without QEMU
    #[arg(long, value_enum, default_value_t = Platform::Vm)]
    platform: Platform,
    /// How QEMU runs the VM; `auto` uses KVM if it is available
    #[arg(long, value_enum, default_value_t = Accel::Auto)]
    accel: Accel,
    /// Move 6 MiB instead of 256 MiB
    #[arg(long)]
    short: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Platform {
    Vm,
    Linux,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Accel {
    Auto,
    Kvm,
    Tcg,
}

impl Options {
    fn world(&self) -> World {
        match (self.platform, self.accel) {
            (Platform::Linux, _) => World::Process,
            (Platform::Vm, Accel::Kvm) => World::Kvm,
            (Platform::Vm, Accel::Tcg) => World::Tcg,
            (Platform::Vm, Accel::Auto) if World::Kvm.obstacle().is_none() => World::Kvm,
            (Platform::Vm, Accel::Auto) => World::Tcg,
        }
    }
}

/// Runs the demo. Everything it starts ends with it, also on an error or an interrupt.
pub fn run(options: &Options) -> Result<()> {
    let needed = if options.platform == Platform::Vm { packages::FOR_DEMO_VM } else { packages::FOR_DEMO_LINUX };
    let missing = packages::ensure(needed)?;
    if let Some(package) = missing.first() {
        bail!("the demo needs {} ({}); `--platform linux` needs only curl", package.program, package.purpose);
    }
    let world = options.world();
    if let Some(reason) = world.obstacle() {
        bail!("{reason}; try `cargo xtask demo --accel tcg`, or `--platform linux`, which needs no QEMU");
    }
    let output = run::target_dir().join("demo");
    std::fs::create_dir_all(&output).with_context(|| format!("cannot make {}", output.display()))?;
    let folder = Folder::new("demo")?;
    let mut steps = Steps::new(7);

    let step = steps.begin("build glass", None);
    build::glass()?;
    step.done("");
    let step = steps.begin("build the queue", None);
    match world {
        World::Process => {
            build::process("upload-queue")?;
            step.done("");
        }
        _ => step.done(&build::queue_image()?),
    }
    let files = demo_files::plan(options.short);
    let total_mib = files.iter().map(|file| file.bytes).sum::<u64>() >> 20;
    let step = steps.begin(&format!("make {} files, {total_mib} MiB in total", files.len()), None);
    let hashes = demo_files::make(&files, folder.path())?;
    step.done("");

    let step = steps.begin(&format!("start the queue ({world})"), None);
    let begin = Instant::now();
    let queue_options = QueueOptions { disk_size: "1G".into(), memory_mib: 64, ..QueueOptions::default() };
    let queue = Queue::start(world, &folder.file("queue.img"), &queue_options)?.context("the queue is not built")?;
    let boot = begin.elapsed();
    step.done(&format!("pid {}, answers after {} ms", queue.service_pid()?, boot.as_millis()));

    let recording = output.join("queue.pftrace");
    let mut recorder = record(&queue, &recording, &folder)?;
    let load = push_and_pull(&mut steps, &queue, &files, &hashes, folder.path());
    let step = steps.begin("end the recording and write the report", None);
    if !recorder.interrupt(Duration::from_secs(60)) {
        bail!("glass record did not end: {}", recorder.output());
    }
    let (up, down) = load?;
    let report = output.join("report.html");
    let text =
        write_report(&recording, &report).with_context(|| format!("glass record printed: {}", recorder.output()))?;
    step.done("");
    drop(queue);

    let rate = |time: Duration| total_mib as f64 / time.as_secs_f64();
    println!("\n{total_mib} MiB in {} files, SHA-256 compared ({world})", files.len());
    println!("  up   {:6.1} MiB/s, {UPLOADERS} at a time\n  down {:6.1} MiB/s, one at a time", rate(up), rate(down));
    println!("\n{}", text.trim_end());
    println!("\nreport:    {}\nrecording: {} (ui.perfetto.dev opens it)", report.display(), recording.display());
    Ok(())
}

/// Starts `glass record` on the queue and waits until it samples.
fn record(queue: &Queue, recording: &Path, folder: &Folder) -> Result<Process> {
    let mut command = Command::new(build::programs().join("glass"));
    command.args(["record", "--pid", &queue.service_pid()?.to_string(), "--rate", SAMPLES_PER_SEC]);
    command.args(["--trace", "--duration", RECORDING_SECONDS_MAX, "--output"]).arg(recording);
    let mut recorder = Process::spawn(&mut command, &folder.file("record.log"))?;
    // A recorder without permission ends immediately and prints why.
    if recorder.wait(Duration::from_millis(800)).is_some() {
        bail!("glass record ended: {}", recorder.output().trim());
    }
    Ok(recorder)
}

fn write_report(recording: &Path, report: &Path) -> Result<String> {
    let glass = build::programs().join("glass");
    run::quiet(Command::new(&glass).arg("report").arg(recording).arg("--output").arg(report))?;
    let functions = FUNCTIONS.to_string();
    run::quiet(Command::new(&glass).arg("report").arg(recording).args(["--text", "--top", &functions]))
}

/// Uploads all files, several at a time, then downloads as many and compares. Returns both times.
fn push_and_pull(
    steps: &mut Steps,
    queue: &Queue,
    files: &[File],
    hashes: &[String],
    folder: &Path,
) -> Result<(Duration, Duration)> {
    let step =
        steps.begin(&format!("push with curl, {UPLOADERS} at a time"), Some(files.iter().map(|f| f.bytes).sum()));
    let begin = Instant::now();
    let (next, moved) = (AtomicUsize::new(0), AtomicU64::new(0));
    let url = format!("http://{}/uploader", queue.address);
    let push = || -> Result<()> {
        // Relaxed, here and below: each number is used once, and the sums only move the bar.
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            curl(&["--upload-file", &folder.join(&file.name).to_string_lossy(), &url])?;
            step.set(moved.fetch_add(file.bytes, Ordering::Relaxed) + file.bytes);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let uploaders: Vec<_> = (0..UPLOADERS).map(|_| scope.spawn(push)).collect();
        let results = uploaders.into_iter().map(|uploader| uploader.join().expect("an uploader returns its errors"));
        results.collect::<Result<Vec<()>>>()
    })?;
    let up = begin.elapsed();
    step.done("");

    let step = steps.begin("pull with curl and compare SHA-256", Some(files.iter().map(|f| f.bytes).sum()));
    let url = format!("http://{}/downloader", queue.address);
    let (pulled, head) = (folder.join("pulled"), folder.join("head"));
    let [pulled_text, head_text] = [&pulled, &head].map(|path| path.to_string_lossy().into_owned());
    let mut expected: Vec<&String> = hashes.iter().collect();
    let (mut down, mut bytes) = (Duration::ZERO, 0);
    for _ in files {
        let begin = Instant::now();
        curl(&["--dump-header", &head_text, "--output", &pulled_text, &url])?;
        let etag = etag(&std::fs::read_to_string(&head)?).context("the queue sent no ETag")?;
        curl(&["--request", "DELETE", "--header", &format!("If-Match: {etag}"), &url])?;
        // The comparison does not count as the queue's time.
        down += begin.elapsed();
        let hash = sha256(&[&pulled])?.remove(0);
        let place = expected.iter().position(|expected| **expected == hash);
        expected.swap_remove(place.with_context(|| format!("a file came back changed: {hash}"))?);
        bytes += pulled.metadata()?.len();
        step.set(bytes);
    }
    step.done("all equal");
    Ok((up, down))
}

/// The entity tag among the headers that curl has written.
fn etag(head: &str) -> Option<String> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.eq_ignore_ascii_case("etag")).map(|(_, value)| value.trim().to_owned())
}

fn curl(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", TRANSFER_SECONDS_MAX]);
    // QEMU's port forwarding listens with a backlog of one: of clients that connect in the same
    // moment the kernel may reset one before the guest has seen it.
    command.args(["--retry", "5", "--retry-delay", "1", "--retry-all-errors"]).args(arguments);
    let output = command.stdin(Stdio::null()).output().context("cannot start curl")?;
    if !output.status.success() {
        bail!("curl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
