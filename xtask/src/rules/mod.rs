//! The rules that no compiler checks: dependencies between folders, the start of a file, citations in documents, the
//! vocabulary.
//!
//! Each rule is a function from text to [`Violation`]s, so that its test can show it failing.

mod direction;
mod documents;
mod map;
mod modules;
mod prose;
mod sources;
mod tree;
mod words;

use crate::figures;
use anyhow::Result;
use std::fmt;
use std::path::Path;

/// One place where a rule is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The file, relative to the root of the repository.
    pub file: String,
    /// The violation, as a phrase on which the reader can act.
    pub reason: String,
}

impl Violation {
    fn new(file: impl Into<String>, reason: impl Into<String>) -> Violation {
        Violation { file: file.into(), reason: reason.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.reason)
    }
}

/// Every violation in the repository at `root`; `metadata` is what `cargo metadata --no-deps` prints.
pub fn check(root: &Path, metadata: &str) -> Result<Vec<Violation>> {
    let tree = tree::Tree::read(root)?;
    let mut violations = direction::check(&direction::crates(metadata)?);
    for (path, text) in tree.texts("rs") {
        violations.extend(sources::check_file(path, text));
    }
    for folder in direction::crates(metadata)?.iter().map(|package| &package.folder) {
        violations.extend(sources::check_unsafe(folder, &tree));
    }
    for (path, text) in tree.texts("md").chain(tree.texts("rs")) {
        violations.extend(documents::check(path, text, &tree));
    }
    violations.extend(map::check(&direction::crates(metadata)?, &tree));
    violations.extend(modules::check(&tree));
    violations.extend(words::check(&tree));
    if !figures::is_current(root)? {
        violations.push(Violation::new(
            figures::PAGE,
            "is not what `cargo xtask figures` writes from bench/results/today: run it",
        ));
    }
    Ok(violations)
}
