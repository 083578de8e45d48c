//! The view of a trace in a real browser: it zooms, finds, measures, and keeps to itself.

use crate::support::browser::Browser;
use crate::support::profiles::{HOSTILE, small};
use crate::support::trace_view::{
    AXIS_PX, CORE, DISK, NAMES_PX, READER, WRITER, click, details, open, place, ready, window,
};
use crate::support::traces;
use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::trace::{build, example};
use serde_json::{Value, json};

#[test]
fn a_click_says_everything_and_links_lead_on() {
    let Some(mut browser) = open(&traces::two_tasks()) else { return };
    assert!(browser.text(".origin").contains("2 tasks"), "{}", browser.text(".origin"));
    // The trace is 1000 us long: the reader waits from 100 to 600 us for a request of 120 to 560 us.
    click(&mut browser, 0.3, READER);
    browser.wait_for("document.querySelector('#trace-details h3')");
    let said = details(&mut browser);
    assert!(said.contains("disk 0 I/O"), "{said}");
    assert!(
        said.contains("waiting for I/O") && said.contains("460.00 µs") && said.contains("a device request"),
        "{said}"
    );
    assert!(said.contains("reader #7"), "the task's number: {said}");
    browser.eval("[...document.querySelectorAll('#trace-details dt')].find((dt) => dt.textContent === 'Woken by').nextSibling.querySelector('button').click()");
    browser.wait_for("document.querySelector('#trace-details h3').textContent === 'read'");
    let said = details(&mut browser);
    assert!(said.contains("4,096 bytes") && said.contains("440.00 µs"), "{said}");
    browser.assert_quiet();
}

#[test]
fn zoom_and_pan_keep_what_is_under_the_pointer() {
    let Some(mut browser) = open(&traces::two_tasks()) else { return };
    assert_eq!(window(&mut browser), (0.0, 1e6));
    let (x, y) = place(&mut browser, 0.5, READER);
    browser.hover_at(x, y);
    for _ in 0..5 {
        browser.key("w");
    }
    let (from, to) = window(&mut browser);
    assert!((to - from - 1e6 / 1.35_f64.powi(5)).abs() < 1e3, "{from} {to}");
    assert!(((from + to) / 2.0 - 5e5).abs() < 3e3, "{from} {to}");
    browser.wheel(x, y, 0.0, -220.0);
    let (from, to) = window(&mut browser);
    assert!((to - from - 1e6 / 1.35_f64.powi(5) / 2.0).abs() < 1e3, "{from} {to}");
    let length = to - from;
    browser.drag((x, y), (x - 100.0, y));
    let moved = window(&mut browser);
    let [.., width, _] = browser.place("#trace-box canvas");
    assert!((moved.0 - from - length * 100.0 / (width - NAMES_PX)).abs() < length / 50.0, "{from} {moved:?}");
    browser.key("a");
    assert!(window(&mut browser).0 < moved.0);
    // Down to nanoseconds, and no further.
    for _ in 0..60 {
        browser.key("+");
    }
    let (from, to) = window(&mut browser);
    assert!((19.0..=21.0).contains(&(to - from)), "{from} {to}");
    browser.key("0");
    assert_eq!(window(&mut browser), (0.0, 1e6));
    // A double click shows the slice that is there.
    let (x, y) = place(&mut browser, 0.3, DISK);
    browser.double_click_at(x, y);
    browser.wait_for("!document.querySelector('#trace-window').dataset.ns.startsWith('0-')");
    let (from, to) = window(&mut browser);
    assert!(from > 0.0 && from < 120e3 && to > 560e3 && to < 1e6, "{from} {to}");
    // What is in the address is shown again.
    browser.wait_for(&format!("location.hash.includes('t={from}-{to}')"));
    let address = browser.eval("location.hash");
    browser.eval("void (location.hash = '#t=200000-300000')");
    browser.wait_for("document.querySelector('#trace-window').dataset.ns === '200000-300000'");
    assert_eq!(window(&mut browser), (200e3, 300e3));
    browser.eval(&format!("void (location.hash = {address})"));
    browser.wait_for("document.querySelector('#trace-window').dataset.ns !== '200000-300000'");
    assert_eq!(window(&mut browser), (from, to));
    browser.key("Backspace");
    browser.assert_quiet();
}

#[test]
fn two_fingers_zoom() {
    let Some(mut browser) = open(&traces::two_tasks()) else { return };
    let [left, _, width, _] = browser.place("#trace-box canvas");
    let (_, y) = place(&mut browser, 0.5, READER);
    let at = |part: f64| left + NAMES_PX + (width - NAMES_PX) * part;
    browser.pinch(y, [at(0.4), at(0.6)], [at(0.3), at(0.7)]);
    let (from, to) = window(&mut browser);
    assert!((from - 250e3).abs() < 3e3 && (to - 750e3).abs() < 3e3, "{from} {to}");
    browser.pinch(y, [at(0.1), at(0.9)], [at(0.49), at(0.51)]);
    assert_eq!(window(&mut browser), (0.0, 1e6));
    browser.assert_quiet();
}

