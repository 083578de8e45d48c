//! Names of generated code in a recording: those of the moment, by the files that the process wrote.

use std::io::{Cursor, Read};

use crate::common::{process, segment};
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::event::{Event, Mapping, Placement, RawSample};
use glass_profiler_core::files::{FileSource, NoFiles};
use glass_profiler_core::guest::{GuestId, Mode, ProcessKey, SpaceId};
use glass_profiler_core::model::{Cost, Origin, Profile};
use glass_profiler_core::recorder::Recorder;
use glass_profiler_core::recording::{Clocks, open};

const CLOCKS: Clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 1_700_000_000_000_000_000 };
const CODE: u64 = 0x4000_0000;
const PROCESS: u32 = 7;

/// What the process writes of its code.
#[derive(Default)]
struct Files {
    dump: Vec<u8>,
    map: Option<&'static str>,
}

impl FileSource for Files {
    fn load(&mut self, _path: &str) -> Option<Box<dyn ReadAt>> {
        None
    }

    fn open_mapped(&mut self, _process: ProcessKey, mapping: &Mapping) -> Result<Box<dyn Read>, String> {
        assert!(mapping.path.ends_with("jit-7.dump"));
        Ok(Box::new(Cursor::new(self.dump.clone())))
    }

    fn open_perf_map(&mut self, process: ProcessKey) -> Result<Option<Box<dyn Read>>, String> {
        assert_eq!(process, ProcessKey::here(PROCESS));
        Ok(self.map.map(|map| Box::new(map.as_bytes()) as Box<dyn Read>))
    }
}

/// A dump that loads functions at these times, all at the same address.
fn dump(functions: &[(u64, &str)]) -> Vec<u8> {
    let mut bytes = [0x4a69_5444u32, 1, 40, 62, 0, PROCESS].map(u32::to_le_bytes).concat();
    bytes.extend([0; 16]);
    for (number, (time_ns, name)) in (0u64..).zip(functions) {
        bytes.extend([0, 16 + 40 + name.len() as u32 + 1].map(u32::to_le_bytes).concat());
        bytes.extend([*time_ns, 7 << 32 | 7, CODE, CODE, 0x100, number].map(u64::to_le_bytes).concat());
        bytes.extend(name.as_bytes());
        bytes.push(0);
    }
    bytes
}

fn map(start: u64, bytes: u64, path: &str) -> Event {
    let (placement, path) = (Placement::FileOffset(0), path.to_owned());
    Event::Map { space: SpaceId(0), mapping: Mapping { start, end: start + bytes, path, placement, file: None } }
}

fn sample(time_ns: u64, address: u64) -> Event {
    Event::Sample(RawSample { time_ns, segments: vec![segment(Mode::User, address)], ..Default::default() })
}

/// The names of the samples' functions in order of time, and the profile.
fn record(events: Vec<Event>, mut files: Files) -> (Vec<String>, Profile) {
    let mut recorder = Recorder::start(Vec::new(), CLOCKS, &Origin::default()).unwrap();
    for event in process().into_iter().chain(events) {
        recorder.event(event, &mut files).unwrap();
    }
    let (_, bytes) = recorder.finish(&Cost::default(), 9_000, &mut files, || 0).unwrap();
    let recording = open(&bytes, &mut NoFiles).unwrap();
    assert!(recording.is_complete);
    let profile = recording.profile;
    let name = |stack: u32| {
        let frames = &profile.stacks[stack as usize].frames;
        profile.frames[*frames.last().unwrap() as usize].function.clone()
    };
    (profile.samples.iter().map(|sample| name(sample.stack)).collect(), profile)
}

#[test]
fn a_jitdump_names_what_was_there_at_the_time() {
    let functions = [(500, "early"), (3_000, "first"), (5_000, "second")];
    let events = vec![
        map(CODE, 0x1000, "//anon"),
        map(CODE + 0x1000, 0x1000, ""),
        map(0x7000, 0x1000, "/app/jit-7.dump"),
        sample(2_000, CODE + 1),
        sample(3_000, CODE + 1),
        sample(4_999, CODE + 1),
        sample(5_000, CODE + 1),
        sample(6_000, CODE + 0x1800),
    ];
    let files = Files { dump: dump(&functions), map: Some("40001800 10 of_the_map\n") };
    let (names, profile) = record(events, files);
    assert_eq!(names, ["early", "first", "first", "second", "of_the_map"]);
    assert!(profile.warnings.is_empty(), "{:?}", profile.warnings);
    assert!(profile.frames.iter().all(|frame| frame.image == "[jit 7]"), "{:?}", profile.frames);
}

#[test]
fn what_a_program_wrote_is_not_used_for_the_one_after_it() {
    let events = vec![
        map(CODE, 0x1000, "//anon"),
        sample(2_000, CODE),
        Event::SpaceEnd(SpaceId(0)),
        Event::Space { space: SpaceId(0), guest: GuestId(0), process: None, copy_of: None },
        sample(2_500, CODE),
        map(CODE, 0x1000, "//anon"),
        sample(3_000, CODE),
    ];
    let (names, _) = record(events, Files { map: Some("40000000 10 of_the_second\n"), ..Default::default() });
    assert_eq!(names, ["[generated code]", "0x40000000", "of_the_second"]);
}

/// An invalid file causes one warning, and gives no names that it does not contain.
#[test]
fn a_damaged_file_gives_one_warning() {
    let events = || vec![map(CODE, 0x1000, "[anon:v8]"), sample(2_000, CODE)];
    let cut = || vec![map(0x7000, 0x1000, "/app/jit-7.dump")].into_iter().chain(events()).collect();
    let whole = dump(&[(500, "function")]);
    for (events, files, name) in [
        (events(), Files { map: Some("\u{0}\u{1}\n\n40000000 10 function\n"), ..Default::default() }, "function"),
        (events(), Files { map: Some("40000000 10 func"), ..Default::default() }, "[generated code]"),
        (cut(), Files { dump: whole[..whole.len() - 3].to_vec(), map: None }, "[generated code]"),
        (cut(), Files::default(), "[generated code]"),
        (events(), Files::default(), "[generated code]"),
    ] {
        let (names, profile) = record(events, files);
        assert_eq!((names[0].as_str(), profile.warnings.len()), (name, 1), "{:?}", profile.warnings);
    }
}
