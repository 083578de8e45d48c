//! What a reader of a page of samples meets first, on a large screen and on a narrow one, with a pointer and without: headings, toolbar, words,
//! keys, barriers.

use crate::support::barriers::barriers;
use crate::support::browser::Browser;
use crate::support::linux_guest::{read, recording};
use crate::support::profiles::{faster, service, small};
use glass_profiler_core::arch::Architecture;
use glass_profiler_core::guest::{Guest, GuestId, GuestKind};
use glass_profiler_core::model::{Profile, State, Track};
use serde_json::{Value, json};

/// A recording of two processes, of which one has two threads.
fn of_processes() -> Profile {
    let mut profile = small();
    let process = |id, pid, name: &str| Guest {
        id: GuestId(id),
        kind: GuestKind::Process { pid },
        name: name.into(),
        architecture: Architecture::X86_64,
    };
    profile.origin.guest = "make (process 7)".into();
    profile.guests = vec![process(0, 7, "make"), process(1, 9, "cc1")];
    let thread = |name: &str, id, guest| Track { name: name.into(), id, guest, ..Track::default() };
    profile.tracks = vec![thread("make", 7, 0), thread("cc1", 9, 1), thread("worker", 10, 1)];
    for (index, sample) in (0..).zip(&mut profile.samples) {
        sample.state = State::Running;
        sample.track = index % 3;
    }
    profile
}

fn open(profile: &Profile, width: u32, height: u32) -> Option<Browser> {
    let mut browser = Browser::open(&glass_profiler_report::html(profile))?;
    browser.resize(width, height);
    browser.wait_for("!document.querySelector('#report').hidden");
    Some(browser)
}

fn warned() -> Profile {
    let mut profile = service(3_000, 1);
    profile.warnings.push("this host is overloaded: the guest lost more than on a quiet one".into());
    profile
}

/// One heading for the page and one for each of its parts, in their order, so that a screen reader's list of headings is a table of contents.
#[test]
fn headings_are_a_table_of_contents() {
    let Some(mut browser) = open(&warned(), 1280, 800) else { return };
    let headings = "[...document.querySelectorAll('h1, h2, h3')].filter((h) => h.checkVisibility()).map((h) => [h.tagName, h.textContent])";
    assert_eq!(
        browser.eval(headings),
        json!([["H1", "upload-queue (VM, KVM)"], ["H2", "Where the time goes"], ["H2", "Timeline"]])
    );
    // Each number of the timeline has its word above it.
    let head = "[...document.querySelectorAll('.track-numbers .head span')].map((span) => span.textContent)";
    assert_eq!(browser.eval(head), json!(["running", "spinning", "idle", "samples"]));
    browser.assert_quiet();
}

/// The toolbar stays in sight, and nothing that is scrolled under it shines through.
#[test]
fn the_toolbar_is_opaque_and_stays() {
    let Some(mut browser) = open(&warned(), 1280, 800) else { return };
    for theme in ["light", "dark"] {
        if browser.eval("document.documentElement.dataset.theme") != json!(theme) {
            browser.eval("window.scrollTo(0, 0)");
            browser.click("#theme");
        }
        browser.eval("window.scrollTo(0, 500)");
        browser.wait_for("window.scrollY > 300");
        let [left, top, width, height] = {
            let place = "(() => { const r = document.querySelector('.tools').getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()";
            let place = browser.eval(place);
            std::array::from_fn(|index| place[index].as_f64().expect("a place is made of numbers"))
        };
        assert!(top.abs() < 1.0 && height > 30.0, "{theme}: {top} {height}");
        let colour = browser.eval("getComputedStyle(document.querySelector('.tools')).backgroundColor");
        let colour = colour.as_str().expect("a colour");
        assert!(colour.starts_with("rgb(") && !colour.contains('/'), "{theme}: {colour}");
        for across in [0.1, 0.5, 0.9] {
            let (x, y) = (left + width * across, top + height / 2.0);
            let on_top = format!("document.elementFromPoint({x}, {y}).closest('.tools') !== null");
            assert_eq!(browser.eval(&on_top), json!(true), "{theme} {across}");
        }
    }
    browser.assert_quiet();
}

/// On a phone nothing is wider than the screen, every control can be reached by a finger, and the graph begins on the first screen.
#[test]
fn a_narrow_screen_has_the_graph_and_every_control() {
    for profile in [warned(), of_processes(), read(&recording()).profile] {
        let Some(mut browser) = open(&profile, 390, 844) else { return };
        if let Some(folder) = std::env::var_os("GLASS_SCREENSHOTS") {
            browser.picture(std::path::Path::new(&folder), &format!("narrow-{}.png", profile.guests.len()));
        }
        let name = &profile.origin.guest;
        assert_eq!(browser.eval("document.documentElement.scrollWidth <= 390"), json!(true), "{name}");
        // It is drawn anew in the frame after the page has its size.
        browser.wait_for("document.querySelector('#graph canvas').getBoundingClientRect().width <= 390");
        let [left, top, width, _] = browser.place("#graph canvas");
        assert_eq!(browser.eval("window.scrollY"), json!(0), "{name}");
        assert!(left >= 0.0 && left + width <= 390.0 && width > 340.0 && top < 760.0, "{name}: {left} {top} {width}");
        let outside = "[...document.querySelectorAll('.tools button, .tools input, .tools select, .tools label')]\
            .filter((e) => e.checkVisibility() && (e.getBoundingClientRect().left < -1 || e.getBoundingClientRect().right > 391))\
            .map((e) => e.outerHTML.slice(0, 80))";
        assert_eq!(browser.eval(outside), json!([]), "{name}");
        browser.click("#functions-tab");
        assert_eq!(browser.eval("document.documentElement.scrollWidth <= 390"), json!(true), "{name}: functions");
        browser.assert_quiet();
    }
}

