//! The address of a page keeps what is shown: a browser that opens it shows the same.

use crate::support::browser::Browser;
use crate::support::profiles::{faster, phases, service};
use crate::support::trace_view::{DISK, READER, WRITER, click, place, ready};
use crate::support::traces;
use serde_json::{Value, json};

/// What the page shows where it is read.
fn shown(browser: &mut Browser, selectors: &[&str]) -> Vec<Value> {
    let of = |selector: &&str| {
        browser.eval(&format!("[...document.querySelectorAll({selector:?})].map((e) => e.value ?? e.textContent)"))
    };
    selectors.iter().map(of).collect()
}

/// The address, as soon as it holds all of these.
fn address(browser: &mut Browser, parts: &[&str]) -> String {
    for part in parts {
        browser.wait_for(&format!("decodeURIComponent(location.hash).includes({part:?})"));
    }
    browser.eval("location.hash").as_str().expect("a text").to_string()
}

fn change(browser: &mut Browser, selector: &str, value: &str) {
    browser.eval(&format!(
        "(() => {{ const e = document.querySelector({selector:?}); e.value = {value:?}; e.dispatchEvent(new Event('change')); }})()"
    ));
}

#[test]
fn samples_are_shown_as_they_were() {
    let page = glass_profiler_report::html(&phases(4_000, 0, 1));
    let Some(mut browser) = Browser::open(&page) else { return };
    let all = [
        "#whole",
        "#crumbs button",
        "#timeline .selection",
        "#functions-count",
        "#search",
        "tr.selected .name",
        "select",
    ];
    let opened = shown(&mut browser, &all);
    let [left, top, width, height] = browser.place("#timeline canvas");
    let y = top + height - 8.0;
    browser.drag((left + width * 0.2, y), (left + width * 0.7, y));
    browser.click("input[value=spinning]");
    browser.click("input[value=icicle] + span");
    change(&mut browser, "#recursion", "all");
    browser.click("#functions-tab");
    browser.eval("document.querySelectorAll('#functions td.name button')[1].click()");
    let [left, top, width, _] = browser.place("#graph");
    browser.click_at(left + width * 0.3, top + 1.0 + 3.0 * 20.0 + 10.0);
    let before = shown(&mut browser, &all);
    assert!(before.iter().zip(&opened).filter(|(now, then)| now != then).count() >= 5, "{before:?}");
    let parts =
        ["range=", "count=running,spinning", "view=icicle", "recursion=all", "table=functions", "mark=", "zoom="];
    let hash = address(&mut browser, &parts);
    browser.assert_quiet();
    let Some(mut other) = Browser::open_at(&page, &hash) else { return };
    assert_eq!(shown(&mut other, &all), before);
    // An empty address shows what the page opens with.
    other.eval("void (location.hash = '#')");
    other.wait_for("document.querySelector('#timeline .selection').textContent === ''");
    assert_eq!(shown(&mut other, &all), opened);
    other.assert_quiet();
}

#[test]
fn a_difference_is_shown_as_it_was() {
    let page = glass_profiler_report::difference_html(&service(6_000, 1), &faster(6_000, 2));
    let Some(mut browser) = Browser::open(&page) else { return };
    let all =
        ["#whole", "#crumbs button", "#functions-count", "#search", "tr.selected .name", "input:checked", "#matches"];
    let opened = shown(&mut browser, &all);
    browser.click("input[value=a] + span");
    browser.eval("document.querySelectorAll('#functions td.name button')[2].click()");
    browser.key("/");
    browser.type_text("poll");
    let before = shown(&mut browser, &all);
    assert_ne!(before, opened);
    let hash = address(&mut browser, &["width=a", "mark=", "find=poll"]);
    let Some(mut other) = Browser::open_at(&page, &hash) else { return };
    assert_eq!(shown(&mut other, &all), before);
    other.assert_quiet();
}

