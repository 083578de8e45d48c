//! Appends packets to a recording.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use prost::Message;

use super::proto::{self, TracePacket};
use super::{ENDS, MODES, PACKET_BYTES_MAX, VERSION, WIDTHS, number, perfetto_path, pieces};
use crate::arch::Width;
use crate::guest::{Guest, GuestId, GuestKind, Mode, Process, ProcessId, SpaceId, Thread, ThreadId};
use crate::images::Part;
use crate::model::{Cost, Losses, Origin, StackEnd, State};
use crate::symbols::Location;
use crate::trace::raw::Piece;

/// The one packet sequence that we write; interned data belongs to it.
pub(super) const SEQUENCE: u32 = 1;
const FLAG_CLEARED: u32 = 1;
const FLAG_NEEDS_STATE: u32 = 2;

/// The clocks of the machine, read together when the recording starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`: the clock of samples.
    pub monotonic_ns: u64,
    /// `CLOCK_BOOTTIME`: Perfetto's clock.
    pub boottime_ns: u64,
    /// `CLOCK_REALTIME`: nanoseconds since 1970.
    pub realtime_ns: u64,
}

impl Clocks {
    /// What they were when `CLOCK_MONOTONIC` was this, if that is earlier.
    #[must_use]
    pub fn at(self, monotonic_ns: u64) -> Clocks {
        let since_ns = self.monotonic_ns.saturating_sub(monotonic_ns);
        Clocks {
            monotonic_ns: self.monotonic_ns - since_ns,
            boottime_ns: self.boottime_ns.saturating_sub(since_ns),
            realtime_ns: self.realtime_ns.saturating_sub(since_ns),
        }
    }
}

/// The file of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageId {
    /// Path of the file.
    pub path: String,
    /// The GNU build id, empty if it has none.
    pub build_id: Vec<u8>,
}

/// A track to write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrackRecord {
    /// Its number in the recording: they count from 0 without gaps, whatever the source's are.
    pub number: u32,
    /// Its guest.
    pub guest: GuestId,
    /// The vCPU's index or the thread id.
    pub id: u64,
    /// "vcpu 0", or a thread's name.
    pub name: String,
}

/// A sample to write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleRecord<'a> {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub time_ns: u64,
    /// Number of the track.
    pub track: u32,
    /// The result of [`Writer::callstack`]; `None` if only the state is known.
    pub callstack: Option<u64>,
    /// Why the stack has no more callers.
    pub end: StackEnd,
    /// State of the track.
    pub state: State,
    /// The thread of the guest that ran, if it is known.
    pub thread: Option<ThreadId>,
    /// Pause of the track.
    pub frozen_ns: u64,
    /// The segments of the stack, innermost first.
    pub parts: &'a [Part],
}

/// A track in Perfetto's view.
#[derive(Debug, Clone, Copy, Default)]
struct PerfettoTrack {
    pid: u32,
    tid: u32,
    /// The number of the vCPU, 0 of a thread.
    cpu: u32,
    is_machine: bool,
}

/// Appends packets. Each is passed to the underlying writer in one call.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    buffer: Vec<u8>,
    clocks: Clocks,
    last_iid: u64,
    /// The name of the requested guest, until it is announced.
    title: Option<String>,
    guests: BTreeMap<GuestId, GuestKind>,
    /// By number.
    tracks: BTreeMap<u32, PerfettoTrack>,
    /// Process IDs of machines' processes, in the machine and for Perfetto.
    processes: BTreeMap<ProcessId, (u32, u32)>,
    /// Process IDs and thread IDs of their threads for Perfetto.
    threads: BTreeMap<ThreadId, (u32, u32)>,
    /// Those that were written.
    spaces: BTreeSet<SpaceId>,
    /// Of these, those of a process that was written: a sample always names them.
    of_processes: BTreeSet<SpaceId>,
}

/// First thread id that represents a vCPU in Perfetto's view: above every real one.
const VCPU_TID: u32 = 1 << 24;
/// Numbers between the first vCPUs of two guests.
const VCPU_TIDS: u32 = 4096;

fn vcpu_tid(guest: GuestId, id: u32) -> u32 {
    VCPU_TID.saturating_add(guest.0.saturating_mul(VCPU_TIDS)).saturating_add(id)
}

/// Added to a machine's process and thread IDs for Perfetto where this machine may have the same: the kernel's largest is below.
const FIRST_GUEST_PID: u32 = 1 << 22;

