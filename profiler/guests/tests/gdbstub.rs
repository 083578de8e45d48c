//! Samples a bare guest with known shares in a real QEMU (TCG) through its gdbstub.

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Fixture, PATIENCE, build, take};
use glass_guests::find::{self, Found};
use glass_guests::gdbstub::QemuVm;
use glass_guests::{Guest, GuestError, VmSettings};
use glass_profile::event::Event;
use glass_profile::model::State;

const TCG: &[&str] = &["-accel", "tcg", "-cpu", "max"];

fn attach(fixture: &Fixture) -> Result<QemuVm, GuestError> {
    QemuVm::attach(&fixture.vm(), VmSettings::new(2048, fixture.elf.clone()))
}

#[test]
fn whole_stacks_and_true_shares_with_frame_pointers() {
    let Some(fixture) =
        Fixture::start(TCG, "pointers", &["-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"], true, 1)
    else {
        return;
    };
    let (judge, pauses) = take(&fixture, attach(&fixture).unwrap(), 1500, 1000);
    eprintln!("run, a, b, c: {:?}; pause {:?}", judge.counts, pauses.distribution());
    fixture.assert_runs("after detaching");
}

#[test]
fn whole_stacks_and_true_shares_with_tables_only() {
    let Some(fixture) =
        Fixture::start(TCG, "tables", &["-fomit-frame-pointer", "-fasynchronous-unwind-tables"], true, 1)
    else {
        return;
    };
    take(&fixture, attach(&fixture).unwrap(), 1500, 1000);
    // A second time: the first has left nothing behind.
    take(&fixture, attach(&fixture).unwrap(), 1500, 100);
    fixture.assert_runs("after detaching");
}

#[test]
fn without_a_memfd_memory_comes_through_the_socket() {
    let Some(fixture) = Fixture::start(TCG, "socket", &["-fno-omit-frame-pointer"], false, 1) else { return };
    std::thread::sleep(Duration::from_secs(1));
    let (_, pauses) = take(&fixture, attach(&fixture).unwrap(), 1500, 200);
    eprintln!("pause {:?}", pauses.distribution());
}

#[test]
fn a_core_that_never_started_is_idle() {
    let Some(fixture) = Fixture::start(TCG, "cores", &["-fno-omit-frame-pointer"], true, 2) else { return };
    let mut guest = attach(&fixture).unwrap();
    let mut names = Vec::new();
    let mut sink = |event| {
        if let Event::Track { track, name, .. } = event {
            names.push((track, name));
        }
    };
    guest.announce(&mut sink).unwrap();
    assert_eq!(names, [(0, "vcpu 0".to_owned()), (1, "vcpu 1".to_owned())]);
    let states = guest.sample().unwrap().unwrap().into_iter().map(|event| match event {
        Event::Sample(sample) => (sample.track, sample.state),
        other => panic!("{other:?}"),
    });
    assert_eq!(states.collect::<Vec<_>>(), [(0, State::Running), (1, State::Idle)]);
    guest.detach().unwrap();
    fixture.assert_runs("after detaching");
}

#[test]
fn the_wrong_file_is_refused_and_the_guest_runs_on() {
    let Some(fixture) = Fixture::start(TCG, "wrong", &["-fno-omit-frame-pointer"], true, 1) else { return };
    let refuse = |symbols: PathBuf| {
        let error = QemuVm::attach(&fixture.vm(), VmSettings::new(2048, symbols)).err().unwrap().to_string();
        fixture.assert_runs("after a refusal");
        error
    };
    let other = build(&fixture.folder, "other.elf", &["-fno-omit-frame-pointer", "-DOTHER", "-O1"]).unwrap();
    let error = refuse(other);
    assert!(error.contains("another build id"), "{error}");
    let without_id = build(&fixture.folder, "no-id.elf", &["-O1", "-Wl,--build-id=none"]).unwrap();
    let error = refuse(without_id);
    assert!(error.contains("the code in its memory differs"), "{error}");
    let stripped = build(&fixture.folder, "stripped.elf", &["-fno-omit-frame-pointer", "-s"]).unwrap();
    let error = refuse(stripped);
    assert!(error.contains("stripped"), "{error}");
    let error = refuse(fixture.folder.join("missing.elf"));
    assert!(error.contains("missing.elf"), "{error}");
}

#[test]
fn a_guest_that_ends_is_no_error() {
    let Some(mut fixture) = Fixture::start(TCG, "ends", &["-fno-omit-frame-pointer"], true, 1) else { return };
    let mut guest = attach(&fixture).unwrap();
    assert!(guest.sample().unwrap().is_some());
    fixture.qemu.kill().unwrap();
    fixture.qemu.wait().unwrap();
    assert!(guest.sample().unwrap().is_none());
    guest.detach().unwrap();
    let error = find::by_pid(fixture.qemu.id()).unwrap_err();
    assert!(matches!(error, GuestError::NoProcess(_)));
}

/// Not a test of its own: what `a_killed_profiler_leaves_the_guest_running` kills.
#[test]
#[ignore = "runs in a process of its own, started by another test"]
fn sample_until_killed() {
    let Ok(pid) = std::env::var("GLASS_TEST_QEMU") else { return };
    let Found::Vm(vm) = find::by_pid(pid.parse().unwrap()).unwrap() else { panic!("no VM") };
    let symbols = vm.elf.clone().unwrap();
    let mut guest = QemuVm::attach(&vm, VmSettings::new(2048, symbols)).unwrap();
    let start = Instant::now();
    while start.elapsed() < PATIENCE && guest.sample().unwrap().is_some() {}
}

#[test]
fn a_killed_profiler_leaves_the_guest_running() {
    let Some(fixture) = Fixture::start(TCG, "killed", &["-fno-omit-frame-pointer"], true, 1) else { return };
    fixture.assert_survives_kills("sample_until_killed");
    // Nobody holds the connection any more.
    let start = Instant::now();
    while let Err(error) = take_one(&fixture) {
        assert!(start.elapsed() < PATIENCE, "{error}");
    }
}

fn take_one(fixture: &Fixture) -> Result<(), GuestError> {
    let mut guest = attach(fixture)?;
    guest.sample()?;
    guest.detach()
}
