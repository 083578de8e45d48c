//! A recording of a VM with its VMM and a helper beside it, whose counts can be checked by hand. The tests of reports and exports use it too.
//!
//! The guest's `redis` serves requests; its kernel's `kick` causes exits, on which KVM, or QEMU and the host's kernel, work. `memcpy` is in
//! the C library of the guest and in that of the host.

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::guest::{Guest, GuestId, GuestKind, Mode, Process, ProcessId, ProgramSince, SpaceId};
use glass_profiler_core::images::Part;
use glass_profiler_core::model::{Cost, Origin, StackEnd, State};
use glass_profiler_core::recording::{Clocks, ImageId, Recording, SampleRecord, TrackRecord, Writer, open};
use glass_profiler_core::symbols::Location;

const VM: GuestId = GuestId(4);
const QEMU: GuestId = GuestId(9);
const TAP: GuestId = GuestId(10);

/// Spaces: of the guest's kernel, of its process, of QEMU and of its helper.
const KERNEL: SpaceId = SpaceId(0);
const REDIS: SpaceId = SpaceId(1);
const VMM: SpaceId = SpaceId(2);
const HELPER: SpaceId = SpaceId(3);

/// Files, and their functions; one with `+` is inlined into the function before it, at the same address.
const IMAGES: [(&str, &[&str]); 6] = [
    ("/usr/bin/redis", &["main", "serve", "+parse"]),
    ("/lib/guest/libc.so.6", &["memcpy"]),
    ("/boot/vmlinux", &["entry", "do_write", "kick"]),
    ("/usr/bin/qemu", &["thread_start", "handle_exit", "write_disk", "main_loop", "serve_card"]),
    ("/lib/host/libc.so.6", &["memcpy"]),
    ("/[kernel]", &["sys_ioctl", "kvm_run", "vfs_write", "poll"]),
];

fn part(space: SpaceId, mode: Mode, calls: u32) -> Part {
    Part { space, mode, calls, ..Part::default() }
}

/// One kind of sample.
struct Kind {
    samples: u64,
    track: u32,
    state: State,
    /// Functions by image and name, outermost first.
    calls: &'static [(usize, &'static str)],
    /// Innermost first.
    parts: Vec<Part>,
    /// How far apart the host's part was sampled: so many ns times 1 to 4.
    apart_ns: u64,
}

fn kinds() -> Vec<Kind> {
    let kind = |samples, track, state, calls, parts| Kind { samples, track, state, calls, parts, apart_ns: 0 };
    let (running, in_vmm) = (State::Running, State::InVmm);
    let redis = || part(REDIS, Mode::User, 2);
    let guest = || vec![part(KERNEL, Mode::Kernel, 3), redis()];
    let with = |host: &[Part]| [host, &guest()[..]].concat();
    let kernel = |calls| part(VMM, Mode::Kernel, calls);
    let broken = Part { end: StackEnd::NoUnwindInfo, ..part(VMM, Mode::User, 1) };
    vec![
        kind(40, 0, running, &[(0, "main"), (0, "serve")], vec![redis()]),
        Kind {
            apart_ns: 100_000,
            ..kind(
                20,
                0,
                running,
                &[
                    (0, "main"),
                    (0, "serve"),
                    (2, "entry"),
                    (2, "do_write"),
                    (2, "kick"),
                    (5, "sys_ioctl"),
                    (5, "kvm_run"),
                ],
                with(&[kernel(2)]),
            )
        },
        kind(
            30,
            0,
            in_vmm,
            &[
                (0, "main"),
                (0, "serve"),
                (2, "entry"),
                (2, "do_write"),
                (2, "kick"),
                (3, "thread_start"),
                (3, "handle_exit"),
                (3, "write_disk"),
                (5, "vfs_write"),
            ],
            with(&[kernel(1), part(VMM, Mode::User, 3)]),
        ),
        kind(
            10,
            0,
            in_vmm,
            &[(0, "main"), (0, "serve"), (2, "entry"), (2, "do_write"), (2, "kick"), (4, "memcpy")],
            with(&[broken]),
        ),
        kind(15, 1, running, &[(0, "main"), (1, "memcpy")], vec![redis()]),
        kind(10, 0, State::Idle, &[], vec![]),
        kind(5, 0, State::Stolen, &[], vec![]),
        kind(5, 1, State::Idle, &[(5, "sys_ioctl"), (5, "poll")], vec![kernel(2)]),
        kind(
            25,
            2,
            running,
            &[(3, "thread_start"), (3, "main_loop"), (5, "poll")],
            vec![kernel(1), part(VMM, Mode::User, 2)],
        ),
        kind(100, 2, State::Idle, &[], vec![]),
        kind(12, 3, running, &[(3, "thread_start"), (4, "memcpy")], vec![part(VMM, Mode::User, 2)]),
        kind(
            18,
            4,
            running,
            &[(3, "thread_start"), (3, "serve_card"), (5, "vfs_write")],
            vec![part(HELPER, Mode::Kernel, 1), part(HELPER, Mode::User, 2)],
        ),
    ]
}

