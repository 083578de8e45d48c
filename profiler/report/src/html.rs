//! The page: one file that works offline, forever.
//!
//! The page holds the aggregated profile as JSON, one style sheet and one script. The script is
//! written as ES modules (`assets/*.js`) that are joined here. A content security policy allows
//! exactly this script and this style sheet by their hashes and nothing else: no request can leave
//! the page, and no name of a function can become markup or code.

use base64::Engine as _;
use glass_profile::model::Profile;
use sha2::Digest as _;

use crate::cost::{Card, cards};
use crate::data;
use crate::difference;
use crate::format::{count, date, percent};
use crate::names::printable;
use crate::text::{difference as difference_text, origin_line, summary, symbols_line};
use crate::tree::{Kind, Merged, TrackShare, Tree};

/// Functions in the summary for readers without JavaScript.
const TEXT_TOP: usize = 50;

const STYLE: &str = include_str!("../assets/report.css");

const PAGE: &str = include_str!("../assets/report.html");

const DIFFERENCE_PAGE: &str = include_str!("../assets/difference.html");

/// Keys and gestures, a dialog that every page has.
const HELP: &str = include_str!("../assets/help.html");

/// In the order of their imports: each uses only those before it.
const MODULES: &[(&str, &str)] = &[
    ("format.js", include_str!("../assets/format.js")),
    ("elements.js", include_str!("../assets/elements.js")),
    ("profile.js", include_str!("../assets/profile.js")),
    ("shape.js", include_str!("../assets/shape.js")),
    ("sums.js", include_str!("../assets/sums.js")),
    ("views.js", include_str!("../assets/views.js")),
    ("search.js", include_str!("../assets/search.js")),
    ("colours.js", include_str!("../assets/colours.js")),
    ("compare.js", include_str!("../assets/compare.js")),
    ("graph.js", include_str!("../assets/graph.js")),
    ("table.js", include_str!("../assets/table.js")),
    ("calltree.js", include_str!("../assets/calltree.js")),
    ("timeline.js", include_str!("../assets/timeline.js")),
    ("tooltip.js", include_str!("../assets/tooltip.js")),
    ("crumbs.js", include_str!("../assets/crumbs.js")),
    ("hide.js", include_str!("../assets/hide.js")),
    ("page.js", include_str!("../assets/page.js")),
];

/// The module that wires a page; it comes after all others.
const REPORT: (&str, &str) = ("main.js", include_str!("../assets/main.js"));
const DIFFERENCE: (&str, &str) = ("difference.js", include_str!("../assets/difference.js"));

/// A page with a timeline, an interactive flame graph, a call tree and tables of functions and
/// lines. It needs nothing but itself.
pub fn html(profile: &Profile) -> String {
    let text = summary(profile, &Tree::build(profile), TEXT_TOP);
    let (tree, timeline) = data::by_line(profile);
    page(PAGE, REPORT, |name| match name {
        "guest" => escape(&guest(profile)),
        "origin" => escape(&origin_line(&profile.origin)),
        "symbols" => escape(&symbols_line(&profile.origin)),
        "cost" => cards(&profile.cost, profile.origin.duration_ns).iter().map(card).collect(),
        "warnings" => list("warnings", "Warnings", &profile.warnings),
        "text" => escape(&text),
        "merged" => merged(&tree.merged),
        "data" => data::write(&tree, &timeline),
        _ => unreachable!("assets/report.html names only what is above"),
    })
}

/// A page that compares two recordings: a flame graph coloured by the change of shares from A to B,
/// and a table of functions with the change of each and its noise.
pub fn difference(a: &Profile, b: &Profile) -> String {
    let joined = difference::join(a, b);
    let (tree, timeline) = data::by_line(&joined);
    page(DIFFERENCE_PAGE, DIFFERENCE, |name| match name {
        "guest" => escape(&guest(b)),
        "sides" => [a, b].iter().zip(&tree.tracks).map(|(profile, share)| side(profile, share)).collect(),
        "warnings" => list("warnings", "Remarks", &difference::remarks(a, b)),
        "text" => escape(&difference_text(a, b, TEXT_TOP)),
        "merged" => merged(&tree.merged),
        "data" => data::write(&tree, &timeline),
        _ => unreachable!("assets/difference.html names only what is above"),
    })
}

