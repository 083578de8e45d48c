//! A profiler that is stopped stops no guest. Each signal to a thread that is traced waits for its tracer, so a `glass record` that
//! Ctrl-Z, SIGSTOP or a background write had stopped took the VM with it (2026-11-25).

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::process::{self, Process, Signal};
use glass_tests::programs;
use glass_tests::qmp::Qmp;
use glass_tests::queue::{Options, Queue, World};
use glass_tests::terminal::Terminal;
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(900);
const PATIENCE: Duration = Duration::from_secs(240);

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The VM answers, and so does its VMM about each vCPU, whose thread gets a signal for that.
fn assert_answers(queue: &Queue, qmp: &mut Qmp, seed: u64) {
    let registers = qmp.execute("human-monitor-command", json!({ "command-line": "info registers -a" })).unwrap();
    assert!(registers.as_str().is_some_and(|text| text.contains("RIP=")), "{registers}");
    let item = Content { seed, length_bytes: 20_000 };
    assert_eq!(queue.put(item).unwrap().status(), 200);
    queue.take(item).unwrap();
}

/// Starts `glass` on a queue, and returns it when it samples.
fn start(glass: &Path, queue: &Queue, folder: &Folder, command: &str, backend: &str) -> Process {
    let recording = folder.file("recording");
    let pid = queue.service_pid().unwrap().to_string();
    let mut arguments = Command::new(glass);
    arguments.args([command, "--pid", &pid, "--backend", backend, "--rate", "997"]);
    match command {
        "record" => arguments.arg("--output").arg(&recording),
        _ => arguments.args(["--once", "--duration", "3600"]),
    };
    let mut glass = Process::spawn(&mut arguments, &folder.file("glass.log")).unwrap();
    let is_holder = |pid: &u32| process::name(*pid).is_some_and(|name| name == "glass-holder");
    wait_until("no process holds the VM", || process::descendants(glass.pid()).iter().any(is_holder));
    if command == "record" {
        glass.wait_for_text("sampling", PATIENCE, || ());
    }
    glass
}

fn stops_no_guest(world: World, backend: &'static str, command: &'static str) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let Some(glass) = programs::built("glass") else { return };
    within(LIMIT * if programs::is_long() { 10 } else { 1 }, move || {
        let folder = Folder::new(&format!("suspended-{backend}-{command}")).unwrap();
        // QEMU's monitor reports whether the guest is stopped.
        let options = Options { vm: vec!["--vmm", "qemu"], ..Options::default() };
        let Some(queue) = Queue::start(world, &folder.file("queue.img"), &options).unwrap() else { return };
        let mut qmp = Qmp::of_glass_run(queue.service_pid().unwrap()).unwrap();
        // The same without a profiler.
        let answers = if programs::is_long() { 400 } else { 20 };
        let control = (3_000_000..).take(answers).map(|seed| {
            let start = Instant::now();
            assert_answers(&queue, &mut qmp, seed);
            start.elapsed()
        });
        let control = control.max().unwrap_or_default();
        let mut recorder = start(&glass, &queue, &folder, command, backend);
        let (mut seed, mut longest) = (0, Duration::ZERO);
        for round in 0..if programs::is_long() { 100 } else { 4 } {
            let helpers = process::descendants(recorder.pid());
            for pid in [recorder.pid()].into_iter().chain(helpers) {
                for signal in [Signal::STOP, Signal::TSTP] {
                    seed += 1;
                    // At another moment of a sample each time.
                    std::thread::sleep(Duration::from_micros(seed * 7919 % 9973));
                    process::send(pid, signal);
                    let must_stop = pid == recorder.pid() && signal == Signal::STOP;
                    if must_stop {
                        wait_until("SIGSTOP does not stop it", || process::is_stopped(pid));
                    }
                    let start = Instant::now();
                    assert_answers(&queue, &mut qmp, seed);
                    longest = longest.max(start.elapsed());
                    assert_eq!(process::is_stopped(pid) && must_stop, must_stop, "{}", recorder.output());
                    if pid != recorder.pid() {
                        wait_until("a helper stays stopped", || !process::is_stopped(pid));
                    }
                    process::send(pid, Signal::CONT);
                    assert!(recorder.ended().is_none(), "round {round}: {}", recorder.output());
                }
            }
            assert_answers(&queue, &mut qmp, seed + 1_000_000);
        }
        process::send(recorder.pid(), Signal::INT);
        let ended = recorder.wait(PATIENCE);
        assert!(ended.is_some_and(|status| status.success()), "{}", recorder.output());
        assert_answers(&queue, &mut qmp, 2_000_000);
        let output = recorder.output();
        say(&format!(
            "{command} {backend} {world}: {seed} stops, longest answer {longest:?}, without {control:?}\n{output}"
        ));
    });
}

/// The process has the walls of a reader, and another user than `holder`, which has the rights.
pub fn assert_jailed(reader: u32, holder: u32) {
    let reader = assert_walls(reader);
    let holder = std::fs::read_to_string(format!("/proc/{holder}/status")).unwrap();
    let user = |status: &str| status.lines().find_map(|line| line.strip_prefix("Uid:\t")).unwrap().to_owned();
    assert!(user(&holder) != user(&reader) || !user(&holder).starts_with("0\t"), "{reader}");
}

