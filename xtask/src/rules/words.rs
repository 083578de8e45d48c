//! One vocabulary: what a user or a reader of the code sees has no phrase that `words.txt` refuses, and no name in the code a word.

use super::prose::{self, Piece};
use super::{Violation, tree::Tree};
use regex::{Regex, RegexBuilder};
use std::collections::HashMap;

/// The file of the refused phrases, and what it contains.
const FILE: &str = "xtask/src/rules/words.txt";
const WORDS: &str = include_str!("words.txt");
/// The sections of words in names start with it.
const IDENTIFIERS: &str = "identifiers";
/// Documents and folders of documents that are checked, besides assets and Rust files.
const DOCUMENTS: [&str; 5] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/", "bench/results/"];
/// Names of so many words are sentences: those of tests.
const SENTENCE_WORDS: usize = 5;

/// What to write, and a phrase that it replaces.
struct Refusal {
    phrase: Regex,
    instead: String,
}

/// All refused phrases.
struct Refusals {
    /// Finds any of them, so that most text is searched once only.
    any: Regex,
    each: Vec<Refusal>,
    /// By the refused word of a name.
    of_names: HashMap<String, NameRefusal>,
}

/// What to write instead of a word in names, and the start of the paths in which it is not refused.
struct NameRefusal {
    instead: String,
    except: Vec<String>,
}

/// Every refused phrase in the prose of `tree`, and every refused word in its names.
pub fn check(tree: &Tree) -> Vec<Violation> {
    check_with(WORDS, tree)
}

