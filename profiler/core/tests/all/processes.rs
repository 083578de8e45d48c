//! Processes and threads of guests, the segments of samples that name them, and losses by kind: what is written comes back.

use std::io::Read;

use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::arch::{Architecture, Width};
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::event::{Event, Mapping, Placement, RawSample, Segment};
use glass_profiler_core::files::{FileSource, NoFiles};
use glass_profiler_core::guest::{
    Guest, GuestId, GuestKind, Mode, Process, ProcessId, ProcessKey, ProgramSince, SpaceId, Thread, ThreadId,
};
use glass_profiler_core::images::Part;
use glass_profiler_core::model::{Cost, Losses, Origin, Profile, SegmentOf, StackEnd, State};
use glass_profiler_core::recorder::Recorder;
use glass_profiler_core::recording::{Clocks, SampleRecord, TrackRecord, Writer, read};
use proptest::prelude::*;

const CLOCKS: Clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 0 };
const VM: GuestId = GuestId(4);
const VMM: GuestId = GuestId(9);

/// A recording of a VM with its VMM beside it.
fn start() -> Writer<Vec<u8>> {
    let mut writer = Writer::start(Vec::new(), CLOCKS, &Origin::default()).unwrap();
    let guests = [(VM, GuestKind::Vm { vmm: 70 }, "linux"), (VMM, GuestKind::Process { pid: 70 }, "qemu")];
    for (id, kind, name) in guests {
        writer.guest(&Guest { id, kind, name: name.to_owned(), architecture: Architecture::X86_64 }).unwrap();
    }
    writer.track(&TrackRecord { number: 0, guest: VM, id: 0, name: "vcpu 0".to_owned() }).unwrap();
    writer
}

fn finish(mut writer: Writer<Vec<u8>>, cost: &Cost) -> Profile {
    writer.cost(cost, 9_000, true).unwrap();
    let profile = read(&writer.into_inner(), &mut NoFiles).unwrap();
    assert_eq!(profile.warnings, [""; 0]);
    profile
}

fn process(id: u32, guest: GuestId, pid: u32) -> Process {
    Process { id: ProcessId(id), guest, pid, ..Process::default() }
}

fn program(time_ns: u64, name: &str) -> ProgramSince {
    ProgramSince { time_ns, name: name.to_owned() }
}

fn part(space: u32, mode: Mode, calls: u32, apart_ns: u64) -> Part {
    Part { space: SpaceId(space), mode, calls, apart_ns, ..Part::default() }
}