/// The process that represents a guest in Perfetto's view.
fn perfetto_pid(kind: GuestKind) -> u32 {
    /// Above every real process.
    const DOMAINS: u32 = 1 << 23;
    match kind {
        GuestKind::Process { pid } | GuestKind::Vm { vmm: pid } => pid,
        GuestKind::XenDomain { id } => DOMAINS.saturating_add(id),
        GuestKind::File => 1,
    }
}

/// Perfetto's number for a mode, of code of a machine or of a process of this one.
pub(super) fn cpu_mode(mode: Mode, is_machine: bool) -> u32 {
    match (mode, is_machine) {
        (Mode::Hypervisor, _) => proto::MODE_HYPERVISOR,
        (Mode::User, true) => proto::MODE_GUEST_USER,
        (Mode::User, false) => proto::MODE_USER,
        (Mode::Kernel | Mode::Firmware, true) => proto::MODE_GUEST_KERNEL,
        (Mode::Kernel | Mode::Firmware, false) => proto::MODE_KERNEL,
    }
}

/// Whether Perfetto's fields describe a stack completely.
pub(crate) fn is_plain(parts: &[Part]) -> bool {
    match parts {
        [] => true,
        [part] => part.apart_ns == 0 && part.width == Width::Bits64 && part.mode != Mode::Firmware,
        // A process in a system call: its first frame is `[kernel]`.
        [kernel, user] => {
            let is_one = kernel.calls == 1 && kernel.space == user.space && kernel.end == StackEnd::Complete;
            let is_one = is_one && kernel.apart_ns == 0 && user.apart_ns == 0;
            is_one && (kernel.mode, user.mode) == (Mode::Kernel, Mode::User) && user.width == Width::Bits64
        }
        _ => false,
    }
}

fn segments(parts: &[Part]) -> Vec<proto::Segment> {
    let segment = |part: &Part| proto::Segment {
        mode: Some(number(&MODES, &part.mode)),
        width: Some(number(&WIDTHS, &part.width)),
        space: Some(part.space.0),
        frames: Some(part.calls),
        end: Some(ENDS.iter().position(|(end, _)| *end == part.end).unwrap_or(0) as u32),
        apart_ns: (part.apart_ns > 0).then_some(part.apart_ns),
    };
    parts.iter().map(segment).collect()
}

fn losses(losses: &Losses) -> proto::Losses {
    proto::Losses {
        ring_full: Some(losses.ring_full),
        throttled: Some(losses.throttled),
        overdue: Some(losses.overdue),
        not_stopped: Some(losses.not_stopped),
        queue_full: Some(losses.queue_full),
        maps: Some(losses.maps),
        forks: Some(losses.forks),
        unknown: Some(losses.unknown),
    }
}

fn some_bytes(text: &str) -> Option<Vec<u8>> {
    Some(text.as_bytes().to_vec())
}

fn line(line: &Location) -> proto::Line {
    proto::Line {
        function_name: Some(pieces::bytes_of(&line.function)),
        source_file_name: line.file.as_deref().map(pieces::bytes_of),
        line_number: line.line,
        start_line: line.start_line,
    }
}

/// The names of addresses in an image, in messages far below the limit of a packet even with the longest names.
pub(super) fn module_packets<'a>(
    image: &'a ImageId,
    symbols: &'a [(u64, Vec<Location>)],
) -> impl Iterator<Item = proto::ModuleSymbols> + 'a {
    const ADDRESSES_PER_PACKET: usize = 16;
    symbols.chunks(ADDRESSES_PER_PACKET).map(move |chunk| proto::ModuleSymbols {
        path: some_bytes(&perfetto_path(&image.path)),
        build_id: Some(image.build_id.clone()),
        address_symbols: chunk
            .iter()
            .map(|(address, lines)| proto::AddressSymbols {
                address: Some(*address),
                lines: lines.iter().map(line).collect(),
            })
            .collect(),
    })
}

