//! A BPF program that copies, at each sample of a thread outside of the kernel, what is below its stack pointer: functions that
//! call no other may keep data in the 128 bytes there (System V ABI for AMD64, 3.2.2), among them the caller's stack pointer, and the kernel's copy of a
//! stack begins at the stack pointer.
//!
//! It runs where the sample is taken, so what it copies is of that moment. It takes the rights of root, or CAP_BPF and CAP_PERFMON: without them such
//! functions have no callers.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::{
    END, MAP_CREATE, MAP_UPDATE, ProgramKind, add, bpf, copy, descriptor, instruction, load, load_program, pair,
    run_function, set,
};
use crate::sys::arch;
use crate::sys::perf::PerfEvent;

/// Bytes below the stack pointer.
pub(crate) const RED_ZONE: usize = 128;
/// Buffer of each CPU, in bytes.
const RING_BYTES: usize = 256 << 10;

const MAP_PERF_EVENT_ARRAY: u32 = 4;

/// The program, and the events into whose buffers it writes: one for each CPU.
#[derive(Debug)]
pub(crate) struct RedZone {
    program: OwnedFd,
    _map: OwnedFd,
    events: Vec<PerfEvent>,
}

/// The program: `regs` of its context are the registers of the code that the sample has interrupted.
fn program(map: i32, [code_segment, stack_pointer]: [i16; 2]) -> Vec<u64> {
    const PROBE_READ_USER: i32 = 112;
    const PERF_EVENT_OUTPUT: i32 = 25;
    const BYTES: i32 = RED_ZONE as i32;
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
        run_function(PROBE_READ_USER),
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
        run_function(PERF_EVENT_OUTPUT),
        // 0 would suppress the sample.
        set(0, 1),
        END,
    ]
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
        let program = load_program(ProgramKind::PerfEvent, &program(map.as_raw_fd(), offsets))?;
        Ok(RedZone { program, _map: map, events })
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
