//! The text reports of a trace, compared with files that a person has read.
//!
//! After a change that is meant: `GLASS_GOLDEN=write cargo test -p glass-profiler-report trace_text`, and read what `git diff`
//! prints.

use crate::support::profiles::compare_golden;
use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::trace::{build, example};
use glass_profiler_report::trace::{HIDDEN_DEFAULT, Settings, View, summary, text};

fn trace() -> Trace {
    build(&example::queue(60_000, 1))
}

fn settings(span: Option<&str>, event: Option<&str>, min_ns: u64) -> Settings {
    Settings {
        min_ns,
        hide: HIDDEN_DEFAULT.map(String::from).to_vec(),
        event: event.map(str::to_owned),
        span: span.map(str::to_owned),
    }
}

fn compare(name: &str, view: View, settings: &Settings) {
    let text = text(&trace(), view, settings).expect("there is such a report");
    let too_wide = text.lines().find(|line| unicode_width::UnicodeWidthStr::width(*line) > 100);
    assert_eq!(too_wide, None);
    compare_golden(name, &text);
}

#[test]
fn summary_is_as_it_was_read() {
    compare_golden("trace_summary.txt", &summary(&trace()));
}

#[test]
fn calls_are_as_they_were_read() {
    compare("trace_calls.txt", View::Calls, &settings(Some("upload#3"), None, 2_000));
}

#[test]
fn functions_are_as_they_were_read() {
    compare("trace_functions.txt", View::Cumulative, &settings(None, None, 0));
}

#[test]
fn tasks_and_waits_are_as_they_were_read() {
    compare("trace_tasks.txt", View::Tasks, &settings(None, None, 0));
}

#[test]
fn devices_are_as_they_were_read() {
    compare("trace_devices.txt", View::Devices, &settings(None, None, 0));
}

#[test]
fn events_are_as_they_were_read() {
    compare("trace_events.txt", View::Events, &settings(None, Some("bytes received"), 0));
    compare("trace_series.txt", View::Events, &settings(None, None, 0));
}

#[test]
fn a_path_is_as_it_was_read() {
    compare("trace_path.txt", View::Path, &settings(Some("upload#median"), None, 20_000));
}

#[test]
fn the_timeline_is_as_it_was_read() {
    compare("trace_timeline.txt", View::Timeline, &settings(None, None, 0));
}

#[test]
fn what_is_not_there_is_said_with_what_there_is() {
    let trace = trace();
    for (view, settings, said) in [
        (
            View::Path,
            settings(Some("download"), None, 0),
            "no span `download` has an end in this trace: choose one of upload",
        ),
        (View::Path, settings(Some("upload#9999"), None, 0), "so #9999 is none"),
        (View::Path, settings(Some("upload#x"), None, 0), "no number from 1 on"),
        (View::Events, settings(None, Some("nothing"), 0), "nothing in this trace is called `nothing`"),
    ] {
        let error = text(&trace, view, &settings).expect_err("there is no such thing");
        assert!(error.contains(said), "{error}");
    }
    let empty = Trace::default();
    for view in [View::Summary, View::Cumulative, View::Tasks, View::Waits, View::Devices, View::Timeline] {
        assert!(text(&empty, view, &Settings::default()).is_ok(), "{view:?}");
    }
    for view in [View::Calls, View::Path] {
        assert!(text(&empty, view, &Settings::default()).is_err(), "{view:?}");
    }
}

#[test]
fn a_latency_that_was_not_measured_is_no_number() {
    let mut trace = trace();
    for request in &mut trace.requests {
        request.complete_ns = Some(request.submit_ns);
    }
    let said = text(&trace, View::Devices, &Settings::default()).expect("there is such a report");
    let row = said.lines().find(|line| line.contains("disk 0 write")).expect("a row").to_owned();
    assert!(row.contains("     -  ") && !row.contains("0 ns"), "{row}");
}
