//! The page: one file that works offline, forever.
//!
//! The page holds the aggregated profile as JSON, one style sheet and one script. The script is
//! written as ES modules (`assets/*/*.js`) that are joined here. A content security policy allows
//! exactly this script and this style sheet by their hashes and nothing else: no request can leave
//! the page, and no name of a function can become markup or code.

mod script;

use base64::Engine as _;
use glass_profiler_core::model::{Distribution, Profile, State, StateCounts};
use glass_profiler_core::trace::model::Trace;
use glass_profiler_core::view::View;
use sha2::Digest as _;

use crate::samples::cost::{Card, account_line, cards};
use crate::samples::difference;
use crate::samples::page as samples_page;
use crate::samples::text::recorded;
use crate::samples::text::{difference as difference_text, merged_by_time, origin_line, summary, symbols_line};
use crate::samples::variance::Errors;
use crate::trace::page::{Class, TracePage, trace_summary};
use crate::trace::sheets::{Cell, Column, Sheet};
use glass_profiler_core::format::{count, percent};
use glass_profiler_core::names::{self, GroupKind, printable};
use glass_profiler_core::tree::{Function, Kind, Merged, Tree};
use script::{DIFFERENCE, MODULES, REPORT, TRACE, TRACE_MODULES, script};

/// Functions in the summary for readers without JavaScript.
const TEXT_TOP: usize = 50;

const STYLE: &str = include_str!("../assets/shared/report.css");

/// What every page has; the others below are parts of it.
const PAGE: &str = include_str!("../assets/shared/page.html");

/// A page of samples, and the part of its head that others do not have.
const REPORT_PAGE: &str = include_str!("../assets/samples/report.html");
const REPORT_INTRO: &str = include_str!("../assets/samples/intro.html");

/// Of a guest with processes: the tabs and the tables of these and of its threads.
const PROCESS_TABS: &str = include_str!("../assets/samples/process_tabs.html");
const PROCESS_TABLES: &str = include_str!("../assets/samples/process_tables.html");

const DIFFERENCE_PAGE: &str = include_str!("../assets/samples/difference.html");
const DIFFERENCE_TRACES: &str = include_str!("../assets/trace/difference.html");
const DIFFERENCE_INTRO: &str = include_str!("../assets/samples/difference_intro.html");

/// A page of a trace without samples.
const TRACE_PAGE: &str = include_str!("../assets/trace/page.html");

/// The view of a trace, and what it adds to the style of a page.
const TRACE_VIEW: &str = include_str!("../assets/trace/view.html");
/// The choice between samples and trace.
const VIEWS: &str = include_str!("../assets/shared/views.html");
const TRACE_STYLE: &str = include_str!("../assets/trace/trace.css");

/// Keys and gestures, a dialog that every page has; and what it holds for samples and for a trace.
const HELP: &str = include_str!("../assets/shared/help.html");
const SAMPLES_HELP: &str = include_str!("../assets/samples/help.html");
const TRACE_HELP: &str = include_str!("../assets/trace/help.html");

/// A page with a timeline, an interactive flame graph, a call tree and tables of functions and
/// lines. It needs nothing but itself.
pub fn html(profile: &Profile) -> String {
    html_in(profile, View::Guest)
}

/// [`html`] of a recording of host and guest that opens in a view; its reader can choose others. The profile is as it was recorded.
pub fn html_in(profile: &Profile, view: View) -> String {
    report(profile, None, view)
}

/// A page with the timeline of a trace: tracks for cores, tasks, devices, connections, spans, functions and counters,
/// events over time, where the time of requests went, and tables. If the profile has samples, they are a second view
/// of the same page, on the same clock. It needs nothing but itself.
pub fn trace_html(profile: &Profile, trace: &Trace) -> String {
    trace_html_in(profile, trace, View::Guest)
}

