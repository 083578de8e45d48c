//! A guest in a file: a dump of QEMU is compared with its gdbstub at the same moment, and
//! files that are cut, damaged or something else.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::gdb::Gdb;
use crate::common::{Fixture, Judge};
use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::model::State;
use glass_profiler_guests::backends::file::DumpedVm;
use glass_profiler_guests::backends::monitor::Monitor;
use glass_profiler_guests::{Flow, GuestError, Source, VmSettings};

const TCG: &[&str] = &["-accel", "tcg", "-cpu", "max"];
/// How much of the stack is compared.
const STACK_BYTES: u32 = 2048;

struct Dumped {
    fixture: Fixture,
    file: PathBuf,
    monitor: Monitor,
}

/// A guest of two cores, of which one was never started, that is stopped and dumped.
fn dump(name: &str, options: &str) -> Option<Dumped> {
    let flags = ["-fno-omit-frame-pointer"];
    let fixture = Fixture::start_with(TCG, name, &flags, true, 2, |qemu, folder| {
        let socket = |name: &str| format!("unix:{},server=on,wait=off", folder.join(name).display());
        qemu.args(["-gdb", &socket("gdb"), "-qmp", &socket("monitor")]);
    })?;
    let mut monitor = Monitor::connect(&fixture.vm().monitor.unwrap()).unwrap();
    monitor.ask("stop").unwrap();
    let file = fixture.folder.file("dump");
    let said = monitor.ask(&format!("dump-guest-memory {options} {}", file.display())).unwrap();
    assert_eq!(said.trim(), "");
    Some(Dumped { fixture, file, monitor })
}

fn settings(fixture: &Fixture) -> VmSettings {
    VmSettings::new(STACK_BYTES, fixture.elf.clone())
}

/// All that a file gives: warnings, names of tracks, samples.
/// What was copied of the stack.
fn stack_of(sample: &RawSample) -> &[u8] {
    &sample.segments[0].stack[0].1
}

fn events(mut vm: DumpedVm) -> (Vec<String>, Vec<String>, Vec<RawSample>) {
    let (mut warnings, mut tracks, mut samples) = (Vec::new(), Vec::new(), Vec::new());
    let mut sink = |event| match event {
        Event::Warning(text) => warnings.push(text),
        Event::Track { name, .. } => tracks.push(name),
        Event::Sample(sample) => samples.push(sample),
        _ => {}
    };
    vm.announce(&mut sink).unwrap();
    assert_eq!(vm.collect(Duration::from_secs(1), &mut sink).unwrap(), Flow::Ended);
    assert_eq!(vm.collect(Duration::from_secs(1), &mut sink).unwrap(), Flow::Ended);
    vm.detach(&mut sink).unwrap();
    assert_eq!(vm.counts().expected(), tracks.len() as u64);
    (warnings, tracks, samples)
}

#[test]
fn a_dump_is_what_the_gdbstub_saw() {
    let Some(Dumped { fixture, file, .. }) = dump("dump", "") else { return };
    let mut gdb = Gdb::connect(&fixture.folder.file("gdb"));
    let seen = gdb.registers();
    let stack = gdb.memory(seen.rsp, 256);
    let (warnings, tracks, samples) = events(DumpedVm::open(&file, settings(&fixture)).unwrap());
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(tracks, ["vcpu 0", "vcpu 1"]);
    assert_eq!(samples[0].segments[0].registers, seen.into());
    assert_eq!(stack_of(&samples[0])[..stack.len()], stack[..]);
    assert_eq!([samples[0].state, samples[1].state], [State::Running, State::NeverStarted]);
    let mut judge = Judge::new(&fixture.elf, true);
    judge.judge(&samples[0]);
    judge.assert_whole();
    // Only one of them.
    let one = VmSettings { vcpus: vec![1], ..settings(&fixture) };
    let (_, tracks, samples) = events(DumpedVm::open(&file, one).unwrap());
    assert_eq!((tracks, samples.len(), samples[0].track), (vec!["vcpu 1".to_owned()], 1, 1));
}

#[test]
fn a_dump_with_paging_says_what_it_lacks() {
    let Some(Dumped { fixture, file, .. }) = dump("paging", "-p") else { return };
    let (warnings, _, samples) = events(DumpedVm::open(&file, settings(&fixture)).unwrap());
    let whole = events(DumpedVm::open(&redump(&fixture), settings(&fixture)).unwrap()).2;
    assert_eq!(samples[0].segments[0].registers, whole[0].segments[0].registers);
    // QEMU 7.2 leaves out what follows the first block of RAM, which is where the guest is.
    if stack_of(&samples[0]) != stack_of(&whole[0]) {
        assert!(warnings.iter().any(|text| text.contains("without paging")), "{warnings:?}");
    }
}

