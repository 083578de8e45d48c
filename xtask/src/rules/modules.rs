//! Directions between the modules of one crate: floors of which each may use those below, and folders whose modules
//! use each other in no circle.

use super::Violation;
use super::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// A module of a crate, and the modules beside it that it may use.
struct Floor {
    name: &'static str,
    may_use: &'static [&'static str],
}

/// The floors of `profiler/guests`: what is not here uses everything, as `lib.rs` does.
const FLOORS: [(&str, &[Floor]); 1] = [(
    "profiler/guests/src",
    &[
        Floor { name: "sys", may_use: &[] },
        Floor { name: "arch", may_use: &[] },
        Floor { name: "bytes", may_use: &[] },
        Floor { name: "error", may_use: &[] },
        Floor { name: "stream", may_use: &["sys", "error"] },
        Floor { name: "proc", may_use: &["sys", "error"] },
        Floor { name: "files", may_use: &["sys", "error", "bytes", "proc"] },
        Floor { name: "find", may_use: &["sys", "error", "stream", "proc"] },
        Floor { name: "memory", may_use: &["sys", "error", "proc"] },
        Floor { name: "systems", may_use: &["sys", "error", "arch", "files", "find", "memory"] },
        Floor {
            name: "backends",
            may_use: &["sys", "error", "arch", "bytes", "stream", "proc", "files", "find", "memory", "systems"],
        },
    ],
)];

/// Folders whose modules use each other in no circle; where modules are named, these ones alone.
const WITHOUT_CIRCLES: [(&str, &[&str]); 9] = [
    ("lib/mpi-abi/src", &[]),
    ("lib/mpi/src", &[]),
    ("platform/linux/src", &[]),
    ("platform/vm/src", &["clock", "cores", "random", "wall"]),
    ("profiler/cli/src/run", &[]),
    ("profiler/core/src", &[]),
    ("profiler/guests/src", &[]),
    ("profiler/guests/src/files", &[]),
    ("profiler/guests/src/systems", &[]),
];

/// The code of a file: without comments, texts and the module of its tests.
fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.split(" //").next().unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// The paths from the crate, from this module or from the one above, a list of names each; a group is one path for each part.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (start, first) in ["crate", "super", "self"].iter().flat_map(|first| {
        code.match_indices(&format!("{first}::")).map(|(at, _)| at).map(|at| (at, *first)).collect::<Vec<_>>()
    }) {
        let is_longer = code[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$');
        if !is_longer {
            follow(&code[start + first.len() + 2..], vec![first.to_owned()], &mut found);
        }
    }
    found
}

/// Reads on from behind `::`; returns how much belonged to the path.
fn follow(rest: &str, mut path: Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    let mut at = 0;
    loop {
        let rest_here = &rest[at..];
        if rest_here.starts_with('{') {
            at += 1;
            while at < rest.len() && !rest[at..].starts_with('}') {
                let skipped = rest[at..]
                    .find(|c: char| c.is_alphanumeric() || matches!(c, '_' | '}' | '*'))
                    .unwrap_or(rest.len() - at);
                at += skipped;
                if at >= rest.len() || rest[at..].starts_with('}') {
                    break;
                }
                at += follow(&rest[at..], path.clone(), found).max(1);
            }
            return (at + 1).min(rest.len());
        }
        let length = rest_here.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest_here.len());
        path.push(rest_here[..length].to_owned());
        at += length;
        if length == 0 || !rest[at..].starts_with("::") {
            found.push(path);
            return at;
        }
        at += 2;
    }
}

/// The module of a file in `folder`, a list of names: `a/mod.rs` and `a.rs` are `[a]`.
fn module(folder: &str, path: &str) -> Option<Vec<String>> {
    let inside = path.strip_prefix(folder)?.strip_prefix('/')?.strip_suffix(".rs")?;
    let mut names: Vec<String> = inside.split('/').map(str::to_owned).collect();
    if names.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        names.pop();
    }
    Some(names)
}

/// A path as names from the root of the crate on, for code of `module`.
fn absolute(module: &[String], path: &[String]) -> Vec<String> {
    let mut names: Vec<String> = match path[0].as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        _ => module[..module.len().saturating_sub(1)].to_vec(),
    };
    for name in &path[1..] {
        match name.as_str() {
            "super" => drop(names.pop()),
            "self" => {}
            name => names.push(name.to_owned()),
        }
    }
    names
}

