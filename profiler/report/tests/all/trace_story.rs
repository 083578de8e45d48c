//! The story that the demo's page leads through: from a recording of uploads to the slowest one, its critical path, the flush that made it
//! wait, the write before that, and its samples; by pointer, by keys, on a small and on a narrow screen, without barriers.

use std::io::Read as _;
use std::path::PathBuf;

use crate::support::barriers::barriers;
use crate::support::browser::Browser;
use crate::support::trace_view::ready;
use flate2::read::GzDecoder;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::recording::open as open_recording;
use glass_profiler_core::trace::build;
use serde_json::{Value, json};

/// What `cargo xtask demo --short` recorded of the queue as a VM (`target/demo/queue.pftrace`), through `gzip -9n`: 14 uploads of 1 KiB
/// to 2 MiB, four at a time, then as many downloads.
const RECORDING: &[u8] = include_bytes!("../recordings/demo.pftrace.gz");

fn page() -> String {
    let mut bytes = Vec::new();
    GzDecoder::new(RECORDING).read_to_end(&mut bytes).expect("the recording was packed by gzip");
    let recording = open_recording(&bytes[..], &mut NoFiles).expect("the recording is whole");
    glass_profiler_report::trace_html(&recording.profile, &build(&recording.trace))
}

fn open(page: &str, width: u32, height: u32) -> Option<Browser> {
    let mut browser = Browser::open(page)?;
    browser.resize(width, height);
    ready(&mut browser);
    Some(browser)
}

/// The folder for pictures, if they are wanted.
fn folder() -> Option<PathBuf> {
    std::env::var_os("GLASS_SCREENSHOTS").map(PathBuf::from)
}

fn picture(browser: &mut Browser, name: &str) {
    if let Some(folder) = folder() {
        browser.picture(&folder, name);
    }
}

fn panel(browser: &mut Browser, text: &str) {
    browser
        .wait_for(&format!("document.querySelector('#trace-panels > :not([hidden])').textContent.includes({text:?})"));
}

fn title_is(browser: &mut Browser, title: &str) {
    browser.wait_for(&format!("document.querySelector('#trace-details h3')?.textContent === {title:?}"));
}

/// Numbers of the step of the path that is marked, and its text.
fn step(browser: &mut Browser) -> (i64, String) {
    let step = browser.eval(
        "(() => { const rows = [...document.querySelectorAll('.path-steps tbody tr')]; \
         const at = rows.findIndex((row) => row.hasAttribute('aria-current')); return [at, rows[at]?.cells[0].textContent.trim() ?? '']; })()",
    );
    (step[0].as_i64().expect("a number"), step[1].as_str().expect("a text").to_owned())
}

/// Tracks of the path alone: what the timeline can scroll through.
fn height(browser: &mut Browser) -> f64 {
    let height = browser.eval("parseFloat(document.querySelector('.trace-spacer').style.height)");
    height.as_f64().expect("a height")
}

/// Goes along the path until a step that has a text.
fn walk_to(browser: &mut Browser, key: &str, text: &str) -> i64 {
    for _ in 0..400 {
        let (before, _) = step(browser);
        browser.key(key);
        browser.wait_for(&format!(
            "[...document.querySelectorAll('.path-steps tbody tr')].findIndex((row) => row.hasAttribute('aria-current')) !== {before}"
        ));
        let (at, what) = step(browser);
        if what.contains(text) {
            return at;
        }
    }
    panic!("no step {text:?}: {}", browser.text("#trace-paths"));
}

/// From the slowest upload, whose path is shown, to its samples.
fn to_the_cause(browser: &mut Browser) {
    panel(browser, "Breakdown by the cause");
    assert_eq!(browser.eval("document.querySelector('#trace-path').hidden"), json!(false));
    assert!(browser.text("#trace-path output").starts_with("Critical path of upload: "));
    // The last flush on its way, and the write that its task submitted before.
    browser.key("k");
    walk_to(browser, "k", "disk 0 flush");
    title_is(browser, "flush");
    picture(browser, "story-flush.png");
    walk_to(browser, "k", "disk 0 write");
    title_is(browser, "write");
    // From the request to the task that submitted it, and from there on to what it waited for.
    browser.key("b");
    browser.wait_for("/ › (commit|connection)/.test(document.querySelector('#trace-details').textContent)");
    browser.key("]");
    browser.wait_for("document.querySelector('#trace-details').textContent.includes('disk 0 I/O')");
    browser.key("b");
    title_is(browser, "write");
    browser.key("e");
    browser.wait_for("document.querySelector('#trace-details h3').textContent.match(/^(runnable|running)/)");
    browser.assert_quiet();
}

