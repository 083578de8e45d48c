//! Names of functions beside those that compilers write into debug information: for each function, its scopes there are its
//! namespaces and classes, which our parse of its demangled name must find, too.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use glass_profiler_core::names;
use glass_profiler_core::symbols::{Symbols, demangle};
use glass_tests::folder::Folder;

use super::cases::tool;
use super::described::{self, Described};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;

const CPP: &str = include_str!("programs/names.cpp");
const BOOST: &str = include_str!("programs/names_boost.cpp");
const LLVM: &str = include_str!("programs/names_llvm.cpp");
const RUST: &str = include_str!("programs/names.rs");
const GO: &str = include_str!("programs/names.go");
/// Names that may differ, in percent of each corpus.
const DIFFERENT_PERCENT: f64 = 0.5;
/// Differences that are printed of each corpus.
const SHOWN: usize = 5;

const CPP_FLAGS: [&str; 5] = ["-std=c++20", "-g", "-O0", "-w", "-xc++"];
const RUST_FLAGS: [&str; 3] = ["--edition", "2024", "-g"];
/// The default of stable Rust 1.95 is its first way to mangle, and `-C symbol-mangling-version` takes nothing but `v0` there. Its library
/// is compiled with `v0` in both cases.
const RUST_V0_FLAGS: [&str; 5] = ["--edition", "2024", "-g", "-C", "symbol-mangling-version=v0"];

/// A program with many names.
struct Corpus {
    name: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
    /// A program that prints more flags.
    config: &'static [&'static str],
    source: &'static str,
    language: Language,
}

