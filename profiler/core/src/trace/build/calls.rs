//! Function calls: builds a forest of calls on each core from entries, exits and tail exits.

use std::collections::HashMap;

use glass_formats::trace::FUNCTIONS_MAX;

use super::At;
use crate::names;
use crate::trace::model::{Call, Function, Trace};
use crate::trace::raw;

/// How far down the stack the frame of an exit is searched for. Above it are calls whose exits are missing.
const SEARCH_MAX: usize = 64;
const NONE: u32 = u32::MAX;

/// The open calls of the cores, and the functions by number.
#[derive(Debug)]
pub(super) struct Calls<'a> {
    known: HashMap<u32, &'a raw::Function>,
    /// Indices into `Trace::functions` by number, for numbers below [`FUNCTIONS_MAX`].
    low: Vec<u32>,
    high: HashMap<u32, u32>,
    cores: Vec<CoreState>,
    /// Calls are not in the order of their start: some were found by their exits only.
    needs_sort: bool,
    /// Exits without entry and entries without exit in places without losses.
    pub(super) unmatched_exits: u64,
    pub(super) unmatched_entries: u64,
    /// Functions without a name.
    pub(super) nameless: u64,
}

/// A part of a core's stack: the calls within a poll, or those outside of any.
#[derive(Debug, Default)]
struct Part {
    /// Open calls, outermost first.
    stack: Vec<u32>,
    /// Calls without a caller since `since_ns`; a later exit may enclose them.
    roots: Vec<u32>,
    /// The end of the last loss.
    since_ns: u64,
}

#[derive(Debug, Default)]
struct CoreState {
    outside: Part,
    poll: Option<Part>,
}

impl CoreState {
    fn part(&mut self) -> &mut Part {
        self.poll.as_mut().unwrap_or(&mut self.outside)
    }
}

