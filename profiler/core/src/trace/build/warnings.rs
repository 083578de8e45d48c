//! Warnings about a trace, one sentence each.

use std::collections::BTreeMap;

use crate::trace::model::{Loss, Trace};
use crate::trace::raw::RawTrace;

/// Irregularities of the events.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Events of unknown kinds.
    pub(super) unknown: u64,
    /// Some of these kinds.
    pub(super) unknown_kinds: BTreeMap<u16, u64>,
    /// Open at the end.
    pub(super) open_polls: u64,
    pub(super) open_requests: u64,
    pub(super) open_spans: u64,
    pub(super) open_calls: u64,
    /// Events of polls in impossible places.
    pub(super) misplaced: u64,
    /// Exits without entry, entries without exit, functions without name.
    pub(super) calls: (u64, u64, u64),
    /// The guest's last event records that all groups are off.
    pub(super) is_off: bool,
    /// Events of each ring whose clock was behind.
    pub(super) backwards: Vec<u64>,
}

impl Findings {
    pub(super) fn sentences(&self, raw: &RawTrace, trace: &Trace) -> Vec<String> {
        let mut said = Vec::new();
        said.extend(lost(trace));
        said.extend(late_rings(raw, trace));
        if raw.names_lost > 0 {
            let names = plural(raw.names_lost.into(), "name is", "names are");
            said.push(format!("the guest's table of names was full: {names} missing"));
        }
        if raw.rings_lost > 0 {
            let threads = plural(raw.rings_lost.into(), "thread", "threads");
            said.push(format!("{threads} of the guest found no ring: nothing of them is in the trace"));
        }
        said.extend(self.clock_went_back(trace));
        if self.unknown > 0 {
            let kinds: Vec<String> = self.unknown_kinds.keys().map(u16::to_string).collect();
            let events = plural(self.unknown, "event has a kind", "events have kinds");
            said.push(format!(
                "{events} that this program does not know ({}): use the one that belongs to the guest",
                kinds.join(", ")
            ));
        }
        if self.misplaced > 0 {
            let events = plural(self.misplaced, "event", "events");
            said.push(format!("{events} of polls came where they cannot be: polls around them are cut"));
        }
        said.extend(self.of_calls());
        said.extend(self.cut_at_the_end());
        said
    }

    fn clock_went_back(&self, trace: &Trace) -> Option<String> {
        let all: u64 = self.backwards.iter().sum();
        let (core, _) = self.backwards.iter().enumerate().max_by_key(|(_, count)| **count)?;
        let name = trace.cores.get(core).map_or("", |core| &core.name);
        (all > 0).then(|| {
            let events = plural(all, "event was", "events were");
            format!(
                "the clock went back: {events} before the one that came first, most on {name}; they were moved after it"
            )
        })
    }

    fn of_calls(&self) -> Vec<String> {
        let (exits, entries, nameless) = self.calls;
        let mut said = Vec::new();
        let parts: Vec<String> = [
            (exits, "return has no call", "returns have no call"),
            (entries, "call has no return", "calls have no return"),
        ]
        .iter()
        .filter(|(count, _, _)| *count > 0)
        .map(|(count, one, many)| plural(*count, one, many))
        .collect();
        if !parts.is_empty() {
            said.push(format!("{}: durations around them are cut", list(&parts)));
        }
        if nameless > 0 {
            let functions = plural(nameless, "function has", "functions have");
            said.push(format!("{functions} no name: record with the symbol file of this very image (--symbols)"));
        }
        said
    }

    fn cut_at_the_end(&self) -> Option<String> {
        let open = [
            (self.open_polls, "poll", "polls"),
            (self.open_calls, "call", "calls"),
            (self.open_requests, "request", "requests"),
            (self.open_spans, "span", "spans"),
        ];
        let parts: Vec<String> = open
            .iter()
            .filter(|(count, _, _)| *count > 0)
            .map(|(count, one, many)| plural(*count, one, many))
            .collect();
        let are = match (parts.len(), open.iter().map(|(count, _, _)| count).sum::<u64>()) {
            (_, 1) => "was",
            _ => "were",
        };
        (!self.is_off && !parts.is_empty())
            .then(|| format!("the trace was cut at its end, while the guest still traced: {} {are} open", list(&parts)))
    }
}

/// How much is missing, and the place of most of it.
fn lost(trace: &Trace) -> Option<String> {
    let lost = trace.losses.iter().fold(0u64, |sum, loss| sum.saturating_add(loss.events));
    let worst: &Loss = trace.losses.iter().max_by_key(|loss| loss.events)?;
    let share = lost as f64 * 100.0 / (lost as f64 + trace.event_count as f64);
    let place = worst.interval;
    let core = trace.cores.get(place.core as usize).map_or("", |core| &core.name);
    let others = match trace.losses.len() as u64 - 1 {
        0 => String::new(),
        others => format!(" and in {}", plural(others, "other place", "other places")),
    };
    Some(format!(
        "{} overwritten before they could be read ({share:.1} % of all), on {core} from {:.6} s to {:.6} s{others}; what was \
         open there is cut",
        plural(lost, "event was", "events were"),
        place.start_ns as f64 / 1e9,
        place.end_ns as f64 / 1e9,
    ))
}

/// Rings whose start was overwritten.
fn late_rings(raw: &RawTrace, trace: &Trace) -> Option<String> {
    // A chunk without events marks where reading started: earlier events were not requested.
    let late = |ring: &crate::trace::raw::RawRing| {
        let began = ring.chunks.first().filter(|chunk| chunk.events.is_empty()).map_or(0, |chunk| chunk.first);
        let first = ring.chunks.iter().find(|chunk| !chunk.events.is_empty()).map_or(0, |chunk| chunk.first);
        first.saturating_sub(began)
    };
    let parts: Vec<String> = raw
        .rings
        .iter()
        .zip(&trace.cores)
        .filter(|(ring, _)| late(ring) > 0)
        .map(|(ring, core)| format!("{} of {}", thousands(late(ring)), core.name))
        .collect();
    let parts = match parts.len() {
        0..=4 => parts,
        more => [&parts[..3], &[format!("those of {} others", more - 3)]].concat(),
    };
    (!parts.is_empty())
        .then(|| format!("the oldest events are not in the trace, only the newest were kept: {}", list(&parts)))
}

fn list(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", thousands(count), if count == 1 { one } else { many })
}

/// `1234567` as `1,234,567`.
fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