impl<W: Write> Writer<W> {
    /// Starts a recording.
    pub fn start(output: W, clocks: Clocks, origin: &Origin) -> io::Result<Writer<W>> {
        let mut writer = Writer {
            output,
            buffer: Vec::new(),
            clocks,
            last_iid: 0,
            title: Some(origin.guest.clone()),
            guests: BTreeMap::new(),
            tracks: BTreeMap::new(),
            processes: BTreeMap::new(),
            threads: BTreeMap::new(),
            spaces: BTreeSet::new(),
            of_processes: BTreeSet::new(),
        };
        let reading =
            |clock_id, timestamp| proto::ClockReading { clock_id: Some(clock_id), timestamp: Some(timestamp) };
        let snapshot = proto::ClockSnapshot {
            clocks: vec![
                reading(proto::CLOCK_BOOTTIME, clocks.boottime_ns),
                reading(proto::CLOCK_MONOTONIC, clocks.monotonic_ns),
                reading(proto::CLOCK_REALTIME, clocks.realtime_ns),
            ],
        };
        writer.packet(TracePacket {
            timestamp: Some(clocks.boottime_ns),
            clock_snapshot: Some(snapshot),
            ..Default::default()
        })?;
        let header = proto::Header {
            version: Some(VERSION),
            guest: some_bytes(&origin.guest),
            backend: some_bytes(&origin.backend),
            symbols: some_bytes(&origin.symbols),
            host: some_bytes(&origin.host),
            recorder: some_bytes(&origin.recorder),
            start_unix_ns: Some(origin.start_unix_ns),
            start_timestamp: Some(clocks.boottime_ns),
            rate_hz: Some(origin.rate_hz),
        };
        let timebase = proto::Timebase { frequency: Some(u64::from(origin.rate_hz)), name: some_bytes("samples") };
        writer.packet(TracePacket {
            timestamp: Some(clocks.boottime_ns),
            sequence_flags: Some(FLAG_CLEARED),
            trace_packet_defaults: Some(proto::TracePacketDefaults {
                perf_sample_defaults: Some(proto::PerfSampleDefaults { timebase: Some(timebase) }),
            }),
            glass: Some(proto::Glass { header: Some(header), ..Default::default() }),
            ..Default::default()
        })?;
        Ok(writer)
    }

    fn timestamp(&self, monotonic_ns: u64) -> u64 {
        let since_start = monotonic_ns.saturating_sub(self.clocks.monotonic_ns);
        self.clocks.boottime_ns.saturating_add(since_start)
    }

    fn packet(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(SEQUENCE);
        self.buffer.clear();
        // Field 1 of `Trace`, length-delimited.
        self.buffer.push(0x0a);
        let bytes = packet.encoded_len();
        if bytes > PACKET_BYTES_MAX {
            return Err(io::Error::other(format!("a packet of {bytes} bytes is more than {PACKET_BYTES_MAX}")));
        }
        packet.encode_length_delimited(&mut self.buffer).map_err(io::Error::other)?;
        self.output.write_all(&self.buffer)
    }

    fn interned(&mut self, data: proto::InternedData) -> io::Result<()> {
        self.packet(TracePacket {
            sequence_flags: Some(FLAG_NEEDS_STATE),
            interned_data: Some(data),
            ..Default::default()
        })
    }

    fn next_iid(&mut self) -> u64 {
        self.last_iid += 1;
        self.last_iid
    }

    fn glass(&mut self, glass: proto::Glass) -> io::Result<()> {
        self.packet(TracePacket { glass: Some(glass), ..Default::default() })
    }

    /// Announces a guest, or its new name. For Perfetto it is a process; the first has the recording's title.
    pub fn guest(&mut self, guest: &Guest) -> io::Result<()> {
        let (kind, number) = match guest.kind {
            GuestKind::Process { pid } => (0, Some(pid)),
            GuestKind::Vm { vmm } => (1, Some(vmm)),
            GuestKind::XenDomain { id } => (2, Some(id)),
            GuestKind::File => (3, None),
        };
        let message = proto::Guest {
            id: Some(guest.id.0),
            kind: Some(kind),
            number,
            name: some_bytes(&guest.name),
            architecture: Some(guest.architecture.number()),
        };
        self.guests.insert(guest.id, guest.kind);
        let name = self.title.take().unwrap_or_else(|| guest.name.clone());
        let process = proto::Process { pid: Some(perfetto_pid(guest.kind) as i32), cmdline: vec![name.into_bytes()] };
        self.packet(TracePacket {
            timestamp: Some(self.clocks.boottime_ns),
            process_tree: Some(proto::ProcessTree { processes: vec![process], threads: Vec::new() }),
            glass: Some(proto::Glass { guest: Some(message), ..Default::default() }),
            ..Default::default()
        })
    }

