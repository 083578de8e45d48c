//! Where the time of a span went: the way back from its end, through the waits of its task and what ended them.
//!
//! The parts of a [`Path`] follow each other without gaps and sum up to the span's duration exactly. While the span's
//! task waits, the path follows what ended the wait, back to the moment at which the wait started: a request
//! to its submission and to the task that submitted it, a wake by another task through that task's own runs and waits.

mod index;
mod summary;
mod walk;

pub use index::Index;
pub use summary::{Share, Summary, Topic, summarise};

use super::model::{Span, Trace};

/// The way through a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Index into `Trace::spans`.
    pub span: u32,
    /// Start of the span.
    pub start_ns: u64,
    /// Its end, or that of the trace.
    pub end_ns: u64,
    /// In order of time.
    pub parts: Vec<Part>,
    /// The trace had more parts than are followed: the rest is [`What::Unknown`].
    pub is_cut: bool,
}

/// A part of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Begin.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
    /// What happened.
    pub what: What,
    /// The wait of the span's own task during which it happened: index into `Trace::waits`.
    pub wait: Option<u32>,
    /// How many tasks the path has followed to come here: 0 for the span's own.
    pub depth: u32,
}

/// What a span's time can go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// A task runs.
    Run {
        /// Index into `Trace::tasks`.
        task: u32,
        /// Index into `Trace::cores`.
        core: u32,
    },
    /// A core runs code of the span outside of any task.
    Core {
        /// Index into `Trace::cores`.
        core: u32,
    },
    /// A task is runnable.
    Ready {
        /// Index into `Trace::tasks`.
        task: u32,
    },
    /// A device works on a request.
    Request {
        /// Index into `Trace::requests`.
        request: u32,
    },
    /// A task waits for a segment of a connection.
    Network {
        /// Index into `Trace::connections`.
        connection: u32,
        /// Index into `Trace::waits`.
        wait: u32,
    },
    /// A task waits for a deadline.
    Timer {
        /// Index into `Trace::waits`.
        wait: u32,
    },
    /// A task waits, and what ended that is unknown.
    Wait {
        /// Index into `Trace::waits`.
        wait: u32,
    },
    /// It is unknown.
    Unknown,
}

impl Path {
    /// The way through a span; `None` if there is no such span.
    pub fn find(trace: &Trace, index: &Index, span: u32) -> Option<Path> {
        let found = trace.spans.get(span as usize)?;
        let end_ns = trace.span_end_ns(found);
        let mut walk = walk::Walk::new(trace, index);
        walk.through(span, found.start_ns, end_ns);
        let (parts, is_cut) = walk.finish();
        Some(Path { span, start_ns: found.start_ns, end_ns, parts, is_cut })
    }

    /// How long the span took.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// The task whose way a span's path follows: the last that ran in it, or the one that made it. `None` for a span outside of
/// tasks, whose path follows the cores that were in it.
pub fn path_task(trace: &Trace, index: &Index, span: u32) -> Option<u32> {
    let visits = index.visits(span).iter().rev();
    let visited = visits.filter_map(|visit| trace.span_visits.get(*visit as usize)).find_map(|visit| visit.task);
    visited.or(trace.spans.get(span as usize)?.task)
}

/// Spans with this name whose start and end are known, the longest first.
pub fn spans_by_duration(trace: &Trace, name: &str) -> Vec<u32> {
    let is_it = |span: &Span| span.duration_ns().is_some() && trace.name(span.name) == name;
    let mut found: Vec<u32> =
        (0u32..).zip(&trace.spans).filter(|(_, span)| is_it(span)).map(|(index, _)| index).collect();
    let duration = |index: &u32| {
        let span = &trace.spans[*index as usize];
        trace.span_end_ns(span) - span.start_ns
    };
    found.sort_by_key(|index| std::cmp::Reverse(duration(index)));
    found
}
