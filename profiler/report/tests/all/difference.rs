//! The difference of two recordings: the text against a file that a person has read, the page in a real
//! browser against counts in Rust.

use crate::support::browser::Browser;
use crate::support::profiles::{faster, service, small};
use glass_profiler_core::model::{Frame, Profile, Sample, Stack, State, Track};
use glass_profiler_report::samples::difference::{Difference, FunctionChange, Verdict};
use serde_json::json;

/// [`small`] in which right took over what left did, and calls a new function; what left called is gone.
fn after() -> Profile {
    let mut profile = small();
    profile.origin.guest = "small, changed".into();
    profile.origin.rate_hz = 500;
    profile.frames.push(Frame { function: "app::fresh".into(), image: "app".into(), ..Frame::default() });
    for sample in &mut profile.samples {
        if sample.stack == 1 {
            sample.stack = 3;
        }
    }
    profile.stacks[3].frames = vec![0, 2, 4];
    profile
}

#[test]
fn the_text_is_as_it_was_read() {
    crate::support::profiles::compare_golden(
        "difference.txt",
        &glass_profiler_report::difference_text(&[&service(3_000, 1)], &[&faster(4_000, 2)], 25),
    );
}

#[test]
fn no_line_of_the_text_is_too_wide() {
    let (mut a, mut b) = (service(3_000, 1), after());
    a.origin.guest = "長".repeat(300);
    b.warnings.push("w ".repeat(300));
    for line in glass_profiler_report::difference_text(&[&a], &[&b], 1_000).lines() {
        assert!(unicode_width::UnicodeWidthStr::width(line) <= 100, "{line:?}");
    }
}

#[test]
fn nothing_can_be_said_about_an_empty_recording() {
    let text = glass_profiler_report::difference_text(&[&Profile::default()], &[&small()], 10);
    assert!(text.contains("There are no running samples in one of them: nothing can be compared."), "{text}");
    let Some(mut browser) = Browser::open(&glass_profiler_report::difference_html(&Profile::default(), &small()))
    else {
        return;
    };
    assert_eq!(browser.text("#whole"), "100 % = 0 (A) and 100 (B) running samples");
    browser.assert_quiet();
}

#[test]
fn each_side_is_counted_by_itself() {
    let (a, b) = (service(5_000, 1), faster(7_000, 2));
    let difference = Difference::build(&[&a], &[&b]);
    let running =
        |profile: &Profile| profile.samples.iter().filter(|sample| sample.state == State::Running).count() as u64;
    assert_eq!(difference.running, [running(&a), running(&b)]);
    for (side, profile) in [&a, &b].into_iter().enumerate() {
        let tree = glass_profiler_core::tree::Tree::build(profile);
        let mut expected: Vec<(String, u64, u64)> = tree
            .function_totals(&[State::Running])
            .iter()
            .map(|total| (tree.functions[total.function].name.clone(), total.self_samples, total.total_samples))
            .collect();
        let mut counted: Vec<(String, u64, u64)> = difference
            .functions
            .iter()
            .filter(|function| function.total_samples[side] > 0)
            .map(|function| {
                let name = difference.tree.functions[function.function].name.clone();
                (name, function.self_samples[side], function.total_samples[side])
            })
            .collect();
        expected.sort();
        counted.sort();
        assert_eq!(counted, expected);
    }
}

/// A sample that names a stack that its recording lacks must not find one in the other recording.
#[test]
fn what_is_missing_stays_missing() {
    let mut a = small();
    a.samples[0].stack = 4;
    a.stacks[1].frames[2] = 4;
    let difference = Difference::build(&[&a], &[&after()]);
    let fresh =
        difference.functions.iter().find(|function| difference.tree.functions[function.function].name == "app::fresh");
    assert_eq!(fresh.expect("B has it").total_samples[0], 0);
}

#[test]
fn two_recordings_of_the_same_thing_differ_by_noise() {
    // The same stacks, other samples.
    let (a, b) = (service(40_000, 1), service(40_000, 1));
    let (mut a, mut b) = (a, b);
    a.samples = a.samples.into_iter().step_by(2).collect();
    b.samples = b.samples.into_iter().skip(1).step_by(2).collect();
    let difference = Difference::build(&[&a], &[&b]);
    let verdicts: Vec<Verdict> = difference.functions.iter().map(|function| difference.own(function).verdict).collect();
    let noise = verdicts.iter().filter(|verdict| **verdict == Verdict::Noise).count();
    assert!(noise * 100 >= verdicts.len() * 92, "{noise} of {}", verdicts.len());
    let clear = verdicts.iter().filter(|verdict| **verdict == Verdict::Clear).count();
    assert!(clear <= 1, "{clear}");
}

