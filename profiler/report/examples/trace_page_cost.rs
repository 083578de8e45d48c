//! What a page of a trace costs: `trace_page_cost EVENTS [FILE.html]` makes one of a made-up trace of the queue, opens it in a
//! headless Chromium, moves and zooms for two seconds, and prints `name value` lines. FILE keeps the page.

#[path = "../tests/all/support/browser.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod browser;

use std::time::Instant;

use glass_profile::model::Profile;
use glass_profile::trace::{build, example};

/// Zooms in and out around moving places and moves in between, for `ms`; the times between frames in milliseconds.
const SHAKE: &str = "(ms) => new Promise((resolve) => {
  const canvas = document.querySelector('#trace-box canvas');
  const place = canvas.getBoundingClientRect();
  const frames = [];
  const started = performance.now();
  let before = started;
  let number = 0;
  const step = (now) => {
    if (number > 1) frames.push(now - before);
    before = now;
    number += 1;
    if (now - started > ms) { resolve(frames); return; }
    const clientX = place.left + place.width * (0.4 + 0.3 * Math.sin(number / 9));
    const clientY = place.top + place.height / 2;
    if (number % 4 === 0) document.body.dispatchEvent(new KeyboardEvent('keydown', { key: number % 80 < 40 ? 'd' : 'a', bubbles: true }));
    else canvas.dispatchEvent(new WheelEvent('wheel', { clientX, clientY, deltaY: number % 120 < 70 ? -60 : 60, cancelable: true }));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})";

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let events = arguments.next().ok_or("give a number of events")?;
    let events: usize = events.parse().map_err(|_| format!("{events:?} is not a number of events"))?;
    let started = Instant::now();
    let trace = build(&example::queue(events, 1));
    println!("build_ms {}", started.elapsed().as_millis());
    println!("built_peak_rss_bytes {}", peak_rss());
    println!("events {}", trace.event_count);
    let started = Instant::now();
    let page = glass_report::trace_html(&Profile::default(), &trace);
    println!("page_ms {}", started.elapsed().as_millis());
    drop(trace);
    println!("page_peak_rss_bytes {}", peak_rss());
    println!("file_bytes {}", page.len());
    if let Some(file) = arguments.next() {
        std::fs::write(&file, &page).map_err(|error| format!("{file}: {error}"))?;
    }
    let Some(mut browser) = browser::Browser::open(&page) else { return Ok(()) };
    drop(page);
    browser.wait_for("document.documentElement.dataset.ready === 'trace'");
    let number = |browser: &mut browser::Browser, script: &str| browser.eval(script).as_f64().unwrap_or(f64::NAN);
    // Both from the begin of the navigation on.
    println!("open_ms {:.0}", number(&mut browser, "performance.getEntriesByName('trace-ready')[0].startTime"));
    println!("loaded_ms {:.0}", number(&mut browser, "performance.getEntriesByType('navigation')[0].loadEventEnd"));
    let frames = browser.eval_async(&format!("({SHAKE})(2000)"));
    let mut frames: Vec<f64> = frames.as_array().into_iter().flatten().filter_map(|frame| frame.as_f64()).collect();
    frames.sort_by(f64::total_cmp);
    let at = |part: usize| frames.get(frames.len() * part / 100).copied().unwrap_or(f64::NAN);
    println!("frames {}", frames.len());
    println!("frame_median_ms {:.1}", at(50));
    println!("frame_p99_ms {:.1}", at(99));
    println!("frames_over_50_ms {}", frames.iter().filter(|&&frame| frame > 50.0).count());
    for complaint in &browser.complaints {
        eprintln!("the page said: {complaint}");
    }
    Ok(())
}

/// The most memory that this process had so far.
fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}