/// [`trace_html`] whose samples open in a view, as those of [`html_in`].
pub fn trace_html_in(profile: &Profile, trace: &Trace, view: View) -> String {
    let parts = TracePage::new(trace);
    if !profile.samples.is_empty() {
        return report(profile, Some((trace, &parts)), view);
    }
    let script = script(TRACE_MODULES, TRACE);
    let head = Head {
        title: format!("{} · Glasshouse trace", guest(profile)),
        heading: guest(profile),
        class: "with-trace",
        intro: format!("  <p class=\"origin\">{}</p>\n", escape(&trace_summary(trace))),
        warnings: folded_warnings(&warnings(profile, trace)),
        style: STYLE.to_string() + TRACE_STYLE,
        help: help(&[TRACE_HELP]),
    };
    page(&head, &[&script], &fill(TRACE_PAGE, |_| trace_view(&parts, &script)))
}

/// A page of samples, and of a trace if there is one.
fn report(profile: &Profile, trace: Option<(&Trace, &TracePage)>, view: View) -> String {
    let viewed = view.of(profile);
    let text = summary(&viewed.profile, &Tree::build(&viewed.profile), TEXT_TOP);
    drop(viewed);
    // The page makes the other views of it.
    let merged_view = View::Merged.of(profile);
    let samples = samples_page::Page::new(&merged_view.profile);
    let tree = &samples.tree;
    let main = script(MODULES, REPORT);
    let trace_script = trace.map_or(String::new(), |_| script(TRACE_MODULES, TRACE));
    let (scripts, style, sections): (&[&str], String, &[&str]) = match trace {
        None => (&[&main], STYLE.to_string(), &[SAMPLES_HELP]),
        Some(_) => (&[&main, &trace_script], STYLE.to_string() + TRACE_STYLE, &[SAMPLES_HELP, TRACE_HELP]),
    };
    let cards = cards(profile);
    let head = Head {
        title: format!("{} · Glasshouse profile", guest(profile)),
        heading: guest(profile),
        class: "",
        intro: fill(REPORT_INTRO, |name| match name {
            "origin" => escape(&origin_line(&profile.origin)),
            "only" => profile
                .only
                .as_ref()
                .map_or(String::new(), |only| format!(" <strong>{}</strong>", escape(&only.sentence()))),
            "symbols" => symbols_line(&profile.origin).map_or(String::new(), |line| format!("<br>{}", escape(&line))),
            "account" => keep_units(&escape(&account_line(profile))),
            "high" => if cards.iter().any(|card| card.high) { " high" } else { "" }.to_string(),
            "views" => trace.map_or("", |_| VIEWS).to_string(),
            "cost" => cards.iter().map(card).collect(),
            _ => unreachable!("assets/samples/intro.html names only what is above"),
        }),
        warnings: match trace {
            None => folded_warnings(&profile.warnings),
            Some((trace, _)) => folded_warnings(&warnings(profile, trace)),
        },
        style,
        help: help(sections),
    };
    let content = fill(REPORT_PAGE, |name| match name {
        "text" => escape(&text),
        "merged" => merged(&tree.merged),
        "sides" => tree.host.map_or(String::new(), |_| sides_choice(view)),
        "colours" => colours_choice(tree),
        "apart" => tree.host.map_or(String::new(), |host| apart(&host.apart)),
        "tabs" if samples.has_processes() => PROCESS_TABS.to_string(),
        "tables" if samples.has_processes() => PROCESS_TABLES.to_string(),
        "tabs" | "tables" => String::new(),
        "data" => samples.json(),
        "script" => main.clone(),
        "trace" => trace.map_or(String::new(), |(_, parts)| trace_view(parts, &trace_script)),
        _ => unreachable!("assets/samples/report.html names only what is above"),
    });
    page(&head, scripts, &content)
}

/// The choice of what colours stand for. The first is what [`names::group`] returns, by the word for what that mostly is: of a program of one
/// language crates, namespaces, packages or scripts. `data-field` is where the search finds it.
fn colours_choice(tree: &Tree) -> String {
    let is_code = |function: &&Function| function.kind == Kind::Function;
    let mut kinds: Vec<GroupKind> =
        tree.functions.iter().filter(is_code).map(|function| names::group_kind(&function.name)).collect();
    kinds.retain(|kind| *kind != GroupKind::Image);
    let count = |of: GroupKind| kinds.iter().filter(|kind| **kind == of).count();
    // A few functions of another language, such as the C++ in a Rust program's allocator, do not change the word.
    let named: Vec<GroupKind> = [GroupKind::Crate, GroupKind::Namespace, GroupKind::Package, GroupKind::Script]
        .into_iter()
        .filter(|kind| count(*kind) * 10 > kinds.len())
        .collect();
    let (label, field) = match named[..] {
        [GroupKind::Crate] => ("Crate colours", GroupKind::Crate.word()),
        [GroupKind::Namespace] => ("Namespace colours", GroupKind::Namespace.word()),
        [GroupKind::Package] => ("Package colours", GroupKind::Package.word()),
        [GroupKind::Script] => ("Script colours", GroupKind::Script.word()),
        _ => ("Library colours", "library"),
    };
    let group = format!(
        "<option value=\"group\" data-field=\"{field}\" title=\"By the crate, namespace, package or script in a function's name, else by its image\">{label}</option>"
    );
    let mode = tree.host.map_or("", |_| "<option value=\"mode\">Mode colours</option>");
    format!("{group}<option value=\"image\">Image colours</option>{mode}")
}

