//! A document, or a comment, cites only files that exist.

use super::{Violation, tree::Tree};

/// Top-level folders that a build creates.
const BUILT: [&str; 1] = ["target"];

/// Citations of missing files in `path`: relative links and paths in code spans of Markdown,
/// paths under `docs/` in comments of Rust files.
pub fn check(path: &str, text: &str, tree: &Tree) -> Vec<Violation> {
    let cited = if path.ends_with(".rs") { cited_in_comments(text) } else { cited_in_markdown(text) };
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    cited
        .into_iter()
        .filter(|citation| !exists(citation, folder, tree))
        .map(|citation| Violation::new(path, format!("cites {}, which is not there", citation.path)))
        .collect()
}

struct Citation {
    path: String,
    /// A link is relative to its document; a code span may be relative to the root as well.
    is_link: bool,
}

fn exists(citation: &Citation, folder: &str, tree: &Tree) -> bool {
    let relative = normal(&format!("{folder}/{}", citation.path));
    tree.contains(&relative) || relative.is_empty() || (!citation.is_link && tree.contains(&normal(&citation.path)))
}

/// `a/./b/../c` as `a/c`; steps above the root stay, so that they count as missing.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        match part {
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn cited_in_comments(text: &str) -> Vec<Citation> {
    let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
    let spans = comments.flat_map(code_spans);
    spans.filter(|span| span.starts_with("docs/") && is_path(span)).map(span_citation).collect()
}

fn cited_in_markdown(text: &str) -> Vec<Citation> {
    let mut cited = Vec::new();
    let mut in_fence = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        } else if !in_fence {
            cited.extend(links(line));
            cited.extend(code_spans(line).filter(|span| is_path(span) && is_ours(span)).map(span_citation));
        }
    }
    cited
}

fn span_citation(span: &str) -> Citation {
    Citation { path: span.to_owned(), is_link: false }
}

fn links(line: &str) -> impl Iterator<Item = Citation> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split([')', ' ']).next()?.split('#').next()?;
        let outside = target.is_empty() || target.contains(':') || target.starts_with('/');
        (!outside).then(|| Citation { path: target.to_owned(), is_link: true })
    })
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    let closed = line.matches('`').count() / 2;
    line.split('`').skip(1).step_by(2).take(closed)
}

/// Whether a code span can be a path at all: no command, pattern, placeholder or address.
fn is_path(span: &str) -> bool {
    !span.is_empty() && span.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c)) && !span.starts_with('/')
}

/// Whether a path in a code span refers to a file of this repository: it starts with one of our
/// folders, or is the name of a document.
fn is_ours(span: &str) -> bool {
    const FOLDERS: [&str; 14] = [
        "api",
        "formats",
        "lib",
        "drivers",
        "platform",
        "glasshouse",
        "apps",
        "profiler",
        "bench",
        "tests",
        "docs",
        "xtask",
        ".ci",
        ".cargo",
    ];
    match span.split_once('/') {
        Some((first, _)) if BUILT.contains(&first) => false,
        Some((first, _)) => FOLDERS.contains(&first) || span.ends_with(".md"),
        None => span.ends_with(".md"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[("docs/decisions/0001-x.md", ""), ("api/src/lib.rs", ""), ("README.md", "")]);
        check(path, text, &tree).into_iter().map(|violation| violation.reason).collect()
    }

    #[test]
    fn what_exists_may_be_cited() {
        let text = "[one](docs/decisions/0001-x.md#why) `api/src/lib.rs` `api/` <https://x.y/z> [w](https://x/y.md)\n\
                    `target/demo/report.html` `/dev/kvm` `cargo xtask test` `docs/*.md` `a/b`\n```\n`docs/none.md`\n```\n";
        assert_eq!(violations("README.md", text), [""; 0]);
        assert_eq!(violations("docs/decisions/0001-x.md", "[up](../../README.md) `api/src/lib.rs`"), [""; 0]);
    }

    #[test]
    fn a_missing_file_is_found() {
        assert_eq!(violations("README.md", "[one](docs/none.md)"), ["cites docs/none.md, which is not there"]);
        assert_eq!(violations("README.md", "see `api/src/none.rs`"), ["cites api/src/none.rs, which is not there"]);
        assert_eq!(violations("README.md", "see `NONE.md`").len(), 1);
        assert_eq!(violations("docs/decisions/0001-x.md", "[up](../README.md)").len(), 1);
        assert_eq!(violations("README.md", "[up](../README.md)").len(), 1);
    }

    #[test]
    fn comments_are_held_to_it_too() {
        assert_eq!(violations("api/src/lib.rs", "//! `docs/formats/none.md` has the bytes.").len(), 1);
        assert_eq!(violations("api/src/lib.rs", "let x = \"`docs/formats/none.md`\";").len(), 0);
    }
}