fn guest(profile: &Profile) -> String {
    let guest = &profile.origin.guest;
    if guest.is_empty() { "unnamed guest".to_string() } else { printable(guest) }
}

/// Fills a template with a script, a style sheet and what `value` knows.
fn page(template: &str, main: (&str, &str), value: impl Fn(&str) -> String) -> String {
    let script = script(main);
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(&script),
        hash(STYLE)
    );
    fill(template, |name| match name {
        "policy" => policy.clone(),
        "style" => STYLE.to_string(),
        "script" => script.clone(),
        "help" => HELP.to_string(),
        _ => value(name),
    })
}

/// One of two recordings, as a row.
fn side(profile: &Profile, share: &TrackShare) -> String {
    let all = share.samples();
    let mut row = format!("<tr><th scope=\"row\">{}</th>", escape(&share.name));
    for text in [
        guest(profile),
        date(profile.origin.start_unix_ns),
        difference::length(profile),
        printable(if profile.origin.backend.is_empty() { "unknown" } else { &profile.origin.backend }),
    ] {
        row.push_str(&format!("<td>{}</td>", escape(&text)));
    }
    for number in [
        count(all),
        percent(share.running, all),
        percent(share.spinning, all),
        percent(share.idle, all),
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

/// Says what is not drawn by itself; nothing is left out in silence.
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

/// All modules as one script: imports between them are left out, and what they export is simply
/// there.
fn script(main: (&str, &str)) -> String {
    let mut script = String::new();
    for (name, source) in MODULES.iter().chain([&main]) {
        script.push_str(&format!("\n// {name}\n"));
        for line in source.lines().filter(|line| !line.starts_with("import ")) {
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    script
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

    /// Names that stand at the beginning of a line in some module.
    fn top_level_names(main: (&'static str, &'static str)) -> Vec<&'static str> {
        let modules = MODULES.iter().copied().chain([main]);
        let lines = modules.flat_map(|(_, source)| source.lines());
        lines
            .map(|line| line.strip_prefix("export ").unwrap_or(line))
            .filter_map(|line| {
                let rest = ["function ", "class ", "const ", "let "].iter().find_map(|word| line.strip_prefix(word))?;
                rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
            })
            .collect()
    }

    #[test]
    fn modules_can_be_joined() {
        for main in [REPORT, DIFFERENCE] {
            let mut names = top_level_names(main);
            let count = names.len();
            assert!(count > 30, "{names:?}");
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "two modules use one name at their top level");
            assert!(!script(main).contains("</script"));
        }
        assert!(!STYLE.contains("</style"));
        for (index, (module, source)) in MODULES.iter().chain([&REPORT, &DIFFERENCE]).enumerate() {
            let before = &MODULES[..index.min(MODULES.len())];
            for line in source.lines().filter(|line| line.starts_with("import ")) {
                let (imported, from) = line.split_once("} from \"./").expect("an import is one line of names");
                let from = from.strip_suffix("\";").expect("an import ends its line");
                let (_, exporter) =
                    before.iter().find(|(name, _)| *name == from).expect("an import is of a module before");
                for name in imported.strip_prefix("import {").expect("names in braces").split(',') {
                    let exported = ["function", "class", "const"].map(|word| format!("export {word} {}", name.trim()));
                    assert!(exported.iter().any(|line| exporter.contains(line.as_str())), "{module}: {name} of {from}");
                }
            }
            assert!(!source.contains("export default") && !source.contains("export {"), "{module}");
        }
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
