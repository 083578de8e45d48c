//! The result as a page: one file without scripts, in the style of the reports.

use crate::campaign::{Loss, Outcome};
use crate::log::Log;
use crate::text;
use crate::timeline::{self, Kind, Row};
use glass_profiler_core::names::printable;
use std::fmt::Write as _;

const STYLE: &str = include_str!("../../report/assets/shared/report.css");
const OWN_STYLE: &str = include_str!("page.css");
/// The picture of a timeline, in its own units.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 92.0;
const MARGIN: f64 = 12.0;
/// Losses that are shown, the first ones.
const LOSSES_MAX: usize = 50;

/// What else a page shows.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// The name of the log.
    pub title: &'a str,
    /// What boots a state.
    pub boot: Option<&'a str>,
    /// What checks it.
    pub check: &'a str,
    /// What chose the states.
    pub seed: u64,
}

/// The page.
pub fn html(log: &Log, outcome: &Outcome, shown: &Shown<'_>) -> String {
    let title = escape(shown.title);
    let verdict = if outcome.losses.is_empty() { "kept" } else { "gone" };
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\" data-theme=\"light\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title} · power cuts</title>\n\
         <style>{STYLE}{OWN_STYLE}</style>\n</head>\n<body>\n<header>\n<div class=\"title\"><h1>{title}: power cuts</h1></div>\n\
         <p class=\"verdict {verdict}\">{}</p>\n<p class=\"origin\">{}</p>\n",
        escape(&text::summary(outcome)),
        escape(&text::of_log(log)),
    );
    let boot = shown.boot.unwrap_or("none: the check does all");
    let rows = [("Boot", boot), ("Check", shown.check), ("Seed", &shown.seed.to_string())];
    html.push_str("<table class=\"facts\">");
    for (name, value) in rows {
        let _ = write!(html, "<tr><th scope=\"row\">{name}</th><td><code>{}</code></td></tr>", escape(value));
    }
    html.push_str("</table>\n");
    for remark in &log.remarks {
        let _ = writeln!(html, "<p class=\"origin\">{}</p>", escape(remark));
    }
    html.push_str("</header>\n<main>\n");
    for loss in outcome.losses.iter().take(LOSSES_MAX) {
        section(&mut html, log, loss);
    }
    if outcome.losses.len() > LOSSES_MAX {
        let _ = writeln!(html, "<p>{} more states lost something.</p>", outcome.losses.len() - LOSSES_MAX);
    }
    html.push_str(
        "</main>\n<footer><p>Made by Glasshouse. This file needs no network: it holds everything it shows.</p></footer>\n</body>\n</html>\n",
    );
    html
}

fn section(html: &mut String, log: &Log, loss: &Loss) {
    let rows = timeline::rows(log, loss);
    let (number, why, missing) = (loss.cut.number, escape(&loss.why), escape(&loss.sentence(log)));
    let _ = write!(html, "<section>\n<h2>State {number}</h2>\n<p>{why}; {missing}.</p>\n");
    picture(html, &rows);
    html.push_str("<div class=\"table\"><table><thead><tr><th class=\"number\">Time in s</th><th>Event</th></tr></thead><tbody>\n");
    for row in &rows {
        let time = (row.time_ns as f64 - log.header.start_ns as f64) / 1e9;
        let _ = writeln!(
            html,
            "<tr class=\"{}\"><td class=\"number\">{time:.6}</td><td>{}</td></tr>",
            class(row.kind),
            escape(&row.text)
        );
    }
    html.push_str("</tbody></table></div>\n");
    for (title, output) in [("The check printed", &loss.output), ("The boot printed", &loss.boot_output)] {
        if !output.trim().is_empty() {
            let lines: String = output.lines().map(|line| escape(line) + "\n").collect();
            let _ = writeln!(html, "<details><summary>{title}</summary><pre>{lines}</pre></details>");
        }
    }
    html.push_str("</section>\n");
}

/// The rows as marks on a line of time.
fn picture(html: &mut String, rows: &[Row]) {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return };
    let span = (last.time_ns - first.time_ns).max(1) as f64;
    let at = |row: &Row| MARGIN + (row.time_ns - first.time_ns) as f64 / span * (WIDTH - 2.0 * MARGIN);
    let _ = write!(
        html,
        "<svg class=\"cut-line\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"timeline of {:.3} ms\">\
         <line class=\"axis\" x1=\"0\" y1=\"{axis}\" x2=\"{WIDTH}\" y2=\"{axis}\"/>",
        span / 1e6,
        axis = HEIGHT - 20.0,
    );
    let heights =
        [(Kind::Missing, 8.0, "missing writes"), (Kind::Lost, 28.0, "acknowledged"), (Kind::Flush, 48.0, "flushes")];
    for row in rows {
        let x = at(row);
        let y = heights.iter().find(|(kind, ..)| *kind == row.kind).map(|(_, y, _)| *y);
        let _ = match y {
            Some(y) => write!(
                html,
                "<rect class=\"{}\" x=\"{:.1}\" y=\"{y}\" width=\"4\" height=\"14\"><title>{}</title></rect>",
                class(row.kind),
                x - 2.0,
                escape(&row.text)
            ),
            None => write!(html, "<line class=\"cut\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{}\"/>", HEIGHT - 16.0),
        };
    }
    let _ = writeln!(
        html,
        "<text x=\"{MARGIN}\" y=\"{low}\">0</text><text x=\"{right}\" y=\"{low}\" text-anchor=\"end\">{:.3} ms</text></svg>\
         <p class=\"key\"><span class=\"missing\">missing writes</span><span class=\"lost\">acknowledged, and lost</span>\
         <span class=\"flush\">what makes writes durable</span><span class=\"cut\">power cut</span></p>",
        span / 1e6,
        low = HEIGHT - 4.0,
        right = WIDTH - MARGIN,
    );
}

fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Missing => "missing",
        Kind::Lost => "lost",
        Kind::Flush => "flush",
        Kind::Cut => "cut",
    }
}

/// For text and for attributes in double quotes.
fn escape(text: &str) -> String {
    let text = if text.is_empty() { String::new() } else { printable(text) };
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
