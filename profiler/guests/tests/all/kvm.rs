//! Samples a bare guest in a real QEMU under KVM by ptrace. Skipped where `/dev/kvm` cannot be used.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Fixture, PATIENCE, build, take};
use glass_profiler_core::event::Event;
use glass_profiler_core::model::State;
use glass_profiler_guests::backends::gdbstub::QemuVm;
use glass_profiler_guests::backends::kvm::{KvmVm, is_vmm};
use glass_profiler_guests::{Guest, GuestError, KnownVm, VmSettings};
use glass_tests::programs::skip;

fn start(name: &str, vcpus: u32) -> Option<Fixture> {
    let flags = ["-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"];
    Fixture::start_kvm(&format!("kvm-{name}"), &flags, vcpus)
}

fn settings(fixture: &Fixture) -> VmSettings {
    VmSettings::new(2048, fixture.elf.clone())
}

fn attach(fixture: &Fixture) -> Result<KnownVm<KvmVm>, GuestError> {
    KvmVm::attach(&fixture.vm(), settings(fixture))
}

#[test]
fn whole_stacks_and_true_shares() {
    let Some(fixture) = start("shares", 1) else { return };
    assert!(is_vmm(fixture.qemu.id()) && !is_vmm(std::process::id()));
    let (judge, pauses) = take(&fixture, attach(&fixture).unwrap(), 997, 3000);
    eprintln!("run, a, b, c: {:?}; pause {:?}", judge.counts, pauses.distribution());
    fixture.assert_runs("after detaching");
    // A second time: the first has left nothing behind.
    take(&fixture, attach(&fixture).unwrap(), 997, 100);
    fixture.assert_runs("after detaching again");
}

#[test]
fn a_core_that_never_started_is_reported_as_such() {
    expect_a_core_that_never_started(&[]);
}

/// An image reports the states of its cores, but not of one that was not started: that was 100 % running (2026-11-22).
#[test]
fn a_core_that_never_started_is_reported_as_such_in_a_guest_that_says_what_cores_do() {
    expect_a_core_that_never_started(&["-DSAYS_STATE"]);
}

fn expect_a_core_that_never_started(flags: &[&str]) {
    let flags = [&["-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"], flags].concat();
    let Some(fixture) = Fixture::start_kvm("kvm-cores", &flags, 2) else { return };
    let mut guest = attach(&fixture).unwrap();
    assert_eq!(guest.tracks(), 2);
    let mut frozen = Vec::new();
    let mut sink = |event| {
        if let Event::Frozen { tracks_ns } = event {
            frozen.extend(tracks_ns);
        }
    };
    guest.announce(&mut sink).unwrap();
    // To be attached to has stopped both, some times.
    assert!(frozen.iter().map(|(track, _)| *track).eq([0, 1]) && frozen.iter().all(|(_, ns)| *ns > 0), "{frozen:?}");
    // A thread that is stopped again on its way back to the guest has no sample this time.
    const LOOKS: u32 = 20;
    let mut seen = BTreeMap::new();
    for _ in 0..LOOKS {
        guest.rest(glass_profiler_guests::read_clocks().monotonic_ns + 5_000_000).unwrap();
        for sample in guest.sample_all().unwrap().into_iter().flatten() {
            let what = match sample.state {
                State::Running | State::Stolen | State::InVmm => "running",
                State::NeverStarted => "never started",
                _ => "asleep",
            };
            *seen.entry((sample.track, what)).or_insert(0) += 1;
        }
    }
    let looks = |track, what| seen.get(&(track, what)).copied().unwrap_or(0);
    assert!(looks(0, "running") > looks(0, "asleep") && looks(1, "never started") > 0, "{seen:?}");
    // Its registers show it, at whatever moment.
    assert_eq!((looks(0, "never started"), looks(1, "running"), looks(1, "asleep")), (0, 0, 0), "{seen:?}");
    guest.detach().unwrap();
    fixture.assert_runs("after detaching");
}

/// QEMU stops its vCPUs by a signal to each thread and waits until they have noticed: if one were
/// swallowed, or came late, the gdbstub would not answer.
#[test]
fn signals_of_the_vmm_arrive_while_it_is_sampled() {
    let Some(fixture) = start("signals", 1) else { return };
    let mut guest = attach(&fixture).unwrap();
    const STOPS: usize = 100;
    let (vm, settings, done) = (fixture.vm(), settings(&fixture), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let debugger = scope.spawn(|| {
            let result = QemuVm::attach(&vm, settings.clone()).and_then(|mut debugger| {
                for _ in 0..STOPS {
                    assert!(debugger.sample_all()?.is_some());
                    std::thread::sleep(Duration::from_millis(2));
                }
                debugger.detach()
            });
            done.store(true, Ordering::Relaxed);
            result
        });
        let start = Instant::now();
        while !done.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
            assert!(guest.sample_all().unwrap().is_some());
            guest.rest(glass_profiler_guests::read_clocks().monotonic_ns + 1_000_000).unwrap();
        }
        debugger.join().unwrap().unwrap();
    });
    assert!(guest.signals_handed_on() >= STOPS as u64, "{} signals", guest.signals_handed_on());
    guest.detach().unwrap();
    fixture.assert_runs("after detaching");
}

