//! The page: one file that works offline, forever.
//!
//! The page holds the aggregated profile as JSON, one style sheet and one script. The script is
//! written as ES modules (`assets/*.js`) that are joined here. A content security policy allows
//! exactly this script and this style sheet by their hashes and nothing else: no request can leave
//! the page, and no name of a function can become markup or code.

use base64::Engine as _;
use glass_profile::model::Profile;
use sha2::Digest as _;

use crate::data;
use crate::names::printable;
use crate::text::{cost_lines, origin_line};
use crate::tree::Tree;

/// Nodes of the call tree that the page shows; the smallest beyond are merged, and counted.
pub const NODES_MAX: usize = 100_000;

/// Functions in the summary for readers without JavaScript.
const TEXT_TOP: usize = 50;

const STYLE: &str = include_str!("../assets/report.css");

/// In the order of their imports: each uses only those before it.
const MODULES: &[(&str, &str)] = &[("main.js", include_str!("../assets/main.js"))];

/// A page with an interactive flame graph and a table of functions. It needs nothing but itself.
pub fn html(profile: &Profile) -> String {
    let tree = Tree::build(profile).merge_small(NODES_MAX);
    let script = script();
    let guest = if profile.origin.guest.is_empty() { "unnamed guest" } else { &profile.origin.guest };
    let guest = escape(&printable(guest));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(&script),
        hash(STYLE)
    );
    let cost: String = cost_lines(&profile.cost, profile.origin.duration_ns)
        .iter()
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>", escape(value)))
        .collect();
    let warnings: String =
        profile.warnings.iter().map(|warning| format!("<li>{}</li>", escape(&printable(warning)))).collect();
    let origin = escape(&origin_line(&profile.origin));
    let text = escape(&crate::text(profile, TEXT_TOP));
    let data = data::json(&tree);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{guest} - Glasshouse profile</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>{guest}</h1><p>{origin}</p><dl>{cost}</dl><ul>{warnings}</ul></header>\n\
         <noscript><pre>{text}</pre></noscript>\n<main id=\"report\"></main>\n\
         <script type=\"application/json\" id=\"profile\">{data}</script>\n\
         <script type=\"module\">{script}</script>\n</body>\n</html>\n"
    )
}

/// All modules as one script: imports between them are left out, and what they export is simply
/// there.
fn script() -> String {
    let mut script = String::new();
    for (name, source) in MODULES {
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
