//! A Linux guest with 10,000 threads, and more than 100 processes and as many threads a second that start and end: what reads its tasks ends in time and with little
//! memory, lists all that wait, and reports how often a list changed while it was read.

use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::{process, programs};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a guest may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(900);
const PATIENCE: Duration = Duration::from_secs(600);
const THREADS: usize = 10_000;
/// Processes, and as many threads. A loaded machine does not reach it.
const PER_SECOND: u32 = 150;
const PER_SECOND_LEAST: f64 = 100.0;
const MEMORY_MIB: u32 = 2048;
/// What each command may take, built without optimization on a loaded machine, and its memory.
const COMMAND_LIMIT: Duration = Duration::from_secs(480);
const PEAK_MIB_MAX: u64 = 1024;
/// How often the list is read.
const WALKS: u64 = 20;
const WALKS_VARIABLE: &str = "GLASS_LINUX_WALKS";
const RECORD_SECONDS: u64 = 5;
const POLL: Duration = Duration::from_millis(5);
/// The function of the waiting threads, at the start of a frame.
const WAITS: &str = "waits+";
/// The process with the threads.
const HAS_THREADS: &str = "has-threads";

/// What a command of `glass` has printed, how long it took, and the CPU time and the most memory of it and the processes that it started, together.
struct Ended {
    output: String,
    errors: String,
    time: Duration,
    /// CPU time of all of them, up to the last time that it was read.
    cpu: Duration,
    peak_mib: u64,
}

impl Ended {
    /// What it cost.
    fn cost(&self) -> String {
        format!("{:.2} s, {:.2} s of CPU time, {} MiB", self.time.as_secs_f64(), self.cpu.as_secs_f64(), self.peak_mib)
    }
}

/// Memory of a process that no other one has, in KiB.
fn own_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

fn glass(program: &Path, folder: &Folder, arguments: &[&str]) -> Ended {
    let (output, errors) = (folder.file("output"), folder.file("errors"));
    let mut command = Command::new(program);
    command.args(arguments).stdout(File::create(&output).unwrap()).stderr(File::create(&errors).unwrap());
    let (start, mut peak_kib, mut cpu) = (Instant::now(), 0, Duration::ZERO);
    let mut child = command.spawn().unwrap();
    let status = loop {
        let family: Vec<u32> = process::descendants(child.id()).into_iter().chain([child.id()]).collect();
        peak_kib = peak_kib.max(family.iter().copied().map(own_kib).sum());
        cpu = cpu.max(family.iter().filter_map(|pid| process::cpu_time(*pid)).sum());
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > COMMAND_LIMIT {
            child.kill().unwrap();
            panic!("glass {arguments:?} does not end");
        }
        std::thread::sleep(POLL);
    };
    let read = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let ended =
        Ended { output: read(output), errors: read(errors), time: start.elapsed(), cpu, peak_mib: peak_kib >> 10 };
    assert!(status.success(), "glass {arguments:?}: {}", ended.errors);
    assert!(ended.peak_mib < PEAK_MIB_MAX, "glass {arguments:?} takes {} MiB", ended.peak_mib);
    ended
}

/// How many processes and threads the guest has started, and when in nanoseconds since its start.
fn started(guest: &mut Guest) -> (f64, f64) {
    let text = guest.expect("grep processes /proc/stat; cut -d' ' -f1 /proc/uptime", PATIENCE).unwrap();
    let mut words = text.split_whitespace().skip(1).map(|word| word.parse::<f64>().unwrap());
    (words.next().unwrap(), words.next().unwrap())
}

/// What one list of tasks has: times that it changed meanwhile, processes without threads, and how many threads the process has.
fn check_list(text: &str) -> (u64, u64, usize) {
    let list: Value = serde_json::from_str(text).unwrap();
    let tasks = list["tasks"].as_array().unwrap();
    let tids: BTreeSet<u64> = tasks.iter().map(|task| task["tid"].as_u64().unwrap()).collect();
    assert_eq!(tids.len(), tasks.len(), "a task is listed twice");
    let process = tasks.iter().find(|task| task["name"] == HAS_THREADS).expect("the process is listed");
    let threads = tasks.iter().filter(|task| task["pid"] == process["pid"]).count();
    (list["torn"].as_u64().unwrap(), list["left_out"].as_u64().unwrap(), threads)
}

