//! What is written can be read; what is cut, damaged or newer gives a profile or a sentence.

use crate::common::{compile, segment, track, vm};
use glass_profiler_core::arch::{Architecture, Width};
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::event::{Event, Mapping, Placement, RawSample};
use glass_profiler_core::files::{FileSource, NoFiles};
use glass_profiler_core::guest::{Guest, GuestId, GuestKind, Mode, SpaceId};
use glass_profiler_core::images::Part;
use glass_profiler_core::model::{Cost, Distribution, Frozen, Losses, Origin, Profile, StackEnd, State, Track};
use glass_profiler_core::recorder::Recorder;
use glass_profiler_core::recording::{Clocks, ImageId, ReadError, SampleRecord, TrackRecord, Writer, read};
use glass_profiler_core::symbols::Location;
use glass_tests::folder::Folder;
use proptest::prelude::*;

const CLOCKS: Clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 1_700_000_000_000_000_000 };

fn origin() -> Origin {
    Origin {
        guest: "queue (VM, TCG)".to_owned(),
        backend: "gdbstub".to_owned(),
        symbols: "/images/queue".to_owned(),
        host: "here".to_owned(),
        start_unix_ns: CLOCKS.realtime_ns,
        rate_hz: 997,
        recorder: "glass 0.1.0".to_owned(),
        ..Default::default()
    }
}

fn location(function: &str, line: u32) -> Location {
    let file = Some("src/a.rs".to_owned());
    Location { function: function.to_owned(), file, line: Some(line), start_line: Some(2) }
}

/// Two tracks, three frames of which one stands for two functions, three samples out of order.
fn example() -> (Vec<u8>, Cost) {
    let mut writer = Writer::start(Vec::new(), CLOCKS, &origin()).unwrap();
    let image = ImageId { path: "/images/queue".to_owned(), build_id: vec![1, 2, 3] };
    let guest = GuestId(3);
    let kind = GuestKind::Vm { vmm: 7 };
    writer.guest(&Guest { id: guest, kind, name: "queue".to_owned(), architecture: Architecture::X86_64 }).unwrap();
    writer.track(&TrackRecord { number: 0, guest, id: 0, name: "vcpu 0".to_owned() }).unwrap();
    writer.track(&TrackRecord { number: 1, guest, id: 1, name: "vcpu 1".to_owned() }).unwrap();
    let mapped = writer.image(&image, 0x1000, 0x2000).unwrap();
    let outer = writer.frame(Some(mapped), 0x1010).unwrap();
    let inner = writer.frame(Some(mapped), 0x1020).unwrap();
    let wild = writer.frame(None, 0xdead).unwrap();
    let whole = writer.callstack(&[outer, inner]).unwrap();
    let broken = writer.callstack(&[wild]).unwrap();
    let part = Part { mode: Mode::Kernel, calls: 2, ..Part::default() };
    let sample = SampleRecord { time_ns: 3_000, callstack: Some(whole), parts: &[part], ..Default::default() };
    writer.sample(&SampleRecord { frozen_ns: 60_000, ..sample }).unwrap();
    writer.sample(&SampleRecord { time_ns: 2_000, state: State::Idle, frozen_ns: 80_000, ..sample }).unwrap();
    let end = StackEnd::BadAddress;
    writer
        .sample(&SampleRecord {
            time_ns: 4_000,
            track: 1,
            callstack: Some(broken),
            end,
            state: State::Spinning,
            ..sample
        })
        .unwrap();
    writer.warning("mind the gap").unwrap();
    let names = [(0x1010, vec![location("main", 3)]), (0x1020, vec![location("copy", 9), location("send", 5)])];
    writer.symbols(&image, 5_000, &names).unwrap();
    let cost = Cost {
        samples_wanted: 4,
        samples_taken: 3,
        samples_lost: 1,
        losses: Losses { ring_full: 1, maps: 2, ..Losses::default() },
        samples_late: 2,
        stacks_broken: 1,
        pause: Distribution { count: 2, median_ns: 60_000, p99_ns: 80_000, max_ns: 80_000, sum_ns: 140_000 },
        profiler_cpu_ns: 12,
        sampling_cpu_ns: 7,
    };
    writer.cost(&cost, 4_500, true).unwrap();
    (writer.into_inner(), cost)
}

fn names(profile: &Profile, stack: u32) -> Vec<&str> {
    let frames = &profile.stacks[stack as usize].frames;
    frames.iter().map(|frame| profile.frames[*frame as usize].function.as_str()).collect()
}

