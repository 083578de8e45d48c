//! The difference of two traces: slower flushes are seen, equal spans are noise, as text and as a page.

use crate::support::browser::Browser;
use crate::support::profiles::small;
use glass_formats::trace::Operation;
use glass_profiler_core::model::Profile;
use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::trace::{build, example};
use glass_profiler_report::trace::difference::{sheets, text};
use glass_profiler_report::{Side, recordings_difference};

/// The queue at work, and the same with flushes that take twice as long.
fn both() -> [Trace; 2] {
    let a = build(&example::queue(60_000, 1));
    let mut b = a.clone();
    for request in b.requests.iter_mut().filter(|request| request.operation == Operation::Flush) {
        request.complete_ns = request.complete_ns.map(|ns| ns + (ns - request.submit_ns));
    }
    [a, b]
}

/// The cells of a row as texts.
fn row(a: &Trace, b: &Trace, sheet: &str, first: &str) -> Vec<String> {
    let sheets = sheets(a, b);
    let sheet = sheets.iter().find(|of| of.name == sheet).expect("there is such a table");
    let texts =
        |row: &Vec<glass_profiler_report::trace::sheets::Cell>| row.iter().map(|cell| cell.text()).collect::<Vec<_>>();
    sheet.rows.iter().map(texts).find(|row| row[0] == first).expect("there is such a row")
}

#[test]
fn slower_flushes_are_seen_and_equal_spans_are_noise() {
    let [a, b] = both();
    let flush = row(&a, &b, "Device requests", "disk 0 flush");
    assert!(flush[1] == flush[2] && flush[5] == "+100.0 %", "{flush:?}");
    let write = row(&a, &b, "Device requests", "disk 0 write");
    assert!(write[5] == "+0.0 % ~" && write[8] == "+0.0 % ~", "{write:?}");
    let upload = row(&a, &b, "Spans", "upload");
    assert!(upload[5] == "+0.0 % ~", "{upload:?}");
    assert!(sheets(&a, &b)[2].rows[0][0].text() == "disk 0 flush", "what changed most is first");
    let said = text(&a, &b);
    assert!(said.lines().all(|line| unicode_width::UnicodeWidthStr::width(line) <= 100), "{said}");
    assert!(said.contains("+100.0 %"), "{said}");
    // What only one has is named as such.
    let only = row(&Trace::default(), &b, "Spans", "upload");
    assert!(only[5] == "only B" && only[3] == "-", "{only:?}");
    assert!(sheets(&Trace::default(), &Trace::default()).is_empty());
}

#[test]
fn a_page_has_the_tables_of_traces_with_and_without_samples() {
    let [a, b] = both();
    for (profile, has_functions) in [(Profile::default(), false), (small(), true)] {
        let side = |trace| Side { profiles: vec![&profile], trace: Some(trace) };
        let Some(mut browser) = Browser::open(&recordings_difference(side(&a), side(&b))) else { return };
        let found = browser.eval(
            "[...document.querySelectorAll('.trace-difference tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent)).find((row) => row[0] === 'disk 0 flush')[5]",
        );
        assert_eq!(found, "+100.0 %");
        assert_eq!(browser.eval("document.querySelector('#graph') !== null"), has_functions);
        browser.assert_quiet();
    }
}