/// The process has the walls of a reader. Returns what Linux shows of it.
pub fn assert_walls(reader: u32) -> String {
    let reader = std::fs::read_to_string(format!("/proc/{reader}/status")).unwrap();
    for wall in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"] {
        assert!(reader.contains(wall), "no {wall} in {reader}");
    }
    reader
}

/// The process that holds or opens for this one. It takes its name in a moment.
pub fn holder_of(glass: u32) -> u32 {
    let is_holder = |pid: &u32| process::name(*pid).as_deref() == Some("glass-holder");
    let find = || process::descendants(glass).into_iter().find(is_holder);
    wait_until("there is no holder", || find().is_some());
    find().expect("it does not end before its reader")
}

/// The screen draws, obeys keys and a new size, and gives the terminal back, with no more rights than a table.
#[test]
fn what_shows_a_vm_is_jailed() {
    let Some(glass) = programs::built("glass") else { return };
    within(LIMIT, move || {
        let folder = Folder::new("jailed-top").unwrap();
        let options = Options::default();
        let Some(queue) = Queue::start(World::Tcg, &folder.file("queue.img"), &options).unwrap() else { return };
        let line = format!("{} top --pid {}", glass.display(), queue.service_pid().unwrap());
        let Some(mut terminal) = Terminal::start(&line, 100, 30) else {
            return programs::skip("there is no program `script` to give us a terminal");
        };
        let mut seed = 0;
        let mut load = || {
            seed += 1;
            let item = Content { seed, length_bytes: 200_000 };
            queue.put(item).unwrap();
            queue.take(item).unwrap();
        };
        terminal.wait_for("vCPUs", &mut load, |shown| shown.contains("vcpu 0"));
        assert_jailed(terminal.glass(), holder_of(terminal.glass()));
        // A key is not lost while the window changes its size.
        for (key, order) in [("t", "▼total"), ("s", "▼self")].into_iter().cycle().take(20) {
            process::send(terminal.glass(), Signal::WINCH);
            terminal.press(key);
            terminal.wait_for(order, || (), |shown| shown.contains(order));
        }
        terminal.wait_for("functions", &mut load, |shown| shown.contains("glass_start"));
        terminal.press("q");
        let (status, shown) = terminal.end();
        assert!(status.success(), "{shown:?}");
    });
}

/// What parses a VM's files and memory may do nothing else, also on a terminal, and the recording is whole.
#[test]
fn what_reads_a_vm_is_jailed() {
    let Some(glass) = programs::built("glass") else { return };
    if Command::new("script").arg("--version").output().is_err() {
        return programs::skip("there is no program `script` to give us a terminal");
    }
    within(LIMIT, move || {
        let folder = Folder::new("jailed").unwrap();
        let options = Options::default();
        let Some(queue) = Queue::start(World::Tcg, &folder.file("queue.img"), &options).unwrap() else { return };
        let recording = folder.file("recording");
        let pid = queue.service_pid().unwrap();
        let line = format!("exec {} record --pid {pid} --output {}", glass.display(), recording.display());
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/sh");
        let (mut script, mut keys) = Process::spawn_with_input(&mut script, &folder.file("log")).unwrap();
        script.wait_for_text("samples", PATIENCE, || ());
        let called = |name: &str| {
            let is_it = |pid: &u32| process::name(*pid).as_deref() == Some(name);
            process::descendants(script.pid()).into_iter().find(is_it).expect("it runs")
        };
        assert_jailed(called("glass"), called("glass-holder"));
        for seed in 0..20 {
            let item = Content { seed, length_bytes: 200_000 };
            assert_eq!(queue.put(item).unwrap().status(), 200);
            queue.take(item).unwrap();
        }
        keys.write_all(b"\x03").unwrap();
        let ended = script.wait(PATIENCE);
        assert!(ended.is_some_and(|status| status.success()), "{}", script.output());
        let report = Command::new(&glass).args(["report", "--text", "--top", "500"]).arg(&recording).output().unwrap();
        let text = String::from_utf8_lossy(&report.stdout);
        assert!(report.status.success() && text.contains("glass_start"), "{text}");
        assert!(!text.contains("has no jail"), "{text}");
        // A mistake leaves no file behind, although the process that notices it may not remove one.
        let wrong = folder.file("wrong");
        let mut record = Command::new(&glass);
        record.args(["record", "--pid", &pid.to_string(), "--symbols"]).arg(&glass).arg("--output").arg(&wrong);
        let refused = record.output().unwrap();
        assert!(!refused.status.success() && !wrong.exists(), "{}", String::from_utf8_lossy(&refused.stderr));
    });
}

#[test]
fn record_by_kvm() {
    stops_no_guest(World::Kvm, "kvm", "record");
}

#[test]
fn record_by_the_gdbstub_under_kvm() {
    stops_no_guest(World::Kvm, "gdbstub", "record");
}

#[test]
fn record_by_the_gdbstub() {
    stops_no_guest(World::Tcg, "gdbstub", "record");
}

#[test]
fn top_by_kvm() {
    stops_no_guest(World::Kvm, "kvm", "top");
}

#[test]
fn top_by_the_gdbstub() {
    stops_no_guest(World::Tcg, "gdbstub", "top");
}
