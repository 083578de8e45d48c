//! The profiler records the queue under load: the report names the queue's own functions, few stacks
//! are broken, and the queue works undisturbed.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::process::Process;
use glass_tests::programs::{self, Variant};
use glass_tests::qmp::{Events, Qmp, monitor_of_glass_run};
use glass_tests::queue::{Options, Queue, World};
use glass_tests::terminal::Terminal;
use serde_json::json;
use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

glass_tests::in_every_world! {
    a_recording_names_what_the_queue_does within 240;
}

/// The most packets of the requests for a sample of one vCPU, and for the attempt before.
const PACKETS: u64 = 8;

/// How long the test of the live screen may take.
const LIVE_LIMIT: Duration = Duration::from_secs(480);

/// The maximum of broken stacks, in percent.
const BROKEN_PERCENT_MAX: f64 = 1.0;

pub fn a_recording_names_what_the_queue_does(world: World) {
    let folder = Folder::new("record").unwrap();
    let mut options = Options::default();
    if world == World::Process {
        // Optimized, as users run it: the stacks of the others are longer than what is copied of them.
        let Some(program) = programs::variant("upload-queue", Variant::Functions, false) else { return };
        options.program = Some(program);
    }
    let Some(queue) = Queue::start(world, &folder.file("queue.img"), &options).unwrap() else { return };
    let Some(glass) = programs::built("glass") else { return };
    let recording = folder.file("recording");
    // A host that is emulated itself, and busy, takes few samples in three seconds.
    let seconds = if world == World::Tcg { "10" } else { "3" };
    let mut record = Command::new(&glass);
    record.args(["record", "--pid", &queue.service_pid().unwrap().to_string(), "--rate", "499", "--duration", seconds]);
    record.arg("--output").arg(&recording);
    let mut recorder = Process::spawn(&mut record, &folder.file("record.log")).unwrap();
    let moved = load_until(&queue, 200_000, || recorder.wait(Duration::ZERO).is_some());
    assert!(recorder.ended().is_some_and(|status| status.success()), "glass record: {}", recorder.output());
    let names: &[&str] =
        if world == World::Process { &["upload_queue"] } else { &["upload_queue", "smoltcp", "virtio"] };
    let broken = judge(&glass, &recording, names);
    say(&format!("record {world}: {moved} items moved meanwhile, {broken} % of the stacks broken"));
}

/// Records a queue for two seconds; what `glass info` prints.
fn recorded(queue: &Queue, folder: &Folder, options: &[&str]) -> Option<serde_json::Value> {
    let glass = programs::built("glass")?;
    let (recording, pid) = (folder.file("recording"), queue.service_pid().unwrap().to_string());
    let mut record = Command::new(&glass);
    record.args(["record", "--pid", &pid, "--rate", "199", "--duration", "2"]).args(options);
    assert!(record.arg("--output").arg(&recording).status().unwrap().success());
    let info = Command::new(&glass).args(["info", "--json"]).arg(&recording).output().unwrap();
    Some(serde_json::from_slice(&info.stdout).unwrap())
}

/// How many pauses are in a recording.
fn pauses(info: &serde_json::Value) -> u64 {
    info["cost"]["pause"]["count"].as_u64().unwrap()
}

fn samples(info: &serde_json::Value) -> u64 {
    info["samples"].as_u64().unwrap()
}

/// With `--leave-idle` a vCPU that sleeps is idle as without it, and is stopped for its first samples alone.
fn expect_that_an_idle_vcpu_need_not_be_stopped(world: World) {
    let folder = Folder::new("leave-idle").unwrap();
    let Some(queue) = Queue::start(world, &folder.file("queue.img"), &Options::default()).unwrap() else { return };
    let Some(stopped) = recorded(&queue, &folder, &[]) else { return };
    let left = recorded(&queue, &folder, &["--leave-idle"]).unwrap();
    for info in [&stopped, &left] {
        let idle = info["tracks"][0]["idle"].as_u64().unwrap();
        assert!(idle > 0 && idle * 10 >= samples(info) * 9, "{info}");
    }
    let of = |info| format!("{} pauses for {} samples", pauses(info), samples(info));
    say(&format!("leave-idle {world}: {}, without it {}", of(&left), of(&stopped)));
    // On a busy host the rate is lowered where each sample is a pause.
    assert!(pauses(&stopped) * 10 >= samples(&stopped) * 9, "{stopped}");
    assert!(samples(&left) > 100 && pauses(&left) * 4 < samples(&left), "{left}");
}

#[test]
fn an_idle_vcpu_need_not_be_stopped() {
    within(LIVE_LIMIT, || expect_that_an_idle_vcpu_need_not_be_stopped(World::Kvm));
}

