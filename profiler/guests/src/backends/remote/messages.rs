//! The messages between the process that holds a VM and the one that reads what it copies. Each is one packet.
//!
//! The reader may have been taken over by what it reads, so the holder checks each request: it has a length that is bounded, and names
//! nothing but vCPUs, memories and addresses of the VM that the holder was started for.

use glass_profiler_core::arch::{Paging, Registers, Width, aarch64, x86_64};
use glass_profiler_core::event::{Event, RawSample, RawTask, Segment, Skid};
use glass_profiler_core::guest::{Mode, SpaceId, ThreadId};
use glass_profiler_core::model::{Losses, State};

use crate::Counts;
use crate::arch::CoreState;
use crate::backends::access::View;
use crate::bytes::{Reader, Writer};
use crate::error::GuestError;
use crate::systems::plan::{CopyPlan, LinuxPlan, TaskPlan};

/// The most that one request reads.
pub(super) const READ_BYTES_MAX: usize = 32 << 10;
/// The largest copy of a stack.
const STACK_BYTES_MAX: u32 = 64 << 10;
/// The largest copy of a task.
const TASK_BYTES_MAX: u32 = 64 << 10;

/// What the reader requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// The registers of a vCPU.
    State { vcpu: usize },
    /// Memory.
    Read { view: View, address: u64, bytes: usize },
    /// Which memory is the RAM.
    ChooseMemory { memory: usize },
    /// What samples copy.
    Plan(CopyPlan),
    /// The VM may be stopped, see [`VmAccess::begin`](crate::backends::access::VmAccess::begin).
    Begin,
    /// Sampling starts.
    Start,
    /// Sampling ends.
    Detach,
}

/// What the holder answers and reports.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub(super) enum Report {
    /// It is attached: the vCPUs that are sampled, the threads that run them, the number of memories that may be the RAM, and since when it is sampled
    /// if it is.
    Attached { vcpus: Vec<u32>, threads: Vec<u32>, memories: usize, started_ns: Option<u64> },
    /// A request has failed, or sampling.
    Failed { is_of_the_backend: bool, sentence: String },
    /// Of a vCPU.
    State(Option<CoreState>),
    /// What was read.
    Bytes(Vec<u8>),
    /// A request that has no other answer was done.
    Done,
    /// A warning, a pause, a sample.
    Event(Event),
    /// What was counted so far, and the CPU time of the holder.
    Counts(Counts),
    /// The guest has ended: there will be no more samples.
    GuestEnded,
    /// The last one.
    Detached,
}

impl Report {
    pub(super) fn failed(error: &GuestError) -> Report {
        let sentence: String = error.to_string().chars().take(4096).collect();
        Report::Failed { is_of_the_backend: error.is_of_the_backend(), sentence }
    }
}

fn write_paging(writer: Writer, paging: &Paging) -> Writer {
    match paging {
        Paging::X86_64(paging) => writer.byte(0).words(&[paging.cr0, paging.cr3, paging.cr4]).perhaps(paging.efer),
        Paging::Aarch64(paging) => writer.byte(1).words(&[paging.sctlr, paging.tcr]).words(&paging.tables),
    }
}

fn read_paging(reader: &mut Reader) -> Option<Paging> {
    Some(match reader.byte()? {
        0 => {
            let [cr0, cr3, cr4] = reader.words()?;
            x86_64::paging::Paging { cr0, cr3, cr4, efer: reader.perhaps()? }.into()
        }
        1 => {
            let [sctlr, tcr] = reader.words()?;
            aarch64::paging::Paging { sctlr, tcr, tables: reader.words()? }.into()
        }
        _ => return None,
    })
}

fn write_registers(writer: Writer, registers: &Registers) -> Writer {
    match registers {
        Registers::X86_64(registers) => {
            let writer = writer.byte(0).words(&[registers.rip, registers.rsp, registers.rbp]);
            match registers.general() {
                Some(general) => writer.flag(true).words(&general),
                None => writer.flag(false),
            }
        }
        Registers::Aarch64(registers) => {
            let writer = writer.byte(1).words(&[registers.pc, registers.sp]).words(&registers.general);
            writer.byte(registers.address_bits)
        }
    }
}

