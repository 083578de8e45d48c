//! Processes and threads in exports of a process tree.

use std::io::Read;

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::guest::{Guest, GuestId, GuestKind};
use glass_profiler_core::model::{Frame, Profile, Sample, Stack, Track};
use glass_profiler_core::recording::{Place, RecordedImage, Recording};
use glass_profiler_export::{Format, Options, write};
use serde_json::Value;

/// `sh` and its child `cc1` with two threads; one sample each.
fn recording() -> Recording {
    let guest = |id, pid, name: &str| Guest {
        id: GuestId(id),
        kind: GuestKind::Process { pid },
        name: name.to_owned(),
        architecture: Architecture::X86_64,
    };
    let track = |guest, id, name: &str| Track { guest, id, name: name.to_owned(), ..Track::default() };
    let frame =
        |name: &str, image: &str| Frame { function: name.to_owned(), image: image.to_owned(), ..Frame::default() };
    let image = |path: &str, start| RecordedImage {
        path: path.to_owned(),
        range: (start, start + 0x1000),
        ..RecordedImage::default()
    };
    let profile = Profile {
        guests: vec![guest(0, 100, "sh"), guest(1, 101, "cc1")],
        tracks: vec![track(0, 100, "sh"), track(1, 101, "cc1"), track(1, 105, "worker")],
        frames: vec![Frame { start_line: Some(10), ..frame("main", "sh") }, frame("work", "libc.so.6")],
        stacks: vec![Stack { frames: vec![0, 1], ..Stack::default() }],
        samples: (0..3).map(|track| Sample { time_ns: 10 * u64::from(track), track, ..Sample::default() }).collect(),
        ..Profile::default()
    };
    let place = |image, address| Place { image: Some(image), address };
    Recording {
        profile,
        images: vec![image("/lib/ld-linux-x86-64.so.2", 0x7f00_0000_0000), image("/bin/sh", 0x5500_0000_0000)],
        places: vec![place(1, 0x1234), place(0, 0x5678)],
        ..Recording::default()
    }
}

fn export(format: Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(format, &recording(), &[], Options::default(), &mut bytes).unwrap();
    bytes
}

#[test]
fn folded_stacks_have_the_process_as_their_root() {
    let text = String::from_utf8(export(Format::Folded)).unwrap();
    assert_eq!(text, "cc1 101;main;work 2\nsh 100;main;work 1\n");
}

#[test]
fn an_image_has_the_process_under_its_functions() {
    let text = String::from_utf8(export(Format::Svg)).unwrap();
    let titles: Vec<&str> = text.split("<title>").skip(1).map(|rest| rest.split("</title>").next().unwrap()).collect();
    let expected = [
        "all\n3 samples (100.0 %), 0 of its own",
        "cc1 101\n2 samples (66.7 %), 0 of its own",
        "sh 100\n1 samples (33.3 %), 0 of its own",
        "main\nsh\n2 samples (66.7 %), 0 of its own",
        "main\nsh\n1 samples (33.3 %), 0 of its own",
        "work\nlibc.so.6\n2 samples (66.7 %), 2 of its own",
        "work\nlibc.so.6\n1 samples (33.3 %), 1 of its own",
    ];
    assert_eq!(titles, expected);
}

#[test]
fn threads_of_the_firefox_profiler_have_their_process() {
    let json: Value = serde_json::from_slice(&export(Format::Firefox)).unwrap();
    let threads: Vec<(String, String, String, u64, bool)> = json["threads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|thread| {
            let text = |key: &str| thread[key].as_str().unwrap().to_owned();
            let (tid, is_main) = (thread["tid"].as_u64().unwrap(), thread["isMainThread"].as_bool().unwrap());
            (text("processName"), text("pid"), text("name"), tid, is_main)
        })
        .collect();
    let thread = |process: &str, pid: &str, name: &str, tid, is_main| {
        (process.to_owned(), pid.to_owned(), name.to_owned(), tid, is_main)
    };
    let expected = [
        thread("sh", "100", "sh", 100, true),
        thread("cc1", "101", "cc1", 101, true),
        thread("cc1", "101", "worker", 105, false),
    ];
    assert_eq!(threads, expected);
}

#[test]
fn profiles_of_speedscope_are_named_by_process_and_thread() {
    let json: Value = serde_json::from_slice(&export(Format::Speedscope)).unwrap();
    let names: Vec<&str> =
        json["profiles"].as_array().unwrap().iter().map(|profile| profile["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["sh 100", "cc1 101, cc1 101", "cc1 101, worker 105"]);
}

/// The program was the dynamic linker, and locations were outside of their mappings (2026-11-25).
#[test]
fn pprof_has_the_program_first_and_labels() {
    let mut raw = Vec::new();
    flate2::read::GzDecoder::new(&export(Format::Pprof)[..]).read_to_end(&mut raw).unwrap();
    let text = String::from_utf8_lossy(&raw);
    for word in ["process", "pid", "tid", "cc1", "worker"] {
        assert!(text.contains(word), "{word}");
    }
    let folder = glass_tests::folder::Folder::new("pprof-processes").unwrap();
    let Some(mut pprof) = crate::programs::go_pprof(&folder) else { return };
    let file = folder.write("profile.pb.gz", &export(Format::Pprof)).unwrap();
    let raw = crate::programs::output(pprof.arg("-raw").arg(&file));
    let mappings = raw.split("Mappings").nth(1).unwrap();
    let first =
        mappings.lines().find(|line| line.trim_start().starts_with("2:") || line.trim_start().starts_with("1:"));
    assert!(first.unwrap().contains("/bin/sh"), "{raw}");
    assert!(raw.contains("main:10") || raw.contains("s=10"), "{raw}");
    assert!(raw.contains("pid:[101]") && raw.contains("tid:[105]") && raw.contains("process:[cc1]"), "{raw}");
}
