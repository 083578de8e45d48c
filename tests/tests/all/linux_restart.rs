//! A Linux guest that starts again while `glass record` samples it: names are right before and after, none of the first kernel is given to what runs
//! later, and the report has one remark.

use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::process::Process;
use glass_tests::programs;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a guest may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(400);
const PATIENCE: Duration = Duration::from_secs(240);
const RATE: &str = "79";
/// How long each kernel is sampled while its programs run.
const SAMPLED: Duration = Duration::from_secs(10);
/// Within this time another kernel is noticed, and once it runs its names are known.
const NOTICED_MS: f64 = 1_000.0;
/// How many of the stacks of the kernel may be broken: one, and so many percent.
const BROKEN_PERCENT_MAX: usize = 5;
/// How the names of the functions begin with which stacks of the kernel do.
const OUTERMOST: [&str; 6] =
    ["entry_", "asm_", "ret_from_fork", "secondary_startup_64", "x86_64_start", "start_kernel"];
/// The programs that compute, before and after.
const PROGRAMS: [&str; 2] = ["with-fp", "without-fp"];

/// A sample: milliseconds since 1970, and its stack, the innermost function and its file first.
struct Sample {
    time_ms: f64,
    frames: Vec<(String, String)>,
}

impl Sample {
    fn has(&self, file: &str) -> bool {
        self.frames.iter().any(|(_, of)| of == file)
    }

    /// Whether it is of a process with this name.
    fn is_of(&self, process: &str) -> bool {
        let is_process = |function: &str| function.strip_prefix(process).is_some_and(|rest| rest.starts_with(' '));
        self.frames.iter().any(|(function, file)| file.is_empty() && is_process(function))
    }

    /// Whether it is of the kernel's code, by its names.
    fn is_of_kernel(&self) -> bool {
        self.frames.first().is_some_and(|(function, file)| file.starts_with("linux-") && !function.starts_with("0x"))
    }

    /// Whether the kernel's part ends before the outermost function.
    fn is_broken(&self) -> bool {
        let kernel = self.frames.iter().take_while(|(_, file)| file.starts_with("linux-"));
        let outermost = kernel.last().map_or("", |(function, _)| function);
        !OUTERMOST.iter().any(|start| outermost.starts_with(start))
    }
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1e3
}

/// The samples of a recording in the order of time, and its warnings.
fn read(program: &Path, recording: &Path) -> (Vec<Sample>, Vec<String>) {
    let mut command = Command::new(program);
    let output = command.args(["export", "--format", "firefox", "--output", "-"]).arg(recording).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile: Value = serde_json::from_slice(&output.stdout).unwrap();
    let entries = profile["meta"]["extra"][0]["entries"].as_array().unwrap();
    let warnings = entries.iter().filter(|entry| entry["label"] == "Warning");
    let warnings = warnings.map(|entry| entry["value"].as_str().unwrap().to_owned()).collect();
    let text = |index: &Value| profile["shared"]["stringArray"][index.as_u64().unwrap() as usize].as_str().unwrap();
    let mut samples = Vec::new();
    for thread in profile["threads"].as_array().unwrap() {
        let cell = |table: &str, column: &str, row: &Value| &thread[table][column][row.as_u64().unwrap() as usize];
        let stacks = thread["samples"]["stack"].as_array().unwrap();
        for (stack, time) in stacks.iter().zip(thread["samples"]["time"].as_array().unwrap()) {
            let (mut frames, mut at) = (Vec::new(), stack);
            while !at.is_null() {
                let function = cell("frameTable", "func", cell("stackTable", "frame", at));
                let resource = cell("funcTable", "resource", function);
                let file = match resource.as_i64() {
                    Some(0..) => text(cell("resourceTable", "name", resource)),
                    _ => "",
                };
                frames.push((text(cell("funcTable", "name", function)).to_owned(), file.to_owned()));
                at = cell("stackTable", "prefix", at);
            }
            let start_ms = profile["meta"]["startTime"].as_f64().unwrap();
            samples.push(Sample { time_ms: start_ms + time.as_f64().unwrap(), frames });
        }
    }
    samples.sort_by(|one, other| one.time_ms.total_cmp(&other.time_ms));
    (samples, warnings)
}

/// Starts a program that computes and one that calls the kernel; returns where that is.
fn start(guest: &mut Guest, program: &str) -> String {
    let script = format!(
        "{program} >/dev/null 2>&1 & dd if=/dev/zero of=/dev/null bs=64k >/dev/null 2>&1 & grep ' _text$' /proc/kallsyms"
    );
    guest.expect(&script, PATIENCE).unwrap().trim().to_owned()
}