fn read_registers(reader: &mut Reader) -> Option<Registers> {
    Some(match reader.byte()? {
        0 => {
            let [rip, rsp, rbp] = reader.words()?;
            match reader.flag()? {
                true => x86_64::Registers::of_all(rip, reader.words()?).into(),
                false => x86_64::Registers::new(rip, rsp, rbp).into(),
            }
        }
        1 => {
            let [pc, sp] = reader.words()?;
            aarch64::Registers { pc, sp, general: reader.words()?, address_bits: reader.byte()? }.into()
        }
        _ => return None,
    })
}

/// The number of a value in a list of all.
fn number_of<T: PartialEq>(all: &[T], value: &T) -> u8 {
    all.iter().position(|known| known == value).map_or(u8::MAX, |index| index as u8)
}

const WIDTHS: [Width; 3] = [Width::Bits16, Width::Bits32, Width::Bits64];
const MODES: [Mode; 4] = [Mode::User, Mode::Kernel, Mode::Hypervisor, Mode::Firmware];

fn read_one<T: Copy>(reader: &mut Reader, all: &[T]) -> Option<T> {
    all.get(usize::from(reader.byte()?)).copied()
}

impl Request {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let kind = Writer::of_kind;
        let writer = match self {
            Request::State { vcpu } => kind(0).number(*vcpu as u32),
            Request::Read { view, address, bytes } => {
                let writer = kind(1).number(view.memory as u32).number(view.vcpu as u32);
                write_paging(writer, &view.paging).word(*address).number(*bytes as u32)
            }
            Request::ChooseMemory { memory } => kind(2).number(*memory as u32),
            Request::Plan(plan) => {
                let writer = kind(3).number(plan.stack_bytes).flag(plan.leaves_sleepers).perhaps(plan.cores);
                let writer = writer.ranges(&plan.programs).ranges(&plan.code).flag(plan.linux.is_some());
                match &plan.linux {
                    Some(linux) => {
                        let writer = writer
                            .words(&[linux.range.start, linux.range.end])
                            .ranges(&linux.idle)
                            .ranges(&linux.between);
                        write_tasks(writer, linux.tasks.as_ref())
                    }
                    None => writer,
                }
            }
            Request::Start => kind(4),
            Request::Detach => kind(5),
            Request::Begin => kind(6),
        };
        writer.0
    }

    /// `None` if they are no request, or one for too much.
    pub(super) fn parse(bytes: &[u8]) -> Option<Request> {
        let mut reader = Reader(bytes);
        let request = match reader.byte()? {
            0 => Request::State { vcpu: reader.number()? as usize },
            1 => {
                let (memory, vcpu) = (reader.number()? as usize, reader.number()? as usize);
                let view = View { memory, vcpu, paging: read_paging(&mut reader)? };
                let (address, bytes) = (reader.word()?, reader.number()? as usize);
                Request::Read { view, address, bytes: Some(bytes).filter(|bytes| *bytes <= READ_BYTES_MAX)? }
            }
            2 => Request::ChooseMemory { memory: reader.number()? as usize },
            3 => {
                let stack_bytes = Some(reader.number()?).filter(|bytes| *bytes <= STACK_BYTES_MAX)?;
                let leaves_sleepers = reader.flag()?;
                let (cores, programs, code) = (reader.perhaps()?, reader.ranges()?, reader.ranges()?);
                let linux = match reader.flag()? {
                    true => {
                        let [start, end] = reader.words()?;
                        let (idle, between) = (reader.ranges()?, reader.ranges()?);
                        Some(LinuxPlan { range: start..end, idle, between, tasks: read_tasks(&mut reader)? })
                    }
                    false => None,
                };
                Request::Plan(CopyPlan { stack_bytes, leaves_sleepers, cores, programs, code, linux })
            }
            4 => Request::Start,
            5 => Request::Detach,
            6 => Request::Begin,
            _ => return None,
        };
        reader.end(request)
    }
}

fn write_tasks(writer: Writer, tasks: Option<&TaskPlan>) -> Writer {
    let writer = writer.flag(tasks.is_some());
    let Some(TaskPlan { slots, direct_map, part, tid, entry_bytes }) = tasks else { return writer };
    let writer = writer.list(slots, |writer, slot| writer.word(*slot)).word(*direct_map);
    writer.number(part.start).number(part.end).number(*tid).number(*entry_bytes)
}

