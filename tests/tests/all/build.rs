//! Recording a build: thousands of short processes, each with its mappings, of which little may stay in memory.
//! `cargo xtask test --long` builds this project repeatedly for ten minutes, an ordinary run some small files.

use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::process::Process;
use glass_tests::programs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Peak memory that `glass record` may use.
const PEAK_MIB_MAX: u64 = 300;
/// Time for the build, and as much again for symbols.
const LIMIT: Duration = Duration::from_secs(1800);

/// How long a long run builds.
const LONG_SECONDS: u32 = 600;

/// Builds with eight jobs.
fn command(folder: &Folder) -> Vec<String> {
    if programs::is_long() {
        let target = folder.file("target");
        let again = format!(
            "end=$(($(date +%s) + {LONG_SECONDS})); export CARGO_TARGET_DIR={target}; \
            while [ $(date +%s) -lt $end ]; do rm -rf {target}; timeout $((end - $(date +%s))) cargo build --offline -j 8; done",
            target = target.display()
        );
        return ["sh", "-c", &again].map(str::to_owned).to_vec();
    }
    let objects: Vec<String> = (0..120).map(|number| format!("{number}.o")).collect();
    let rules = format!("all: {}\n%.o: %.c\n\tcc -O2 -g -c -o $@ $<\n", objects.join(" "));
    folder.write("Makefile", rules.as_bytes()).unwrap();
    for number in 0..objects.len() {
        let code = format!("#include <stdio.h>\nint function_{number}(void) {{ return printf(\"%d\", {number}); }}\n");
        folder.write(&format!("{number}.c"), code.as_bytes()).unwrap();
    }
    ["make", "-j8", "-C", &folder.path().display().to_string()].map(str::to_owned).to_vec()
}

/// The peak memory of a process, until it ends.
fn peak_mib(process: &mut Process) -> u64 {
    let status = format!("/proc/{}/status", process.pid());
    let start = Instant::now();
    let mut peak = 0;
    while process.wait(Duration::from_millis(20)).is_none() {
        assert!(start.elapsed() < LIMIT, "glass record does not end");
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let kib = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
        peak = peak.max(kib.unwrap_or(0_u64) >> 10);
    }
    peak
}

fn has(program: &Path, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success())
}

#[test]
fn what_has_ended_is_forgotten() {
    within(LIMIT, || {
        let Some(glass) = programs::built("glass") else { return };
        if !["make", "cc"].iter().all(|program| has(Path::new(program), "--version")) {
            return programs::skip("there is no make or no cc");
        }
        let folder = Folder::new("build").unwrap();
        let recording = folder.file("recording");
        let mut record = Command::new(&glass);
        record.args(["record", "--rate", "499", "--output"]).arg(&recording).current_dir(programs::root());
        record.arg("--").args(command(&folder));
        let mut recorder = Process::spawn(&mut record, &folder.file("record.log")).unwrap();
        let peak = peak_mib(&mut recorder);
        let report = Command::new(&glass).args(["report", "--text"]).arg(&recording).output().unwrap();
        let text = String::from_utf8_lossy(&report.stdout);
        assert!(report.status.success() && text.contains("Samples"), "{text}\n{}", recorder.output());
        say(&format!("a build with eight jobs: {peak} MiB at the peak of glass record"));
        assert!(peak > 0 && peak < PEAK_MIB_MAX, "{peak} MiB");
    });
}
