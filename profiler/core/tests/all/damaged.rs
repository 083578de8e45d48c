//! Recordings that were cut, changed, or never were recordings: a profile of what is there, or one sentence.

use crate::common::{compile, process, segment, track};
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::event::{Event, Mapping, Placement, RawSample};
use glass_profiler_core::files::{FileSource, NoFiles};
use glass_profiler_core::guest::{Mode, SpaceId};
use glass_profiler_core::image::Image;
use glass_profiler_core::model::{Cost, Origin, StackEnd, State};
use glass_profiler_core::recorder::Recorder;
use glass_profiler_core::recording::{
    Clocks, ImageId, NameSource, OtherKind, PlainSettings, ReadError, Recording, SampleRecord, Writer, open,
    write_plain,
};
use glass_profiler_core::symbols::Location;
use glass_tests::folder::Folder;

const CLOCKS: Clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 1_700_000_000_000_000_000 };

fn origin() -> Origin {
    Origin { guest: "guest".to_owned(), rate_hz: 997, ..Default::default() }
}

fn location(function: &str) -> Location {
    Location { function: function.to_owned(), file: Some("a.rs".to_owned()), line: Some(3), ..Location::default() }
}

fn start() -> Writer<Vec<u8>> {
    let mut writer = Writer::start(Vec::new(), CLOCKS, &origin()).unwrap();
    writer.track(&track("vcpu 0")).unwrap();
    writer
}

fn small() -> Vec<u8> {
    let mut writer = start();
    let image = ImageId { path: "/image".to_owned(), build_id: vec![1, 2, 3] };
    let mapped = writer.image(&image, 0x1000, 0x2000).unwrap();
    let frames = [0x1010, 0x1020].map(|address| writer.frame(Some(mapped), address).unwrap());
    let callstacks = [&frames[..], &frames[..1]].map(|frames| writer.callstack(frames).unwrap());
    for (index, callstack) in callstacks.into_iter().cycle().take(6).enumerate() {
        let state = if index == 2 { State::Idle } else { State::Running };
        let sample = SampleRecord {
            time_ns: 2_000 + index as u64,
            callstack: Some(callstack),
            state,
            frozen_ns: 9,
            ..Default::default()
        };
        writer.sample(&sample).unwrap();
    }
    writer
        .symbols(&image, 5_000, &[(0x1010, vec![location("main")]), (0x1020, vec![location("leaf"), location("in")])])
        .unwrap();
    writer.cost(&Cost { samples_wanted: 6, samples_taken: 6, ..Default::default() }, 9_000, true).unwrap();
    writer.into_inner()
}

/// What holds for everything that the reader gives.
fn check(recording: &Recording) {
    let profile = &recording.profile;
    assert_eq!(profile.frames.len(), recording.places.len());
    for place in &recording.places {
        assert!(place.image.is_none_or(|image| (image as usize) < recording.images.len()));
    }
    for sample in &profile.samples {
        assert!((sample.track as usize) < profile.tracks.len());
        let stack = &profile.stacks[sample.stack as usize];
        assert!(stack.frames.iter().all(|frame| (*frame as usize) < profile.frames.len()));
    }
    // Each expected sample is there or lost.
    let cost = &profile.cost;
    assert_eq!(cost.samples_taken, profile.samples.len() as u64);
    assert_eq!(cost.samples_wanted, cost.samples_taken.saturating_add(cost.samples_lost));
    assert!(cost.samples_late <= cost.samples_taken && cost.losses.samples() <= cost.samples_lost);
}

