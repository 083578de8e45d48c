//! Traces in recordings: reading returns what was written, and the whole parts of a cut or changed file.

use glass_profiler_core::files::NoFiles;
use glass_profiler_core::model::{Cost, Origin};
use glass_profiler_core::recording::{Clocks, PlainSettings, Recording, Writer, open, write_plain};
use glass_profiler_core::trace::raw::{ClockPoint, Function, Piece, RawChunk, RawTrace, Words};
use proptest::prelude::*;

const CLOCKS: Clocks = Clocks { monotonic_ns: 1_000, boottime_ns: 51_000, realtime_ns: 1_700_000_000_000_000_000 };

fn ring(ring: u32, name: &str) -> Piece {
    Piece::Ring { ring, name: name.to_owned() }
}

fn point(ticks: u64, time_ns: u64) -> Piece {
    Piece::Clock(ClockPoint { ticks, time_ns, ticks_per_second: 3_000_000_000, error_ns: 25 })
}

fn events(first: u64, count: u64) -> Vec<Words> {
    (first..first + count).map(|number| [number, !number, number << 32, u64::MAX]).collect()
}

fn chunk(ring: u32, first: u64, count: u64) -> Piece {
    Piece::Chunk { ring, first, events: events(first, count) }
}

fn function(number: u32) -> Function {
    Function { number, name: format!("module::function_{number}"), file: Some("a.rs".to_owned()), line: Some(number) }
}

/// One piece of each kind, and a gap of two events.
fn small() -> Vec<Piece> {
    vec![
        ring(0, "core 0"),
        Piece::Names { first: 1, names: vec!["disk".to_owned(), "serve".to_owned()] },
        point(10, 2_000),
        chunk(0, 0, 3),
        ring(1, "core 1"),
        // Where reading of it started.
        chunk(1, 7, 0),
        chunk(1, 7, 1),
        Piece::Functions(vec![function(3), Function { number: 4, name: "0x1000".to_owned(), ..Default::default() }]),
        chunk(0, 5, 2),
        Piece::Shortage { names_lost: 2, rings_lost: 1 },
        point(20, 5_000),
    ]
}

fn write(pieces: &[Piece]) -> Vec<u8> {
    let origin = Origin { guest: "guest".to_owned(), ..Default::default() };
    let mut writer = Writer::start(Vec::new(), CLOCKS, &origin).unwrap();
    for piece in pieces {
        writer.trace(piece).unwrap();
    }
    writer.cost(&Cost::default(), 9_000, true).unwrap();
    writer.into_inner()
}

/// What these pieces give if nothing is lost.
fn whole(pieces: &[Piece]) -> RawTrace {
    let mut trace = RawTrace::default();
    for piece in pieces {
        let mut piece = piece.clone();
        if let Piece::Clock(point) = &mut piece {
            point.time_ns -= CLOCKS.monotonic_ns;
        }
        assert!(trace.add(piece));
    }
    trace
}

fn read(bytes: &[u8]) -> Recording {
    open(bytes, &mut NoFiles).unwrap()
}

#[test]
fn everything_comes_back() {
    let recording = read(&write(&small()));
    assert_eq!(recording.trace, whole(&small()));
    assert_eq!(recording.trace.clock.iter().map(|point| point.time_ns).collect::<Vec<_>>(), [1_000, 4_000]);
    assert_eq!(recording.trace.event_count(), 6);
    assert_eq!(recording.profile.warnings, [""; 0]);
    assert!(recording.is_complete);
}

#[test]
fn large_pieces_are_split_and_joined_again() {
    let count = (1 << 20) + 5;
    let functions: Vec<Function> = (0..65_536).map(function).collect();
    let names: Vec<String> = (0..5000).map(|number| format!("name {number}")).collect();
    let pieces = [
        ring(0, "core 0"),
        chunk(0, 3, count),
        Piece::Functions(functions.clone()),
        Piece::Names { first: 1, names: names.clone() },
        ring(0, &"ä".repeat(1 << 20)),
    ];
    let bytes = write(&pieces);
    let RawTrace { rings, names: read_names, functions: read_functions, .. } = read(&bytes).trace;
    assert_eq!(read_functions, functions);
    assert_eq!(read_names[1..], names);
    assert_eq!(rings[0].name, "ä".repeat(4096), "a name has a limit");
    let mut next = 3;
    for RawChunk { first, events } in &rings[0].chunks {
        assert_eq!((*first, events[0][0]), (next, next), "no event is missing between chunks");
        next += events.len() as u64;
    }
    assert_eq!(next, 3 + count);
    // A file that is cut lacks at most one packet.
    let half = read(&bytes[..16 << 20]);
    assert!(half.trace.event_count() >= (15 << 20) / 32, "{}", half.trace.event_count());
}

