//! Samples of several segments, of code that is not of 64 bits, and of cores of which only the state is known: as they
//! are joined, written and read.

use crate::common::{process, segment, vm};
use glass_profiler_core::arch::Width;
use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::event::{Event, RawSample, Segment};
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::guest::{GuestId, GuestKind, Mode, SpaceId};
use glass_profiler_core::image::Image;
use glass_profiler_core::images::{Images, JoinedStack};
use glass_profiler_core::map::SymbolMap;
use glass_profiler_core::model::{Cost, Frozen, Origin, Profile, StackEnd, State};
use glass_profiler_core::program::{NamesFrom, Parts, Program};
use glass_profiler_core::recorder::Recorder;
use glass_profiler_core::recording::{Clocks, read};
use std::sync::Arc;

/// A kernel of which a map names two functions of 16 bytes, without any unwind tables.
fn kernel() -> Event {
    let map = Arc::new(SymbolMap::parse(b"0000000000001000 T work\n0000000000001010 T start\n", &[]).unwrap());
    let image = Arc::new(Image::of_map(&map, 0x1000..0x1020, None));
    let names = vec![NamesFrom::Map(map)];
    let program = Program::new(Parts { name: "System.map".to_owned(), image, names, is_whole: true, is_kernel: true });
    Event::Place { space: SpaceId(0), range: 0x1000..0x1020, bias: 0, program }
}

fn at(mode: Mode, width: Width, rip: u64, rbp: u64) -> Segment {
    let registers = Registers::new(rip, 0x7000, rbp).into();
    // A frame that returns into `start`.
    let words: [u64; 4] = [0, 0, 0, 0x1018];
    let stack = vec![(0x7000, words.iter().flat_map(|word| word.to_le_bytes()).collect())];
    Segment { mode, width, registers, stack, ..Segment::default() }
}

fn join(events: impl IntoIterator<Item = Event>, segments: Vec<Segment>) -> JoinedStack {
    let mut images = Images::default();
    events.into_iter().for_each(|event| images.learn(&event, &mut NoFiles));
    images.unwind(&RawSample { segments, ..RawSample::default() })
}

fn addresses(stack: &JoinedStack) -> Vec<u64> {
    stack.calls.iter().map(|call| call.address).collect()
}

/// Code of 32 bits was unwound as if it were of 64, by whatever lay in RBP, and counted as whole (2026-11-22).
#[test]
fn code_that_is_not_of_64_bits_is_never_unwound() {
    let events = || vm().into_iter().chain([kernel()]);
    let whole = join(events(), vec![at(Mode::Kernel, Width::Bits64, 0x1008, 0x7010)]);
    assert_eq!((addresses(&whole), whole.end), (vec![0x1008, 0x1017], StackEnd::Complete));
    for width in [Width::Bits32, Width::Bits16] {
        for rbp in [0, 0x7010] {
            let stack = join(events(), vec![at(Mode::Kernel, width, 0x1008, rbp)]);
            assert_eq!((addresses(&stack), stack.end), (vec![0x1008], StackEnd::NotLongMode), "{width:?}");
            assert_eq!(stack.calls[0].image, whole.calls[0].image, "the map names it all the same");
        }
        // Where nothing is known it is named as such.
        let stack = join(events(), vec![at(Mode::Kernel, width, 0xf_0000, 0)]);
        assert!(stack.calls[0].image.is_some() && stack.end == StackEnd::NotLongMode);
    }
    // A map without tables, and code without frame pointers.
    let stack = join(events(), vec![at(Mode::Kernel, Width::Bits64, 0x1008, 0)]);
    assert_eq!((addresses(&stack), stack.end), (vec![0x1008], StackEnd::NoUnwindInfo));
}