    /// Announces a track, or its new name.
    pub fn track(&mut self, track: &TrackRecord) -> io::Result<()> {
        let kind = self.guests.get(&track.guest).copied();
        let is_machine = kind.is_some_and(GuestKind::is_machine);
        let id = track.id as u32;
        let perfetto = PerfettoTrack {
            pid: kind.map_or(0, perfetto_pid),
            tid: if is_machine { vcpu_tid(track.guest, id) } else { id },
            cpu: if is_machine { id } else { 0 },
            is_machine,
        };
        self.tracks.insert(track.number, perfetto);
        let name = some_bytes(&track.name);
        let thread =
            proto::Thread { tid: Some(perfetto.tid as i32), tgid: Some(perfetto.pid as i32), name: name.clone() };
        let message = proto::Track { index: Some(track.number), id: Some(track.id), name, guest: Some(track.guest.0) };
        self.packet(TracePacket {
            timestamp: Some(self.clocks.boottime_ns),
            process_tree: Some(proto::ProcessTree { processes: Vec::new(), threads: vec![thread] }),
            glass: Some(proto::Glass { track: Some(message), ..Default::default() }),
            ..Default::default()
        })
    }

    /// Ends a track: it gets no more samples.
    pub fn forget_track(&mut self, number: u32) {
        self.tracks.remove(&number);
    }

    /// Ends an address space: it gets no more samples.
    pub fn forget_space(&mut self, space: SpaceId) {
        self.spaces.remove(&space);
        self.of_processes.remove(&space);
    }

    /// Appends a pause of a track without a sample.
    pub fn frozen(&mut self, track: u32, ns: u64) -> io::Result<()> {
        let frozen = proto::Frozen { track: Some(track), ns: Some(ns) };
        self.glass(proto::Glass { frozen: Some(frozen), ..Default::default() })
    }

    /// Announces an address space that a segment names.
    pub fn space(&mut self, space: SpaceId, guest: GuestId) -> io::Result<()> {
        if !self.spaces.insert(space) {
            return Ok(());
        }
        let space = proto::Space { id: Some(space.0), guest: Some(guest.0), process: None };
        self.glass(proto::Glass { space: Some(space), ..Default::default() })
    }

    /// Announces the address space of a process, which samples name from then on.
    pub fn space_of(&mut self, space: SpaceId, guest: GuestId, process: ProcessId) -> io::Result<()> {
        self.spaces.insert(space);
        self.of_processes.insert(space);
        let space = proto::Space { id: Some(space.0), guest: Some(guest.0), process: Some(process.0) };
        self.glass(proto::Glass { space: Some(space), ..Default::default() })
    }

    /// Announces a process, or more of its programs: those of an earlier call are not repeated. Times of programs
    /// are since the start of the recording.
    pub fn process(&mut self, process: &Process) -> io::Result<()> {
        let start = self.clocks.boottime_ns;
        let program = |since: &crate::guest::ProgramSince| proto::ProgramSince {
            timestamp: Some(start.saturating_add(since.time_ns)),
            name: some_bytes(&since.name),
        };
        let message = proto::GuestProcess {
            id: Some(process.id.0),
            guest: Some(process.guest.0),
            pid: Some(process.pid),
            namespace_pid: process.namespace_pid,
            parent: process.parent.map(|parent| parent.0),
            start_ns: process.start_ns,
            cgroup: (!process.cgroup.is_empty()).then(|| process.cgroup.as_bytes().to_vec()),
            programs: process.programs.iter().map(program).collect(),
        };
        let pid = self.guest_pid(process);
        let perfetto = pid.zip(process.programs.last()).map(|(pid, program)| {
            self.processes.insert(process.id, (process.pid, pid));
            proto::Process { pid: Some(pid as i32), cmdline: vec![program.name.clone().into_bytes()] }
        });
        self.packet(TracePacket {
            timestamp: perfetto.is_some().then_some(start),
            process_tree: perfetto.map(|process| proto::ProcessTree { processes: vec![process], threads: Vec::new() }),
            glass: Some(proto::Glass { process: Some(message), ..Default::default() }),
            ..Default::default()
        })
    }

    /// The process ID of a machine's process for Perfetto, where it must differ from those of this machine. `None` of the idle task, and of
    /// processes of this machine, which are guests.
    fn guest_pid(&self, process: &Process) -> Option<u32> {
        let is_machine = self.guests.get(&process.guest).is_some_and(|kind| kind.is_machine());
        let has_pid = |kind: &GuestKind| !kind.is_machine() || perfetto_pid(*kind) == process.pid;
        let is_taken = self.guests.values().any(has_pid);
        (is_machine && process.pid != 0)
            .then(|| if is_taken { process.pid.saturating_add(FIRST_GUEST_PID) } else { process.pid })
    }

