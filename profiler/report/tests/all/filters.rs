//! What the reader leaves out of a page in a real browser: times, images, recursion, all but a zoomed
//! box. Every number is compared with a count in Rust.

use std::collections::{HashMap, HashSet};

use crate::support::browser::Browser;
use crate::support::profiles::{phases, service, small, timed};
use glass_profiler_core::model::{Profile, Sample, State};
use serde_json::json;

type Row = (String, u64, u64);

/// The page of a profile, with the table of functions in sight.
fn open(profile: &Profile) -> Option<Browser> {
    let mut browser = Browser::open(&glass_profiler_report::html(profile))?;
    browser.click("#functions-tab");
    Some(browser)
}

/// Functions with their samples, from the samples themselves: those that `counts` lets pass, without the
/// functions that `hides` names.
fn count(profile: &Profile, counts: impl Fn(&Sample) -> bool, hides: impl Fn(&str) -> bool) -> Vec<Row> {
    let mut sums: HashMap<String, (u64, u64)> = HashMap::new();
    for sample in profile.samples.iter().filter(|sample| sample.state == State::Running && counts(sample)) {
        let frames = &profile.stacks[sample.stack as usize].frames;
        let names = frames.iter().map(|frame| &profile.frames[*frame as usize]).filter(|frame| !hides(&frame.image));
        let names: Vec<String> = names.map(|frame| glass_profiler_core::names::printable(&frame.function)).collect();
        if let Some(leaf) = names.last() {
            sums.entry(leaf.clone()).or_default().0 += 1;
        }
        for name in names.iter().collect::<HashSet<_>>() {
            sums.entry(name.clone()).or_default().1 += 1;
        }
    }
    let mut rows: Vec<Row> = sums.into_iter().map(|(name, (own, total))| (name, own, total)).collect();
    rows.sort();
    rows
}

fn shown(browser: &mut Browser) -> Vec<Row> {
    let mut rows = browser.rows("#functions");
    rows.sort();
    rows
}

/// Selects a range of time by dragging over two shares of the timeline's width; returns it in nanoseconds, as
/// the page shows it.
fn drag(browser: &mut Browser, from: f64, to: f64) -> (u64, u64) {
    let [left, top, width, height] = browser.place("#timeline canvas");
    browser.drag((left + width * from, top + height * 0.6), (left + width * to, top + height * 0.7));
    said_range(browser)
}

/// From "2.00 s – 5.00 s (3.00 s), 300 samples".
fn said_range(browser: &mut Browser) -> (u64, u64) {
    let said = browser.text(".selection");
    let mut seconds = said.split(" s").filter_map(|part| part.trim_start_matches([' ', '–']).parse::<f64>().ok());
    let mut next = || (seconds.next().unwrap_or_else(|| panic!("two times in {said:?}")) * 1e9).round() as u64;
    (next(), next())
}

fn within((from, to): (u64, u64)) -> impl Fn(&Sample) -> bool {
    move |sample| (from..to).contains(&sample.time_ns)
}

/// The call tree's rows in sight: level, name, total.
fn tree_rows(browser: &mut Browser) -> Vec<(u64, String, u64)> {
    let rows = browser.eval(
        "[...document.querySelectorAll('#tree tbody tr')].map((row) => [Number(row.ariaLevel), \
         row.querySelector('td.name').title, Number(row.querySelector('.count').textContent.replaceAll(',', ''))])",
    );
    serde_json::from_value(rows).expect("rows of a level, a name and a number")
}

