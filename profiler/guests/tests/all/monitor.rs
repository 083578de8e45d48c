//! A QEMU without gdbstub, in which the monitor starts one; and monitors that are busy or answer wrongly.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{Fixture, PATIENCE, attach_stub, take};
use glass_profiler_guests::backends::gdbstub::QemuVm;
use glass_profiler_guests::backends::monitor::Monitor;
use glass_profiler_guests::backends::{
    Backend,
    choose::{BackendChoice, plan},
};
use glass_profiler_guests::find::monitor::{Language, MonitorAddress};
use glass_profiler_guests::{Guest, GuestError, SocketAddress, VmSettings};
use glass_tests::programs::skip;

const TCG: &[&str] = &["-accel", "tcg", "-cpu", "max"];

fn address(language: Language, path: &Path) -> MonitorAddress {
    MonitorAddress { language, socket: SocketAddress::Unix(path.to_owned()) }
}

/// A guest whose QEMU has a monitor and no gdbstub.
fn start(name: &str, option: &str) -> Option<Fixture> {
    Fixture::start_with(TCG, name, &["-fno-omit-frame-pointer"], true, 1, |qemu, folder| {
        qemu.arg(option).arg(format!("unix:{},server=on,wait=off", folder.join("monitor").display()));
    })
}

/// Whether QEMU has a gdbstub now, and the folders that were made for one.
fn left_behind(fixture: &Fixture) -> (bool, Vec<PathBuf>) {
    let mut monitor = Monitor::connect(&fixture.vm().monitor.unwrap()).unwrap();
    let is_on = monitor.ask("info chardev").unwrap().contains("gdb: filename");
    let prefix = format!("glass-stub-{}-", fixture.qemu.id());
    let folder = std::fs::read_dir(glass_profiler_guests::find::registry::folder().unwrap()).unwrap();
    let ours = folder.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    (is_on, ours.map(|entry| entry.path()).collect())
}

fn sampled_through(option: &str, language: Language) {
    let Some(fixture) = start(option, option) else { return };
    let vm = fixture.vm();
    assert_eq!((&vm.gdb, vm.monitor.as_ref().unwrap().language), (&None, language));
    assert_eq!(plan(&vm, BackendChoice::Any).backends, [Backend::Monitor]);
    take(&fixture, attach_stub(&fixture).unwrap(), 1500, 150);
    fixture.assert_runs("after detaching");
    assert_eq!(left_behind(&fixture), (false, Vec::new()));
    // While we are attached, no other client is accepted, and an attempt does not end our session.
    let mut first = attach_stub(&fixture).unwrap();
    let second = attach_stub(&fixture).err().unwrap();
    assert!(second.to_string().contains("a debugger is connected"), "{second}");
    assert!(first.sample_all().unwrap().is_some());
    first.detach().unwrap();
    // One that refuses the guest leaves nothing behind either.
    let other =
        crate::common::build(fixture.folder.path(), "other.elf", &["-fno-omit-frame-pointer", "-DOTHER", "-O1"])
            .unwrap();
    let refused = QemuVm::attach(&vm, VmSettings::new(2048, other)).err().unwrap();
    assert!(refused.to_string().contains("another build id"), "{refused}");
    assert_eq!(left_behind(&fixture), (false, Vec::new()));
    fixture.assert_runs("at the end");
}

#[test]
fn a_stub_is_switched_on_and_off_by_qmp() {
    sampled_through("-qmp", Language::Qmp);
}

#[test]
fn a_stub_is_switched_on_and_off_by_hmp() {
    sampled_through("-monitor", Language::Hmp);
}

#[test]
fn a_stub_that_somebody_else_switched_on_is_used_and_stays() {
    let Some(fixture) = start("shared", "-qmp") else { return };
    let path = fixture.folder.file("theirs");
    let ask = |command: &str| Monitor::connect(&fixture.vm().monitor.unwrap()).unwrap().ask(command).unwrap();
    let said = ask(&format!("gdbserver unix:{},server=on,wait=off", path.display()));
    assert!(said.contains("Waiting for gdb connection"), "{said}");
    take(&fixture, attach_stub(&fixture).unwrap(), 1500, 50);
    assert!(ask("info chardev").contains(&format!("disconnected:unix:{}", path.display())));
}

/// Not a test of its own: what `a_killed_profiler_leaves_no_stub_behind` kills.
#[test]
#[ignore = "runs in a process of its own, started by another test"]
fn sample_until_killed() {
    crate::common::sample_stub_until_killed();
}

