//! A guest's trace in a recording.

use std::fmt::Write as _;

use glass_formats::trace::{Event, Kind, VMM_SPANS};
use glass_profiler_core::names::printable;
use glass_profiler_core::trace::raw::{RawRing, RawTrace};
use serde_json::{Value, json};

use crate::trace::summary;

/// Rings that get a line of their own.
const RINGS_MAX: usize = 32;
/// For the name of a ring.
const NAME_COLUMNS: usize = 40;

/// Events of a ring that were recorded, and events that are missing between those.
fn counts(ring: &RawRing) -> (u64, u64) {
    let events = ring.chunks.iter().map(|chunk| chunk.events.len() as u64).sum();
    let Some((first, last)) = ring.chunks.first().zip(ring.chunks.last()) else { return (0, 0) };
    let end = last.first.saturating_add(last.events.len() as u64);
    (events, (end - first.first).saturating_sub(events))
}

/// The largest error of the clock; `None` without a point of it.
fn clock_error_ns(trace: &RawTrace) -> Option<u64> {
    trace.clock.iter().map(|point| point.error_ns).max()
}

/// Spans of the guest that start in it.
fn spans(trace: &RawTrace) -> usize {
    let events = trace.rings.iter().flat_map(|ring| &ring.chunks).flat_map(|chunk| &chunk.events);
    let starts = events.map(|words| Event::from_words(*words)).filter(|event| event.kind == Kind::SpanBegin as u16);
    starts.filter(|event| !VMM_SPANS.contains(&event.b)).count()
}

/// A table of the rings, and other counts, in lines of at most 100 columns.
pub fn to_text(out: &mut String, trace: &RawTrace) {
    let _ = writeln!(out, "\n{:<NAME_COLUMNS$}  {:>12}  {:>10}", "Trace", "events", "lost");
    for ring in trace.rings.iter().take(RINGS_MAX) {
        let (events, lost) = counts(ring);
        let name: String = printable(&ring.name).chars().take(NAME_COLUMNS - 2).collect();
        let _ = writeln!(out, "  {name:<0$}  {events:>12}  {lost:>10}", NAME_COLUMNS - 2);
    }
    if trace.rings.len() > RINGS_MAX {
        let _ = writeln!(out, "  and {} more", trace.rings.len() - RINGS_MAX);
    }
    let names = trace.names.iter().filter(|name| !name.is_empty()).count();
    let clock = match clock_error_ns(trace) {
        None => "the clock is not known".to_owned(),
        Some(u64::MAX) => "the clock is the guest's own".to_owned(),
        Some(error_ns) => format!("clock within {}", summary::error(error_ns)),
    };
    let _ = writeln!(out, "  {names} names, {} functions; {clock}", trace.functions.len());
    if trace.names_lost > 0 || trace.rings_lost > 0 {
        let _ = writeln!(out, "  the guest had no room for {} names and {} rings", trace.names_lost, trace.rings_lost);
    }
}

/// The same for scripts.
pub fn to_json(trace: &RawTrace) -> Value {
    let ring = |ring: &RawRing| {
        let (events, lost) = counts(ring);
        json!({
            "name": ring.name, "events": events, "lost": lost,
            "first_event": ring.chunks.first().map(|chunk| chunk.first),
        })
    };
    json!({
        "rings": trace.rings.iter().map(ring).collect::<Vec<_>>(),
        "events": trace.event_count(),
        "spans": spans(trace),
        "names": trace.names.iter().filter(|name| !name.is_empty()).count(),
        "functions": trace.functions.len(),
        "clock_points": trace.clock.len(),
        "clock_error_ns": clock_error_ns(trace),
        "names_lost": trace.names_lost, "rings_lost": trace.rings_lost,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::trace::raw::{ClockPoint, Piece};

    #[test]
    fn gaps_between_chunks_are_losses() {
        let mut trace = RawTrace::default();
        let chunk = |first, count| Piece::Chunk { ring: 0, first, events: vec![[0; 4]; count] };
        let ring = Piece::Ring { ring: 0, name: "core 0".to_owned() };
        let point = ClockPoint { ticks: 1, time_ns: 2, ticks_per_second: 3, error_ns: 45_000 };
        for piece in [ring, chunk(100, 5), chunk(105, 1), chunk(110, 2), Piece::Clock(point)] {
            assert!(trace.add(piece));
        }
        assert_eq!(counts(&trace.rings[0]), (8, 4));
        let mut text = String::new();
        to_text(&mut text, &trace);
        assert!(text.contains("core 0") && text.contains("clock within 45.0 us"), "{text}");
        let value = to_json(&trace);
        assert_eq!((&value["rings"][0]["lost"], &value["clock_error_ns"]), (&json!(4), &json!(45_000)));
        assert_eq!(value["rings"][0]["first_event"], 100);
    }
}