#[test]
fn a_range_of_time_filters_everything() {
    let profile = timed();
    let Some(mut browser) = open(&profile) else { return };
    assert_eq!(shown(&mut browser), count(&profile, |_| true, |_| false));
    let range = drag(&mut browser, 0.3, 0.8);
    let counted = profile.samples.iter().filter(|sample| within(range)(sample)).count();
    let text = browser.text(".selection");
    assert!(text.ends_with(&format!(", {counted} samples")), "{counted}: {text}");
    assert!(range.0 >= 2_900_000_000 && range.1 <= 8_100_000_000 && range.0 < range.1, "{range:?}");
    let expected = count(&profile, within(range), |_| false);
    assert_eq!(shown(&mut browser), expected);
    // Graph, tree and lines agree with the table.
    let main = expected.iter().find(|row| row.0 == "app::main").expect("main runs all the time").2;
    assert!(browser.text("#whole").starts_with(&format!("100 % = {main} running samples, ")));
    let share = format!("{:.1} %", main as f64 * 100.0 / counted as f64);
    assert_eq!(browser.text(".states label:first-of-type .share"), share);
    assert_eq!(browser.eval("document.querySelectorAll('.clear')[0].hidden"), json!(false));
    browser.click("#lines-tab");
    let mut lines = browser.rows("#lines");
    lines.sort();
    assert_eq!(lines, expected, "each function has one line");
    browser.click("#tree-tab");
    let rows = tree_rows(&mut browser);
    assert_eq!(rows[0], (1, "app::main".into(), main));
    // One track of that range only.
    browser.click("#timeline .tracks li:nth-child(2) button");
    browser.click("#functions-tab");
    let alone = |sample: &Sample| within(range)(sample) && sample.track == 1;
    assert_eq!(shown(&mut browser), count(&profile, alone, |_| false));
    browser.click("#timeline .tracks li:nth-child(2) button");
    browser.click("#timeline .clear");
    assert_eq!(browser.text(".selection"), "");
    assert_eq!(shown(&mut browser), count(&profile, |_| true, |_| false));
    browser.assert_quiet();
}

#[test]
fn edges_can_be_dragged_and_a_click_beside_ends_the_range() {
    let Some(mut browser) = open(&timed()) else { return };
    let before = drag(&mut browser, 0.3, 0.6);
    let after = drag(&mut browser, 0.6, 0.9);
    assert_eq!(after.0, before.0, "the other edge stays");
    assert!(after.1 > before.1 + 2_500_000_000, "{before:?} {after:?}");
    let [left, top, width, _] = browser.place("#timeline canvas");
    browser.click_at(left + width * 0.5, top + 30.0);
    assert_eq!(said_range(&mut browser), after, "a click inside keeps it");
    browser.click_at(left + width * 0.1, top + 30.0);
    assert_eq!(browser.text(".selection"), "");
    browser.assert_quiet();
}

#[test]
fn a_range_can_be_chosen_by_keys() {
    let profile = timed();
    let Some(mut browser) = open(&profile) else { return };
    browser.key("t");
    assert_eq!(browser.eval("document.activeElement === document.querySelector('#timeline canvas')"), json!(true));
    browser.key("ArrowRight");
    let first = said_range(&mut browser);
    assert_eq!(first.0, 0);
    for _ in 0..4 {
        browser.shift_key("ArrowRight");
    }
    let longer = said_range(&mut browser);
    assert_eq!((longer.0, longer.1), (0, first.1 * 5));
    browser.key("ArrowRight");
    let moved = said_range(&mut browser);
    assert_eq!((moved.0, moved.1), (first.1, first.1 * 6));
    assert_eq!(shown(&mut browser), count(&profile, within(moved), |_| false));
    browser.key("End");
    let last = said_range(&mut browser);
    assert_eq!(last.1, 10_000_000_000, "the last slice ends with the recording");
    // What is zoomed to is in sight, and a drag over all of it selects no more than that.
    browser.key("Enter");
    let all = drag(&mut browser, 0.02, 0.98);
    assert!(all.0 >= last.0 && all.1 <= 10_020_000_000, "{all:?} in {last:?}");
    browser.eval("document.querySelector('#timeline canvas').focus()");
    browser.key("Backspace");
    assert_eq!(browser.text(".selection"), "");
    browser.key("?");
    assert_eq!(browser.eval("document.querySelector('#help').open"), json!(true));
    browser.click("#help form button");
    assert_eq!(browser.eval("document.querySelector('#help').open"), json!(false));
    browser.assert_quiet();
}

#[test]
fn a_zoom_filters_the_tables() {
    let Some(mut browser) = open(&small()) else { return };
    browser.click("input[value=icicle] + span");
    let [left, top, width, _] = browser.place("#graph");
    browser.click_at(left + width * 0.8, top + 51.0);
    assert_eq!(browser.text("#whole"), "100 % = 40 running samples, in app::right");
    assert_eq!(
        shown(&mut browser),
        [("app::main".into(), 0, 40), ("app::right".into(), 30, 40), ("app::work".into(), 10, 10)]
    );
    browser.click("#tree-tab");
    assert_eq!(
        tree_rows(&mut browser),
        [(1, "app::main".into(), 40), (2, "app::right".into(), 40), (3, "app::work".into(), 10)]
    );
    // Inverted, zoomed to work as called by left: 45 samples of the 55 that end in work.
    browser.key("Escape");
    browser.click("input[value=leaves] + span");
    browser.click_at(left + width * 0.3, top + 31.0);
    assert_eq!(browser.text("#whole"), "100 % = 55 running samples, in app::work");
    browser.click_at(left + width * 0.7, top + 51.0);
    browser.click("#functions-tab");
    assert_eq!(shown(&mut browser).iter().map(|row| row.2).collect::<Vec<_>>(), [45, 45, 45]);
    browser.assert_quiet();
}