#[test]
fn everything_comes_back() {
    let (bytes, cost) = example();
    let profile = read(&bytes, &mut NoFiles).unwrap();
    assert_eq!(profile.cost, cost);
    assert_eq!(profile.origin.duration_ns, 4_500);
    assert_eq!((profile.origin.guest.as_str(), profile.origin.rate_hz), ("queue (VM, TCG)", 997));
    assert_eq!(profile.origin.start_unix_ns, CLOCKS.realtime_ns);
    let frozen = |count, sum_ns| Frozen { count, sum_ns };
    assert_eq!(profile.tracks[0].frozen, frozen(2, 140_000));
    assert_eq!(profile.tracks[1], Track { name: "vcpu 1".to_owned(), id: 1, guest: 0, frozen: frozen(0, 0) });
    assert_eq!(profile.guests[0].kind, GuestKind::Vm { vmm: 7 });
    assert!(profile.samples.iter().all(|sample| (sample.mode, sample.width) == (Mode::Kernel, Width::Bits64)));
    assert_eq!(profile.warnings, ["mind the gap"]);
    let times: Vec<_> = profile.samples.iter().map(|sample| (sample.time_ns, sample.track, sample.state)).collect();
    assert_eq!(times, [(1_000, 0, State::Idle), (2_000, 0, State::Running), (3_000, 1, State::Spinning)]);
    assert_eq!(names(&profile, profile.samples[0].stack), ["main", "send", "copy"]);
    assert_eq!(profile.samples[0].stack, profile.samples[1].stack);
    assert_eq!(names(&profile, profile.samples[2].stack), ["0xdead"]);
    assert_eq!(profile.stacks[profile.samples[2].stack as usize].end, StackEnd::BadAddress);
    let inlined: Vec<_> = profile.frames.iter().map(|frame| (frame.function.as_str(), frame.inlined)).collect();
    assert_eq!(inlined, [("main", false), ("send", false), ("copy", true), ("0xdead", false)]);
    let starts: Vec<_> = profile.frames.iter().map(|frame| frame.start_line).collect();
    assert_eq!(starts, [Some(2), Some(2), Some(2), None]);
    assert_eq!(profile.frames[2].line, Some(9));
    assert_eq!(profile.frames[0].image, "queue");
}

#[test]
fn a_cut_file_is_read_up_to_its_last_whole_packet() {
    let (bytes, _) = example();
    let mut samples_before = 0;
    for length in 0..bytes.len() {
        match read(&bytes[..length], &mut NoFiles) {
            Ok(profile) => {
                assert!(!profile.warnings.is_empty(), "{length} bytes: no word about what is missing");
                assert!(profile.samples.len() >= samples_before);
                samples_before = profile.samples.len();
                assert_eq!(profile.cost.samples_taken, samples_before as u64);
            }
            Err(ReadError::Empty) => assert_eq!(length, 0),
            Err(error) => assert_eq!((samples_before, error != ReadError::TooNew(0)), (0, true)),
        }
    }
    assert_eq!(samples_before, 3);
    let without_end = read(&bytes[..bytes.len() - 60], &mut NoFiles).unwrap();
    assert_eq!(without_end.cost.pause.max_ns, 80_000);
    assert_eq!(without_end.cost.stacks_broken, 1);
}

#[test]
fn other_files_are_refused_in_one_sentence() {
    let sentence = |bytes: &[u8]| read(bytes, &mut NoFiles).unwrap_err();
    assert_eq!(sentence(b""), ReadError::Empty);
    assert_eq!(sentence(b"{\"traceEvents\": []}"), ReadError::NotATrace);
    assert_eq!(sentence(&[0x0a, 0x02, 0x40, 0x05]), ReadError::NotOurs);
    assert_eq!(sentence(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f]), ReadError::NotATrace);
    // Version 3 is the one byte after the tag of the field, in the header, which is in field 60001.
    let (mut bytes, _) = example();
    let at = bytes.windows(4).position(|window| window == [0x08, 0x03, 0x12, 0x0f]).unwrap();
    bytes[at + 1] = 9;
    assert_eq!(sentence(&bytes), ReadError::TooNew(9));
    assert!(ReadError::TooNew(9).to_string().contains("newer"));
}

