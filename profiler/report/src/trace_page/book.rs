//! What a page is made of while it is made: names, lanes, packs.

use std::collections::HashMap;

use glass_profile::trace::model::{NameId, Trace, Value};
use serde::Serialize;
use serde::ser::SerializeSeq as _;

use super::kinds::TYPES;
use super::lane::{Lane, Level, Written};
use super::pack::{Class, Packer};
use super::plan::Plan;
use crate::names::printable;

/// Lanes that a page names for each name; more are searched one by one.
const LANES_OF_NAME_MAX: usize = 12;

/// Lanes that may be in sight when a page opens.
const LANES_NEAR: usize = 160;

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
    lanes: Vec<u32>,
    has_more: bool,
}

/// A lane of the page.
pub struct Entry {
    kind: usize,
    name: String,
    count: usize,
    /// The lane that it belongs to: it is shown when that one is opened.
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

/// Lanes under one heading.
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
    pub lanes: Vec<Entry>,
    pub groups: Vec<Group>,
    uses: HashMap<(u32, u8), Use>,
    pub duration_ns: u64,
}

impl<'a> Book<'a> {
    pub fn new(trace: &'a Trace) -> Book<'a> {
        Book {
            trace,
            plan: Plan::new(trace),
            names: Names::new(trace),
            packer: Packer::new(),
            lanes: Vec::new(),
            groups: Vec::new(),
            uses: HashMap::new(),
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

    /// Puts lanes that `fill` adds under a heading, if there are any.
    pub fn group(&mut self, name: &'static str, fill: impl FnOnce(&mut Self)) {
        let first = self.lanes.len() as u32;
        fill(self);
        let count = self.lanes.len() as u32 - first;
        if count > 0 {
            self.groups.push(Group { name, first, count });
        }
    }

    /// Adds the lane with the next number.
    pub fn add(&mut self, kind: usize, name: &str, parent: Option<u32>, lane: Lane) {
        let number = self.lanes.len() as u32;
        let mut counts: HashMap<(u32, u8), (u64, u64)> = HashMap::new();
        lane.each(|name, slice_kind, ns| {
            let (count, total) = counts.entry((name, slice_kind)).or_default();
            *count += 1;
            *total = total.saturating_add(ns);
        });
        for (key, (count, total_ns)) in counts {
            let entry = self.uses.entry(key).or_default();
            entry.count += count;
            entry.total_ns = entry.total_ns.saturating_add(total_ns);
            if entry.lanes.len() < LANES_OF_NAME_MAX {
                entry.lanes.push(number);
            } else {
                entry.has_more = true;
            }
        }
        let near = self.near();
        let written = lane.write(&mut self.packer, self.duration_ns, near);
        self.entry(kind, name, parent, written);
    }

    /// When the next lane is looked at.
    pub fn near(&self) -> Class {
        if self.lanes.len() < LANES_NEAR { Class::Overview } else { Class::Detail }
    }

    pub fn entry(&mut self, kind: usize, name: &str, parent: Option<u32>, written: Written) {
        debug_assert!(kind < TYPES.len());
        let Written { levels, count } = written;
        self.lanes.push(Entry { kind, name: printable(name), count, parent, levels });
    }

    /// Name, kind, count, nanoseconds, lanes (none: they are too many) of everything that has a name.
    pub fn uses(&mut self) -> Vec<(u32, u8, u64, u64, Vec<u32>)> {
        let mut uses: Vec<_> = std::mem::take(&mut self.uses)
            .into_iter()
            .map(|((name, kind), of)| {
                (name, kind, of.count, of.total_ns, if of.has_more { Vec::new() } else { of.lanes })
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
