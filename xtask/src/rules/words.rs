//! One vocabulary: what a user or a reader of the code sees has no phrase that `docs/glossary.md` refuses.

use super::prose::{self, Piece};
use super::{Violation, tree::Tree};
use regex::{Regex, RegexBuilder};

/// The glossary: a table of terms, meanings and refused phrases.
const GLOSSARY: &str = "docs/glossary.md";
/// Documents and folders of documents that are checked, besides assets and Rust files.
const DOCUMENTS: [&str; 5] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/", "bench/results/"];

/// A term and a phrase that it replaces.
struct Refusal {
    phrase: Regex,
    term: String,
}

/// All refused phrases.
struct Refusals {
    /// Finds any of them, so that most text is searched once only.
    any: Regex,
    each: Vec<Refusal>,
}

/// Every refused phrase in the prose of `tree`.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let Some((_, glossary)) = tree.texts("md").find(|(path, _)| *path == GLOSSARY) else {
        return vec![Violation::new(GLOSSARY, "is not there: it lists the terms and the phrases that they replace")];
    };
    let refusals = match refusals(glossary) {
        Ok(refusals) => refusals,
        Err(violation) => return vec![violation],
    };
    let documents = tree.texts("md").filter(|(path, _)| *path != GLOSSARY && is_under(path, &DOCUMENTS));
    let assets = ["html", "css"].into_iter().flat_map(|extension| tree.texts(extension));
    let whole = documents.chain(assets).map(|(path, text)| (path, vec![prose::of_document(text)]));
    let code = tree.texts("rs").map(|(path, text)| (path, prose_of_code(path, text)));
    let scripts = tree.texts("js").map(|(path, text)| (path, prose::of_javascript(text)));
    whole
        .chain(code)
        .chain(scripts)
        .flat_map(|(path, pieces)| pieces.iter().flat_map(|piece| refused(path, piece, &refusals)).collect::<Vec<_>>())
        .collect()
}

fn is_under(path: &str, folders: &[&str]) -> bool {
    folders.iter().any(|folder| path == *folder || (folder.ends_with('/') && path.starts_with(folder)))
}

/// All comments, and the string literals outside tests.
fn prose_of_code(path: &str, text: &str) -> Vec<Piece> {
    let is_test = path.contains("/tests/") || path.ends_with("/tests.rs");
    let product_lines = if is_test { 0 } else { prose::before_tests(text).lines().count() };
    let pieces = prose::of_rust(text).into_iter();
    pieces.filter(|piece| !piece.is_string || piece.line <= product_lines).collect()
}

/// The rows of the glossary's table: a term, its meaning, and code spans, each a regular expression.
fn refusals(glossary: &str) -> Result<Refusals, Violation> {
    let mut each = Vec::new();
    let mut all = Vec::new();
    for (index, line) in glossary.lines().enumerate() {
        // A `|` within a cell is written `\|`.
        let line = line.replace("\\|", "\u{0}");
        let Some(cells) = line.strip_prefix('|').map(|row| row.split('|').map(str::trim).collect::<Vec<_>>()) else {
            continue;
        };
        let [term, _, phrases, ""] = cells[..] else {
            return Err(Violation::new(GLOSSARY, format!("line {}: a row has three cells", index + 1)));
        };
        let unusable = |error: regex::Error| Violation::new(GLOSSARY, format!("line {}: {error}", index + 1));
        for phrase in phrases.split('`').skip(1).step_by(2).map(|phrase| phrase.replace('\u{0}', "|")) {
            each.push(Refusal { phrase: compile(&phrase).map_err(unusable)?, term: term.to_owned() });
            all.push(phrase);
        }
    }
    if each.is_empty() {
        return Err(Violation::new(GLOSSARY, "refuses nothing"));
    }
    let any = compile(&all.join("|")).map_err(|error| Violation::new(GLOSSARY, error.to_string()))?;
    Ok(Refusals { any, each })
}

/// A phrase is found in any case, as whole words, also across a line break.
fn compile(phrase: &str) -> Result<Regex, regex::Error> {
    let pattern = format!(r"\b(?:{})\b", phrase.replace(' ', r"\s+"));
    RegexBuilder::new(&pattern).case_insensitive(true).unicode(false).build()
}

fn refused(path: &str, piece: &Piece, refusals: &Refusals) -> Vec<Violation> {
    if !refusals.any.is_match(&piece.text) {
        return Vec::new();
    }
    let mut found: Vec<(usize, String)> = refusals
        .each
        .iter()
        .flat_map(|refusal| refusal.phrase.find_iter(&piece.text).map(move |found| (found, &refusal.term)))
        .map(|(found, term)| {
            let line = piece.line + piece.text[..found.start()].matches('\n').count();
            let phrase = found.as_str().split_whitespace().collect::<Vec<_>>().join(" ");
            (line, format!("line {line}: \"{phrase}\": the glossary's term is \"{term}\""))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, reason)| Violation::new(path, reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Glossary\n\n| term | meaning | not |\n|---|---|---|\n\
                         | received | a segment arrived | `segments? came` |\n\
                         | returns, reports | what code does | `tells?\\|told`, `says` |\n";

    fn reasons(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(GLOSSARY, TABLE), (path, text)])).into_iter().map(|found| found.to_string()).collect()
    }

    #[test]
    fn a_refused_phrase_is_found_with_its_line_and_term() {
        assert_eq!(
            reasons("README.md", "One.\nA Segment\ncame.\n"),
            ["README.md: line 2: \"Segment came\": the glossary's term is \"received\""]
        );
        assert_eq!(reasons("lib/net/src/lib.rs", "//! One.\n//! It tells.\n").len(), 1);
        assert_eq!(reasons("lib/net/src/lib.rs", "fn f() { g(\"a\", \"it says so\"); }\n").len(), 1);
        assert_eq!(reasons("lib/x/assets/page.js", "told('no');\nconst text = 'it says';").len(), 1);
        assert_eq!(reasons("docs/guides/x.md", "told, tells, says").len(), 3);
    }

    #[test]
    fn other_words_names_and_the_strings_of_tests_pass() {
        assert_eq!(reasons("README.md", "`told` is foretold, essays\n"), [""; 0]);
        assert_eq!(reasons("lib/x/notes.md", "told"), [""; 0]);
        assert_eq!(
            reasons("lib/net/src/lib.rs", "//! A.\nfn told() {}\n#[cfg(test)]\nmod tests {\nx(\"told\")\n}\n"),
            [""; 0]
        );
        assert_eq!(reasons("lib/net/tests/x.rs", "//! A.\nfn f() { g(\"told\") }\n"), [""; 0]);
        assert_eq!(reasons("lib/net/tests/x.rs", "//! It told.\n").len(), 1);
    }

    #[test]
    fn a_glossary_that_cannot_be_used_is_a_violation() {
        let of = |table: &str| check(&Tree::of(&[(GLOSSARY, table)]))[0].reason.clone();
        assert_eq!(of("| a | b |\n"), "line 1: a row has three cells");
        assert!(of("| a | b | `(` |\n").starts_with("line 1: "));
        assert_eq!(of("nothing\n"), "refuses nothing");
        assert!(check(&Tree::of(&[("README.md", "")]))[0].reason.starts_with("is not there"));
    }
}