    /// Announces a thread of a process, or its new name.
    pub fn thread(&mut self, thread: &Thread) -> io::Result<()> {
        let message = proto::GuestThread {
            id: Some(thread.id.0),
            process: Some(thread.process.0),
            tid: Some(thread.tid),
            name: some_bytes(&thread.name),
            start_ns: thread.start_ns,
        };
        let perfetto = self.processes.get(&thread.process).map(|(pid, perfetto_pid)| {
            let tid = thread.tid.saturating_add(perfetto_pid - pid);
            self.threads.insert(thread.id, (*perfetto_pid, tid));
            proto::Thread { tid: Some(tid as i32), tgid: Some(*perfetto_pid as i32), name: some_bytes(&thread.name) }
        });
        self.packet(TracePacket {
            timestamp: perfetto.is_some().then_some(self.clocks.boottime_ns),
            process_tree: perfetto.map(|thread| proto::ProcessTree { processes: Vec::new(), threads: vec![thread] }),
            glass: Some(proto::Glass { thread: Some(message), ..Default::default() }),
            ..Default::default()
        })
    }

    /// Announces an image; the result names it in [`frame`](Writer::frame).
    pub fn image(&mut self, image: &ImageId, start: u64, end: u64) -> io::Result<u64> {
        let iid = self.next_iid();
        let path = perfetto_path(&image.path).as_bytes()[1..].to_vec();
        let mut data = proto::InternedData {
            mapping_paths: vec![proto::InternedString { iid: Some(iid), str: Some(path) }],
            ..Default::default()
        };
        if !image.build_id.is_empty() {
            data.build_ids = vec![proto::InternedString { iid: Some(iid), str: Some(image.build_id.clone()) }];
        }
        data.mappings = vec![proto::Mapping {
            iid: Some(iid),
            build_id: (!image.build_id.is_empty()).then_some(iid),
            start: Some(start),
            end: Some(end),
            path_string_ids: vec![iid],
        }];
        self.interned(data)?;
        Ok(iid)
    }

    /// Announces a frame: an address for which the image was linked, or an absolute one without image.
    pub fn frame(&mut self, image: Option<u64>, address: u64) -> io::Result<u64> {
        let iid = self.next_iid();
        let frame = proto::Frame { iid: Some(iid), mapping_id: image, rel_pc: Some(address) };
        self.interned(proto::InternedData { frames: vec![frame], ..Default::default() })?;
        Ok(iid)
    }

    /// Announces a stack; `frames` come from [`frame`](Writer::frame), outermost first.
    pub fn callstack(&mut self, frames: &[u64]) -> io::Result<u64> {
        let iid = self.next_iid();
        let callstack = proto::Callstack { iid: Some(iid), frame_ids: frames.to_vec() };
        self.interned(proto::InternedData { callstacks: vec![callstack], ..Default::default() })?;
        Ok(iid)
    }

    /// Appends a sample.
    pub fn sample(&mut self, sample: &SampleRecord<'_>) -> io::Result<()> {
        let end = ENDS.iter().position(|(end, _)| *end == sample.end).unwrap_or(0);
        let track = self.tracks.get(&sample.track).copied().unwrap_or_default();
        let of_guest = sample.thread.and_then(|thread| self.threads.get(&thread)).copied();
        let (pid, tid) = of_guest.unwrap_or((track.pid, track.tid));
        let mode = sample.parts.first().map_or(Mode::default(), |part| part.mode);
        let perf_sample = proto::PerfSample {
            cpu: Some(track.cpu),
            pid: Some(pid),
            tid: Some(tid),
            callstack_iid: sample.callstack,
            cpu_mode: Some(cpu_mode(mode, track.is_machine)),
            unwind_error: (sample.end != StackEnd::Complete).then_some(ENDS[end].1),
        };
        let is_written =
            !is_plain(sample.parts) || sample.parts.iter().any(|part| self.of_processes.contains(&part.space));
        let extra = proto::SampleExtra {
            track: Some(sample.track),
            state: Some(sample.state.number() as u32),
            end: Some(end as u32),
            frozen_ns: (sample.frozen_ns > 0).then_some(sample.frozen_ns),
            segments: if is_written { segments(sample.parts) } else { Vec::new() },
            thread: sample.thread.map(|thread| thread.0),
        };
        self.packet(TracePacket {
            timestamp: Some(self.timestamp(sample.time_ns)),
            sequence_flags: Some(FLAG_NEEDS_STATE),
            perf_sample: Some(perf_sample),
            glass: Some(proto::Glass { sample: Some(extra), ..Default::default() }),
            ..Default::default()
        })
    }

