//! To attach through the gdbstub stops no vCPU: QEMU stops the VM when it is connected to, and that stop is the first sample's. Counted by the
//! events of QEMU.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::gdb::Gdb;
use crate::common::{Fixture, Judge, PATIENCE, attach_stub};
use crate::paused::{TCG, ask_at};
use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::model::State;
use glass_profiler_guests::backends::gdbstub::QemuVm;
use glass_profiler_guests::find::monitor::{Language, MonitorAddress};
use glass_profiler_guests::{Guest, GuestError, SocketAddress, VmSettings, read_clocks};
use glass_tests::qmp::{Events, Moment};

const SAMPLES: usize = 25;
/// QEMU's clock of events has microseconds.
const EVENT_NS: u64 = 1000;

/// How QEMU can be connected to, and what shows its vCPUs' threads before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By its gdbstub; nothing shows them.
    Stub,
    /// By its gdbstub; its monitor shows them.
    StubWithMonitor,
    /// By its gdbstub; their names show them.
    StubWithNames,
    /// By its monitor alone.
    Monitor,
}

/// A guest with this many vCPUs that run, and a monitor of QEMU that is for the test.
fn start(name: &str, way: Way, vcpus: u32) -> Option<Fixture> {
    let flags = ["-fno-omit-frame-pointer", "-DUNIT=40", "-DALL_CORES"];
    let flags = if vcpus > 1 { &flags[..] } else { &flags[..2] };
    let mut fixture = Fixture::start_with(TCG, &format!("attach-{name}"), flags, true, vcpus, |qemu, folder| {
        let socket = |name: &str| format!("unix:{},server=on,wait=off", folder.join(name).display());
        // Glass uses the first.
        if matches!(way, Way::StubWithMonitor | Way::Monitor) {
            qemu.args(["-qmp", &socket("monitor")]);
        }
        qemu.args(["-qmp", &socket("counter")]);
        if way != Way::Monitor {
            qemu.args(["-gdb", &socket("gdb")]);
        }
        if way == Way::StubWithNames {
            qemu.args(["-name", "vm,debug-threads=on"]);
        }
    })?;
    fixture.wait_for(|fixture| (0..vcpus).all(|core| fixture.rounds_of(u64::from(core)) > 10));
    Some(fixture)
}

fn counter(fixture: &Fixture) -> std::path::PathBuf {
    fixture.folder.file("counter")
}

fn of_kind(moments: &[Moment], resumes: bool) -> Vec<u64> {
    moments.iter().filter(|moment| moment.resumes == resumes).map(|moment| moment.unix_ns).collect()
}

/// How often QEMU may have been stopped for samples that it was too busy for: by each packet of the requests that follow.
fn stops_of_late(guest: &impl Guest) -> usize {
    let remark = guest.remark().unwrap_or_default();
    let late = remark.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
    late * (3 * guest.tracks() as usize + 5)
}

/// The samples that a guest has when it is announced.
fn first_of(guest: &mut impl Guest) -> Vec<RawSample> {
    let mut first = Vec::new();
    let mut sink = |event| {
        if let Event::Sample(sample) = event {
            first.push(sample);
        }
    };
    guest.announce(&mut sink).unwrap();
    first
}

fn expect_a_stop_for_each_sample(name: &str, way: Way, vcpus: u32) {
    let Some(fixture) = start(name, way, vcpus) else { return };
    let events = Events::collect(&counter(&fixture)).unwrap();
    let mut guest = attach_stub(&fixture).unwrap();
    let attached_ns = read_clocks().realtime_ns;
    let clocks = read_clocks().at(guest.started_ns().unwrap());
    let first = first_of(&mut guest);
    assert!(first.iter().map(|sample| sample.track).eq(0..vcpus), "{first:?}");
    for sample in &first {
        assert_eq!((sample.time_ns, sample.state), (clocks.monotonic_ns, State::Running));
        assert!(sample.frozen_ns > 0 && clocks.realtime_ns + sample.frozen_ns <= attached_ns, "{sample:?}");
        let mut judge = Judge::new(&fixture.elf, true);
        judge.judge(sample);
        judge.assert_whole();
        assert_eq!(judge.cores & !(1 << sample.track), 0, "marks show which core it was");
    }
    for _ in 0..SAMPLES {
        guest.rest(read_clocks().monotonic_ns + 2_000_000).unwrap();
        assert_eq!(guest.sample_all().unwrap().unwrap().len(), vcpus as usize);
    }
    let moments = events.end().unwrap();
    let (stops, resumes) = (of_kind(&moments, false), of_kind(&moments, true));
    assert!(stops[0] + EVENT_NS >= clocks.realtime_ns, "it was stopped before its first sample: {moments:?}");
    assert!(moments.windows(2).all(|pair| pair[0].resumes != pair[1].resumes), "it runs after each: {moments:?}");
    let more = stops.len() - 1 - SAMPLES;
    assert!(more <= stops_of_late(&guest) && resumes.len() == stops.len(), "{} stops, {moments:?}", stops.len());
    let to_attach = stops.iter().filter(|stop| **stop <= attached_ns).count();
    assert!((1..=1 + more).contains(&to_attach), "{to_attach} stops to attach: {moments:?}");
    guest.detach().unwrap();
    fixture.assert_runs("after detaching");
}

