//! The kernel's records, and their order: each CPU has a buffer of its own.

use glass_profiler_core::arch::{Registers, Width};
use glass_profiler_core::event::{Event, FileIdentity, Mapping, Placement, RawSample, Segment};
use glass_profiler_core::guest::Mode;
use glass_profiler_core::model::State;

use std::collections::{HashMap, VecDeque};

use super::has_code;
use super::processes::Processes;
use super::twice::Twice;
use crate::proc::without_deleted;
use crate::sys::{RED_ZONE, arch};

const MMAP2: u32 = 10;
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const THROTTLE: u32 = 5;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;

const MISC_MODE_MASK: u16 = 7;
const MISC_MODE_KERNEL: u16 = 1;
/// `PERF_RECORD_MISC_GUEST_KERNEL` and `PERF_RECORD_MISC_GUEST_USER`: the thread of a VMM executes its guest.
const MISC_MODES_GUEST: [u16; 2] = [4, 5];
/// `PERF_SAMPLE_REGS_ABI_32`: the thread runs code of 32 bits.
const ABI_32: u64 = 1;
const MISC_COMM_EXEC: u16 = 1 << 13;
/// What stands before the calls of the kernel in a call chain, and the least such number.
const CONTEXT_KERNEL: u64 = -128i64 as u64;
const CONTEXTS: u64 = -4095i64 as u64;
const PROTECTION_EXECUTE: u32 = 4;
/// Between the copy of what is below a stack pointer and the rest of its sample, in nanoseconds.
const RED_ZONE_NS: u64 = 100_000;

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are samples")]
pub(super) enum Kind {
    /// Without registers if the thread has none outside of the kernel.
    Sample {
        pid: u32,
        tid: u32,
        /// Of the event that was opened, which the thread may have inherited.
        id: u64,
        /// In which mode its time went: of a process, of this machine's kernel, or of a guest that it runs ([`Mode::Hypervisor`]).
        mode: Mode,
        /// The calls in the kernel, innermost first, as it has unwound them.
        chain: Vec<u64>,
        user: Option<(Registers, Width)>,
        stack: Vec<u8>,
    },
    Map {
        pid: u32,
        mapping: Mapping,
    },
    Name {
        pid: u32,
        tid: u32,
        name: String,
        exec: bool,
    },
    Fork {
        pid: u32,
        parent: u32,
        tid: u32,
    },
    Exit {
        pid: u32,
        tid: u32,
    },
    Lost(u64),
    Throttled,
}

/// What was below the stack pointer of a thread at a sample of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RedZoneRecord {
    time_ns: u64,
    tid: u32,
    bytes: Vec<u8>,
}

impl RedZoneRecord {
    /// Reads a record of [`RedZone`](crate::sys::RedZone).
    pub(super) fn parse(record: &[u8]) -> Option<RedZoneRecord> {
        let mut fields = Fields(record);
        let (kind, _misc) = (fields.half()?, fields.half()?);
        let (_pid, tid, time_ns, _bytes) = (fields.half()?, fields.half()?, fields.word()?, fields.half()?);
        let bytes = fields.bytes(RED_ZONE)?.to_vec();
        (kind == SAMPLE).then_some(RedZoneRecord { time_ns, tid, bytes })
    }
}

/// A record with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    time_ns: u64,
    kind: Kind,
}

