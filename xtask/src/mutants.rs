//! `cargo xtask mutants`: changes the code in one place at a time and counts how often a test notices.

use crate::progress::Steps;
use crate::run;
use anyhow::{Context, Result, ensure};
use glass_tests::cache;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version that is installed, outside the repository, where it is missing.
const VERSION: &str = "27.1.0";
/// The packages whose code is changed, each judged by its own tests.
const PACKAGES: [&str; 7] =
    ["glass-executor", "glass-trace", "glass-net", "glass-http", "glass-virtio", "glass-formats", "upload-queue"];

/// Options of `cargo xtask mutants`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only this package; otherwise lib, drivers, formats and the upload queue
    package: Option<String>,
    /// How many changes are tried, spread evenly over the files
    #[arg(long, default_value_t = 400)]
    count: usize,
    /// Another seed tries other changes
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Samples, runs, and prints what no test noticed.
pub fn run(options: &Options) -> Result<()> {
    let mut steps = Steps::new(3);
    let step = steps.begin(&format!("find or install cargo-mutants {VERSION}"), None);
    let program = install()?;
    step.done("");
    let step = steps.begin("list the changes", None);
    let packages: Vec<&str> = options.package.as_deref().map_or(PACKAGES.to_vec(), |package| vec![package]);
    let names = list(&program, &packages)?;
    ensure!(!names.is_empty(), "there is nothing to change in {}", packages.join(", "));
    let chosen = sample(&names, options.count, options.seed);
    step.done(&format!("{} of {}", chosen.len(), names.len()));
    let step = steps.begin("try each", None);
    let folder = run::target_dir().join("mutants");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = mutants(&program, &packages);
    command.args(["--no-shuffle", "--jobs", "2", "--colors", "never", "--output"]).arg(&folder);
    // Nothing reads debug information here.
    command.args(["--cargo-arg=--config", "--cargo-arg=profile.dev.debug=false"]);
    command.args(chosen.iter().flat_map(|name| ["--re".to_owned(), format!("^{}$", escaped(name))]));
    // It fails when a change is missed; the files that it writes have the outcome.
    let status = command.status().with_context(|| format!("cannot start {}", program.display()))?;
    let outcomes = Outcomes::read(&folder.join("mutants.out"))
        .with_context(|| format!("cargo-mutants ended early ({status}); its log is in {}", folder.display()))?;
    step.done("");
    drop(steps);
    println!("{}", outcomes.table());
    Ok(())
}

/// The installed program.
fn install() -> Result<PathBuf> {
    let fill = |folder: &Path| {
        let mut cargo = run::cargo(&["install", "cargo-mutants", "--locked", "--version", VERSION, "--root"]);
        run::shown(cargo.arg(folder)).map(drop)
    };
    Ok(cache::filled(&format!("cargo-mutants-{VERSION}"), fill)?.join("bin/cargo-mutants"))
}

fn mutants(program: &Path, packages: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("mutants").args(packages.iter().flat_map(|package| ["--package", package])).current_dir(run::root());
    command
}

/// The names of all changes, sorted by file.
fn list(program: &Path, packages: &[&str]) -> Result<Vec<String>> {
    let listed = run::shown(mutants(program, packages).args(["--list", "--json"]))?;
    let listed: Value = serde_json::from_str(&listed).context("cargo-mutants printed no JSON")?;
    let names = listed.as_array().into_iter().flatten().filter_map(|mutant| mutant["name"].as_str());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

/// One of each of `count` equal stretches of `names`, so that each file has its share.
fn sample(names: &[String], count: usize, seed: u64) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = count.min(names.len());
    let stretch = |index: usize| index * names.len() / count;
    (0..count).map(|index| names[random.usize(stretch(index)..stretch(index + 1))].clone()).collect()
}

