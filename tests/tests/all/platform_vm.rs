//! What a service in a VM learns of its machine: time of day, memory, and which messages reach the console.

use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::{World, service_pid};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::time::{Duration, SystemTime};

glass_tests::in_worlds!(kvm Kvm:
    the_time_of_day_and_the_memory_are_right within 120;
    the_console_has_messages_of_its_level within 120;
    a_service_that_does_not_listen_ends_at_the_first_signal within 120;
    a_failed_service_is_started_again within 120;
    a_service_whose_vmm_is_killed_is_started_again within 120;
);
glass_tests::in_worlds!(tcg Tcg:
    the_time_of_day_and_the_memory_are_right within 120;
    the_console_has_messages_of_its_level within 120;
    a_service_that_does_not_listen_ends_at_the_first_signal within 120;
    a_failed_service_is_started_again within 120;
    a_service_whose_vmm_is_killed_is_started_again within 120;
);

/// How long a loaded machine may take for anything.
const PATIENCE: Duration = Duration::from_secs(240);
/// Between two programs that read the same clock on a loaded machine.
const CLOCK_TOLERANCE: f64 = 5.0;

/// The service `faults` doing what its argument names.
fn command(world: World, options: &[&str], argument: &str) -> Option<Command> {
    if let Some(reason) = world.obstacle() {
        programs::skip(reason);
        return None;
    }
    let mut command = Command::new(programs::built("glass")?);
    command.arg("run").arg(programs::image("faults")?).args(["--accel", &world.to_string(), "--net", "none"]);
    command.args(options).args(["--", argument]);
    Some(command)
}

/// What it prints until it ends by itself, and its exit code.
fn run(world: World, options: &[&str], argument: &str) -> Option<(String, Option<i32>)> {
    let folder = Folder::new("platform").unwrap();
    let mut process = Process::spawn(&mut command(world, options, argument)?, &folder.file("log")).unwrap();
    let status = process.wait(PATIENCE).unwrap_or_else(|| panic!("no end: {}", process.output()));
    Some((process.output(), status.code()))
}

fn seconds_now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

fn the_time_of_day_and_the_memory_are_right(world: World) {
    let before = seconds_now();
    let Some((said, code)) = run(world, &["--memory", "32"], "facts") else { return };
    let after = seconds_now();
    assert_eq!(code, Some(0), "{said}");
    let word = |name: &str| {
        let rest = said.split_once(&format!("{name}=")).unwrap_or_else(|| panic!("no {name}: {said}")).1;
        rest.split_whitespace().next().unwrap().to_owned()
    };
    let source = if world == World::Kvm { "KVM" } else { "RTC" };
    assert_eq!(word("source"), source, "{said}");
    let number = |name: &str| word(name).parse::<f64>().unwrap();
    let secs = number("wall");
    assert!((before - CLOCK_TOLERANCE..after + CLOCK_TOLERANCE).contains(&secs), "{secs} from {before} to {after}");
    // A megabyte was allocated, written and freed.
    let (used, held, freed) = (number("used"), number("held"), number("freed"));
    assert!((1.0e6..1.2e6).contains(&(held - used)) && freed == used, "{said}");
    assert!(number("peak") >= held, "{said}");
    assert!((20.0e6..33.6e6).contains(&number("total")), "{said}");
}

fn the_console_has_messages_of_its_level(world: World) {
    for (options, expected) in [
        (&[][..], &["WARN", "ERROR"][..]),
        (&["--log", "off"], &[]),
        (&["--log", "error"], &["ERROR"]),
        (&["--log", "debug"], &["WARN", "INFO", "DEBUG", "ERROR"]),
    ] {
        let Some((said, code)) = run(world, options, "messages") else { return };
        assert_eq!(code, Some(0), "{said}");
        let levels: Vec<&str> = ["WARN", "INFO", "DEBUG", "ERROR", "TRACE"]
            .into_iter()
            .filter(|level| said.contains(&format!(" s {level} faults: a message number=7")))
            .collect();
        let expected: Vec<&str> =
            ["WARN", "INFO", "DEBUG", "ERROR"].into_iter().filter(|level| expected.contains(level)).collect();
        assert_eq!(levels, expected, "{options:?}: {said}");
    }
}

fn a_service_that_does_not_listen_ends_at_the_first_signal(world: World) {
    let folder = Folder::new("deaf").unwrap();
    let Some(mut command) = command(world, &[], "wait") else { return };
    let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    let end = std::time::Instant::now() + PATIENCE;
    while !process.output().contains("waiting") {
        assert!(std::time::Instant::now() < end, "{}", process.output());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(process.interrupt(PATIENCE), "{}", process.output());
}

fn a_failed_service_is_started_again(world: World) {
    let folder = Folder::new("restart").unwrap();
    let Some(mut command) = command(world, &["--restart"], "error") else { return };
    let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    let end = std::time::Instant::now() + PATIENCE;
    while process.output().matches("this service always fails").count() < 3 {
        assert!(process.ended().is_none() && std::time::Instant::now() < end, "{}", process.output());
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = process.output();
    assert!(said.contains("it starts again in 0.5 s") && said.contains("it starts again in 1.0 s"), "{said}");
    assert!(process.interrupt(PATIENCE), "{}", process.output());
}

/// As the kernel does when memory is short, and as QEMU's own faults do.
fn a_service_whose_vmm_is_killed_is_started_again(world: World) {
    let folder = Folder::new("killed").unwrap();
    let Some(mut command) = command(world, &["--restart"], "wait") else { return };
    let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    // Not SIGSEGV, whose handler in Rust programs only ends what has faulted.
    for (number, signal, name) in
        [(1, Signal::KILL, "SIGKILL"), (2, Signal::ILL, "SIGILL"), (3, Signal::ABORT, "SIGABRT")]
    {
        let end = std::time::Instant::now() + PATIENCE;
        while process.output().matches("waiting").count() < number {
            assert!(process.ended().is_none() && std::time::Instant::now() < end, "{}", process.output());
            std::thread::sleep(Duration::from_millis(10));
        }
        let vm = service_pid(world, &process).unwrap();
        kill_process(Pid::from_raw(vm as i32).unwrap(), signal).unwrap();
        process.wait_for_text(&format!("({name})"), PATIENCE, || ());
        process.wait_for_text(&format!("failed (exit code {})", 128 + signal.as_raw()), PATIENCE, || ());
    }
    process.wait_for_text("it starts again in 2.0 s", PATIENCE, || ());
    assert!(process.interrupt(PATIENCE), "{}", process.output());
}
