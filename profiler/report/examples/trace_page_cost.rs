//! The cost of a trace's page: `trace_page_cost EVENTS RUNS [FILE.html [FILE.cpuprofile]]` makes one of a synthetic trace of the queue,
//! opens it in a headless Chromium, pans, zooms, and prints `name value` lines, as often as RUNS. Beside it an empty page with as many
//! bytes, in the same browser. The first file keeps the page, the second Chromium's CPU profile of all that the page did.

#[path = "../tests/all/support/browser.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod browser;

use browser::Browser;
use glass_profiler_core::model::Profile;
use glass_profiler_core::trace::{build, example};
use serde_json::json;
use std::time::Instant;

/// How long each movement lasts.
const MOVE_MS: u32 = 2000;

/// Calls `step` with the number of each frame for `ms`; the times between frames in milliseconds.
const FRAMES: &str = "(ms, step) => new Promise((resolve) => {
  const frames = [];
  let [started, before, number] = [null, null, 0];
  const frame = (now) => {
    started ??= now;
    if (number > 1) frames.push(now - before);
    before = now;
    number += 1;
    if (now - started > ms) { resolve(frames); return; }
    step(number);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})";

/// Zooms in by `steps`, and then moves to and fro by 20 pixels a frame, as two fingers on a touchpad do.
const PAN: &str = "(steps) => {
  const canvas = document.querySelector('#trace-box canvas');
  const place = canvas.getBoundingClientRect();
  const wheel = (more) => canvas.dispatchEvent(new WheelEvent('wheel', {
    clientX: place.left + place.width / 2, clientY: place.top + place.height / 2, cancelable: true, ...more }));
  for (let step = 0; step < steps; step += 1) wheel({ deltaY: -220 });
  return (number) => wheel({ deltaX: number % 80 < 40 ? 20 : -20 });
}";

/// Zooms in and out around moving places and moves in between.
const SHAKE: &str = "() => {
  const canvas = document.querySelector('#trace-box canvas');
  const place = canvas.getBoundingClientRect();
  return (number) => {
    const clientX = place.left + place.width * (0.4 + 0.3 * Math.sin(number / 9));
    const clientY = place.top + place.height / 2;
    if (number % 4 === 0) document.body.dispatchEvent(new KeyboardEvent('keydown', { key: number % 80 < 40 ? 'd' : 'a', bubbles: true }));
    else canvas.dispatchEvent(new WheelEvent('wheel', { clientX, clientY, deltaY: number % 120 < 70 ? -60 : 60, cancelable: true }));
  };
}";

/// Opens and reports its first frame; the bytes are in an element that no script runs.
const EMPTY: (&str, &str) = (
    "<!doctype html><meta charset=utf-8><title>Floor</title><canvas></canvas>\
     <script>requestAnimationFrame(() => { performance.mark('trace-ready'); document.documentElement.dataset.ready = 'trace'; });</script>\
     <script type=text/plain>",
    "</script>",
);

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let events = arguments.next().ok_or("give a number of events")?;
    let events: usize = events.parse().map_err(|_| format!("{events:?} is not a number of events"))?;
    let runs = arguments.next().and_then(|text| text.parse::<u32>().ok()).ok_or("give a number of runs")?;
    let started = Instant::now();
    let trace = build(&example::queue(events, 1));
    println!("build_ms {}", started.elapsed().as_millis());
    println!("built_peak_rss_bytes {}", peak_rss());
    println!("events {}", trace.event_count);
    let started = Instant::now();
    let page = glass_profiler_report::trace_html(&Profile::default(), &trace);
    println!("page_ms {}", started.elapsed().as_millis());
    drop(trace);
    println!("page_peak_rss_bytes {}", peak_rss());
    println!("file_bytes {}", page.len());
    if let Some(file) = arguments.next() {
        std::fs::write(&file, &page).map_err(|error| format!("{file}: {error}"))?;
    }
    let floor = format!("{}{}{}", EMPTY.0, "x".repeat(page.len()), EMPTY.1);
    let profile = arguments.next();
    for _ in 0..runs {
        // The first page of a browser pays for its start.
        let Some(mut browser) = Browser::open("<!doctype html><title>Start</title>") else { return Ok(()) };
        measure(&mut browser, &floor, &page, profile.as_deref())?;
    }
    Ok(())
}

/// Opens both pages and moves in them; a file gets Chromium's profile of the second.
fn measure(browser: &mut Browser, floor: &str, page: &str, profile: Option<&str>) -> Result<(), String> {
    open(browser, floor, "floor_open");
    frames(browser, "floor_frame", "() => () => {}");
    if profile.is_some() {
        browser.call("Profiler.enable", json!({}));
        browser.call("Profiler.start", json!({}));
    }
    open(browser, page, "open");
    for (name, movement) in [("pan", format!("() => ({PAN})(3)")), ("pan_near", format!("() => ({PAN})(6)"))] {
        frames(browser, name, &movement);
    }
    frames(browser, "frame", SHAKE);
    if let Some(file) = profile {
        let profile = browser.call("Profiler.stop", json!({}));
        std::fs::write(file, profile["profile"].to_string()).map_err(|error| format!("{file}: {error}"))?;
    }
    for complaint in &browser.complaints {
        eprintln!("the page printed: {complaint}");
    }
    Ok(())
}

fn number(browser: &mut Browser, script: &str) -> f64 {
    browser.eval(script).as_f64().unwrap_or(f64::NAN)
}

/// Prints the time from the start of the navigation to the first frame that shows everything.
fn open(browser: &mut Browser, page: &str, name: &str) {
    browser.show_at(page, "");
    browser.wait_for("document.documentElement.dataset.ready === 'trace'");
    println!("{name}_ms {:.0}", number(browser, "performance.getEntriesByName('trace-ready')[0].startTime"));
}

/// Prints the time between frames while the page does what `movement` returns, and what each costs the page's thread.
fn frames(browser: &mut Browser, name: &str, movement: &str) {
    browser.call("Performance.enable", json!({}));
    let before = task_seconds(browser);
    let frames = browser.eval_async(&format!("({FRAMES})({MOVE_MS}, ({movement})())"));
    let busy = task_seconds(browser) - before;
    let mut frames: Vec<f64> = frames.as_array().into_iter().flatten().filter_map(|frame| frame.as_f64()).collect();
    frames.sort_by(f64::total_cmp);
    let at = |part: usize| frames.get(frames.len() * part / 100).copied().unwrap_or(f64::NAN);
    println!("{name}_frames {}", frames.len());
    println!("{name}_median_ms {:.1}", at(50));
    println!("{name}_p99_ms {:.1}", at(99));
    println!("{name}_busy_ms {:.2}", busy * 1e3 / frames.len().max(1) as f64);
}

/// How long the page's thread has run tasks.
fn task_seconds(browser: &mut Browser) -> f64 {
    let answer = browser.call("Performance.getMetrics", json!({}));
    let metrics = answer["metrics"].as_array().into_iter().flatten();
    metrics.filter(|metric| metric["name"] == "TaskDuration").filter_map(|metric| metric["value"].as_f64()).sum()
}

/// The most memory that this process had so far.
fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}
