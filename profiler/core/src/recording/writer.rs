//! Appends packets to a recording.

use std::io::{self, Write};

use prost::Message;

use super::proto::{self, TracePacket};
use super::{ENDS, PACKET_BYTES_MAX, STATES, VERSION, perfetto_path, pieces};
use crate::model::{Cost, Origin, StackEnd, State};
use crate::symbols::Location;
use crate::trace::raw::Piece;

/// The one packet sequence that we write; interned data belongs to it.
pub(super) const SEQUENCE: u32 = 1;
const FLAG_CLEARED: u32 = 1;
const FLAG_NEEDS_STATE: u32 = 2;

/// The clocks of the machine, read together when the recording starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`: what samples are stamped with.
    pub monotonic_ns: u64,
    /// `CLOCK_BOOTTIME`: what Perfetto counts in.
    pub boottime_ns: u64,
    /// `CLOCK_REALTIME`: nanoseconds since 1970.
    pub realtime_ns: u64,
}

/// Which file an image is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageId {
    /// Path of the file.
    pub path: String,
    /// The GNU build id, empty if it has none.
    pub build_id: Vec<u8>,
}

/// A sample as it is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleRecord {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub time_ns: u64,
    /// Index of the track.
    pub track: u32,
    /// Process id, for Perfetto.
    pub pid: u32,
    /// Thread id, for Perfetto.
    pub tid: u32,
    /// The number of the vCPU, for Perfetto; 0 of a thread.
    pub cpu: u32,
    /// What [`Writer::callstack`] returned.
    pub callstack: u64,
    /// Why the stack has no more callers.
    pub end: StackEnd,
    /// What the track was doing.
    pub state: State,
    /// How long the guest stood still.
    pub pause_ns: u64,
    /// The operating system's kernel was running.
    pub in_kernel: bool,
}

/// Appends packets. Each is handed to the underlying writer in one call.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    buffer: Vec<u8>,
    clocks: Clocks,
    is_guest: bool,
    last_iid: u64,
}

fn some_bytes(text: &str) -> Option<Vec<u8>> {
    Some(text.as_bytes().to_vec())
}

fn line(line: &Location) -> proto::Line {
    proto::Line {
        function_name: some_bytes(&line.function),
        source_file_name: line.file.as_deref().and_then(some_bytes),
        line_number: line.line,
    }
}

/// The names of addresses in an image, in messages far below the limit of a packet even with the longest names.
pub(super) fn module_packets<'a>(
    image: &'a ImageId,
    symbols: &'a [(u64, Vec<Location>)],
) -> impl Iterator<Item = proto::ModuleSymbols> + 'a {
    const ADDRESSES_PER_PACKET: usize = 64;
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
    /// Starts a recording. `is_guest` says that samples are of a VM, not of a process.
    pub fn start(output: W, clocks: Clocks, origin: &Origin, is_guest: bool) -> io::Result<Writer<W>> {
        let mut writer = Writer { output, buffer: Vec::new(), clocks, is_guest, last_iid: 0 };
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

    /// Names a process.
    pub fn process(&mut self, pid: u32, name: &str) -> io::Result<()> {
        let process = proto::Process { pid: Some(pid as i32), cmdline: vec![name.as_bytes().to_vec()] };
        let tree = proto::ProcessTree { processes: vec![process], threads: Vec::new() };
        self.packet(TracePacket {
            timestamp: Some(self.clocks.boottime_ns),
            process_tree: Some(tree),
            ..Default::default()
        })
    }

    /// Announces a track, or its new name.
    pub fn track(&mut self, index: u32, id: u64, name: &str, pid: u32, tid: u32) -> io::Result<()> {
        let thread = proto::Thread { tid: Some(tid as i32), tgid: Some(pid as i32), name: some_bytes(name) };
        let track = proto::Track { index: Some(index), id: Some(id), name: some_bytes(name) };
        self.packet(TracePacket {
            timestamp: Some(self.clocks.boottime_ns),
            process_tree: Some(proto::ProcessTree { processes: Vec::new(), threads: vec![thread] }),
            glass: Some(proto::Glass { track: Some(track), ..Default::default() }),
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
    pub fn sample(&mut self, sample: &SampleRecord) -> io::Result<()> {
        let end = ENDS.iter().position(|(end, _)| *end == sample.end).unwrap_or(0);
        let state = STATES.iter().position(|state| *state == sample.state).unwrap_or(0);
        let mode = match (self.is_guest, sample.in_kernel) {
            (true, _) => proto::MODE_GUEST_KERNEL,
            (false, true) => proto::MODE_KERNEL,
            (false, false) => proto::MODE_USER,
        };
        let perf_sample = proto::PerfSample {
            cpu: Some(sample.cpu),
            pid: Some(sample.pid),
            tid: Some(sample.tid),
            callstack_iid: Some(sample.callstack),
            cpu_mode: Some(mode),
            unwind_error: (sample.end != StackEnd::Complete).then_some(ENDS[end].1),
        };
        let extra = proto::SampleExtra {
            track: Some(sample.track),
            state: Some(state as u32),
            end: Some(end as u32),
            pause_ns: (sample.pause_ns > 0).then_some(sample.pause_ns),
        };
        self.packet(TracePacket {
            timestamp: Some(self.timestamp(sample.time_ns)),
            sequence_flags: Some(FLAG_NEEDS_STATE),
            perf_sample: Some(perf_sample),
            glass: Some(proto::Glass { sample: Some(extra), ..Default::default() }),
            ..Default::default()
        })
    }

    /// Appends what a reader of the profile should know.
    pub fn warning(&mut self, text: &str) -> io::Result<()> {
        let glass = proto::Glass { warning: some_bytes(text), ..Default::default() };
        self.packet(TracePacket { glass: Some(glass), ..Default::default() })
    }

    /// Appends a piece of a trace.
    pub fn trace(&mut self, piece: &Piece) -> io::Result<()> {
        for message in pieces::messages(piece, |monotonic_ns| self.timestamp(monotonic_ns)) {
            let glass = proto::Glass { trace: Some(message), ..Default::default() };
            self.packet(TracePacket { glass: Some(glass), ..Default::default() })?;
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

    /// Appends what was at an address of an image one after the other: each with the time from which on, on the clock of
    /// samples. Nothing is written if it was always the same.
    pub fn changes(&mut self, image: Option<u64>, address: u64, changes: &[(u64, Vec<Location>)]) -> io::Result<()> {
        /// Of the names at one address, the last.
        const CHANGES_MAX: usize = 1024;
        if changes.is_empty() {
            return Ok(());
        }
        let changes = changes[changes.len().saturating_sub(CHANGES_MAX)..].iter();
        let since = |(from_ns, lines): &(u64, Vec<Location>)| proto::NamesSince {
            timestamp: Some(self.timestamp(*from_ns)),
            lines: lines.iter().map(line).collect(),
        };
        let changes = changes.map(since).collect();
        let changed = proto::ChangedNames { mapping_id: image, address: Some(address), changes };
        let glass = proto::Glass { changed: Some(changed), ..Default::default() };
        self.packet(TracePacket { sequence_flags: Some(FLAG_NEEDS_STATE), glass: Some(glass), ..Default::default() })
    }

    /// Appends what the recording has cost so far; the last one in a file counts.
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
        };
        let glass = proto::Glass { cost: Some(cost), ..Default::default() };
        self.packet(TracePacket { glass: Some(glass), ..Default::default() })?;
        self.output.flush()
    }

    /// Hands everything on to the operating system.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// The underlying writer.
    pub fn into_inner(self) -> W {
        self.output
    }
}
