//! Spans and messages of the `tracing` macros: spans under the task that created them, messages on the task or core that logged them.

use std::collections::HashMap;
use std::io;

use glass_profiler_core::names::printable;
use glass_profiler_core::trace::model::{NameId, Trace, Value};

use super::nest::Rows;
use super::{Board, Lane, Mark, core_name, task_name, text};

/// Characters of a message in its name in a viewer; the details have the whole message.
const TITLE_CHARS_MAX: usize = 120;
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

pub(super) fn draw(board: &mut Board<'_>) -> io::Result<()> {
    let trace = board.trace;
    let mut rows: HashMap<Option<u32>, Rows> = HashMap::new();
    for span in &trace.spans {
        let end_ns = trace.span_end_ns(span);
        let row = rows.entry(span.task).or_default().place(span.start_ns, end_ns, true);
        let mut details = vec![("span", Value::Unsigned(span.number)), ("level", text(level(span.level)))];
        if let Some(parent) = span.parent.and_then(|parent| trace.spans.get(parent as usize)) {
            details.push(("parent", Value::Unsigned(parent.number)));
        }
        if span.end_ns.is_none() || span.begin_is_lost {
            details.push(("is_cut", Value::Bool(true)));
        }
        fields(trace, &span.fields, &mut details);
        let name = printable(trace.name(span.name));
        let mark = Mark::new(Lane::Spans { task: span.task, row }, span.start_ns, end_ns, "span", &name);
        board.slice(&Mark { details: &details, ..mark }, || "spans".to_owned())?;
    }
    for message in &trace.messages {
        let mut details = vec![("level", text(level(message.level))), ("place", text(trace.name(message.place)))];
        if let Some(span) = message.span.and_then(|span| trace.spans.get(span as usize)) {
            details.push(("span", Value::Unsigned(span.number)));
        }
        details.push(("text", text(message.text.as_str())));
        fields(trace, &message.fields, &mut details);
        let said = if message.text.is_empty() { trace.name(message.place) } else { &message.text };
        let title: String = said.chars().take(TITLE_CHARS_MAX).collect();
        let title = printable(&title);
        let lane = message.task.map_or(Lane::Core(message.core), Lane::Task);
        let mark = Mark::moment(lane, message.time_ns, "message", &title);
        let name = || message.task.map_or_else(|| core_name(trace, message.core), |task| task_name(trace, task));
        board.instant(&Mark { details: &details, ..mark }, name)?;
    }
    Ok(())
}

/// The word of a level.
pub(crate) fn level(level: u8) -> &'static str {
    LEVELS.get(usize::from(level).wrapping_sub(1)).copied().unwrap_or("unknown")
}

fn fields<'a>(trace: &'a Trace, fields: &[(NameId, Value)], details: &mut Vec<(&'a str, Value)>) {
    details.extend(fields.iter().map(|(name, value)| (trace.name(*name), value.clone())));
}