#[test]
fn an_idle_vcpu_that_is_emulated_need_not_be_stopped() {
    within(LIVE_LIMIT, || expect_that_an_idle_vcpu_need_not_be_stopped(World::Tcg));
}

/// QEMU stops a VM for each client of its gdbstub: that stop is the first sample's, and to detach stops it once.
#[test]
fn a_vm_that_is_emulated_is_stopped_for_its_samples_alone() {
    within(LIVE_LIMIT, || {
        let folder = Folder::new("stops").unwrap();
        let Some(queue) = Queue::start(World::Tcg, &folder.file("queue.img"), &Options::default()).unwrap() else {
            return;
        };
        let monitor = monitor_of_glass_run(queue.service_pid().unwrap()).unwrap();
        let events = Events::collect(&monitor).unwrap();
        let Some(info) = recorded(&queue, &folder, &[]) else { return };
        let events = events.end().unwrap();
        let stops = events.iter().filter(|moment| !moment.resumes).count() as u64;
        // Where QEMU was busy for too long, each packet of the requests that follow may have stopped it.
        let late = info["warnings"].as_array().into_iter().flatten().filter_map(|warning| {
            warning.as_str()?.split_once(" samples were taken late")?.0.split(' ').next_back()?.parse::<u64>().ok()
        });
        let more = stops - pauses(&info);
        assert!(more >= 1 && more <= 1 + PACKETS * late.sum::<u64>(), "{stops} stops: {info}");
        assert_eq!(events.len() as u64, 2 * stops, "it runs after each");
    });
}

/// What QEMU and the host's kernel do for a queue behind QEMU's user network is in the recording of its VM.
#[test]
fn host_and_guest_are_in_one_recording() {
    within(LIVE_LIMIT, || {
        let folder = Folder::new("host").unwrap();
        let options = Options { vm: vec!["--vmm", "qemu"], ..Options::default() };
        let Some(queue) = Queue::start(World::Kvm, &folder.file("queue.img"), &options).unwrap() else { return };
        let Some(glass) = programs::built("glass") else { return };
        let recording = folder.file("recording");
        let pid = queue.service_pid().unwrap().to_string();
        let mut record = Command::new(&glass);
        record.args(["record", "--pid", &pid, "--host", "--duration", "4", "--output"]).arg(&recording);
        let mut recorder = Process::spawn(&mut record, &folder.file("record.log")).unwrap();
        load_until(&queue, 2_000_000, || recorder.wait(Duration::ZERO).is_some());
        assert!(recorder.ended().is_some_and(|status| status.success()), "glass record: {}", recorder.output());
        let stacks = |view: &str| {
            let mut export = Command::new(&glass);
            export
                .args(["export", "--format", "folded", "--states", "all", "--view", view, "--output", "-"])
                .arg(&recording);
            let output = export.output().unwrap();
            assert!(output.status.success(), "glass export: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let (guest, host, merged) = (stacks("guest"), stacks("host"), stacks("merged"));
        let has =
            |stacks: &str, parts: &[&str]| stacks.lines().any(|stack| parts.iter().all(|part| stack.contains(part)));
        assert!(has(&guest, &["glass_start"]) && !has(&guest, &["qemu"]), "{guest}");
        assert!(has(&host, &["qemu-system-x86"]) && !has(&host, &["glass_start"]), "{host}");
        assert!(has(&merged, &["glass_start"]) && has(&merged, &["qemu-system-x86"]), "{merged}");
        // A function of the guest, and above it what the host did for it.
        assert!(has(&merged, &["glass_start", "ioctl"]) || has(&merged, &["glass_start", "[kernel]"]), "{merged}");
    });
}

/// It was announced as samples at a rate, until Ctrl-C (2026-11-25).
#[test]
fn a_dump_is_announced_and_read_as_one_sample() {
    within(LIVE_LIMIT, || {
        let folder = Folder::new("dump").unwrap();
        let Some(queue) = Queue::start(World::Tcg, &folder.file("queue.img"), &Options::default()).unwrap() else {
            return;
        };
        let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("upload-queue")) else { return };
        let (dump, recording) = (folder.file("dump"), folder.file("recording"));
        let mut qmp = Qmp::of_glass_run(queue.service_pid().unwrap()).unwrap();
        let protocol = format!("file:{}", dump.display());
        qmp.execute("dump-guest-memory", json!({ "paging": false, "protocol": protocol })).unwrap();
        let mut record = Command::new(&glass);
        record.arg("record").arg("--post-mortem").arg(&dump).arg("--symbols").arg(&image);
        let output = record.arg("--output").arg(&recording).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("reading one sample of each vCPU"), "{text}");
        assert!(!text.contains("Ctrl-C") && !text.contains("Hz"), "{text}");
        let table = Command::new(&glass).arg("report").arg(&recording).arg("--text").output().unwrap();
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        assert!(table.contains("1 collected: 1 in time") && table.contains("; 1 expected"), "{table}");
    });
}

