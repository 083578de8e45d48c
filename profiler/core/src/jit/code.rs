//! The functions that a process generated, by address and time.

use std::collections::HashMap;

use crate::budget::{Account, Over};
use crate::symbols::{Location, demangle};

/// The most functions of a file.
const FUNCTIONS_MAX: usize = 4 << 20;
/// The longest name, in bytes; longer ones are cut.
const NAME_BYTES_MAX: usize = 4096;
/// What is held of a function but its name and lines, and of a source file but its name, in bytes: with what a list of them grows by,
/// and with what is needed to sort it.
const FUNCTION_HELD_BYTES: usize = 2 * size_of::<JitFunction>() + 48;
const FILE_HELD_BYTES: usize = 48;
/// Bytes of a file that are read as one unit of work, after some for its part.
const BYTES_PER_UNIT: usize = 16;
/// The most lines of source of all functions of a file.
const LINES_MAX: usize = 16 << 20;
/// The largest function, in bytes. Larger entries are invalid.
const FUNCTION_BYTES_MAX: u64 = 256 << 20;
/// Maximum of functions that are compared for one address: only a damaged file has more at one place.
const COMPARED_MAX: usize = 4096;

/// A line of source of generated code: from this address on.
#[derive(Debug, Clone, Copy)]
pub(super) struct JitLine {
    pub(super) address: u64,
    /// Index into the files.
    pub(super) file: u32,
    pub(super) line: u32,
}

#[derive(Debug, Clone)]
struct JitFunction {
    start: u64,
    end: u64,
    /// When it was loaded: `CLOCK_MONOTONIC` in nanoseconds.
    from_ns: u64,
    until_ns: u64,
    name: Box<str>,
    lines: Box<[JitLine]>,
}

/// The code at an address from a time on; no location if there was none.
pub(crate) type Change = (u64, Vec<Location>);

/// The functions of one file, sorted by address once [`finish`](JitCode::finish) was called.
#[derive(Debug)]
pub(crate) struct JitCode {
    functions: Vec<JitFunction>,
    /// The largest end of the functions up to each.
    ends: Vec<u64>,
    files: Vec<Box<str>>,
    file_indices: HashMap<Box<str>, u32>,
    lines: usize,
    is_full: bool,
    /// What they cost.
    account: Account,
}

impl JitCode {
    /// No functions yet.
    pub(super) fn new(account: Account) -> JitCode {
        JitCode {
            functions: Vec::new(),
            ends: Vec::new(),
            files: Vec::new(),
            file_indices: HashMap::new(),
            lines: 0,
            is_full: false,
            account,
        }
    }

    /// Adds a function that was loaded at `from_ns`, replacing code at the same addresses. Returns `false` if
    /// the entry is invalid.
    pub(super) fn add(&mut self, start: u64, bytes: u64, from_ns: u64, name: &str, lines: Vec<JitLine>) -> bool {
        let end = match start.checked_add(bytes) {
            Some(end) if (1..=FUNCTION_BYTES_MAX).contains(&bytes) && !name.is_empty() => end,
            _ => return false,
        };
        let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
        let lines_count = self.lines + lines.len();
        let held = FUNCTION_HELD_BYTES + name.len() + lines.len() * size_of::<JitLine>();
        let is_full = self.functions.len() >= FUNCTIONS_MAX || lines_count > LINES_MAX;
        if is_full || self.account.hold(held as u64).is_err() {
            self.is_full = true;
            return true;
        }
        self.lines = lines_count;
        let (name, lines) = (name.into(), lines.into());
        self.functions.push(JitFunction { start, end, from_ns, until_ns: u64::MAX, name, lines });
        true
    }

    /// Moves the function with this index to another address.
    pub(super) fn move_function(&mut self, index: usize, start: u64, at_ns: u64) {
        let Some(old) = self.functions.get_mut(index) else { return };
        old.until_ns = at_ns;
        let JitFunction { start: before, end, ref name, ref lines, .. } = *old;
        let shifted =
            |line: &JitLine| JitLine { address: line.address.wrapping_sub(before).wrapping_add(start), ..*line };
        let (name, lines) = (name.clone(), lines.iter().map(shifted).collect());
        self.add(start, end - before, at_ns, &name, lines);
    }

    /// Whether so many bytes more of the file may be read; if not, the functions in them are dropped.
    pub(super) fn has_time_for(&mut self, bytes: usize) -> bool {
        let has_time = self.account.work(4 + (bytes / BYTES_PER_UNIT) as u64).is_ok();
        self.is_full |= !has_time;
        has_time
    }

    /// How many functions were added so far.
    pub(super) fn count(&self) -> usize {
        self.functions.len()
    }

    /// The index of a source file; that of an unknown file if there are too many.
    pub(super) fn file(&mut self, name: &str) -> u32 {
        if let Some(index) = self.file_indices.get(name) {
            return *index;
        }
        // Here, and in the list of those that are there.
        if self.account.hold(2 * (FILE_HELD_BYTES + name.len()) as u64).is_err() {
            self.is_full = true;
            return u32::MAX;
        }
        let index = self.files.len() as u32;
        self.files.push(name.into());
        self.file_indices.insert(name.into(), index);
        index
    }

    /// Whether functions were dropped because of a limit.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Sorts the functions: call it after the last one was added.
    pub(super) fn finish(&mut self) {
        // Of those at one address the order stays that of the file.
        self.functions.sort_by_key(|function| function.start);
        let mut end = 0;
        let ends = self.functions.iter().map(|function| {
            end = end.max(function.end);
            end
        });
        self.ends = ends.collect();
    }

    /// The functions at an address in the order of their times.
    fn at(&self, address: u64) -> Vec<&JitFunction> {
        let after = self.functions.partition_point(|function| function.start <= address);
        let mut found = Vec::new();
        for index in (0..after).rev().take(COMPARED_MAX) {
            if self.ends[index] <= address {
                break;
            }
            if address < self.functions[index].end {
                found.push(&self.functions[index]);
            }
        }
        found.reverse();
        found.sort_by_key(|function| function.from_ns);
        found
    }

    fn location(&self, function: &JitFunction, address: u64) -> Vec<Location> {
        let after = function.lines.partition_point(|line| line.address <= address);
        let line = function.lines[..after].last();
        let file = line.and_then(|line| self.files.get(line.file as usize)).map(|file| file.to_string());
        vec![Location {
            function: self.account.timed(|| demangle(&function.name)),
            line: line.map(|line| line.line).filter(|line| file.is_some() && *line > 0),
            file,
            start_line: None,
        }]
    }

    /// The last function that was at an address.
    pub(crate) fn last(&self, address: u64) -> Vec<Location> {
        self.at(address).last().map_or_else(Vec::new, |function| self.location(function, address))
    }

    /// The sequence of code at an address; none before the first entry. Empty if there never was any.
    pub(crate) fn history(&self, address: u64) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        let mut gone_ns = u64::MAX;
        for function in self.at(address) {
            if self.account.over() == Some(Over::Work) {
                break;
            }
            if gone_ns < function.from_ns {
                changes.push((gone_ns, Vec::new()));
            }
            changes.push((function.from_ns, self.location(function, address)));
            gone_ns = function.until_ns;
        }
        if gone_ns < u64::MAX {
            changes.push((gone_ns, Vec::new()));
        }
        changes.dedup_by(|next, last| next.1 == last.1);
        changes
    }
}
