//! The scripts of the pages (`profiler/report/assets`): their types by TypeScript, their unit tests by Node.

use crate::run;
use crate::suite::Tally;
use anyhow::{Result, bail};
use glass_tests::npm;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What checks the scripts: a lock file, the compiler's settings, the tests.
fn folder() -> PathBuf {
    run::root().join("profiler/report/tests/scripts")
}

/// Checks the types that JSDoc declares. Where node or npm is missing the note is why nothing was checked.
pub fn check_types() -> Result<String> {
    let modules = match npm::modules(&folder()) {
        Ok(modules) => modules,
        Err(reason) => return Ok(format!("skipped: {reason:#}")),
    };
    let mut compiler = Command::new("node");
    compiler.arg(modules.join("typescript/bin/tsc")).arg("--project").arg(folder().join("tsconfig.json"));
    let output = compiler.output()?;
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stdout));
        bail!("types of the scripts do not fit; the lines above have the places");
    }
    Ok(String::new())
}

/// Runs the unit tests whose names contain one of `names`; all, if there are none.
pub fn test(names: &[String]) -> Tally {
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=tap"]);
    if !names.is_empty() {
        node.arg(format!("--test-name-pattern={}", names.join("|")));
    }
    match node.args(tests_in(&folder())).output() {
        Ok(output) => tally(&String::from_utf8_lossy(&output.stdout), output.status.success()),
        Err(error) => {
            eprintln!("skipped: the unit tests of the scripts need node ({error})");
            Tally { skipped: 1, ..Tally::default() }
        }
    }
}

/// The files of tests in a folder, in order.
fn tests_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(|file| file.to_string_lossy().ends_with(".test.mjs")).collect();
    files.sort();
    files
}

/// The counts at the end of what Node prints, and the names of failed tests.
fn tally(printed: &str, has_passed: bool) -> Tally {
    let count = |what: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(&format!("# {what} ")));
        line.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let mut tally = Tally { passed: count("pass"), ..Tally::default() };
    for line in printed.lines() {
        if let Some((_, name)) = line.strip_prefix("not ok ").and_then(|rest| rest.split_once(" - ")) {
            tally.failed.insert(format!("scripts: {name}"), 1);
        }
    }
    if !has_passed {
        eprint!("{printed}");
        if tally.failed.is_empty() {
            tally.failed.insert("scripts: node --test".to_owned(), 1);
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_failures_are_read() {
        let printed = "TAP version 13\n# Subtest: a\nok 1 - a\nnot ok 2 - b breaks\n1..2\n# pass 1\n# fail 1\n";
        let tally = tally(printed, false);
        assert_eq!(tally.passed, 1);
        assert_eq!(tally.failed.keys().collect::<Vec<_>>(), ["scripts: b breaks"]);
        assert!(!super::tally("", false).failed.is_empty());
        assert_eq!(super::tally("# pass 7\n", true), Tally { passed: 7, ..Tally::default() });
    }
}