/// Moves items of this length through the queue until a condition holds; returns how many.
pub fn load_until(queue: &Queue, length_bytes: u64, mut is_over: impl FnMut() -> bool) -> u64 {
    let mut seed = 0;
    while !is_over() {
        seed += 1;
        assert!(seed < 100_000, "glass record does not end after its duration");
        let item = Content { seed, length_bytes };
        assert_eq!(queue.put(item).unwrap().status(), 200);
        queue.take(item).unwrap();
    }
    seed
}

/// Checks that functions of these names are in a recording and few stacks broken; returns the percentage of those.
pub fn judge(glass: &Path, recording: &Path, names: &[&str]) -> f64 {
    let report = |arguments: &[&str]| {
        let output = Command::new(glass).arg("report").arg(recording).args(arguments).output().unwrap();
        assert!(output.status.success(), "glass report: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = report(&["--text", "--top", "500"]);
    let page = recording.with_extension("html");
    report(&["--output", &page.to_string_lossy()]);
    let page = std::fs::read_to_string(page).unwrap();
    // The table has room for short names only; the page holds the whole ones.
    for name in names {
        assert!(page.contains(name), "no function of {name} is in the page; the table:\n{text}");
    }
    let broken = broken_percent(&text).unwrap_or_else(|| panic!("the table has no line about broken stacks:\n{text}"));
    // One of a hundred samples is more than that, and no share.
    assert!(
        broken < BROKEN_PERCENT_MAX || text.contains("% broken: 1 of "),
        "{broken} % of the stacks are broken:\n{text}"
    );
    broken
}

#[test]
fn the_live_screen_leaves_the_queue_running() {
    within(LIVE_LIMIT, || {
        let folder = Folder::new("top").unwrap();
        let Some(queue) = Queue::start(World::Tcg, &folder.file("queue.img"), &Options::default()).unwrap() else {
            return;
        };
        let Some(glass) = programs::built("glass") else { return };
        let line = format!("{} top --rate 199 --pid {}", glass.display(), queue.service_pid().unwrap());
        let Some(mut terminal) = Terminal::start(&line, 100, 30) else {
            return programs::skip("there is no program `script` to give us a terminal");
        };
        let mut seed = 0;
        let mut load = || {
            seed += 1;
            let item = Content { seed, length_bytes: 200_000 };
            assert_eq!(queue.put(item).unwrap().status(), 200);
            queue.take(item).unwrap();
        };
        // Not all texts need be visible at the same moment.
        let show = |terminal: &mut Terminal, load: &mut dyn FnMut(), texts: &[&'static str]| {
            let missing = RefCell::new(texts.to_vec());
            terminal.wait_for("what the queue does", load, |shown| {
                missing.borrow_mut().retain(|text| !shown.contains(text));
                missing.borrow().is_empty()
            });
        };
        show(&mut terminal, &mut load, &["vcpu 0", "running", "pause"]);
        // The function that calls all others has hardly a sample of its own: only total time puts it in the first rows.
        terminal.press("t");
        show(&mut terminal, &mut load, &["▼total", "glass_start"]);
        terminal.press("/smoltcp\r");
        show(&mut terminal, &mut load, &["with \"smoltcp\"", "smoltcp::"]);
        terminal.press("q");
        let (status, shown) = terminal.end();
        assert!(status.success(), "{shown:?}");
        let item = Content { seed: 0, length_bytes: 200_000 };
        assert_eq!(queue.put(item).unwrap().status(), 200);
        queue.get(item).unwrap();
        say(&format!("top: {seed} items moved meanwhile"));
    });
}

/// The number in `0.3 % broken`.
fn broken_percent(text: &str) -> Option<f64> {
    let before = text.lines().find_map(|line| line.split_once("% broken"))?.0;
    before.split_whitespace().next_back()?.trim_start_matches('<').parse().ok()
}

#[test]
fn the_share_of_broken_stacks_is_read() {
    assert_eq!(broken_percent("a\n  Stacks    0.3 % broken: 1 of 399\n"), Some(0.3));
    assert_eq!(broken_percent("  Stacks    <0.1 % broken: 1 of 3990\n"), Some(0.1));
    assert_eq!(broken_percent("nothing"), None);
}
