//! The queue's trace, read from outside while it works: no event is lost, the groups are restored, and a killed
//! recorder leaves a recording that can be read.

use crate::traced::PATIENCE;
use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::limit::say;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    a_trace_tells_all_and_the_queue_goes_on within 240;
    a_killed_queue_leaves_what_was_read within 240;
    a_killed_recorder_is_cleaned_up_after within 240;
    a_run_is_traced_from_its_first_instruction within 240;
}

struct Tracing {
    folder: Folder,
    queue: Queue,
    glass: PathBuf,
}

impl Tracing {
    fn start(world: World) -> Option<Tracing> {
        let folder = Folder::new("trace").unwrap();
        let queue = Queue::start(world, &folder.file("queue.img"), &Options::default()).unwrap()?;
        Some(Tracing { folder, queue, glass: programs::built("glass")? })
    }

    fn pid(&self) -> String {
        self.queue.service_pid().unwrap().to_string()
    }

    /// `glass trace` of the queue with these arguments, into a file of this name.
    fn trace(&self, name: &str, arguments: &[&str]) -> (Process, PathBuf) {
        let file = self.folder.file(name);
        let mut command = Command::new(&self.glass);
        command.args(["trace", "--pid", &self.pid()]).args(arguments).arg("--output").arg(&file);
        let log = self.folder.file(&format!("{name}.log"));
        (Process::spawn(&mut command, &log).unwrap(), file)
    }

    /// Uploads, downloads and removes an item.
    fn work(&self, seed: u64) {
        let item = Content { seed, length_bytes: 100_000 };
        assert_eq!(self.queue.put(item).unwrap().status(), 200);
        self.queue.take(item).unwrap();
    }

    /// Keeps the queue busy until `until` returns true.
    fn work_until(&self, what: &str, mut until: impl FnMut() -> bool) -> u64 {
        let begun = Instant::now();
        for seed in 1.. {
            if until() {
                return seed;
            }
            assert!(begun.elapsed() < PATIENCE, "{what} takes too long");
            self.work(seed);
        }
        0
    }
}

