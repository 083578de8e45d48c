//! Debug information in files beside a program: `.dwo` files, and packages of them.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::files::{FileSource, Opener};
use glass_profiler_core::guest::ProcessKey;
use glass_profiler_core::symbols::Location;
use glass_tests::elf_bomb::{with_sections, zeros};
use glass_tests::folder::Folder;
use glass_tests::programs::skip;
use object::{Object, ObjectSymbol};
use proptest::prelude::*;

use crate::common::located_in;

/// Files by their paths, and those of the folder in which they were made.
#[derive(Clone, Default)]
struct Files(HashMap<String, Vec<u8>>);

impl Opener for Files {
    fn open(&self, _inside: Option<ProcessKey>, path: &str) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(self.0.get(path)?.clone()))
    }
}

impl FileSource for Files {
    fn load(&mut self, path: &str) -> Option<Box<dyn ReadAt>> {
        self.open(None, path)
    }

    fn opener(&self) -> Option<Box<dyn Opener>> {
        Some(Box::new(self.clone()))
    }
}

impl Files {
    /// What is in a folder, at the paths where it is.
    fn of(folder: &Folder) -> Files {
        let mut files = Files::default();
        for entry in std::fs::read_dir(folder.file("")).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                files.0.insert(path.to_str().unwrap().to_owned(), std::fs::read(path).unwrap());
            }
        }
        files
    }

    /// The path of the only file whose name ends so.
    fn ending(&self, end: &str) -> String {
        let mut found = self.0.keys().filter(|path| path.ends_with(end));
        let (first, second) = (found.next().unwrap().clone(), found.next());
        assert_eq!(second, None);
        first
    }

    /// The deepest stack in the function `outer` of a program, the names outermost first, and the warnings about it.
    fn deepest(&self, program: &str) -> (Vec<String>, Vec<String>) {
        let bytes = &self.0[program];
        let file = object::File::parse(&bytes[..]).unwrap();
        let outer = file.symbols().find(|symbol| symbol.name() == Ok("outer")).unwrap();
        let mut files = self.clone();
        let range = outer.address()..outer.address() + outer.size();
        let found = range.map(|address| located_in(program, &mut files, address));
        let (locations, warnings) = found.max_by_key(|(locations, _)| locations.len()).unwrap();
        assert!(locations.iter().all(|location: &Location| location.line.is_some()), "{locations:?}");
        // Names of Rust have their crate in front.
        let name = |location: Location| location.function.rsplit("::").next().unwrap().to_owned();
        (locations.into_iter().rev().map(name).collect(), warnings)
    }
}

/// `inlined.c`, compiled and linked in a folder; `None` if there is no C compiler.
fn compile(folder: &Folder, flags: &[&str]) -> Option<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/inlined.c");
    let run = |arguments: &[&str]| {
        let mut cc = Command::new("cc");
        cc.current_dir(folder.file("")).args(arguments).status().map(|status| assert!(status.success()))
    };
    let arguments = [&["-O2", "-g"], flags, &["-c", "-o", "part.o", source.to_str().unwrap()]].concat();
    if run(&arguments).is_err() {
        skip("there is no C compiler (cc)");
        return None;
    }
    run(&["part.o", "-o", "program", "-Wl,--build-id"]).unwrap();
    Some(folder.file("program").to_str().unwrap().to_owned())
}

const WHOLE: [&str; 3] = ["outer", "middle", "inner"];

fn is_whole(found: &[String]) -> bool {
    found.len() >= 3 && found.iter().zip(WHOLE).all(|(found, expected)| found == expected)
}

/// Inlined functions were missing without a word (2026-11-25).
#[test]
fn inlined_functions_are_in_files_beside_the_program() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let folder = Folder::new("split").unwrap();
        let Some(program) = compile(&folder, &["-gsplit-dwarf", version]) else { return };
        let files = Files::of(&folder);
        let (found, warnings) = files.deepest(&program);
        assert!(is_whole(&found) && warnings.is_empty(), "{version}: {found:?} {warnings:?}");
        // In another folder, all together.
        let dwo = files.ending(".dwo");
        let mut moved = Files::default();
        moved.0.insert("/app/program".to_owned(), files.0[&program].clone());
        moved.0.insert(format!("/app/{}", dwo.rsplit('/').next().unwrap()), files.0[&dwo].clone());
        assert!(is_whole(&moved.deepest("/app/program").0), "{version}");

        let mut missing = files.clone();
        missing.0.remove(&dwo);
        let without = |why: &str| {
            let sentence = format!(
                "inlined functions of {program} are left out, and names that are not in its symbol table: {dwo}, which has them, {why}"
            );
            (vec!["outer".to_owned()], vec![sentence])
        };
        assert_eq!(missing.deepest(&program), without("is missing"));

        // The id is in the header of the unit, or in an attribute of its first entry.
        let other = Folder::new("split-other").unwrap();
        compile(&other, &["-gsplit-dwarf", version, "-O1"]).unwrap();
        let mut replaced = files.clone();
        let of_another = Files::of(&other);
        replaced.0.insert(dwo.clone(), of_another.0[&of_another.ending(".dwo")].clone());
        assert_eq!(replaced.deepest(&program), without("is of another build"));

        // What expands is left out, and everything else is there.
        let mut bomb = files.clone();
        let frame = zeros(4 << 30);
        bomb.0.insert(dwo.clone(), with_sections(&files.0[&dwo], &[(".debug_info.dwo", 4 << 30, &frame)]));
        let why = "is left out (it expands to 4097 MiB, more than the 256 MiB that may be held of all files)";
        assert_eq!(bomb.deepest(&program), without(why));
    }
}

