//! Stacks that are hard to unwind, beside gdb, which stops the program and reads all of its memory; and what Go's tools make of our pprof.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use serde_json::Value;

use super::cases::{GO, tool};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;

const SOURCE: &str = include_str!("programs/stacks.c");
const KINDS: [&str; 4] = ["signal", "vfork", "probe", "align"];
const RATE: &str = "997";
/// How often gdb is run.
const GDB_RUNS: usize = 20;
/// The least share of whole stacks, in percent.
const WHOLE: f64 = 99.0;
/// How long a program runs before it is recorded.
const WARM_UP: Duration = Duration::from_millis(500);

pub(super) fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("perf-stacks")?;
    let (source, program) = (folder.file("stacks.c"), folder.file("stacks"));
    fs::write(&source, SOURCE)?;
    let flags: [&dyn AsRef<std::ffi::OsStr>; 5] = [&"-O2", &"-fstack-clash-protection", &"-o", &program, &source];
    match tool("cc", &flags, folder.path())? {
        None => outcome.note("stacks: skipped, there is no cc".to_owned()),
        Some(()) => {
            for kind in run.size(&KINDS[..], &KINDS[..1]) {
                let mut command = Command::new(&program);
                one(outcome, run, &folder, kind, command.arg(kind), " in main ")?;
            }
        }
    }
    let mut openssl = Command::new("openssl");
    openssl.args(["speed", "-seconds", "3600", "-bytes", "16384", "sha512"]);
    match tool("openssl", &[&"version"], folder.path())? {
        None => outcome.note("sha512: skipped, there is no openssl".to_owned()),
        // Its main has no name.
        Some(()) => one(outcome, run, &folder, "sha512", &mut openssl, "__libc_start")?,
    }
    go(outcome, run, &folder)
}

/// A program: the share of whole stacks by us, and by gdb, which has `start` in them.
fn one(
    outcome: &mut Outcome,
    run: &Run,
    folder: &Folder,
    name: &str,
    command: &mut Command,
    start: &str,
) -> Result<()> {
    let process = Process::spawn(command.current_dir(folder.path()), &folder.file("log"))?;
    std::thread::sleep(WARM_UP);
    let pid = process.pid().to_string();
    let recording = folder.file(&format!("{name}.pftrace"));
    record(&recording, &["--pid", &pid, "--duration", run.size("10", "1")])?;
    let info = glass(&["info", "--json"], &recording)?;
    let info: Value = serde_json::from_str(&info)?;
    let (samples, broken) = (number(&info["samples"])?, number(&info["cost"]["stacks_broken"])?);
    let whole = 100.0 * (samples - broken) / samples.max(1.0);
    let (mut runs, mut by_gdb) = (0, 0);
    for _ in 0..run.size(GDB_RUNS, 1) {
        let Ok(output) =
            Command::new("gdb").args(["-batch", "-nx", "-ex", "bt", "-p", &pid]).stdin(Stdio::null()).output()
        else {
            break;
        };
        runs += 1;
        by_gdb += usize::from(String::from_utf8_lossy(&output.stdout).contains(start));
    }
    let figure = |what: &str, unit: &str, value: f64| Figure::of(&format!("perf.stacks.{name}.{what}"), unit, &[value]);
    outcome.add(figure("whole_percent", "%", whole));
    outcome.add(figure("samples", "samples", samples));
    if runs > 0 {
        outcome.add(figure("gdb_whole_percent", "%", 100.0 * by_gdb as f64 / runs as f64));
    }
    let holds = if whole >= WHOLE { "holds" } else { "DOES NOT HOLD" };
    outcome.note(format!("stacks.{name}: {holds}; {broken} of {samples} broken; gdb {by_gdb} of {runs} whole"));
    Ok(())
}

/// Go builds with our profile, and its viewer's functions add up to all samples.
fn go(outcome: &mut Outcome, run: &Run, folder: &Folder) -> Result<()> {
    let (source, program) = (folder.file("mix.go"), folder.file("mix"));
    fs::write(&source, GO)?;
    if tool("go", &[&"build", &"-o", &program, &source], folder.path())?.is_none() {
        outcome.note("go: skipped, there is no go".to_owned());
        return Ok(());
    }
    let process = Process::spawn(&mut Command::new(&program), &folder.file("log"))?;
    std::thread::sleep(WARM_UP);
    let recording = folder.file("go.pftrace");
    record(&recording, &["--pid", &process.pid().to_string(), "--duration", run.size("10", "1")])?;
    let profile = folder.file("go.pprof");
    let mut export = Command::new(programs::built("glass").context("glass is not built")?);
    let output = export.arg("export").arg(&recording).args(["-f", "pprof", "-o"]).arg(&profile).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (optimized, option) = (folder.file("mix-pgo"), format!("-pgo={}", profile.display()));
    let built = tool("go", &[&"build", &option, &"-o", &optimized, &source], folder.path());
    outcome.note(match &built {
        Ok(_) => "go build -pgo: holds".to_owned(),
        Err(error) => format!("go build -pgo: DOES NOT HOLD: {error}"),
    });
    let top = Command::new("go")
        .args(["tool", "pprof", "-top", "-nodecount=100000", "-nodefraction=0", "-sample_index=samples"])
        .arg(&profile)
        .env("GOCACHE", folder.file("go-cache"))
        .output()?;
    let text = String::from_utf8_lossy(&top.stdout).into_owned();
    let percent = |line: &str| line.split_whitespace().nth(1)?.strip_suffix('%')?.parse::<f64>().ok();
    let sum: f64 = text.lines().filter_map(percent).sum();
    outcome.add(Figure::of("perf.go.pprof_sum_percent", "%", &[sum]));
    let file = text.lines().find(|line| line.starts_with("File:")).unwrap_or("File: none");
    outcome.note(format!("go tool pprof -top: {file}, sum {sum:.1} %"));
    Ok(())
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().context("`glass info --json` lacks a number")
}

fn glass(arguments: &[&str], recording: &Path) -> Result<String> {
    let program = programs::built("glass").context("glass is not built")?;
    let output = Command::new(program).args(arguments).arg(recording).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn record(recording: &Path, arguments: &[&str]) -> Result<()> {
    let program = programs::built("glass").context("glass is not built")?;
    let mut command = Command::new(program);
    command.args(["record", "--backend", "process", "--rate", RATE]).args(arguments).arg("-o").arg(recording);
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