/// The choice of the view of host and guest.
fn sides_choice(view: View) -> String {
    let choice = |side: View| {
        let (name, title) = (side.name(), escape(side.sentence()));
        let word = match side {
            View::Guest => "Guest only",
            View::Host => "Host only",
            View::Merged => "Merged",
        };
        let checked = if side == view { " checked" } else { "" };
        format!(
            "<label title=\"{title}\"><input type=\"radio\" name=\"side\" value=\"{name}\"{checked}><span>{word}</span></label>"
        )
    };
    let choices: String = View::ALL.into_iter().map(choice).collect();
    format!("<fieldset class=\"choice\" id=\"sides\"><legend>Host and guest</legend>{choices}</fieldset>")
}

/// A sentence about segments that were merged by time.
fn apart(apart: &Distribution) -> String {
    let sentence = merged_by_time(apart).map(|sentence| format!("Merged view: {}.", escape(&sentence)));
    sentence.map_or(String::new(), |sentence| format!("<p class=\"merged\" id=\"apart\">{sentence}</p>"))
}

/// The view of a trace with its data and its script.
fn trace_view(parts: &TracePage, script: &str) -> String {
    fill(TRACE_VIEW, |name| match name {
        "index" => parts.index.clone(),
        "overview" => parts.elements(Class::Overview),
        "details" => parts.elements(Class::Detail),
        "script" => script.to_string(),
        _ => unreachable!("assets/trace/view.html names only what is above"),
    })
}

/// Warnings of the samples and of the trace.
fn warnings(profile: &Profile, trace: &Trace) -> Vec<String> {
    profile.warnings.iter().chain(&trace.warnings).cloned().collect()
}

/// Warnings on one line that opens, with the start of the first one: what was recorded is more important.
fn folded_warnings(sentences: &[String]) -> String {
    let Some(first) = sentences.first() else { return String::new() };
    let number = sentences.len();
    format!(
        "<details class=\"warnings\"><summary><strong>{number} warning{}</strong> <span>{}</span></summary>{}</details>",
        if number == 1 { "" } else { "s" },
        escape(&printable(first)),
        list("", "Warnings", sentences)
    )
}

fn help(sections: &[&str]) -> String {
    fill(HELP, |_| sections.concat())
}

/// One side of a comparison: the samples of one recording or of several of the same, and the trace of one.
#[derive(Debug, Clone)]
pub struct Side<'a> {
    /// The samples of each recording; at least one.
    pub profiles: Vec<&'a Profile>,
    /// The trace.
    pub trace: Option<&'a Trace>,
}

/// A page that compares recordings: the functions of [`difference()`] if code ran in samples of both, and tables of their traces if
/// both have one. It needs nothing but itself.
pub fn recordings_difference(a: Side, b: Side) -> String {
    let tables = a.trace.zip(b.trace).map_or(String::new(), |(a, b)| trace_tables(a, b));
    let is_active = |profile: &&Profile| View::Guest.of(profile).profile.counted().next().is_some();
    let has_active = |side: &Side| side.profiles.iter().all(is_active);
    if has_active(&a) && has_active(&b) {
        return functions_difference(&a.profiles, &b.profiles, &tables);
    }
    let subject = b.profiles.first().map_or(String::new(), |profile| difference::guest(profile));
    let head = Head {
        title: format!("{subject} · Glasshouse difference"),
        heading: format!("{subject}: what changed"),
        class: "difference",
        intro: String::new(),
        warnings: list("warnings", "Remarks", &difference::remarks(&a.profiles, &b.profiles)),
        style: STYLE.to_string(),
        help: String::new(),
    };
    page(&head, &[], &tables)
}