#[test]
fn a_damaged_packet_is_left_out_and_told() {
    let (bytes, _) = example();
    let at = bytes.windows(6).position(|window| window == b"vcpu 1").unwrap();
    let mut damaged = bytes.clone();
    // The length of the name: longer than its packet.
    damaged[at - 1] = 0x7f;
    let profile = read(&damaged, &mut NoFiles).unwrap();
    assert_eq!(profile.samples.len(), 2, "the sample of the lost track is gone too");
    assert!(profile.warnings.iter().any(|text| text.contains("damaged")), "{:?}", profile.warnings);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let _ = read(&bytes, &mut NoFiles);
    }

    #[test]
    fn changed_recordings_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..30),
        repeat in 1usize..4,
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = example().0.repeat(repeat);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        if let Ok(profile) = read(&bytes, &mut NoFiles) {
            for sample in &profile.samples {
                prop_assert!((sample.track as usize) < profile.tracks.len());
                let stack = &profile.stacks[sample.stack as usize];
                prop_assert!(stack.frames.iter().all(|frame| (*frame as usize) < profile.frames.len()));
            }
        }
    }
}

#[test]
fn a_small_file_cannot_ask_for_much_memory() {
    // One frame with 32 functions, in a stack of 1 M entries, in 40 stacks: 1.3 G entries if all were kept.
    let mut writer = Writer::start(Vec::new(), CLOCKS, &origin()).unwrap();
    writer.track(&track("vcpu 0")).unwrap();
    let image = ImageId { path: "/a".to_owned(), build_id: vec![] };
    let mapped = writer.image(&image, 0, 1).unwrap();
    let frame = writer.frame(Some(mapped), 5).unwrap();
    for time in 0..40 {
        let callstack = writer.callstack(&vec![frame; 1 << 20]).unwrap();
        writer
            .sample(&SampleRecord { time_ns: 2_000 + time, callstack: Some(callstack), ..Default::default() })
            .unwrap();
    }
    writer.symbols(&image, 1, &[(5, vec![location("f", 1); 100])]).unwrap();
    writer.cost(&Cost::default(), 1, true).unwrap();
    let profile = read(&writer.into_inner(), &mut NoFiles).unwrap();
    let entries: usize = profile.stacks.iter().map(|stack| stack.frames.len()).sum();
    assert!(entries <= 32 << 20, "{entries}");
    assert!(profile.warnings.iter().any(|text| text.contains("shortened")), "{:?}", profile.warnings);
}

struct Disk;

impl FileSource for Disk {
    fn load(&mut self, path: &str) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(std::fs::read(path).ok()?))
    }
}

#[test]
fn names_of_a_killed_recorder_come_from_the_file_while_it_is_the_same() {
    let folder = Folder::new("killed").unwrap();
    let Some(program) = compile(&folder, "inlined.c", &["-O2", "-g", "-static", "-no-pie", "-Wl,--build-id"]) else {
        return;
    };
    let path = program.display().to_string();
    let image = glass_profiler_core::image::Image::parse(&std::fs::read(&program).unwrap(), &["outer"]).unwrap();
    let rip = image.symbol("outer").unwrap();
    let record = || {
        let mut recorder = Recorder::start(Vec::new(), CLOCKS, &origin()).unwrap();
        let range = image.linked_range();
        let mapping = Mapping {
            start: range.start,
            end: range.end,
            path: path.clone(),
            placement: Placement::AsLinked,
            file: None,
        };
        let segments = vec![segment(Mode::Kernel, rip)];
        let sample = RawSample { time_ns: 2_000, segments, ..Default::default() };
        let track = Event::Track { track: 0, guest: GuestId(0), id: 0, name: "vcpu 0".to_owned() };
        let mapped = [track, Event::Map { space: SpaceId(0), mapping }, Event::Sample(sample)];
        for event in vm().into_iter().chain(mapped) {
            recorder.event(event, &mut Disk).unwrap();
        }
        recorder
    };
    let mut recorder = record();
    // Attaching took 2 ns, sampling 1, and the names 2.
    let after = |profiler_cpu_ns| Cost { profiler_cpu_ns, ..Cost::default() };
    recorder.checkpoint(&after(2)).unwrap();
    recorder.checkpoint(&after(2)).unwrap();
    let finished = recorder.finish(&after(3), 9_000, &mut Disk, || 5).unwrap();
    let (cost, whole) = (finished.0, finished.1);
    assert_eq!((cost.samples_taken, cost.stacks_broken), (1, 1));
    assert_eq!((cost.profiler_cpu_ns, cost.sampling_cpu_ns), (5, 1));
    let profile = read(&whole, &mut NoFiles).unwrap();
    assert_eq!(names(&profile, 0)[0], "outer");

    // Without the packets that `finish` writes.
    let symbols_at = whole.windows(path.len()).rposition(|window| window == path.as_bytes()).unwrap();
    let killed = &whole[..symbols_at];
    assert_eq!(names(&read(killed, &mut NoFiles).unwrap(), 0)[0], format!("{rip:#x}"));
    let profile = read(killed, &mut Disk).unwrap();
    assert_eq!(names(&profile, 0)[0], "outer", "{:?}", profile.warnings);

    let Some(_) = compile(&folder, "inlined.c", &["-O1", "-g", "-static", "-no-pie", "-Wl,--build-id"]) else { return };
    let profile = read(killed, &mut Disk).unwrap();
    assert_eq!(names(&profile, 0)[0], format!("{rip:#x}"));
    assert!(profile.warnings.iter().any(|text| text.contains("another build")), "{:?}", profile.warnings);
}

