//! The column *uses* of ARCHITECTURE.md: for each crate, the crates that it depends on, tests aside.

use super::Violation;
use super::direction::Package;
use super::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

const FILE: &str = "ARCHITECTURE.md";

/// What is in code spans.
fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The crates that each folder in the first column uses, from tables whose third column is *uses*.
fn rows(text: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut rows = BTreeMap::new();
    let mut is_map = false;
    for line in text.lines() {
        let Some(row) = line.strip_prefix('|') else {
            is_map = false;
            continue;
        };
        // A decision's name may contain anything but the mark between columns.
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (Some(folders), Some(uses)) = (cells.first(), cells.get(2)) else { continue };
        is_map |= *uses == "uses";
        if is_map {
            rows.extend(spans(folders).map(|folder| (folder, spans(uses).collect())));
        }
    }
    rows
}

/// Every crate without a row, and every row that has not the arrows of its crate.
pub fn check(packages: &[Package], tree: &Tree) -> Vec<Violation> {
    let Some((_, text)) = tree.texts("md").find(|(path, _)| *path == FILE) else { return Vec::new() };
    let rows = rows(text);
    let mut violations = Vec::new();
    for Package { folder, dependencies, .. } in packages {
        let Some(drawn) = rows.get(folder.as_str()) else {
            violations.push(Violation::new(FILE, format!("has no row for {folder}")));
            continue;
        };
        let real: BTreeSet<&str> =
            dependencies.iter().filter(|(_, only_tests)| !only_tests).map(|(folder, _)| folder.as_str()).collect();
        for missing in real.difference(drawn) {
            violations.push(Violation::new(FILE, format!("{folder} uses {missing}: add it to its row")));
        }
        for wrong in drawn.difference(&real) {
            violations.push(Violation::new(FILE, format!("{folder} does not use {wrong}: take it out of its row")));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "| folder | contents | uses | start at |\n|---|---|---|---|\n| `a`, `b` | `text` | `api` `lib/x` | |\n\n| other | `c` | `d` |\n";

    fn package(folder: &str, uses: &[(&str, bool)]) -> Package {
        let dependencies = uses.iter().map(|(folder, only_tests)| ((*folder).to_owned(), *only_tests)).collect();
        Package { name: String::new(), folder: folder.to_owned(), dependencies, foreign: Vec::new() }
    }

    #[test]
    fn a_row_has_the_arrows_of_its_crates() {
        let tree = Tree::of(&[(FILE, TEXT)]);
        let right = [package("a", &[("api", false), ("lib/x", false), ("tests", true)])];
        assert_eq!(check(&right, &tree), []);
        let found = check(&[package("a", &[("api", false), ("lib/y", false)]), package("c", &[])], &tree);
        let reasons: Vec<&str> = found.iter().map(|violation| violation.reason.as_str()).collect();
        assert_eq!(
            reasons,
            ["a uses lib/y: add it to its row", "a does not use lib/x: take it out of its row", "has no row for c"]
        );
    }
}
