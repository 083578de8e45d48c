//! The page and the text print the same figures of the same recording: every table, and every critical path.

pub mod printed;
mod samples;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::trace_view::open;
use glass_profiler_core::model::Profile;
use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::trace::{build, example};
use glass_profiler_report::trace::{Settings, View, text};
use glass_tests::folder::Folder;
use printed::{Printed, in_one_line, printed, same, shown};
use serde_json::Value;

/// Headings of the text.
const CAUSES: &str = "Breakdown by the cause";
const OWN: &str = "Breakdown by what its own task";

fn path_text(trace: &Trace, span: &str) -> String {
    let settings = Settings { span: Some(span.to_owned()), ..Settings::default() };
    text(trace, View::Path, &settings).expect("there is such a span")
}

#[test]
fn every_figure_of_the_text_is_in_the_page() {
    let trace = build(&example::queue(60_000, 1));
    let Some(mut browser) = open(&trace) else { return };
    let report = |view| text(&trace, view, &Settings::default()).expect("there is such a report");
    let summary = report(View::Summary);
    let tasks = report(View::Tasks);
    let functions = report(View::Cumulative);
    // "Trace of 43.1 ms: 60,014 events on 2 cores or threads"
    let head = summary.lines().next().and_then(|line| line.strip_prefix("Trace of ")).expect("a heading");
    let (length, numbers) = head.split_once(": ").expect("a duration");
    let [events, cores] = [" events on ", " cores"].map(|word| numbers.split(word).next().expect("a number"));
    let cores = cores.rsplit(' ').next().expect("a number");
    let page = browser.text(".origin");
    assert!(page.starts_with(&format!("{events} events in {length}, {cores} cores, ")), "{head}\n{page}");
    browser.click("#trace-tables-tab");
    for (option, text, title) in [
        ("Spans", &summary, "Spans:"),
        ("Waits", &tasks, "Waits:"),
        ("Devices", &summary, "Devices:"),
        ("Tasks", &tasks, "Tasks:"),
        ("Cores", &summary, "Cores:"),
        ("Network", &summary, "Network:"),
        ("Counters", &summary, "Counters:"),
        ("Functions", &functions, "Functions:"),
    ] {
        browser.eval(&format!(
            "(() => {{ const e = document.querySelector('#trace-tables select'); \
             e.value = [...e.options].find((o) => o.textContent === {option:?}).value; e.dispatchEvent(new Event('change')); }})()"
        ));
        same(&printed(text, title), &shown(&mut browser, "#trace-tables"));
    }
    // The overview has the slowest and the median; both open with their path.
    for (button, span) in [(1, "upload#longest"), (2, "upload#median")] {
        browser.click("#trace-overview-tab");
        browser.click(&format!("#trace-overview .story-buttons button:nth-of-type({button})"));
        let text = path_text(&trace, span);
        let head = text.lines().next().expect("a heading").split(" from ").next().expect("a duration").to_owned();
        let took = head.rsplit_once(": ").expect("a duration").1.to_owned();
        browser.wait_for(&format!("document.querySelector('#trace-paths h3')?.textContent === 'upload: {took}'"));
        for (place, title) in [(1, CAUSES), (2, "Critical path"), (3, OWN)] {
            same(&printed(&text, title), &shown(&mut browser, &format!("#trace-paths section:nth-of-type({place})")));
        }
    }
    browser.assert_quiet();
}

/// What a script of `tests/scripts` prints as JSON; `None` where there is no Node.js to run it.
fn run_script(name: &str, arguments: &[&OsStr]) -> Option<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(name);
    let Ok(output) = Command::new("node").arg(script).args(arguments).stdin(Stdio::null()).output() else {
        glass_tests::programs::skip("there is no node (apt-get install nodejs)");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).expect("the script prints JSON"))
}

/// The page walks through its own data: its paths of all spans are those of the text, step by step.
#[test]
fn every_path_of_the_page_is_that_of_the_text() {
    let trace = build(&example::queue(40_000, 5));
    let folder = Folder::new("paths").expect("a folder can be made");
    let page = folder.file("page.html");
    std::fs::write(&page, glass_profiler_report::trace_html(&Profile::default(), &trace))
        .expect("a page can be written");
    let Some(paths) = run_script("paths.mjs", &[page.as_os_str(), "upload".as_ref()]) else { return };
    let paths: Vec<Value> = serde_json::from_value(paths).expect("a list");
    assert!(paths.len() > 20, "{}", paths.len());
    let table = |value: &Value, head: &[&str]| Printed {
        head: head.iter().map(|name| (*name).to_owned()).collect(),
        rows: serde_json::from_value(value.clone()).expect("rows of texts"),
    };
    for (index, path) in paths.iter().enumerate() {
        let text = path_text(&trace, &format!("upload#{}", index + 1));
        let (steps, page) = (printed(&text, "Critical path"), table(&path["steps"], &["at", "duration", "step"]));
        assert_eq!(steps.rows.len(), page.rows.len().min(200));
        same(&steps, &page);
        let head = ["share", "total", "count", "max", "what"];
        same(&printed(&text, CAUSES), &table(&path["causes"], &head));
        same(&printed(&text, OWN), &table(&path["own"], &head));
        assert_eq!(path["sum"], path["duration"]);
    }
}

