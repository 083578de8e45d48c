//! The page of the agent: its VMs, the recordings of each as a bar for each, its engines, and what an operator should know. Without scripts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use glass_profiler_core::format::{count, duration};

use crate::segments::{Segment, safe_name};
use crate::state::Known;

/// Recordings that a VM's picture shows, the newest.
const BARS_MAX: usize = 240;
/// The picture, in its own units.
const PICTURE: (usize, usize) = (960, 60);

/// A range of recordings, by their starts in milliseconds since 1970, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub from_ms: u64,
    /// The last.
    pub to_ms: u64,
}

impl Range {
    /// That of a query with `NAME_from` and `NAME_to`, in either order.
    pub fn of(query: &str, name: &str) -> Option<Range> {
        let value = |end: &str| {
            let key = format!("{name}_{end}");
            query.split('&').find_map(|pair| pair.split_once('=').filter(|(found, _)| *found == key)?.1.parse().ok())
        };
        let (from, to): (u64, u64) = (value("from")?, value("to")?);
        Some(Range { from_ms: from.min(to), to_ms: from.max(to) })
    }

    /// Whether a recording starts in it.
    pub fn contains(&self, segment: &Segment) -> bool {
        (self.from_ms..=self.to_ms).contains(&segment.start_ms)
    }
}

/// The page; `segments` are the oldest first.
pub fn overview(known: &Known, segments: &[Segment], now: SystemTime) -> String {
    let mut html = String::from(HEAD);
    let mut of_vm: BTreeMap<&str, Vec<&Segment>> = BTreeMap::new();
    segments.iter().for_each(|segment| of_vm.entry(&segment.vm).or_default().push(segment));
    let running: Vec<String> = known.vms.values().map(|vm| safe_name(&vm.name)).collect();
    let counts = &known.counts;
    let _ = write!(
        html,
        "<p class=figures>{} VMs run. {} recordings are kept, {:.1} MB. Since the agent started: {} samples were expected and {} lost; \
         recorders took {} of CPU time, and vCPUs were paused for {}.</p>",
        known.vms.len(),
        count(known.kept.1 as u64),
        known.kept.0 as f64 / 1e6,
        count(counts.samples_expected),
        count(counts.samples_lost),
        duration(counts.recorder_cpu_ns),
        duration(counts.pause_ns),
    );
    if known.vms.is_empty() {
        html.push_str("<p>No VM runs that can be seen. One that starts is here within seconds.</p>");
    }
    for vm in known.vms.values() {
        let name = safe_name(&vm.name);
        let own = of_vm.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let accel = if vm.accel.is_empty() { String::new() } else { format!(", {}", vm.accel.to_uppercase()) };
        let title = format!("{}, {} Hz", escape(&format!("{}{accel}", vm.vmm)), vm.rate_hz);
        section(&mut html, &vm.name, &title, vm.problem.as_deref(), own, now);
    }
    for (name, own) in of_vm.iter().filter(|(name, _)| !running.iter().any(|running| running == *name)) {
        section(&mut html, name, "has ended", None, own, now);
    }
    if !known.sinks.is_empty() {
        html.push_str("<h2>Engines</h2><table><tr><th>engine<th>sent<th>waiting<th>refused<th>removed<th>state");
        for (url, sink) in &known.sinks {
            let state = sink.problem.as_deref().unwrap_or("well");
            let (url, state) = (escape(url), escape(state));
            let [sent, waiting, refused, removed] =
                [sink.sent, sink.waiting as u64, sink.refused, sink.removed].map(count);
            let _ = write!(html, "<tr><td>{url}<td>{sent}<td>{waiting}<td>{refused}<td>{removed}<td>{state}");
        }
        html.push_str("</table>");
    }
    if !known.remarks.is_empty() {
        html.push_str("<h2>Remarks</h2><ul>");
        for (time, text) in known.remarks.iter().rev() {
            let _ = write!(html, "<li>{} ago: {}", ago(now, millis(*time)), escape(text));
        }
        html.push_str("</ul>");
    }
    html.push_str("<p class=figures><a href=/metrics>Metrics for Prometheus</a></p></main>");
    html
}

/// A VM, with a bar for each recording: as high as the share of its samples in which code ran.
fn section(html: &mut String, name: &str, title: &str, problem: Option<&str>, segments: &[&Segment], now: SystemTime) {
    let _ = write!(html, "<section><h2>{} <small>{title}</small></h2>", escape(name));
    if let Some(problem) = problem {
        let _ = write!(html, "<p class=problem>Not recorded at the moment: {}</p>", escape(problem));
    }
    let shown = &segments[segments.len().saturating_sub(BARS_MAX)..];
    let (Some(first), Some(last)) = (shown.first(), shown.last()) else {
        html.push_str("<p>The first recording is not finished yet.</p></section>");
        return;
    };
    let share = |segment: &Segment| segment.busy as f64 / segment.samples.max(1) as f64;
    let (width, height) = PICTURE;
    let (from, span) = (first.start_ms, (last.start_ms + last.duration_ms - first.start_ms).max(1) as f64);
    let _ = write!(
        html,
        "<svg viewBox='0 0 {width} {height}' role=img aria-label='recordings of {}, a bar for each, as high as code ran'>",
        escape(name)
    );
    for segment in shown {
        let at = |ms: u64| ms as f64 * width as f64 / span;
        let (x, bar) = (at(segment.start_ms - from), (at(segment.duration_ms) - 1.0).max(1.5));
        let high = (share(segment) * height as f64).max(1.5);
        let words = format!(
            "{} ago, {}: code ran in {:.0} % of {} samples",
            ago(now, segment.start_ms),
            duration(segment.duration_ms * 1_000_000),
            share(segment) * 100.0,
            count(segment.samples)
        );
        let (vm, file) = (&segment.vm, segment.file_name());
        let _ = write!(
            html,
            "<a href='/segment/{vm}/{file}'><title>{words}</title><rect x='{x:.1}' y='{:.1}' width='{bar:.1}' height='{high:.1}'/></a>",
            height as f64 - high
        );
    }
    let (vm, file) = (&last.vm, last.file_name());
    let _ = write!(
        html,
        "</svg><p class=axis><span>{} ago</span><span>how much of the time code ran, up to 100 %</span><span>{} ago</span></p><p><a href='/segment/{vm}/{file}'>The newest recording</a> of {} \
         (<a href='/recording/{vm}/{file}'>file</a>)</p>",
        ago(now, first.start_ms),
        ago(now, last.start_ms + last.duration_ms),
        duration(last.duration_ms * 1_000_000),
    );
    if shown.len() > 1 {
        difference(html, shown, now);
    }
    html.push_str("</section>");
}

