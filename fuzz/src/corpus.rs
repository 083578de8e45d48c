//! Valid inputs, made by our own writers.

pub mod elf;
pub mod linux;

use glass_profiler_core::arch::{Architecture, Width};
use glass_profiler_core::guest::{Guest, GuestId, GuestKind, Mode, Process, ProcessId, SpaceId};
use glass_profiler_core::images::Part;
use glass_profiler_core::model::{Cost, Origin, StackEnd, State};
use glass_profiler_core::recording::{Clocks, ImageId, SampleRecord, TrackRecord, Writer};
use glass_profiler_core::symbols::Location;
use glass_profiler_core::trace::example;
use glass_profiler_core::trace::raw::{Piece, RawTrace};

/// The clocks of all recordings here.
pub const CLOCKS: Clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 1_700_000_000_000_000_000 };

/// Recordings: of samples, of a trace, of both, and one that was cut.
pub fn recordings() -> Vec<Vec<u8>> {
    let trace = pieces(&example::queue(400, 7));
    let none: &[Piece] = &[];
    [(true, none, true), (false, &trace, true), (true, &trace[..], true), (true, &trace[..3], false)]
        .map(|(has_samples, trace, is_complete)| recording(has_samples, trace, is_complete))
        .into_iter()
        .chain([host_and_guest().expect("memory can be written to")])
        .collect()
}

/// A VM with its VMM beside it: samples of both in one stack, and of a thread of the VMM.
fn host_and_guest() -> std::io::Result<Vec<u8>> {
    let origin = Origin { guest: "linux (VM)".to_owned(), rate_hz: 997, ..Origin::default() };
    let mut writer = Writer::start(Vec::new(), CLOCKS, &origin)?;
    let kinds = [GuestKind::Vm { vmm: 7 }, GuestKind::Process { pid: 7 }];
    for (number, (kind, name)) in (0..).zip(kinds.into_iter().zip(["linux", "qemu"])) {
        let (id, architecture) = (GuestId(number), Architecture::X86_64);
        writer.guest(&Guest { id, kind, name: name.to_owned(), architecture })?;
        writer.track(&TrackRecord { number, guest: id, id: number.into(), name: name.to_owned() })?;
        writer.space(SpaceId(number), id)?;
    }
    let process = Process { id: ProcessId(1), guest: GuestId(1), pid: 7, ..Process::default() };
    writer.process(&process)?;
    writer.space_of(SpaceId(2), GuestId(1), ProcessId(1))?;
    let frames = (1..=6).map(|address| writer.frame(None, address)).collect::<std::io::Result<Vec<u64>>>()?;
    let callstack = Some(writer.callstack(&frames)?);
    let part = |space, mode, calls, apart_ns| Part { space: SpaceId(space), mode, calls, apart_ns, ..Part::default() };
    let merged = [
        part(2, Mode::Kernel, 1, 40_000),
        Part { end: StackEnd::NoUnwindInfo, ..part(2, Mode::User, 2, 0) },
        part(0, Mode::Kernel, 3, 0),
    ];
    let own = [part(2, Mode::Kernel, 2, 0), part(2, Mode::User, 4, 0)];
    for number in 0..24 {
        let state = [State::Running, State::InVmm, State::Stolen, State::Idle][number as usize % 4];
        let (track, parts) = if number % 3 == 0 { (1, &own[..]) } else { (0, &merged[..]) };
        let time_ns = 1_000 + 1_000_000 * number;
        writer.sample(&SampleRecord { time_ns, track, callstack, state, parts, ..SampleRecord::default() })?;
    }
    writer.cost(&Cost::default(), 30_000_000, true)?;
    Ok(writer.into_inner())
}

/// A trace as a source delivers it.
pub fn pieces(trace: &RawTrace) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = trace.clock.iter().copied().map(Piece::Clock).collect();
    pieces.push(Piece::Names { first: 0, names: trace.names.clone() });
    for (ring, raw) in (0u32..).zip(&trace.rings) {
        pieces.push(Piece::Ring { ring, name: raw.name.clone() });
        pieces.extend(raw.chunks.iter().map(|chunk| Piece::Chunk {
            ring,
            first: chunk.first,
            events: chunk.events.clone(),
        }));
    }
    pieces.push(Piece::Functions(trace.functions.clone()));
    pieces.push(Piece::Shortage { names_lost: 2, rings_lost: 1 });
    pieces
}