impl<'a> Calls<'a> {
    pub(super) fn new(cores: usize, functions: &'a [raw::Function]) -> Calls<'a> {
        let mut states = Vec::new();
        states.resize_with(cores, CoreState::default);
        Calls {
            known: functions.iter().map(|function| (function.number, function)).collect(),
            low: Vec::new(),
            high: HashMap::new(),
            cores: states,
            needs_sort: false,
            unmatched_exits: 0,
            unmatched_entries: 0,
            nameless: 0,
        }
    }

    fn function(&mut self, number: u32, trace: &mut Trace) -> u32 {
        if (number as usize) < FUNCTIONS_MAX {
            if self.low.is_empty() {
                self.low = vec![NONE; FUNCTIONS_MAX];
            }
            if self.low[number as usize] == NONE {
                self.low[number as usize] = self.add_function(number, trace);
            }
            return self.low[number as usize];
        }
        if let Some(index) = self.high.get(&number) {
            return *index;
        }
        let index = self.add_function(number, trace);
        self.high.insert(number, index);
        index
    }

    fn add_function(&mut self, number: u32, trace: &mut Trace) -> u32 {
        let known = self.known.get(&number).filter(|function| !function.name.is_empty());
        self.nameless += u64::from(known.is_none_or(|function| function.name.starts_with("0x")));
        trace.functions.push(match known {
            Some(function) => Function {
                name: function.name.clone(),
                file: function.file.clone(),
                line: function.line,
                library: library(&function.name),
            },
            None => Function { name: format!("function {number}"), ..Function::default() },
        });
        trace.functions.len() as u32 - 1
    }

    pub(super) fn enter(&mut self, at: At, number: u32, task: Option<u32>, trace: &mut Trace) {
        let function = self.function(number, trace);
        let part = self.cores[at.core as usize].part();
        let parent = part.stack.last().copied();
        let index = trace.calls.len() as u32;
        if parent.is_none() {
            part.roots.push(index);
        }
        part.stack.push(index);
        trace.calls.push(Call {
            function,
            core: at.core,
            task,
            parent,
            depth: part.stack.len() as u32 - 1,
            start_ns: at.time_ns,
            end_ns: at.time_ns,
            ..Call::default()
        });
    }

    pub(super) fn exit(&mut self, at: At, number: u32, is_tail: bool, task: Option<u32>, trace: &mut Trace) {
        let function = self.function(number, trace);
        let part = self.cores[at.core as usize].part();
        let is_it = |call: &u32| trace.calls[*call as usize].function == function;
        let Some(above) = part.stack.iter().rev().take(SEARCH_MAX).position(is_it) else {
            if part.stack.is_empty() {
                self.add_around(at, function, is_tail, task, trace);
            }
            self.unmatched_exits += u64::from(!self.cores[at.core as usize].part().stack.is_empty());
            return;
        };
        self.unmatched_entries += above as u64;
        for _ in 0..above {
            let call = part.stack.pop().map(|call| &mut trace.calls[call as usize]);
            if let Some(call) = call {
                (call.end_ns, call.is_cut) = (at.time_ns, true);
            }
        }
        if let Some(call) = part.stack.pop() {
            let call = &mut trace.calls[call as usize];
            (call.end_ns, call.is_tail) = (at.time_ns, is_tail);
        }
    }

    /// A call that is known by its exit only: it encloses all calls since the last loss.
    fn add_around(&mut self, at: At, function: u32, is_tail: bool, task: Option<u32>, trace: &mut Trace) {
        let part = self.cores[at.core as usize].part();
        let index = trace.calls.len() as u32;
        for root in part.roots.drain(..) {
            trace.calls[root as usize].parent = Some(index);
        }
        part.roots.push(index);
        trace.calls.push(Call {
            function,
            core: at.core,
            task,
            parent: None,
            depth: 0,
            start_ns: part.since_ns,
            end_ns: at.time_ns,
            is_tail,
            is_cut: true,
        });
        self.needs_sort = true;
    }

    /// A task's poll starts: its calls belong to the task.
    pub(super) fn poll_begin(&mut self, at: At, trace: &mut Trace) {
        self.end_poll(at, true, trace);
        self.cores[at.core as usize].poll = Some(Part { since_ns: at.time_ns, ..Part::default() });
    }

    /// The poll ends.
    pub(super) fn poll_end(&mut self, at: At, trace: &mut Trace) {
        self.end_poll(at, true, trace);
    }

    fn end_poll(&mut self, at: At, is_odd: bool, trace: &mut Trace) {
        if let Some(mut part) = self.cores[at.core as usize].poll.take() {
            let open = part.close(at.time_ns, trace);
            self.unmatched_entries += if is_odd { open } else { 0 };
        }
    }

    /// Cuts the open calls of a core, whose events from `from_ns` to `to_ns` are missing; returns how many were open.
    pub(super) fn cut(&mut self, core: u32, from_ns: u64, to_ns: u64, trace: &mut Trace) -> u64 {
        let state = &mut self.cores[core as usize];
        let in_poll = state.poll.take().map_or(0, |mut part| part.close(from_ns, trace));
        let outside = state.outside.close(from_ns, trace);
        state.outside.since_ns = to_ns;
        in_poll + outside
    }

    /// [`Calls::cut`] of all cores. Polls continue, unless their events are missing, too.
    pub(super) fn stop(&mut self, time_ns: u64, has_polls: bool, trace: &mut Trace) -> u64 {
        let mut open = 0;
        for core in 0..self.cores.len() as u32 {
            let is_in_poll = self.cores[core as usize].poll.is_some() && has_polls;
            open += self.cut(core, time_ns, time_ns, trace);
            self.cores[core as usize].poll = is_in_poll.then(|| Part { since_ns: time_ns, ..Part::default() });
        }
        open
    }

    /// Ends the open calls at the end of the trace; returns how many there were.
    pub(super) fn finish(&mut self, trace: &mut Trace) -> u64 {
        let open = self.stop(trace.end_ns, false, trace);
        if self.needs_sort {
            set_depths(&mut trace.calls);
            sort(&mut trace.calls);
        }
        open
    }
}

impl Part {
    /// Ends all open calls; returns how many there were.
    fn close(&mut self, time_ns: u64, trace: &mut Trace) -> u64 {
        let open = self.stack.len() as u64;
        for call in self.stack.drain(..) {
            let call = &mut trace.calls[call as usize];
            (call.end_ns, call.is_cut) = (time_ns.max(call.start_ns), true);
        }
        self.roots.clear();
        open
    }
}

/// Counts the callers of each call; a caller may come after the calls it made.
fn set_depths(calls: &mut [Call]) {
    let mut depths = vec![NONE; calls.len()];
    let mut path = Vec::new();
    for index in 0..calls.len() {
        let mut next = Some(index);
        while let Some(at) = next.filter(|at| depths[*at] == NONE) {
            path.push(at);
            next = calls[at].parent.map(|parent| parent as usize);
        }
        let mut depth = next.map_or(0, |known| depths[known] + 1);
        while let Some(at) = path.pop() {
            depths[at] = depth;
            depth += 1;
        }
    }
    for (call, depth) in calls.iter_mut().zip(depths) {
        call.depth = depth;
    }
}

fn sort(calls: &mut Vec<Call>) {
    let mut order: Vec<u32> = (0..calls.len() as u32).collect();
    order.sort_by_key(|index| (calls[*index as usize].start_ns, calls[*index as usize].depth));
    let mut places = vec![0; order.len()];
    for (place, index) in order.iter().enumerate() {
        places[*index as usize] = place as u32;
    }
    let moved = |index: &u32| {
        let call = calls[*index as usize];
        Call { parent: call.parent.map(|parent| places[parent as usize]), ..call }
    };
    *calls = order.iter().map(moved).collect();
}

/// The crate or namespace of a function, from its name; empty if the name has none.
fn library(name: &str) -> String {
    names::crate_of(name).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_told_from_names() {
        for (name, expected) in [
            ("core::fmt::write", "core"),
            ("<upload_queue::Store as core::fmt::Debug>::fmt", "upload_queue"),
            ("<&T as core::fmt::Debug>::fmt", "core"),
            ("<&mut smoltcp::Packet as X>::f", "smoltcp"),
            ("alloc[4f3a]::vec::push", "alloc"),
            ("memcpy", ""),
            ("0x1234", ""),
            ("", ""),
        ] {
            assert_eq!(library(name), expected, "{name}");
        }
    }
}
