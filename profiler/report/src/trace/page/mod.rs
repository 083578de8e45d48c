//! The timeline of a trace as part of a page: tracks that can be zoomed from the whole down to nanoseconds.
//!
//! A trace may have millions of events, a page shows thousands of pixels. So each track is written with a pyramid of
//! what it looks like from farther and farther away, in pieces that a browser decodes when it needs them. What
//! opening a page costs, and what a frame costs, does not depend on how many events there are.

mod book;
mod kinds;
mod pack;
mod plan;
mod series;
mod tables;
mod things;
mod track;
mod tracks;

use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::trace::path;
use serde_json::json;

use crate::trace::figures;
use crate::trace::over_time::{Explainer, GAPS_MAX, gaps};
use book::Book;
use glass_profiler_core::format::{count, duration};
use pack::Packs;

pub use pack::Class;

/// Losses that a page shows; of more, those of most events.
const LOSSES_MAX: usize = 2_000;

/// Names of spans that the overview lists.
const STORY_MAX: usize = 100;

/// A trace, ready to be put into a page.
pub struct TracePage {
    /// What is read at once.
    pub index: String,
    /// What is read when one looks closer.
    pub packs: Packs,
}

impl TracePage {
    pub fn new(trace: &Trace) -> TracePage {
        let mut book = Book::new(trace);
        tracks::all(&mut book);
        let wakes = tracks::wakes(&mut book);
        let mpi_messages = tracks::mpi_messages(&mut book);
        let tasks = tracks::task_table(&mut book);
        let explainer = Explainer::new(trace);
        let series = series::all(&mut book, &|times| {
            let long = gaps(times, trace.end_ns, GAPS_MAX);
            long.iter().map(|gap| (gap.start_ns, gap.end_ns, explainer.explain(gap.start_ns, gap.end_ns))).collect()
        });
        let tables = tables::all(&book);
        let story = story(&mut book);
        let mut losses: Vec<_> = trace.losses.iter().collect();
        losses.sort_by_key(|loss| std::cmp::Reverse(loss.events));
        losses.truncate(LOSSES_MAX);
        let losses: Vec<_> = losses
            .iter()
            .map(|loss| {
                let (from, to) = book.range(loss.interval.start_ns, loss.interval.end_ns);
                json!([from, to, loss.interval.core, loss.events])
            })
            .collect();
        let uses = book.uses();
        let (sums, sums_left_out) = book.sums();
        let squeezed = book.plan.squeezed;
        let index = json!({
            "startNs": trace.start_ns,
            "durationNs": book.duration_ns,
            "shiftNs": trace.shift_ns,
            "events": trace.event_count,
            "kinds": kinds::KINDS,
            "types": kinds::TYPES,
            "groups": book.groups,
            "tracks": book.tracks,
            "names": book.names.texts,
            "uses": uses,
            "sums": sums,
            "sumsLeftOut": sums_left_out,
            "wakes": wakes,
            "mpiMessages": mpi_messages,
            "series": series,
            "tables": tables,
            "story": story,
            "tasks": tasks,
            "losses": losses,
            "lossesInAll": trace.losses.len(),
            "squeezed": squeezed,
        });
        let packs = book.packer.finish();
        // In a script of data only `<` could end it.
        TracePage { index: index.to_string().replace('<', "\\u003c"), packs }
    }

    /// The packs of a class as elements, in the order of their numbers.
    pub fn elements(&self, class: Class) -> String {
        let mut into = String::new();
        for (number, (of, text)) in self.packs.texts.iter().enumerate() {
            if *of == class {
                into.push_str("<script type=\"application/octet-stream\" id=\"pack-");
                into.push_str(&number.to_string());
                into.push_str("\">");
                into.push_str(text);
                into.push_str("</script>\n");
            }
        }
        into
    }
}

/// The slowest and the median span of each name, those with most time in total first.
fn story(book: &mut Book) -> Vec<serde_json::Value> {
    let trace = book.trace;
    let known = figures::spans(trace).into_iter().filter(|of| of.durations.count > 0).take(STORY_MAX);
    known
        .filter_map(|of| {
            let by_duration = path::spans_by_duration(trace, trace.name(of.name));
            let place = |span: u32| {
                let ns = trace.spans.get(span as usize)?.duration_ns()?;
                Some(json!([book.plan.span.get(span as usize)?, book.time(trace.spans[span as usize].start_ns), ns]))
            };
            let (slowest, median) = (place(*by_duration.first()?)?, place(*by_duration.get(by_duration.len() / 2)?)?);
            let name = book.names.id(trace, of.name);
            let total = of.durations.sum_ns;
            Some(json!({"name": name, "count": of.count, "total": total, "slowest": slowest, "median": median}))
        })
        .collect()
}

/// One line about a trace.
pub fn trace_summary(trace: &Trace) -> String {
    let many =
        |number: usize, one: &str| format!("{} {one}{}", count(number as u64), if number == 1 { "" } else { "s" });
    let length = duration(trace.end_ns.saturating_sub(trace.start_ns));
    let parts = [
        format!("{} events in {length}", count(trace.event_count)),
        many(trace.cores.len(), "core"),
        many(trace.tasks.len(), "task"),
        many(trace.requests.len(), "request"),
        many(trace.spans.len(), "span"),
        many(trace.calls.len(), "call"),
    ];
    parts.join(", ")
}
