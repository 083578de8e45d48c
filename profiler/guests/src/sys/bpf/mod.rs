//! BPF programs, as instructions: which need no compiler, no library and no object file.
//!
//! Commands, attributes and numbers of functions are those of `linux/bpf.h`.

mod kernel;
mod red_zone;

pub(crate) use kernel::{FileOffsets, KernelReader, open_files};
pub(crate) use red_zone::{RED_ZONE, RedZone};

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::check;

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP: libc::c_long = 1;
const MAP_UPDATE: libc::c_long = 2;
const PROGRAM_LOAD: libc::c_long = 5;
const PROGRAM_TEST_RUN: libc::c_long = 10;
const LINK_CREATE: libc::c_long = 28;
const ITERATOR_CREATE: libc::c_long = 33;

/// What a program is run for.
#[derive(Debug, Clone, Copy)]
enum ProgramKind {
    /// A sample of perf.
    PerfEvent,
    /// On request.
    RawTracepoint,
    /// Each of the kernel's objects that an iterator has, whose function has this number in BTF.
    Iterator(u32),
}

impl ProgramKind {
    /// The type of the program, the type of what it is attached to, and the function.
    fn numbers(self) -> (u32, u32, u32) {
        match self {
            ProgramKind::PerfEvent => (7, 0, 0),
            ProgramKind::RawTracepoint => (17, 0, 0),
            ProgramKind::Iterator(function) => (26, TRACE_ITERATOR, function),
        }
    }
}

/// The type of what an iterator's program is attached to.
const TRACE_ITERATOR: u32 = 28;

/// An instruction (`struct bpf_insn`).
fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    u64::from(code)
        | u64::from(destination) << 8
        | u64::from(source) << 12
        | u64::from(offset as u16) << 16
        | u64::from(immediate as u32) << 32
}

/// Loads the 64 bits at a register's address plus `offset`.
fn load(to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x79, to, from, offset, 0)
}

fn copy(to: u8, from: u8) -> u64 {
    instruction(0xbf, to, from, 0, 0)
}

fn set(to: u8, value: i32) -> u64 {
    instruction(0xb7, to, 0, 0, value)
}

fn add(to: u8, value: i32) -> u64 {
    instruction(0x07, to, 0, 0, value)
}

fn run_function(function: i32) -> u64 {
    instruction(0x85, 0, 0, 0, function)
}

/// Skips so many instructions if a register has this value.
fn if_equal(register: u8, value: i32, skip: i16) -> u64 {
    instruction(0x15, register, 0, skip, value)
}

/// The end of a program, whose result is in register 0.
const END: u64 = 0x95;

/// The system call with a zeroed `union bpf_attr` that begins with these words. Returns its result, and the first word as the kernel left it.
fn call(command: libc::c_long, words: &[u64]) -> io::Result<(libc::c_long, u64)> {
    let mut attributes = [0u64; 16];
    attributes[..words.len()].copy_from_slice(words);
    // SAFETY: the kernel reads and writes as many bytes as it is given, and the memory behind the pointers in them, which the callers keep.
    let result =
        check(unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(&attributes)) })?;
    Ok((result, attributes[0]))
}

fn bpf(command: libc::c_long, words: &[u64]) -> io::Result<libc::c_long> {
    call(command, words).map(|(result, _)| result)
}

fn load_program(kind: ProgramKind, instructions: &[u64]) -> io::Result<OwnedFd> {
    let license = c"Dual MIT/GPL";
    let (kind, attached_to, function) = kind.numbers();
    let mut words = [0; 15];
    words[0] = pair(kind, instructions.len() as u32);
    words[1] = instructions.as_ptr() as u64;
    words[2] = license.as_ptr() as u64;
    words[8] = pair(0, attached_to);
    words[13] = pair(0, function);
    bpf(PROGRAM_LOAD, &words).map(descriptor)
}

fn descriptor(result: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just created this descriptor, and no other code has it.
    unsafe { OwnedFd::from_raw_fd(result as i32) }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