/// A series of events has as many of them, and the same gaps with the same explanations.
#[test]
fn every_gap_of_the_text_is_in_the_page() {
    let trace = build(&example::queue(60_000, 1));
    let Some(mut browser) = open(&trace) else { return };
    browser.click("#trace-series-tab");
    for (event, group, name) in [
        ("bytes received", "Counters", "bytes received"),
        ("submit disk 0 write", "Requests submitted", "disk 0 write"),
        ("complete disk 0 flush", "Requests completed", "disk 0 flush"),
        ("segment sent", "TCP segments", "sent"),
    ] {
        let settings = Settings { event: Some(event.to_owned()), ..Settings::default() };
        let text = text(&trace, View::Events, &settings).expect("there is such a series");
        browser.eval(&format!(
            "(() => {{ const e = document.querySelector('#trace-series select'); \
             const group = [...e.querySelectorAll('optgroup')].find(({{ label }}) => label === {group:?}); \
             e.value = [...group.children].find((option) => option.textContent.startsWith({:?})).value; \
             e.dispatchEvent(new Event('change')); }})()",
            format!("{name} (")
        ));
        // "bytes received: 1,879 in 43.1 ms"
        let number =
            text.lines().next().and_then(|head| head.rsplit(": ").next()?.split(" in ").next()).expect("a number");
        browser.wait_for(&format!("document.querySelector('.series-note').textContent.startsWith('{number} ')"));
        let legend = text.split("a character is ").nth(1).expect("a legend below the graph");
        let gaps: Vec<String> = legend.lines().skip(1).fold(Vec::new(), |mut gaps: Vec<String>, line| {
            match (line.strip_prefix("   "), gaps.last_mut()) {
                (Some(more), Some(gap)) => *gap = format!("{gap} {more}"),
                _ => gaps.extend(line.split_once("  ").map(|(_, gap)| gap.to_owned())),
            }
            gaps
        });
        // The page reads a series before it shows the gaps.
        browser.wait_for(&format!(
            "document.querySelectorAll('.series-gaps li').length === {} && document.querySelector('.series-gaps').dataset.series === \
             document.querySelector('#trace-series select').value",
            gaps.len()
        ));
        let page = browser.eval("[...document.querySelectorAll('.series-gaps li')].map((gap) => gap.textContent)");
        let page: Vec<String> = serde_json::from_value(page).expect("texts");
        for (text, page) in gaps.iter().zip(&page) {
            // "635 µs from 0.031246 s: task ...", and in the page with more digits "635 µs from 0.031246123 s on task ...".
            let (text_when, text_what) = text.split_once(" s: ").expect("a moment");
            let (page_when, page_what) = page.split_once(" s on ").expect("a moment");
            assert_eq!(in_one_line(text_what), in_one_line(page_what));
            let moment = |when: &str| -> f64 { when.rsplit(' ').next().and_then(|s| s.parse().ok()).expect("seconds") };
            assert!((moment(text_when) - moment(page_when)).abs() < 1e-6, "{text}\n{page}");
            assert_eq!(text_when.split(" from ").next(), page_when.split(" from ").next());
        }
        assert!(!gaps.is_empty() || event != "bytes received", "{text}");
    }
    browser.assert_quiet();
}

/// Every call of the text is a slice of the page, with the same start and duration.
#[test]
fn every_call_of_the_text_is_in_the_page() {
    let trace = build(&example::queue(3_000, 2));
    let folder = Folder::new("calls").expect("a folder can be made");
    let page = folder.file("page.html");
    std::fs::write(&page, glass_profiler_report::trace_html(&Profile::default(), &trace))
        .expect("a page can be written");
    let Some(slices) = run_script("calls.mjs", &[page.as_os_str()]) else { return };
    let mut in_page: Vec<[String; 3]> = serde_json::from_value(slices).expect("texts of calls");
    let text = text(&trace, View::Calls, &Settings::default()).expect("there are calls");
    let mut in_text: Vec<[String; 3]> = text.lines().filter_map(call).collect();
    assert_eq!(in_text.len(), trace.calls.len(), "no call is left out");
    in_text.sort();
    in_page.sort();
    assert_eq!(in_text, in_page);
}

/// Start, function and duration of a line of calls; `None` for other lines.
fn call(line: &str) -> Option<[String; 3]> {
    let (start, rest) = line.trim_start().split_once(" s  ")?;
    let (function, duration) = rest.rsplit_once("  ")?;
    let function = function.trim().trim_end_matches(" (cut)").trim_end_matches(" →");
    Some([start, function, duration.trim()].map(str::to_owned))
}