/// Names of more than a packet holds cost the end of the recording (2026-11-22).
#[test]
fn the_longest_names_fit_into_packets() {
    let mut writer = Writer::start(Vec::new(), CLOCKS, &origin()).unwrap();
    let image = ImageId { path: "/images/queue".to_owned(), build_id: Vec::new() };
    let long = Location {
        function: "n".repeat(300 << 10),
        file: Some("f".repeat(300 << 10)),
        line: Some(1),
        ..Location::default()
    };
    let lines = vec![long; 33];
    let names: Vec<_> = (0..70).map(|address| (address, lines.clone())).collect();
    writer.symbols(&image, 5_000, &names).unwrap();
    writer.changes(None, 1, &names).unwrap();
    writer.cost(&Cost::default(), 1, true).unwrap();
    assert_eq!(read(&writer.into_inner(), &mut NoFiles).unwrap().warnings, [""; 0]);
}

/// A recording of vCPU 1 alone was empty (2026-11-22): its track had the number 1, with no track 0 before it.
#[test]
fn tracks_with_gaps_in_their_numbers_come_back() {
    let mut recorder = Recorder::start(Vec::new(), CLOCKS, &origin()).unwrap();
    vm().into_iter().for_each(|event| recorder.event(event, &mut NoFiles).unwrap());
    for (track, name) in [(3, "vcpu 3"), (1, "vcpu 1")] {
        let event = Event::Track { track, guest: GuestId(0), id: u64::from(track), name: name.to_owned() };
        recorder.event(event, &mut NoFiles).unwrap();
    }
    for (time_ns, track) in [(2_000, 1), (3_000, 3), (4_000, 1), (5_000, 2)] {
        let sample = RawSample { time_ns, track, ..Default::default() };
        recorder.event(Event::Sample(sample), &mut NoFiles).unwrap();
    }
    let (cost, bytes) = recorder.finish(&Cost::default(), 9_000, &mut NoFiles, || 0).unwrap();
    assert_eq!((cost.samples_taken, cost.samples_lost), (3, 1), "of track 2 nothing is known");
    check_tracks_with_gaps(&bytes);
}

fn check_tracks_with_gaps(bytes: &[u8]) {
    let profile = read(bytes, &mut NoFiles).unwrap();
    let track_of = |sample: &glass_profiler_core::model::Sample| profile.tracks[sample.track as usize].id;
    assert_eq!(profile.samples.iter().map(track_of).collect::<Vec<_>>(), [1, 3, 1], "{:?}", profile.warnings);
    assert_eq!(profile.warnings, [""; 0]);
}

/// As the recorder wrote them until 2026-11-22.
#[test]
fn recordings_with_gaps_in_the_numbers_of_tracks_are_read() {
    let mut writer = Writer::start(Vec::new(), CLOCKS, &origin()).unwrap();
    let frame = writer.frame(None, 5).unwrap();
    let callstack = writer.callstack(&[frame]).unwrap();
    for number in [3, 1] {
        let name = format!("vcpu {number}");
        writer.track(&TrackRecord { number, guest: GuestId(0), id: number.into(), name }).unwrap();
    }
    for (time_ns, track) in [(2_000, 1), (3_000, 3), (4_000, 1)] {
        writer.sample(&SampleRecord { time_ns, track, callstack: Some(callstack), ..Default::default() }).unwrap();
    }
    writer.cost(&Cost { samples_wanted: 3, samples_taken: 3, ..Default::default() }, 1, true).unwrap();
    check_tracks_with_gaps(&writer.into_inner());
}