#[test]
fn a_cut_at_any_byte_gives_what_is_whole() {
    let bytes = write(&small());
    let (mut events, mut points, mut readable) = (0, 0, 0);
    for length in 1..bytes.len() {
        let Ok(recording) = open(&bytes[..length], &mut NoFiles) else {
            assert_eq!(readable, 0, "{length}");
            continue;
        };
        readable += 1;
        assert!(!recording.is_complete && recording.profile.warnings.len() == 1, "{length}");
        assert!(recording.trace.event_count() >= events && recording.trace.clock.len() >= points, "{length}");
        (events, points) = (recording.trace.event_count(), recording.trace.clock.len());
        let last_ns = recording.trace.clock.last().map_or(0, |point| point.time_ns);
        assert_eq!(recording.profile.origin.duration_ns, last_ns, "as far as is known");
    }
    assert_eq!((events, points), (6, 2));
}

#[test]
fn no_changed_bit_does_harm() {
    let bytes = write(&small());
    let plain_bytes = {
        let mut plain = Vec::new();
        write_plain(&bytes, &read(&bytes), PlainSettings::default(), &mut plain).unwrap();
        plain.len()
    };
    assert!(plain_bytes < bytes.len() / 2, "a plain trace has none of ours");
    let mut fewer = 0;
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let Ok(recording) = open(&changed, &mut NoFiles) else { continue };
        if recording.trace.event_count() < 6 {
            // Missing parts are reported, except a field that was changed into an unknown one.
            fewer += u32::from(!recording.profile.warnings.is_empty());
        }
    }
    assert!(fewer > 100, "{fewer}");
}

#[test]
fn what_cannot_be_is_left_out_and_counted() {
    let wrong = [
        chunk(9, 0, 1),
        chunk(0, 1, 1),
        Piece::Chunk { ring: 0, first: u64::MAX - 1, events: events(0, 5) },
        ring(7, "core 7"),
        Piece::Names { first: u32::MAX, names: vec!["x".to_owned()] },
        Piece::Functions(vec![function(1 << 20)]),
    ];
    let recording = read(&write(&[&small()[..], &wrong].concat()));
    assert_eq!(recording.trace, whole(&small()));
    let warnings = recording.profile.warnings.join("\n");
    assert!(warnings.contains(&format!("{} packets of the recording are damaged", wrong.len())), "{warnings}");
}

fn any_piece() -> impl Strategy<Value = Piece> {
    let name = "[a-z ]{0,9}";
    let function = (0u32..70_000, name, proptest::option::of(name), any::<Option<u32>>())
        .prop_map(|(number, name, file, line)| Function { number, name, file, line });
    prop_oneof![
        (0u32..5, name).prop_map(|(ring, name)| Piece::Ring { ring, name }),
        (prop_oneof![0u32..50, any::<u32>().prop_map(|high| high | 1 << 20)], proptest::collection::vec(name, 0..4))
            .prop_map(|(first, names)| Piece::Names { first, names }),
        (0u32..5, any::<u64>(), proptest::collection::vec(any::<Words>(), 0..4))
            .prop_map(|(ring, first, events)| Piece::Chunk { ring, first, events }),
        (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
            |(ticks, time_ns, ticks_per_second, error_ns)| Piece::Clock(ClockPoint {
                ticks,
                time_ns,
                ticks_per_second,
                error_ns
            })
        ),
        proptest::collection::vec(function, 0..4).prop_map(Piece::Functions),
        any::<(u32, u32)>().prop_map(|(names_lost, rings_lost)| Piece::Shortage { names_lost, rings_lost }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_pieces_are_read_as_they_are_added(pieces in proptest::collection::vec(any_piece(), 0..30)) {
        let mut expected = RawTrace::default();
        for piece in &pieces {
            let mut piece = piece.clone();
            let is_good = match &mut piece {
                Piece::Clock(point) => {
                    let boottime = CLOCKS.boottime_ns.saturating_add(point.time_ns.saturating_sub(CLOCKS.monotonic_ns));
                    point.time_ns = boottime - CLOCKS.boottime_ns;
                    true
                }
                Piece::Chunk { first, events, .. } => first.checked_add(events.len() as u64).is_some(),
                Piece::Names { names, .. } => !names.is_empty(),
                Piece::Functions(functions) => functions.iter().all(|function| function.number < 65_536),
                _ => true,
            };
            if is_good {
                expected.add(piece);
            }
        }
        prop_assert_eq!(read(&write(&pieces)).trace, expected);
    }
}