fn check_with(words: &str, tree: &Tree) -> Vec<Violation> {
    let refusals = match refusals(words) {
        Ok(refusals) => refusals,
        Err(violation) => return vec![violation],
    };
    let documents = tree.texts("md").filter(|(path, _)| is_under(path, &DOCUMENTS));
    let assets = ["html", "css"].into_iter().flat_map(|extension| tree.texts(extension));
    let whole = documents.chain(assets).map(|(path, text)| (path, vec![prose::of_document(text)]));
    let code = tree.texts("rs").map(|(path, text)| (path, prose_of_code(path, text)));
    let scripts = tree.texts("js").map(|(path, text)| (path, prose::of_javascript(text)));
    let in_prose = whole
        .chain(code)
        .chain(scripts)
        .flat_map(|(path, pieces)| pieces.iter().flat_map(|piece| refused(path, piece, &refusals)).collect::<Vec<_>>());
    let in_names = tree.texts("rs").flat_map(|(path, text)| refused_names(path, text, &refusals.of_names));
    in_prose.chain(in_names).collect()
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

/// The refused phrases of [`FILE`]'s text: a line without indentation is what to write, the indented ones after it are refused.
fn refusals(words: &str) -> Result<Refusals, Violation> {
    let (mut each, mut all, mut of_names) = (Vec::new(), Vec::new(), HashMap::new());
    let (mut section, mut instead) = ("", "");
    let mut except: Vec<String> = Vec::new();
    for (index, line) in words.lines().enumerate() {
        let wrong = |reason: &str| Violation::new(FILE, format!("line {}: {reason}", index + 1));
        let (phrase, is_refused) = (line.trim(), line.starts_with(' '));
        match phrase {
            "" => {}
            _ if phrase.starts_with('#') => {}
            "[prose]" => (section, instead) = (phrase, ""),
            _ if let Some(folders) = identifiers(phrase) => {
                (section, instead) = (IDENTIFIERS, "");
                except = folders.split_whitespace().skip(1).map(str::to_owned).collect();
            }
            _ if section.is_empty() => return Err(wrong("is in no section")),
            _ if !is_refused => instead = phrase,
            _ if instead.is_empty() => return Err(wrong("there is no line with what to write instead before it")),
            _ if section == IDENTIFIERS => {
                let refusal = NameRefusal { instead: instead.to_owned(), except: except.clone() };
                of_names.insert(phrase.to_owned(), refusal);
            }
            _ => {
                let regex = compile(phrase).map_err(|error| wrong(&error.to_string()))?;
                each.push(Refusal { phrase: regex, instead: instead.to_owned() });
                all.push(phrase);
            }
        }
    }
    if each.is_empty() {
        return Err(Violation::new(FILE, "refuses nothing"));
    }
    let any = compile(&all.join("|")).map_err(|error| Violation::new(FILE, error.to_string()))?;
    Ok(Refusals { any, each, of_names })
}

/// What follows the word in the header of a section of words in names: nothing, or `except` and starts of paths.
fn identifiers(header: &str) -> Option<&str> {
    let rest = header.strip_prefix('[')?.strip_suffix(']')?.strip_prefix(IDENTIFIERS)?;
    (rest.is_empty() || rest.starts_with(" except ")).then_some(rest)
}

/// The words of a name, in small letters: `has_room`, `HasRoom` and `HAS_ROOM` have the same two.
fn words_of(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = '_';
    for letter in name.chars() {
        let is_start = !before.is_alphanumeric() || (letter.is_uppercase() && !before.is_uppercase());
        if letter.is_alphanumeric() {
            if is_start {
                words.push(String::new());
            }
            words.last_mut().expect("one has started").extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}

/// The names of a Rust file's code that have a refused word, each once, and that of the file.
fn refused_names(path: &str, text: &str, of_names: &HashMap<String, NameRefusal>) -> Vec<Violation> {
    let instead_of = |words: &[String]| {
        let refusals = words.iter().filter_map(|word| of_names.get(word));
        refusals
            .filter(|refusal| !refusal.except.iter().any(|start| path.starts_with(start)))
            .map(|found| &found.instead)
            .next()
    };
    let mut found: Vec<Violation> = Vec::new();
    let file = path.rsplit('/').next().unwrap_or(path);
    if let Some(instead) = instead_of(&words_of(file)) {
        found.push(Violation::new(path, format!("the file's name: the term is \"{instead}\"")));
    }
    for (index, line) in prose::code_of_rust(text).lines().enumerate() {
        for name in line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty()) {
            let words = words_of(name);
            let Some(instead) = instead_of(&words) else { continue };
            let reason = format!("line {}: the name `{name}`: the term is \"{instead}\"", index + 1);
            let is_known = found.iter().any(|known| known.reason.contains(&format!("`{name}`")));
            if words.len() < SENTENCE_WORDS && !is_known {
                found.push(Violation::new(path, reason));
            }
        }
    }
    found
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
        .flat_map(|refusal| refusal.phrase.find_iter(&piece.text).map(move |found| (found, &refusal.instead)))
        .map(|(found, instead)| {
            let line = piece.line + piece.text[..found.start()].matches('\n').count();
            let phrase = found.as_str().split_whitespace().collect::<Vec<_>>().join(" ");
            (line, format!("line {line}: \"{phrase}\": the term is \"{instead}\""))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, reason)| Violation::new(path, reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Words\n\n[prose]\nreceived\n    segments? came\nreturns, reports\n    tells?|told\n    says\n\
                         [identifiers]\nviolation\n    lie\n\
                         [identifiers except lib/old/ lib/older/]\nspace\n    room\n";

    fn reasons(path: &str, text: &str) -> Vec<String> {
        check_with(TABLE, &Tree::of(&[(path, text)])).into_iter().map(|found| found.to_string()).collect()
    }

    #[test]
    fn a_refused_phrase_is_found_with_its_line_and_term() {
        assert_eq!(
            reasons("README.md", "One.\nA Segment\ncame.\n"),
            ["README.md: line 2: \"Segment came\": the term is \"received\""]
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
    fn a_list_that_cannot_be_used_is_a_violation() {
        let of = |table: &str| check_with(table, &Tree::of(&[]))[0].reason.clone();
        assert_eq!(of("received\n"), "line 1: is in no section");
        assert_eq!(of("[prose]\n    came\n"), "line 2: there is no line with what to write instead before it");
        assert!(of("[prose]\nreceived\n    (\n").starts_with("line 3: "));
        assert_eq!(of("# nothing\n"), "refuses nothing");
    }

    #[test]
    fn names_are_words_too() {
        assert_eq!(words_of("unhandledLie_OfDISK2"), ["unhandled", "lie", "of", "disk2"]);
        let of = |code: &str| reasons("lib/net/src/lib.rs", &format!("//! A.\n{code}\n"));
        let expected = ["lib/net/src/lib.rs: line 2: the name `LieTo`: the term is \"violation\""];
        assert_eq!(of("enum LieTo { A } // `LieTo`"), expected);
        assert_eq!(of("fn a_lie_ends_the_device() { let (believed, text) = (1, \"a lie\"); }"), [""; 0]);
    }

    #[test]
    fn names_may_be_refused_in_some_folders_only() {
        let text = "//! A.\nfn has_room() {}\n";
        assert_eq!(
            reasons("lib/net/src/lib.rs", text),
            ["lib/net/src/lib.rs: line 2: the name `has_room`: the term is \"space\""]
        );
        assert_eq!(reasons("lib/net/src/lib.rs", "//! A.\nfn has_space() { let roomy = 1; }\n"), [""; 0]);
        for folder in ["lib/old", "lib/older"] {
            assert_eq!(reasons(&format!("{folder}/src/room.rs"), text), [""; 0]);
            assert_eq!(reasons(&format!("{folder}/src/lib.rs"), "//! A.\nfn lie() {}\n").len(), 1);
        }
    }

    #[test]
    fn the_name_of_a_file_is_a_name() {
        let expected = ["lib/net/src/room_left.rs: the file's name: the term is \"space\""];
        assert_eq!(reasons("lib/net/src/room_left.rs", "//! A.\n"), expected);
        assert_eq!(reasons("lib/net/src/space_left.rs", "//! A.\n"), [""; 0]);
    }
}