/// Which modules directly in `folder` use which others of them, with a file that does.
fn uses(folder: &str, tree: &Tree) -> BTreeMap<String, BTreeMap<String, String>> {
    let source = folder.split_inclusive('/').collect::<Vec<_>>();
    let root_parts =
        source.iter().position(|part| part.trim_end_matches('/') == "src").map_or(source.len(), |at| at + 1);
    let root = source[..root_parts].concat();
    let root = root.trim_end_matches('/');
    let files: Vec<(Vec<String>, &str, &str)> =
        tree.texts("rs").filter_map(|(path, text)| Some((module(root, path)?, path, text))).collect();
    let place = module(root, &format!("{folder}/mod.rs")).unwrap_or_default();
    let units: BTreeSet<&String> = files
        .iter()
        .filter(|(names, ..)| names.starts_with(&place))
        .filter_map(|(names, ..)| names.get(place.len()))
        .collect();
    let is_test = |names: &[String]| names.iter().any(|name| name == "tests");
    let mut uses: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (names, path, text) in files.iter().filter(|(names, ..)| names.starts_with(&place) && !is_test(names)) {
        let Some(unit) = names.get(place.len()) else { continue };
        for used in paths(&code(text)).iter().map(|used| absolute(names, used)).filter(|used| used.starts_with(&place))
        {
            if let Some(other) = used.get(place.len()).filter(|other| *other != unit && units.contains(other)) {
                uses.entry(unit.clone()).or_default().entry(other.clone()).or_insert_with(|| (*path).to_owned());
            }
        }
    }
    uses
}

/// A circle of modules, the first of which is its end too; `None` if there is none.
fn circle(uses: &BTreeMap<String, BTreeMap<String, String>>) -> Option<Vec<String>> {
    fn search<'a>(
        module: &'a str,
        uses: &'a BTreeMap<String, BTreeMap<String, String>>,
        path: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> Option<Vec<String>> {
        if let Some(at) = path.iter().position(|known| *known == module) {
            return Some(path[at..].iter().chain([&module]).map(|name| (*name).to_owned()).collect());
        }
        if !done.insert(module) {
            return None;
        }
        path.push(module);
        let found = uses.get(module).into_iter().flatten().find_map(|(used, _)| search(used, uses, path, done));
        path.pop();
        found
    }
    let mut done = BTreeSet::new();
    uses.keys().find_map(|module| search(module, uses, &mut Vec::new(), &mut done))
}

/// Every module that uses one that it may not, and every circle.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (folder, floors) in FLOORS {
        for (name, used) in uses(folder, tree) {
            let Some(floor) = floors.iter().find(|floor| floor.name == name) else { continue };
            for (other, file) in used.iter().filter(|(other, _)| !floor.may_use.contains(&other.as_str())) {
                let may =
                    if floor.may_use.is_empty() { "nothing beside it".to_owned() } else { floor.may_use.join(", ") };
                violations.push(Violation::new(file, format!("uses {other}, but {name} of {folder} may use {may}")));
            }
        }
    }
    for (folder, only) in WITHOUT_CIRCLES {
        let mut uses = uses(folder, tree);
        uses.retain(|module, _| only.is_empty() || only.contains(&module.as_str()));
        if let Some(circle) = circle(&uses) {
            violations.push(Violation::new(
                folder,
                format!("has modules that use each other in a circle: {}", circle.join(", ")),
            ));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_groups_and_of_modules_above() {
        let code = code(
            "use crate::{a::{B, c::D}, e};\n// use crate::no;\nfn f() { super::g::h(); crate::error!(x) }\n#[cfg(test)]\nmod tests { use crate::t; }",
        );
        let found: BTreeSet<String> = paths(&code).iter().map(|path| path.join("::")).collect();
        let expected = ["crate::a::B", "crate::a::c::D", "crate::e", "crate::error", "super::g::h"];
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        let module = |names: &str| names.split("::").map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(absolute(&module("x::y"), &module("super::super::z")), ["z"]);
        assert_eq!(absolute(&module("x::y"), &module("self::z")), ["x", "y", "z"]);
    }

    #[test]
    fn a_floor_that_uses_one_above_it_is_refused() {
        let file = |text| {
            Tree::of(&[
                ("profiler/guests/src/memory/ram.rs", text),
                ("profiler/guests/src/backends/kvm.rs", ""),
                ("profiler/guests/src/proc.rs", ""),
            ])
        };
        assert_eq!(check(&file("use crate::proc::Line;")), []);
        let found = check(&file("use crate::{proc::Line, backends::kvm};"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().contains("ram.rs: uses backends, but memory"), "{}", found[0]);
    }

    #[test]
    fn a_circle_is_found_whatever_its_length() {
        let file = |last| {
            Tree::of(&[
                ("profiler/guests/src/systems/a.rs", "use super::b::B;"),
                ("profiler/guests/src/systems/b/mod.rs", "use crate::systems::c;"),
                ("profiler/guests/src/systems/c.rs", last),
            ])
        };
        assert_eq!(check(&file("")), []);
        let found = check(&file("fn f() -> super::a::A {}"));
        assert!(found[0].to_string().contains("circle: a, b, c, a"), "{found:?}");
    }
}
