//! A VM that its owner has paused stays paused, with any backend (it was resumed, 2026-11-22).

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Fixture, PATIENCE, attach_stub};
use glass_profiler_core::event::Event;
use glass_profiler_core::model::State;
use glass_profiler_guests::backends::monitor::Monitor;
use glass_profiler_guests::backends::{
    Backend,
    choose::{BackendChoice, attach},
};
use glass_profiler_guests::find::monitor::MonitorAddress;
use glass_profiler_guests::{Flow, Guest, Source, VmSettings};

pub const TCG: &[&str] = &["-accel", "tcg", "-cpu", "max"];

/// A guest whose QEMU has a monitor, and a gdbstub if that is wanted.
pub fn start(accel: &[&str], name: &str, has_stub: bool, more: &[&str], memfd: bool) -> Option<Fixture> {
    start_vcpus(accel, name, has_stub, more, memfd, 1)
}

/// The same with so many vCPUs that run.
pub fn start_vcpus(
    accel: &[&str],
    name: &str,
    has_stub: bool,
    more: &[&str],
    memfd: bool,
    vcpus: u32,
) -> Option<Fixture> {
    let flags = ["-fno-omit-frame-pointer", "-DUNIT=40", "-DALL_CORES"];
    let flags = if vcpus > 1 { &flags[..] } else { &flags[..2] };
    Fixture::start_with(accel, &format!("paused-{name}"), flags, memfd, vcpus, |qemu, folder| {
        qemu.arg("-qmp").arg(format!("unix:{},server=on,wait=off", folder.join("monitor").display()));
        if has_stub {
            qemu.arg("-gdb").arg(format!("unix:{},server=on,wait=off", folder.join("gdb").display()));
        }
        qemu.args(more);
    })
}

/// Sends a command to QEMU's monitor.
pub fn ask(fixture: &Fixture, command: &str) -> String {
    ask_at(&fixture.vm().monitor.unwrap(), command)
}

pub fn ask_at(address: &MonitorAddress, command: &str) -> String {
    let start = Instant::now();
    loop {
        match Monitor::connect(address).and_then(|mut monitor| monitor.ask(command)) {
            Ok(answer) => return answer.trim().to_owned(),
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    }
}

pub fn expect_paused(fixture: &Fixture, moment: &str) {
    let status = ask(fixture, "info status");
    assert!(status.contains("paused"), "{status} {moment}");
}

/// Takes samples; how many were of a core that ran.
fn sample(guest: &mut impl Guest, count: usize) -> usize {
    let mut running = 0;
    for _ in 0..count {
        guest.rest(glass_profiler_guests::read_clocks().monotonic_ns + 1_000_000).unwrap();
        for sample in guest.sample_all().unwrap().unwrap() {
            running += usize::from(sample.state == State::Running);
            assert!(matches!(sample.state, State::Running | State::Paused | State::NeverStarted), "{:?}", sample.state);
        }
    }
    running
}

fn stays_paused(name: &str, has_stub: bool) {
    let Some(fixture) = start(TCG, name, has_stub, &[], true) else { return };
    ask(&fixture, "stop");
    let before = fixture.rounds();
    let mut guest = attach_stub(&fixture).unwrap();
    expect_paused(&fixture, "after attaching");
    assert_eq!(sample(&mut guest, 20), 0, "it does not run");
    expect_paused(&fixture, "while it is sampled");
    guest.detach().unwrap();
    drop(guest);
    expect_paused(&fixture, "after detaching");
    assert_eq!(fixture.rounds(), before, "it ran meanwhile");
    // The next one finds it as it was, too.
    attach_stub(&fixture).unwrap().detach().unwrap();
    expect_paused(&fixture, "after a second time");
    assert_eq!(fixture.rounds(), before, "it ran meanwhile");
    // A refusal changes nothing either.
    let mut other = VmSettings::new(2048, fixture.elf.clone());
    other.vcpus = vec![9];
    assert!(glass_profiler_guests::backends::gdbstub::QemuVm::attach(&fixture.vm(), other).is_err());
    expect_paused(&fixture, "after a refusal");
    ask(&fixture, "cont");
    fixture.assert_runs("when its owner lets it");
}

#[test]
fn before_through_the_gdbstub() {
    stays_paused("gdbstub", true);
}

#[test]
fn before_through_the_monitor() {
    stays_paused("monitor", false);
}

#[test]
fn a_vm_that_was_never_started() {
    let Some(mut fixture) = start(TCG, "never", true, &["-S"], false) else { return };
    fixture.wait_for(|fixture| fixture.folder.file("gdb").exists());
    let mut guest = attach_stub(&fixture).unwrap();
    assert_eq!(sample(&mut guest, 5), 0);
    expect_paused(&fixture, "while it is sampled");
    guest.detach().unwrap();
    let status = ask(&fixture, "info status");
    assert!(status.contains("prelaunch"), "{status}");
}

#[test]
fn while_it_is_sampled() {
    let Some(fixture) = start(TCG, "during", true, &[], true) else { return };
    let mut guest = attach_stub(&fixture).unwrap();
    for round in 0..5 {
        assert!(sample(&mut guest, 10) > 5, "it runs, {round}");
        ask(&fixture, "stop");
        let before = fixture.rounds();
        assert_eq!(sample(&mut guest, 20), 0, "it does not run, {round}");
        expect_paused(&fixture, "while it is sampled");
        assert_eq!(fixture.rounds(), before, "it ran meanwhile");
        ask(&fixture, "cont");
        fixture.assert_runs("when its owner lets it");
    }
    assert!(sample(&mut guest, 10) > 5, "it runs");
    ask(&fixture, "stop");
    let before = fixture.rounds();
    guest.detach().unwrap();
    expect_paused(&fixture, "after detaching");
    assert_eq!(fixture.rounds(), before, "it ran meanwhile");
    ask(&fixture, "cont");
    fixture.assert_runs("at the end");
}

#[test]
fn after_a_recording_that_found_it_paused() {
    let Some(fixture) = start(TCG, "after", true, &[], true) else { return };
    ask(&fixture, "stop");
    let mut guest = attach_stub(&fixture).unwrap();
    assert_eq!(sample(&mut guest, 5), 0);
    ask(&fixture, "cont");
    fixture.assert_runs("when its owner lets it");
    guest.detach().unwrap();
    fixture.assert_runs("after detaching");
}

/// Not a test of its own: what `a_killed_profiler_leaves_it_paused` kills.
#[test]
#[ignore = "runs in a process of its own, started by another test"]
fn sample_until_killed() {
    crate::common::sample_stub_until_killed();
}

#[test]
fn a_killed_profiler_leaves_it_paused() {
    let Some(fixture) = start(TCG, "killed", true, &[], true) else { return };
    ask(&fixture, "stop");
    let before = fixture.rounds();
    let mut profiler = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "paused::sample_until_killed", "--ignored"])
        .env("GLASS_TEST_QEMU", fixture.qemu.id().to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(2));
    profiler.kill().unwrap();
    profiler.wait().unwrap();
    // The watchdog's waits are bounded by less.
    std::thread::sleep(Duration::from_secs(2));
    expect_paused(&fixture, "after the kill");
    assert_eq!(fixture.rounds(), before, "it ran meanwhile");
    attach_stub(&fixture).unwrap().detach().unwrap();
}

