//! The licences of what ships: the crates that `glass` is built of. `deny.toml` has the list of those we accept, for `cargo deny` too.

use crate::run;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The package whose dependencies ship, and what they are built for.
const SHIPPED: &str = "glass-profiler-cli";
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The starts of the names of files with licences.
const FILES: [&str; 5] = ["LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
/// The tool that reads advisories and licences of the whole graph, and its version.
const DENY: (&str, &str) = ("cargo-deny", "0.20.2");
/// How deep expressions of licences may be nested; no crate's is nested at all.
const DEPTH_MAX: u32 = 16;

/// A crate of others.
#[derive(Debug)]
struct Crate {
    name: String,
    /// As SPDX has it.
    licence: String,
    folder: PathBuf,
}

/// Checks that each crate has a licence of the list, and a file with its text; returns how many there are.
pub fn check() -> Result<String> {
    let text = fs::read_to_string(run::root().join("deny.toml")).context("cannot read deny.toml")?;
    let accepted = accepted(&text)?;
    let crates = shipped()?;
    ensure!(!crates.is_empty(), "`cargo metadata` reports no dependency of {SHIPPED}");
    for Crate { name, licence, folder } in &crates {
        ensure!(
            is_accepted(licence, &accepted)?,
            "{name} has the licence `{licence}`, which deny.toml does not accept"
        );
        ensure!(!files(folder, licence)?.is_empty(), "{name} has no file with its licence in {}", folder.display());
    }
    Ok(format!("{} crates", crates.len()))
}

/// The texts of all of them, each once, with the crates that have it.
pub fn texts() -> Result<String> {
    let mut texts = BTreeMap::<String, BTreeSet<String>>::new();
    for Crate { name, licence, folder } in shipped()? {
        for file in files(&folder, &licence)? {
            let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n").trim_end().to_owned();
            texts.entry(text).or_default().insert(format!("{name} ({licence})"));
        }
    }
    let mut out = String::new();
    for (text, crates) in texts {
        let crates: Vec<String> = crates.into_iter().collect();
        out += &format!("==== {}\n\n{text}\n\n", crates.join(", "));
    }
    Ok(out)
}

/// `cargo xtask licences`: `cargo deny`, which is installed below the target directory. Advisories come from a database in the network; without it they
/// are skipped, and that is printed.
pub fn deny() -> Result<()> {
    let folder = run::target_dir().join("tools");
    let program = folder.join("bin").join(DENY.0);
    let has_version = |path: &Path| {
        let printed = run::quiet(std::process::Command::new(path).arg("--version")).unwrap_or_default();
        printed.trim().ends_with(DENY.1)
    };
    if !program.is_file() || !has_version(&program) {
        let mut install = run::cargo(&["install", DENY.0, "--version", DENY.1, "--locked", "--debug", "--root"]);
        run::streamed(install.arg(&folder))?;
    }
    let check = |what: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(["--manifest-path", "profiler/cli/Cargo.toml", "--target", TARGET]);
        run::streamed(command.arg("check").args(what).current_dir(run::root()))
    };
    check(&["licenses", "bans", "sources"])?;
    let mut fetch = std::process::Command::new(&program);
    fetch.args(["--manifest-path", "profiler/cli/Cargo.toml", "fetch", "db"]).current_dir(run::root());
    let fetched = fetch.output().context("cannot run cargo-deny")?;
    if fetched.status.success() {
        return check(&["--disable-fetch", "advisories"]);
    }
    let why = String::from_utf8_lossy(&fetched.stderr);
    let why = why.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason is printed");
    println!("skipped advisories: their database cannot be fetched from here: {}", why.trim());
    Ok(())
}

