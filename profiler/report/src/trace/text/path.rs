//! The critical path of one span, and of all spans of a name.

use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::trace::path::{Index, Part, Path, Share, Summary, Topic, What, spans_by_duration, summarise};

use super::Settings;
use crate::trace::label::{self, duration};
use crate::trace::table::{Table, wrap};
use glass_profiler_core::format::{count, percent};
use glass_profiler_core::names::printable;

/// Spans of a name whose paths are put together; of more, as many spread over all durations.
const SPANS_MAX: usize = 1_000;
/// Parts of one path that are shown.
const PARTS_MAX: usize = 200;
/// Names that an error lists.
const CHOICES_MAX: usize = 10;

/// The span that `NAME`, `NAME#3` or `NAME#median` means: the longest, the third, the median by duration.
pub(super) fn chosen_span(trace: &Trace, wanted: &str) -> Result<u32, String> {
    let (name, which) = match wanted.rsplit_once('#') {
        Some((name, which)) => (name, which),
        None => (wanted, "longest"),
    };
    let by_duration = spans_by_duration(trace, name);
    if by_duration.is_empty() {
        return Err(format!("no span `{}` has an end in this trace: {}", printable(name), choices(trace)));
    }
    let number = which.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    match (which, number) {
        ("longest", _) => Ok(by_duration[0]),
        ("median", _) => Ok(by_duration[by_duration.len() / 2]),
        (_, Some(index)) => {
            let mut by_time = by_duration;
            by_time.sort_unstable();
            by_time.get(index).copied().ok_or_else(|| {
                format!("there are {} spans `{}` with an end, so #{which} is none", by_time.len(), printable(name))
            })
        }
        _ => Err(format!("`#{}` is no number from 1 on, nor `longest` or `median`", printable(which))),
    }
}

fn choices(trace: &Trace) -> String {
    let mut names: Vec<String> = trace
        .spans
        .iter()
        .filter(|span| span.duration_ns().is_some())
        .map(|span| printable(trace.name(span.name)))
        .collect();
    names.sort_unstable();
    names.dedup();
    match names.len() {
        0 => "it has none at all (trace the group spans, and give the service spans of the tracing macros)".into(),
        number => format!(
            "choose one of {}{}",
            names[..number.min(CHOICES_MAX)].join(", "),
            if number > CHOICES_MAX { ", …" } else { "" }
        ),
    }
}

/// The paths of all spans of a name, or of [`SPANS_MAX`] of them.
fn all_paths(trace: &Trace, index: &Index, spans: &[u32]) -> Vec<Path> {
    let step = spans.len().div_ceil(SPANS_MAX).max(1);
    spans.iter().step_by(step).filter_map(|span| Path::find(trace, index, *span)).collect()
}

/// Which wait dominates the time of all spans of a name, in one paragraph; `None` if no such span has an end.
pub fn dominating_wait(trace: &Trace, span_name: &str) -> Option<String> {
    let spans = spans_by_duration(trace, span_name);
    let median = trace.spans.get(*spans.get(spans.len() / 2)? as usize)?;
    let median_ns = median.duration_ns()?;
    let index = Index::new(trace);
    let paths = all_paths(trace, &index, &spans);
    let summary = summarise(trace, &paths);
    let mut said = match spans.len() {
        1 => format!("The span `{}` took {}.", printable(span_name), duration(median_ns)),
        number => format!(
            "The {} spans `{}` took {} in the median, {} in total{}.",
            count(number as u64),
            printable(span_name),
            duration(median_ns),
            duration(spans.iter().fold(0, |sum: u64, span| sum.saturating_add(span_ns(trace, *span)))),
            match paths.len() < number {
                true =>
                    format!(" ({} of them, spread over all durations, are followed here)", count(paths.len() as u64)),
                false => String::new(),
            }
        ),
    };
    let waits: Vec<(usize, &Share)> =
        summary.own.iter().enumerate().filter(|(_, share)| share.topic.is_wait() && share.sum_ns > 0).collect();
    match waits.first() {
        Some((place, share)) => {
            said.push_str(&format!(
                " The dominant wait is `{}`, with {} of that time{}.",
                label::topic(trace, share.topic),
                percent(share.sum_ns, summary.sum_ns),
                behind(trace, &summary, *place)
            ));
        }
        None => said.push_str(" They did not wait."),
    }
    for (order, (place, share)) in ["Next is", "Then comes"].iter().zip(waits.iter().skip(1)) {
        said.push_str(&format!(
            " {order} `{}`, with {}{}.",
            label::topic(trace, share.topic),
            percent(share.sum_ns, summary.sum_ns),
            behind(trace, &summary, *place)
        ));
    }
    let own_code = summary.own.iter().filter(|share| matches!(share.topic, Topic::Run(_) | Topic::Core));
    let ran_ns = own_code.fold(0u64, |sum, share| sum.saturating_add(share.sum_ns));
    said.push_str(&format!(" Their own code ran for {}.", percent(ran_ns, summary.sum_ns)));
    Some(said)
}