/// The form that chooses two ranges.
fn difference(html: &mut String, segments: &[&Segment], now: SystemTime) {
    let vm = &segments[0].vm;
    let _ = write!(html, "<form action='/difference/{vm}'><b>Difference</b> of the recordings");
    let (half, last) = (segments.len() / 2, segments.len() - 1);
    let choices = [("a_from", 0), ("a_to", half - 1), ("b_from", half), ("b_to", last)];
    for ((name, chosen), word) in choices.into_iter().zip(["from", "to", "and of those from", "to"]) {
        let _ = write!(html, " <label>{word} <select name={name}>");
        for (index, segment) in segments.iter().enumerate() {
            let selected = if index == chosen { " selected" } else { "" };
            let _ = write!(html, "<option value={}{selected}>{} ago", segment.start_ms, ago(now, segment.start_ms));
        }
        html.push_str("</select></label>");
    }
    html.push_str(" <button>Show</button></form>");
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}

/// How long ago: "12 s", "5 min", "3 h".
fn ago(now: SystemTime, then_ms: u64) -> String {
    let seconds = millis(now).saturating_sub(then_ms) / 1000;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;").replace('"', "&quot;")
}

const HEAD: &str = "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>glass agent</title><style>
:root{color-scheme:light dark;--bar:#2b6cb0;--line:#d5d5d5;--weak:#5f5f5f}
@media(prefers-color-scheme:dark){:root{--bar:#63b3ed;--line:#444;--weak:#a8a8a8}}
body{font:15px/1.45 system-ui,sans-serif;margin:0}
main{max-width:62rem;margin:0 auto;padding:1rem}
h1{font-size:1.3rem}h2{font-size:1.05rem;margin:0 0 .4rem}small,.figures,.axis{color:var(--weak)}small{font-weight:400}
section{border-top:1px solid var(--line);padding:.9rem 0}
svg{width:100%;height:auto;display:block;border:1px solid var(--line);border-width:1px 0}
rect{fill:var(--bar)}a:hover rect,a:focus rect{opacity:.6}
.axis{display:flex;justify-content:space-between;margin:.1rem 0 .4rem;font-size:.85rem}
.problem{border-left:3px solid #c05621;padding-left:.6rem}
table{border-collapse:collapse}td,th{text-align:left;padding:.15rem .8rem .15rem 0;border-bottom:1px solid var(--line)}
p{margin:.4rem 0}select{max-width:8rem}
</style><main><h1>glass agent</h1>";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{SinkState, VmState};

    fn segment(vm: &str, start_ms: u64, samples: u64) -> Segment {
        Segment { vm: vm.to_owned(), start_ms, duration_ms: 60_000, pid: 7, samples, busy: 3, bytes: 10 }
    }

    #[test]
    fn vms_have_their_recordings_and_nothing_of_a_guest_is_markup() {
        let mut known = Known::default();
        let name = "<b>web</b>".to_owned();
        let vm = VmState { name, vmm: "QEMU".to_owned(), accel: "kvm".to_owned(), rate_hz: 19, problem: None };
        known.vms.insert(7, vm);
        known
            .sinks
            .insert("http://x".to_owned(), SinkState { problem: Some("<i>".to_owned()), ..SinkState::default() });
        let own = safe_name("<b>web</b>");
        let segments = [segment(&own, 0, 5), segment("old", 0, 9), segment(&own, 60_000, 10)];
        let html = overview(&known, &segments, UNIX_EPOCH + Duration::from_secs(300));
        assert!(html.contains("&lt;b&gt;web&lt;/b&gt; <small>QEMU, KVM, 19 Hz"), "{html}");
        assert!(!html.contains("<b>web") && !html.contains("<i>"), "{html}");
        assert!(html.contains(&format!("href='/segment/{own}/60000-60000-7-10-3.pftrace'")), "{html}");
        assert!(
            html.contains(">old <small>has ended") && html.contains(&format!("action='/difference/{own}'")),
            "{html}"
        );
        assert_eq!(html.matches("<rect").count(), 3);
    }

    #[test]
    fn ranges_are_of_both_ends() {
        let range = Range::of("a_from=9&a_to=5&b_from=1", "a").unwrap();
        assert_eq!(range, Range { from_ms: 5, to_ms: 9 });
        assert!(range.contains(&segment("x", 9, 0)) && !range.contains(&segment("x", 10, 0)));
        assert_eq!(Range::of("a_from=9&a_to=5&b_from=1", "b"), None);
        assert_eq!(Range::of("a_from=x&a_to=5", "a"), None);
    }
}