#[test]
fn the_minimap_is_dragged_and_resized() {
    let Some(mut browser) = open(&traces::two_tasks()) else { return };
    browser.eval("void (location.hash = '#t=400000-600000')");
    browser.wait_for("document.querySelector('#trace-window').dataset.ns === '400000-600000'");
    let [left, top, width, _] = browser.place("#trace-box canvas");
    let at = |part: f64| (left + NAMES_PX + (width - NAMES_PX) * part, top + 13.0);
    browser.drag(at(0.5), at(0.7));
    let (from, to) = window(&mut browser);
    assert!((from - 600e3).abs() < 3e3 && (to - 800e3).abs() < 3e3, "{from} {to}");
    // Its right edge.
    browser.drag(at(0.8), at(0.9));
    let (from, to) = window(&mut browser);
    assert!((from - 600e3).abs() < 3e3 && (to - 900e3).abs() < 5e3, "{from} {to}");
    // A press outside of it.
    browser.drag(at(0.15), at(0.15));
    let (from, to) = window(&mut browser);
    assert!(from < 10e3 && (to - 300e3).abs() < 10e3, "{from} {to}");
    browser.assert_quiet();
}

#[test]
fn a_pinned_track_stays_at_the_top_and_colours_have_a_legend() {
    let Some(mut browser) = open(&traces::two_tasks()) else { return };
    click(&mut browser, 0.3, DISK);
    browser.wait_for("document.querySelector('#trace-details h3')?.textContent === 'read'");
    browser.key("i");
    // The disk's track of 18 pixels, a line, and then the others.
    click(&mut browser, 0.3, 9.0);
    browser.wait_for("document.querySelector('#trace-details h3')?.textContent === 'read'");
    click(&mut browser, 0.3, 22.0 + READER);
    browser.wait_for("document.querySelector('#trace-details h3').textContent === 'disk 0 I/O'");
    browser.wait_for("location.hash.includes('pinned=')");
    // Its pin gives it back.
    let (_, y) = place(&mut browser, 0.0, 9.0);
    let [left, ..] = browser.place("#trace-box canvas");
    browser.click_at(left + NAMES_PX - 8.0, y);
    browser.wait_for("!location.hash.includes('pinned=')");
    click(&mut browser, 0.3, DISK);
    browser.wait_for("document.querySelector('#trace-details h3').textContent === 'read'");
    browser.click("#legend-button");
    let legend = browser.text("#trace-legend");
    for kind in ["running", "runnable", "waiting for I/O", "read"] {
        assert!(legend.contains(kind), "{legend}");
    }
    browser.assert_quiet();
}

#[test]
fn a_search_lists_marks_and_jumps() {
    let Some(mut browser) = open(&traces::two_tasks()) else { return };
    browser.key("/");
    browser.type_text("TIMER|disk");
    let matches = "document.querySelector('#trace-matches').textContent";
    browser.wait_for(&format!("{matches} === '2 matches'"));
    let found = browser.text("#trace-found");
    assert!(found.contains("disk 0 I/O") && found.contains("timer \"tick\""), "{found}");
    browser.key("Enter");
    // From the start on, the first is the reader's wait at 100 us, then comes the writer's for its timer at 700 us.
    browser.wait_for("document.querySelector('#trace-details h3')?.textContent === 'disk 0 I/O'");
    browser.key("n");
    browser.wait_for("document.querySelector('#trace-details h3').textContent === 'timer \"tick\"'");
    // After the last comes the first, and the other way round.
    browser.key("n");
    browser.wait_for("document.querySelector('#trace-details h3').textContent === 'disk 0 I/O'");
    browser.wait_for(&format!("{matches} === '2 matches, from the start again'"));
    browser.key("N");
    browser.wait_for("document.querySelector('#trace-details h3').textContent === 'timer \"tick\"'");
    browser.wait_for(&format!("{matches} === '2 matches, from the end again'"));
    // Text of messages is found as well.
    browser.key("/");
    browser.eval("document.querySelector('#trace-search').select()");
    browser.type_text("hello there");
    browser.wait_for("document.querySelector('#trace-found').textContent.includes('hello there')");
    browser.click("#trace-found .trace-match");
    browser.wait_for("document.querySelector('#trace-details .trace-text')");
    assert_eq!(browser.text("#trace-details .trace-text"), "hello there\nbytes = 12");
    browser.assert_quiet();
}

