//! The page and the text print the same figures of the same recording: every table, and every critical path.

use std::process::{Command, Stdio};

use crate::support::browser::Browser;
use crate::support::trace_view::open;
use glass_profile::model::Profile;
use glass_profile::trace::model::Trace;
use glass_profile::trace::{build, example};
use glass_report::trace::{Settings, View, text};
use glass_tests::folder::Folder;
use serde_json::{Value, json};

/// Headings of the text.
const CAUSES: &str = "Breakdown by the cause";
const OWN: &str = "Breakdown by what its own task";

/// A table as it is printed: headings, then cells by row.
#[derive(Debug)]
struct Printed {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

fn cells(line: &str) -> Vec<String> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

/// The first table below the line of a text that begins with `title`.
fn printed(text: &str, title: &str) -> Printed {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(title)).skip(1);
    let head = lines.find(|line| line.starts_with("  ")).unwrap_or_else(|| panic!("there is no {title:?} in\n{text}"));
    let body = lines.take_while(|line| line.starts_with("  ") && !line.contains(" more"));
    // Long tables have their headings again and again.
    let rows = body.map(cells).filter(|row| *row != cells(head)).collect();
    Printed { head: cells(head), rows }
}

/// A table of the page: headings and cells as they are shown.
fn shown(browser: &mut Browser, table: &str) -> Printed {
    while browser.eval(&format!("document.querySelector('{table} .more') !== null")) == json!(true) {
        browser.click(&format!("{table} .more"));
    }
    let read = |selector: &str| format!("[...document.querySelectorAll('{table} {selector}')]");
    let head = browser.eval(&format!("{}.map((cell) => cell.textContent)", read("thead th")));
    let rows = browser
        .eval(&format!("{}.map((row) => [...row.cells].map((cell) => cell.textContent.trim()))", read("tbody tr")));
    Printed {
        head: serde_json::from_value(head).expect("headings"),
        rows: serde_json::from_value(rows).expect("rows of texts"),
    }
}

/// Every row of the text is in the page, with the same cells below the same headings.
fn same(text: &Printed, page: &Printed) {
    assert!(!text.rows.is_empty(), "{text:?}");
    let column = |name: &String| {
        let place = page.head.iter().position(|head| head == name);
        place.unwrap_or_else(|| panic!("no column {name:?} in {:?}", page.head))
    };
    let columns: Vec<usize> = text.head.iter().map(column).collect();
    let is_same = |row: &[String], other: &[String]| {
        // What has no room in the text is cut.
        row.iter().zip(&columns).all(|(cell, column)| match cell.strip_suffix('…') {
            Some(start) => other[*column].starts_with(start),
            None => other[*column] == *cell,
        })
    };
    for row in &text.rows {
        assert_eq!(row.len(), columns.len(), "{row:?} below {:?}", text.head);
        let is_there = page.rows.iter().any(|other| is_same(row, other));
        assert!(is_there, "text {:?} {row:?} is not in the page: {:?} {:#?}", text.head, page.head, page.rows);
    }
}

fn path_text(trace: &Trace, span: &str) -> String {
    let settings = Settings { span: Some(span.to_owned()), ..Settings::default() };
    text(trace, View::Path, &settings).expect("there is such a span")
}

#[test]
fn every_figure_of_the_text_is_in_the_page() {
    let trace = build(&example::queue(60_000, 1));
    let Some(mut browser) = open(&trace) else { return };
    browser.click("#trace-tables-tab");
    let report = |view| text(&trace, view, &Settings::default()).expect("there is such a report");
    let summary = report(View::Summary);
    let tasks = report(View::Tasks);
    let functions = report(View::Cumulative);
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

/// The page walks through its own data: its paths of all spans are those of the text, step by step.
#[test]
fn every_path_of_the_page_is_that_of_the_text() {
    let trace = build(&example::queue(40_000, 5));
    let folder = Folder::new("paths").expect("a folder can be made");
    let page = folder.file("page.html");
    std::fs::write(&page, glass_report::trace_html(&Profile::default(), &trace)).expect("a page can be written");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/paths.mjs");
    let Ok(output) = Command::new("node").arg(script).arg(&page).arg("upload").stdin(Stdio::null()).output() else {
        glass_tests::programs::skip("there is no node (apt-get install nodejs)");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let paths: Vec<Value> = serde_json::from_slice(&output.stdout).expect("the script prints JSON");
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