/// Runs whose share of a function differs by more than sampling explains: `share` on average, and as much as `spread` more or less.
fn runs(share: f64, spread: f64, count: usize, random: &mut fastrand::Rng) -> Vec<Profile> {
    let frame = |name: &str| Frame { function: name.to_owned(), image: "app".to_owned(), ..Frame::default() };
    let run = |random: &mut fastrand::Rng| {
        let share = share + spread * (2.0 * random.f64() - 1.0);
        let mut profile = Profile {
            tracks: vec![Track::default()],
            frames: ["app::main", "app::hot", "app::rest"].map(frame).to_vec(),
            stacks: [1, 2].map(|leaf| Stack { frames: vec![0, leaf], ..Stack::default() }).to_vec(),
            ..Profile::default()
        };
        let sample = |time_ns, random: &mut fastrand::Rng| Sample {
            time_ns,
            stack: u32::from(random.f64() >= share),
            ..Sample::default()
        };
        profile.samples = (0..5_000).map(|time_ns| sample(time_ns, random)).collect();
        profile
    };
    (0..count).map(|_| run(random)).collect()
}

/// Kernel functions were "clear" in the difference of two runs of one program: only the error of sampling was in it (2026-11-25).
#[test]
fn what_runs_differ_by_themselves_is_no_clear_change() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut verdict = |shares: [f64; 2], spread, count| {
        let [a, b] = shares.map(|share| runs(share, spread, count, &mut random));
        let difference = Difference::build(&a.iter().collect::<Vec<_>>(), &b.iter().collect::<Vec<_>>());
        let is_hot = |function: &&FunctionChange| difference.tree.functions[function.function].name == "app::hot";
        let hot = difference.functions.iter().find(is_hot).expect("it is in all");
        assert_eq!(difference.errors.has_runs(), count > 1);
        difference.own(hot).verdict
    };
    let mut count = |shares, spread, runs, wanted| (0..50).filter(|_| verdict(shares, spread, runs) == wanted).count();
    // Six points more or less: of one run a side most pairs are beyond the error of sampling, which is 0.9 points.
    assert!(count([0.3, 0.3], 0.06, 1, Verdict::Clear) > 15);
    assert_eq!(count([0.3, 0.3], 0.06, 4, Verdict::Clear), 0);
    assert!(count([0.3, 0.3], 0.06, 4, Verdict::Noise) > 40);
    // A true change of as much is found, if runs do not differ so.
    assert_eq!(count([0.3, 0.36], 0.0, 4, Verdict::Clear), 50);
    assert_eq!(count([0.3, 0.3], 0.0, 4, Verdict::Clear), 0);
    assert!(count([0.3, 0.5], 0.06, 4, Verdict::Noise) < 3);
}

#[test]
fn the_page_says_what_the_text_says() {
    let (a, b) = (service(5_000, 1), faster(8_000, 2));
    let Some(mut browser) = Browser::open(&glass_profiler_report::difference_html(&a, &b)) else { return };
    let difference = Difference::build(&[&a], &[&b]);
    while browser.eval("document.querySelector('#functions .more').hidden") == json!(false) {
        browser.click("#functions .more");
    }
    let rows = browser.eval(
        "[...document.querySelectorAll('#functions tbody tr')].map((row) => [row.querySelector('.name button').title, \
         ...[...row.querySelectorAll('td.changed')].flatMap((cell) => [cell.querySelector('.change > span').textContent.replace('−', '-'), \
         cell.title])])",
    );
    let mut shown: Vec<[String; 5]> =
        serde_json::from_value(rows).expect("rows of a name, and points and verdict twice");
    let said = |change: glass_profiler_report::samples::difference::Change| {
        let verdict = match change.verdict {
            Verdict::Noise => "within noise",
            Verdict::Unsure => "perhaps chance",
            Verdict::Clear => difference.clear_word(),
        };
        let points =
            if change.points > 0.0 { format!("{:+.1}", change.points) } else { format!("{:.1}", change.points) };
        [points, verdict.to_string()]
    };
    let mut expected: Vec<[String; 5]> = difference
        .functions
        .iter()
        .map(|function| {
            let [own, own_verdict] = said(difference.own(function));
            let [total, total_verdict] = said(difference.total(function));
            [difference.tree.functions[function.function].name.clone(), own, own_verdict, total, total_verdict]
        })
        .collect();
    shown.sort();
    expected.sort();
    assert_eq!(shown.len(), expected.len());
    for (shown, expected) in shown.iter().zip(&expected) {
        assert_eq!(shown, expected);
    }
    let (functions, _) = difference.only_in(0);
    assert!(browser.text("#elided span").starts_with(&format!("{functions} functions are only in A, with ")));
    browser.assert_quiet();
}