#[test]
fn two_clicks_and_a_ruler_measure() {
    let Some(mut browser) = open(&traces::two_tasks()) else { return };
    click(&mut browser, 0.3, DISK);
    browser.wait_for("document.querySelector('#trace-details h3')");
    let (x, y) = place(&mut browser, 0.8, WRITER);
    browser.shift_click_at(x, y);
    browser.wait_for("document.querySelector('.trace-distance')");
    // From the request's start at 120 us to that of the wait at 700 us.
    let said = browser.text(".trace-distance");
    assert!(said.contains("Start to start580.00 µs") && said.contains("End to start140.00 µs"), "{said}");
    let (from, to) = (place(&mut browser, 0.25, -10.0), place(&mut browser, 0.5, -10.0));
    browser.drag(from, to);
    let said = browser.text("#trace-ruler output");
    assert!(said.starts_with("Selection: 25") || said.starts_with("Selection: 249"), "{said}");
    browser.click("#ruler-zoom");
    let (from, to) = window(&mut browser);
    assert!((from - 250e3).abs() < 3e3 && (to - 500e3).abs() < 3e3, "{from} {to}");
    browser.key("Escape");
    assert_eq!(browser.eval("document.querySelector('#trace-ruler').hidden"), json!(true));
    browser.assert_quiet();
}

#[test]
fn tracks_are_filtered_hidden_and_folded() {
    let Some(mut browser) = open(&traces::two_tasks()) else { return };
    let height = |browser: &mut Browser| browser.eval("document.querySelector('.trace-spacer').style.height");
    let click_gives = |browser: &mut Browser, y: f64, what: &str| {
        click(browser, 0.3, y);
        browser.wait_for(&format!("document.querySelector('#trace-details').textContent.includes({what:?})"));
    };
    click_gives(&mut browser, CORE, "core 0");
    browser.eval("document.querySelector('#trace-filter').focus()");
    browser.type_text("writer");
    // Now the only track is the writer's, below its heading.
    click_gives(&mut browser, 26.0 + 10.0, "writer #8");
    browser.eval("document.querySelector('#trace-filter').select()");
    browser.type_text("nothing has [this name");
    browser.wait_for("true");
    let _ = height(&mut browser);
    browser.eval("document.querySelector('#trace-filter').value = ''; document.querySelector('#trace-filter').dispatchEvent(new Event('input'))");
    // Without the cores the tasks are first.
    browser.eval("document.querySelector('#trace-groups input').click()");
    click_gives(&mut browser, 26.0 + 10.0, "reader #7");
    browser.eval("document.querySelector('#trace-groups input').click()");
    // A click on the heading of the cores folds them.
    let [left, top, ..] = browser.place("#trace-box canvas");
    browser.click_at(left + 40.0, top + AXIS_PX + 13.0);
    click_gives(&mut browser, 26.0 + 6.0 + 26.0 + 10.0, "reader #7");
    browser.assert_quiet();
}

#[test]
fn panels_show_series_and_tables() {
    let trace = build(&example::queue(30_000, 3));
    let Some(mut browser) = open(&trace) else { return };
    browser.click("#trace-tabs [aria-controls=trace-series]");
    browser.wait_for("document.querySelector('.series-note').textContent !== ''");
    let submitted = trace.requests.len();
    let listed = browser.eval("[...document.querySelectorAll('#trace-series option')].filter((o) => o.parentElement.label === 'Requests submitted').map((o) => Number(/\\(([\\d,]+)\\)$/.exec(o.textContent)[1].replaceAll(',', ''))).reduce((a, b) => a + b, 0)");
    assert_eq!(listed, json!(submitted));
    // All of the first series are counted in the whole window.
    let first = browser.text("#trace-series option");
    let total = first.rsplit_once('(').expect("a count").1.trim_end_matches(')').to_string();
    let note = browser.text(".series-note");
    assert!(note.starts_with(&format!("{total} events in ")), "{note}");
    browser.click("input[value=rate] + span");
    let tables: Value =
        browser.eval("[...document.querySelectorAll('#trace-tables option')].map((option) => option.textContent)");
    let names = ["Spans", "Waits", "Devices", "Tasks", "Every task", "Cores", "Network", "Counters", "Functions"];
    assert_eq!(tables, json!(names));
    browser.click("#trace-tabs [aria-controls=trace-tables]");
    browser.eval("(() => { const e = document.querySelector('#trace-tables select'); e.value = '4'; e.dispatchEvent(new Event('change')); })()");
    let polls = trace.polls.len().to_string();
    browser.click("#trace-tables th:nth-child(3) button");
    let column = "[...document.querySelectorAll('#trace-tables tbody tr')].map((row) => Number(row.cells[2].textContent.replaceAll(',', '')))";
    let shown: Vec<u64> = serde_json::from_value(browser.eval(column)).expect("numbers");
    assert!(shown.is_sorted_by(|a, b| a >= b) && shown.len() > 3, "{shown:?}");
    assert!(shown.iter().sum::<u64>() <= polls.parse().expect("a number"));
    // The longest poll of a task can be seen.
    browser.click("#trace-tables tbody .link");
    browser.wait_for("document.querySelector('#trace-details h3')");
    browser.assert_quiet();
}