#[test]
fn the_slowest_upload_is_two_clicks_from_its_cause() {
    let Some(mut browser) = open(&page(), 1280, 720) else { return };
    panel(&mut browser, "The slowest and the median span");
    picture(&mut browser, "story-opened.png");
    let whole = height(&mut browser);
    // One click is enough.
    browser.click("#trace-overview .story-buttons button");
    panel(&mut browser, "Breakdown by the cause");
    browser.wait_for(&format!("parseFloat(document.querySelector('.trace-spacer').style.height) < {whole}"));
    picture(&mut browser, "story-path.png");
    // All tracks, and those of the path alone again.
    let alone = height(&mut browser);
    browser.click("#path-only");
    browser.wait_for(&format!("parseFloat(document.querySelector('.trace-spacer').style.height) > {alone}"));
    browser.click("#path-only");
    browser.wait_for(&format!("parseFloat(document.querySelector('.trace-spacer').style.height) === {alone}"));
    // Details stand beside the timeline: both are in sight without scrolling.
    for selector in ["#trace-box", "#trace-panels"] {
        let [_, top, _, height] = browser.place(selector);
        assert!(top > 0.0 && height > 300.0 && top + height <= 720.0, "{selector} {top} {height}");
    }
    assert_eq!(browser.eval("document.documentElement.scrollHeight <= window.innerHeight"), json!(true));
    to_the_cause(&mut browser);
    // What is in the span, on its path or not.
    browser.click("#trace-overview-tab");
    browser.click("#trace-overview .story-buttons button");
    panel(&mut browser, "Breakdown by the cause");
    browser.click("#trace-details-tab");
    browser.wait_for("/Child spans \\([1-9]/.test(document.querySelector('#trace-details').textContent)");
    browser.wait_for("/Requests \\([1-9]/.test(document.querySelector('#trace-details').textContent)");
    // The panel of before was scrolled to the step that was reached.
    assert_eq!(browser.eval("document.querySelector('#trace-panels').scrollTop"), json!(0));
    picture(&mut browser, "story-details.png");
    let inside = browser.eval("document.querySelector('.inside-tree').textContent");
    for child in ["receive", "commit", "answer"] {
        assert!(inside.as_str().is_some_and(|text| text.contains(child)), "{inside}");
    }
    // Its samples, as flame graph and as stack chart.
    browser.click("#path-samples");
    browser.wait_for("!document.querySelector('#report').hidden");
    browser.wait_for(
        "/^span upload: ran .*, [1-9]\\d* samples?$/.test(document.querySelector('#timeline .selection').textContent)",
    );
    browser.wait_for("document.querySelector('#graph').getBoundingClientRect().top < 520");
    picture(&mut browser, "story-samples.png");
    browser.click("input[value=chart] + span");
    browser.wait_for("/ samples of /.test(document.querySelector('#chart p').textContent)");
    picture(&mut browser, "story-chart.png");
    browser.assert_quiet();
}

#[test]
fn keys_lead_to_the_cause_too() {
    let Some(mut browser) = open(&page(), 1280, 720) else { return };
    panel(&mut browser, "The slowest and the median span");
    let is_focused = "document.activeElement === document.querySelector('#trace-overview .story-buttons button')";
    for _ in 0..40 {
        if browser.eval(is_focused) == json!(true) {
            break;
        }
        browser.key("Tab");
    }
    assert_eq!(browser.eval(is_focused), json!(true), "Tab reaches the slowest upload");
    browser.key("Enter");
    to_the_cause(&mut browser);
    // Back to the span, and to its samples.
    browser.key("Escape");
    browser.key("v");
    browser.wait_for("document.querySelector('#trace-note').textContent !== ''");
    browser.key("/");
    browser.type_text("upload");
    browser.key("Enter");
    title_is(&mut browser, "upload");
    browser.key("v");
    browser.wait_for("!document.querySelector('#report').hidden");
    browser.wait_for("/^span upload: /.test(document.querySelector('#timeline .selection').textContent)");
    browser.assert_quiet();
}

#[test]
fn all_spans_of_a_name_are_a_table() {
    let Some(mut browser) = open(&page(), 1280, 720) else { return };
    browser.click("#trace-spans-tab");
    browser.wait_for("document.querySelectorAll('#trace-spans tbody tr').length === 14");
    picture(&mut browser, "story-spans.png");
    let note = browser.text("#trace-spans .trace-nothing");
    assert!(note.starts_with("14 spans: median ") && note.contains("p99"), "{note}");
    let head = browser.eval("[...document.querySelectorAll('#trace-spans th')].map((th) => th.textContent)");
    assert_eq!(head, json!(["start", "duration", "ID", "task", "bytes", "id"]));
    let bars = browser.eval(
        "[...document.querySelectorAll('.histogram button')].map((bar) => Number(/: (\\d+) spans/.exec(bar.title)[1])).reduce((a, b) => a + b)",
    );
    assert_eq!(bars, json!(14));
    // By a field, the largest first.
    browser.click("#trace-spans th:nth-child(5) button");
    browser.click("#trace-spans th:nth-child(5) button");
    let bytes = browser
        .eval("[...document.querySelectorAll('#trace-spans tbody tr')].map((row) => Number(row.cells[4].textContent))");
    let bytes: Vec<u64> = serde_json::from_value(bytes).expect("numbers");
    let kib = [2_048, 1_024, 1_024, 1_024, 256, 256, 256, 256, 16, 16, 16, 1, 1, 1];
    assert_eq!(bytes, kib.map(|kib| kib << 10));
    browser.click("#trace-spans tbody tr:nth-child(2)");
    panel(&mut browser, "Breakdown by the cause");
    browser.click("#trace-details-tab");
    browser.wait_for("document.querySelector('.trace-text')?.textContent.includes('bytes = 1048576')");
    browser.assert_quiet();
}

