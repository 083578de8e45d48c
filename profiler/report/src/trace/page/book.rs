//! What a page is made of while it is made: names, tracks, packs.

use std::cmp::Reverse;
use std::collections::HashMap;

use glass_profiler_core::trace::model::{NameId, Trace, Value};
use serde::Serialize;
use serde::ser::SerializeSeq as _;

use super::kinds::TYPES;
use super::pack::{Class, Packer};
use super::plan::Plan;
use super::track::{Level, Track, Written};
use glass_profiler_core::names::printable;

/// Tracks that a page names for each name; more are searched one by one.
const TRACKS_OF_NAME_MAX: usize = 12;

/// Tracks that may be in sight when a page opens.
const TRACKS_NEAR: usize = 160;

/// Rows of the sums of the whole trace.
const SUMS_MAX: usize = 1_000;

/// Group, name, kind, count, nanoseconds, the longest.
type SumRow = (u32, u32, u8, u64, u64, (u64, u32, u64));

/// Texts by index; 0 is empty.
pub struct Names {
    pub texts: Vec<String>,
    index: HashMap<String, u32>,
    of_trace: Vec<Option<u32>>,
}

impl Names {
    fn new(trace: &Trace) -> Names {
        let index = HashMap::from([(String::new(), 0)]);
        Names { texts: vec![String::new()], index, of_trace: vec![None; trace.names.len()] }
    }

    pub fn of(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let safe = printable(text);
        if let Some(&index) = self.index.get(&safe) {
            return index;
        }
        let index = self.texts.len() as u32;
        self.texts.push(safe.clone());
        self.index.insert(safe, index);
        index
    }

    /// A name of the trace.
    pub fn id(&mut self, trace: &Trace, id: NameId) -> u32 {
        if let Some(Some(index)) = self.of_trace.get(id as usize) {
            return *index;
        }
        let index = self.of(trace.name(id));
        if let Some(slot) = self.of_trace.get_mut(id as usize) {
            *slot = Some(index);
        }
        index
    }
}

/// Where a name stands and how often.
#[derive(Default)]
struct Use {
    count: u64,
    total_ns: u64,
    tracks: Vec<u32>,
    has_more: bool,
}

/// What all slices of a name and kind under a heading take.
#[derive(Default)]
struct Sum {
    count: u64,
    total_ns: u64,
    /// Duration, track and start.
    longest: (u64, u32, u64),
}

impl Sum {
    fn add(&mut self, ns: u64, place: (u64, u32, u64)) {
        if self.count == 0 || place.0 > self.longest.0 {
            self.longest = place;
        }
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
    }

    fn merge(&mut self, other: &Sum) {
        if self.count == 0 || other.longest.0 > self.longest.0 {
            self.longest = other.longest;
        }
        self.count += other.count;
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
    }
}

/// A track of the page.
pub struct Entry {
    kind: usize,
    name: String,
    count: usize,
    /// The track that it belongs to: it is shown when that one is opened.
    parent: Option<u32>,
    levels: Vec<Level>,
}

impl Serialize for Entry {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_seq(Some(5))?;
        fields.serialize_element(&self.kind)?;
        fields.serialize_element(&self.name)?;
        fields.serialize_element(&self.count)?;
        fields.serialize_element(&self.parent)?;
        fields.serialize_element(&self.levels)?;
        fields.end()
    }
}

/// Tracks under one heading.
#[derive(Debug, Serialize)]
pub struct Group {
    pub name: &'static str,
    pub first: u32,
    pub count: u32,
}

pub struct Book<'a> {
    pub trace: &'a Trace,
    pub plan: Plan,
    pub names: Names,
    pub packer: Packer,
    pub tracks: Vec<Entry>,
    pub groups: Vec<Group>,
    uses: HashMap<(u32, u8), Use>,
    /// By place in `groups`, name and kind.
    sums: HashMap<(u32, u32, u8), Sum>,
    pub duration_ns: u64,
}

impl<'a> Book<'a> {
    pub fn new(trace: &'a Trace) -> Book<'a> {
        Book {
            trace,
            plan: Plan::new(trace),
            names: Names::new(trace),
            packer: Packer::new(),
            tracks: Vec::new(),
            groups: Vec::new(),
            uses: HashMap::new(),
            sums: HashMap::new(),
            duration_ns: trace.end_ns.saturating_sub(trace.start_ns).max(1),
        }
    }

    /// A time as the page has it; what lies outside of the trace is moved to its edge.
    pub fn time(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.trace.start_ns).min(self.duration_ns)
    }