/// What changed from one trace to the other, as tables.
fn trace_tables(a: &Trace, b: &Trace) -> String {
    let tables: String = crate::trace::difference::sheets(a, b).iter().map(sheet_table).collect();
    fill(DIFFERENCE_TRACES, |_| tables.clone())
}

fn sheet_table(sheet: &Sheet) -> String {
    let class = |column: &Column| if *column == Column::Text { "" } else { " class=\"number\"" };
    let heads: String = sheet
        .columns
        .iter()
        .map(|(label, column)| format!("<th scope=\"col\"{}>{}</th>", class(column), escape(label)))
        .collect();
    let row = |row: &Vec<Cell>| {
        let cells = row.iter().zip(&sheet.columns);
        let cells: String =
            cells.map(|(cell, (_, column))| format!("<td{}>{}</td>", class(column), escape(&cell.text()))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = sheet.rows.iter().map(row).collect();
    let name = escape(sheet.name);
    format!(
        "<h3>{name}</h3>\n<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"{name}\"><table class=\"sheet\">\
         <thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n"
    )
}

/// A page that compares two recordings: a flame graph coloured by the change of shares from A to B,
/// and a table of functions with the change of each and its noise.
pub fn difference(a: &Profile, b: &Profile) -> String {
    functions_difference(&[a], &[b], "")
}

/// The same with tables of the traces below.
fn functions_difference(a: &[&Profile], b: &[&Profile], traces: &str) -> String {
    let (a, b) = (difference::in_views(a), difference::in_views(b));
    let (a, b) = (&difference::refer(&a)[..], &difference::refer(&b)[..]);
    let joined = difference::join(a, b);
    let (tree, timeline) = samples_page::by_line(&joined);
    let errors = Errors::of([a, b]);
    let script = script(MODULES, DIFFERENCE);
    let subject = b.first().map_or(String::new(), |profile| difference::guest(profile));
    let head = Head {
        title: format!("{subject} · Glasshouse difference"),
        heading: format!("{subject}: what changed"),
        class: "difference",
        intro: fill(DIFFERENCE_INTRO, |_| sides("A", a) + &sides("B", b)),
        warnings: list("warnings", "Remarks", &difference::remarks(a, b)),
        style: STYLE.to_string(),
        help: help(&[SAMPLES_HELP]),
    };
    let content = fill(DIFFERENCE_PAGE, |name| match name {
        "text" => escape(&difference_text(a, b, TEXT_TOP)),
        "merged" => merged(&tree.merged),
        "data" => samples_page::write(&tree, &timeline, Some(&errors), None),
        "judged" => judged(&errors).to_string(),
        "script" => script.clone(),
        "traces" => traces.to_string(),
        _ => unreachable!("assets/samples/difference.html names only what is above"),
    });
    page(&head, &[&script], &content)
}

fn guest(profile: &Profile) -> String {
    let guest = &profile.origin.guest;
    if guest.is_empty() { "unnamed guest".to_string() } else { printable(guest) }
}

/// What the pages differ in, but for their content. Texts are not escaped yet; what has tags is.
struct Head {
    title: String,
    heading: String,
    class: &'static str,
    intro: String,
    warnings: String,
    style: String,
    help: String,
}

/// A page with a policy that allows its style sheet and these scripts.
fn page(head: &Head, scripts: &[&str], content: &str) -> String {
    let hashes: Vec<String> = scripts.iter().map(|script| format!("'sha256-{}'", hash(script))).collect();
    let policy = format!(
        "default-src 'none'; script-src {}; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hashes.join(" "),
        hash(&head.style)
    );
    fill(PAGE, |name| match name {
        "policy" => policy.clone(),
        "title" => escape(&head.title),
        "style" => head.style.clone(),
        "class" => head.class.to_string(),
        "heading" => escape(&head.heading),
        "intro" => head.intro.clone(),
        "warnings" => head.warnings.clone(),
        "help" => head.help.clone(),
        "content" => content.to_string(),
        _ => unreachable!("assets/shared/page.html names only what is above"),
    })
}

/// How sure changes are.
fn judged(errors: &Errors) -> &'static str {
    match errors.has_runs() {
        true => {
            "± is what chance exceeds once in 22 times, with what the recordings of a side differ among themselves. <b>~</b> is within it: noise. <b>?</b> is \
             beyond: one such among many functions may be chance."
        }
        false => {
            "± is what the error of sampling exceeds once in 22 times. <b>~</b> is within it: noise. <b>?</b> is beyond: one such among many functions may be chance. \
             How much runs of the same program differ is not known from one recording a side: give several (glass diff A1 A2 -- B1 B2)."
        }
    }
}

/// The recordings of a side, a row each.
fn sides(name: &str, profiles: &[&Profile]) -> String {
    let named = |number: usize| if profiles.len() == 1 { name.to_string() } else { format!("{name}{number}") };
    profiles.iter().zip(1..).map(|(profile, number)| side(&named(number), profile)).collect()
}

/// One of the recordings, as a row.
fn side(name: &str, profile: &Profile) -> String {
    let mut states = StateCounts::default();
    profile.samples.iter().for_each(|sample| states.add(sample.state, 1));
    let all = states.all();
    let mut row = format!("<tr><th scope=\"row\">{}</th>", escape(name));
    for text in [
        guest(profile),
        recorded(&profile.origin),
        difference::length(profile),
        printable(if profile.origin.backend.is_empty() { "unknown" } else { &profile.origin.backend }),
    ] {
        row.push_str(&format!("<td>{}</td>", escape(&text)));
    }
    for number in [
        count(all),
        percent(states.of(State::Running), all),
        percent(states.of(State::Spinning), all),
        percent(states.of(State::Idle), all),
        percent(profile.cost.samples_lost, profile.cost.samples_wanted),
    ] {
        row.push_str(&format!("<td class=\"number\">{number}</td>"));
    }
    row + "</tr>"
}

/// Replaces each `{{name}}` of the template; what is put in is not looked at again.
fn fill(template: &str, value: impl Fn(&str) -> String) -> String {
    let mut page = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").expect("the template closes what it opens");
        page.push_str(before);
        page.push_str(&value(name));
        rest = after;
    }
    page.push_str(rest);
    page
}

