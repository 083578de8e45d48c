//! Reports of host and guest: the text in each view, and the page, which switches between them.

use crate::support::browser::Browser;
use crate::support::host_and_guest::{read, recording};
use crate::support::profiles::compare_golden;
use glass_profiler_core::model::{Profile, State};
use glass_profiler_core::tree::Tree;
use glass_profiler_core::view::{Layer, View};
use serde_json::{Value, json};

fn profile() -> Profile {
    read(&recording(true)).profile
}

/// Function with the words in front of its image, own samples, all samples.
type Row = (String, u64, u64);

/// The functions of a view, as our own tree counts them.
fn expected(view: View, states: &[State]) -> Vec<Row> {
    let profile = profile();
    let viewed = view.of(&profile);
    // By line the states in which code ran are apart.
    let (tree, _) = Tree::build_by_line(&viewed.profile);
    let mut rows: Vec<Row> = tree
        .function_totals(states)
        .iter()
        .map(|total| {
            let function = &tree.functions[total.function];
            let layer = function.layer.map_or("", |layer| layer.word());
            (format!("{} {layer} · {}", function.name, function.image), total.self_samples, total.total_samples)
        })
        .collect();
    rows.sort();
    rows
}

/// The page's table of functions.
fn shown(browser: &mut Browser) -> Vec<Row> {
    let images = browser.eval("[...document.querySelectorAll('#functions td.image')].map((cell) => cell.textContent)");
    let rows = browser.rows("#functions");
    let with_image = rows
        .into_iter()
        .zip(images.as_array().expect("a list"))
        .map(|((name, own, all), image)| (format!("{name} {}", image.as_str().expect("a text")), own, all));
    let mut rows: Vec<Row> = with_image.collect();
    rows.sort();
    rows
}

fn choose(browser: &mut Browser, view: View) {
    browser.click(&format!("input[name=side][value={}] + span", view.name()));
}

fn picture(browser: &mut Browser, name: &str) {
    if let Some(folder) = std::env::var_os("GLASS_SCREENSHOTS") {
        browser.picture(std::path::Path::new(&folder), name);
    }
}

/// What colours stand for.
fn legend(browser: &mut Browser) -> Value {
    browser.eval("[...document.querySelectorAll('#legend .label')].map((label) => label.textContent)")
}

#[test]
fn the_text_of_each_view_is_as_it_was_read() {
    let profile = profile();
    let mut out = String::new();
    for view in View::ALL {
        let viewed = view.of(&profile);
        out += &glass_profiler_report::text_with_tree(&viewed.profile, 20, 1.0);
        out += "\n----\n";
    }
    compare_golden("host.txt", &out);
}

/// Time in the VMM was no function's (2026-11-27).
#[test]
fn the_difference_counts_time_in_the_vmm() {
    let profile = profile();
    let [guest, merged] = [View::Guest, View::Merged].map(|view| view.of(&profile).profile.into_owned());
    let text = glass_profiler_report::difference_text(&[&profile], &[&guest], 10);
    assert!(text.contains("100 % = 115 (A) and 115 (B) samples, running or in the VMM"), "{text}");
    let text = glass_profiler_report::difference_text(&[&guest], &[&merged], 10);
    assert!(text.contains("100 % = 115 (A) and 170 (B) samples, running or in the VMM"), "{text}");
    // Equal names of guest and host are two functions.
    assert_eq!(text.lines().filter(|line| line.ends_with(" memcpy")).count(), 2, "{text}");
}