fn span_ns(trace: &Trace, span: u32) -> u64 {
    trace.spans.get(span as usize).and_then(|span| span.duration_ns()).unwrap_or(0)
}

/// What happened during a wait, as far as its name does not have it.
fn behind(trace: &Trace, summary: &Summary, place: usize) -> String {
    let share = &summary.own[place];
    let behind = summary.behind.get(place).map_or(&[][..], Vec::as_slice);
    let named: Vec<String> = behind
        .iter()
        .filter(|part| part.topic != share.topic && part.sum_ns.saturating_mul(20) >= share.sum_ns)
        .take(3)
        .map(|part| match part.sum_ns == share.sum_ns {
            true => format!("`{}`", label::topic(trace, part.topic)),
            false => format!("`{}` {}", label::topic(trace, part.topic), percent(part.sum_ns, share.sum_ns)),
        })
        .collect();
    let mean = share.sum_ns / share.count.max(1);
    let often = format!(" (mean {}, max {}", duration(mean), duration(share.max_ns));
    match named.is_empty() {
        true => format!("{often})"),
        false => format!("{often}; behind it: {})", named.join(", ")),
    }
}

pub(super) fn text(trace: &Trace, settings: &Settings) -> Result<String, String> {
    let wanted = match &settings.span {
        Some(wanted) => wanted.clone(),
        None => longest_name(trace).ok_or_else(|| format!("no span has an end in this trace: {}", choices(trace)))?,
    };
    let span = chosen_span(trace, &wanted)?;
    let index = Index::new(trace);
    let Some(path) = Path::find(trace, &index, span) else { return Err("there is no such span".into()) };
    let name = trace.name(trace.spans[span as usize].name);
    let head = format!(
        "Critical path of one span `{}`: {} from {} on{}",
        printable(name),
        duration(path.duration_ns()),
        label::moment(path.start_ns),
        fields(trace, span)
    );
    let mut out = wrap(0, &head);
    out.push_str(&parts(trace, &path, settings.min_ns));
    out.push_str("\nBreakdown by what its own task did or waited for\n");
    let summary = summarise(trace, [&path]);
    out.push_str(&shares(trace, &summary.own, summary.sum_ns));
    out.push_str("\nBreakdown by the cause: tasks, devices, waits\n");
    out.push_str(&shares(trace, &summary.followed, summary.sum_ns));
    if let Some(said) = dominating_wait(trace, name) {
        out.push_str(&format!("\n{}", wrap(0, &said)));
    }
    Ok(out)
}

fn longest_name(trace: &Trace) -> Option<String> {
    let longest = trace.spans.iter().filter(|span| span.duration_ns().is_some());
    let longest = longest.max_by_key(|span| span.duration_ns())?;
    Some(trace.name(longest.name).to_owned())
}