fn card(card: &Card) -> String {
    let Card { name, headline, detail, high } = card;
    let class = if *high { " class=\"high\"" } else { "" };
    format!(
        "<div{class}><dt>{name}</dt><dd class=\"headline\">{}</dd><dd class=\"detail\">{}</dd></div>",
        keep_units(&escape(headline)),
        keep_units(&escape(detail))
    )
}

/// Lets no line end between a number and its unit.
fn keep_units(text: &str) -> String {
    [" %", " ns", " µs", " ms"]
        .iter()
        .fold(text.to_string(), |text, unit| text.replace(unit, &unit.replace(' ', "&nbsp;")))
}

fn list(class: &str, label: &str, sentences: &[String]) -> String {
    if sentences.is_empty() {
        return String::new();
    }
    let items: String = sentences.iter().map(|sentence| format!("<li>{}</li>", escape(&printable(sentence)))).collect();
    format!("<ul class=\"{class}\" aria-label=\"{label}\">{items}</ul>")
}

/// A sentence about what is not drawn by itself: the page states what it leaves out.
fn merged(merged: &Merged) -> String {
    if merged.nodes == 0 {
        return String::new();
    }
    format!(
        "<p class=\"merged\">The {} smallest nodes of the call tree, each with fewer than {} samples and {} samples \
         in all, are merged into their callers' <i>{}</i>; functions that were only there are not in the table.</p>",
        count(merged.nodes),
        count(merged.below_samples),
        count(merged.samples),
        escape(&Kind::Merged.label())
    )
}

fn hash(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(text.as_bytes()))
}

/// For text and for attributes in double quotes.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_style_does_not_end_its_element() {
        assert!(!STYLE.contains("</style") && !TRACE_STYLE.contains("</style"));
    }

    #[test]
    fn what_fills_a_template_is_not_looked_at_again() {
        assert_eq!(fill("a {{x}} b {{y}}", |name| format!("[{{{{{name}}}}}]")), "a [{{x}}] b [{{y}}]");
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
    }
}