/// The output of `glass info --json` for a recording.
fn info(glass: &Path, file: &Path) -> Value {
    let output = Command::new(glass).arg("info").arg("--json").arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn lost(info: &Value) -> u64 {
    let rings = info["trace"]["rings"].as_array().unwrap();
    rings.iter().map(|ring| ring["lost"].as_u64().unwrap()).sum()
}

fn finish(tracing: &Tracing, mut recorder: Process) -> String {
    let items = tracing.work_until("glass trace", || recorder.wait(Duration::ZERO).is_some());
    let status = recorder.ended().unwrap();
    assert!(status.success(), "{items} items, {status}: {}", recorder.output());
    recorder.output()
}

pub fn a_trace_tells_all_and_the_queue_goes_on(world: World) {
    let Some(tracing) = Tracing::start(world) else { return };
    let (recorder, file) = tracing.trace("a", &["--duration", "3"]);
    let said = finish(&tracing, recorder);
    let info_a = info(&tracing.glass, &file);
    let trace = &info_a["trace"];
    say(&format!("trace {world}: {} events, clock within {} ns", trace["events"], trace["clock_error_ns"]));
    assert!(trace["events"].as_u64().unwrap() > 100 && trace["names"].as_u64().unwrap() > 3, "{trace}");
    assert_eq!((lost(&info_a), &info_a["is_complete"]), (0, &Value::from(true)), "{trace}\n{said}");
    // A busy machine delays the answer to a request, but not this much.
    assert!(trace["clock_error_ns"].as_u64().unwrap() < 2_000_000_000, "{trace}");
    assert!(trace["clock_points"].as_u64().unwrap() > 5, "{trace}");

    // No group is on now, so no event is added; the past events are still readable.
    tracing.work(1_000_000);
    let (recorder, file) = tracing.trace("b", &["--last"]);
    finish(&tracing, recorder);
    let before = info(&tracing.glass, &file)["trace"]["events"].as_u64().unwrap();
    tracing.work(1_000_001);
    let (recorder, file) = tracing.trace("c", &["--last"]);
    finish(&tracing, recorder);
    let after = info(&tracing.glass, &file)["trace"]["events"].as_u64().unwrap();
    assert!(before > 100 && after == before, "{before} events, then {after}: the groups were left on");

    // Samples and events in one file.
    let (recorder, file) = tracing.trace("d", &["--groups", "tasks", "--sample", "199", "--duration", "2"]);
    finish(&tracing, recorder);
    let both = info(&tracing.glass, &file);
    assert!(both["samples"].as_u64().unwrap() > 0 && both["trace"]["events"].as_u64().unwrap() > 20, "{both}");
}

fn a_killed_queue_leaves_what_was_read(world: World) {
    let Some(mut tracing) = Tracing::start(world) else { return };
    let (mut recorder, file) = tracing.trace("a", &[]);
    let begun = Instant::now();
    tracing.work_until("a second of tracing", || begun.elapsed() > Duration::from_millis(2500));
    tracing.queue.kill();
    let status = recorder.wait(PATIENCE).expect("glass trace ends with its guest");
    assert!(status.success(), "{}", recorder.output());
    let info = info(&tracing.glass, &file);
    assert!(info["trace"]["events"].as_u64().unwrap() > 100, "{info}");
    assert_eq!((lost(&info), &info["is_complete"]), (0, &Value::from(true)), "{info}");
}

fn a_killed_recorder_is_cleaned_up_after(world: World) {
    let Some(tracing) = Tracing::start(world) else { return };
    let (mut recorder, file) = tracing.trace("a", &[]);
    let begun = Instant::now();
    tracing.work_until("tracing", || begun.elapsed() > Duration::from_secs(3));
    recorder.kill();
    let cut = info(&tracing.glass, &file);
    assert!(cut["trace"]["events"].as_u64().unwrap() > 0 && cut["is_complete"] == false, "{cut}");
    // The guest continues to trace; the next recorder reports it, and leaves no group on.
    let (recorder, file) = tracing.trace("b", &["--groups", "counters", "--duration", "1"]);
    finish(&tracing, recorder);
    let warnings = info(&tracing.glass, &file)["warnings"].to_string();
    assert!(warnings.contains("killed"), "{warnings}");
    let events = |name: &str| {
        let (recorder, file) = tracing.trace(name, &["--last"]);
        finish(&tracing, recorder);
        info(&tracing.glass, &file)["trace"]["events"].as_u64().unwrap()
    };
    let before = events("c");
    tracing.work(1_000_000);
    assert_eq!(events("d"), before, "groups were left on");
}

pub fn a_run_is_traced_from_its_first_instruction(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let folder = Folder::new("run-trace").unwrap();
    let program =
        if world == World::Process { programs::built("upload-queue") } else { programs::image("upload-queue") };
    let (Some(glass), Some(program)) = (programs::built("glass"), program) else { return };
    let (file, disk) = (folder.file("a.pftrace"), folder.file("queue.img"));
    let port = glass_tests::port::free_port().unwrap();
    let mut command = Command::new(&glass);
    command.arg("run").arg(&program).arg("--trace").arg("--output").arg(&file).arg("--disk").arg(&disk);
    command.args(["--disk-size", "64M"]);
    match world {
        World::Process => command.args(["--platform", "linux", "--", "--port", &port.to_string()]),
        _ => command.args(["--accel", &world.to_string(), "--port", &format!("{port}:8080"), "--", "--port", "8080"]),
    };
    let mut run = Process::spawn(&mut command, &folder.file("run.log")).unwrap();
    let begun = Instant::now();
    while !run.output().contains("listening on") {
        assert!(run.ended().is_none() && begun.elapsed() < PATIENCE, "{}", run.output());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(run.interrupt(PATIENCE), "glass run did not end: {}", run.output());
    let said = run.output();
    let info = info(&glass, &file);
    let ring = &info["trace"]["rings"][0];
    assert!(ring["first_event"] == 0 && ring["events"].as_u64().unwrap() > 10, "{info}\n{said}");
    assert_eq!((lost(&info), &info["is_complete"]), (0, &Value::from(true)), "{said}");
    assert!(said.contains("clock "), "{said}");
    if world == World::Kvm {
        // Our VMM states the guest's clock, by two reads of its own clock around a call of the kernel.
        let error_ns = info["trace"]["clock_error_ns"].as_u64().unwrap();
        check_exits(&glass, &file, error_ns as f64 / 1e3);
    }
}

/// The exits of the boot are in the trace, by device, and within its time, but for the error of the guest's clock.
fn check_exits(glass: &Path, file: &Path, error_us: f64) {
    let json = file.with_extension("json");
    let mut export = Command::new(glass);
    export.args(["export", "--format", "chrome"]).arg(file).arg("--output").arg(&json);
    let output = export.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["args"]["name"] == "VMM of core 0: spans"), "there is no track of exits");
    let times_us = |name: &str| {
        let named = events.iter().filter(|event| event["name"] == name);
        named.map(|event| event["ts"].as_f64().unwrap()).collect::<Vec<f64>>()
    };
    let devices = times_us("boot: devices");
    let exits = times_us("exit: write to the disk's registers");
    assert!(devices.len() >= 2 && exits.len() >= 2 * 5, "{devices:?} {exits:?}");
    let (from, to) = (devices[0] - error_us, devices.iter().fold(0.0, |last: f64, time| last.max(*time)) + error_us);
    assert!(exits.iter().all(|time| (from..to).contains(time)), "{exits:?} are not in {from} to {to}");
}