#[test]
fn a_sample_names_its_thread_and_host_and_guest_are_one_stack() {
    let mut writer = start();
    let shell = Process {
        namespace_pid: Some(2),
        start_ns: Some(77),
        cgroup: "/system.slice/redis".to_owned(),
        programs: vec![program(0, "sh")],
        ..process(30, VM, 129)
    };
    writer.process(&process(1, VM, 0)).unwrap();
    writer.process(&shell).unwrap();
    writer.process(&Process { parent: Some(ProcessId(30)), ..process(31, VM, 130) }).unwrap();
    writer.process(&process(40, VMM, 70)).unwrap();
    let thread = |id, process, tid, name: &str| Thread {
        id: ThreadId(id),
        process: ProcessId(process),
        tid,
        name: name.to_owned(),
        start_ns: Some(78),
    };
    writer.thread(&thread(5, 30, 131, "sh")).unwrap();
    writer.thread(&thread(6, 1, 0, "swapper/0")).unwrap();
    for (space, guest, owner) in [(10, VM, 30), (11, VM, 31), (12, VMM, 40)] {
        writer.space_of(SpaceId(space), guest, ProcessId(owner)).unwrap();
    }
    writer.space(SpaceId(2), VM).unwrap();
    let frames: Vec<u64> = (1..=6).map(|address| writer.frame(None, address).unwrap()).collect();
    let stack = writer.callstack(&frames).unwrap();
    // exec, and a new name of the thread.
    writer.process(&Process { programs: vec![program(3_000, "redis")], ..shell.clone() }).unwrap();
    writer.thread(&thread(5, 30, 131, "redis")).unwrap();
    let merged = [
        part(12, Mode::Kernel, 1, 40),
        part(12, Mode::User, 2, 0),
        part(2, Mode::Kernel, 1, 0),
        part(10, Mode::User, 2, 0),
    ];
    let alone = [part(11, Mode::User, 6, 0)];
    let sample = SampleRecord { callstack: Some(stack), ..SampleRecord::default() };
    writer.sample(&SampleRecord { time_ns: 2_000, thread: Some(ThreadId(5)), parts: &merged, ..sample }).unwrap();
    writer.sample(&SampleRecord { time_ns: 3_000, parts: &alone, ..sample }).unwrap();
    let idle = SampleRecord { time_ns: 4_000, thread: Some(ThreadId(6)), state: State::Idle, ..Default::default() };
    writer.sample(&idle).unwrap();
    writer.sample(&SampleRecord { time_ns: 5_000, parts: &[part(2, Mode::Kernel, 6, 0)], ..sample }).unwrap();
    let profile = finish(writer, &Cost::default());

    let redis = Process { programs: vec![program(0, "sh"), program(3_000, "redis")], ..shell };
    assert_eq!(profile.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [0, 129, 130, 70]);
    assert_eq!(profile.processes[1], redis);
    assert_eq!(profile.processes[2].parent, Some(ProcessId(30)));
    assert_eq!(profile.threads, [thread(5, 30, 131, "redis"), thread(6, 1, 0, "swapper/0")]);
    let threads: Vec<_> = profile.samples.iter().map(|sample| sample.thread).collect();
    assert_eq!(threads, [Some(0), None, Some(1), None]);
    let segments = |sample: usize| profile.samples[sample].segments.map(|list| &*profile.segments[list as usize]);
    let of = |guest, process, mode, addresses, apart_ns| SegmentOf {
        guest,
        process,
        mode,
        width: Width::Bits64,
        addresses,
        end: StackEnd::Complete,
        apart_ns,
    };
    let host_and_guest = [
        of(1, Some(3), Mode::Kernel, 1, 40),
        of(1, Some(3), Mode::User, 2, 0),
        of(0, None, Mode::Kernel, 1, 0),
        of(0, Some(1), Mode::User, 2, 0),
    ];
    assert_eq!(segments(0), Some(&host_and_guest[..]));
    assert_eq!(segments(1), Some(&[of(0, Some(2), Mode::User, 6, 0)][..]));
    assert_eq!((segments(2), segments(3)), (None, None), "the fields of Perfetto describe these");
}

/// The perf map of a process of this machine, and another of one of a guest with the same ID.
struct PerfMaps;

impl FileSource for PerfMaps {
    fn load(&mut self, _path: &str) -> Option<Box<dyn ReadAt>> {
        None
    }

    fn open_perf_map(&mut self, process: ProcessKey) -> Result<Option<Box<dyn Read>>, String> {
        assert_eq!(process.pid, 70);
        let map = match process.machine {
            None => "1000 1000 of_this_machine\n",
            Some(VM) => "1000 1000 of_the_guest\n",
            Some(other) => panic!("{other:?} is no machine"),
        };
        Ok(Some(Box::new(map.as_bytes())))
    }
}

