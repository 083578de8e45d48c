//! A recording of a Linux guest with processes and threads, whose counts can be checked by hand. The tests of reports and exports use it too.
//!
//! 200 samples on two vCPUs. The samples in which code ran: 100 of `redis-server` (70 of its main thread, of which 20 in the kernel, and 30
//! of `io_thd_1`), 40 of `make 9` and 20 of `cc1`, 10 of the idle task, 10 without a thread. 20 are idle.

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::guest::{
    Guest, GuestId, GuestKind, Mode, Process, ProcessId, ProgramSince, SpaceId, Thread, ThreadId,
};
use glass_profiler_core::images::Part;
use glass_profiler_core::model::{Cost, Origin, State};
use glass_profiler_core::recording::{Clocks, ImageId, Recording, SampleRecord, TrackRecord, Writer, open};
use glass_profiler_core::symbols::Location;

const VM: GuestId = GuestId(0);
/// `make` of the guest has the process ID of the VMM.
pub const VMM: u32 = 9;
const KERNEL: SpaceId = SpaceId(0);
const SECOND_NS: u64 = 1_000_000_000;

/// Process ID, the one in its namespace, names by time.
const PROCESSES: [(u32, Option<u32>, &[&str]); 4] = [
    (0, None, &["swapper/0"]),
    (155, Some(1), &["redis-server"]),
    (VMM, None, &["make"]),
    (11, None, &["make", "cc1"]),
];
/// Index of the process, thread ID, name.
const THREADS: [(u32, u32, &str); 5] =
    [(0, 0, "swapper/0"), (1, 155, "redis-server"), (1, 158, "io_thd_1"), (2, VMM, "make"), (3, 11, "cc1")];

/// Samples, vCPU, state, thread, frames of the process and of the kernel, outermost first.
type Kind = (u64, u32, State, Option<u32>, &'static [&'static str], &'static [&'static str]);

const KINDS: [Kind; 9] = [
    (50, 0, State::Running, Some(1), &["main", "serve"], &[]),
    (20, 0, State::Running, Some(1), &["main", "serve"], &["do_syscall_64", "tcp_sendmsg"]),
    (15, 0, State::Running, Some(2), &["start_thread", "serve"], &[]),
    (15, 1, State::Running, Some(2), &["start_thread", "serve"], &[]),
    (40, 1, State::Running, Some(3), &["main"], &[]),
    (20, 1, State::Running, Some(4), &[], &["do_syscall_64", "do_exit"]),
    (10, 1, State::Running, Some(0), &[], &["cpu_idle", "handle_softirqs"]),
    (10, 0, State::Running, None, &[], &["start_kernel"]),
    (20, 1, State::Idle, Some(0), &[], &["cpu_idle"]),
];

const FUNCTIONS: [&str; 9] = [
    "main",
    "serve",
    "start_thread",
    "do_syscall_64",
    "tcp_sendmsg",
    "do_exit",
    "cpu_idle",
    "handle_softirqs",
    "start_kernel",
];

/// The recording as a file.
pub fn recording() -> Vec<u8> {
    let clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 1_700_000_000_000_000_000 };
    let (guest, backend) = ("qemu-system-x86_64 (VM, TCG)".to_owned(), "QEMU's gdbstub".to_owned());
    let origin = Origin { guest, backend, rate_hz: 100, ..Origin::default() };
    let mut writer = Writer::start(Vec::new(), clocks, &origin).unwrap();
    let kind = GuestKind::Vm { vmm: VMM };
    writer.guest(&Guest { id: VM, kind, name: "qemu".to_owned(), architecture: Architecture::X86_64 }).unwrap();
    for id in 0..2 {
        let name = format!("vcpu {id}");
        writer.track(&TrackRecord { number: id, guest: VM, id: id.into(), name }).unwrap();
    }
    writer.space(KERNEL, VM).unwrap();
    for (index, (pid, namespace_pid, names)) in (0..).zip(PROCESSES) {
        let program = |(time_ns, name): (u64, &&str)| ProgramSince { time_ns, name: (*name).to_owned() };
        let programs = (0..).zip(names).map(program).collect();
        let id = ProcessId(index);
        writer.process(&Process { id, guest: VM, pid, namespace_pid, programs, ..Process::default() }).unwrap();
        writer.space_of(SpaceId(index + 1), VM, id).unwrap();
    }
    for (index, (process, tid, name)) in (0..).zip(THREADS) {
        let (id, process, name) = (ThreadId(index), ProcessId(process), name.to_owned());
        writer.thread(&Thread { id, process, tid, name, start_ns: None }).unwrap();
    }
    let images = ["/usr/bin/app", "/boot/vmlinux"].map(|path| ImageId { path: path.to_owned(), build_id: vec![7; 20] });
    let numbers: Vec<u64> =
        images.iter().zip(1..).map(|(image, at)| writer.image(image, at << 20, (at << 20) + 0x1000).unwrap()).collect();
    let address = |function: &str| FUNCTIONS.iter().position(|name| *name == function).unwrap() as u64 * 0x100;
    let mut number = 0;
    let all: u64 = KINDS.iter().map(|kind| kind.0).sum();
    for (samples, track, state, thread, user, kernel) in KINDS {
        let calls = user.iter().map(|name| (0, name)).chain(kernel.iter().map(|name| (1, name)));
        let frames: Vec<u64> =
            calls.map(|(image, name)| writer.frame(Some(numbers[image]), address(name)).unwrap()).collect();
        let callstack = Some(writer.callstack(&frames).unwrap());
        let process = thread.map_or(0, |thread| THREADS[thread as usize].0);
        let part = |space, mode, calls: usize| Part { space, mode, calls: calls as u32, ..Part::default() };
        let parts = [part(KERNEL, Mode::Kernel, kernel.len()), part(SpaceId(process + 1), Mode::User, user.len())];
        let parts: Vec<Part> = parts.into_iter().filter(|part| part.calls > 0).collect();
        for _ in 0..samples {
            let time_ns = 1_000 + number * SECOND_NS / all;
            let thread = thread.map(ThreadId);
            writer
                .sample(&SampleRecord { time_ns, track, state, callstack, thread, parts: &parts, ..Default::default() })
                .unwrap();
            number += 1;
        }
    }
    for (image, names) in images.iter().zip([&FUNCTIONS[..3], &FUNCTIONS[3..]]) {
        let location = |name: &str| Location { function: name.to_owned(), ..Location::default() };
        let names: Vec<_> = names.iter().map(|name| (address(name), vec![location(name)])).collect();
        writer.symbols(image, SECOND_NS, &names).unwrap();
    }
    let cost = Cost { samples_wanted: number, samples_taken: number, ..Cost::default() };
    writer.cost(&cost, SECOND_NS, true).unwrap();
    writer.into_inner()
}

/// It is read as it is in a file.
pub fn read(bytes: &[u8]) -> Recording {
    let recording = open(bytes, &mut NoFiles).unwrap();
    assert_eq!(recording.profile.warnings, [""; 0]);
    recording
}