/// A process in a system call: its kernel has unwound itself.
#[test]
fn a_chain_that_the_source_unwound_is_taken_as_it_is() {
    let events = || process().into_iter().chain([kernel()]);
    let inner = Segment { chain: vec![0x1008, 0x1018, 0x9000], ..segment(Mode::Kernel, 0) };
    let outer = at(Mode::User, Width::Bits64, 0x40_0000, 0);
    let joined = join(events(), vec![inner, outer]);
    assert_eq!(addresses(&joined), [0x1008, 0x1017, 0x8fff, 0x40_0000]);
    assert!(joined.calls[1].image.is_some() && joined.calls[2].image.is_none(), "{joined:?}");
    assert_eq!(joined.parts.iter().map(|part| part.calls).collect::<Vec<_>>(), [3, 1]);
    assert_eq!(joined.parts[0].end, StackEnd::Complete);
}

#[test]
fn segments_are_joined_and_a_broken_one_does_not_hide_the_next() {
    let events = || vm().into_iter().chain([kernel()]);
    // A service that has a stack of its own: only where it stands is known.
    let outer = || at(Mode::Kernel, Width::Bits64, 0x1004, 0x7010);
    let joined = join(events(), vec![segment(Mode::Kernel, 0x1009), outer()]);
    assert_eq!((addresses(&joined), joined.end), (vec![0x1009, 0x1004, 0x1017], StackEnd::Complete));
    assert_eq!(joined.parts.iter().map(|part| part.calls).collect::<Vec<_>>(), [1, 2]);
    // One whose frame pointer leads nowhere.
    let joined = join(events(), vec![at(Mode::Kernel, Width::Bits64, 0x1009, 0x99), outer()]);
    assert_eq!((addresses(&joined), joined.end), (vec![0x1009, 0x1004, 0x1017], StackEnd::NoUnwindInfo));
    assert_eq!(joined.parts[1].end, StackEnd::Complete);
    // Processes of a guest, and the kernel below a process, have names of their own.
    let user = join(events(), vec![segment(Mode::User, 0x40_0000)]);
    assert_eq!((addresses(&user), user.end), (vec![0x40_0000], StackEnd::Complete));
    let kernel_thread = join(process(), vec![segment(Mode::Kernel, 0)]);
    assert_eq!((addresses(&kernel_thread), kernel_thread.end), (vec![0], StackEnd::Complete));
    assert_ne!(user.calls[0].image, kernel_thread.calls[0].image);
    // A space that was never announced.
    let nowhere = join(vm(), vec![Segment { space: SpaceId(9), ..segment(Mode::Kernel, 0x1009) }]);
    assert_eq!(nowhere.end, StackEnd::BadAddress);
}

fn recorder(interned_max: usize) -> Recorder<Vec<u8>> {
    let clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 0 };
    Recorder::start(Vec::new(), clocks, &Origin::default()).unwrap().with_interned_max(interned_max)
}

fn finish(recorder: Recorder<Vec<u8>>) -> Profile {
    let (_, bytes) = recorder.finish(&Cost::default(), 9_000, &mut NoFiles, || 0).unwrap();
    let profile = read(&bytes, &mut NoFiles).unwrap();
    assert_eq!(profile.warnings, [""; 0]);
    profile
}

