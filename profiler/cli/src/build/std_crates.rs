//! Why a crate cannot be built as a VM: which of its dependencies need the standard library. The compiler names the first crate that
//! finds two panic handlers (E0152), which is often not the one that brought the second.

use super::target::Target;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Crates that are named; more are counted.
const NAMED_MAX: usize = 4;

/// Why a crate needs the standard library.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// It has no `no_std` at all.
    Always,
    /// These of its features, which are on, take `no_std` away.
    Features(Vec<String>),
}

/// A crate that needs it, with the path from the service to it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Needy {
    path: Vec<String>,
    reason: Reason,
}

/// A sentence for each dependency of `package` that needs the standard library; `None` if none is found.
pub(super) fn explain(package: &str, target: Target) -> Option<String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--format-version=1", "--offline", "--filter-platform", target.triple()]);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "--cfg=glass_vm").env_remove("RUSTFLAGS");
    let output = cargo.output().ok().filter(|output| output.status.success())?;
    let metadata: Value = serde_json::from_slice(&output.stdout).ok()?;
    let source = |path: &str| fs::read_to_string(Path::new(path)).ok();
    let needy = needy(&metadata, package, &source);
    (!needy.is_empty()).then(|| describe(&needy))
}

fn describe(needy: &[Needy]) -> String {
    let mut text = String::from("a VM has no standard library, and these crates need it:");
    for crate_ in needy.iter().take(NAMED_MAX) {
        let (name, path) = (crate_.path.last().map_or("", String::as_str), crate_.path.join(" -> "));
        let advice = match (&crate_.reason, crate_.path.len()) {
            (Reason::Always, _) => "it has no `#![no_std]`: take another crate".to_owned(),
            (Reason::Features(features), 2) => format!(
                "its feature {} is on: give it `default-features = false` in Cargo.toml, and the features that you need",
                quoted(features)
            ),
            (Reason::Features(features), _) => {
                format!("its feature {} is on: `cargo tree -e features -i {name}` shows for whom", quoted(features))
            }
        };
        text += &format!("\n  {name} ({path}): {advice}");
    }
    if needy.len() > NAMED_MAX {
        text += &format!("\n  and {} more", needy.len() - NAMED_MAX);
    }
    text + "\n  docs/guides/crates.md has crates that work in a VM"
}

fn quoted(features: &[String]) -> String {
    features.iter().map(|feature| format!("`{feature}`")).collect::<Vec<_>>().join(", ")
}

/// The crates that need the standard library, the nearest to `package` first. What is below one of them is not named; features are
/// shared by all of a program, so a feature is blamed only if no crate needs the library anyway.
fn needy(metadata: &Value, package: &str, source: &dyn Fn(&str) -> Option<String>) -> Vec<Needy> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let by_id = |values: Vec<Value>| -> BTreeMap<String, Value> {
        values.into_iter().filter_map(|value| Some((value["id"].as_str()?.to_owned(), value))).collect()
    };
    let (packages, nodes) = (by_id(list(&metadata["packages"])), by_id(list(&metadata["resolve"]["nodes"])));
    let Some((root, _)) = packages.iter().find(|(id, found)| found["name"] == package && is_member(metadata, id))
    else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let (mut seen, mut queue) = (BTreeSet::from([root.clone()]), VecDeque::from([(root.clone(), Vec::new())]));
    while let Some((id, mut path)) = queue.pop_front() {
        let (Some(package), Some(node)) = (packages.get(&id), nodes.get(&id)) else { continue };
        if target(package, "proc-macro").is_some() {
            // It runs on the host, and so does what it depends on.
            continue;
        }
        path.push(package["name"].as_str().unwrap_or_default().to_owned());
        if let Some(reason) = reason(package, node, source) {
            found.push(Needy { path, reason });
            continue;
        }
        for dependency in list(&node["deps"]) {
            let is_normal = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            if let Some(id) = dependency["pkg"].as_str().filter(|id| is_normal && seen.insert((*id).to_owned())) {
                queue.push_back((id.to_owned(), path.clone()));
            }
        }
    }
    if found.iter().any(|needy| needy.reason == Reason::Always) {
        found.retain(|needy| needy.reason == Reason::Always);
    } else {
        let nearest = found.iter().map(|needy| needy.path.len()).min();
        found.retain(|needy| Some(needy.path.len()) == nearest);
    }
    found
}

fn is_member(metadata: &Value, id: &str) -> bool {
    metadata["workspace_members"].as_array().is_some_and(|members| members.iter().any(|member| member == id))
}