/// Takes fields from the front of a record; `None` beyond its end.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn word(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn half(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl Record {
    /// Reads a record with its header; `None` for kinds that are of no use here.
    pub(super) fn parse(record: &[u8]) -> Option<Record> {
        let mut fields = Fields(record);
        let kind = fields.half()?;
        let misc = fields.half()? as u16;
        if kind == SAMPLE {
            return Record::parse_sample(fields, misc);
        }
        // `sample_id_all`: pid, tid, time and the event's id end each of the other records.
        let split = fields.0.len().checked_sub(24)?;
        let (body, id) = fields.0.split_at(split);
        let time_ns = u64::from_le_bytes(id[8..16].try_into().ok()?);
        let mut fields = Fields(body);
        let kind = match kind {
            MMAP2 => {
                let (pid, _tid) = (fields.half()?, fields.half()?);
                let (start, length, offset) = (fields.word()?, fields.word()?, fields.word()?);
                let (device, inode) = ((fields.half()?, fields.half()?), fields.word()?);
                let _generation = fields.word()?;
                let file = Some(FileIdentity { device, inode });
                let (protection, _flags) = (fields.half()?, fields.half()?);
                let path = text(fields.0);
                let path = without_deleted(&path).to_owned();
                if protection & PROTECTION_EXECUTE == 0 || !has_code(&path) {
                    return None;
                }
                let end = start.checked_add(length)?;
                let placement = Placement::FileOffset(offset);
                Kind::Map { pid, mapping: Mapping { start, end, path, placement, file } }
            }
            COMM => {
                let (pid, tid) = (fields.half()?, fields.half()?);
                Kind::Name { pid, tid, name: text(fields.0), exec: misc & MISC_COMM_EXEC != 0 }
            }
            FORK => {
                let (pid, parent, tid) = (fields.half()?, fields.half()?, fields.half()?);
                Kind::Fork { pid, parent, tid }
            }
            EXIT => {
                let (pid, _parent, tid) = (fields.half()?, fields.half()?, fields.half()?);
                Kind::Exit { pid, tid }
            }
            LOST => {
                let (_id, count) = (fields.word()?, fields.word()?);
                Kind::Lost(count)
            }
            THROTTLE => Kind::Throttled,
            _ => return None,
        };
        Some(Record { time_ns, kind })
    }

    fn parse_sample(mut fields: Fields<'_>, misc: u16) -> Option<Record> {
        let _ip = fields.word()?;
        let (pid, tid) = (fields.half()?, fields.half()?);
        let (time_ns, id) = (fields.word()?, fields.word()?);
        let calls = fields.word()?;
        let chain = fields.bytes(usize::try_from(calls).ok()?.checked_mul(8)?)?;
        let registers_abi = fields.word()?;
        let mut user = None;
        // A kernel thread, or one that is just ending, has none.
        if registers_abi != 0 {
            let mut words = [0; arch::PERF_REGISTERS_COUNT];
            for word in &mut words {
                *word = fields.word()?;
            }
            let width = if registers_abi == ABI_32 { Width::Bits32 } else { Width::Bits64 };
            user = Some((arch::of_perf(&words), width));
        }
        let stack_bytes = usize::try_from(fields.word()?).ok()?;
        let mut stack = Vec::new();
        if stack_bytes > 0 {
            let copied = fields.bytes(stack_bytes)?;
            let valid = usize::try_from(fields.word()?).ok()?.min(stack_bytes);
            stack.extend_from_slice(&copied[..valid]);
        }
        let mode = match misc & MISC_MODE_MASK {
            MISC_MODE_KERNEL => Mode::Kernel,
            mode if MISC_MODES_GUEST.contains(&mode) => Mode::Hypervisor,
            _ => Mode::User,
        };
        let chain = calls_in_kernel(chain);
        Some(Record { time_ns, kind: Kind::Sample { pid, tid, id, mode, chain, user, stack } })
    }
}

/// Of a call chain, the part in the kernel. Before each part stands a number for its mode.
fn calls_in_kernel(chain: &[u8]) -> Vec<u64> {
    let words = chain.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let of_kernel = words.skip_while(|word| *word != CONTEXT_KERNEL).skip(1);
    of_kernel.take_while(|word| *word < CONTEXTS).collect()
}

/// Brings records of several buffers into order and turns them into events.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    waiting: Vec<Record>,
    /// Threads that are sampled twice.
    pub(super) twice: Twice,
    /// By thread, in order of time.
    red_zones: HashMap<u32, VecDeque<(u64, Vec<u8>)>>,
    /// Every buffer was emptied after this moment, so nothing older can come.
    settled_ns: u64,
    newest_ns: u64,
    pub(super) processes: Processes,
    samples: u64,
    lost: u64,
    throttled: u64,
}