#[test]
fn a_cut_at_any_byte_gives_what_is_there_and_one_sentence() {
    let whole = small();
    assert_eq!(open(&whole, &mut NoFiles).unwrap().profile.warnings, [""; 0]);
    let (mut samples, mut readable) = (0, 0);
    for length in 1..whole.len() {
        let recording = match open(&whole[..length], &mut NoFiles) {
            Ok(recording) => recording,
            Err(error) => {
                assert_eq!((readable, error.to_string().lines().count()), (0, 1), "{length}: {error}");
                continue;
            }
        };
        readable += 1;
        check(&recording);
        assert!(!recording.is_complete);
        let about_the_end =
            recording.profile.warnings.iter().filter(|text| text.contains("cut off") || text.contains("was ended"));
        assert_eq!(about_the_end.count(), 1, "{length}: {:?}", recording.profile.warnings);
        assert!(recording.profile.warnings.len() <= 2, "{length}: {:?}", recording.profile.warnings);
        assert!(recording.profile.samples.len() >= samples);
        samples = recording.profile.samples.len();
    }
    assert_eq!(samples, 6);
    assert!(readable > whole.len() / 2);
}

#[test]
fn no_changed_bit_does_harm() {
    let whole = small();
    let mut refused = 0;
    for bit in 0..whole.len() * 8 {
        let mut changed = whole.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        match open(&changed, &mut NoFiles) {
            Ok(recording) => {
                check(&recording);
                let mut plain = Vec::new();
                write_plain(&changed, &recording, PlainSettings::default(), &mut plain).unwrap();
                assert!(plain.len() <= changed.len() + 64);
            }
            Err(_) => refused += 1,
        }
    }
    // Only what makes the start unreadable, or the version another one, is refused.
    assert!(refused > 0 && refused < whole.len() * 2, "{refused} of {}", whole.len() * 8);
}

#[test]
fn what_is_no_recording_is_told_what_it_is() {
    let refusal = |bytes: &[u8]| open(bytes, &mut NoFiles).unwrap_err();
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for (bytes, error, part) in [
        (&b""[..], ReadError::Empty, "is empty"),
        (b"hello", ReadError::NotATrace, "glass record"),
        (b"\n", ReadError::NotATrace, "is not a recording"),
        (b"\n\n\n\n\n\n\n\n\n\n\n\n\n\n", ReadError::NotATrace, "is not a recording"),
        (&program, ReadError::OtherKind(OtherKind::Program), "ELF"),
        (b"\x1f\x8b\x08\x00", ReadError::OtherKind(OtherKind::Gzip), "gunzip"),
        (b"\x28\xb5\x2f\xfd\x00", ReadError::OtherKind(OtherKind::Zstd), "unzstd"),
        (b"<!doctype html><title>", ReadError::OtherKind(OtherKind::Page), "browser"),
        (b"PERFILE2", ReadError::OtherKind(OtherKind::PerfData), "perf report"),
    ] {
        assert_eq!(refusal(bytes), error);
        assert!(error.to_string().contains(part), "{error}");
    }
    // A trace of another program: ours without our fields.
    let mut foreign = Vec::new();
    let whole = small();
    write_plain(&whole, &open(&whole, &mut NoFiles).unwrap(), PlainSettings::default(), &mut foreign).unwrap();
    assert_eq!(refusal(&foreign), ReadError::NotOurs);
    assert!(ReadError::NotOurs.to_string().contains("ui.perfetto.dev"));
    assert!(ReadError::TooNew(7).to_string().contains("version 7"));
}

#[test]
fn a_plain_trace_keeps_all_but_ours_and_what_was_not_running() {
    let whole = small();
    let recording = open(&whole, &mut NoFiles).unwrap();
    let packets = |settings| {
        let mut plain = Vec::new();
        write_plain(&whole, &recording, settings, &mut plain).unwrap();
        assert!(!plain.windows(3).any(|window| window == [0x8a, 0xa6, 0x1d]), "the tag of field 60001 is there");
        assert!(plain.windows(4).any(|window| window == b"leaf"));
        // Tag 66, length-delimited: a perf_sample.
        plain.windows(2).filter(|window| window == &[0x92, 0x04]).count()
    };
    assert!(whole.windows(3).any(|window| window == [0x8a, 0xa6, 0x1d]), "this is not the tag of our field");
    assert_eq!(packets(PlainSettings::default()), 6);
    assert_eq!(packets(PlainSettings { only_running: true, ..PlainSettings::default() }), 5);
}