/// The address of a function, for which its image was linked.
fn address(image: usize, function: &str) -> u64 {
    let position = IMAGES[image].1.iter().position(|name| *name == function).unwrap() as u64;
    0x10_0000 * (image as u64 + 1) + 0x100 * position
}

/// The recording as a file. Without the host only its guest's samples and segments are there, with the same times.
pub fn recording(with_host: bool) -> Vec<u8> {
    let clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 1_700_000_000_000_000_000 };
    let origin = Origin { guest: "linux (VM, KVM)".to_owned(), rate_hz: 1_000, ..Origin::default() };
    let mut writer = Writer::start(Vec::new(), clocks, &origin).unwrap();
    let guests = [
        (VM, GuestKind::Vm { vmm: 70 }, "linux"),
        (QEMU, GuestKind::Process { pid: 70 }, "qemu"),
        (TAP, GuestKind::Process { pid: 71 }, "glass"),
    ];
    let tracks = [(VM, 0, "vcpu 0"), (VM, 1, "vcpu 1"), (QEMU, 70, "qemu"), (QEMU, 72, "worker"), (TAP, 71, "glass")];
    let is_there = |guest: GuestId| with_host || guest == VM;
    for (id, kind, name) in guests.into_iter().filter(|guest| is_there(guest.0)) {
        writer.guest(&Guest { id, kind, name: name.to_owned(), architecture: Architecture::X86_64 }).unwrap();
    }
    for (number, (guest, id, name)) in (0..).zip(tracks).filter(|(_, track)| is_there(track.0)) {
        writer.track(&TrackRecord { number, guest, id, name: name.to_owned() }).unwrap();
    }
    writer.space(KERNEL, VM).unwrap();
    for (space, guest, pid, name) in [(REDIS, VM, 129, "redis"), (VMM, QEMU, 70, "qemu"), (HELPER, TAP, 71, "glass")]
        .into_iter()
        .filter(|of| is_there(of.1))
    {
        let id = ProcessId(space.0);
        let programs = vec![ProgramSince { time_ns: 0, name: name.to_owned() }];
        writer.process(&Process { id, guest, pid, programs, ..Process::default() }).unwrap();
        writer.space_of(space, guest, id).unwrap();
    }
    let image_of = |image: usize| ImageId { path: IMAGES[image].0.to_owned(), build_id: vec![image as u8 + 1; 20] };
    let images: Vec<u64> = (0..IMAGES.len())
        .map(|image| {
            let start = 0x10_0000 * (image as u64 + 1);
            writer.image(&image_of(image), start, start + 0x1000).unwrap()
        })
        .collect();
    let (mut time_ns, mut written) = (0, 0);
    for Kind { samples, track, state, calls, mut parts, apart_ns } in kinds() {
        let mut calls = calls.to_vec();
        if !with_host {
            parts.retain(|part| part.space == KERNEL || part.space == REDIS);
            calls.truncate(parts.iter().map(|part| part.calls as usize).sum());
        }
        let frames: Vec<u64> = calls
            .iter()
            .map(|(image, function)| writer.frame(Some(images[*image]), address(*image, function)).unwrap())
            .collect();
        let callstack = (!frames.is_empty()).then(|| writer.callstack(&frames).unwrap());
        for number in 0..samples {
            time_ns += 1_000_000;
            if let Some(host) = parts.first_mut().filter(|part| part.space == VMM) {
                host.apart_ns = apart_ns * (number % 4 + 1);
            }
            let end = parts.iter().map(|part| part.end).find(|end| *end != StackEnd::Complete).unwrap_or_default();
            let sample = SampleRecord {
                time_ns: time_ns + 1_000,
                track,
                state,
                callstack,
                end,
                parts: &parts,
                ..Default::default()
            };
            if with_host || track < 2 {
                writer.sample(&sample).unwrap();
                written += 1;
            }
        }
    }
    for (image, (_, functions)) in IMAGES.iter().enumerate() {
        let location = |function: &str, line: u32| Location {
            function: function.to_owned(),
            file: Some(format!("src/{function}.c")),
            line: Some(line),
            ..Location::default()
        };
        let named = |(index, function): (usize, &&str)| {
            let inlined =
                functions.get(index + 1).and_then(|next| next.strip_prefix('+')).map(|next| location(next, 9));
            let lines = inlined.into_iter().chain([location(function, 7)]).collect();
            (address(image, function), lines)
        };
        let names: Vec<_> =
            functions.iter().enumerate().filter(|(_, name)| !name.starts_with('+')).map(named).collect();
        writer.symbols(&image_of(image), time_ns, &names).unwrap();
    }
    let cost = Cost {
        samples_wanted: written,
        samples_taken: written,
        stacks_broken: if with_host { 10 } else { 0 },
        ..Cost::default()
    };
    writer.cost(&cost, time_ns + 1_000_000, true).unwrap();
    writer.into_inner()
}

/// It is read as it is in a file.
pub fn read(bytes: &[u8]) -> Recording {
    let recording = open(bytes, &mut NoFiles).unwrap();
    assert_eq!(recording.profile.warnings, [""; 0]);
    recording
}