impl Sorter {
    pub(super) fn push(&mut self, record: Record) {
        self.newest_ns = self.newest_ns.max(record.time_ns);
        match &record.kind {
            Kind::Sample { tid, id, .. } if self.twice.is_left_out(*tid, *id) => return,
            Kind::Exit { tid, .. } => self.twice.ended(*tid),
            _ => {}
        }
        self.waiting.push(record);
    }

    pub(super) fn push_red_zone(&mut self, RedZoneRecord { time_ns, tid, bytes }: RedZoneRecord) {
        self.red_zones.entry(tid).or_default().push_back((time_ns, bytes));
    }

    /// What was below the stack pointer at a sample. The kernel writes one before the other, and which of them depends on its version.
    fn red_zone_of(&mut self, tid: u32, time_ns: u64) -> Option<Vec<u8>> {
        let of_thread = self.red_zones.get_mut(&tid)?;
        while of_thread.front().is_some_and(|(time, _)| time.saturating_add(RED_ZONE_NS) < time_ns) {
            of_thread.pop_front();
        }
        let is_nearer =
            of_thread.get(1).is_some_and(|(next, _)| next.abs_diff(time_ns) < of_thread[0].0.abs_diff(time_ns));
        if is_nearer {
            of_thread.pop_front();
        }
        of_thread.pop_front_if(|(time, _)| time.abs_diff(time_ns) < RED_ZONE_NS).map(|(_, bytes)| bytes)
    }

    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn throttled(&self) -> u64 {
        self.throttled
    }

    /// Hands over what is older than the newest record of the round before, or everything.
    pub(super) fn deliver(&mut self, everything: bool, sink: &mut dyn FnMut(Event)) {
        self.waiting.sort_by_key(|record| record.time_ns);
        let settled = if everything { u64::MAX } else { self.settled_ns };
        let ready = self.waiting.partition_point(|record| record.time_ns <= settled);
        let ready: Vec<Record> = self.waiting.drain(..ready).collect();
        self.settled_ns = self.newest_ns;
        for record in ready {
            self.event(record, sink);
        }
    }