#[test]
fn a_long_name_that_many_frames_share_is_cut_and_kept_once() {
    let mut writer = start();
    let image = ImageId { path: "/a".to_owned(), build_id: vec![9] };
    let name = "x".repeat(1 << 20);
    let mut frames = Vec::new();
    for _ in 0..500 {
        let mapped = writer.image(&image, 0, 1).unwrap();
        frames.push(writer.frame(Some(mapped), 5).unwrap());
    }
    let callstack = writer.callstack(&frames).unwrap();
    writer.sample(&SampleRecord { time_ns: 2_000, callstack: Some(callstack), ..Default::default() }).unwrap();
    writer.symbols(&image, 1, &[(5, vec![location(&name)])]).unwrap();
    writer.cost(&Cost::default(), 1, true).unwrap();
    let recording = open(&writer.into_inner(), &mut NoFiles).unwrap();
    let bytes: usize = recording.profile.frames.iter().map(|frame| frame.function.len()).sum();
    assert_eq!((bytes, recording.profile.stacks[0].frames.len()), (8 << 10, 500));
}

struct Disk;

impl FileSource for Disk {
    fn load(&mut self, path: &str) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(std::fs::read(path).ok()?))
    }
}

#[test]
fn names_of_a_killed_recorder_are_said_to_come_from_files_and_reach_the_plain_trace() {
    let folder = Folder::new("killed-plain").unwrap();
    let flags = ["-O2", "-g", "-static", "-no-pie", "-Wl,--build-id"];
    let Some(program) = compile(&folder, "inlined.c", &flags) else { return };
    let path = program.display().to_string();
    let image = Image::parse(&std::fs::read(&program).unwrap(), &["outer"]).unwrap();
    let rip = image.symbol("outer").unwrap();
    // Recorded, and ended before names were written.
    let mut killed = Vec::new();
    let mut recorder = Recorder::start(&mut killed, CLOCKS, &origin()).unwrap();
    let range = image.linked_range();
    let mapping =
        Mapping { start: range.start, end: range.end, path: path.clone(), placement: Placement::AsLinked, file: None };
    let sample = RawSample {
        time_ns: 2_000,
        segments: vec![segment(Mode::Kernel, 0), segment(Mode::User, rip)],
        ..Default::default()
    };
    let mapped = [Event::Map { space: SpaceId(0), mapping }, Event::Sample(sample)];
    for event in process().into_iter().chain(mapped) {
        recorder.event(event, &mut Disk).unwrap();
    }
    drop(recorder);
    let recording = open(&killed, &mut Disk).unwrap();
    let names: Vec<&str> = recording.profile.frames.iter().map(|frame| frame.function.as_str()).collect();
    assert!(names.contains(&"outer") && names.contains(&"[kernel]"), "{names:?}");
    let image = recording.images.iter().find(|image| image.path == path).unwrap();
    assert_eq!((&image.names, image.named), (&NameSource::File, 1));
    let warnings = recording.profile.warnings.join("\n");
    assert!(warnings.contains("were looked up in the file of the recorded build id"), "{warnings}");
    assert!(!warnings.contains("kernel"), "{warnings}");
    assert_ne!(recording.profile.stacks[0].end, StackEnd::Complete);
    let mut plain = Vec::new();
    write_plain(&killed, &recording, PlainSettings::default(), &mut plain).unwrap();
    assert!(plain.windows(5).any(|window| window == b"outer"));

    // Without the file there is one sentence about it.
    std::fs::remove_file(&program).unwrap();
    let recording = open(&killed, &mut Disk).unwrap();
    let about: Vec<&String> = recording.profile.warnings.iter().filter(|text| text.contains("is not there")).collect();
    assert!(about.len() == 1 && about[0].contains(&path), "{:?}", recording.profile.warnings);
}
