//! Tracks of a trace in a real browser: those that open below others, what woke whom, and what the rarer ones show.

use crate::support::browser::Browser;
use crate::support::trace_view::{AXIS_PX, READER, WRITER, click, details, open, place};
use crate::support::traces;
use serde_json::json;

/// Middles of the two tracks below the reader's when it is open: they are 18 pixels high.
const OUTER: f64 = READER + 10.0 + 9.0;
const INNER: f64 = OUTER + 18.0;

fn title_is(browser: &mut Browser, title: &str) {
    browser.wait_for(&format!("document.querySelector('#trace-details h3')?.textContent === {title:?}"));
}

/// Chooses what lies at a moment of the track with this name.
fn choose(browser: &mut Browser, track: &str, time_ns: u64) {
    let script = format!(
        "JSON.parse(document.querySelector('#trace-index').textContent).tracks.findIndex((track) => track[1] === {track:?})"
    );
    let number = browser.eval(&script).as_i64().expect("a number");
    assert!(number >= 0, "there is no track {track}");
    browser.eval("document.querySelector('#trace-details').replaceChildren()");
    browser.eval(&format!("void (location.hash = '#at={number}-{time_ns}')"));
    browser.wait_for("document.querySelector('#trace-details h3')");
}

#[test]
fn calls_of_a_task_open_below_it() {
    let Some(mut browser) = open(&traces::with_calls()) else { return };
    // Closed, the track below the reader's is the writer's.
    click(&mut browser, 0.5, WRITER);
    browser.wait_for("document.querySelector('#trace-details').textContent.includes('writer #8')");
    let [left, top, ..] = browser.place("#trace-box canvas");
    browser.click_at(left + 40.0, top + AXIS_PX + READER);
    click(&mut browser, 0.08, OUTER);
    title_is(&mut browser, "app::outer");
    let said = details(&mut browser);
    assert!(said.contains("80.00 µs") && said.contains("reader #7"), "{said}");
    click(&mut browser, 0.04, INNER);
    title_is(&mut browser, "app::inner");
    // Back to the caller, in the track of the task and not of the core.
    browser.key("b");
    title_is(&mut browser, "app::outer");
    assert!(details(&mut browser).contains("Tasks › reader #7"), "{}", details(&mut browser));
    // What no task called has no track there.
    let tracks = browser.eval(
        "JSON.parse(document.querySelector('#trace-index').textContent).tracks.filter((track) => track[3] !== null).map((track) => [track[1], track[2]])",
    );
    assert_eq!(tracks, json!([["reader #7 calls", 1], ["reader #7 calls · depth 2", 1]]));
    browser.key("o");
    click(&mut browser, 0.5, WRITER);
    browser.wait_for("document.querySelector('#trace-details').textContent.includes('writer #8')");
    // A call has a slice below its task and one below its core, and is counted once.
    browser.key("/");
    browser.type_text("app::inner");
    browser.wait_for("document.querySelector('#trace-matches').textContent === '1 match'");
    browser.click("#trace-found .trace-match");
    title_is(&mut browser, "app::inner");
    browser.assert_quiet();
}

#[test]
fn a_wait_says_who_woke_it_and_a_task_whom_it_woke() {
    let Some(mut browser) = open(&traces::with_calls()) else { return };
    click(&mut browser, 0.3, READER);
    browser.wait_for("document.querySelector('#trace-details').textContent.includes('Woken by')");
    browser.wait_for("document.querySelector('#trace-details').textContent.includes('disk 0: read, ')");
    browser.key("b");
    title_is(&mut browser, "read");
    // A task that runs was ready before, and that was woken.
    choose(&mut browser, "reader #7", 800_000);
    browser.key("b");
    title_is(&mut browser, "read");
    choose(&mut browser, "writer #8", 600_000);
    browser.wait_for("document.querySelector('#trace-details').textContent.includes('Wakesreader #7: ')");
    browser.assert_quiet();
}

#[test]
fn notifications_switches_and_connections_have_tracks() {
    let Some(mut browser) = open(&traces::with_calls()) else { return };
    choose(&mut browser, "disk 0 notify", 121_000);
    title_is(&mut browser, "notify");
    assert!(details(&mut browser).contains("writer #8"), "{}", details(&mut browser));
    // What comes after the track of the kicks is where it was planned.
    choose(&mut browser, "net", 135_000);
    title_is(&mut browser, "transmit");
    choose(&mut browser, "trace on/off", 0);
    title_is(&mut browser, "on: tasks, cores");
    choose(&mut browser, "trace on/off", 950_000);
    title_is(&mut browser, "off");
    choose(&mut browser, "10.0.0.2:50004 → :8080", 500_000);
    title_is(&mut browser, "open before the trace");
    let said = details(&mut browser);
    assert!(said.contains("open before the trace, its end is not in the trace") && said.contains("1.000 ms"), "{said}");
    choose(&mut browser, "10.0.0.2:50005 → :8080", 350_000);
    title_is(&mut browser, "open");
    let said = details(&mut browser);
    assert!(said.contains("100.00 µs") && !said.contains("Remarks"), "{said}");
    choose(&mut browser, "10.0.0.2:50005 → :8080", 400_000);
    title_is(&mut browser, "received");
    browser.assert_quiet();
}

