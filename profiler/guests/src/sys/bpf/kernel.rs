//! Reads what the kernel keeps about open files, and its memory: a program for each.
//!
//! Both take the rights of root, or CAP_BPF and CAP_PERFMON. The kernel checks each read, so an address that is none is an error, not a fault. Nothing
//! is written but our own buffers, and nothing is left behind.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};

use super::{
    END, ITERATOR_CREATE, LINK_CREATE, MAP_CREATE, MAP_LOOKUP, PROGRAM_TEST_RUN, ProgramKind, TRACE_ITERATOR, add, bpf,
    call, copy, descriptor, if_equal, instruction, load, load_program, pair, run_function, set,
};

/// The most bytes of the kernel's memory that one read has.
pub(crate) const READ_BYTES_MAX: usize = 256;
/// The most open files that are listed.
const FILES_MAX: u64 = 1 << 20;

const MAP_ARRAY: u32 = 2;
const MAP_LOOKUP_ELEMENT: i32 = 1;
const PROBE_READ_KERNEL: i32 = 113;
const SEQUENCE_WRITE: i32 = 127;

/// Where the kernel has what [`open_files`] reads: offsets in its structures, from BTF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileOffsets {
    /// The number of the function `bpf_iter_task_file`.
    pub(crate) iterator: u32,
    /// `task_struct.tgid`.
    pub(crate) process: u32,
    /// `task_struct.mm`.
    pub(crate) memory: u32,
    /// `file.private_data`.
    pub(crate) private: u32,
}

/// A file that a process has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenFile {
    /// Its descriptor.
    pub(crate) number: u32,
    /// The process, by its number for the whole machine.
    pub(crate) process: u32,
    /// The address of what the file's driver keeps for it.
    pub(crate) private: u64,
    /// The address of the process's address space.
    pub(crate) memory: u64,
}

/// Bytes of a record of [`files_program`].
const RECORD_BYTES: usize = 24;

/// Writes a record of each open file. Its context (`struct bpf_iter__task_file`): what was begun, the task, the descriptor, the file.
fn files_program(offsets: FileOffsets) -> Vec<u64> {
    let read = |at: i32, bytes: i32, from: u8, offset: u32| {
        [copy(1, 10), add(1, at), set(2, bytes), copy(3, from), add(3, offset as i32), run_function(PROBE_READ_KERNEL)]
    };
    let body = [
        // The record on the stack: descriptor and process, what its driver keeps, the address space.
        set(1, 0),
        instruction(0x7b, 10, 1, -24, 0),
        instruction(0x7b, 10, 1, -16, 0),
        instruction(0x7b, 10, 1, -8, 0),
        instruction(0x61, 1, 6, 16, 0),
        instruction(0x63, 10, 1, -24, 0),
    ];
    let write = [
        load(1, 6, 0),
        load(1, 1, 0),
        copy(2, 10),
        add(2, -24),
        set(3, RECORD_BYTES as i32),
        run_function(SEQUENCE_WRITE),
    ];
    let work: Vec<u64> = [
        &body[..],
        &read(-20, 4, 7, offsets.process),
        &read(-16, 8, 8, offsets.private),
        &read(-8, 8, 7, offsets.memory),
        &write,
    ]
    .concat();
    // At the end of the list both are null.
    let head = [
        copy(6, 1),
        load(7, 6, 8),
        if_equal(7, 0, work.len() as i16 + 2),
        load(8, 6, 24),
        if_equal(8, 0, work.len() as i16),
    ];
    [&head[..], &work, &[set(0, 0), END]].concat()
}

/// The open files of the process of a thread. Kernels before 6.1 list those of all processes.
pub(crate) fn open_files(thread: u32, offsets: FileOffsets) -> io::Result<Vec<OpenFile>> {
    let program = load_program(ProgramKind::Iterator(offsets.iterator), &files_program(offsets))?;
    // `union bpf_iter_link_info`, up to its field of the thread.
    let of_thread = &raw const thread as u64;
    let target = pair(program.as_raw_fd() as u32, 0);
    let link = bpf(LINK_CREATE, &[target, pair(TRACE_ITERATOR, 0), of_thread, 4])
        .or_else(|_| bpf(LINK_CREATE, &[target, pair(TRACE_ITERATOR, 0)]))
        .map(descriptor)?;
    let list = File::from(descriptor(bpf(ITERATOR_CREATE, &[pair(link.as_raw_fd() as u32, 0)])?));
    let mut bytes = Vec::new();
    list.take(FILES_MAX * RECORD_BYTES as u64).read_to_end(&mut bytes)?;
    let record = |bytes: &[u8; RECORD_BYTES]| {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        OpenFile { number: word(0) as u32, process: (word(0) >> 32) as u32, private: word(8), memory: word(16) }
    };
    Ok(bytes.as_chunks().0.iter().map(record).collect())
}

/// Reads the kernel's memory.
#[derive(Debug)]
pub(crate) struct KernelReader {
    program: OwnedFd,
    map: OwnedFd,
}

/// Copies to the map's only value; its context: the address and the number of bytes.
fn reader_program(map: i32) -> Vec<u64> {
    vec![
        copy(6, 1),
        load(7, 6, 8),
        // Above: to the end.
        instruction(0x25, 7, 0, 12, READ_BYTES_MAX as i32),
        instruction(0x62, 10, 0, -4, 0),
        // The map, in two words.
        instruction(0x18, 1, 1, 0, map),
        0,
        copy(2, 10),
        add(2, -4),
        run_function(MAP_LOOKUP_ELEMENT),
        if_equal(0, 0, 5),
        copy(1, 0),
        copy(2, 7),
        load(3, 6, 0),
        run_function(PROBE_READ_KERNEL),
        END,
        set(0, -1),
        END,
    ]
}

impl KernelReader {
    /// Loads the program. Fails where that is not permitted.
    pub(crate) fn open() -> io::Result<KernelReader> {
        let map = descriptor(bpf(MAP_CREATE, &[pair(MAP_ARRAY, 4), pair(READ_BYTES_MAX as u32, 1)])?);
        let program = load_program(ProgramKind::RawTracepoint, &reader_program(map.as_raw_fd()))?;
        Ok(KernelReader { program, map })
    }

    /// Copies from an address of the kernel; false if not all of it is memory, or it is more than 256 bytes.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let context = [address, into.len() as u64];
        let sizes = pair(size_of_val(&context) as u32, 0);
        let program = pair(self.program.as_raw_fd() as u32, 0);
        let ran = call(PROGRAM_TEST_RUN, &[program, 0, 0, 0, 0, sizes, context.as_ptr() as u64]);
        // The program's result is in the word of its descriptor.
        if !ran.is_ok_and(|(_, word)| word >> 32 == 0) {
            return false;
        }
        let (key, mut value) = (0u32, [0u8; READ_BYTES_MAX]);
        let (from, to) = (&raw const key as u64, value.as_mut_ptr() as u64);
        if bpf(MAP_LOOKUP, &[self.map.as_raw_fd() as u64, from, to]).is_err() {
            return false;
        }
        into.copy_from_slice(&value[..into.len()]);
        true
    }
}