/// Checks what was sampled in a range of times in which this program ran, and not the other one.
fn check_names(samples: &[Sample], range: std::ops::Range<f64>, [ran, other]: [&str; 2]) {
    let inside: Vec<&Sample> = samples.iter().filter(|sample| range.contains(&sample.time_ms)).collect();
    let of_program = inside.iter().filter(|sample| sample.has(ran) && sample.is_of(ran)).count();
    let kernel: Vec<&&Sample> = inside.iter().filter(|sample| sample.is_of_kernel()).collect();
    let has = |sample: &Sample, name: &str| sample.frames.iter().any(|(function, _)| function == name);
    let calls = kernel.iter().filter(|sample| has(sample, "do_syscall_64")).count();
    let reads = kernel.iter().filter(|sample| has(sample, "vfs_read") || has(sample, "ksys_read")).count();
    let broken: Vec<_> = kernel.iter().filter(|sample| sample.is_broken()).map(|sample| &sample.frames).collect();
    say(&format!(
        "{} samples while {ran} ran: {of_program} of it; {} of the kernel, {calls} in system calls, {reads} that read, {} broken",
        inside.len(),
        kernel.len(),
        broken.len()
    ));
    assert!(of_program * 5 > inside.len() && reads * 10 > inside.len() && calls >= reads, "{ran}");
    assert!(inside.iter().all(|sample| !sample.has(other) && !sample.is_of(other)), "{other} did not run");
    assert!(broken.len().saturating_sub(1) * 100 <= kernel.len() * BROKEN_PERCENT_MAX, "{broken:?}");
}

fn check(settings: &Settings) {
    let Some(program) = programs::built("glass") else { return };
    let parts = match Parts::get(settings.release) {
        Ok(parts) => parts,
        Err(reason) => return programs::skip(&format!("no Linux {}: {reason:#}", settings.release)),
    };
    let mut guest = Guest::boot(&parts, settings).unwrap();
    let before = start(&mut guest, PROGRAMS[0]);
    let folder = Folder::new("linux-restart").unwrap();
    let recording = folder.file("restart.glass");
    let mut command = Command::new(&program);
    command.args(["record", "--pid", &guest.pid().to_string(), "--rate", RATE, "--output"]).arg(&recording);
    let mut record = Process::spawn(&mut command, &folder.file("log")).unwrap();
    record.wait_for_text("sampling", PATIENCE, || ());
    let sampled_ms = now_ms();
    std::thread::sleep(SAMPLED);
    let mut reset_ms = 0.0;
    guest.restart(|| reset_ms = now_ms()).unwrap();
    let after = start(&mut guest, PROGRAMS[1]);
    let started_ms = now_ms();
    std::thread::sleep(SAMPLED);
    let ended_ms = now_ms();
    assert!(record.interrupt(PATIENCE), "glass record does not end: {}", record.output());
    let log = std::fs::read_to_string(folder.file("log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
    say(&format!("the kernel was at {before}, then at {after}"));
    let (samples, warnings) = read(&program, &recording);
    check_names(&samples, sampled_ms..reset_ms - NOTICED_MS, PROGRAMS);
    check_names(&samples, started_ms + NOTICED_MS..ended_ms, [PROGRAMS[1], PROGRAMS[0]]);
    // What the firmware and the next kernel do until it is found has no names.
    let mut later = samples.iter().filter(|sample| sample.time_ms > reset_ms);
    let last_named = later.clone().take_while(|sample| sample.time_ms < reset_ms + NOTICED_MS);
    let last_named = last_named.filter(|sample| sample.is_of_kernel()).map(|sample| sample.time_ms).last();
    let first_named = later.find(|sample| sample.time_ms > reset_ms + NOTICED_MS && sample.is_of_kernel()).unwrap();
    say(&format!(
        "after the reset the last name of the first kernel came at {:.0} ms, the first one of the next kernel at {:.0} ms; its console was ready at {:.0} ms at most",
        last_named.map_or(0.0, |time| time - reset_ms),
        first_named.time_ms - reset_ms,
        started_ms - reset_ms
    ));
    let remarks: Vec<&String> = warnings.iter().filter(|warning| warning.contains("started again")).collect();
    assert_eq!(remarks.len(), 1, "{warnings:?}");
    let expected = format!("the guest started again while it was recorded, with Linux {} since", parts.kernel.version);
    assert!(remarks[0].contains(&expected), "{remarks:?}");
    say(&format!("warnings: {warnings:?}"));
}

#[test]
fn a_guest_that_starts_again() {
    if !programs::is_long() {
        return programs::skip("a guest that starts again is recorded by --long");
    }
    for release in [Release::Bookworm61, Release::Newest] {
        // A kernel that is stopped for samples while it checks its timer may not boot.
        let words = "no_timer_check".to_owned();
        within(LIMIT, move || check(&Settings { words, ..Settings::new(release) }));
    }
}