/// What a package builds of this kind.
fn target<'a>(package: &'a Value, kind: &str) -> Option<&'a Value> {
    let is_of_kind = |target: &&Value| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|of| of == kind));
    package["targets"].as_array()?.iter().find(is_of_kind)
}

/// Why this package needs the standard library.
fn reason(package: &Value, node: &Value, source: &dyn Fn(&str) -> Option<String>) -> Option<Reason> {
    let library = target(package, "lib").or_else(|| target(package, "rlib"))?;
    let text = source(library["src_path"].as_str()?)?;
    let features = node["features"].as_array().map(Vec::as_slice).unwrap_or_default();
    let features: BTreeSet<&str> = features.iter().filter_map(Value::as_str).collect();
    needs_std(&text, &features)
}

/// Reads the attributes of a crate's root.
fn needs_std(text: &str, features: &BTreeSet<&str>) -> Option<Reason> {
    // One attribute a line is usual; an attribute of several lines becomes one.
    let text: String = text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect::<Vec<_>>().join(" ");
    let mut without = Vec::new();
    for start in text.match_indices("#![").map(|(at, _)| at) {
        let attribute = attribute_at(&text[start + 2..]);
        match attribute.strip_prefix("cfg_attr(") {
            Some(inner) if inner.contains("no_std") => without.push(first_argument(inner)),
            None if attribute == "no_std" => without.push(""),
            _ => {}
        }
    }
    // `#![no_std]` with `extern crate std` for a feature.
    let with = text.match_indices("extern crate std").map(|(at, _)| {
        let before = text[..at].trim_end();
        before
            .rfind("#[cfg(")
            .filter(|start| before[*start..].ends_with(']'))
            .map(|start| attribute_at(&before[start + 1..]))
    });
    let with: Vec<&str> = with.flatten().filter_map(|cfg| cfg.strip_prefix("cfg(")?.strip_suffix(')')).collect();
    let is_without = without.iter().any(|condition| condition.is_empty() || holds(condition, features));
    let is_with = with.iter().any(|condition| holds(condition, features));
    if without.is_empty() {
        return Some(Reason::Always);
    }
    if is_without && !is_with {
        return None;
    }
    let named = without.iter().chain(&with).flat_map(|condition| names(condition));
    let on: BTreeSet<String> = named.filter(|name| features.contains(&name[..])).collect();
    Some(if on.is_empty() { Reason::Always } else { Reason::Features(on.into_iter().collect()) })
}

/// The text between the bracket at the start and its partner.
fn attribute_at(text: &str) -> &str {
    let end = ends(text, '[', ']').unwrap_or(0);
    text.get(1..end).unwrap_or_default().trim()
}

/// Where the bracket at the start is closed.
fn ends(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, letter)| {
        depth += i32::from(letter == open) - i32::from(letter == close);
        (depth == 0).then_some(at)
    })
}

/// The text before the first comma outside of brackets.
fn first_argument(text: &str) -> &str {
    let mut depth = 0;
    let end = text.char_indices().find(|(_, letter)| {
        depth += i32::from(*letter == '(') - i32::from(*letter == ')');
        *letter == ',' && depth == 0
    });
    text[..end.map_or(text.len(), |(at, _)| at)].trim()
}

/// Whether a condition holds in an image of x86-64 (those of `no_std` hardly name processors): a feature that is on, the operating
/// system of the target; no test, no documentation.
/// The depth is that of the brackets, of which a line of source has few: 32 are followed.
fn holds(condition: &str, features: &BTreeSet<&str>) -> bool {
    holds_within(condition, features, 32)
}

fn holds_within(condition: &str, features: &BTreeSet<&str>, depth: usize) -> bool {
    let condition = condition.trim();
    if depth == 0 {
        return false;
    }
    let inner = |name: &str| condition.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')');
    let each =
        |text: &str| arguments(text).iter().map(|part| holds_within(part, features, depth - 1)).collect::<Vec<_>>();
    if let Some(text) = inner("not") {
        return !holds_within(text.trim_end_matches(','), features, depth - 1);
    }
    if let Some(text) = inner("any") {
        return each(text).contains(&true);
    }
    if let Some(text) = inner("all") {
        return !each(text).contains(&false);
    }
    let pair = condition.split_once('=').map(|(name, value)| (name.trim(), value.trim().trim_matches('"')));
    match pair {
        Some(("feature", feature)) => features.contains(feature),
        Some(("target_os", system)) => system == "linux",
        Some(("target_arch", processor)) => processor == "x86_64",
        Some(("panic", strategy)) => strategy == "abort",
        _ => condition == "unix" || condition == "glass_vm",
    }
}

