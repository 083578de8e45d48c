//! A BPF program that copies, at each sample of a thread outside of the kernel, what is below its stack pointer: functions that
//! call no other may keep data in the 128 bytes there (System V ABI for AMD64, 3.2.2), among them the caller's stack pointer, and the kernel's copy of a
//! stack begins at the stack pointer.
//!
//! It runs where the sample is taken, so what it copies is of that moment. It takes the rights of root, or CAP_BPF and CAP_PERFMON: without them such
//! functions have no callers.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::arch;
use super::check;
use super::perf::PerfEvent;

/// Bytes below the stack pointer.
pub(crate) const RED_ZONE: usize = 128;
/// Buffer of each CPU, in bytes.
const RING_BYTES: usize = 256 << 10;

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const PROGRAM_LOAD: libc::c_long = 5;
const MAP_PERF_EVENT_ARRAY: u32 = 4;
const PROGRAM_PERF_EVENT: u32 = 7;

/// The program, and the events into whose buffers it writes: one for each CPU.
#[derive(Debug)]
pub(crate) struct RedZone {
    program: OwnedFd,
    _map: OwnedFd,
    events: Vec<PerfEvent>,
}

/// An instruction (`struct bpf_insn`).
fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    u64::from(code)
        | u64::from(destination) << 8
        | u64::from(source) << 12
        | u64::from(offset as u16) << 16
        | u64::from(immediate as u32) << 32
}

/// The program: `regs` of its context are the registers of the code that the sample has interrupted.
fn program(map: i32, [code_segment, stack_pointer]: [i16; 2]) -> Vec<u64> {
    const PROBE_READ_USER: i32 = 112;
    const PERF_EVENT_OUTPUT: i32 = 25;
    const BYTES: i32 = RED_ZONE as i32;
    let load = |to, from, offset| instruction(0x79, to, from, offset, 0);
    let copy = |to, from| instruction(0xbf, to, from, 0, 0);
    let set = |to, value| instruction(0xb7, to, 0, 0, value);
    let add = |to, value| instruction(0x07, to, 0, 0, value);
    let call = |function| instruction(0x85, 0, 0, 0, function);
    let unless_equal = |register, value, skip| instruction(0x55, register, 0, skip, value);
    vec![
        copy(6, 1),
        load(7, 6, code_segment),
        instruction(0x57, 7, 0, 0, 3),
        unless_equal(7, 3, 15),
        load(3, 6, stack_pointer),
        add(3, -BYTES),
        copy(1, 10),
        add(1, -BYTES),
        set(2, BYTES),
        call(PROBE_READ_USER),
        unless_equal(0, 0, 8),
        copy(1, 6),
        // The map, in two words.
        instruction(0x18, 2, 1, 0, map),
        0,
        // This CPU's event: 0xffff_ffff in 64 bits.
        instruction(0xb4, 3, 0, 0, -1),
        copy(4, 10),
        add(4, -BYTES),
        set(5, BYTES),
        call(PERF_EVENT_OUTPUT),
        // 0 would suppress the sample.
        set(0, 1),
        instruction(0x95, 0, 0, 0, 0),
    ]
}

/// The system call with a zeroed `union bpf_attr` that begins with these words.
fn bpf(command: libc::c_long, words: &[u64]) -> io::Result<libc::c_long> {
    let mut attributes = [0u64; 16];
    attributes[..words.len()].copy_from_slice(words);
    // SAFETY: the kernel reads as many bytes as it is given, and the memory behind the pointers in them, which the callers keep.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes)) })
}

fn descriptor(result: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just created this descriptor, and no other code has it.
    unsafe { OwnedFd::from_raw_fd(result as i32) }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl RedZone {
    /// Loads the program, with a buffer for each of these CPUs. Fails where that is not permitted.
    pub(crate) fn open(cpus: &[u32]) -> io::Result<RedZone> {
        let offsets = arch::RED_ZONE_REGISTERS.ok_or(io::ErrorKind::Unsupported)?;
        let entries = cpus.iter().max().map_or(0, |last| last + 1);
        let map = descriptor(bpf(MAP_CREATE, &[pair(MAP_PERF_EVENT_ARRAY, 4), pair(4, entries)])?);
        let mut events = Vec::new();
        for cpu in cpus {
            let mut event = PerfEvent::open_output(*cpu)?;
            event.make_ring(RING_BYTES)?;
            event.enable()?;
            let file = event.as_raw_fd();
            let (key, value) = (&raw const *cpu as u64, &raw const file as u64);
            bpf(MAP_UPDATE, &[map.as_raw_fd() as u64, key, value])?;
            events.push(event);
        }
        let instructions = program(map.as_raw_fd(), offsets);
        let license = c"Dual MIT/GPL";
        let head = pair(PROGRAM_PERF_EVENT, instructions.len() as u32);
        let program = bpf(PROGRAM_LOAD, &[head, instructions.as_ptr() as u64, license.as_ptr() as u64])?;
        Ok(RedZone { program: descriptor(program), _map: map, events })
    }

    /// Runs the program at each sample of an event, and of those that inherit from it.
    pub(crate) fn copies_for(&self, event: &PerfEvent) -> io::Result<()> {
        event.set_program(&self.program)
    }

    /// Takes the records that are in the buffers.
    pub(crate) fn drain(&self, mut record: impl FnMut(&[u8])) {
        self.events.iter().for_each(|event| event.drain(&mut record));
    }
}