/// Collects for some time; how many samples are running and paused, and how many other events there are.
fn collect(source: &mut dyn Source, time: Duration) -> (usize, usize, usize) {
    let (mut running, mut paused, mut other) = (0, 0, 0);
    let flow = source.collect(time, &mut |event| match event {
        Event::Sample(sample) if matches!(sample.state, State::Running | State::Stolen | State::InVmm) => running += 1,
        Event::Sample(sample) if sample.state == State::Paused => paused += 1,
        _ => other += 1,
    });
    assert_eq!(flow.unwrap(), Flow::More);
    (running, paused, other)
}

/// The threads of a paused VM are not in KVM, so it is sampled through the gdbstub; one that is paused later is not, and was shown as
/// running (2026-11-25).
#[test]
fn under_kvm() {
    let Some(fixture) = start_kvm() else { return };
    let settings = VmSettings::new(2048, fixture.elf.clone());
    let record = |moment: &str, expected: &[Backend]| {
        let mut attached = attach(&fixture.vm(), BackendChoice::Any, &settings, (Some(200), false), None).unwrap();
        assert!(expected.contains(&attached.backend), "{moment}: {:?}", attached.backend);
        attached.source.announce(&mut |_| ()).unwrap();
        let (running, paused, other) = collect(attached.source.as_mut(), Duration::from_millis(200));
        assert!(running == 0 && paused > 0 && other == 0, "{moment}: {running} running, {paused} paused");
        expect_paused(&fixture, moment);
        attached.source.detach(&mut |_| ()).unwrap();
        expect_paused(&fixture, moment);
    };
    let mut source = attach(&fixture.vm(), BackendChoice::Any, &settings, (Some(200), false), None).unwrap().source;
    source.announce(&mut |_| ()).unwrap();
    // QEMU waits for its vCPUs, whose signals go through our hands.
    let monitor = fixture.vm().monitor.unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask_at(&monitor, "stop"));
        while !asked.is_finished() {
            assert_eq!(source.collect(Duration::from_millis(10), &mut |_| ()).unwrap(), Flow::More);
        }
    });
    let before = fixture.rounds();
    // It takes some samples to be sure.
    collect(source.as_mut(), Duration::from_millis(200));
    let (running, paused, other) = collect(source.as_mut(), Duration::from_millis(400));
    assert!(running == 0 && paused > 10 && other == 0, "{running} running, {paused} paused");
    let mut warnings = Vec::new();
    source.detach(&mut |event| warnings.push(event)).unwrap();
    let is_remark = |event: &Event| matches!(event, Event::Warning(text) if text.contains("was paused by its owner"));
    assert!(warnings.iter().any(is_remark), "{warnings:?}");
    expect_paused(&fixture, "that was paused meanwhile");
    record("that was paused before", &[Backend::Kvm, Backend::Gdbstub]);
    assert_eq!(fixture.rounds(), before, "it ran meanwhile");
    ask(&fixture, "cont");
    fixture.assert_runs("at the end");
}

pub fn start_kvm() -> Option<Fixture> {
    if std::fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        glass_tests::programs::skip("/dev/kvm cannot be used");
        return None;
    }
    start(&["-accel", "kvm", "-cpu", "host,-arch-capabilities"], "kvm", true, &[], true)
}