    fn event(&mut self, record: Record, sink: &mut dyn FnMut(Event)) {
        match record.kind {
            Kind::Sample { pid, tid, mode, chain, user, stack, .. } => {
                let track = self.processes.track(pid, tid, sink);
                let space = self.processes.space(pid, sink);
                self.samples += 1;
                let mut segments = Vec::with_capacity(2);
                if mode == Mode::Hypervisor {
                    segments.push(Segment { space, mode, ..Default::default() });
                }
                if mode == Mode::Kernel {
                    // Without names of its functions, one name stands for all of it.
                    let (space, chain) = match self.processes.kernel() {
                        Some(kernel) => (kernel, chain),
                        None => (space, Vec::new()),
                    };
                    segments.push(Segment { space, mode: Mode::Kernel, chain, ..Default::default() });
                }
                if let Some((registers, width)) = user {
                    let mut pieces = vec![(registers.sp(), stack)];
                    if let Some(bytes) = self.red_zone_of(tid, record.time_ns) {
                        pieces.push((registers.sp().wrapping_sub(RED_ZONE as u64), bytes));
                    }
                    let (mode, stack) = (Mode::User, pieces);
                    segments.push(Segment { space, mode, width, registers, stack, ..Default::default() });
                }
                let state = State::Running;
                let time_ns = record.time_ns;
                sink(Event::Sample(RawSample { time_ns, track, state, segments, ..Default::default() }));
            }
            Kind::Map { pid, mapping } => {
                let space = self.processes.space(pid, sink);
                sink(Event::Map { space, mapping });
            }
            Kind::Name { pid, tid, name, exec } => {
                if exec {
                    self.processes.exec(pid, &name, record.time_ns, sink);
                }
                self.processes.name(pid, tid, name, sink);
            }
            Kind::Fork { pid, parent, tid } => self.processes.fork(pid, parent, tid, sink),
            Kind::Exit { pid, tid } => {
                self.red_zones.remove(&tid);
                self.processes.exit(pid, tid, sink);
            }
            Kind::Lost(count) => self.lost = self.lost.saturating_add(count),
            Kind::Throttled => self.throttled += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Kernel;
    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(misc.to_le_bytes());
        bytes.extend(((8 + body.len()) as u16).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// As the kernel has them.
    const REGISTERS: [u64; arch::PERF_REGISTERS_COUNT] = {
        let mut registers = [0; arch::PERF_REGISTERS_COUNT];
        let mut index = 0;
        while index < registers.len() {
            registers[index] = 0x7000 + index as u64;
            index += 1;
        }
        registers
    };

    fn sample(time_ns: u64, tid: u32) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(0x401000u64.to_le_bytes());
        body.extend(7u32.to_le_bytes());
        body.extend(tid.to_le_bytes());
        let chain = [4, CONTEXT_KERNEL, 0xffff_ffff_8100_0008, 0xffff_ffff_8100_0108, -512i64 as u64];
        for word in [time_ns, 77].into_iter().chain(chain).chain([2]).chain(REGISTERS).chain([16, 1, 2, 8]) {
            body.extend(word.to_le_bytes());
        }
        record(SAMPLE, 1, &body)
    }

    #[test]
    fn a_sample_has_registers_and_the_valid_part_of_the_stack() {
        let parsed = Record::parse(&sample(99, 8)).unwrap();
        let user = Some((arch::of_perf(&REGISTERS), Width::Bits64));
        let stack = 1u64.to_le_bytes().to_vec();
        assert_eq!(parsed.time_ns, 99);
        let chain = vec![0xffff_ffff_8100_0008, 0xffff_ffff_8100_0108];
        assert_eq!(parsed.kind, Kind::Sample { pid: 7, tid: 8, id: 77, mode: Mode::Kernel, chain, user, stack });
    }

    #[test]
    fn a_cut_record_is_left_out() {
        let whole = sample(99, 8);
        for bytes in 0..whole.len() {
            assert_eq!(Record::parse(&whole[..bytes]), None, "{bytes} bytes");
        }
    }

    /// As the kernel of 2026-11-22 gives them (6.18): a sample in a system call, in user mode, and in an interrupt of it.
    #[test]
    fn of_a_call_chain_the_part_in_the_kernel_is_taken() {
        let of = |words: &[i64]| calls_in_kernel(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        assert_eq!(of(&[-128, i64::MIN + 5, i64::MIN + 9, -512]), [(1 << 63) + 5, (1 << 63) + 9]);
        assert_eq!(of(&[-512, 77]), [0u64; 0]);
        assert_eq!(of(&[]), [0u64; 0]);
    }

    /// With the names of the kernel's functions a system call is a chain of them, without them it is one name.
    #[test]
    fn a_sample_in_a_system_call_is_a_segment_of_the_kernel_and_one_of_the_process() {
        let segments = |kernel: Option<Kernel>| {
            let mut sorter = Sorter::default();
            let mut segments = Vec::new();
            let mut sink = |event| {
                if let Event::Sample(sample) = event {
                    segments = sample.segments
                }
            };
            if let Some(kernel) = kernel {
                sorter.processes.place_kernel(7, kernel, &mut sink);
            }
            sorter.push(Record::parse(&sample(99, 8)).unwrap());
            sorter.deliver(true, &mut sink);
            segments
        };
        let named = segments(Some(Kernel::parse(b"ffffffff81000000 T work\n", None).unwrap()));
        assert_eq!(named.iter().map(|segment| segment.mode).collect::<Vec<_>>(), [Mode::Kernel, Mode::User]);
        assert_eq!(named[0].chain, [0xffff_ffff_8100_0008, 0xffff_ffff_8100_0108]);
        assert_ne!(named[0].space, named[1].space);
        let nameless = segments(None);
        assert_eq!((nameless[0].chain.len(), nameless[0].space), (0, nameless[1].space));
    }

    /// The time of a guest was that of the VMM's `ioctl` (2026-11-25).
    #[test]
    fn a_guests_time_is_no_time_of_its_vmm() {
        for (misc, modes) in
            [(2, vec![Mode::User]), (4, vec![Mode::Hypervisor, Mode::User]), (5, vec![Mode::Hypervisor, Mode::User])]
        {
            let mut bytes = sample(99, 8);
            bytes[4] = misc;
            let mut sorter = Sorter::default();
            sorter.push(Record::parse(&bytes).unwrap());
            let mut found = Vec::new();
            sorter.deliver(true, &mut |event| {
                if let Event::Sample(sample) = event {
                    found = sample.segments.iter().map(|segment| segment.mode).collect();
                }
            });
            assert_eq!(found, modes, "{misc}");
        }
    }

    /// The kernel writes what is below the stack pointer before the rest of a sample or after it; that of another sample is not taken.
    #[test]
    fn a_sample_has_what_is_below_its_stack_pointer() {
        let red_zone = |time_ns: u64, tid: u32, byte: u8| {
            let mut body = [u64::from(tid) << 32 | 7, time_ns].map(u64::to_le_bytes).concat();
            body.extend((RED_ZONE as u32 + 4).to_le_bytes());
            body.extend([byte; RED_ZONE + 4]);
            RedZoneRecord::parse(&record(SAMPLE, 0, &body)).unwrap()
        };
        let times = [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000];
        let mut sorter = Sorter::default();
        for record in [
            red_zone(1_000_900, 8, 1),
            red_zone(1_999_300, 8, 2),
            // Of a sample that was lost, and of another thread.
            red_zone(2_500_000, 8, 3),
            red_zone(3_000_000, 9, 4),
            red_zone(4_000_100, 8, 5),
        ] {
            sorter.push_red_zone(record);
        }
        times.iter().for_each(|time| sorter.push(Record::parse(&sample(*time, 8)).unwrap()));
        let mut found = Vec::new();
        sorter.deliver(true, &mut |event| {
            if let Event::Sample(sample) = event {
                let pieces = &sample.segments.last().unwrap().stack;
                found.push(pieces.get(1).map(|(address, bytes)| (*address, bytes[0], bytes.len())));
            }
        });
        let stack_pointer = arch::of_perf(&REGISTERS).sp();
        let below = |byte| Some((stack_pointer - 128, byte, RED_ZONE));
        assert_eq!(found, [below(1), below(2), None, below(5), None]);
    }

    #[test]
    fn losses_are_counted_as_far_as_one_can_count() {
        let mut sorter = Sorter::default();
        for _ in 0..2 {
            let words = [1, u64::MAX - 1, 7 << 32 | 7, 99, 77].map(u64::to_le_bytes).concat();
            sorter.push(Record::parse(&record(LOST, 0, &words)).unwrap());
        }
        sorter.deliver(true, &mut |event| panic!("{event:?}"));
        assert_eq!(sorter.lost(), u64::MAX);
    }

    #[test]
    fn records_of_two_buffers_come_in_order_and_none_is_delivered_too_early() {
        let mut sorter = Sorter::default();
        let mut times = Vec::new();
        let mut round = |sorter: &mut Sorter, new: &[u64], everything: bool| {
            new.iter().for_each(|time| sorter.push(Record::parse(&sample(*time, 8)).unwrap()));
            let before = times.len();
            sorter.deliver(everything, &mut |event| {
                if let Event::Sample(sample) = event {
                    times.push(sample.time_ns);
                }
            });
            times.len() - before
        };
        assert_eq!(round(&mut sorter, &[10, 30], false), 0);
        assert_eq!(round(&mut sorter, &[20, 40], false), 3);
        assert_eq!(round(&mut sorter, &[35], true), 2);
        assert_eq!(times, [10, 20, 30, 35, 40]);
    }
}