#[test]
fn where_nothing_shows_the_threads_of_vcpus() {
    expect_a_stop_for_each_sample("stub", Way::Stub, 1);
}

#[test]
fn where_a_monitor_shows_them() {
    expect_a_stop_for_each_sample("monitor", Way::StubWithMonitor, 1);
}

#[test]
fn where_they_have_names() {
    expect_a_stop_for_each_sample("names", Way::StubWithNames, 2);
}

#[test]
fn by_a_monitor_alone() {
    expect_a_stop_for_each_sample("alone", Way::Monitor, 1);
}

#[test]
fn of_four_vcpus() {
    expect_a_stop_for_each_sample("four", Way::StubWithMonitor, 4);
}

/// Its owner has paused it: nothing stops it, and nothing lets it run.
#[test]
fn of_a_vm_that_is_paused() {
    for (name, way) in [("paused", Way::Stub), ("paused-frozen", Way::StubWithMonitor)] {
        let Some(fixture) = start(name, way, 1) else { return };
        let monitor = MonitorAddress { language: Language::Qmp, socket: SocketAddress::Unix(counter(&fixture)) };
        ask_at(&monitor, "stop");
        let (before, events) = (fixture.rounds(), Events::collect(&counter(&fixture)).unwrap());
        let mut guest = attach_stub(&fixture).unwrap();
        let first = first_of(&mut guest);
        assert_eq!((first.len(), first[0].state, first[0].frozen_ns), (1, State::Paused, 0));
        assert!(!first[0].segments.is_empty(), "where it stands");
        guest.detach().unwrap();
        assert_eq!(events.end().unwrap(), []);
        assert_eq!(fixture.rounds(), before, "it ran meanwhile");
        ask_at(&monitor, "cont");
        fixture.assert_runs("when its owner lets it");
    }
}

fn refusal(fixture: &Fixture) -> String {
    let start = Instant::now();
    let error = attach_stub(fixture).err().unwrap();
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    error.to_string()
}

/// Nothing would be sampled until the other one has gone, and that was noticed after five seconds (2026-11-29).
#[test]
fn a_gdbstub_with_a_client_is_refused_at_once() {
    let Some(fixture) = start("client", Way::Stub, 1) else { return };
    let mut debugger = Gdb::connect(&fixture.folder.file("gdb"));
    debugger.registers();
    let (before, error) = (fixture.rounds(), refusal(&fixture));
    assert!(error.contains("is connected to it at") && error.contains("end it first"), "{error}");
    assert_eq!(fixture.rounds(), before, "it ran meanwhile");
    debugger.visit();
    fixture.assert_runs("once the debugger lets it");
    drop(debugger);
    attach_stub(&fixture).unwrap().detach().unwrap();
    fixture.assert_runs("after detaching");
}

/// By a port, which has no path.
#[test]
fn a_gdbstub_at_a_port_with_a_client_is_refused_at_once() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let fixture =
        Fixture::start_with(TCG, "attach-port", &["-fno-omit-frame-pointer"], true, 1, |qemu, folder: &Path| {
            qemu.arg("-gdb").arg(format!("tcp:127.0.0.1:{port},server=on,wait=off"));
            qemu.arg("-qmp").arg(format!("unix:{},server=on,wait=off", folder.join("monitor").display()));
        });
    let Some(fixture) = fixture else { return };
    let debugger = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let start = Instant::now();
    let has_stopped = || {
        let before = fixture.rounds();
        std::thread::sleep(Duration::from_millis(50));
        fixture.rounds() == before
    };
    while !has_stopped() {
        assert!(start.elapsed() < PATIENCE, "the debugger stops it");
    }
    let error = refusal(&fixture);
    assert!(error.contains(&format!("is connected to it at 127.0.0.1:{port} already")), "{error}");
    drop(debugger);
    // That has left it stopped, as if its owner had.
    let mut guest = attach_stub(&fixture).unwrap();
    assert_eq!(first_of(&mut guest)[0].state, State::Paused);
    guest.detach().unwrap();
}