    pub fn range(&self, start_ns: u64, end_ns: u64) -> (u64, u64) {
        (self.time(start_ns), self.time(end_ns))
    }

    /// Puts tracks that `fill` adds under a heading, if there are any.
    pub fn group(&mut self, name: &'static str, fill: impl FnOnce(&mut Self)) {
        let first = self.tracks.len() as u32;
        fill(self);
        let count = self.tracks.len() as u32 - first;
        if count > 0 {
            self.groups.push(Group { name, first, count });
        }
    }

    /// Adds the track with the next number.
    pub fn add(&mut self, kind: usize, name: &str, parent: Option<u32>, track: Track) {
        self.count(&track, false);
        self.write(kind, name, parent, track);
    }

    /// Adds a track that shows once more what stands in others: a search does not count it.
    pub fn add_again(&mut self, kind: usize, name: &str, parent: Option<u32>, track: Track) {
        self.count(&track, true);
        self.write(kind, name, parent, track);
    }

    fn write(&mut self, kind: usize, name: &str, parent: Option<u32>, track: Track) {
        let near = self.near();
        let written = track.write(&mut self.packer, self.duration_ns, near);
        self.entry(kind, name, parent, written);
    }

    fn count(&mut self, track: &Track, is_again: bool) {
        let number = self.tracks.len() as u32;
        let mut counts: HashMap<(u32, u8), Sum> = HashMap::new();
        track.each(|name, slice_kind, start_ns, ns| {
            counts.entry((name, slice_kind)).or_default().add(ns, (ns, number, start_ns));
        });
        let group = self.groups.len() as u32;
        for ((name, kind), of) in counts {
            self.sums.entry((group, name, kind)).or_default().merge(&of);
            if is_again {
                continue;
            }
            let entry = self.uses.entry((name, kind)).or_default();
            entry.count += of.count;
            entry.total_ns = entry.total_ns.saturating_add(of.total_ns);
            if entry.tracks.len() < TRACKS_OF_NAME_MAX {
                entry.tracks.push(number);
            } else {
                entry.has_more = true;
            }
        }
    }

    /// When the next track is needed.
    pub fn near(&self) -> Class {
        if self.tracks.len() < TRACKS_NEAR { Class::Overview } else { Class::Detail }
    }

    pub fn entry(&mut self, kind: usize, name: &str, parent: Option<u32>, written: Written) {
        debug_assert!(kind < TYPES.len());
        let Written { levels, count } = written;
        self.tracks.push(Entry { kind, name: printable(name), count, parent, levels });
    }

    /// Group, name, kind, count, nanoseconds and the longest (duration, track, start) of everything in the trace, those that take
    /// most time first, at most [`SUMS_MAX`]; and how many more there are.
    pub fn sums(&mut self) -> (Vec<SumRow>, usize) {
        let mut sums: Vec<SumRow> = std::mem::take(&mut self.sums)
            .into_iter()
            .map(|((group, name, kind), of)| {
                let (ns, track, start_ns) = of.longest;
                (group, name, kind, of.count, of.total_ns, (ns, track, start_ns))
            })
            .collect();
        sums.sort_unstable_by_key(|&(group, name, kind, count, ns, _)| (Reverse((ns, count)), group, name, kind));
        let more = sums.len().saturating_sub(SUMS_MAX);
        sums.truncate(SUMS_MAX);
        (sums, more)
    }

    /// Name, kind, count, nanoseconds, tracks (none: they are too many) of everything that has a name.
    pub fn uses(&mut self) -> Vec<(u32, u8, u64, u64, Vec<u32>)> {
        let mut uses: Vec<_> = std::mem::take(&mut self.uses)
            .into_iter()
            .map(|((name, kind), of)| {
                (name, kind, of.count, of.total_ns, if of.has_more { Vec::new() } else { of.tracks })
            })
            .collect();
        uses.sort_unstable_by_key(|&(name, kind, ..)| (name, kind));
        uses
    }

    /// "key value" of each field, one a line.
    pub fn fields(&self, fields: &[(NameId, Value)]) -> String {
        let lines: Vec<String> = fields
            .iter()
            .map(|(name, value)| {
                let value = match value {
                    Value::Unsigned(number) => number.to_string(),
                    Value::Signed(number) => number.to_string(),
                    Value::Bool(is) => is.to_string(),
                    Value::Float(number) => number.to_string(),
                    Value::Text(text) => printable(text),
                };
                format!("{} = {value}", printable(self.trace.name(*name)))
            })
            .collect();
        lines.join("\n")
    }
}