#[test]
fn inlined_functions_are_in_a_package_of_gnu() {
    let folder = Folder::new("packed").unwrap();
    let Some(program) = compile(&folder, &["-gsplit-dwarf", "-gdwarf-4"]) else { return };
    // That of binutils 2.40 fails on DWARF 5.
    let Ok(status) = Command::new("dwp").current_dir(folder.file("")).args(["-e", "program"]).status() else {
        return skip("there is no dwp");
    };
    assert!(status.success());
    let mut files = Files::of(&folder);
    let dwo = files.ending(".dwo");
    files.0.remove(&dwo);
    let (found, warnings) = files.deepest(&program);
    assert!(is_whole(&found) && warnings.is_empty(), "{found:?} {warnings:?}");
    // Without a package it is what is missing.
    files.0.remove(&format!("{program}.dwp"));
    assert_eq!(files.deepest(&program).0, ["outer"]);
}

#[test]
fn inlined_functions_are_in_a_package_of_rust() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/inlined.rs");
    for version in ["4", "5"] {
        let folder = Folder::new("packed-rust").unwrap();
        let flags = ["--edition=2024", "-g", "-O", "-Csplit-debuginfo=packed", &format!("-Cdwarf-version={version}")];
        let mut rustc = Command::new("rustc");
        let program = folder.file("program");
        let status =
            rustc.current_dir(folder.file("")).args(flags).arg(source.as_path()).arg("-o").arg(&program).status();
        assert!(status.unwrap().success());
        let mut files = Files::of(&folder);
        let program = program.to_str().unwrap();
        let (found, warnings) = files.deepest(program);
        assert!(is_whole(&found) && warnings.is_empty(), "{version}: {found:?} {warnings:?}");
        assert!(files.0.remove(&format!("{program}.dwp")).is_some());
        let (found, warnings) = files.deepest(program);
        assert!(!is_whole(&found) && warnings.len() == 1, "{version}: {found:?} {warnings:?}");
    }
}

#[test]
fn damaged_files_beside_a_program_never_panic() {
    let folder = Folder::new("split-damaged").unwrap();
    let Some(program) = compile(&folder, &["-gsplit-dwarf", "-gdwarf-4"]) else { return };
    let _ = Command::new("dwp").current_dir(folder.file("")).args(["-e", "program"]).status();
    let files = Files::of(&folder);
    let file = object::File::parse(&files.0[&program][..]).unwrap();
    let outer = file.symbols().find(|symbol| symbol.name() == Ok("outer")).unwrap().address();
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let strategy = (any::<bool>(), proptest::collection::vec(change, 1..20));
    proptest!(ProptestConfig::with_cases(200), |((is_package, changes) in strategy)| {
        let mut files = files.clone();
        let dwo = files.ending(".dwo");
        let path = if is_package { format!("{program}.dwp") } else { dwo.clone() };
        if is_package {
            files.0.remove(&dwo);
        }
        if let Some(bytes) = files.0.get_mut(&path) {
            let length = bytes.len();
            changes.iter().for_each(|(at, byte)| bytes[at.index(length)] = *byte);
        }
        for address in outer..outer + 24 {
            let (found, warnings) = located_in(&program, &mut files, address);
            assert!(found.last().is_some_and(|location| !location.function.is_empty()) && warnings.len() <= 1);
        }
    });
}

/// Names with scopes are those of the other half of a unit.
#[test]
fn inlined_functions_of_cpp_have_their_scopes_there_too() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let folder = Folder::new("split-scopes").unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/inlined.cpp");
        let mut cc = Command::new("cc");
        cc.current_dir(folder.file("")).args(["-O2", "-g", "-gsplit-dwarf", version, "-x", "c++"]);
        let Ok(status) = cc.arg(source).args(["-o", "program"]).status() else {
            return skip("there is no C compiler (cc)");
        };
        assert!(status.success());
        let program = folder.file("program").to_str().unwrap().to_owned();
        let files = Files::of(&folder);
        let file = object::File::parse(&files.0[&program][..]).unwrap();
        let run = file.symbols().find(|symbol| symbol.name() == Ok("_ZN3app3runEl")).unwrap();
        let mut source = files.clone();
        let found = (run.address()..run.address() + run.size())
            .flat_map(|address| located_in(&program, &mut source, address).0)
            .find(|location| location.function == "app::(anonymous namespace)::Table::Row::scan");
        assert!(found.is_some(), "{version}");
    }
}