#[test]
fn a_vm_that_ends_before_its_first_sample() {
    let Some(mut fixture) = start("ends", Way::StubWithMonitor, 1) else { return };
    let (vm, settings) = (fixture.vm(), VmSettings::new(2048, fixture.elf.clone()));
    fixture.qemu.kill().unwrap();
    fixture.qemu.wait().unwrap();
    let attached = QemuVm::attach(&vm, settings);
    let error: GuestError = attached.err().unwrap();
    assert!(error.to_string().contains("does the VM still run?"), "{error}");
    assert_eq!(error.to_string().lines().count(), 1);
}

/// A vCPU that computes is stopped, whatever may be left; one whose VM is paused waits where one that sleeps waits, and is shown as paused.
#[test]
fn one_that_does_not_sleep_where_sleepers_are_left() {
    let Some(fixture) = start("awake", Way::StubWithMonitor, 2) else { return };
    let settings = VmSettings { leaves_sleepers: true, ..VmSettings::new(2048, fixture.elf.clone()) };
    let mut guest = QemuVm::attach(&fixture.vm(), settings).unwrap();
    let mut expect = |state: State, moment: &str| {
        for _ in 0..SAMPLES {
            guest.rest(read_clocks().monotonic_ns + 1_000_000).unwrap();
            let samples = guest.sample_all().unwrap().unwrap();
            assert!(samples.iter().all(|sample| sample.state == state), "{moment}: {samples:?}");
            assert!(samples.iter().all(|sample| (sample.frozen_ns > 0) == (state == State::Running)), "{moment}");
        }
    };
    let monitor = MonitorAddress { language: Language::Qmp, socket: SocketAddress::Unix(counter(&fixture)) };
    for _ in 0..3 {
        expect(State::Running, "it computes");
        ask_at(&monitor, "stop");
        expect(State::Paused, "its owner has paused it");
        ask_at(&monitor, "cont");
    }
    guest.detach().unwrap();
    fixture.assert_runs("after detaching");
}

/// A VM whose vCPU is halted is stopped until it is known where its thread waits then, and no more; its owner's pause is seen.
#[test]
fn one_that_sleeps_where_sleepers_are_left() {
    let flags = ["-fno-omit-frame-pointer", "-DHALTS"];
    let fixture = Fixture::start_with(TCG, "attach-asleep", &flags, false, 1, |qemu, folder| {
        let socket = |name: &str| format!("unix:{},server=on,wait=off", folder.join(name).display());
        qemu.args(["-qmp", &socket("monitor"), "-qmp", &socket("counter"), "-gdb", &socket("gdb")]);
    });
    let Some(fixture) = fixture else { return };
    let settings = VmSettings { leaves_sleepers: true, ..VmSettings::new(2048, fixture.elf.clone()) };
    let start = Instant::now();
    // It halts soon after its start.
    let mut guest = loop {
        assert!(start.elapsed() < PATIENCE, "it does not halt");
        let Ok(mut guest) = QemuVm::attach(&fixture.vm(), settings.clone()) else { continue };
        match first_of(&mut guest).first().map(|sample| sample.state) {
            Some(State::Idle) => break guest,
            _ => guest.detach().unwrap(),
        }
    };
    let mut stopped = |expected: State| {
        guest.rest(read_clocks().monotonic_ns + 1_000_000).unwrap();
        let samples = guest.sample_all().unwrap().unwrap();
        assert_eq!((samples.len(), samples[0].state), (1, expected));
        samples[0].frozen_ns > 0
    };
    let monitor = MonitorAddress { language: Language::Qmp, socket: SocketAddress::Unix(counter(&fixture)) };
    for _ in 0..3 {
        let stops = (0..SAMPLES).filter(|_| stopped(State::Idle)).count();
        assert!(stops < SAMPLES / 2, "{stops} stops to learn where it waits");
        let events = Events::collect(&counter(&fixture)).unwrap();
        // It is stopped only where QEMU does something else just then, such as to answer the monitor.
        let stops = (0..2 * SAMPLES).filter(|_| stopped(State::Idle)).count();
        assert!(stops < SAMPLES / 5, "{stops} stops of a vCPU that sleeps");
        assert_eq!(of_kind(&events.end().unwrap(), false).len(), stops);
        ask_at(&monitor, "stop");
        (0..SAMPLES).for_each(|_| assert!(!stopped(State::Paused)));
        ask_at(&monitor, "cont");
    }
    guest.detach().unwrap();
}
