//! What can be given for a bare guest's symbols: a stripped image beside a map, a map alone, an image that was
//! linked for another address, debug information without other tables.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::Fixture;
use glass_profiler_core::event::Event;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::images::Images;
use glass_profiler_core::model::StackEnd;
use glass_profiler_guests::backends::gdbstub::QemuVm;
use glass_profiler_guests::backends::paced::Paced;
use glass_profiler_guests::{Flow, GuestError, Source, SymbolFile, VmSettings};

const TCG: &[&str] = &["-accel", "tcg", "-cpu", "max"];
const FRAME_POINTERS: [&str; 2] = ["-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"];
const SAMPLES: usize = 200;
const FUNCTIONS: [&str; 4] = ["run", "a", "b", "c"];

/// Makes a file of another by one of binutils' programs, which writes to the path or to its output.
fn derive(fixture: &Fixture, name: &str, program: &str, arguments: &[&str]) -> PathBuf {
    let path = fixture.folder.file(name);
    let mut command = Command::new(program);
    command.args(arguments).arg(&fixture.elf);
    if program == "objcopy" {
        command.arg(&path);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    if program != "objcopy" {
        std::fs::write(&path, output.stdout).unwrap();
    }
    path
}

fn settings(files: &[(&Path, Option<u64>)]) -> VmSettings {
    let symbols =
        files.iter().map(|(path, address)| SymbolFile { path: path.to_path_buf(), address: *address, is_right: false });
    VmSettings { symbols: symbols.collect(), ..VmSettings::new(2048, PathBuf::new()) }
}

/// How many of the samples have a whole and right stack; and what was warned of.
fn take(fixture: &Fixture, settings: VmSettings) -> Result<(usize, Vec<String>), GuestError> {
    let mut source = Paced::new(QemuVm::attach(&fixture.vm(), settings)?, 1500);
    let (mut images, mut samples, mut warnings) = (Images::default(), Vec::new(), Vec::new());
    let mut sink = |event| match event {
        event @ (Event::Guest(_) | Event::Space { .. } | Event::Place { .. }) => images.learn(&event, &mut NoFiles),
        Event::Sample(sample) => samples.push(sample),
        Event::Warning(text) => warnings.push(text),
        _ => {}
    };
    source.announce(&mut sink)?;
    // By the clock, since a guest that waits for the host gives fewer.
    for _ in 0..600 {
        let mut sink = |event| {
            if let Event::Sample(sample) = event {
                samples.push(sample);
            }
        };
        assert_eq!(source.collect(Duration::from_millis(50), &mut sink)?, Flow::More);
        if samples.len() >= SAMPLES {
            break;
        }
    }
    source.detach(&mut |_| ())?;
    assert!(samples.len() >= SAMPLES, "{} samples", samples.len());
    samples.truncate(SAMPLES);
    let is_right = |sample: &_| {
        let chain = images.unwind(sample);
        let name = |address| {
            let image = chain.calls[0].image.filter(|image| images.file(*image).is_some())?;
            let mut files = glass_profiler_guests::files::HostFiles::default();
            let names = images.names(image, &mut files).or_else(|_| images.names(image, &mut NoFiles));
            names.ok()?.locate(address).pop().map(|location| location.function)
        };
        let names: Vec<_> = chain.calls.iter().rev().map(|call| name(call.address).unwrap_or_default()).collect();
        chain.end == StackEnd::Complete && names.len() <= 4 && names == FUNCTIONS[..names.len()]
    };
    Ok((samples.iter().map(is_right).filter(|right| *right).count(), warnings))
}

#[test]
fn a_stripped_image_and_a_map_make_one_program() {
    let flags = ["-fomit-frame-pointer", "-fasynchronous-unwind-tables"];
    let Some(fixture) = Fixture::start(TCG, "stripped-and-map", &flags, true, 1) else { return };
    let stripped = derive(&fixture, "stripped.elf", "objcopy", &["-S", "--keep-section=.eh_frame"]);
    let map = derive(&fixture, "guest.map", "nm", &["-n", "-S"]);
    let error = take(&fixture, settings(&[(&stripped, None)])).unwrap_err().to_string();
    assert!(error.contains("stripped"), "{error}");
    for files in [[(&*stripped, None), (&*map, None)], [(&*map, None), (&*stripped, None)]] {
        assert_eq!(take(&fixture, settings(&files)).unwrap(), (SAMPLES, Vec::new()));
    }
    let error = take(&fixture, settings(&[(&fixture.elf, None), (&fixture.elf, None)])).unwrap_err().to_string();
    assert!(error.contains("are both at 0x200000") && error.contains("FILE@0xADDRESS"), "{error}");
}

#[test]
fn a_map_alone_serves_a_guest_with_frame_pointers() {
    let Some(fixture) = Fixture::start(TCG, "map-alone", &FRAME_POINTERS, true, 1) else { return };
    let map = derive(&fixture, "guest.map", "nm", &["-n"]);
    let (right, warnings) = take(&fixture, settings(&[(&map, None)])).unwrap();
    // Without the code, a caller is missing where a function has no frame yet, which is where TCG likes to stop.
    assert!(right * 10 >= SAMPLES * 8, "{right} of {SAMPLES}");
    assert!(warnings.iter().any(|text| text.contains("could not be checked")), "{warnings:?}");
}

#[test]
fn an_image_linked_for_another_address() {
    let Some(fixture) = Fixture::start(TCG, "moved", &FRAME_POINTERS, true, 1) else { return };
    let moved = derive(&fixture, "moved.elf", "objcopy", &["--strip-debug", "--change-addresses", "0x10000000"]);
    assert_eq!(take(&fixture, settings(&[(&moved, Some(0x20_0000))])).unwrap(), (SAMPLES, Vec::new()));
    let wrong = settings(&[(&moved, Some(0x20_1000))]);
    let error = take(&fixture, wrong.clone()).unwrap_err().to_string();
    assert!(error.contains("another build id at the load address 0x201000"), "{error}");
    // With --force-symbols the names are used, with a warning.
    let (right, warnings) = take(&fixture, VmSettings { force: true, ..wrong }).unwrap();
    assert!(right < SAMPLES / 2, "{right}");
    assert!(warnings[0].starts_with("names may be wrong") && warnings[0].contains("build id"), "{warnings:?}");
}

#[test]
fn tables_for_debuggers_serve_a_guest_without_frame_pointers() {
    let flags = ["-fomit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let Some(fixture) = Fixture::start(TCG, "debug-frame", &flags, true, 1) else { return };
    assert_eq!(take(&fixture, settings(&[(&fixture.elf, None)])).unwrap(), (SAMPLES, Vec::new()));
}
