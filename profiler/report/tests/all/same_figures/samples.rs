//! The page and the text of samples: overhead, tracks, functions, call tree.

use super::printed::in_one_line;
use crate::support::browser::Browser;
use crate::support::profiles::service;
use glass_profiler_core::model::{Profile, Sample, State};
use serde_json::Value;
use unicode_width::UnicodeWidthChar;

/// Columns of a function's name in the table of the text.
const NAME_COLUMNS: usize = 35;
/// Nodes of the call tree that are compared have at least this share.
const SHARE_MIN: f64 = 2.0;

/// Every state, several tracks, broken stacks, a warning.
fn profile() -> Profile {
    let mut profile = service(20_000, 1);
    for (count, track, state) in [(40, 0, State::Paused), (3, 1, State::NeverStarted), (1, 1, State::Paused)] {
        profile.samples.extend(std::iter::repeat_n(Sample { track, state, ..Sample::default() }, count));
    }
    profile
}

fn texts(browser: &mut Browser, script: &str) -> Vec<Vec<String>> {
    serde_json::from_value(browser.eval(script)).expect("rows of texts")
}

/// The lines of a text between a heading and the next empty line.
fn section<'a>(text: &'a str, title: &str) -> Vec<&'a str> {
    let lines = text.lines().skip_while(|line| !line.starts_with(title)).skip(1);
    lines.take_while(|line| !line.is_empty()).collect()
}

#[test]
fn head_and_overhead_are_the_same() {
    let profile = profile();
    let Some(mut browser) = Browser::open(&glass_profiler_report::html(&profile)) else { return };
    let text = glass_profiler_report::text(&profile, 10);
    let head: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(browser.text("h1"), head[0]);
    assert_eq!(
        in_one_line(&browser.eval("document.querySelector('.origin').innerHTML.replace('<br>', ' ')").to_string())
            .replace("\\n", " "),
        { format!("\"{}\"", in_one_line(&head[1..].join(" "))) }
    );
    let cards = texts(
        &mut browser,
        "[...document.querySelectorAll('.cost > div')].map((card) => [...card.children].map((part) => part.textContent))",
    );
    let cards: Vec<String> =
        cards.iter().map(|card| in_one_line(&format!("{} {}: {}", card[0], card[1], card[2]))).collect();
    assert_eq!(cards.len(), 4);
    assert_eq!(in_one_line(&section(&text, "Profiler overhead").join(" ")), cards.join(" "));
    let warnings =
        texts(&mut browser, "[[...document.querySelectorAll('.warnings li')].map((item) => item.textContent)]");
    assert_eq!(
        in_one_line(&section(&text, "Warnings").join(" ")),
        warnings[0].iter().map(|warning| format!("! {warning}")).collect::<Vec<_>>().join(" ")
    );
    browser.assert_quiet();
}

#[test]
fn shares_of_tracks_are_the_same() {
    let profile = profile();
    let Some(mut browser) = Browser::open(&glass_profiler_report::html(&profile)) else { return };
    let text = glass_profiler_report::text(&profile, 10);
    let mut rows: Vec<Vec<&str>> = Vec::new();
    for line in section(&text, "Tracks") {
        // States that are rare stand on a line of their own where there is no room for them.
        match (line.strip_prefix("    "), rows.last_mut()) {
            (Some(rare), Some(row)) => row.push(rare),
            _ => rows.push(columns(line)),
        }
    }
    let all = rows.pop().expect("a row of all tracks");
    let mut page = texts(
        &mut browser,
        "[...document.querySelectorAll('.track-numbers > div')].map((row) => ['.samples', '.running', '.spinning', '.idle', '.rare'] \
         .map((part) => row.querySelector(part)?.textContent).filter(Boolean))",
    );
    let names = texts(&mut browser, "[[...document.querySelectorAll('.track-name')].map((name) => name.textContent)]");
    page.iter_mut().zip(&names[0]).for_each(|(row, name)| row.insert(0, name.clone()));
    assert_eq!(rows, page);
    assert!(rows[0].last().is_some_and(|rare| rare.ends_with(" paused")), "{rows:?}");
    // Of all tracks, each state that there is has a share beside its switch.
    let shares = texts(
        &mut browser,
        "[[...document.querySelectorAll('.states label:not([hidden])')].map((label) => label.textContent.trim().toLowerCase())]",
    );
    let expected: Vec<String> = ["running", "spinning", "idle"]
        .iter()
        .zip(&all[2..])
        .map(|(state, share)| format!("{state} {share}"))
        .chain(all[5].split(", ").filter_map(|rare| {
            let (share, state) = rare.split_once(" % ")?;
            Some(format!("{state} {share} %"))
        }))
        .collect();
    assert_eq!(shares[0], expected);
    browser.assert_quiet();
}