fn redump(fixture: &Fixture) -> PathBuf {
    let file = fixture.folder.file("again");
    let mut monitor = Monitor::connect(&fixture.vm().monitor.unwrap()).unwrap();
    monitor.ask(&format!("dump-guest-memory {}", file.display())).unwrap();
    file
}

fn refusal(file: &Path, settings: VmSettings) -> String {
    let start = Instant::now();
    let error = DumpedVm::open(file, settings).err().expect("it was accepted");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn what_is_no_dump_is_refused_in_one_sentence() {
    let Some(Dumped { fixture, file, mut monitor }) = dump("refused", "") else { return };
    let refuse = |file: &Path| refusal(file, settings(&fixture));
    let with = |name: &str, bytes: &[u8]| {
        let path = fixture.folder.file(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let compressed = fixture.folder.file("compressed");
    monitor.ask(&format!("dump-guest-memory -z {}", compressed.display())).unwrap();
    assert!(refuse(&compressed).contains("compressed"));
    for (name, bytes) in [("empty", &b""[..]), ("text", b"no dump"), ("gzip", &[0x1f, 0x8b, 8, 0])] {
        assert!(refuse(&with(name, bytes)).contains("is no ELF core of a VM"), "{name}");
    }
    assert!(refuse(&fixture.elf).contains("is no ELF core of a VM"));
    assert!(refuse(Path::new("/dev/zero")).contains("not a file"));
    assert!(refuse(Path::new("/no/such/dump")).contains("/no/such/dump"));
    let bytes = fs::read(&file).unwrap();
    assert!(refuse(&with("headers", &bytes[..300])).contains("damaged"));
    // The sign of QEMU's notes.
    let at = bytes.windows(5).position(|window| window == b"QEMU\0").unwrap();
    let mut other = bytes[..8192].to_vec();
    for at in at..4096 {
        if other[at..].starts_with(b"QEMU\0") {
            other[at] = b'q';
        }
    }
    assert!(refuse(&with("process", &other)).contains("no registers"));
    // Other code in memory.
    let other =
        crate::common::build(fixture.folder.path(), "other.elf", &["-fno-omit-frame-pointer", "-DOTHER", "-O1"])
            .unwrap();
    assert!(refusal(&file, VmSettings::new(STACK_BYTES, other)).contains("another build id"));
}

#[test]
fn a_dump_that_is_cut_or_damaged_gives_what_is_left() {
    let Some(Dumped { fixture, file, .. }) = dump("cut", "") else { return };
    let mut bytes = fs::read(&file).unwrap();
    let cut = fixture.folder.file("cut");
    let whole = events(DumpedVm::open(&file, settings(&fixture)).unwrap()).2;
    // After the notes, and half-way through the guest's image.
    for length in [8192, (2 << 20) + 0x2000] {
        fs::write(&cut, &bytes[..length]).unwrap();
        let (warnings, _, samples) = events(DumpedVm::open(&cut, settings(&fixture)).unwrap());
        assert!(warnings.iter().any(|text| text.contains("cut off")), "{warnings:?}");
        assert_eq!(samples[0].segments[0].registers, whole[0].segments[0].registers);
        assert!(stack_of(&samples[0]).len() < stack_of(&whole[0]).len());
    }
    // Whatever stands in the headers: it ends soon, with a sentence or with some stack.
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    bytes.truncate(64 << 10);
    for round in 0..500 {
        let mut wrong = bytes.clone();
        for _ in 0..4 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            wrong[(random % 0x838) as usize] = (random >> 32) as u8;
        }
        fs::write(&cut, &wrong).unwrap();
        let start = Instant::now();
        match DumpedVm::open(&cut, settings(&fixture)) {
            Ok(vm) => drop(events_of_any(vm)),
            Err(GuestError::Dump { .. } | GuestError::File { .. } | GuestError::WrongImage { .. }) => {}
            Err(other) => panic!("round {round}: {other}"),
        }
        assert!(start.elapsed() < Duration::from_secs(20), "round {round}: {:?}", start.elapsed());
    }
}

fn events_of_any(mut vm: DumpedVm) -> usize {
    let mut count = 0;
    vm.announce(&mut |_| count += 1).unwrap();
    vm.collect(Duration::ZERO, &mut |_| count += 1).unwrap();
    count
}