#[test]
fn the_page_switches_views_without_a_reload() {
    let profile = profile();
    let Some(mut browser) = Browser::open(&glass_profiler_report::html(&profile)) else { return };
    browser.prefer("light");
    browser.click("#functions-tab");
    let whole = |browser: &mut Browser| browser.text("#whole");
    assert_eq!(whole(&mut browser), "100 % = 115 running + in the VMM samples, guest only");
    assert_eq!(browser.eval("document.querySelector('#apart').hidden"), json!(true));
    picture(&mut browser, "host-guest-light.png");
    for view in [View::Guest, View::Merged, View::Host, View::Guest] {
        choose(&mut browser, view);
        assert_eq!(shown(&mut browser), expected(view, &State::ACTIVE), "{view:?}");
        // Of the states in which code ran only one.
        browser.click("input[value='in the VMM']");
        assert_eq!(shown(&mut browser), expected(view, &[State::Running]), "{view:?}");
        browser.click("input[value=running]");
        browser.click("input[value='in the VMM']");
        assert_eq!(shown(&mut browser), expected(view, &[State::InVmm]), "{view:?}");
        browser.click("input[value=running]");
    }
    choose(&mut browser, View::Merged);
    assert_eq!(whole(&mut browser), "100 % = 170 running + in the VMM samples, host and guest merged");
    // No sample ends in the guest's kernel, and it has boxes.
    assert_eq!(legend(&mut browser), json!(Layer::ALL.map(Layer::word)));
    assert!(
        browser
            .text("#apart")
            .contains("in 20 samples were merged by time: sampled 200 µs (median) to 400 µs (maximum) apart"),
        "{}",
        browser.text("#apart")
    );
    // By its mode everything of it is found.
    browser.key("/");
    browser.type_text("mode:guest kernel");
    assert_eq!(browser.text("#matches"), "35.3 %, 60 samples, in 3 functions");
    browser.key("Escape");
    choose(&mut browser, View::Host);
    assert_eq!(whole(&mut browser), "100 % = 170 running + in the VMM samples, host only");
    browser.key("/");
    browser.type_text("[guest]");
    assert_eq!(browser.text("#matches"), "32.4 %, 55 samples, in 0 functions");
    browser.key("Escape");
    let host_legend = legend(&mut browser);
    assert_eq!(host_legend, json!(["VMM", "host kernel"]));
    // Other colours are the reader's choice.
    browser.eval("(() => { const e = document.querySelector('#colour'); e.value = 'group'; e.dispatchEvent(new Event('change')); })()");
    assert_ne!(legend(&mut browser), host_legend);
    browser.assert_quiet();
}

#[test]
fn boxes_have_the_colours_of_modes_and_say_what_was_merged_by_time() {
    let Some(mut browser) = Browser::open(&glass_profiler_report::html_in(&profile(), View::Merged)) else { return };
    browser.prefer("light");
    browser.resize(1280, 1300);
    assert_eq!(browser.eval("document.querySelector('input[name=side]:checked').value"), json!("merged"));
    picture(&mut browser, "host-merged-light.png");
    browser.click("input[value=icicle] + span");
    // The frame after the click has been drawn.
    browser.eval_async("new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(0))))");
    let [left, top, width, _] = browser.place("#graph");
    // Row 1 of an icicle graph is what the root calls: main with 115 of 170 samples, then thread_start. Below kick, in row 7, are the
    // VMM, KVM and the broken stack, of 30, 20 and 10 samples.
    let at = |row: u32, samples: f64| {
        (left + 1.0 + (width - 2.0) * samples / 170.0, top + 1.0 + 20.0 * f64::from(row) + 10.0)
    };
    let colour = |browser: &mut Browser, (x, y): (f64, f64)| {
        browser.eval(&format!(
            "(() => {{ const c = document.querySelector('#graph canvas'); const r = c.getBoundingClientRect(); \
             const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', {{ willReadFrequently: true }}); copy.drawImage(c, 0, 0); \
             return [...copy.getImageData({x} - r.left, {y} - r.top + 8, 1, 1).data].join(); }})()"
        ))
    };
    let boxes = [(1, 100.0), (4, 30.0), (7, 15.0), (7, 40.0), (7, 57.0)];
    let colours: Vec<Value> = boxes.iter().map(|(row, samples)| colour(&mut browser, at(*row, *samples))).collect();
    let near = |a: &Value, b: &Value| {
        let numbers = |v: &Value| v.as_str().unwrap().split(',').map(|n| n.parse::<i32>().unwrap()).collect::<Vec<_>>();
        numbers(a).into_iter().zip(numbers(b)).all(|(a, b)| (a - b).abs() < 16)
    };
    // Functions of one mode differ by less.
    for (index, one) in colours.iter().enumerate() {
        assert!(!colours[..index].iter().any(|other| near(one, other)), "{colours:?}");
    }
    // The VMM's threads have the colour of the VMM.
    let threads = colour(&mut browser, at(1, 150.0));
    assert!(near(&threads, &colours[2]), "{threads} {colours:?}");
    let tip = |browser: &mut Browser, (x, y): (f64, f64)| {
        browser.hover_at(x, y);
        browser.wait_for("!document.querySelector('#tooltip').hidden");
        browser.eval("[...document.querySelectorAll('#tooltip div')].map((line) => line.textContent)")
    };
    let merged = tip(&mut browser, at(8, 40.0));
    assert_eq!(merged[0], json!("kvm_run"));
    assert!(merged.to_string().contains("merged by time: sampled up to 400 µs apart"), "{merged}");
    assert!(merged.to_string().contains("host kernel · [kernel]"), "{merged}");
    let same_stop = tip(&mut browser, at(10, 15.0));
    assert_eq!(same_stop[0], json!("vfs_write"));
    assert!(!same_stop.to_string().contains("merged by time"), "{same_stop}");
    browser.assert_quiet();
}