#[derive(Clone, Copy)]
enum Language {
    Cpp,
    /// With what its linker's names start: the library may have others.
    Rust(&'static str),
    Go,
}

const CORPORA: [Corpus; 6] = [
    Corpus { name: "libstdcxx", compiler: "g++", flags: &CPP_FLAGS, config: &[], source: CPP, language: Language::Cpp },
    Corpus { name: "boost", compiler: "g++", flags: &CPP_FLAGS, config: &[], source: BOOST, language: Language::Cpp },
    Corpus {
        name: "llvm",
        compiler: "g++",
        flags: &CPP_FLAGS,
        config: &["llvm-config", "--cppflags", "--ldflags", "--libs", "core"],
        source: LLVM,
        language: Language::Cpp,
    },
    Corpus {
        name: "rust_v0",
        compiler: "rustc",
        flags: &RUST_V0_FLAGS,
        config: &[],
        source: RUST,
        language: Language::Rust("_R"),
    },
    Corpus {
        name: "rust_legacy",
        compiler: "rustc",
        flags: &RUST_FLAGS,
        config: &[],
        source: RUST,
        language: Language::Rust("_ZN"),
    },
    Corpus { name: "go", compiler: "go", flags: &["build"], config: &[], source: GO, language: Language::Go },
];

/// Compares the names of programs in several languages.
pub(super) fn run(outcome: &mut Outcome, run: &Run) -> Result<()> {
    for corpus in run.size(&CORPORA[..], &CORPORA[..1]) {
        let folder = Folder::new("perf-names")?;
        match corpus.names(&folder) {
            Ok(Some(names)) => compare(outcome, corpus.name, &names),
            Ok(None) => outcome.note(format!("names.{}: skipped, there is no {}", corpus.name, corpus.compiler)),
            // These headers are not everywhere.
            Err(error) if ["boost", "llvm"].contains(&corpus.name) => {
                let reason = error.to_string();
                outcome.note(format!("names.{}: skipped, {}", corpus.name, reason.lines().next().unwrap_or_default()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A function: its name as the profiler has it, its scopes and name by that, and by debug information.
struct Named {
    plain: String,
    ours: String,
    expected: String,
    is_same: bool,
}

impl Corpus {
    /// Compiles it, and names its functions in both ways. `None` if there is no compiler.
    fn names(&self, folder: &Folder) -> Result<Option<Vec<Named>>> {
        let ending = match self.language {
            Language::Cpp => "cpp",
            Language::Rust(_) => "rs",
            Language::Go => "go",
        };
        let (program, source) = (folder.file("program"), folder.file("names").with_extension(ending));
        fs::write(&source, self.source)?;
        let more =
            self.config.split_first().map_or(Ok(String::new()), |(program, arguments)| printed(program, arguments))?;
        let mut arguments: Vec<&dyn AsRef<OsStr>> = self.flags.iter().map(|flag| flag as &dyn AsRef<OsStr>).collect();
        arguments.extend([&"-o" as &dyn AsRef<OsStr>, &program, &source]);
        let more: Vec<&str> = more.split_whitespace().collect();
        arguments.extend(more.iter().map(|flag| flag as &dyn AsRef<OsStr>));
        if tool(self.compiler, &arguments, folder.path())?.is_none() {
            return Ok(None);
        }
        let described = described::functions(&fs::read(&program)?)?;
        let names = match self.language {
            Language::Cpp => by_linkage(&described, "_Z", cpp),
            Language::Rust(start) => by_linkage(&described, start, rust),
            Language::Go => go(&described, &program, folder)?,
        };
        Ok(Some(names))
    }
}

fn printed(program: &str, arguments: &[&str]) -> Result<String> {
    let Ok(output) = Command::new(program).args(arguments).output() else { anyhow::bail!("there is no {program}") };
    ensure!(output.status.success(), "{program} failed");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn compare(outcome: &mut Outcome, name: &str, names: &[Named]) {
    let different: Vec<&Named> = names.iter().filter(|named| !named.is_same).collect();
    let percent = 100.0 * different.len() as f64 / names.len().max(1) as f64;
    outcome.add(Figure::of(&format!("perf.names.{name}.functions"), "functions", &[names.len() as f64]));
    outcome.add(Figure::of(&format!("perf.names.{name}.different_percent"), "%", &[percent]));
    let holds = if percent <= DIFFERENT_PERCENT && !names.is_empty() { "holds" } else { "DOES NOT HOLD" };
    outcome.note(format!("names.{name}: {holds}; {} of {} differ", different.len(), names.len()));
    for Named { plain, ours, expected, .. } in different.into_iter().take(SHOWN) {
        let (crate_name, short) = (names::crate_of(plain).unwrap_or_default(), names::short(plain));
        let line = format!("  {plain}: {ours} (short {short}, of {crate_name}), by debug information {expected}");
        outcome.note(line.chars().take(400).collect::<String>());
    }
}

/// Compares the linker's names that start in a way, each once.
fn by_linkage(described: &[Described], start: &str, compare: fn(&str, &str) -> Named) -> Vec<Named> {
    let of_linkage = |described: &Described| Some((described.linkage.clone()?, described.path.clone()));
    let names: BTreeMap<String, String> = described.iter().filter_map(of_linkage).collect();
    names.iter().filter(|(linkage, _)| linkage.starts_with(start)).map(|(name, path)| compare(name, path)).collect()
}

/// Of C++ the scopes and the name are the same, the shortened name is the end of both, and the group is their start.
fn cpp(linkage: &str, expected: &str) -> Named {
    let plain = demangle(linkage);
    let ours = path_of(&plain);
    let is_same = ours == expected && has_ends(&plain, expected) || is_inherited(linkage, &ours, expected);
    Named { plain, ours, expected: expected.to_owned(), is_same }
}

/// A constructor that a class inherits has the name of the base class by the linker, which has that class behind `CI` (Itanium C++ ABI,
/// 5.1.4.3), and the name of the class by debug information. The scopes are the same.
fn is_inherited(linkage: &str, ours: &str, expected: &str) -> bool {
    let (Some((scopes, base)), Some((expected, name))) = (ours.rsplit_once("::"), expected.rsplit_once("::")) else {
        return false;
    };
    let is_constructor = expected == name || expected.ends_with(&format!("::{name}"));
    let has_base = ["CI1", "CI2"].iter().any(|mark| linkage.contains(mark));
    scopes == expected && is_constructor && has_base && linkage.contains(&format!("{}{base}", base.len()))
}

/// Of Rust debug information has a method in a block (`{impl}`) without the type's name, and a method of a trait as the trait's: what
/// follows is comparable.
fn rust(linkage: &str, expected: &str) -> Named {
    let plain = demangle(linkage);
    // What the compiler calls by a name of its own is in no crate.
    let inner = plain.strip_prefix("__rustc::");
    let path = path_of(inner.unwrap_or(&plain));
    // A shim that calls a function from a table has the function's name in debug information.
    let shims = ["::{shim:", "{{vtable.shim}}", "{{reify.shim}}"];
    let ours = shims.iter().fold(&*path, |path, shim| path.split(shim).next().unwrap_or_default()).to_owned();
    let last = |path: &str| path.rsplit("::").next().unwrap_or_default().to_owned();
    let is_same = match expected.rsplit_once("{impl}") {
        Some((_, method)) => ours.ends_with(method),
        None if inner.is_some() || plain.starts_with('<') => last(&ours) == last(expected),
        None => ours == expected && (ours != path || has_ends(&plain, expected)),
    };
    Named { plain, ours, expected: expected.to_owned(), is_same }
}

/// Whether what reports show of a name is its end and its start: the shortened name, and the group.
fn has_ends(plain: &str, expected: &str) -> bool {
    let short = parts(&names::segments(&names::short(plain)));
    let is_end = expected == short || short.contains("::") && expected.ends_with(&format!("::{short}"));
    let group = expected.split_once("::").map(|(first, _)| first).filter(|first| !first.starts_with('('));
    is_end && (names::crate_of(plain) == group)
}

/// The functions of Go: the names that a program without symbols and debug information still has, by our reader of its own tables, beside
/// those in debug information, with the receiver by the first parameter. The unit is not compared with the package: an instance of a
/// generic function is in the unit that needs it, and `go:linkname` gives a function a name in another package.
fn go(described: &[Described], program: &Path, folder: &Folder) -> Result<Vec<Named>> {
    let stripped = folder.file("stripped");
    let is_stripped = tool("objcopy", &[&"--strip-all", &program, &stripped], folder.path())?;
    ensure!(is_stripped.is_some(), "there is no objcopy");
    let symbols = Symbols::parse(&fs::read(stripped)?)?;
    let named = |function: &Described| {
        let plain = symbols.locate(function.address).pop().unwrap_or_default().function;
        let ours = without_arguments(&plain);
        let expected = go_path(function);
        let is_same = ours == expected;
        Named { plain, ours, expected, is_same }
    };
    Ok(described.iter().map(named).collect())
}

/// `package.(*Type).method` of a function. The parameters of a closure in a method (`method.func1`) are its own.
fn go_path(function: &Described) -> String {
    let name = without_arguments(&function.path);
    let kind = function.parameter.as_deref().and_then(|kind| kind.strip_suffix('*')).map(without_arguments);
    let split = name.split_once(".(*").and_then(|(package, own)| Some((package, own.split_once(").")?.1)));
    match (split, kind) {
        (Some((_, method)), Some(kind)) if !method.contains('.') && kind.contains('.') => {
            let (package, receiver) = kind.rsplit_once('.').unwrap_or_default();
            format!("{package}.(*{receiver}).{method}")
        }
        _ => name,
    }
}

/// Without what is in square brackets: arguments of generic functions are `[...]` in the program's own tables.
fn without_arguments(name: &str) -> String {
    let mut depth = 0_usize;
    let mut bare = String::new();
    for c in name.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ if depth == 0 => bare.push(c),
            _ => {}
        }
    }
    bare
}

/// A demangled name without parameters and arguments of templates: scopes and name.
fn path_of(plain: &str) -> String {
    let bare = names::without_parameters(&names::without_generics(&names::without_trait(plain)));
    parts(&names::segments(&bare))
}

fn parts(segments: &[&str]) -> String {
    // GCC marks what returns a text of the new kind.
    segments.iter().map(|segment| part(&segment.replace("[abi:cxx11]", ""))).collect::<Vec<_>>().join("::")
}

/// Compilers number lambdas and closures each in their own way.
pub(super) fn part(part: &str) -> String {
    match part {
        part if part.starts_with("{lambda") || part.starts_with("<lambda") => "{lambda}",
        part if part.starts_with("{closure") || part.starts_with("{{closure") => "{closure}",
        // The body of an asynchronous function is a closure by the linker.
        part if part.starts_with("{async_") => "{closure}",
        part if part.starts_with("{constant") || part.starts_with("{{constant") || part.starts_with("{K#") => {
            "{constant}"
        }
        part if part.starts_with("{unnamed") => "{unnamed}",
        part if part.starts_with("{impl") => "{impl}",
        part => part,
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each exception holds for what it is meant for, and not for a wrong name.
    #[test]
    fn wrong_names_differ() {
        let inherited = "_ZN3app7DerivedCI24BaseEi";
        for (linkage, expected, is_same) in [
            ("_ZN3app5Table4loadEi", "app::Table::load", true),
            ("_ZN3app5Table4loadEi", "Table::load", false),
            ("_ZN3app5Table4loadEi", "app::Table::store", false),
            ("_ZN3app5TablecvPKcEv", "app::Table::operator char const*", true),
            ("_ZN3app5TablecvPKcEv", "app::Table::operator char*", false),
            (inherited, "app::Derived::Derived", true),
            (inherited, "app::Other::Other", false),
            (inherited, "app::Derived::load", false),
        ] {
            assert_eq!(
                cpp(linkage, expected).is_same,
                is_same,
                "{linkage}: {expected}, {}",
                cpp(linkage, expected).ours
            );
        }
        for (linkage, expected, is_same) in [
            ("_ZN3app5table4load17h0123456789abcdefE", "app::table::load", true),
            ("_ZN3app5table4load17h0123456789abcdefE", "app::load", false),
            ("_RNvCs1234_7___rustc10rust_panic", "std::panicking::rust_panic", true),
            ("_RNvCs1234_7___rustc10rust_panic", "std::panicking::other", false),
        ] {
            assert_eq!(
                rust(linkage, expected).is_same,
                is_same,
                "{linkage}: {expected}, {}",
                rust(linkage, expected).ours
            );
        }
    }

    #[test]
    fn receivers_of_go_are_those_of_debug_information() {
        let path = |path: &str, parameter: &str| {
            let parameter = Some(parameter.to_owned());
            go_path(&Described { address: 0, linkage: None, path: path.to_owned(), parameter })
        };
        assert_eq!(path("a/b.(*list[go.shape.int]).push", "a/b.list[go.shape.int]*"), "a/b.(*list).push");
        assert_eq!(path("a/b.(*list).push", "a/b.tree*"), "a/b.(*tree).push");
        assert_eq!(path("a/b.(*list).push.func1", "a/b.tree*"), "a/b.(*list).push.func1");
    }
}