#[test]
fn the_call_tree_opens_and_closes() {
    let Some(mut browser) = open(&small()) else { return };
    browser.click("#tree-tab");
    let rows = |browser: &mut Browser| -> Vec<(u64, String, u64)> { tree_rows(browser) };
    let heaviest = [
        (1, "app::main".into(), 100),
        (2, "app::left".into(), 60),
        (3, "app::work".into(), 45),
        (2, "app::right".into(), 40),
    ];
    assert_eq!(rows(&mut browser), heaviest, "the heaviest way is open");
    browser.eval("document.querySelector('#tree tbody tr').focus()");
    for key in ["End", "ArrowRight"] {
        browser.key(key);
    }
    assert_eq!(rows(&mut browser)[4], (3, "app::work".into(), 10));
    for key in ["ArrowRight", "ArrowLeft", "ArrowLeft", "Home", "ArrowLeft"] {
        browser.key(key);
    }
    assert_eq!(rows(&mut browser), heaviest[..1]);
    assert_eq!(browser.eval("document.activeElement.ariaExpanded"), json!("false"));
    browser.key("*");
    assert_eq!(rows(&mut browser), heaviest);
    browser.key("ArrowDown");
    browser.key("Enter");
    assert_eq!(browser.text("#whole"), "100 % = 60 running samples, in app::left");
    assert_eq!(rows(&mut browser)[0].2, 60);
    browser.key("Escape");
    browser.click("#tree tbody tr:nth-child(2) .twisty");
    assert_eq!(rows(&mut browser).len(), 3);
    // A search keeps what leads to a match and below it.
    browser.key("/");
    browser.type_text("right");
    assert_eq!(
        rows(&mut browser),
        [(1, "app::main".into(), 40), (2, "app::right".into(), 40), (3, "app::work".into(), 10)]
    );
    assert_eq!(browser.eval("document.querySelector('#tree .matched td.name').title"), json!("app::right"));
    browser.assert_quiet();
}

#[test]
fn a_hidden_image_leaves_its_callees_and_its_samples() {
    let mut profile = service(20_000, 3);
    // A third of all functions are in a library.
    for (index, frame) in profile.frames.iter_mut().enumerate() {
        if frame.function.len() % 3 == 0 && index > 3 {
            frame.image = "libhelp.so".into();
        }
    }
    let Some(mut browser) = open(&profile) else { return };
    browser.click("#hide-button");
    browser.click("#hide input[data-image='libhelp.so']");
    assert_eq!(browser.text("#hide-button"), "Hide (1)");
    let hides = |image: &str| image == "libhelp.so";
    // A name that is in two images has two rows.
    let sum = |rows: Vec<Row>| {
        let mut sums: HashMap<String, u64> = HashMap::new();
        rows.into_iter().for_each(|(name, own, _)| *sums.entry(name).or_default() += own);
        sums
    };
    let expected = count(&profile, |_| true, hides);
    assert_eq!(sum(shown(&mut browser)), sum(expected.clone()));
    let running = profile.samples.iter().filter(|sample| sample.state == State::Running).count();
    assert!(browser.text("#whole").contains(&support_count(running)), "nothing is lost");
    // Clicks beside the panel have closed it by now, if the table had more rows to show.
    browser.eval("document.querySelector('#hide .show-all').click()");
    assert_eq!(browser.text("#hide-button"), "Hide");
    browser.eval("document.querySelector('#hide').hidePopover()");
    // What a search finds can be hidden too.
    browser.key("/");
    browser.type_text("image:libhelp.so");
    browser.click("#hide-matches");
    assert_eq!(browser.text("#hide-button"), "Hide (1)");
    assert_eq!(sum(shown(&mut browser)), sum(expected));
    browser.assert_quiet();
}

fn support_count(value: usize) -> String {
    format!("{},{:03}", value / 1_000, value % 1_000)
}