#[test]
fn a_killed_profiler_leaves_no_stub_behind() {
    let Some(fixture) = start("killed", "-qmp") else { return };
    fixture.assert_survives_kills("monitor::sample_until_killed");
    // The last watchdogs still have to do their work.
    let start = Instant::now();
    while left_behind(&fixture).0 {
        assert!(start.elapsed() < PATIENCE, "the gdbstub stays on");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A process that was killed before it had a watchdog has left a folder, which the next one removes.
    take(&fixture, attach_stub(&fixture).unwrap(), 1500, 50);
    assert_eq!(left_behind(&fixture), (false, Vec::new()));
}

#[test]
fn a_monitor_that_serves_somebody_else_costs_a_bounded_wait() {
    let Some(fixture) = start("busy", "-qmp") else { return };
    let monitor = fixture.vm().monitor.unwrap();
    let other = Monitor::connect(&monitor).unwrap();
    let start = Instant::now();
    let error = attach_stub(&fixture).err().unwrap();
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert!(error.to_string().contains("one client at a time"), "{error}");
    assert!(error.is_of_the_backend());
    drop(other);
    take(&fixture, attach_stub(&fixture).unwrap(), 1500, 20);
}

/// A second client of the monitor made `glass record` end with an error although its file was written (2026-11-25).
#[test]
fn a_stub_that_cannot_be_switched_off_is_a_warning_and_used_by_the_next_recording() {
    let Some(fixture) = start("on", "-qmp") else { return };
    let mut guest = attach_stub(&fixture).unwrap();
    let other = Monitor::connect(&fixture.vm().monitor.unwrap()).unwrap();
    assert!(guest.sample_all().unwrap().is_some());
    guest.detach().unwrap();
    let warning = guest.left_behind().unwrap();
    assert!(warning.contains("stays on, for the next recording to use"), "{warning}");
    fixture.assert_runs("with the gdbstub that stays on");
    drop(guest);
    drop(other);
    take(&fixture, attach_stub(&fixture).unwrap(), 1500, 20);
}

/// One that waits for the monitor already made the next one fail with EAGAIN.
#[test]
fn a_monitor_with_a_full_queue_of_clients_costs_a_bounded_wait() {
    let path = std::env::temp_dir().join(format!("glass-monitor-full-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let waiting: Vec<UnixStream> = (0..2).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let start = Instant::now();
    let error = Monitor::connect(&address(Language::Qmp, &path)).err().unwrap();
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert!(error.to_string().contains("one client at a time"), "{error}");
    drop(waiting);
    std::fs::remove_file(&path).unwrap();
}

/// The result of a request to a monitor that serves one connection by `serve`.
fn asked_of(name: &str, language: Language, serve: impl FnOnce(UnixStream) + Send + 'static) -> GuestError {
    let path = std::env::temp_dir().join(format!("glass-monitor-{name}-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || serve(listener.accept().unwrap().0));
    let start = Instant::now();
    let result = Monitor::connect(&address(language, &path)).and_then(|mut monitor| monitor.ask("info status"));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    server.join().unwrap();
    std::fs::remove_file(&path).unwrap();
    result.expect_err("a wrong answer of a monitor was accepted")
}

#[test]
fn a_monitor_that_lies_costs_a_sentence() {
    const GREETING: &[u8] = b"{\"QMP\": {}}\r\n{\"return\": {}}\r\n";
    let says = |text: &'static [u8]| {
        move |mut stream: UnixStream| {
            let _ = stream.write_all(text);
            // Until the client goes.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    };
    let endless = |text: &'static [u8]| {
        move |mut stream: UnixStream| {
            let _ = stream.write_all(GREETING);
            while stream.write_all(text).is_ok() {}
        }
    };
    let expect = |error: GuestError, words: &str| {
        let text = error.to_string();
        assert!(text.contains(words) && text.lines().count() == 1, "{text}");
    };
    expect(asked_of("hello", Language::Qmp, says(b"220 smtp ready\r\n")), "does not speak QMP");
    expect(asked_of("number", Language::Qmp, says(b"7\r\n")), "does not speak QMP");
    expect(asked_of("closed", Language::Qmp, drop), "ended the connection");
    expect(asked_of("line", Language::Qmp, endless(b"xxxxxxxxxxxxxxxx")), "without end");
    expect(asked_of("events", Language::Qmp, endless(b"{\"event\": \"STOP\"}\r\n")), "no answer to the request");
    expect(asked_of("prompt", Language::Hmp, endless(b"(qemu)")), "without end");
    let refuses = b"{\"QMP\": {}}\r\n{\"return\": {}}\r\n{\"error\": {\"desc\": \"no\\nway\"}}\r\n";
    expect(asked_of("refuses", Language::Qmp, says(refuses)), "refuses: noway");
    let path = PathBuf::from("/no/such/monitor");
    let error = Monitor::connect(&address(Language::Qmp, &path)).err().unwrap();
    expect(error, "cannot connect to /no/such/monitor");
}

/// As `libvirt` has it: QEMU runs as another user, who cannot enter our folders.
#[test]
fn a_qemu_of_another_user() {
    let Some(fixture) = start_as_nobody() else { return };
    take(&fixture, attach_stub(&fixture).unwrap(), 1500, 50);
    fixture.assert_runs("after detaching");
    let prefix = format!("glass-stub-{}-", fixture.qemu.id());
    let left = std::fs::read_dir("/tmp").unwrap().flatten();
    assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count(), 0);
}

fn start_as_nobody() -> Option<Fixture> {
    use std::os::unix::fs::{MetadataExt, chown};
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        skip("only root can start QEMU as somebody else");
        return None;
    }
    Fixture::start_with(TCG, "nobody", &["-fno-omit-frame-pointer"], true, 1, |qemu, folder| {
        chown(folder, Some(NOBODY), None).unwrap();
        qemu.arg("-qmp").arg(format!("unix:{},server=on,wait=off", folder.join("monitor").display()));
        qemu.uid(NOBODY).gid(NOBODY);
    })
}