#[test]
fn the_timeline_lists_the_host_and_colours_its_states() {
    let Some(mut browser) = Browser::open(&glass_profiler_report::html(&profile())) else { return };
    let names = |browser: &mut Browser| {
        browser.eval("[...document.querySelectorAll('.tracks button')].map((b) => [b.textContent, b.classList.contains('left-out')])")
    };
    let rows = |left_out: bool| {
        json!([
            ["vcpu 0", false],
            ["vcpu 1", false],
            ["qemu 70", left_out],
            ["qemu 70", left_out],
            ["worker 72", left_out],
            ["glass 71", left_out]
        ])
    };
    assert_eq!(names(&mut browser), rows(true));
    choose(&mut browser, View::Merged);
    assert_eq!(names(&mut browser), rows(false));
    let key = browser.eval("[...document.querySelectorAll('.key span:not([hidden])')].map((span) => span.textContent)");
    assert_eq!(key, json!(["running", "idle", "stolen", "in the VMM", "no samples"]));
    let inks = "['--running', '--idle', '--stolen', '--in-vmm', '--rare'].map((n) => getComputedStyle(document.documentElement).getPropertyValue(n).trim())";
    for theme in ["light", "dark"] {
        browser.prefer(theme);
        let inks: Vec<String> = serde_json::from_value(browser.eval(inks)).unwrap();
        assert!(inks.iter().enumerate().all(|(i, ink)| !ink.is_empty() && !inks[..i].contains(ink)), "{inks:?}");
    }
    // A track of the host by itself.
    browser.click(".tracks li:nth-child(6) button");
    assert_eq!(browser.text("#whole"), "100 % = 18 running + in the VMM samples of glass 71, host and guest merged");
    choose(&mut browser, View::Guest);
    assert_eq!(browser.eval("getComputedStyle(document.querySelector('.nothing')).display"), json!("grid"));
    browser.assert_quiet();
}

/// The address keeps the view and colours, and names nothing that is as the page opened.
#[test]
fn a_link_shows_the_same_view() {
    let page = glass_profiler_report::html(&profile());
    let Some(mut browser) = Browser::open(&page) else { return };
    browser.click("#lines-tab");
    browser.wait_for("location.hash === '#table=lines'");
    choose(&mut browser, View::Host);
    browser.wait_for("location.hash.includes('side=host')");
    let hash = browser.eval("location.hash");
    drop(browser);
    let Some(mut browser) = Browser::open_at(&page, hash.as_str().unwrap()) else { return };
    assert_eq!(browser.text("#whole"), "100 % = 170 running + in the VMM samples, host only");
    assert_eq!(browser.eval("document.querySelector('#colour').value"), json!("mode"));
    browser.assert_quiet();
}

#[test]
fn a_recording_without_a_host_has_no_choice_of_views() {
    let guest_only = read(&recording(false)).profile;
    let page = glass_profiler_report::html(&guest_only);
    assert!(!page.contains("name=\"side\"") && !page.contains("id=\"apart\"") && !page.contains("Mode colours"));
    assert!(!glass_profiler_report::samples::page::json(&guest_only).contains("\"host\""));
    let Some(mut browser) = Browser::open(&page) else { return };
    browser.click("#functions-tab");
    // Time in the VMM counts, and its parent is no box.
    assert_eq!(browser.text("#whole"), "100 % = 115 running + in the VMM samples");
    let mut rows = browser.rows("#functions");
    rows.sort();
    let row = |name: &str, own, all| (name.to_owned(), own, all);
    assert_eq!(
        rows,
        [
            row("do_write", 0, 60),
            row("entry", 0, 60),
            row("kick", 60, 60),
            row("main", 0, 115),
            row("memcpy", 15, 15),
            row("parse", 40, 100),
            row("serve", 0, 100)
        ]
    );
    browser.assert_quiet();
}

#[test]
fn pictures_of_all_views() {
    if std::env::var_os("GLASS_SCREENSHOTS").is_none() {
        return;
    }
    for view in View::ALL {
        let Some(mut browser) = Browser::open(&glass_profiler_report::html_in(&profile(), view)) else { return };
        for theme in ["light", "dark"] {
            browser.prefer(theme);
            browser.resize(1280, 1300);
            picture(&mut browser, &format!("host-{}-{theme}.png", view.name()));
        }
    }
}
