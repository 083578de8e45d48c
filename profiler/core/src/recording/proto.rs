//! The messages of a recording: the subset of Perfetto's trace format that we write, and our own
//! extension. Field numbers of `TracePacket` and below are Perfetto's (`protos/perfetto/trace/`);
//! `docs/formats/recording.md` lists them.
//!
//! Strings from outside are `bytes`: a path or a thread's name need not be UTF-8, and one that is
//! not must not make a packet unreadable.

use prost::Message;

/// A packet. The file is a sequence of them, each as field 1 of the message `Trace`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "2")]
    pub process_tree: Option<ProcessTree>,
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "61")]
    pub module_symbols: Option<ModuleSymbols>,
    #[prost(message, optional, tag = "66")]
    pub perf_sample: Option<PerfSample>,
    /// Ours. Perfetto's reader skips fields above 999.
    #[prost(message, optional, tag = "60001")]
    pub glass: Option<Glass>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessTree {
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<Process>,
    #[prost(message, repeated, tag = "2")]
    pub threads: Vec<Thread>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Process {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub cmdline: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Thread {
    #[prost(int32, optional, tag = "1")]
    pub tid: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub name: Option<Vec<u8>>,
    #[prost(int32, optional, tag = "3")]
    pub tgid: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<ClockReading>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClockReading {
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// Values of [`ClockReading::clock_id`].
pub(crate) const CLOCK_REALTIME: u32 = 1;
pub(crate) const CLOCK_MONOTONIC: u32 = 3;
/// The default clock of [`TracePacket::timestamp`].
pub(crate) const CLOCK_BOOTTIME: u32 = 6;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TracePacketDefaults {
    #[prost(message, optional, tag = "12")]
    pub perf_sample_defaults: Option<PerfSampleDefaults>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PerfSampleDefaults {
    #[prost(message, optional, tag = "1")]
    pub timebase: Option<Timebase>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Timebase {
    #[prost(uint64, optional, tag = "2")]
    pub frequency: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "10")]
    pub name: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InternedData {
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    #[prost(message, repeated, tag = "16")]
    pub build_ids: Vec<InternedString>,
    #[prost(message, repeated, tag = "17")]
    pub mapping_paths: Vec<InternedString>,
    #[prost(message, repeated, tag = "19")]
    pub mappings: Vec<Mapping>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InternedString {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub str: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mapping {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub build_id: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub start: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub end: Option<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub path_string_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Frame {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub mapping_id: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub rel_pc: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Callstack {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Outermost caller first.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PerfSample {
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub tid: Option<u32>,
    #[prost(uint64, optional, tag = "4")]
    pub callstack_iid: Option<u64>,
    #[prost(uint32, optional, tag = "5")]
    pub cpu_mode: Option<u32>,
    #[prost(uint32, optional, tag = "16")]
    pub unwind_error: Option<u32>,
}

/// Values of [`PerfSample::cpu_mode`].
pub(crate) const MODE_KERNEL: u32 = 1;
pub(crate) const MODE_USER: u32 = 2;
pub(crate) const MODE_HYPERVISOR: u32 = 3;
pub(crate) const MODE_GUEST_KERNEL: u32 = 4;
pub(crate) const MODE_GUEST_USER: u32 = 5;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModuleSymbols {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub path: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub build_id: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "3")]
    pub address_symbols: Vec<AddressSymbols>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AddressSymbols {
    #[prost(uint64, optional, tag = "1")]
    pub address: Option<u64>,
    /// Innermost function first.
    #[prost(message, repeated, tag = "2")]
    pub lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Line {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub function_name: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub source_file_name: Option<Vec<u8>>,
    #[prost(uint32, optional, tag = "3")]
    pub line_number: Option<u32>,
    /// Our extension: the line at which the function starts.
    #[prost(uint32, optional, tag = "60001")]
    pub start_line: Option<u32>,
}

/// Our extension: data that Perfetto has no field for.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Glass {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(message, optional, tag = "2")]
    pub track: Option<Track>,
    #[prost(message, optional, tag = "3")]
    pub sample: Option<SampleExtra>,
    #[prost(message, optional, tag = "4")]
    pub cost: Option<Cost>,
    #[prost(bytes = "vec", optional, tag = "5")]
    pub warning: Option<Vec<u8>>,
    #[prost(message, optional, tag = "6")]
    pub trace: Option<TracePiece>,
    #[prost(message, optional, tag = "7")]
    pub guest: Option<Guest>,
    #[prost(message, optional, tag = "8")]
    pub space: Option<Space>,
    #[prost(message, optional, tag = "9")]
    pub changed: Option<ChangedNames>,
    #[prost(message, optional, tag = "10")]
    pub frozen: Option<Frozen>,
    #[prost(message, optional, tag = "11")]
    pub process: Option<GuestProcess>,
    #[prost(message, optional, tag = "12")]
    pub thread: Option<GuestThread>,
    #[prost(message, optional, tag = "13")]
    pub named: Option<Named>,
}

/// Where names of frames of a guest's processes are from.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Named {
    #[prost(message, repeated, tag = "1")]
    pub sources: Vec<NameSource>,
}

/// One of these places.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NameSource {
    /// A phrase behind the number.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub text: Option<Vec<u8>>,
    #[prost(uint64, optional, tag = "2")]
    pub frames: Option<u64>,
}

/// A process of a guest, or the next program of one.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct GuestProcess {
    #[prost(uint32, optional, tag = "1")]
    pub id: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub guest: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub pid: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    pub namespace_pid: Option<u32>,
    /// A number of a process in the recording.
    #[prost(uint32, optional, tag = "5")]
    pub parent: Option<u32>,
    #[prost(uint64, optional, tag = "6")]
    pub start_ns: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "7")]
    pub cgroup: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "8")]
    pub programs: Vec<ProgramSince>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProgramSince {
    /// As [`TracePacket::timestamp`].
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub name: Option<Vec<u8>>,
}

/// A thread of a process of a guest.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct GuestThread {
    #[prost(uint32, optional, tag = "1")]
    pub id: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub process: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub tid: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub name: Option<Vec<u8>>,
    #[prost(uint64, optional, tag = "5")]
    pub start_ns: Option<u64>,
}

/// Losses by kind.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Losses {
    #[prost(uint64, optional, tag = "1")]
    pub ring_full: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub throttled: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub overdue: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub not_stopped: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub queue_full: Option<u64>,
    #[prost(uint64, optional, tag = "6")]
    pub maps: Option<u64>,
    #[prost(uint64, optional, tag = "7")]
    pub forks: Option<u64>,
    #[prost(uint64, optional, tag = "8")]
    pub unknown: Option<u64>,
}

/// A guest.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Guest {
    #[prost(uint32, optional, tag = "1")]
    pub id: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub kind: Option<u32>,
    /// Its process, or its domain.
    #[prost(uint32, optional, tag = "3")]
    pub number: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub name: Option<Vec<u8>>,
    #[prost(uint32, optional, tag = "5")]
    pub architecture: Option<u32>,
}