fn read_tasks(reader: &mut Reader) -> Option<Option<TaskPlan>> {
    if !reader.flag()? {
        return Some(None);
    }
    let (slots, direct_map) = (reader.list(Reader::word)?, reader.word()?);
    let part = reader.number()?..reader.number()?;
    let bytes = Some(part.end.checked_sub(part.start)?).filter(|bytes| *bytes <= TASK_BYTES_MAX)?;
    let tid = Some(reader.number()?).filter(|tid| *tid < bytes)?;
    let entry_bytes = reader.number()?;
    Some(Some(TaskPlan { slots, direct_map, part, tid, entry_bytes }))
}

fn write_segment(writer: Writer, segment: &Segment) -> Writer {
    let registers = &segment.registers;
    let writer = writer.number(segment.space.0).byte(number_of(&MODES, &segment.mode));
    let writer = writer.byte(number_of(&WIDTHS, &segment.width));
    write_registers(writer, registers)
        .list(&segment.stack, |writer, (address, bytes)| writer.word(*address).bytes(bytes))
}

fn read_segment(reader: &mut Reader) -> Option<Segment> {
    let space = SpaceId(reader.number()?);
    let (mode, width) = (read_one(reader, &MODES)?, read_one(reader, &WIDTHS)?);
    let registers = read_registers(reader)?;
    let stack = reader.list(|reader| Some((reader.word()?, reader.bytes()?.to_vec())))?;
    Some(Segment { space, mode, width, registers, stack, ..Default::default() })
}

/// Bytes of the length before each message of a packet to the reader.
pub(super) const LENGTH_BYTES: usize = 4;

/// Adds a message to a packet: the reader is woken once for all in one.
pub(super) fn join(packet: &mut Vec<u8>, message: &[u8]) {
    packet.extend((message.len() as u32).to_le_bytes());
    packet.extend(message);
}

/// The first message of a packet, and the packet's bytes until its end. `None` if there is none.
pub(super) fn first_of(packet: &[u8]) -> Option<(&[u8], usize)> {
    let (length, rest) = packet.split_first_chunk::<LENGTH_BYTES>()?;
    let message = rest.get(..u32::from_le_bytes(*length) as usize)?;
    Some((message, LENGTH_BYTES + message.len()))
}

/// The bytes of an event that a held VM has; of another one none, since those are the reader's own.
pub(super) fn event_bytes(event: &Event) -> Option<Vec<u8>> {
    let writer = match event {
        Event::Warning(text) => Writer::of_kind(10).bytes(text.as_bytes()),
        Event::Frozen { tracks_ns } => {
            Writer::of_kind(11).list(tracks_ns, |writer, (track, ns)| writer.number(*track).word(*ns))
        }
        Event::Sample(sample) => {
            let writer = Writer::of_kind(12).word(sample.time_ns).number(sample.track).word(sample.frozen_ns);
            let writer = writer.perhaps(sample.thread.map(|thread| u64::from(thread.0)));
            let writer = write_skid(writer.byte(sample.state.number() as u8), sample.skid);
            let writer = writer.list(&sample.segments, write_segment).flag(sample.task.is_some());
            match &sample.task {
                Some(task) => writer.word(task.address).bytes(&task.bytes),
                None => writer,
            }
        }
        _ => return None,
    };
    Some(writer.0)
}

fn write_skid(writer: Writer, skid: Skid) -> Writer {
    match skid {
        Skid::None => writer.flag(false),
        Skid::NextBlock { has_returned, block } => writer.flag(true).flag(has_returned).perhaps(block),
    }
}

fn read_skid(reader: &mut Reader) -> Option<Skid> {
    Some(match reader.flag()? {
        false => Skid::None,
        true => Skid::NextBlock { has_returned: reader.flag()?, block: reader.perhaps()? },
    })
}

fn read_sample(reader: &mut Reader) -> Option<RawSample> {
    let (time_ns, track, frozen_ns) = (reader.word()?, reader.number()?, reader.word()?);
    let thread = reader.perhaps()?.map(u32::try_from).transpose().ok()?.map(ThreadId);
    let (state, skid) = (read_one(reader, &State::ALL)?, read_skid(reader)?);
    let segments = reader.list(read_segment)?;
    let task = match reader.flag()? {
        true => Some(RawTask { address: reader.word()?, bytes: reader.bytes()?.to_vec() }),
        false => None,
    };
    Some(RawSample { time_ns, track, state, thread, skid, segments, frozen_ns, task, wait: None })
}