/// Cells that stand at least two spaces apart, or whose percent sign ends them.
fn columns(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// What a line has up to a column, and from there on.
fn at_column(line: &str, column: usize) -> (&str, &str) {
    let mut width = 0;
    let end = line.char_indices().find(|(_, letter)| {
        width += letter.width().unwrap_or(0);
        width > column
    });
    line.split_at(end.map_or(line.len(), |(index, _)| index))
}

/// Whether a text is a whole one, or its cut start or end.
fn is_cut_of(cut: &str, whole: &str) -> bool {
    match (cut.strip_suffix('…'), cut.strip_prefix('…')) {
        (Some(start), _) => whole.starts_with(start),
        (_, Some(end)) => whole.ends_with(end),
        _ => cut == whole,
    }
}

/// Two counts and two shares in front of a name: `20   1.2 %    657  39.4 %  http::handle`.
fn figures(line: &str) -> ([String; 4], &str) {
    let mut rest = line;
    let mut found = [const { String::new() }; 4];
    for (index, figure) in found.iter_mut().enumerate() {
        rest = rest.trim_start();
        let end = if index % 2 == 0 { rest.find(' ') } else { rest.find('%').map(|at| at + 1) };
        let (value, more) = rest.split_at(end.expect("a figure"));
        (*figure, rest) = (value.to_owned(), more);
    }
    (found, rest.strip_prefix("  ").expect("a name"))
}

#[test]
fn every_function_has_the_same_figures() {
    let profile = profile();
    let Some(mut browser) = Browser::open(&glass_profiler_report::html(&profile)) else { return };
    let text = glass_profiler_report::text(&profile, usize::MAX);
    let head = text.lines().find(|line| line.starts_with("Hottest functions")).expect("a table");
    browser.click("#functions-tab");
    // "Hottest functions by self: 25 of 354; 100 % = 1,669 running samples"
    assert_eq!(browser.text("#whole"), head.split("; ").nth(1).expect("what 100 % is"));
    let number = head.split(" of ").nth(1).and_then(|rest| rest.split(';').next()).expect("a number");
    assert_eq!(browser.text("#functions-count"), format!("{number} functions"));
    while browser.eval("document.querySelector('#functions .more').hidden") == Value::Bool(false) {
        browser.click("#functions .more");
    }
    let page = texts(
        &mut browser,
        "[...document.querySelectorAll('#functions tbody tr')].map((row) => [...row.querySelectorAll('.cell span')].map((part) => part.textContent) \
         .concat([row.querySelector('.name button').title, row.querySelector('.short').textContent, row.querySelector('.place').title, \
         row.querySelector('.image').title]))",
    );
    let lines = &section(&text, "Hottest functions")[1..];
    assert_eq!(lines.len(), page.len());
    for (line, row) in lines.iter().zip(&page) {
        let (numbers, rest) = figures(line);
        assert_eq!(numbers[..], row[..4], "{line}\n{row:?}");
        let (name, place) = at_column(rest, NAME_COLUMNS);
        let [full, short, location, image] = &row[4..] else { panic!("{row:?}") };
        let name = name.trim_end();
        assert!(is_cut_of(name, full) || is_cut_of(name, short), "{line}\n{row:?}");
        let shown = if location.is_empty() { image } else { location };
        assert!(is_cut_of(place.trim(), shown), "{line}\n{row:?}");
    }
    browser.assert_quiet();
}

#[test]
fn every_node_of_the_call_tree_has_the_same_shares() {
    let profile = profile();
    let Some(mut browser) = Browser::open(&glass_profiler_report::html(&profile)) else { return };
    let text = glass_profiler_report::text_with_tree(&profile, 1, SHARE_MIN);
    // All that is large enough is opened, and what has no place yet is brought in.
    let open = format!(
        "(() => {{ const share = (row) => parseFloat(row.querySelector('.share').textContent); \
         const rows = [...document.querySelectorAll('#tree tbody tr')].filter((row) => share(row) >= {SHARE_MIN}); \
         const closed = rows.find((row) => row.getAttribute('aria-expanded') === 'false' || row.querySelector('.twisty').textContent === '…'); \
         closed?.querySelector('.twisty').click(); return Boolean(closed); }})()"
    );
    let mut opened = 0;
    while browser.eval(&open) == Value::Bool(true) {
        opened += 1;
        assert!(opened < 2_000, "nodes open without end");
    }
    let page = texts(
        &mut browser,
        "[...document.querySelectorAll('#tree tbody tr')].filter((row) => row.querySelector('.short')).map((row) => [row.ariaLevel, \
         row.querySelector('.share').textContent, row.querySelector('.self').textContent, row.querySelector('.name').title, \
         row.querySelector('.short').textContent, row.querySelector('.place').title])",
    );
    let is_large = |row: &&Vec<String>| {
        row[1]
            .strip_suffix(" %")
            .and_then(|share| share.trim_start_matches(['<', '>']).parse::<f64>().ok())
            .is_some_and(|share| share > SHARE_MIN)
    };
    let mut page: Vec<Vec<String>> = page.iter().filter(is_large).cloned().collect();
    let lines = section(&text, "Call tree");
    let mut compared = 0;
    for line in &lines[1..] {
        let (total, rest) = at_column(line, 7);
        let (own, rest) = at_column(rest, 8);
        let name = rest.strip_prefix("  ").expect("a name");
        let level = name.len() - name.trim_start().len() + 1;
        let (name, _) = at_column(name.trim_start(), 50_usize.saturating_sub(level));
        // A share that is printed as the smallest one may be just below it.
        let Some(at) = page.iter().position(|row| {
            row[0] == level.to_string()
                && row[1] == total.trim()
                && row[2] == own.trim()
                && (is_cut_of(name.trim_end(), &row[3]) || is_cut_of(name.trim_end(), &row[4]))
        }) else {
            assert_eq!(total.trim(), format!("{SHARE_MIN:.1} %"), "{line} is not in the page: {page:#?}");
            continue;
        };
        page.remove(at);
        compared += 1;
    }
    assert!(compared > 20, "{text}");
    assert!(page.is_empty(), "only in the page: {page:#?}\n{}", lines.join("\n"));
    browser.assert_quiet();
}