#[test]
fn states_modes_widths_and_frozen_time_come_back() {
    let mut recorder = recorder(1000);
    let guest = GuestId(0);
    let track = |track, id| Event::Track { track, guest, id, name: format!("vcpu {id}") };
    vm().into_iter().chain([kernel(), track(5, 0), track(7, 1)]).for_each(|event| {
        recorder.event(event, &mut NoFiles).unwrap();
    });
    recorder.event(Event::Frozen { tracks_ns: vec![(5, 900), (7, 800)] }, &mut NoFiles).unwrap();
    let samples = [
        (5, State::Running, vec![at(Mode::Kernel, Width::Bits32, 0x1008, 0)]),
        (5, State::Paused, vec![at(Mode::User, Width::Bits64, 0x1008, 0x7010)]),
        (5, State::Running, vec![at(Mode::Firmware, Width::Bits16, 0xf_fff0, 0)]),
        (7, State::NeverStarted, vec![]),
        (5, State::Running, vec![segment(Mode::Kernel, 0x1009), at(Mode::Kernel, Width::Bits64, 0x1004, 0x7010)]),
    ];
    for (time_ns, (track, state, segments)) in (2_000..).zip(samples) {
        let sample = RawSample { time_ns, track, state, segments, frozen_ns: 100, ..RawSample::default() };
        recorder.event(Event::Sample(sample), &mut NoFiles).unwrap();
    }
    let profile = finish(recorder);
    assert_eq!(profile.guests.iter().map(|guest| guest.kind).collect::<Vec<_>>(), [GuestKind::Vm { vmm: 7 }]);
    let seen: Vec<_> =
        profile.samples.iter().map(|sample| (sample.track, sample.state, sample.mode, sample.width)).collect();
    assert_eq!(
        seen,
        [
            (0, State::Running, Mode::Kernel, Width::Bits32),
            (0, State::Paused, Mode::User, Width::Bits64),
            (0, State::Running, Mode::Firmware, Width::Bits16),
            (1, State::NeverStarted, Mode::User, Width::Bits64),
            (0, State::Running, Mode::Kernel, Width::Bits64),
        ]
    );
    let stack = |index: usize| &profile.stacks[profile.samples[index].stack as usize];
    let names = |index: usize| -> Vec<&str> {
        stack(index).frames.iter().map(|frame| profile.frames[*frame as usize].function.as_str()).collect()
    };
    assert_eq!((names(0), stack(0).end), (vec!["work"], StackEnd::NotLongMode));
    assert_eq!(names(2), ["[16-bit code]"]);
    assert_eq!(names(3), [""; 0]);
    assert_eq!(names(4), ["start", "work", "work"]);
    assert_eq!(profile.tracks[0].frozen, Frozen { count: 5, sum_ns: 1_300 });
    assert_eq!(profile.tracks[1].frozen, Frozen { count: 2, sum_ns: 900 });
    assert_eq!((profile.cost.pause.count, profile.cost.pause.sum_ns), (7, 2_200));
}

/// After four million distinct stacks all samples were dropped (2026-11-22).
#[test]
fn a_recording_of_many_stacks_forgets_them_and_keeps_the_samples() {
    let mut recorder = recorder(4);
    process().into_iter().for_each(|event| recorder.event(event, &mut NoFiles).unwrap());
    for index in 0..100u64 {
        let segments = vec![at(Mode::User, Width::Bits64, 0x10_0000 + index % 10, 0)];
        let sample = RawSample { time_ns: 2_000 + index, segments, ..RawSample::default() };
        recorder.event(Event::Sample(sample), &mut NoFiles).unwrap();
    }
    assert_eq!(recorder.progress().samples_dropped, 0);
    let profile = finish(recorder);
    assert_eq!(profile.samples.len(), 100);
    for (index, sample) in (0..100).zip(&profile.samples) {
        let frame = profile.stacks[sample.stack as usize].frames[0] as usize;
        assert_eq!(profile.frames[frame].function, format!("{:#x}", 0x10_0000 + index % 10));
    }
}

/// Of processes that have ended nothing is kept: `make -j8` starts thousands.
#[test]
fn ended_processes_and_threads_are_forgotten() {
    let mut recorder = recorder(1000);
    process().into_iter().for_each(|event| recorder.event(event, &mut NoFiles).unwrap());
    for number in 1..2_000 {
        let (guest, space) = (GuestId(0), SpaceId(number));
        let events = [
            Event::Space { space, guest, process: None, copy_of: Some(SpaceId(0)) },
            Event::Track { track: number, guest, id: 7, name: "cc1".to_owned() },
            Event::Sample(RawSample { track: number, segments: vec![segment(Mode::User, 1)], ..RawSample::default() }),
            Event::TrackEnd(number),
            Event::SpaceEnd(space),
        ];
        events.into_iter().for_each(|event| recorder.event(event, &mut NoFiles).unwrap());
    }
    assert_eq!(recorder.living(), (1, 1));
    let profile = finish(recorder);
    assert_eq!((profile.tracks.len(), profile.samples.len()), (2_000, 1_999));
}
