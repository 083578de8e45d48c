//! Programs of tests that passed and have not changed since, which need not run again.

use crate::run;
use crate::suite::{Program, Tally};
use anyhow::{Context, Result};
use glass_tests::programs::has_kvm;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// What decides which programs are installed, and their versions.
const INSTALLED: &str = "/var/lib/dpkg/status";
const KERNEL: &str = "/proc/version";

/// The programs that passed in earlier runs.
pub struct Unchanged {
    file: PathBuf,
    programs: BTreeMap<String, Passed>,
}

/// A run without a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Passed {
    /// See [`state`].
    state: String,
    passed: u64,
    skipped: u64,
}

impl Unchanged {
    /// Reads the record of earlier runs. One that is absent or damaged is empty.
    pub fn open() -> Unchanged {
        Unchanged::open_file(run::target_dir().join("tests-passed.json"))
    }

    fn open_file(file: PathBuf) -> Unchanged {
        let programs = std::fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Unchanged { file, programs: programs.unwrap_or_default() }
    }

    /// The result of `program`, if it passed in this `state`.
    pub fn result(&self, program: &Program, state: &str) -> Option<Tally> {
        let found = self.programs.get(&program.name()).filter(|found| found.state == state)?;
        Some(Tally { unchanged: found.passed, skipped: found.skipped, ..Tally::default() })
    }

    /// Stores the result of a run of all tests of `program`, whose state was `state` before it.
    pub fn store(&mut self, program: &Program, state: String, result: &Tally) -> Result<()> {
        if result.failed.is_empty() {
            let passed = Passed { state, passed: result.passed, skipped: result.skipped };
            self.programs.insert(program.name(), passed);
        } else {
            self.programs.remove(&program.name());
        }
        let text = serde_json::to_vec(&self.programs).expect("names and numbers can be written as JSON");
        std::fs::write(&self.file, text).with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// What the result of a program depends on: its file, the programs that it starts, the files of its package, and the machine.
pub fn state(program: &Program) -> Result<String> {
    let mut state = format!("KVM {}\n", has_kvm());
    for file in [Path::new(INSTALLED), Path::new(KERNEL)].into_iter().chain(program.files()) {
        add_file(file, &mut state);
    }
    add_folder(program.folder(), &mut state)?;
    Ok(state)
}

/// Path, size and time of the last change. A file that is absent has neither.
fn add_file(file: &Path, state: &mut String) {
    let metadata = file.metadata().ok();
    let size = metadata.as_ref().map(|metadata| metadata.len());
    let changed = metadata.and_then(|metadata| metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok());
    // Writing to a string cannot fail.
    let _ = writeln!(state, "{} {size:?} {changed:?}", file.display());
}

/// All files of a package.
fn add_folder(folder: &Path, state: &mut String) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() && !path.is_symlink() {
            add_folder(&path, state)?;
        } else {
            add_file(&path, state);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::folder::Folder;

    #[test]
    fn a_result_holds_until_something_changes() {
        let folder = Folder::new("unchanged").unwrap();
        let (tests, golden) = (folder.write("tests", b"1").unwrap(), folder.write("golden", b"1").unwrap());
        let program = Program::for_test(&tests, folder.path());
        let record = Folder::new("record").unwrap();
        let mut unchanged = Unchanged::open_file(record.file("passed"));
        let now = || state(&program).unwrap();
        assert_eq!(unchanged.result(&program, &now()), None);

        let result = Tally { passed: 3, skipped: 1, ..Tally::default() };
        unchanged.store(&program, now(), &result).unwrap();
        let unchanged = Unchanged::open_file(record.file("passed"));
        let expected = Tally { unchanged: 3, skipped: 1, ..Tally::default() };
        assert_eq!(unchanged.result(&program, &now()), Some(expected));

        for file in [&tests, &golden] {
            let before = now();
            std::fs::write(file, "22").unwrap();
            assert_ne!(now(), before, "{}", file.display());
        }
        assert_eq!(unchanged.result(&program, &now()), None);
        folder.write("new", b"").unwrap();
        assert!(now().contains("new"));
    }

    #[test]
    fn what_failed_runs_again() {
        let folder = Folder::new("failed").unwrap();
        let program = Program::for_test(&folder.write("tests", b"").unwrap(), folder.path());
        let record = Folder::new("record").unwrap();
        let mut unchanged = Unchanged::open_file(record.file("passed"));
        let failed = Tally { passed: 1, failed: BTreeMap::from([("a".to_owned(), 1)]), ..Tally::default() };
        unchanged.store(&program, "before".to_owned(), &Tally::default()).unwrap();
        unchanged.store(&program, "before".to_owned(), &failed).unwrap();
        assert_eq!(unchanged.result(&program, "before"), None);
        record.write("passed", b"{damaged").unwrap();
        assert_eq!(Unchanged::open_file(record.file("passed")).result(&program, "before"), None);
    }
}
