//! The outcomes of changes, and the files that store them.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The outcomes of the changes of one package.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    pub package: String,
    pub caught: usize,
    /// Of the caught: a test hung.
    pub hung: usize,
    pub missed: Vec<String>,
    /// Changes that do not compile.
    pub unviable: usize,
}

/// The folder of one package: the outcome of the last run as written by cargo-mutants, and the settled results of earlier runs.
pub struct Record {
    folder: PathBuf,
    settled: Names,
}

/// Names of changes by outcome.
#[derive(Debug, Default)]
struct Names {
    caught: BTreeSet<String>,
    hung: BTreeSet<String>,
    unviable: BTreeSet<String>,
    missed: BTreeSet<String>,
}

impl Record {
    /// The record in `folder`, which is created. With `again` the results of earlier runs stay, otherwise they are removed.
    pub fn open(folder: &Path, again: bool) -> Result<Record> {
        let (last, settled) = (folder.join("mutants.out"), folder.join("settled"));
        let mut names = Names::default();
        if again {
            names.read(&settled)?;
            names.read(&last)?;
        }
        // A slow test on a busy host looks like one that hangs: only a change that times out twice counts.
        names.missed.clear();
        names.hung.clear();
        names.write(&settled)?;
        match std::fs::remove_dir_all(&last) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", last.display()))
            }
            _ => Ok(Record { folder: folder.to_owned(), settled: names }),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether in an earlier run a test detected this change, or it did not compile.
    pub fn has_settled(&self, name: &str) -> bool {
        self.settled.caught.contains(name) || self.settled.unviable.contains(name)
    }

    /// The outcomes of `names`. A name without an outcome is not counted.
    pub fn outcomes(self, package: &str, names: &[&str]) -> Result<Outcomes> {
        let mut found = self.settled;
        found.read(&self.folder.join("mutants.out"))?;
        let count = |set: &BTreeSet<String>| names.iter().filter(|name| set.contains(**name)).count();
        let hung = count(&found.hung);
        Ok(Outcomes {
            package: package.to_owned(),
            caught: count(&found.caught) + hung,
            hung,
            missed: names.iter().filter(|name| found.missed.contains(**name)).map(|name| (*name).to_owned()).collect(),
            unviable: count(&found.unviable),
        })
    }
}

impl Names {
    /// Adds those of `folder`, which may be none.
    fn read(&mut self, folder: &Path) -> Result<()> {
        for (name, names) in self.files() {
            let file = folder.join(name);
            match std::fs::read_to_string(&file) {
                Ok(text) => names.extend(text.lines().map(str::to_owned)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
            }
        }
        Ok(())
    }

    fn write(&mut self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for (name, names) in self.files() {
            let text: String = names.iter().map(|name| format!("{name}\n")).collect();
            std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        Ok(())
    }

    /// With the names of the files that cargo-mutants writes.
    fn files(&mut self) -> [(&'static str, &mut BTreeSet<String>); 4] {
        [
            ("caught.txt", &mut self.caught),
            ("timeout.txt", &mut self.hung),
            ("unviable.txt", &mut self.unviable),
            ("missed.txt", &mut self.missed),
        ]
    }
}

/// How many were caught of each package and in total, and each that was missed.
pub fn table(outcomes: &[Outcomes]) -> String {
    let mut text = String::from("caught   of  package\n");
    let sum = |field: fn(&Outcomes) -> usize| outcomes.iter().map(field).sum::<usize>();
    for Outcomes { package, caught, missed, .. } in outcomes {
        text.push_str(&format!("{caught:6} {:4}  {package}\n", caught + missed.len()));
    }
    let (caught, hung, unviable) = (sum(|one| one.caught), sum(|one| one.hung), sum(|one| one.unviable));
    let all = caught + sum(|one| one.missed.len());
    let percent = 100.0 * caught as f64 / (all as f64).max(1.0);
    let notes = format!("{hung} by a test that hangs, {unviable} do not compile");
    text.push_str(&format!("{caught:6} {all:4}  in total: {percent:.1} % ({notes})\n"));
    for name in outcomes.iter().flat_map(|one| &one.missed) {
        text.push_str(&format!("missed: {name}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::folder::Folder;

    fn write(folder: &Path, files: [(&str, &str); 4]) {
        std::fs::create_dir_all(folder.join("mutants.out")).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join("mutants.out").join(name), text).unwrap();
        }
    }

    #[test]
    fn what_a_stopped_run_found_is_kept_and_the_rest_is_tried_again() {
        let folder = Folder::new("mutants").unwrap();
        let names = ["a", "b", "c", "d", "e"];
        let files = [("caught.txt", "a\n"), ("timeout.txt", "b\n"), ("missed.txt", "c\n"), ("unviable.txt", "d\n")];
        write(folder.path(), files);
        let record = Record::open(folder.path(), true).unwrap();
        assert_eq!(names.map(|name| record.has_settled(name)), [true, false, false, true, false]);
        // The same once more, as after an interruption before the first change.
        let record = Record::open(folder.path(), true).unwrap();
        write(
            folder.path(),
            [("caught.txt", "c\n"), ("timeout.txt", "b\n"), ("missed.txt", "e\n"), ("unviable.txt", "")],
        );
        let outcomes = record.outcomes("p", &names).unwrap();
        assert_eq!((outcomes.caught, outcomes.hung, outcomes.unviable), (3, 1, 1));
        assert_eq!(outcomes.missed, ["e"]);
        let record = Record::open(folder.path(), false).unwrap();
        assert!(names.iter().all(|name| !record.has_settled(name)));
        assert_eq!(record.outcomes("p", &names).unwrap(), Outcomes { package: "p".to_owned(), ..Outcomes::default() });
    }

    #[test]
    fn the_table_counts_packages_and_names_what_was_missed() {
        let one = Outcomes { package: "http".to_owned(), caught: 2, hung: 1, unviable: 1, ..Outcomes::default() };
        let missed = vec!["lib/net/src/a.rs:2:1: replace + with -".to_owned()];
        let other = Outcomes { package: "net".to_owned(), caught: 1, missed, ..Outcomes::default() };
        let table = table(&[one, other]);
        assert!(table.contains("     2    2  http\n") && table.contains("     1    2  net\n"), "{table}");
        assert!(
            table.contains("     3    4  in total: 75.0 % (1 by a test that hangs, 1 do not compile)\n"),
            "{table}"
        );
        assert!(table.contains("missed: lib/net/src/a.rs:2:1: replace + with -"), "{table}");
    }
}