fn recording(has_samples: bool, trace: &[Piece], is_complete: bool) -> Vec<u8> {
    write_recording(has_samples, trace, is_complete).expect("memory can be written to")
}

fn write_recording(has_samples: bool, trace: &[Piece], is_complete: bool) -> std::io::Result<Vec<u8>> {
    let origin = Origin { guest: "queue (VM)".to_owned(), rate_hz: 997, ..Origin::default() };
    let mut writer = Writer::start(Vec::new(), CLOCKS, &origin)?;
    let (guest, kind) = (GuestId(0), GuestKind::Vm { vmm: 7 });
    writer.guest(&Guest { id: guest, kind, name: "queue".to_owned(), architecture: Architecture::X86_64 })?;
    writer.track(&TrackRecord { number: 0, guest, id: 0, name: "vcpu 0".to_owned() })?;
    writer.track(&TrackRecord { number: 1, guest, id: 1, name: "vcpu 1".to_owned() })?;
    writer.space(SpaceId(0), guest)?;
    writer.frozen(1, 77_000)?;
    trace.iter().try_for_each(|piece| writer.trace(piece))?;
    if has_samples {
        samples(&mut writer)?;
    }
    writer.warning("one core was never seen")?;
    let cost = Cost { samples_wanted: 62, samples_taken: 60, samples_lost: 2, ..Cost::default() };
    writer.cost(&cost, 60_000_000, is_complete)?;
    Ok(writer.into_inner())
}

fn samples(writer: &mut Writer<Vec<u8>>) -> std::io::Result<()> {
    let image = ImageId { path: "/images/queue".to_owned(), build_id: vec![1, 2, 3, 4] };
    let mapped = writer.image(&image, 0x1000, 0x9000)?;
    let mut frames = Vec::new();
    for address in (0x1010..0x1090).step_by(16) {
        frames.push(writer.frame(Some(mapped), address)?);
    }
    frames.push(writer.frame(None, 0xffff_8000_0000_1000)?);
    let mut callstacks = Vec::new();
    for length in 1..=frames.len() {
        callstacks.push(writer.callstack(&frames[..length])?);
    }
    // A function that calls itself.
    callstacks.push(writer.callstack(&[frames[0], frames[1], frames[1], frames[1]])?);
    let widths = [Width::Bits64, Width::Bits32, Width::Bits16];
    let ends = [StackEnd::Complete, StackEnd::Complete, StackEnd::CopyEnded, StackEnd::BadAddress];
    for index in 0..60 {
        let user = Part { calls: 1, end: ends[index % 4], ..Part::default() };
        let kernel = Part { mode: Mode::Kernel, width: widths[index % 3], calls: 1, ..Part::default() };
        writer.sample(&SampleRecord {
            time_ns: 2_000 + index as u64 * 1_000_000,
            track: index as u32 % 2,
            callstack: (index % 7 > 0).then(|| callstacks[index % callstacks.len()]),
            end: ends[index % 4],
            state: State::ALL[index / 3 % State::ALL.len()],
            thread: None,
            frozen_ns: 9_000,
            parts: &[kernel, user][..index % 3],
        })?;
    }
    let location = |function: &str, line| Location {
        function: function.to_owned(),
        file: Some("src/queue.rs".to_owned()),
        line: Some(line),
        start_line: Some(1),
    };
    let names: Vec<_> = (0x1010..0x1080)
        .step_by(16)
        .map(|address| {
            let line = address as u32 / 16;
            (address, vec![location("core::ptr::read", 9), location(&format!("queue::part_{line}::<T>"), line)])
        })
        .collect();
    let changes = [(1_000_000, vec![location("first", 1)]), (30_000_000, Vec::new())];
    writer.changes(Some(mapped), 0x1010, &changes)?;
    writer.symbols(&image, 5_000, &names)
}