#[test]
fn recursion_is_merged_on_request() {
    let mut profile = small();
    // main, then work and left in turn: work work left work left left.
    profile.stacks[1].frames = vec![0, 3, 3, 1, 3, 1, 1];
    profile.samples.retain(|sample| sample.stack == 1);
    let Some(mut browser) = open(&profile) else { return };
    browser.click("#tree-tab");
    let names = |browser: &mut Browser| {
        tree_rows(browser)
            .into_iter()
            .map(|(level, name, total)| format!("{level} {} {total}", &name[5..]))
            .collect::<Vec<_>>()
    };
    let choose = |browser: &mut Browser, kind: &str| {
        browser.eval(&format!(
            "(() => {{ const r = document.querySelector('#recursion'); r.value = '{kind}'; r.dispatchEvent(new Event('change')); }})()"
        ));
    };
    let kept = ["1 main 45", "2 work 45", "3 work 45", "4 left 45", "5 work 45", "6 left 45", "7 left 45"];
    assert_eq!(names(&mut browser), kept);
    choose(&mut browser, "direct");
    assert_eq!(names(&mut browser), ["1 main 45", "2 work 45", "3 left 45", "4 work 45", "5 left 45"]);
    choose(&mut browser, "all");
    assert_eq!(names(&mut browser), ["1 main 45", "2 work 45", "3 left 45"]);
    browser.click("#functions-tab");
    assert_eq!(
        shown(&mut browser),
        [("app::left".into(), 45, 45), ("app::main".into(), 0, 45), ("app::work".into(), 0, 45)]
    );
    choose(&mut browser, "keep");
    browser.click("#tree-tab");
    assert_eq!(names(&mut browser), kept);
    browser.assert_quiet();
}

#[test]
fn lines_of_a_function_are_told_apart() {
    let mut profile = small();
    let mut other = profile.frames[3].clone();
    other.line = Some(9);
    profile.frames.push(other);
    profile.stacks[3].frames[2] = 4;
    let Some(mut browser) = open(&profile) else { return };
    browser.click("#lines-tab");
    let places = |browser: &mut Browser| {
        browser.eval("[...document.querySelectorAll('#lines tbody tr')].map((row) => row.querySelector('.place').title + ' ' + row.querySelector('.count').textContent)")
    };
    assert_eq!(
        places(&mut browser),
        json!(["src/work.rs:7 45", "src/right.rs:7 30", "src/left.rs:7 15", "src/work.rs:9 10", "src/main.rs:7 0"])
    );
    browser.click("#lines tbody tr:nth-child(4) button");
    assert_eq!(browser.text("#lines-of span"), "Lines of app::work");
    assert_eq!(places(&mut browser), json!(["src/work.rs:7 45", "src/work.rs:9 10"]));
    browser.click("#lines-of button");
    assert_eq!(browser.eval("document.querySelectorAll('#lines tbody tr').length"), json!(5));
    browser.assert_quiet();
}

/// A million samples with deep stacks: the page stays small, and a new range is drawn before the reader
/// wonders. The times are printed; they are bounded loosely, since other programs may share the machine.
#[test]
fn a_million_samples_are_no_burden() {
    let profile = phases(1_000_000, 40, 1);
    let html = glass_profiler_report::html(&profile);
    println!("{} samples, {} stacks, page of {} bytes", profile.samples.len(), profile.stacks.len(), html.len());
    assert!(html.len() < 5_000_000, "{}", html.len());
    let Some(mut browser) = Browser::open(&html) else { return };
    let loading = "performance.getEntriesByType('navigation')[0]";
    let load_ms = browser.eval(&format!("{loading}.domComplete - {loading}.responseEnd")).as_f64().expect("a time");
    let mut draws: Vec<f64> = (0..9)
        .map(|step| {
            let [left, top, width, _] = browser.place("#timeline canvas");
            let from = left + width * 0.05 * f64::from(step);
            // Measured in the page, from the end of the drag until the frame after it is there.
            browser.eval(
                "void (window.drawn = new Promise((done) => document.querySelector('#timeline canvas').addEventListener('pointerup', \
                 () => { const start = performance.now(); requestAnimationFrame(() => setTimeout(() => done(performance.now() - start))); }, \
                 { once: true, capture: true })))",
            );
            browser.drag((from, top + 40.0), (from + width * 0.4, top + 40.0));
            browser.eval_async("window.drawn").as_f64().expect("a time")
        })
        .collect();
    draws.sort_by(f64::total_cmp);
    println!("load {load_ms:.0} ms; drag end to redraw: median {:.0} ms, most {:.0} ms", draws[4], draws[8]);
    assert!(load_ms < 60_000.0 && draws[4] < 5_000.0, "{load_ms} {draws:?}");
    browser.assert_quiet();
}
