//! Names, files, lines and inlined calls of stripped programs of Go.

use std::path::Path;
use std::process::Command;

use crate::common::go::{BEFORE, FUNCTION_BYTES, Fault, TABLE_OFFSET, TEXT, Version, program};
use glass_profiler_core::elf::ImageError;
use glass_profiler_core::symbols::{Location, Symbols, check_names};
use glass_tests::folder::Folder;
use glass_tests::programs::skip;
use object::{Object, ObjectSection, ObjectSymbol};
use proptest::prelude::*;

/// A location in a program of `program`; later versions have the lines at which functions start.
fn location(version: Version, function: &str, file: &str, line: u32) -> Location {
    let start_line = Some(if function == "main.inner" { 80 } else { 5 }).filter(|_| version == Version::Go20);
    Location { function: function.to_owned(), file: Some(file.to_owned()), line: Some(line), start_line }
}

/// Functions of stripped programs of Go were addresses (2026-11-25).
#[test]
fn a_stripped_program_has_functions_lines_and_inlined_calls() {
    for version in [Version::Go16, Version::Go18, Version::Go20] {
        for is_anywhere in [false, true] {
            let bytes = program(version, is_anywhere, Fault::default());
            assert_eq!(check_names(&&bytes[..]), Ok(()));
            let symbols = Symbols::parse(&bytes).unwrap();
            let location = |function, file, line| location(version, function, file, line);
            let case = format!("{version:?}, anywhere: {is_anywhere}");
            assert_eq!(symbols.locate(TEXT), [location("main.main", "/src/main.go", 7)], "{case}");
            let work = TEXT + FUNCTION_BYTES;
            assert_eq!(symbols.locate(work - 1), [location("main.main", "/src/main.go", 7)], "{case}");
            assert_eq!(symbols.locate(work), [location("main.work", "/src/main.go", 20)], "{case}");
            let expected = [location("main.inner", "/src/inner.go", 90), location("main.work", "/src/main.go", 21)];
            assert_eq!(symbols.locate(work + 0x18), expected, "{case}");
            assert_eq!(symbols.locate(work + 0x20), [location("main.work", "/src/main.go", 22)], "{case}");
            for outside in [TEXT - 1, TEXT + 2 * FUNCTION_BYTES, 0, u64::MAX] {
                assert_eq!(symbols.locate(outside), [], "{case}");
            }
        }
    }
}

/// A symbol without a size reaches to the next one, and functions of Go have none.
#[test]
fn a_dynamic_symbol_is_not_the_name_of_functions_of_go() {
    let bytes = program(Version::Go20, true, Fault { symbol: true, ..Fault::default() });
    let symbols = Symbols::parse(&bytes).unwrap();
    let name = |address| symbols.locate(address).pop().unwrap().function;
    assert_eq!([BEFORE, TEXT - 1].map(name), ["c_code"; 2]);
    assert_eq!([TEXT, TEXT + FUNCTION_BYTES].map(name), ["main.main", "main.work"]);
}

/// Tables that contradict each other are of another program, or of a later version.
#[test]
fn a_table_that_contradicts_the_program_is_not_used() {
    let faults = [
        Fault { end: true, ..Fault::default() },
        Fault { names: true, ..Fault::default() },
        Fault { bytes: Some(1 << 40), ..Fault::default() },
    ];
    for fault in faults {
        let bytes = program(Version::Go20, true, fault);
        assert_eq!(Symbols::parse(&bytes).err(), Some(ImageError::Stripped), "{fault:?}");
        assert_eq!(check_names(&&bytes[..]), Err(ImageError::Stripped));
    }
    let bytes = program(Version::Go20, true, Fault { entry: true, ..Fault::default() });
    assert_eq!(Symbols::parse(&bytes).unwrap().locate(TEXT), []);
}

#[test]
fn damaged_tables_never_panic() {
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let strategy = (0..6usize, proptest::collection::vec(change, 1..6), any::<bool>());
    proptest!(ProptestConfig::with_cases(2000), |((kind, changes, is_cut) in strategy)| {
        let version = [Version::Go16, Version::Go18, Version::Go20][kind % 3];
        let mut bytes = program(version, kind > 2, Fault::default());
        for (at, byte) in &changes {
            // Its header has a magic number, and code has no meaning here.
            let at = TABLE_OFFSET + 8 + at.index(bytes.len() - TABLE_OFFSET - 8);
            bytes[at] = *byte;
        }
        if is_cut {
            bytes.truncate(TABLE_OFFSET + changes[0].0.index(bytes.len() - TABLE_OFFSET));
        }
        if let Ok(symbols) = Symbols::parse(&bytes) {
            for address in (TEXT - 4..TEXT + 2 * FUNCTION_BYTES + 4).chain([0, u64::MAX]) {
                let found = symbols.locate(address);
                assert!(found.len() <= 32 && found.iter().all(|location| !location.function.is_empty()));
            }
        }
    });
}

/// A program of Go made with these arguments; `None` if there is no Go.
fn build(folder: &Folder, name: &str, arguments: &[&str]) -> Option<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/inlined.go");
    let output = folder.file(name);
    let mut go = Command::new("go");
    go.env("CGO_ENABLED", "0").arg("build").args(arguments).arg("-o").arg(&output).arg(source);
    let Ok(result) = go.output() else {
        skip("there is no Go");
        return None;
    };
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    Some(std::fs::read(output).unwrap())
}

/// The same names, lines and inlined calls as in debug information, at each address of the program's own functions.
#[test]
fn what_the_go_compiler_on_this_machine_makes() {
    let folder = Folder::new("go").unwrap();
    for mode in ["-buildmode=exe", "-buildmode=pie"] {
        let Some(whole) = build(&folder, "whole", &[mode]) else { return };
        let stripped = build(&folder, "stripped", &[mode, "-ldflags=-s -w"]).unwrap();
        let (of_whole, of_stripped) = (Symbols::parse(&whole).unwrap(), Symbols::parse(&stripped).unwrap());
        let file = object::File::parse(&*whole).unwrap();
        let text = file.section_by_name(".text").unwrap();
        let is_ours = |name: &str| name.starts_with("main.") || name.starts_with("runtime.m");
        let ours = file.symbols().filter(|symbol| symbol.name().is_ok_and(is_ours) && symbol.size() > 0);
        let code = ours.filter(|symbol| symbol.section_index() == Some(text.index()));
        let mut inlined = 0;
        for address in code.flat_map(|symbol| symbol.address()..symbol.address() + symbol.size()) {
            let (expected, found) = (of_whole.locate(address), of_stripped.locate(address));
            assert_eq!(found.len(), expected.len(), "{mode} {address:#x}");
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.function, expected.function, "{mode} {address:#x}");
                // Functions that the compiler makes start at line 1, or nowhere.
                let is_made = expected.start_line.is_none() && !found.function.starts_with("main.");
                assert!(
                    is_made || found.start_line == expected.start_line,
                    "{mode} {address:#x}: {found:?} {expected:?}"
                );
            }
            let names: Vec<&str> = found.iter().map(|location| &*location.function).collect();
            assert!(found.iter().all(|location| location.file.is_some() && location.line.is_some()), "{found:?}");
            inlined += usize::from(names == ["main.inner", "main.(*worker).crunch"]);
        }
        assert!(inlined > 0);
    }
}