/// An address space that segments name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Space {
    #[prost(uint32, optional, tag = "1")]
    pub id: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub guest: Option<u32>,
    /// A number of a process in the recording.
    #[prost(uint32, optional, tag = "3")]
    pub process: Option<u32>,
}

/// A pause of a track without a sample.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Frozen {
    #[prost(uint32, optional, tag = "1")]
    pub track: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub ns: Option<u64>,
}

/// A part of a stack.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Segment {
    #[prost(uint32, optional, tag = "1")]
    pub mode: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub width: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub space: Option<u32>,
    /// Its number of the stack's frames, from the innermost on.
    #[prost(uint32, optional, tag = "4")]
    pub frames: Option<u32>,
    #[prost(uint32, optional, tag = "5")]
    pub end: Option<u32>,
    /// Absent: sampled in the same stop.
    #[prost(uint64, optional, tag = "6")]
    pub apart_ns: Option<u64>,
}

/// The sequence of functions at an address.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ChangedNames {
    /// As [`Frame::mapping_id`].
    #[prost(uint64, optional, tag = "1")]
    pub mapping_id: Option<u64>,
    /// As [`Frame::rel_pc`].
    #[prost(uint64, optional, tag = "2")]
    pub address: Option<u64>,
    #[prost(message, repeated, tag = "3")]
    pub changes: Vec<NamesSince>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NamesSince {
    /// As [`TracePacket::timestamp`].
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    #[prost(message, repeated, tag = "2")]
    pub lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(uint32, optional, tag = "1")]
    pub version: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub guest: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub backend: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub symbols: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "5")]
    pub host: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "6")]
    pub recorder: Option<Vec<u8>>,
    #[prost(uint64, optional, tag = "7")]
    pub start_unix_ns: Option<u64>,
    #[prost(uint64, optional, tag = "8")]
    pub start_timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "9")]
    pub rate_hz: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Track {
    #[prost(uint32, optional, tag = "1")]
    pub index: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub id: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub name: Option<Vec<u8>>,
    #[prost(uint32, optional, tag = "4")]
    pub guest: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SampleExtra {
    #[prost(uint32, optional, tag = "1")]
    pub track: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub state: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub end: Option<u32>,
    #[prost(uint64, optional, tag = "4")]
    pub frozen_ns: Option<u64>,
    /// Innermost first; none: one, of 64 bits, whose mode is `cpu_mode`.
    #[prost(message, repeated, tag = "5")]
    pub segments: Vec<Segment>,
    /// A number of a thread in the recording.
    #[prost(uint32, optional, tag = "6")]
    pub thread: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Cost {
    #[prost(uint64, optional, tag = "1")]
    pub samples_wanted: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub samples_taken: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub samples_lost: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub samples_late: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub stacks_broken: Option<u64>,
    #[prost(uint64, optional, tag = "6")]
    pub profiler_cpu_ns: Option<u64>,
    #[prost(uint64, optional, tag = "7")]
    pub duration_ns: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub pause: Option<Pause>,
    /// The recording is complete: this is the last packet.
    #[prost(bool, optional, tag = "9")]
    pub complete: Option<bool>,
    #[prost(message, optional, tag = "10")]
    pub losses: Option<Losses>,
    #[prost(uint64, optional, tag = "11")]
    pub sampling_cpu_ns: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pause {
    #[prost(uint64, optional, tag = "1")]
    pub count: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub median_ns: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub p99_ns: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub max_ns: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub sum_ns: Option<u64>,
}

/// A piece of the guest's trace: one of its fields.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TracePiece {
    #[prost(message, optional, tag = "1")]
    pub ring: Option<TraceRing>,
    #[prost(message, optional, tag = "2")]
    pub names: Option<TraceNames>,
    #[prost(message, optional, tag = "3")]
    pub chunk: Option<TraceChunk>,
    #[prost(message, optional, tag = "4")]
    pub clock: Option<TraceClock>,
    #[prost(message, optional, tag = "5")]
    pub functions: Option<TraceFunctions>,
    #[prost(message, optional, tag = "6")]
    pub shortage: Option<TraceShortage>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TraceRing {
    #[prost(uint32, optional, tag = "1")]
    pub index: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub name: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TraceNames {
    #[prost(uint32, optional, tag = "1")]
    pub first: Option<u32>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub names: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TraceChunk {
    #[prost(uint32, optional, tag = "1")]
    pub ring: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub first: Option<u64>,
    /// Events of 32 bytes, unchanged from the ring.
    #[prost(bytes = "vec", optional, tag = "3")]
    pub events: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TraceClock {
    #[prost(uint64, optional, tag = "1")]
    pub ticks: Option<u64>,
    /// As [`TracePacket::timestamp`].
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub ticks_per_second: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub error_ns: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TraceFunctions {
    #[prost(message, repeated, tag = "1")]
    pub functions: Vec<TraceFunction>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TraceFunction {
    #[prost(uint32, optional, tag = "1")]
    pub number: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub name: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub file: Option<Vec<u8>>,
    #[prost(uint32, optional, tag = "4")]
    pub line: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TraceShortage {
    #[prost(uint32, optional, tag = "1")]
    pub names_lost: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub rings_lost: Option<u32>,
}
