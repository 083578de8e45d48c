//! The programs that are compared, how each is built, and the recordings of both profilers.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use glass_tests::folder::Folder;
use glass_tests::process::{self, Process};
use glass_tests::programs;

use super::shares::{Shares, WRONG};

const RATE_HZ: u32 = 997;
/// A virtual machine compiles what is hot in this time.
const WARM_UP: Duration = Duration::from_secs(3);
/// How long a profiler may take in addition to its recording time.
const PATIENCE: Duration = Duration::from_secs(240);
const CPP: &str = include_str!("programs/mix.cpp");
pub(super) const GO: &str = include_str!("programs/mix.go");
const JAVASCRIPT: &str = include_str!("programs/mix.js");
const RUST: &str = include_str!("programs/mix.rs");
/// Generates functions and names them in a perf map, as runtimes do that are not installed.
const GENERATES: &str = include_str!("../../../profiler/guests/tests/programs/jit.c");

/// A program to compare, or why it is left out.
pub(super) enum Ready {
    Skipped(String),
    Runs(Box<Running>),
}

/// Its name in figures, and how it is started.
type Case = (&'static str, fn() -> Result<Ready>);

/// All of them.
pub(super) const CASES: [Case; 7] = [
    ("cpp", cpp),
    ("go", go),
    ("node", node),
    ("rust_split", rust_split),
    ("replaced", replaced),
    ("namespace", namespace),
    ("perf_map", perf_map),
];

/// A program that runs.
pub(super) struct Running {
    /// Ends it when dropped.
    _process: Process,
    pid: u32,
    folder: Folder,
}

/// What prevents all comparisons.
pub(super) fn obstacle() -> Option<String> {
    let has =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !has("perf") {
        return Some("there is no perf for this kernel (Debian: linux-perf)".to_owned());
    }
    programs::built("glass").is_none().then(|| "glass is not built".to_owned())
}

/// Runs a compiler or another tool; fails with what it printed. `None` if there is none.
pub(super) fn tool(program: &str, arguments: &[&dyn AsRef<OsStr>], folder: &Path) -> Result<Option<()>> {
    let mut command = Command::new(program);
    // Go's build cache is there too.
    command.args(arguments).current_dir(folder).env("GOCACHE", folder.join("go-cache")).stdin(Stdio::null());
    let Ok(output) = command.output() else { return Ok(None) };
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(Some(()))
}

fn skipped(what: &str) -> Result<Ready> {
    Ok(Ready::Skipped(format!("there is no {what}")))
}

impl Running {
    fn start(folder: Folder, command: &mut Command) -> Result<Ready> {
        let process = Process::spawn(command.current_dir(folder.path()), &folder.file("log"))?;
        let pid = process.pid();
        std::thread::sleep(WARM_UP);
        ensure!(process::is_alive(pid), "the program ended: {}", process.output());
        Ok(Ready::Runs(Box::new(Running { _process: process, pid, folder })))
    }

    fn perf(&self, arguments: &[&dyn AsRef<OsStr>]) -> Command {
        let mut command = Command::new("perf");
        // Keeps its copies of binaries out of the user's folder.
        command.arg("--buildid-dir").arg(self.folder.file("build-ids")).args(arguments);
        command
    }

    /// Both record it at the same time.
    pub(super) fn record(&mut self, seconds: u32) -> Result<(Shares, Shares)> {
        let glass = programs::built("glass").context("glass is not built")?;
        let (ours, theirs) = (self.folder.file("glass.pftrace"), self.folder.file("perf.data"));
        let (pid, rate, time) = (self.pid.to_string(), RATE_HZ.to_string(), seconds.to_string());
        let mut perf = self.perf(&[&"record", &"--quiet", &"--buildid-mmap", &"-e", &"cpu-clock:u", &"-F", &rate]);
        perf.args(["-p", &pid, "-o"]).arg(&theirs).args(["--", "sleep", &time]);
        let mut record = Command::new(&glass);
        record.args(["record", "--backend", "process", "--pid", &pid, "--rate", &rate, "--duration", &time, "-o"]);
        let limit = Duration::from_secs(seconds.into()) + PATIENCE;
        let mut both = [
            Process::spawn(&mut perf, &self.folder.file("perf.log"))?,
            Process::spawn(record.arg(&ours), &self.folder.file("glass.log"))?,
        ];
        let start = Instant::now();
        for profiler in &mut both {
            let status = profiler.wait(limit.saturating_sub(start.elapsed())).context("a profiler does not end")?;
            ensure!(status.success(), "{}", profiler.output());
        }
        let script = self.perf(&[&"script", &"-i", &theirs, &"-F", &"ip,sym"]).stderr(Stdio::null()).output()?;
        ensure!(script.status.success(), "perf script failed");
        let exported = self.folder.file("firefox.json");
        let export =
            Command::new(&glass).arg("export").arg(&ours).args(["-f", "firefox", "-o"]).arg(&exported).output()?;
        ensure!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
        let glass = Shares::of_firefox(&serde_json::from_slice(&fs::read(exported)?)?)?;
        Ok((glass, Shares::of_perf(&String::from_utf8_lossy(&script.stdout))))
    }
}

/// Compiles a source with a compiler that takes it as its last argument and `-o`.
fn compile(folder: &Folder, compiler: &str, source: (&str, &str), flags: &[&str]) -> Result<Option<PathBuf>> {
    let (input, output) = (folder.file(source.0), folder.file("mix"));
    fs::write(&input, source.1)?;
    let mut arguments: Vec<&dyn AsRef<OsStr>> = flags.iter().map(|flag| flag as &dyn AsRef<OsStr>).collect();
    arguments.extend([&"-o" as &dyn AsRef<OsStr>, &output, &input]);
    Ok(tool(compiler, &arguments, folder.path())?.map(|()| output))
}

const CPP_FLAGS: [&str; 3] = ["-O2", "-g", "-Wl,--build-id"];

fn build_cpp(name: &str) -> Result<Option<(Folder, PathBuf)>> {
    let folder = Folder::new(name)?;
    let program = compile(&folder, "g++", ("mix.cpp", CPP), &CPP_FLAGS)?;
    Ok(program.map(|program| (folder, program)))
}

fn cpp() -> Result<Ready> {
    if !Path::new("/usr/share/doc/libc6-dbg").exists() {
        return skipped("libc6-dbg");
    }
    let Some((folder, program)) = build_cpp("perf-cpp")? else { return skipped("g++") };
    Running::start(folder, &mut Command::new(program))
}

fn go() -> Result<Ready> {
    let folder = Folder::new("perf-go")?;
    let (source, program) = (folder.file("mix.go"), folder.file("mix"));
    fs::write(&source, GO)?;
    if tool("go", &[&"build", &"-o", &program, &source], folder.path())?.is_none() {
        return skipped("go");
    }
    Running::start(folder, &mut Command::new(program))
}

fn node() -> Result<Ready> {
    let folder = Folder::new("perf-node")?;
    let source = folder.file("mix.js");
    fs::write(&source, JAVASCRIPT)?;
    if tool("node", &[&"--version"], folder.path())?.is_none() {
        return skipped("node");
    }
    Running::start(folder, Command::new("node").arg("--perf-basic-prof").arg(source))
}

fn rust_split() -> Result<Ready> {
    let folder = Folder::new("perf-rust")?;
    let flags = ["-O", "-g", "--edition", "2024", "-C", "link-arg=-Wl,--build-id"];
    let Some(program) = compile(&folder, "rustc", ("mix.rs", RUST), &flags)? else { return skipped("rustc") };
    let debug = folder.file("mix.debug");
    let link = format!("--add-gnu-debuglink={}", debug.display());
    let split = tool("objcopy", &[&"--only-keep-debug", &program, &debug], folder.path())?;
    if split.is_none() {
        return skipped("objcopy");
    }
    tool("objcopy", &[&"--strip-all", &link, &program], folder.path())?;
    Running::start(folder, &mut Command::new(program))
}

/// The same program with other names, as an update would be.
fn build_other(folder: &Folder, name: &str) -> Result<PathBuf> {
    let functions = ["dice", "mix", "checksum", "waves", "texts", "count"];
    let renamed: Vec<String> = functions.iter().map(|name| format!("-D{name}={WRONG}{name}")).collect();
    let (input, output) = (folder.file("mix.cpp"), folder.file(name));
    let mut arguments: Vec<&dyn AsRef<OsStr>> = CPP_FLAGS.iter().map(|flag| flag as &dyn AsRef<OsStr>).collect();
    arguments.extend(renamed.iter().map(|flag| flag as &dyn AsRef<OsStr>));
    arguments.extend([&"-o" as &dyn AsRef<OsStr>, &output, &input]);
    tool("g++", &arguments, folder.path())?.context("g++ is gone")?;
    Ok(output)
}

fn replaced() -> Result<Ready> {
    let Some((folder, program)) = build_cpp("perf-replaced")? else { return skipped("g++") };
    let other = build_other(&folder, "other")?;
    let ready = Running::start(folder, &mut Command::new(&program))?;
    // perf has no names for what it runs from then on.
    fs::rename(other, program)?;
    Ok(ready)
}

fn namespace() -> Result<Ready> {
    let Some((folder, program)) = build_cpp("perf-namespace")? else { return skipped("g++") };
    if tool("unshare", &[&"--mount", &"true"], folder.path()).is_err() {
        return skipped("right to make a mount namespace");
    }
    let (inside, outside) = (folder.file("inside"), folder.file("outside"));
    let other = build_other(&folder, "other")?;
    for (file, place) in [(&program, &inside), (&other, &outside)] {
        fs::create_dir(place)?;
        fs::rename(file, place.join("mix"))?;
    }
    let script = "mount --bind \"$0\" \"$1\" && exec \"$1/mix\"";
    Running::start(folder, Command::new("unshare").args(["--mount", "sh", "-c", script]).args([inside, outside]))
}

fn perf_map() -> Result<Ready> {
    let folder = Folder::new("perf-map")?;
    let flags = ["-O2", "-g", "-fno-omit-frame-pointer"];
    let Some(program) = compile(&folder, "cc", ("jit.c", GENERATES), &flags)? else { return skipped("cc") };
    Running::start(folder, Command::new(program).args(["3600", "map"]))
}

impl Drop for Running {
    fn drop(&mut self) {
        // Files that programs with generated code leave behind; most have none.
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", self.pid));
    }
}
