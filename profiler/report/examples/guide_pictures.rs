//! The pictures of the guides, of recordings: `guide_pictures FOLDER RECORDING [BEFORE AFTER]` writes `trace.png` and `report.png` of a
//! recording with samples and a trace of the upload queue, and `difference.png` of two recordings with samples; `guide_pictures FOLDER host RECORDING`
//! writes `host.png` of a recording of `glass record --host`; `guide_pictures FOLDER linux RECORDING` writes `linux-guest.png` of a recording of a Linux in a VM.

#[path = "../tests/all/support/browser.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod browser;

use browser::Browser;
use glass_profiler_core::files::NoFiles;
use glass_profiler_core::recording::{Recording, open};
use glass_profiler_core::trace::build;
use std::path::Path;

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, of, others @ ..] = &arguments[..] else {
        return Err("give a folder, a recording, and two others for the picture of a difference".into());
    };
    let folder = Path::new(folder);
    if let ("host", [hosted]) = (of.as_str(), others) {
        return host(folder, &recording(hosted)?);
    }
    if let ("linux", [guest]) = (of.as_str(), others) {
        return linux(folder, &recording(guest)?);
    }
    let of = recording(of)?;
    let page = glass_profiler_report::trace_html(&of.profile, &build(&of.trace));
    let mut browser = Browser::open(&page).ok_or("there is no Chromium to open the pages")?;
    browser.prefer("light");
    browser.resize(1280, 720);
    browser.wait_for("document.documentElement.dataset.ready === 'trace'");
    browser.click("#trace-overview .story-buttons button");
    browser.wait_for("document.querySelector('#trace-paths h3') !== null");
    browser.picture(folder, "trace.png");
    browser.click("#path-clear");
    browser.click("#samples-view");
    browser.wait_for("!document.querySelector('#report').hidden");
    browser.resize(1280, 1000);
    browser.click("input[value=icicle]");
    browser.eval("window.scrollTo(0, 0)");
    browser.picture(folder, "report.png");
    let [before, after] = others else { return Ok(()) };
    let [before, after] = [recording(before)?, recording(after)?];
    browser.show_at(&glass_profiler_report::difference_html(&before.profile, &after.profile), "");
    browser.resize(1280, 1200);
    browser.wait_for("document.querySelector('#whole').textContent !== ''");
    browser.click("input[value=icicle]");
    browser.eval("window.scrollTo(0, 0)");
    browser.picture(folder, "difference.png");
    Ok(())
}

fn host(folder: &Path, of: &Recording) -> Result<(), String> {
    let mut browser =
        Browser::open(&glass_profiler_report::html(&of.profile)).ok_or("there is no Chromium to open the pages")?;
    browser.prefer("light");
    browser.resize(1280, 1100);
    browser.wait_for("document.querySelector('#sides') !== null");
    browser.click("#sides input[value=merged]");
    browser.wait_for("document.querySelector('#colour').value === 'mode'");
    browser.picture(folder, "host.png");
    Ok(())
}

fn linux(folder: &Path, of: &Recording) -> Result<(), String> {
    let mut browser =
        Browser::open(&glass_profiler_report::html(&of.profile)).ok_or("there is no Chromium to open the pages")?;
    browser.prefer("light");
    browser.resize(1280, 760);
    browser.wait_for("document.querySelector('#colour') !== null");
    browser.click("input[value=icicle]");
    browser.wait_for("document.querySelector('#tree tbody tr') !== null");
    // What the recording cost depends on the machine of the picture: it begins below that.
    browser.eval("window.scrollTo({ top: document.querySelector('.tools').offsetTop, behavior: 'instant' })");
    browser.picture(folder, "linux-guest.png");
    Ok(())
}

fn recording(path: &str) -> Result<Recording, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    open(&bytes[..], &mut NoFiles).map_err(|error| format!("{path}: {error}"))
}