#[test]
fn a_search_finds_fields_tasks_and_numbers_once() {
    let Some(mut browser) = open(&page(), 1280, 720) else { return };
    let search = |browser: &mut Browser, text: &str| -> String {
        browser.key("Escape");
        browser.eval("document.querySelector('#trace-search').value = ''");
        browser.key("/");
        browser.type_text(text);
        browser.wait_for("/match(es)?$/.test(document.querySelector('#trace-matches').textContent)");
        browser.text("#trace-matches")
    };
    // A field of an upload, and whatever else has this ID.
    search(&mut browser, "id = 4");
    browser.wait_for("document.querySelector('#trace-found').textContent.includes('upload (bytes = 1048576, id = 4)')");
    browser.eval(
        "[...document.querySelectorAll('.trace-match')].find((row) => row.textContent.includes('upload')).click()",
    );
    browser.wait_for("document.querySelector('.trace-text')?.textContent.includes('id = 4')");
    assert_eq!(search(&mut browser, "bytes = 2,097,152"), "no match");
    assert_eq!(search(&mut browser, "bytes = 2097152"), "2 matches");
    assert_eq!(search(&mut browser, "#7"), "1 match");
    browser.key("Enter");
    browser.wait_for("document.querySelector('#trace-details').textContent.includes('connection #7')");
    let writes = search(&mut browser, "131,072");
    assert!(writes.ends_with("matches") && writes != "0 matches", "{writes}");
    // Each upload is a span of its own, however often cores were in it.
    assert_eq!(search(&mut browser, "/^upload$/"), "14 matches");
    browser.assert_quiet();
}

/// Goes through all views of the page in a window of this size.
fn no_barriers(width: u32, height: u32) {
    let Some(mut browser) = open(&page(), width, height) else { return };
    for theme in ["light", "dark"] {
        if browser.eval("document.documentElement.dataset.theme") != json!(theme) {
            browser.click("#theme");
        }
        browser.click("#trace-view");
        let tabs: Value = browser.eval("[...document.querySelectorAll('#trace-tabs button')].map((tab) => tab.id)");
        for tab in tabs.as_array().into_iter().flatten().filter_map(Value::as_str) {
            browser.click(&format!("#{tab}"));
            barriers(&mut browser, &format!("{width} {theme} {tab}"));
        }
        browser.click("#trace-overview-tab");
        browser.click("#trace-overview .story-buttons button");
        panel(&mut browser, "Breakdown by the cause");
        barriers(&mut browser, &format!("{width} {theme} path"));
        picture(&mut browser, &format!("path-{width}-{theme}.png"));
        browser.click("#trace-details-tab");
        browser.wait_for("document.querySelector('.inside-items')");
        barriers(&mut browser, &format!("{width} {theme} details"));
        browser.click("#samples-view");
        barriers(&mut browser, &format!("{width} {theme} samples"));
        picture(&mut browser, &format!("samples-{width}-{theme}.png"));
    }
    browser.assert_quiet();
}

#[test]
fn no_view_has_barriers() {
    no_barriers(1280, 720);
}

#[test]
fn no_view_has_barriers_on_a_narrow_screen() {
    no_barriers(390, 844);
}

#[test]
fn a_narrow_screen_shows_tracks_and_panels() {
    let Some(mut browser) = open(&page(), 390, 844) else { return };
    panel(&mut browser, "The slowest and the median span");
    picture(&mut browser, "narrow-opened.png");
    // The story begins without scrolling.
    let [_, top, _, height] = browser.place("#trace-overview .story-buttons button");
    assert!(top + height <= 844.0 && browser.eval("window.scrollY") == json!(0), "{top} {height}");
    browser.click("#trace-overview .story-buttons button");
    panel(&mut browser, "Breakdown by the cause");
    picture(&mut browser, "narrow-path.png");
    assert_eq!(
        browser.eval("document.documentElement.scrollWidth <= 390"),
        json!(true),
        "nothing is wider than the screen"
    );
    let [left, top, width, height] = browser.place("#trace-box canvas");
    assert!(
        left >= 0.0 && left + width <= 390.0 && top + height <= 844.0 && width > 300.0,
        "{left} {top} {width} {height}"
    );
    browser.assert_quiet();
}
