//! The view of a trace in a browser: where its tracks are, and what is in sight.

use glass_profiler_core::model::Profile;
use glass_profiler_core::trace::model::Trace;

use super::browser::Browser;

/// Left of the time, and above the tracks: minimap and axis.
pub const NAMES_PX: f64 = 210.0;
pub const AXIS_PX: f64 = 56.0;

pub fn open(trace: &Trace) -> Option<Browser> {
    let mut browser = Browser::open(&glass_profiler_report::trace_html(&Profile::default(), trace))?;
    ready(&mut browser);
    Some(browser)
}

pub fn ready(browser: &mut Browser) {
    browser.wait_for("document.documentElement.dataset.ready === 'trace'");
}

/// First and last moment in sight, in nanoseconds.
pub fn window(browser: &mut Browser) -> (f64, f64) {
    let view = browser.eval("document.querySelector('#trace-window').dataset.ns");
    let view = view.as_str().expect("the window of time is told");
    let (from, to) = view.split_once('-').expect("two times");
    (from.parse().expect("a time"), to.parse().expect("a time"))
}

/// Where a moment of a window of `whole` nanoseconds is, in the track whose middle is `y` below the axis.
pub fn place(browser: &mut Browser, part: f64, y: f64) -> (f64, f64) {
    let [left, top, width, _] = browser.place("#trace-box canvas");
    (left + NAMES_PX + (width - NAMES_PX) * part, top + AXIS_PX + y)
}

pub fn click(browser: &mut Browser, part: f64, y: f64) {
    let (x, y) = place(browser, part, y);
    browser.click_at(x, y);
}

pub fn details(browser: &mut Browser) -> String {
    browser.text("#trace-details")
}

/// Middle of a track below the axis, by its place in the trace of `traces::two_tasks`: headings take 26 pixels, tracks
/// 20, and 6 are between groups.
pub const CORE: f64 = 26.0 + 10.0;
pub const READER: f64 = 26.0 + 20.0 + 6.0 + 26.0 + 10.0;
pub const WRITER: f64 = READER + 20.0;
pub const DISK: f64 = WRITER + 10.0 + 6.0 + 26.0 + 9.0;