impl Report {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let kind = Writer::of_kind;
        let writer = match self {
            Report::Attached { vcpus, threads, memories, started_ns } => {
                let number = |writer: Writer, number: &u32| writer.number(*number);
                let writer = kind(0).list(vcpus, number).list(threads, number);
                writer.number(*memories as u32).perhaps(*started_ns)
            }
            Report::Failed { is_of_the_backend, sentence } => {
                kind(1).flag(*is_of_the_backend).bytes(sentence.as_bytes())
            }
            Report::State(None) => kind(2).flag(false),
            Report::State(Some(state)) => {
                let writer = write_registers(kind(2).flag(true), &state.registers);
                let writer = write_paging(writer, &state.paging).byte(number_of(&WIDTHS, &state.width));
                writer.flag(state.is_privileged).flag(state.is_at_reset).perhaps(state.interrupt_table)
            }
            Report::Bytes(bytes) => kind(3).bytes(bytes),
            Report::Done => kind(4),
            Report::Counts(counts) => {
                let Counts { delivered, losses, late, helpers_cpu_ns } = counts;
                let Losses { ring_full, throttled, overdue, not_stopped, queue_full, maps, forks, unknown } = losses;
                let writer = kind(5).words(&[*delivered, *late, *helpers_cpu_ns, *ring_full, *throttled, *overdue]);
                writer.words(&[*not_stopped, *queue_full, *maps, *forks, *unknown])
            }
            Report::GuestEnded => kind(6),
            Report::Detached => kind(7),
            Report::Event(event) => return event_bytes(event).unwrap_or_default(),
        };
        writer.0
    }

    /// `None` if they are no report.
    pub(super) fn parse(bytes: &[u8]) -> Option<Report> {
        let mut reader = Reader(bytes);
        let report = match reader.byte()? {
            0 => {
                let (vcpus, threads) = (reader.list(Reader::number)?, reader.list(Reader::number)?);
                let (memories, started_ns) = (reader.number()? as usize, reader.perhaps()?);
                Report::Attached { vcpus, threads, memories, started_ns }
            }
            1 => Report::Failed { is_of_the_backend: reader.flag()?, sentence: reader.text()? },
            2 if reader.flag()? => {
                let (registers, paging) = (read_registers(&mut reader)?, read_paging(&mut reader)?);
                let width = read_one(&mut reader, &WIDTHS)?;
                let (is_privileged, is_at_reset) = (reader.flag()?, reader.flag()?);
                let interrupt_table = reader.perhaps()?;
                Report::State(Some(CoreState { registers, paging, width, is_privileged, is_at_reset, interrupt_table }))
            }
            2 => Report::State(None),
            3 => Report::Bytes(reader.bytes()?.to_vec()),
            4 => Report::Done,
            5 => {
                let [delivered, late, helpers_cpu_ns, ring_full, throttled, overdue] = reader.words()?;
                let [not_stopped, queue_full, maps, forks, unknown] = reader.words()?;
                let losses = Losses { ring_full, throttled, overdue, not_stopped, queue_full, maps, forks, unknown };
                Report::Counts(Counts { delivered, losses, late, helpers_cpu_ns })
            }
            6 => Report::GuestEnded,
            7 => Report::Detached,
            10 => Report::Event(Event::Warning(reader.text()?)),
            11 => {
                let tracks_ns = reader.list(|reader| Some((reader.number()?, reader.word()?)))?;
                Report::Event(Event::Frozen { tracks_ns })
            }
            12 => Report::Event(Event::Sample(read_sample(&mut reader)?)),
            _ => return None,
        };
        reader.end(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> CoreState {
        CoreState {
            registers: x86_64::Registers::of_all(1, [u64::MAX, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
                .into(),
            paging: x86_64::paging::Paging { cr0: 3, cr3: 4, cr4: 5, efer: Some(6) }.into(),
            width: Width::Bits32,
            is_privileged: true,
            is_at_reset: false,
            interrupt_table: None,
        }
    }

    fn requests() -> Vec<Request> {
        let view = View { memory: 1, vcpu: 2, paging: state().paging };
        let tasks = Some(TaskPlan { slots: vec![1, u64::MAX], direct_map: 3, part: 4..900, tid: 8, entry_bytes: 336 });
        let linux = LinuxPlan { range: 5..6, idle: vec![7..8, 9..10], between: vec![5..6, 8..9], tasks };
        let plan = CopyPlan {
            stack_bytes: 24 << 10,
            leaves_sleepers: true,
            cores: Some(9),
            programs: vec![1..2, 4..5],
            code: vec![1..3, 4..5],
            linux: Some(linux),
        };
        vec![
            Request::State { vcpu: 3 },
            Request::Read { view, address: u64::MAX, bytes: READ_BYTES_MAX },
            Request::ChooseMemory { memory: 7 },
            Request::Plan(CopyPlan::default()),
            Request::Plan(plan),
            Request::Begin,
            Request::Start,
            Request::Detach,
        ]
    }

    fn reports() -> Vec<Report> {
        let segment =
            Segment { stack: vec![(1, vec![2; 300]), (3, Vec::new())], mode: Mode::Kernel, ..Default::default() };
        let sample = RawSample {
            time_ns: 1,
            track: 2,
            frozen_ns: 3,
            state: State::Unknown,
            thread: Some(ThreadId(u32::MAX)),
            skid: Skid::NextBlock { has_returned: true, block: Some(u64::MAX) },
            segments: vec![segment; 2],
            task: Some(RawTask { address: 7, bytes: vec![1; 9] }),
            wait: None,
        };
        vec![
            Report::Attached { vcpus: vec![0, 3], threads: vec![77], memories: 2, started_ns: Some(9) },
            Report::Failed { is_of_the_backend: true, sentence: "why".to_owned() },
            Report::State(None),
            Report::State(Some(state())),
            Report::Bytes(vec![1, 2, 3]),
            Report::Done,
            Report::Event(Event::Warning("w".to_owned())),
            Report::Event(Event::Frozen { tracks_ns: vec![(1, 2)] }),
            Report::Event(Event::Sample(sample)),
            Report::Counts(Counts {
                delivered: 1,
                losses: Losses {
                    ring_full: 2,
                    throttled: 3,
                    overdue: 4,
                    not_stopped: 5,
                    queue_full: 6,
                    maps: 7,
                    forks: 8,
                    unknown: 9,
                },
                late: 10,
                helpers_cpu_ns: 11,
            }),
            Report::GuestEnded,
            Report::Detached,
        ]
    }

    #[test]
    fn messages_arrive_as_they_were_sent_and_no_others_do() {
        fn check<T: PartialEq + std::fmt::Debug>(
            all: &[T],
            to: impl Fn(&T) -> Vec<u8>,
            parse: impl Fn(&[u8]) -> Option<T>,
        ) {
            for message in all {
                let bytes = to(message);
                assert_eq!(parse(&bytes).as_ref(), Some(message));
                for cut in 0..bytes.len() {
                    assert_ne!(parse(&bytes[..cut]).as_ref(), Some(message), "cut at {cut}");
                }
                assert_eq!(parse(&[&bytes[..], &[0]].concat()), None, "too long: {message:?}");
                // Whatever a byte is changed to, there is no panic, and no more memory than the message has bytes.
                for at in 0..bytes.len() {
                    for value in [0, 1, 0x7f, 0xff] {
                        let mut changed = bytes.clone();
                        changed[at] = value;
                        let _ = parse(&changed);
                    }
                }
            }
        }
        check(&requests(), Request::to_bytes, Request::parse);
        check(&reports(), Report::to_bytes, Report::parse);
        assert_eq!(Request::parse(&[]), None);
        assert_eq!(Request::parse(&[99]), None);
    }

    #[test]
    fn requests_for_too_much_are_refused() {
        let view = View { memory: 0, vcpu: 0, paging: Paging::default() };
        let read = Request::Read { view, address: 0, bytes: READ_BYTES_MAX + 1 };
        assert_eq!(Request::parse(&read.to_bytes()), None);
        let plan = CopyPlan { stack_bytes: STACK_BYTES_MAX + 1, ..Default::default() };
        assert_eq!(Request::parse(&Request::Plan(plan).to_bytes()), None);
    }
}
