//! How often something happened over time: a graph, and what happened in its gaps.

use glass_profiler_core::format::{count, duration};
use glass_profiler_core::names::printable;
use glass_profiler_core::trace::model::Trace;

use super::graph;
use crate::trace::label::moment;
use crate::trace::over_time::{Explainer, GAPS_MAX, gaps, names, series};
use crate::trace::table::{Table, wrap};

/// The graph of a series and its gaps; without a name, the series that there are.
pub(super) fn text(trace: &Trace, name: Option<&str>) -> Result<String, String> {
    let Some(name) = name else { return Ok(list(trace)) };
    let Some(series) = series(trace, name) else {
        return Err(format!("nothing in this trace is called `{}`; {}", printable(name), list(trace)));
    };
    let gaps = gaps(&series.times, trace.end_ns, GAPS_MAX);
    let mut out = format!(
        "{}: {} in {}\n",
        printable(&series.name),
        count(series.times.len() as u64),
        duration(trace.end_ns - trace.start_ns)
    );
    out.push_str(&graph::text(trace, &series, &gaps));
    let explainer = Explainer::new(trace);
    for (letter, gap) in graph::LETTERS.chars().zip(&gaps) {
        let said = format!(
            "{letter}  {} from {}: {}",
            duration(gap.end_ns - gap.start_ns),
            moment(gap.start_ns),
            explainer.explain(gap.start_ns, gap.end_ns)
        );
        let wrapped = wrap(3, &said[letter.len_utf8() + 2..]);
        out.push_str(&format!("{letter}{}", &wrapped[1..]));
    }
    if gaps.is_empty() {
        out.push_str("No gap is much longer than the others.\n");
    }
    Ok(out)
}

fn list(trace: &Trace) -> String {
    let mut out = String::from("what there is to be counted over time (--event):\n");
    let mut table = Table::new(&["number", "<name"]);
    for (name, number) in names(trace) {
        table.row(vec![count(number), printable(&name)]);
    }
    out.push_str(&table.lines());
    out
}