/// The list of deny.toml.
fn accepted(text: &str) -> Result<Vec<&str>> {
    let list = text.split_once("\nallow = [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.context("deny.toml has no list `allow`")?;
    // Between quotes.
    Ok(list.split('"').skip(1).step_by(2).collect())
}

fn shipped() -> Result<Vec<Crate>> {
    let metadata = run::quiet(&mut run::cargo(&["metadata", "--format-version", "1", "--filter-platform", TARGET]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata did not print JSON")?;
    crates(&metadata)
}

/// Those of `metadata` that the shipped package is built of; not what only builds and tests use.
fn crates(metadata: &Value) -> Result<Vec<Crate>> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .filter_map(|package| Some((package["id"].as_str()?.to_owned(), package)))
        .collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .filter_map(|node| Some((node["id"].as_str()?.to_owned(), node)))
        .collect();
    let first = packages.iter().find(|(_, package)| package["name"] == SHIPPED).map(|(id, _)| id.clone());
    let mut left = vec![first.context("the workspace has no package of this command")?];
    let mut found = BTreeSet::new();
    while let Some(id) = left.pop() {
        if !found.insert(id.clone()) {
            continue;
        }
        let is_linked = |needed: &Value| list(&needed["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let needed = nodes.get(&id).map(|node| list(&node["deps"])).unwrap_or_default();
        let linked = needed.iter().filter(|needed| is_linked(needed));
        left.extend(linked.filter_map(|needed| needed["pkg"].as_str().map(str::to_owned)));
    }
    let foreign = found.iter().filter_map(|id| packages.get(id)).filter(|package| !package["source"].is_null());
    foreign.map(of_package).collect()
}

fn of_package(package: &Value) -> Result<Crate> {
    let text = |key: &str| package[key].as_str().map(str::to_owned);
    let name = format!("{} {}", text("name").context("a package has no name")?, text("version").unwrap_or_default());
    let licence = text("license").with_context(|| format!("{name} names no licence"))?;
    let manifest = PathBuf::from(text("manifest_path").context("a package has no manifest")?);
    Ok(Crate { name, licence, folder: manifest.parent().context("a manifest has a folder")?.to_owned() })
}

fn files(folder: &Path, licence: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot open {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && FILES.iter().any(|start| name.starts_with(start)) {
            files.push(path);
        }
    }
    files.sort();
    // The text of this licence is the same for all that have it.
    if files.is_empty() && licence == "Apache-2.0" {
        files.push(run::root().join("LICENSE-APACHE"));
    }
    Ok(files)
}

/// Whether an expression of SPDX can be met by `accepted` (SPDX 2.3, annex D: `OR` binds less than `AND`, and that less than `WITH`). An
/// older manifest has `/` for `OR`.
fn is_accepted(expression: &str, accepted: &[&str]) -> Result<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (is_met, rest) = alternatives(&words, accepted, 0)?;
    ensure!(rest.is_empty(), "`{expression}` is no expression of licences");
    Ok(is_met)
}

fn alternatives<'a>(mut words: &'a [&'a str], accepted: &[&str], depth: u32) -> Result<(bool, &'a [&'a str])> {
    ensure!(depth < DEPTH_MAX, "an expression of licences is nested too deep");
    let mut is_met = false;
    loop {
        let (all, rest) = all_of(words, accepted, depth)?;
        is_met |= all;
        match rest {
            ["OR", rest @ ..] => words = rest,
            rest => return Ok((is_met, rest)),
        }
    }
}

fn all_of<'a>(mut words: &'a [&'a str], accepted: &[&str], depth: u32) -> Result<(bool, &'a [&'a str])> {
    let mut are_met = true;
    loop {
        let rest = match words {
            ["(", rest @ ..] => {
                let (is_met, rest) = alternatives(rest, accepted, depth + 1)?;
                are_met &= is_met;
                let [")", rest @ ..] = rest else { bail!("an expression of licences lacks a bracket") };
                rest
            }
            [licence, "WITH", exception, rest @ ..] => {
                are_met &= accepted.contains(&format!("{licence} WITH {exception}").as_str());
                rest
            }
            [licence, rest @ ..] => {
                are_met &= accepted.contains(licence);
                rest
            }
            [] => bail!("an expression of licences ends early"),
        };
        match rest {
            ["AND", rest @ ..] => words = rest,
            rest => return Ok((are_met, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_expression_is_met_by_one_alternative() {
        let accepted = ["MIT", "BSD-3-Clause", "Apache-2.0 WITH LLVM-exception"];
        for (expression, is_met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("Unlicense/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(GPL-3.0 OR MIT) AND BSD-3-Clause", true),
            ("GPL-3.0 OR MIT AND Zlib", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
        ] {
            assert_eq!(is_accepted(expression, &accepted).unwrap(), is_met, "{expression}");
        }
        let nested = "(".repeat(40);
        for wrong in ["", "MIT OR", "(MIT", "MIT )", "MIT MIT", &nested] {
            assert!(is_accepted(wrong, &accepted).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_only_tests_use_does_not_ship() {
        let package = |name: &str, source: Option<&str>| json!({"id": name, "name": name, "version": "1.0.0", "source": source, "license": "MIT", "manifest_path": format!("/r/{name}/Cargo.toml")});
        let needs = |name: &str, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package(SHIPPED, None), package("a", Some("r")), package("b", Some("r")), package("c", Some("r"))],
            "resolve": {"nodes": [
                {"id": SHIPPED, "deps": [needs("a", None), needs("c", Some("dev"))]},
                {"id": "a", "deps": [needs("b", None), needs("a", None)]},
            ]},
        });
        let crates = crates(&metadata).unwrap();
        let names: Vec<&str> = crates.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a 1.0.0", "b 1.0.0"]);
    }

    /// The real list and the real crates: a new dependency with another licence fails here.
    #[test]
    fn all_that_ships_is_accepted() {
        check().unwrap();
    }
}