#[test]
fn a_click_beside_a_mark_means_the_mark() {
    let Some(mut browser) = open(&traces::with_calls()) else { return };
    browser.eval("document.querySelector('#trace-filter').focus()");
    browser.type_text("50005");
    let (x, y) = place(&mut browser, 0.4, 26.0 + 10.0);
    browser.click_at(x + 1.0, y);
    title_is(&mut browser, "received");
    browser.click_at(x + 20.0, y);
    title_is(&mut browser, "open");
    browser.assert_quiet();
}

#[test]
fn keys_walk_from_slice_to_slice_and_from_track_to_track() {
    let Some(mut browser) = open(&traces::with_calls()) else { return };
    // In the middle of the first track the writer runs on the core.
    browser.key("]");
    title_is(&mut browser, "writer");
    browser.key("]");
    title_is(&mut browser, "reader");
    browser.key(".");
    browser.wait_for("document.querySelector('#trace-details').textContent.includes('Tasks › reader #7')");
    browser.key(".");
    browser.wait_for("document.querySelector('#trace-details').textContent.includes('Tasks › writer #8')");
    browser.key(",");
    title_is(&mut browser, "runnable");
    browser.key("[");
    title_is(&mut browser, "disk 0 I/O");
    browser.assert_quiet();
}

/// Name, kind, times and nanoseconds of the rows that add up a range.
fn sums(browser: &mut Browser) -> Vec<(String, String, u64, f64)> {
    let rows = browser.eval(
        "[...document.querySelectorAll('#trace-sums tbody tr')].map(({ cells }) => { const [value, unit] = cells[4].textContent.split(' '); \
         return [cells[1].textContent, cells[2].textContent, Number(cells[3].textContent.replaceAll(',', '')), \
         value * { ns: 1, 'µs': 1e3, ms: 1e6, s: 1e9 }[unit]]; })",
    );
    serde_json::from_value(rows).expect("rows of two texts and two numbers")
}

#[test]
fn a_range_is_added_up() {
    let Some(mut browser) = open(&traces::with_calls()) else { return };
    browser.click("#trace-sums-tab");
    browser.wait_for("document.querySelector('#trace-sums tbody tr')");
    let find = |rows: &[(String, String, u64, f64)], kind: &str| -> (u64, f64) {
        rows.iter().filter(|row| row.1 == kind).fold((0, 0.0), |sum, row| (sum.0 + row.2, sum.1 + row.3))
    };
    let rows = sums(&mut browser);
    // Polls of 100, 500 and 290 us, in the tracks of tasks and of the core.
    assert_eq!(find(&rows, "running"), (3, 890e3), "{rows:?}");
    assert_eq!(find(&rows, "poll"), (3, 890e3), "{rows:?}");
    assert_eq!(find(&rows, "waiting for I/O"), (1, 460e3), "{rows:?}");
    assert_eq!(find(&rows, "segment received"), (1, 0.0), "{rows:?}");
    assert_eq!(find(&rows, "open connection").1, 1_600e3, "{rows:?}");
    // From 500 us on: 200 us of the writer, and what is left of the reader's wait until 560 us.
    browser.eval("void (location.hash = '#t=500000-1000000&panel=trace-sums')");
    browser.wait_for("document.querySelector('#trace-sums p').textContent.includes('500.00 µs.')");
    let rows = sums(&mut browser);
    assert_eq!(find(&rows, "running"), (2, 490e3), "{rows:?}");
    assert_eq!(find(&rows, "waiting for I/O"), (1, 60e3), "{rows:?}");
    assert_eq!(find(&rows, "segment received"), (0, 0.0), "{rows:?}");
    // A ruler counts instead of what is in sight.
    browser.eval("void (location.hash = '#ruler=0-50000&panel=trace-sums')");
    browser.wait_for("document.querySelector('#trace-sums p').textContent.includes('50.00 µs.')");
    assert_eq!(find(&sums(&mut browser), "running"), (1, 50e3));
    browser.assert_quiet();
}