#[test]
fn what_is_only_in_one_can_be_seen() {
    let Some(mut browser) = Browser::open(&glass_profiler_report::difference_html(&small(), &after())) else { return };
    assert_eq!(browser.text("h1"), "small, changed: what changed");
    let remarks = browser.text(".warnings");
    assert!(remarks.contains("The guests differ: A small, B small, changed."), "{remarks}");
    assert!(remarks.contains("The rates differ: A 0 Hz, B 500 Hz."), "{remarks}");
    assert_eq!(browser.text("#elided span"), "1 function is only in A, with 55.0 % of its samples.");
    browser.click("input[value=icicle] + span");
    let crumbs = "[...document.querySelectorAll('#crumbs button')].map((b) => b.textContent)";
    // By B, right has 85 of 100 samples and fresh 55 of them; by A, left has 60 and work 45 of them.
    let [left, top, width, _] = browser.place("#graph");
    let in_row = |row: f64| top + 11.0 + 20.0 * row;
    browser.click_at(left + width * 0.2, in_row(3.0));
    assert_eq!(browser.eval(crumbs), json!(["All", "app::main", "app::right", "app::fresh"]));
    browser.hover_at(left + width * 0.2, in_row(3.0));
    browser.wait_for("!document.querySelector('#tooltip').hidden");
    let difference = Difference::build(&[&small()], &[&after()]);
    let is_fresh = |function: &&FunctionChange| difference.tree.functions[function.function].name == "app::fresh";
    let judged = difference.total(difference.functions.iter().find(is_fresh).expect("B has it"));
    assert_eq!(
        browser.eval("[...document.querySelectorAll('#tooltip div')].map((line) => line.textContent)"),
        json!([
            "app::fresh",
            format!("+55.0 points ± {:.1}, beyond the error of sampling", judged.noise_points),
            "A  0.0 %  0 samples",
            "B  55.0 %  55 samples",
            "app"
        ])
    );
    browser.key("Escape");
    browser.click("#elided button");
    browser.click_at(left + width * 0.5, in_row(3.0));
    assert_eq!(browser.eval(crumbs), json!(["All", "app::main", "app::left", "app::work"]));
    browser.key("Escape");
    // As wide as the mean of both, everything is there: inverted, work has 27.5 % and fresh too.
    browser.click("input[name=width][value=both] + span");
    browser.click("input[value=leaves] + span");
    let mut seen = std::collections::BTreeSet::new();
    for step in 0..40 {
        browser.click_at(left + width * (f64::from(step) + 0.5) / 40.0, in_row(1.0));
        let path = browser.eval(crumbs);
        seen.insert(path[1].as_str().unwrap_or("").to_string());
        browser.key("Escape");
    }
    assert_eq!(Vec::from_iter(seen), ["app::fresh", "app::left", "app::right", "app::work"]);
    browser.assert_quiet();
}

#[test]
fn a_zoom_and_a_search_filter_the_table() {
    let Some(mut browser) = Browser::open(&glass_profiler_report::difference_html(&small(), &after())) else { return };
    let names = "[...document.querySelectorAll('#functions td.name button')].map((button) => button.title)";
    assert_eq!(browser.eval(names), json!(["app::fresh", "app::work", "app::left", "app::right", "app::main"]),);
    browser.key("/");
    browser.type_text("fresh");
    assert_eq!(browser.eval(names), json!(["app::fresh"]));
    assert_eq!(browser.text("#matches"), "1 function");
    browser.key("Escape");
    browser.click("input[value=icicle] + span");
    let [left, top, width, _] = browser.place("#graph");
    browser.click_at(left + width * 0.2, top + 11.0 + 40.0);
    assert_eq!(browser.eval(names), json!(["app::fresh", "app::work", "app::main", "app::right"]));
    browser.assert_quiet();
}

/// Not a check: pictures to look at, where `GLASS_SCREENSHOTS` names a folder.
#[test]
fn pictures() {
    let Some(folder) = std::env::var_os("GLASS_SCREENSHOTS").map(std::path::PathBuf::from) else { return };
    let html = glass_profiler_report::difference_html(&service(100_000, 1), &faster(150_000, 2));
    let Some(mut browser) = Browser::open(&html) else { return };
    browser.resize(1280, 1300);
    browser.picture(&folder, "difference-light.png");
    browser.prefer("dark");
    browser.click("#elided button");
    browser.picture(&folder, "difference-dark.png");
    browser.resize(400, 1800);
    browser.picture(&folder, "difference-narrow.png");
}