#[test]
fn names_are_text_whatever_they_hold() {
    let Some(mut browser) = open(&traces::hostile(HOSTILE)) else { return };
    for tab in 0..8 {
        browser.eval(&format!("document.querySelectorAll('#trace-tabs button')[{tab}]?.click()"));
    }
    let [left, top, width, height] = browser.place("#trace-box canvas");
    for step in 0..30 {
        let (x, y) =
            (left + NAMES_PX + (width - NAMES_PX) * f64::from(step) / 30.0, top + height * f64::from(step % 10) / 10.0);
        browser.hover_at(x, y);
        browser.click_at(x, y);
    }
    browser.key("/");
    browser.type_text("<script");
    browser.key("Enter");
    browser.click("#theme");
    assert_eq!(browser.eval("document.querySelectorAll('img, iframe, b').length"), json!(0));
    assert!(browser.text("title").ends_with("Glasshouse trace"));
    browser.assert_quiet();
}

#[test]
fn samples_and_trace_are_two_views_of_a_page() {
    let page = glass_profiler_report::trace_html(&small(), &traces::two_tasks());
    let Some(mut browser) = Browser::open(&page) else { return };
    ready(&mut browser);
    browser.wait_for("document.querySelector('#report').hidden && !document.querySelector('#trace').hidden");
    browser.click("#samples-view");
    browser.wait_for("!document.querySelector('#report').hidden && document.querySelector('#trace').hidden");
    assert_eq!(browser.text("#functions-count"), "4 functions");
    // Keys belong to the view that is shown.
    browser.key("/");
    assert_eq!(browser.eval("document.activeElement.id"), json!("search"));
    browser.key("Escape");
    browser.click("#trace-view");
    browser.key("/");
    assert_eq!(browser.eval("document.activeElement.id"), json!("trace-search"));
    browser.key("Escape");
    browser.click("#theme");
    browser.assert_quiet();
}

#[test]
fn a_range_of_the_trace_filters_the_samples() {
    let profile = crate::support::profiles::phases(2_000, 0, 1);
    let last = profile.samples.iter().map(|sample| sample.time_ns).max().expect("samples");
    let trace = Trace { end_ns: last, ..traces::two_tasks() };
    let Some(mut browser) = Browser::open(&glass_profiler_report::trace_html(&profile, &trace)) else { return };
    ready(&mut browser);
    let (from, to) = (place(&mut browser, 0.0, -10.0), place(&mut browser, 0.25, -10.0));
    browser.drag(from, to);
    browser.click("#ruler-samples");
    browser.wait_for("!document.querySelector('#report').hidden");
    let said = browser.text("#timeline .selection");
    let shown: f64 = said
        .rsplit_once(", ")
        .expect("samples")
        .1
        .replace(',', "")
        .trim_end_matches(" samples")
        .parse()
        .expect("a number");
    let all = profile.samples.len() as f64;
    assert!((shown / all - 0.25).abs() < 0.05, "{said}");
    browser.assert_quiet();
}

#[test]
fn an_empty_trace_is_a_page_too() {
    let Some(mut browser) = open(&Trace::default()) else { return };
    for tab in 0..4 {
        browser.eval(&format!("document.querySelectorAll('#trace-tabs button')[{tab}].click()"));
    }
    browser.key("w");
    browser.key("n");
    browser.assert_quiet();
}

/// Writes pictures for a reader, where GLASS_SCREENSHOTS names a folder.
#[test]
fn pictures() {
    let Some(folder) = std::env::var_os("GLASS_SCREENSHOTS") else { return };
    let folder = std::path::PathBuf::from(folder);
    let trace = build(&example::queue(200_000, 1));
    let Some(mut browser) = open(&trace) else { return };
    browser.resize(1440, 1000);
    browser.picture(&folder, "trace-whole.png");
    let (x, y) = place(&mut browser, 0.5, 100.0);
    browser.hover_at(x, y);
    for step in 0..4 {
        for _ in 0..7 {
            browser.key("w");
        }
        browser.picture(&folder, &format!("trace-zoom-{step}.png"));
    }
    click(&mut browser, 0.4, 110.0);
    browser.picture(&folder, "trace-details.png");
    browser.click("#theme");
    browser.picture(&folder, "trace-dark.png");
    for (tab, name) in [("trace-series", "series"), ("trace-spans", "spans"), ("trace-tables", "tables")] {
        browser.click(&format!("#trace-tabs [aria-controls={tab}]"));
        browser.picture(&folder, &format!("trace-{name}.png"));
    }
}