/// A report of processes speaks of processes and threads, not of guests and vCPUs.
#[test]
fn a_report_of_processes_has_their_words() {
    let Some(mut browser) = open(&of_processes(), 1280, 800) else { return };
    let rows = browser
        .eval("[...document.querySelectorAll('#timeline .tracks button')].map((row) => [row.textContent, row.title])");
    let title = |label: &str, what: &str| format!("{label}: count only {what}; with Ctrl, {what} too");
    let rows: Vec<(String, String)> = serde_json::from_value(rows).expect("rows of two texts");
    let of_cc1 = rows.iter().find(|(name, _)| name == "cc1 9").unwrap_or_else(|| panic!("{rows:?}"));
    assert!(of_cc1.1.contains("count only these threads"), "{rows:?}");
    assert!(
        rows.iter().any(|row| *row == ("worker 10".into(), title("thread worker 10 of cc1 9", "this track"))
            || row.0 == "worker 10"),
        "{rows:?}"
    );
    // Everything that is shown, spoken, or shown at the pointer.
    let said = browser.eval(
        "document.body.innerText + [...document.querySelectorAll('[title], [aria-label]')].filter((e) => e.checkVisibility()) \
         .map((e) => '\\n' + (e.title ?? '') + '\\n' + (e.getAttribute('aria-label') ?? '')).join('')",
    );
    let said = said.as_str().expect("a text");
    let wrong: Vec<&str> = said
        .lines()
        .filter(|line| {
            line.split(|c: char| !c.is_alphanumeric()).any(|word| {
                ["guest", "guests", "vcpu", "vcpus", "vm", "vmm", "spinning"].contains(&word.to_lowercase().as_str())
            })
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    browser.assert_quiet();
}

/// Every control is reached by Tab, shows that it has the focus, and works: no pointer is needed from the search to the last table.
#[test]
fn the_page_is_used_by_keys_alone() {
    let Some(mut browser) = open(&warned(), 1280, 800) else { return };
    let visible = "(() => { const e = document.activeElement; \
         const style = getComputedStyle(e.matches('input[type=radio]') ? e.nextElementSibling : e.closest('.graph') ?? e); \
         return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0; })()";
    let mut reached = Vec::new();
    for _ in 0..60 {
        let focused = browser.tab();
        if focused == "BODY" || reached.first() == Some(&focused) {
            break;
        }
        assert_eq!(browser.eval(visible), json!(true), "{focused} does not show that it has the focus");
        reached.push(focused);
    }
    for wanted in ["search", "view", "state", "recursion", "colour", "hide-button", "theme"] {
        assert!(reached.iter().any(|focused| focused == wanted), "{wanted}: {reached:?}");
    }
    for wanted in ["canvas", "summary", "#timeline canvas", "#timeline .tracks button", "#legend button", "[role=tab]"]
    {
        let order =
            format!("[...document.querySelectorAll({wanted:?})].some((e) => e.checkVisibility() && e.tabIndex >= 0)");
        assert_eq!(browser.eval(&order), json!(true), "{wanted}");
    }
    // What it cost opens, the view changes, a row of the tables is marked.
    browser.eval("document.querySelector('.account summary').focus()");
    browser.key("Enter");
    browser.wait_for("document.querySelector('.account').open");
    browser.eval("document.querySelector('input[value=flame]').focus()");
    browser.key("ArrowRight");
    browser.wait_for("document.querySelector('input[value=icicle]').checked");
    browser.eval("document.querySelector('#tree-tab').focus()");
    browser.key("ArrowRight");
    browser.wait_for("document.querySelector('#functions-tab').getAttribute('aria-selected') === 'true'");
    browser.eval("document.querySelector('#functions tbody button').focus()");
    browser.key("Enter");
    browser.wait_for("document.querySelector('#functions tr.selected') !== null");
    browser.assert_quiet();
}

/// Each table in light; dark has the same elements in other colours, and is looked at once.
fn no_barriers(browser: &mut Browser, name: &str, tabs: &str) {
    let tabs: Value = browser.eval(&format!("[...document.querySelectorAll({tabs:?})].map((tab) => tab.id)"));
    for tab in tabs.as_array().into_iter().flatten().filter_map(Value::as_str) {
        browser.click(&format!("#{tab}"));
        barriers(browser, &format!("{name} light {tab}"));
    }
    browser.click("#theme");
    barriers(browser, &format!("{name} dark"));
}

fn pages_have_no_barriers(width: u32, height: u32) {
    for profile in [warned(), of_processes(), read(&recording()).profile] {
        let Some(mut browser) = open(&profile, width, height) else { return };
        browser.eval("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
        no_barriers(&mut browser, &format!("{} {width}", profile.origin.guest), "#panels [role=tab]");
        browser.assert_quiet();
    }
    let page = glass_profiler_report::difference_html(&service(3_000, 1), &faster(3_000, 2));
    let Some(mut browser) = Browser::open(&page) else { return };
    browser.resize(width, height);
    browser.wait_for("document.querySelector('#functions tbody tr') !== null");
    barriers(&mut browser, &format!("difference {width} light"));
    no_barriers(&mut browser, &format!("difference {width}"), "#none");
    browser.assert_quiet();
}

#[test]
fn pages_of_samples_have_no_barriers() {
    pages_have_no_barriers(1280, 800);
}

#[test]
fn pages_of_samples_have_no_barriers_on_a_narrow_screen() {
    pages_have_no_barriers(390, 844);
}