fn check(settings: &Settings) {
    let Some(program) = programs::built("glass") else { return };
    let parts = match Parts::get(settings.release) {
        Ok(parts) => parts,
        Err(reason) => return programs::skip(&format!("no Linux {}: {reason:#}", settings.release)),
    };
    let mut guest = Guest::boot(&parts, settings).unwrap();
    let start = format!(
        "storm {THREADS} {PER_SECOND} >/dev/null 2>&1 & until cat /proc/[0-9]*/comm 2>/dev/null | grep -q {HAS_THREADS}; do kill -0 $! || exit 1; usleep 200000; done"
    );
    guest.expect(&start, PATIENCE).unwrap();
    let (folder, pid) = (Folder::new("linux-storm").unwrap(), guest.pid().to_string());
    let before = started(&mut guest);
    lists(&program, &folder, &pid);
    stacks(&program, &folder, &pid, &parts.root.files);
    record(&program, &folder, &pid);
    let after = started(&mut guest);
    let rate = (after.0 - before.0) / (after.1 - before.1);
    say(&format!("the guest started {rate:.0} processes and threads a second, by its clock"));
    assert!(rate > PER_SECOND_LEAST, "no storm: {rate} processes and threads a second");
}

/// Reads the list many times.
fn lists(program: &Path, folder: &Folder, pid: &str) {
    let (mut torn, mut left_out, mut torn_walks) = (0, 0, 0);
    let walks = programs::number(WALKS_VARIABLE, WALKS);
    for walk in 0..walks {
        let ended = glass(program, folder, &["ps", "--threads", "--json", "--pid", pid]);
        let (changed, missing, threads) = check_list(&ended.output);
        (torn, left_out) = (torn + changed, left_out + missing);
        torn_walks += u64::from(changed > 0);
        if walk == 0 || threads < THREADS {
            say(&format!("ps --threads --json: {threads} threads; {}; changed {changed} times", ended.cost()));
        }
        assert!(threads > THREADS, "{threads} threads, {missing} processes left out");
    }
    say(&format!(
        "{torn_walks} of {walks} lists changed while they were read, {torn} times in all; {left_out} processes were left out"
    ));
    let ended = glass(program, folder, &["ps", "--pid", pid]);
    let rows = ended.output.lines().count();
    say(&format!("ps: {rows} lines; {}", ended.cost()));
    assert!(rows > 50 && rows < 500, "{rows} lines");
}

/// Reads all stacks: each waiting thread has the kernel's and its own. What of its programs is not in memory is in the files of its root.
fn stacks(program: &Path, folder: &Folder, pid: &str, root: &Path) {
    let root = root.to_str().unwrap();
    let ended = glass(program, folder, &["stacks", "--pid", pid, "--guest-root", root]);
    let mut tasks: Vec<Vec<&str>> = Vec::new();
    for line in ended.output.lines() {
        match tasks.last_mut() {
            Some(task) if line.starts_with(' ') => task.push(line),
            _ => tasks.push(vec![line]),
        }
    }
    let is_whole = |task: &&Vec<&str>| {
        let user = task.iter().position(|line| line.trim() == "in the process:");
        let kernel = task[..user.unwrap_or(0)].iter().any(|line| line.contains("sys_pause"));
        kernel && user.is_some_and(|user| task[user..].iter().any(|line| line.trim_start().starts_with(WAITS)))
    };
    let whole = tasks.iter().filter(is_whole).count();
    let count = tasks.len();
    say(&format!("stacks: {whole} of {count} are whole ones of the waiting threads; {}", ended.cost()));
    if let Some(sentence) = ended.output.lines().find(|line| line.starts_with("a list of tasks changed")) {
        say(&format!("stacks: {sentence}"));
    }
    let waiting = tasks.iter().find(|task| task.iter().any(|line| line.contains("pause")));
    assert!(whole >= THREADS, "{whole} of {count} tasks; one that waits: {waiting:#?}");
}

/// Records; the storm is in it, and what could not be read is counted in the report.
fn record(program: &Path, folder: &Folder, pid: &str) {
    let recording = folder.file("storm.glass");
    let duration = RECORD_SECONDS.to_string();
    let file = recording.to_str().unwrap();
    let ended = glass(program, folder, &["record", "--pid", pid, "--duration", &duration, "--output", file]);
    say(&format!("record of {duration} s: {}", ended.cost()));
    ended.errors.lines().for_each(|line| say(&format!("  {line}")));
}

#[test]
fn ten_thousand_threads_in_a_storm_of_processes() {
    if !programs::is_long() {
        return programs::skip("a guest with 10,000 threads is booted by --long");
    }
    within(LIMIT, || check(&Settings { memory_mib: MEMORY_MIB, ..Settings::new(Release::Bookworm61) }));
}