fn arguments(text: &str) -> Vec<&str> {
    let (mut rest, mut arguments) = (text, Vec::new());
    while !rest.trim().is_empty() {
        let first = first_argument(rest);
        arguments.push(first);
        let end = rest.find(first).unwrap_or(0) + first.len();
        rest = rest[end..].trim_start().strip_prefix(',').unwrap_or_default();
    }
    arguments
}

/// The features in a condition.
fn names(condition: &str) -> Vec<String> {
    let parts = condition.split("feature").skip(1);
    let name = |part: &str| {
        part.trim_start().strip_prefix('=')?.trim_start().strip_prefix('"')?.split('"').next().map(str::to_owned)
    };
    parts.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reason_of(text: &str, features: &[&str]) -> Option<Reason> {
        needs_std(text, &features.iter().copied().collect())
    }

    #[test]
    fn the_root_of_a_crate_shows_whether_it_needs_std() {
        let std = || Some(Reason::Features(vec!["std".to_owned()]));
        assert_eq!(reason_of("#![no_std]\n", &["std"]), None);
        assert_eq!(reason_of("//! #![no_std]\nuse std::fs;\n", &[]), Some(Reason::Always));
        assert_eq!(reason_of("#![cfg_attr(not(feature = \"std\"), no_std)]", &[]), None);
        assert_eq!(reason_of("#![cfg_attr(not(feature = \"std\"), no_std)]", &["std"]), std());
        assert_eq!(reason_of("#![cfg_attr(\n    not(any(feature = \"std\", test)),\n    no_std\n)]", &["std"]), std());
        assert_eq!(reason_of("#![cfg_attr(not(any(test, feature = \"std\")), no_std)]", &["alloc"]), None);
        assert_eq!(reason_of("#![no_std]\n#[cfg(feature = \"std\")]\nextern crate std;\n", &["std"]), std());
        assert_eq!(reason_of("#![no_std]\n#[cfg(feature = \"std\")]\nextern crate std;\n", &[]), None);
        assert_eq!(reason_of("#![cfg_attr(all(not(test), not(feature = \"std\")), no_std)]", &[]), None);
    }

    /// `shop` depends on `web`, which is of std, on `trace`, whose feature `web` has switched on, and on `derive`, which runs on the host
    /// with `syntax`.
    #[test]
    fn the_crate_that_needs_std_is_named_and_not_the_innocent_one() {
        let package = |name: &str| {
            let kind = if name == "derive" { "proc-macro" } else { "lib" };
            json!({"id": name, "name": name, "targets": [{"kind": [kind], "src_path": name}]})
        };
        let node = |id: &str, features: &[&str], on: &[&str]| {
            let deps: Vec<Value> = on.iter().map(|id| json!({"pkg": id, "dep_kinds": [{"kind": null}]})).collect();
            json!({"id": id, "features": features, "deps": deps})
        };
        let metadata = |has_web: bool| {
            let on: &[&str] = if has_web { &["trace", "derive", "web"] } else { &["trace", "derive"] };
            let nodes = [
                node("shop", &[], on),
                node("web", &[], &["trace"]),
                node("trace", &["std"], &["core"]),
                node("core", &["std"], &[]),
                node("derive", &[], &["syntax"]),
                node("syntax", &[], &[]),
            ];
            let packages = ["shop", "web", "trace", "core", "derive", "syntax"].map(package);
            json!({"packages": packages, "workspace_members": ["shop"], "resolve": {"nodes": nodes}})
        };
        let source = |path: &str| {
            let text = match path {
                "web" | "derive" | "syntax" => "pub fn f() {}",
                "shop" => "#![no_std]",
                _ => "#![cfg_attr(not(feature = \"std\"), no_std)]",
            };
            Some(text.to_owned())
        };
        let with_web = needy(&metadata(true), "shop", &source);
        assert_eq!(with_web, [Needy { path: vec!["shop".into(), "web".into()], reason: Reason::Always }]);
        assert!(describe(&with_web).contains("web (shop -> web): it has no `#![no_std]`"));
        let without = needy(&metadata(false), "shop", &source);
        assert_eq!(without.len(), 1);
        assert!(
            describe(&without)
                .contains("trace (shop -> trace): its feature `std` is on: give it `default-features = false`")
        );
        assert!(needy(&metadata(true), "other", &source).is_empty());
    }
}