#[test]
fn a_trace_is_shown_as_it_was() {
    let page = glass_profiler_report::trace_html(&phases(2_000, 0, 1), &traces::with_calls());
    let Some(mut browser) = Browser::open(&page) else { return };
    ready(&mut browser);
    let all =
        ["#trace-window", "#trace-ruler output", "#trace-details", "#trace-filter", "#trace-search", ".series-note"];
    click(&mut browser, 0.3, DISK);
    browser.wait_for("document.querySelector('#trace-details h3')");
    let (x, y) = place(&mut browser, 0.5, WRITER);
    browser.shift_click_at(x, y);
    browser.wait_for("document.querySelector('.trace-distance')");
    let (from, to) = (place(&mut browser, 0.25, -10.0), place(&mut browser, 0.5, -10.0));
    browser.drag(from, to);
    let [left, top, ..] = browser.place("#trace-box canvas");
    browser.click_at(left + 40.0, top + crate::support::trace_view::AXIS_PX + READER);
    browser.eval("document.querySelector('#trace-groups input').click()");
    let (x, y) = place(&mut browser, 0.4, READER);
    browser.hover_at(x, y);
    browser.key("w");
    browser.click("#trace-tabs [aria-controls=trace-series]");
    browser.click("input[value=rate] + span");
    change(&mut browser, "#trace-series select", "2");
    browser.wait_for("document.querySelector('.series-note').textContent !== ''");
    let hash = address(
        &mut browser,
        &["t=", "at=", "to=", "ruler=", "open=", "hidden=0", "panel=trace-series", "mode=rate", "series=2"],
    );
    let before = shown(&mut browser, &all);
    let height = browser.eval("document.querySelector('.trace-spacer').style.height");
    browser.assert_quiet();
    let Some(mut other) = Browser::open_at(&page, &hash) else { return };
    ready(&mut other);
    other.wait_for(
        "document.querySelector('#trace-tabs [aria-controls=trace-series]').getAttribute('aria-selected') === 'true'",
    );
    other.wait_for(&format!("document.querySelector('.series-note').textContent === {}", before[5][0]));
    // The links of details are named when what they lead to is known.
    other.wait_for(&format!("document.querySelector('#trace-details').textContent === {}", before[2][0]));
    assert_eq!(shown(&mut other, &all), before);
    assert_eq!(other.eval("document.querySelector('.trace-spacer').style.height"), height);
    assert_eq!(other.eval("document.querySelector('input[name=series-mode]:checked').value"), json!("rate"));
    // The samples have their part of the same address, and the view that is shown is in it too.
    other.click("#samples-view");
    other.click("input[value=leaves] + span");
    let hash = address(&mut other, &["show=samples", "view=leaves", "series=2"]);
    other.assert_quiet();
    let Some(mut third) = Browser::open_at(&page, &hash) else { return };
    third.wait_for("!document.querySelector('#report').hidden && document.querySelector('#trace').hidden");
    third.wait_for("document.querySelector('input[name=view]:checked').value === 'leaves'");
    third.assert_quiet();
}

#[test]
fn an_address_of_nonsense_harms_nobody() {
    let page = glass_profiler_report::trace_html(&phases(2_000, 0, 1), &traces::with_calls());
    let nonsense = "#t=9-1&at=99-x&to=5-&ruler=a-b&folded=77&hidden=-1.x&open=3.999&panel=%3Cb%3E&series=77&mode=x&path=-1\
                    &range=5-999999&around=1e9-2e9&tracks=9.x&images=%7B&mark=1e9&zoom=1.2.3.4.999&table=x&view=x&count=x\
                    &recursion=x&find=%3Cscript%3E&y=1e99&show=x";
    let Some(mut browser) = Browser::open_at(&page, nonsense) else { return };
    ready(&mut browser);
    browser.click("#samples-view");
    browser.wait_for("document.querySelector('#search').value === '<script>'");
    assert_eq!(browser.eval("document.querySelector('input[name=view]:checked').value"), json!("flame"));
    assert_eq!(browser.eval("document.querySelector('#recursion').value"), json!("keep"));
    browser.assert_quiet();
}