#[test]
fn a_vmm_that_was_stopped_stays_so() {
    let Some(fixture) = start("stopped", 1) else { return };
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, &fixture.qemu.id().to_string()]).status();
        assert!(status.unwrap().success());
    };
    let mut guest = attach(&fixture).unwrap();
    // How many samples there are, and how many of them of a paused VM.
    let mut sample_for = |duration: Duration| {
        let (start, mut all, mut paused) = (Instant::now(), 0, 0);
        while start.elapsed() < duration {
            for sample in guest.sample_all().unwrap().unwrap() {
                all += 1;
                paused += u32::from(sample.state == State::Paused);
            }
            guest.rest(glass_profiler_guests::read_clocks().monotonic_ns + 1_000_000).unwrap();
        }
        (all, paused)
    };
    assert_eq!(sample_for(Duration::from_millis(100)).1, 0);
    signal("-STOP");
    sample_for(Duration::from_millis(100));
    let before = fixture.rounds();
    let (all, paused) = sample_for(Duration::from_millis(200));
    assert!(all > 10 && paused == all, "{paused} of {all}");
    assert_eq!(fixture.rounds(), before, "a sample let a stopped VMM run");
    signal("-CONT");
    sample_for(Duration::from_millis(100));
    assert_eq!(sample_for(Duration::from_millis(100)).1, 0);
    assert!(fixture.rounds() > before, "the VMM does not resume");
    guest.detach().unwrap();
    fixture.assert_runs("after detaching");
}

#[test]
fn the_wrong_file_is_refused_and_the_guest_runs_on() {
    let Some(fixture) = start("wrong", 1) else { return };
    let other = build(fixture.folder.path(), "other.elf", &["-fno-omit-frame-pointer", "-DOTHER", "-O1"]).unwrap();
    let error = KvmVm::attach(&fixture.vm(), VmSettings::new(2048, other)).err().unwrap();
    assert!(error.to_string().contains("another build id"), "{error}");
    assert!(!error.is_of_the_backend());
    fixture.assert_runs("after a refusal");
    // Two at once are refused too: a thread has one tracer.
    let mut first = attach(&fixture).unwrap();
    let (vm, settings) = (fixture.vm(), settings(&fixture));
    let second = std::thread::spawn(move || KvmVm::attach(&vm, settings).err().unwrap());
    let error = second.join().unwrap();
    assert!(error.is_of_the_backend(), "{error}");
    assert!(error.to_string().contains("traces it already"), "{error}");
    first.detach().unwrap();
    fixture.assert_runs("after both");
}

#[test]
fn a_guest_that_ends_is_no_error() {
    let Some(mut fixture) = start("ends", 1) else { return };
    let mut guest = attach(&fixture).unwrap();
    assert!(guest.sample_all().unwrap().is_some());
    fixture.qemu.kill().unwrap();
    let start = Instant::now();
    while guest.sample_all().unwrap().is_some() {
        assert!(start.elapsed() < PATIENCE, "the end is not noticed");
    }
    // Its parent sees the end only when we have collected the thread's.
    fixture.qemu.wait().unwrap();
    guest.detach().unwrap();
}

/// Not a test of its own: what `without_the_right_to_trace_the_error_says_what_to_do` runs.
#[test]
#[ignore = "runs in a process with fewer rights, started by another test"]
fn attach_without_rights() {
    let (Ok(pid), Ok(elf)) = (std::env::var("GLASS_TEST_QEMU"), std::env::var("GLASS_TEST_ELF")) else { return };
    let glass_profiler_guests::find::Found::Vm(vm) = glass_profiler_guests::find::by_pid(pid.parse().unwrap()).unwrap()
    else {
        panic!("QEMU is not recognised")
    };
    let error = KvmVm::attach(&vm, VmSettings::new(2048, elf.into())).err().unwrap();
    assert!(matches!(error, GuestError::NotPermitted { .. }), "{error}");
    assert!(error.is_of_the_backend() && error.to_string().contains("CAP_SYS_PTRACE"), "{error}");
}

#[test]
fn without_the_right_to_trace_the_error_says_what_to_do() {
    let Some(fixture) = start("rights", 1) else { return };
    let refuse = |rights: &[&str]| {
        let can_drop = Command::new("setpriv").args(rights).arg("true").stderr(Stdio::null()).status();
        if !can_drop.is_ok_and(|status| status.success()) {
            return skip("rights can only be dropped by root, with setpriv");
        }
        let mut command = Command::new("setpriv");
        command.args(rights).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "kvm::attach_without_rights", "--ignored"]);
        command.env("GLASS_TEST_QEMU", fixture.qemu.id().to_string()).env("GLASS_TEST_ELF", &fixture.elf);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{rights:?}: {}", String::from_utf8_lossy(&output.stdout));
    };
    refuse(&["--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]);
    refuse(&["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    fixture.assert_runs("after the refusal");
}

/// Not a test of its own: what `a_killed_profiler_leaves_the_guest_running` kills.
#[test]
#[ignore = "runs in a process of its own, started by another test"]
fn sample_until_killed() {
    let Ok(pid) = std::env::var("GLASS_TEST_QEMU") else { return };
    let Ok(glass_profiler_guests::find::Found::Vm(vm)) = glass_profiler_guests::find::by_pid(pid.parse().unwrap())
    else {
        return;
    };
    let symbols = vm.elf.clone().unwrap();
    let mut guest = KvmVm::attach(&vm, VmSettings::new(2048, symbols)).unwrap();
    let start = Instant::now();
    while start.elapsed() < PATIENCE && guest.sample_all().unwrap().is_some() {}
}

#[test]
fn a_killed_profiler_leaves_the_guest_running() {
    let Some(fixture) = start("killed", 1) else { return };
    fixture.assert_survives_kills("kvm::sample_until_killed");
    take(&fixture, attach(&fixture).unwrap(), 997, 200);
}