#[test]
fn equal_process_ids_of_two_machines_are_two_processes() {
    let (mut recorder, mut files) = (Recorder::start(Vec::new(), CLOCKS, &Origin::default()).unwrap(), PerfMaps);
    let guest = |id, kind| Event::Guest(Guest { id, kind, name: String::new(), architecture: Architecture::X86_64 });
    let mapping = Mapping {
        start: 0x1000,
        end: 0x2000,
        path: "//anon".to_owned(),
        placement: Placement::FileOffset(0),
        file: None,
    };
    let in_space = |space: u32| {
        let registers = Registers { rip: 0x1800, ..Default::default() }.into();
        Segment { space: SpaceId(space), registers, ..Default::default() }
    };
    let sample =
        |time_ns, segments, thread| Event::Sample(RawSample { time_ns, segments, thread, ..Default::default() });
    let thread = Thread { id: ThreadId(8), process: ProcessId(3), tid: 71, name: "redis".to_owned(), start_ns: None };
    let events = [
        guest(VM, GuestKind::Vm { vmm: 70 }),
        guest(VMM, GuestKind::Process { pid: 70 }),
        Event::Process(process(3, VM, 70)),
        Event::Thread(thread.clone()),
        Event::Space { space: SpaceId(0), guest: VM, process: Some(ProcessId(3)), copy_of: None },
        Event::Space { space: SpaceId(1), guest: VMM, process: None, copy_of: None },
        Event::Map { space: SpaceId(0), mapping: mapping.clone() },
        Event::Map { space: SpaceId(1), mapping },
        Event::Track { track: 0, guest: VM, id: 0, name: "vcpu 0".to_owned() },
        sample(2_000, vec![in_space(0)], Some(ThreadId(8))),
        sample(3_000, vec![in_space(1), Segment { apart_ns: 20, ..in_space(0) }], None),
    ];
    events.into_iter().for_each(|event| recorder.event(event, &mut files).unwrap());
    let (_, bytes) = recorder.finish(&Cost::default(), 9_000, &mut files, || 0).unwrap();
    let profile = read(&bytes, &mut NoFiles).unwrap();
    let functions = |sample: usize| -> Vec<&str> {
        let frames = profile.stacks[profile.samples[sample].stack as usize].frames.iter();
        frames.map(|frame| profile.frames[*frame as usize].function.as_str()).collect()
    };
    assert_eq!(functions(0), ["of_the_guest"]);
    assert_eq!(functions(1), ["of_the_guest", "of_this_machine"]);
    assert_eq!(profile.threads, [thread]);
    assert_eq!(profile.samples[0].thread, Some(0));
    let segments = &profile.segments[profile.samples[1].segments.unwrap() as usize];
    let of = segments.iter().map(|segment| (segment.guest, segment.process, segment.apart_ns)).collect::<Vec<_>>();
    assert_eq!(of, [(1, None, 0), (0, Some(0), 20)]);
}

/// A thread or a space of a process that the file does not have is left out, and reported.
#[test]
fn what_belongs_to_an_unknown_process_is_left_out() {
    let mut writer = start();
    writer.thread(&Thread { process: ProcessId(3), ..Thread::default() }).unwrap();
    writer.space_of(SpaceId(1), VM, ProcessId(3)).unwrap();
    writer.process(&process(1, GuestId(77), 1)).unwrap();
    writer.cost(&Cost::default(), 9_000, true).unwrap();
    let profile = read(&writer.into_inner(), &mut NoFiles).unwrap();
    assert_eq!(profile.warnings, ["3 packets of the recording are damaged and were left out"]);
    assert_eq!((profile.processes, profile.threads), (vec![], vec![]));
}

proptest! {
    #[test]
    fn any_losses_and_processes_come_back(
        counts in any::<[u64; 8]>(),
        processes in proptest::collection::vec((any::<u32>(), any::<Option<u32>>(), any::<Option<u64>>(), ".{0,20}"), 0..20),
    ) {
        let [ring_full, throttled, overdue, not_stopped, queue_full, maps, forks, unknown] = counts;
        let losses = Losses { ring_full, throttled, overdue, not_stopped, queue_full, maps, forks, unknown };
        let processes: Vec<Process> = (0..)
            .zip(processes)
            .map(|(id, (pid, namespace_pid, start_ns, cgroup))| Process {
                namespace_pid, start_ns, cgroup, ..process(id, VM, pid)
            })
            .collect();
        let mut writer = start();
        processes.iter().for_each(|process| writer.process(process).unwrap());
        let profile = finish(
            writer,
            &Cost { losses, samples_lost: losses.samples(), samples_wanted: losses.samples(), ..Cost::default() },
        );
        prop_assert_eq!(profile.cost.losses, losses);
        prop_assert_eq!(profile.processes, processes);
    }
}