    /// Appends a warning for the user.
    pub fn warning(&mut self, text: &str) -> io::Result<()> {
        self.glass(proto::Glass { warning: some_bytes(text), ..Default::default() })
    }

    /// Appends how many frames of a guest's processes have their names from where: a phrase, frames.
    pub fn named(&mut self, sources: impl Iterator<Item = (&'static str, u64)>) -> io::Result<()> {
        let source = |(text, frames)| proto::NameSource { text: some_bytes(text), frames: Some(frames) };
        let named = proto::Named { sources: sources.map(source).collect() };
        self.glass(proto::Glass { named: Some(named), ..Default::default() })
    }

    /// Appends a piece of a trace.
    pub fn trace(&mut self, piece: &Piece) -> io::Result<()> {
        for message in pieces::messages(piece, |monotonic_ns| self.timestamp(monotonic_ns)) {
            self.glass(proto::Glass { trace: Some(message), ..Default::default() })?;
        }
        Ok(())
    }

    /// Appends the names of addresses in an image.
    pub fn symbols(&mut self, image: &ImageId, now_ns: u64, symbols: &[(u64, Vec<Location>)]) -> io::Result<()> {
        for module in module_packets(image, symbols) {
            self.packet(TracePacket {
                timestamp: Some(self.timestamp(now_ns)),
                module_symbols: Some(module),
                ..Default::default()
            })?;
        }
        Ok(())
    }

    /// Appends the sequence of names at an address of an image: each with its start time on the clock of
    /// samples. Nothing is written if the name never changed.
    pub fn changes(&mut self, image: Option<u64>, address: u64, changes: &[(u64, Vec<Location>)]) -> io::Result<()> {
        /// Of the names at one address, the last.
        const CHANGES_MAX: usize = 1024;
        if changes.is_empty() {
            return Ok(());
        }
        // As many as fit into a packet with the longest names.
        let mut bytes = 0;
        let fits = |(_, lines): &&(u64, Vec<Location>)| {
            let room = |text: &str| text.len().min(pieces::NAME_BYTES_MAX);
            bytes +=
                lines.iter().map(|line| room(&line.function) + line.file.as_deref().map_or(0, room)).sum::<usize>();
            bytes <= PACKET_BYTES_MAX / 2
        };
        let kept = changes.iter().rev().take(CHANGES_MAX).take_while(fits).count();
        let changes = changes[changes.len() - kept..].iter();
        let since = |(from_ns, lines): &(u64, Vec<Location>)| proto::NamesSince {
            timestamp: Some(self.timestamp(*from_ns)),
            lines: lines.iter().map(line).collect(),
        };
        let changes = changes.map(since).collect();
        let changed = proto::ChangedNames { mapping_id: image, address: Some(address), changes };
        let glass = proto::Glass { changed: Some(changed), ..Default::default() };
        self.packet(TracePacket { sequence_flags: Some(FLAG_NEEDS_STATE), glass: Some(glass), ..Default::default() })
    }

    /// Appends the cost so far; the last one in a file counts.
    pub fn cost(&mut self, cost: &Cost, duration_ns: u64, complete: bool) -> io::Result<()> {
        let pause = proto::Pause {
            count: Some(cost.pause.count),
            median_ns: Some(cost.pause.median_ns),
            p99_ns: Some(cost.pause.p99_ns),
            max_ns: Some(cost.pause.max_ns),
            sum_ns: Some(cost.pause.sum_ns),
        };
        let cost = proto::Cost {
            samples_wanted: Some(cost.samples_wanted),
            samples_taken: Some(cost.samples_taken),
            samples_lost: Some(cost.samples_lost),
            samples_late: Some(cost.samples_late),
            stacks_broken: Some(cost.stacks_broken),
            profiler_cpu_ns: Some(cost.profiler_cpu_ns),
            duration_ns: Some(duration_ns),
            pause: Some(pause),
            complete: Some(complete),
            losses: (cost.losses != Losses::default()).then(|| losses(&cost.losses)),
            sampling_cpu_ns: (cost.sampling_cpu_ns > 0).then_some(cost.sampling_cpu_ns),
        };
        self.glass(proto::Glass { cost: Some(cost), ..Default::default() })?;
        self.output.flush()
    }

    /// Flushes to the operating system.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// The underlying writer.
    pub fn into_inner(self) -> W {
        self.output
    }
}