fn fields(trace: &Trace, span: u32) -> String {
    let fields: Vec<String> = trace.spans[span as usize]
        .fields
        .iter()
        .take(4)
        .map(|(name, value)| {
            format!("{}={}", printable(trace.name(*name)), printable(&glass_profiler_core::words::value(value)))
        })
        .collect();
    if fields.is_empty() { String::new() } else { format!(" ({})", fields.join(", ")) }
}

fn parts(trace: &Trace, path: &Path, min_ns: u64) -> String {
    let is_long = |part: &&Part| part.end_ns - part.start_ns >= min_ns;
    let mut table = Table::new(&["at", "duration", "<step"]);
    let mut out = String::new();
    let long: Vec<&Part> = path.parts.iter().filter(is_long).collect();
    for chunk in long[..long.len().min(PARTS_MAX)].chunks(crate::trace::table::ROWS_MAX) {
        for part in chunk {
            let indent = "  ".repeat(part.depth.min(8) as usize);
            table.row(vec![
                duration(part.start_ns - path.start_ns),
                duration(part.end_ns - part.start_ns),
                format!("{indent}{}", what(trace, part)),
            ]);
        }
        let lines = std::mem::replace(&mut table, Table::new(&["at", "duration", "<step"])).lines();
        // One heading is enough.
        let skip = if out.is_empty() { 0 } else { lines.find('\n').map_or(0, |end| end + 1) };
        out.push_str(&lines[skip..]);
    }
    let shown: u64 = long.iter().take(PARTS_MAX).map(|part| part.end_ns - part.start_ns).sum();
    let left_out = path.parts.len() - long.len().min(PARTS_MAX);
    if left_out > 0 {
        out.push_str(&format!(
            "  {} more steps, {} in total\n",
            count(left_out as u64),
            duration(path.duration_ns() - shown)
        ));
    }
    if path.is_cut {
        out.push_str("  The path has more steps than are followed; the rest is unknown.\n");
    }
    out
}

/// A step of a path in words. The page's `path.js` has the same.
fn what(trace: &Trace, part: &Part) -> String {
    let core_name = |core: u32| printable(trace.cores.get(core as usize).map_or("", |core| &core.name));
    match part.what {
        What::Run { task, core } => format!("{} running on {}", label::task(trace, task), core_name(core)),
        What::Core { core } => format!("running on {}", core_name(core)),
        What::Ready { task } => format!("{} runnable", label::task(trace, task)),
        What::Request { request } => match trace.requests.get(request as usize) {
            Some(request) => format!(
                "{} {}{}{}",
                label::device(trace, request.device, request.operation),
                request.number,
                match request.bytes {
                    0 => String::new(),
                    bytes => format!(", {} bytes", count(bytes.into())),
                },
                match request.task {
                    Some(task) => format!(", submitted by {}", label::task(trace, task)),
                    None => String::new(),
                }
            ),
            None => "device request".into(),
        },
        What::Network { wait, .. } => waiting(trace, wait, ", ended by a segment"),
        What::Timer { wait } => waiting(trace, wait, ", ended by a timer"),
        What::Wait { wait } => waiting(trace, wait, ", ended by an unknown cause"),
        What::Unknown => "unknown".into(),
    }
}

fn waiting(trace: &Trace, wait: u32, end: &str) -> String {
    let Some(wait) = trace.waits.get(wait as usize) else { return "unnamed wait".into() };
    let why = crate::trace::figures::why(trace, wait);
    format!("{} waiting: {}{end}", label::task(trace, wait.task), crate::trace::figures::why_text(trace, why))
}

fn shares(trace: &Trace, shares: &[Share], sum_ns: u64) -> String {
    let mut table = Table::new(&["share", "total", "count", "max", "<what"]);
    for share in shares {
        table.row(vec![
            percent(share.sum_ns, sum_ns),
            duration(share.sum_ns),
            count(share.count),
            duration(share.max_ns),
            label::topic(trace, share.topic),
        ]);
    }
    table.lines()
}