/// `text` as a regular expression that matches nothing else.
fn escaped(text: &str) -> String {
    // No others: `\<` and `\>` are ends of words.
    const SPECIAL: &str = r"\.+*?()|[]{}^$#&-~";
    let mut escaped = String::new();
    for letter in text.chars() {
        if SPECIAL.contains(letter) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// What came of the changes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcomes {
    /// For each top-level folder of a crate: how many were noticed, and how many were not.
    crates: BTreeMap<String, (usize, usize)>,
    missed: Vec<String>,
    /// Changes that do not compile.
    unviable: usize,
}

impl Outcomes {
    fn read(folder: &Path) -> Result<Outcomes> {
        let lines = |name: &str| -> Result<Vec<String>> {
            let text = std::fs::read_to_string(folder.join(name)).with_context(|| format!("there is no {name}"))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        let mut outcomes = Outcomes { unviable: lines("unviable.txt")?.len(), ..Outcomes::default() };
        // A test that hangs has noticed it.
        for name in [lines("caught.txt")?, lines("timeout.txt")?].concat() {
            outcomes.crates.entry(crate_of(&name)).or_default().0 += 1;
        }
        for name in lines("missed.txt")? {
            outcomes.crates.entry(crate_of(&name)).or_default().1 += 1;
            outcomes.missed.push(name);
        }
        Ok(outcomes)
    }

    fn table(&self) -> String {
        let mut text = String::from("caught  of  crate\n");
        let (mut all_caught, mut all) = (0, 0);
        for (name, (caught, missed)) in &self.crates {
            text.push_str(&format!("{caught:6} {:3}  {name}\n", caught + missed));
            all_caught += caught;
            all += caught + missed;
        }
        let percent = 100.0 * all_caught as f64 / (all as f64).max(1.0);
        text.push_str(&format!("{all_caught:6} {all:3}  in all ({percent:.1} %; {} do not compile)\n", self.unviable));
        for name in &self.missed {
            text.push_str(&format!("missed: {name}\n"));
        }
        text
    }
}

/// The folder of the crate in which a change is: what is before `/src/`.
fn crate_of(name: &str) -> String {
    name.split("/src/").next().unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_and_repeatable() {
        let names: Vec<String> = (0..100).map(|number| format!("{number:03}")).collect();
        let chosen = sample(&names, 10, 7);
        assert_eq!(chosen, sample(&names, 10, 7));
        assert_ne!(chosen, sample(&names, 10, 8));
        let decades: Vec<&str> = chosen.iter().map(|name| &name[..2]).collect();
        assert_eq!(decades, ["00", "01", "02", "03", "04", "05", "06", "07", "08", "09"]);
        assert_eq!(sample(&names, 1000, 1), names);
    }

    #[test]
    fn outcomes_are_counted_for_each_crate() {
        let folder = glass_tests::folder::Folder::new("mutants").unwrap();
        for (name, text) in [
            ("caught.txt", "lib/http/src/a.rs:1:1: x\nlib/http/src/b.rs:1:1: x\n"),
            ("timeout.txt", "drivers/virtio/src/a.rs:1:1: x\n"),
            ("missed.txt", "lib/http/src/a.rs:2:1: replace + with -\n"),
            ("unviable.txt", "lib/net/src/a.rs:2:1: x\n"),
        ] {
            folder.write(name, text.as_bytes()).unwrap();
        }
        let table = Outcomes::read(folder.path()).unwrap().table();
        assert!(table.contains("     2   3  lib/http\n") && table.contains("     1   1  drivers/virtio\n"), "{table}");
        assert!(table.contains("     3   4  in all (75.0 %; 1 do not compile)\n"), "{table}");
        assert!(table.contains("missed: lib/http/src/a.rs:2:1: replace + with -"), "{table}");
    }

    #[test]
    fn names_are_matched_as_they_are() {
        assert_eq!(escaped("a.rs:1: -> Ok(())"), r"a\.rs:1: \-> Ok\(\(\)\)");
    }
}
