//! VMs with several cores: all of them come up and work for each other, one that is missing is reported, and a crash on one shows what the
//! others did.

use crate::buses::MACHINES;
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::process::Command;
use std::time::Duration;

glass_tests::in_worlds!(kvm Kvm:
    cores_work_for_each_other within 900;
    a_core_that_does_not_come_up_is_reported within 300;
    lines_that_are_lost_are_counted within 300;
    a_crash_shows_all_cores within 300;
    the_queue_does_not_mind_more_cores within 300;
);
glass_tests::in_worlds!(tcg Tcg:
    cores_work_for_each_other within 900;
    the_memory_bounds_the_cores within 300;
    a_core_that_does_not_come_up_is_reported within 300;
    lines_that_are_lost_are_counted within 300;
    a_crash_shows_all_cores within 300;
    the_queue_does_not_mind_more_cores within 300;
);

/// How long a loaded machine may take for anything.
const LIMIT: Duration = Duration::from_secs(480);

/// Runs the service `faults` with `options`; what it prints until it ends by itself, and its exit code.
pub fn faults(world: World, options: &[&str], argument: &str) -> Option<(String, Option<i32>)> {
    if let Some(reason) = world.obstacle() {
        programs::skip(reason);
        return None;
    }
    let (glass, image) = (programs::built("glass")?, programs::image("faults")?);
    let folder = Folder::new("cores").unwrap();
    let mut command = Command::new(glass);
    command.arg("run").arg(image).args(["--accel", &world.to_string(), "--net", "none"]);
    let mut process = Process::spawn(command.args(options).args(["--", argument]), &folder.file("log")).unwrap();
    let status = process.wait(LIMIT).unwrap_or_else(|| panic!("{options:?} does not end: {}", process.output()));
    Some((process.output(), status.code()))
}

/// Each core takes messages, frees memory of another, sleeps and is woken; also with little memory, on each bus, and on a PC.
fn cores_work_for_each_other(world: World) {
    let counts: &[&str] = if world == World::Tcg { &["1", "2", "4", "8"] } else { &["1", "2", "4"] };
    let memories = [&["--memory", "16"][..], &["--memory", "6G"]];
    let all = counts.iter().map(|count| (*count, &[][..]));
    let all = all.chain(memories.into_iter().chain(MACHINES).map(|machine| ("2", machine)));
    for (count, machine) in all {
        let Some((output, code)) = faults(world, &[&["--cores", count], machine].concat(), "cores") else { return };
        assert_eq!(code, Some(0), "{count} cores, {machine:?}: {output}");
        let line = format!("cores={count} cancelled=true none=true back=Some(0)");
        assert!(output.contains(&line), "{count} cores, {machine:?}: {output}");
        for core in 0..count.parse::<usize>().unwrap() {
            assert!(output.contains(&format!("core {core} runs")), "{count} cores, {machine:?}: {output}");
        }
    }
}

/// The most cores with the least memory: those that it is enough for run, and each finds some when it needs it.
fn the_memory_bounds_the_cores(world: World) {
    let Some((output, code)) = faults(world, &["--cores", "64", "--memory", "48"], "cores") else { return };
    assert_eq!(code, Some(0), "{output}");
    let after = |text: &str| output.split_once(text).map(|(_, rest)| rest);
    let count = after("the memory is enough for ").and_then(|rest| rest.split_once(" of 64 cores")).expect(&output).0;
    assert!(count.parse::<usize>().is_ok_and(|count| (8..64).contains(&count)), "{output}");
    assert!(output.contains(&format!("cores={count} cancelled=true none=true back=Some(0)")), "{output}");
}

/// An image whose secondary cores halt where they start: the service runs without them.
fn a_core_that_does_not_come_up_is_reported(world: World) {
    /// The first instructions of a secondary core in boot.s, CLI and LGDT, and HLT in a loop in their place.
    const START: [u8; 6] = [0xfa, 0x2e, 0x66, 0x0f, 0x01, 0x16];
    const HALT: [u8; 3] = [0xf4, 0xeb, 0xfd];
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("faults")) else { return };
    let folder = Folder::new("missing-core").unwrap();
    let mut bytes = std::fs::read(image).unwrap();
    let places: Vec<usize> = (0..bytes.len() - START.len()).filter(|at| bytes[*at..].starts_with(&START)).collect();
    assert_eq!(places.len(), 1, "the start of a secondary core is found once");
    bytes[places[0]..places[0] + HALT.len()].copy_from_slice(&HALT);
    let broken = folder.write("faults", &bytes).unwrap();
    let mut command = Command::new(glass);
    command.arg("run").arg(broken).args([
        "--accel",
        &world.to_string(),
        "--net",
        "none",
        "--cores",
        "3",
        "--",
        "cores",
    ]);
    let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    let status = process.wait(LIMIT).unwrap_or_else(|| panic!("it does not end: {}", process.output()));
    let output = process.output();
    assert_eq!(status.code(), Some(0), "{output}");
    for core in [1, 2] {
        let line = format!("core {core} (processor {core:#x}) did not start: the service runs without it");
        assert!(output.contains(&line), "{output}");
    }
    assert!(output.contains("cores=1 cancelled=true none=true back=Some(0)"), "{output}");
}

/// A core does not wait when it prints more than the first one takes, and no line disappears uncounted.
pub fn lines_that_are_lost_are_counted(world: World) {
    let Some((output, code)) = faults(world, &["--cores", "2"], "flood") else { return };
    assert_eq!(code, Some(0), "{output}");
    let lost =
        output.lines().filter_map(|line| line.strip_prefix('(')?.strip_suffix(" lines lost)")?.parse::<u64>().ok());
    // Of 20,000 lines at most 4,096 wait.
    assert!(lost.sum::<u64>() >= 20_000 - 4096, "{output}");
    assert!(output.lines().any(|line| line == "line 0"), "{output}");
}

/// The culprit is the last core; one never gives way, and the first waits, or still starts the culprit.
fn a_crash_shows_all_cores(world: World) {
    crashes_show_all_cores(world, &[]);
}

/// The same on the machine with these options of `glass run`.
pub fn crashes_show_all_cores(world: World, machine: &[&str]) {
    for (fault, expected, code) in [
        ("panic-there", "on purpose, elsewhere", 101),
        ("null-there", "read of unmapped address 0x8", 102),
        ("stack-there", "stack overflow: the stack of 256 KiB is used up", 102),
    ] {
        let options = [&["--cores", "3"], machine].concat();
        let Some((output, status)) = faults(world, &options, fault) else { return };
        assert_eq!(status, Some(code), "{fault}: {output}");
        for words in [expected, "core 2, task culprit,", "core 0, task ", "core 1, task busy:", "many::busy"] {
            assert!(output.contains(words), "{fault} does not print `{words}`: {output}");
        }
    }
}

/// A service that uses one core runs as on a machine with one.
pub fn the_queue_does_not_mind_more_cores(world: World) {
    use glass_tests::content::Content;
    use glass_tests::queue::{Options, Queue};
    let folder = Folder::new("queue").unwrap();
    let options = Options { disk_size: "64M".into(), vm: vec!["--cores", "3"], ..Options::default() };
    let Some(queue) = Queue::start(world, &folder.file("queue.img"), &options).unwrap() else { return };
    for seed in 0..3 {
        let content = Content { seed, length_bytes: 3_000_001 };
        let response = queue.put(content).unwrap();
        assert_eq!(response.status(), 200, "{}", response.text());
        queue.take(content).unwrap();
    }
}
