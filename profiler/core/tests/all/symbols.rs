//! Names, inlined calls and lines of real ELF files.

use crate::common::{compile, located};
use glass_profiler_core::budget::Account;
use glass_profiler_core::elf::ImageError;
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::files::FileSource;
use glass_profiler_core::image::Image;
use glass_profiler_core::symbols::{Location, Symbols};
use glass_tests::folder::Folder;
use glass_tests::programs::skip;
use object::{Object, ObjectSection, ObjectSymbol};
use proptest::prelude::*;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn symbol(bytes: &[u8], name: &str) -> std::ops::Range<u64> {
    let file = object::File::parse(bytes).unwrap();
    let symbol = file.symbol_by_name(name).unwrap();
    symbol.address()..symbol.address() + symbol.size()
}

#[test]
fn inlined_calls_with_their_lines() {
    let folder = Folder::new("inlined").unwrap();
    let Some(program) = compile(&folder, "inlined.c", &["-O2", "-g", "-Wl,--build-id"]) else { return };
    let bytes = std::fs::read(program).unwrap();
    let symbols = Symbols::parse(&bytes).unwrap();
    assert!(symbols.has_lines && symbols.build_id.as_ref().is_some_and(|id| id.len() == 20));
    let deepest = symbol(&bytes, "outer").map(|address| symbols.locate(address)).max_by_key(Vec::len).unwrap();
    let lines = |location: &Location| (location.function.clone(), location.start_line.unwrap(), location.line.unwrap());
    let named: Vec<_> = deepest.iter().rev().take(3).map(lines).collect();
    assert_eq!(named, [("outer".to_owned(), 11, 12), ("middle".to_owned(), 8, 9), ("inner".to_owned(), 4, 5)]);
    assert!(deepest[0].file.as_ref().unwrap().ends_with("inlined.c"));
    assert_eq!(symbols.locate(0), []);
    assert_eq!(symbols.locate(u64::MAX), []);
}

/// A program whose names are those of `names.c`, linked with `flags`.
fn names(folder: &Folder, flags: &[&str]) -> Option<(Symbols, Vec<u8>)> {
    let program = compile(folder, "names.c", &[&["-O1", "-fno-builtin"], flags].concat())?;
    let bytes = std::fs::read(program).unwrap();
    Some((Symbols::parse(&bytes).unwrap(), bytes))
}

fn name(symbols: &Symbols, address: u64) -> String {
    symbols.locate(address).pop().map_or_else(String::new, |location| location.function)
}

/// A local, internal name was shown, since it was the first of the alphabet (2026-11-25).
#[test]
fn of_several_names_the_public_one_is_shown() {
    let folder = Folder::new("aliases").unwrap();
    let Some((symbols, bytes)) = names(&folder, &[]) else { return };
    assert_eq!(name(&symbols, symbol(&bytes, "__impl_v2").start), "work");
}

/// The code behind an entry with a size of its own had no name (2026-11-25).
#[test]
fn behind_an_entry_within_a_function_the_code_is_the_function_s() {
    let folder = Folder::new("nested").unwrap();
    let Some((symbols, bytes)) = names(&folder, &[]) else { return };
    let (outer, fast) = (symbol(&bytes, "outer"), symbol(&bytes, "outer_fast"));
    assert_eq!(name(&symbols, outer.start), "outer");
    assert_eq!(name(&symbols, fast.start), "outer_fast");
    assert!(fast.end < outer.end);
    assert_eq!(name(&symbols, fast.end), "outer_rest", "a label of its own");
    let without = Command::new("strip").args(["-N", "outer_rest"]).arg(folder.file("program")).status();
    if !without.is_ok_and(|status| status.success()) {
        return skip("there is no strip");
    }
    let symbols = Symbols::parse(&std::fs::read(folder.file("program")).unwrap()).unwrap();
    assert_eq!(name(&symbols, fast.end), "outer");
}

/// The stubs by which a program calls libraries were addresses (2026-11-25).
#[test]
fn stubs_of_calls_to_libraries_have_names() {
    let folder = Folder::new("stubs").unwrap();
    for flags in
        [&["-fcf-protection"][..], &["-Wl,-z,lazy"], &["-Wl,-z,now"], &["-Wl,-z,now", "-Wl,-z,ibtplt"], &["-no-pie"]]
    {
        let Some((symbols, bytes)) = names(&folder, flags) else { return };
        let file = object::File::parse(&*bytes).unwrap();
        let stubs: Vec<String> = [".plt.sec", ".plt", ".plt.got"]
            .into_iter()
            .filter_map(|section| file.section_by_name(section))
            .flat_map(|section| section.address()..section.address() + section.size())
            .map(|address| name(&symbols, address))
            .collect();
        for stub in ["labs@plt", "strtol@plt"] {
            assert!(stubs.iter().any(|found| found == stub), "{flags:?}: {stubs:?}");
        }
    }
}

/// With debug information both lambdas were `operator()`, and namespaces were lost; without it they were not (2026-11-25).
#[test]
fn debug_information_makes_no_name_of_cpp_poorer() {
    let folder = Folder::new("scopes").unwrap();
    let named = |flags: &[&str]| -> Option<Vec<(String, String)>> {
        let program = compile(&folder, "scopes.cpp", &[&["-O1", "-x", "c++"], flags].concat())?;
        let bytes = std::fs::read(program).unwrap();
        let symbols = Symbols::parse(&bytes).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let of_ours = file.symbols().filter(|symbol| symbol.name().is_ok_and(|name| name.contains("outer")));
        let mut found: Vec<_> =
            of_ours.map(|symbol| (symbol.name().unwrap().to_owned(), name(&symbols, symbol.address()))).collect();
        found.sort();
        Some(found)
    };
    let (Some(without), Some(with)) = (named(&[]), named(&["-g"])) else { return };
    assert_eq!(with, without);
    assert!(with.iter().any(|(_, name)| name.contains("outer::all(long)::{lambda(long)#2}::operator()")), "{with:#?}");
}

/// Of inlined functions debug information has the last part of the name alone: `probe`, `scan` and `operator()` (2026-11-25).
#[test]
fn inlined_functions_of_cpp_have_their_scopes() {
    let folder = Folder::new("scopes-inlined").unwrap();
    for flags in [&["-gdwarf-5"][..], &["-gdwarf-4"], &["-flto"], &["-fdebug-types-section"]] {
        let Some(program) = compile(&folder, "inlined.cpp", &[&["-O2", "-g", "-x", "c++"], flags].concat()) else {
            return;
        };
        let bytes = std::fs::read(program).unwrap();
        let symbols = Symbols::parse(&bytes).unwrap();
        // Where all files are compiled at once, `run` is in `outer` alone.
        let file = object::File::parse(&*bytes).unwrap();
        let code = ["outer", "_ZN3app3runEl"].iter().filter(|name| file.symbol_by_name(name).is_some());
        let code = code.flat_map(|name| symbol(&bytes, name));
        let mut names: Vec<String> =
            code.flat_map(|address| symbols.locate(address)).map(|location| location.function).collect();
        names.sort();
        names.dedup();
        let lambda = names.iter().find(|name| name.ends_with("::operator()"));
        assert!(
            lambda.is_some_and(|name| name.starts_with("app::run(long)::{lambda at line 24}")),
            "{flags:?}: {names:#?}"
        );
        for expected in ["Table::probe", "Table::Row::scan", "helper"] {
            let expected = format!("app::(anonymous namespace)::{expected}");
            assert!(names.contains(&expected), "{flags:?}: {expected} in {names:#?}");
        }
        assert!(names.iter().any(|name| name == "outer"), "{names:#?}");
    }
}

/// GCC writes `sr` and a type into the name of `run`, which `cpp_demangle` cannot read, and so into that of the lambda in it: both had the
/// linker's name in reports (2026-11-27).
#[test]
fn unreadable_names_are_made_of_scopes() {
    let folder = Folder::new("scopes-unreadable").unwrap();
    let source = folder.file("unreadable.cpp");
    std::fs::write(&source, UNREADABLE).unwrap();
    let Some(program) = compile(&folder, source.to_str().unwrap(), &["-O1", "-g", "-x", "c++"]) else { return };
    let bytes = std::fs::read(program).unwrap();
    let symbols = Symbols::parse(&bytes).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let of_ours = file.symbols().filter(|symbol| symbol.name().is_ok_and(|name| name.contains("IXsrSt")));
    let mut found: Vec<_> = of_ours.map(|symbol| name(&symbols, symbol.address())).collect();
    found.sort();
    assert_eq!(found, ["app::run<long>", "app::run<long>::{lambda at line 6}::operator()"]);
}

const UNREADABLE: &str = "namespace std {
template <class T> struct is_it { static constexpr bool value = true; };
template <bool, class T> struct enable_if { using type = T; };
}
namespace app { template <class T> __attribute__((noinline)) typename std::enable_if<std::is_it<T>::value, long>::type run(T n) {
    auto twice = [](long x) __attribute__((noinline)) { volatile long y = x; return 2 * y; };
    return twice(n) + twice(n + 1);
} }
int main(int count, char **) { return app::run(long(count)) == 1; }
";

/// Only a program that was made for it has namespaces that deep.
#[test]
fn scopes_are_as_deep_as_programs_have_them() {
    let folder = Folder::new("scopes-deep").unwrap();
    for (depth, is_whole) in [(15, true), (16, false)] {
        let nested: String = (0..depth).map(|index| format!("namespace n{index} {{ ")).collect();
        let scopes: String = (0..depth).map(|index| format!("n{index}::")).collect();
        let function = |name| {
            format!(
                "static inline __attribute__((always_inline)) long {name}(long n) {{ volatile long x = n; return x; }}"
            )
        };
        let outer =
            format!("extern \"C\" long outer(long n) {{ return {scopes}deep(n) + n0::shallow(n); }} int main() {{}}");
        let (deep, shallow) = (function("deep"), function("shallow"));
        let source = folder.file("deep.cpp");
        let text = format!("{nested}{deep}{}\nnamespace n0 {{ {shallow} }}\n{outer}\n", "}".repeat(depth));
        std::fs::write(&source, text).unwrap();
        let Some(program) = compile(&folder, source.to_str().unwrap(), &["-O2", "-g", "-x", "c++"]) else { return };
        let bytes = std::fs::read(program).unwrap();
        let symbols = Symbols::parse(&bytes).unwrap();
        let mut found: Vec<String> =
            symbol(&bytes, "outer").flat_map(|address| symbols.locate(address)).map(|found| found.function).collect();
        found.sort();
        found.dedup();
        let expected = if is_whole { format!("{scopes}deep") } else { "deep".to_owned() };
        let mut expected = [expected, "n0::shallow".to_owned(), "outer".to_owned()];
        expected.sort();
        assert_eq!(found, expected);
    }
}

/// Programs with a build id of zeros had the names of any other program with one (2026-11-25).
#[test]
fn a_build_id_of_zeros_identifies_nothing() {
    let folder = Folder::new("zeros").unwrap();
    let Some((symbols, bytes)) = names(&folder, &["-Wl,--build-id=0x0000000000000000000000000000000000000000"]) else {
        return;
    };
    assert_eq!(symbols.build_id, None);
    assert_eq!(Image::parse(&bytes, &[]).unwrap().build_id, None);
    let other = names(&folder, &["-Wl,--build-id=0x0000000000000000000000000000000000000001"]).unwrap();
    assert!(other.0.build_id.is_some());
}

/// A program, and how many bytes of it were read.
struct Counted(Vec<u8>, AtomicU64);

impl ReadAt for Counted {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        self.1.fetch_add(into.len() as u64, Relaxed);
        self.0.read_at(offset, into)
    }
}

/// Files were read whole, so a program with debug information of a gigabyte took as much memory (2026-11-22).
#[test]
fn only_what_is_needed_of_a_program_is_read() {
    let folder = Folder::new("by-section").unwrap();
    let Some(program) = compile(&folder, "inlined.c", &["-O2", "-g", "-Wl,--build-id"]) else { return };
    let bytes = std::fs::read(&program).unwrap();
    // Locations of variables, in a program with many: they are not needed.
    let variables = folder.file("variables");
    std::fs::write(&variables, vec![0; 32 << 20]).unwrap();
    let section = format!(".debug_loc={}", variables.display());
    let objcopy = Command::new("objcopy").args(["--add-section", &section]).arg(&program).status();
    assert!(objcopy.unwrap().success());
    let large = || Counted(std::fs::read(&program).unwrap(), Default::default());
    assert!(large().bytes() > 32 << 20);

    let file = large();
    let image = Image::read(&file, &["outer"]).unwrap();
    assert!(file.1.load(Relaxed) < 1 << 20, "{} bytes for the unwind tables", file.1.load(Relaxed));
    let whole = Image::parse(&bytes, &["outer"]).unwrap();
    assert_eq!((&image.build_id, image.symbol("outer")), (&whole.build_id, whole.symbol("outer")));
    assert_eq!(image.code_segments().collect::<Vec<_>>(), whole.code_segments().collect::<Vec<_>>());
    let address = image.symbol("outer").unwrap();
    assert!(image.is_covered(address) && image.function_start(address) == Some(address));

    // A program that runs is not kept in memory, and its code is there all the same.
    let mapped = Image::of_file(Box::new(large()), true, Account::alone()).unwrap();
    let shut = Image::of_file(Box::new(large()), false, Account::alone()).unwrap();
    let code = |image: &Image, address| {
        let mut code = [0; 16];
        let count = image.code(address, &mut code);
        code[..count].to_vec()
    };
    for (start, bytes) in whole.code_segments() {
        for address in [start, start + 5, start + bytes.len() as u64 - 3, start + bytes.len() as u64, start - 1] {
            assert_eq!(code(&mapped, address), code(&whole, address), "{address:#x}");
            assert_eq!(mapped.has_code(address), whole.has_code(address), "{address:#x}");
            assert!(code(&shut, address).is_empty());
        }
        assert_eq!(code(&mapped, start + bytes.len() as u64 - 3).len(), 3);
    }
    assert_eq!(mapped.code_segments().count(), 0);

    let file = large();
    let symbols = Symbols::read(&file).unwrap();
    assert!(file.1.load(Relaxed) < 1 << 20, "{} bytes for the names", file.1.load(Relaxed));
    assert!(symbols.bytes() > 0 && symbols.bytes() < 1 << 20, "{}", symbols.bytes());
    assert_eq!(symbols.locate(address), Symbols::parse(&bytes).unwrap().locate(address));
}

#[test]
fn a_build_id_without_a_byte_is_none() {
    let folder = Folder::new("empty-build-id").unwrap();
    let Some(program) = compile(&folder, "inlined.c", &["-O2", "-Wl,--build-id"]) else { return };
    let mut bytes = std::fs::read(program).unwrap();
    assert_eq!(Image::parse(&bytes, &[]).unwrap().build_id.map(|id| id.len()), Some(20));
    // The note: a name of 4 bytes, a build id of 20.
    let note = bytes
        .windows(16)
        .position(|window| window.starts_with(&[4, 0, 0, 0, 20, 0, 0, 0]) && window.ends_with(b"GNU\0"));
    bytes[note.unwrap() + 4] = 0;
    let image = Image::parse(&bytes, &[]).unwrap();
    assert_eq!((image.build_id, image.build_id_address), (None, None));
}

/// Assembly has no debug information, so its names are in the symbol table alone, which is in the debug file (2026-11-22).
#[test]
fn a_file_of_debug_information_has_the_names_of_assembly_too() {
    let folder = Folder::new("only-debug").unwrap();
    let Some(program) = compile(&folder, "inlined.c", &["-O2", "-g"]) else { return };
    let bytes = std::fs::read(&program).unwrap();
    let debug = folder.file("program.debug");
    let objcopy = Command::new("objcopy").arg("--only-keep-debug").args([&program, &debug]).status();
    assert!(objcopy.unwrap().success());
    let symbols = Symbols::parse(&std::fs::read(debug).unwrap()).unwrap();
    let start = symbol(&bytes, "_start").start;
    assert_eq!(symbols.locate(start)[0].function, "_start");
}

/// `.gnu_debugdata` ("MiniDebugInfo"): functions of a stripped program were addresses.
#[test]
fn a_compressed_table_of_symbols_in_a_stripped_program() {
    let folder = Folder::new("embedded").unwrap();
    let Some(program) = compile(&folder, "inlined.c", &["-O2", "-Wl,--build-id"]) else { return };
    let bytes = std::fs::read(&program).unwrap();
    let table = folder.file("table");
    let run = |program: &str, arguments: &[&std::path::Path]| {
        Command::new(program).args(arguments).status().is_ok_and(|status| status.success())
    };
    let path = std::path::Path::new;
    assert!(run("objcopy", &[path("--only-keep-debug"), &program, &table]));
    if !run("xz", &[path("--keep"), &table]) {
        return skip("there is no xz");
    }
    let section = format!(".gnu_debugdata={}.xz", table.display());
    assert!(run("objcopy", &[path("--strip-all"), path("--add-section"), path(&section), &program]));
    let stripped = std::fs::read(&program).unwrap();
    assert!(matches!(Symbols::parse(&stripped), Err(ImageError::Stripped)));
    let outer = symbol(&bytes, "outer").start;
    let name = |stripped: Vec<u8>| {
        located(&mut Files(vec![("/app/program", stripped)]), outer).pop().map(|location| location.function)
    };
    assert_eq!(name(stripped.clone()).as_deref(), Some("outer"));
    // A damaged one is none.
    let at = stripped.windows(6).position(|window| window == b"\xfd7zXZ\0").unwrap();
    for offset in [6, 30, 60] {
        let mut damaged = stripped.clone();
        damaged[at + offset] ^= 0xff;
        assert_eq!(name(damaged), None, "{offset}");
    }
}

/// What `dwz` has moved to a file that several programs share was missing, and inlined functions had addresses as names
/// (2026-11-22).
#[test]
fn a_part_of_the_debug_information_that_programs_share() {
    let (folder, other) = (Folder::new("shared").unwrap(), Folder::new("shared-other").unwrap());
    let flags = ["-O2", "-g", "-Wl,--build-id"];
    let Some(program) = compile(&folder, "inlined.c", &flags) else { return };
    let second = compile(&other, "inlined.c", &flags).unwrap();
    let whole = std::fs::read(&program).unwrap();
    let shared = folder.file("shared.debug");
    match Command::new("dwz")
        .arg("-m")
        .arg(&shared)
        .args(["-M", "parts/shared.debug"])
        .args([&program, &second])
        .status()
    {
        Ok(status) => assert!(status.success()),
        Err(_) => return skip("there is no dwz"),
    }
    let (rest, shared) = (std::fs::read(&program).unwrap(), std::fs::read(shared).unwrap());
    let range = symbol(&whole, "outer");
    let deepest = |files: Vec<(&'static str, Vec<u8>)>| {
        let mut files = Files(files);
        range.clone().map(|address| located(&mut files, address)).max_by_key(Vec::len).unwrap()
    };
    let expected = deepest(vec![("/app/program", whole.clone())]);
    assert!(expected.len() > 2, "{expected:?}");
    let (program, part) = (("/app/program", rest), "/app/parts/shared.debug");
    assert_eq!(deepest(vec![program.clone(), (part, shared.clone())]), expected);
    // By its build id.
    let id = Image::parse(&shared, &[]).unwrap().build_id.unwrap();
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let by_id: &'static str = format!("/usr/lib/debug/.build-id/{}/{}.debug", &digits[..2], &digits[2..]).leak();
    assert_eq!(deepest(vec![program.clone(), (by_id, shared.clone())]), expected);
    // Without it, or with that of another build, there are the names of the symbol table, and lines.
    let mut of_another = shared;
    let place = of_another.windows(id.len()).position(|bytes| bytes == id).unwrap();
    of_another[place] ^= 1;
    for files in [vec![program.clone()], vec![program, (part, of_another)]] {
        let found = deepest(files);
        assert_eq!((found.len(), found[0].function.as_str()), (1, "outer"));
        assert!(found[0].line.is_some());
    }
}

/// Of a kernel's module all functions were at the same addresses, and its build id was looked for where it is not
/// (2026-11-22: the right one was called another build).
#[test]
fn a_module_of_a_kernel_is_laid_out_as_the_kernel_does() {
    let folder = Folder::new("module").unwrap();
    let flags = ["-c", "-O2", "-g", "-ffunction-sections", "-fno-inline"];
    let Some(object) = compile(&folder, "inlined.c", &flags) else { return };
    let bytes = std::fs::read(object).unwrap();
    let file = object::File::parse(&bytes[..]).unwrap();
    let (image, symbols) = (Image::parse(&bytes, &["outer"]).unwrap(), Symbols::parse(&bytes).unwrap());
    assert_eq!((image.build_id_address, image.code_segments().count()), (None, 0));
    let range = image.linked_range();
    let functions: Vec<_> = file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text).collect();
    assert!(functions.len() >= 3);
    // Each has a place of its own, in the order of the file.
    let mut named: Vec<String> =
        range.clone().filter_map(|address| symbols.locate(address).pop()).map(|location| location.function).collect();
    named.dedup();
    let expected: Vec<&str> = file
        .sections()
        .filter_map(|section| functions.iter().find(|symbol| symbol.section_index() == Some(section.index())))
        .map(|symbol| symbol.name().unwrap())
        .collect();
    assert_eq!(named, expected);
    assert!(range.contains(&image.symbol("outer").unwrap()));
}

/// Files by their paths.
struct Files(Vec<(&'static str, Vec<u8>)>);

impl FileSource for Files {
    fn load(&mut self, path: &str) -> Option<Box<dyn ReadAt>> {
        let (_, bytes) = self.0.iter().find(|(known, _)| *known == path)?;
        Some(Box::new(bytes.clone()))
    }
}

#[test]
fn the_symbol_table_serves_without_debug_information() {
    let folder = Folder::new("table").unwrap();
    let Some(program) = compile(&folder, "inlined.c", &["-O2"]) else { return };
    let bytes = std::fs::read(program).unwrap();
    let symbols = Symbols::parse(&bytes).unwrap();
    assert!(!symbols.has_lines);
    let range = symbol(&bytes, "outer");
    for address in [range.start, range.end - 1] {
        assert_eq!(symbols.locate(address), [Location::of_name("outer")]);
    }
}

#[test]
fn files_that_do_not_serve_say_why() {
    let folder = Folder::new("stripped").unwrap();
    let Some(program) = compile(&folder, "inlined.c", &["-O2", "-s", "-static"]) else { return };
    let bytes = std::fs::read(program).unwrap();
    assert_eq!(Symbols::parse(&bytes).err(), Some(ImageError::Stripped));
    // It can still be unwound.
    assert!(Image::parse(&bytes, &[]).unwrap().linked_range().start > 0);
    assert_eq!(Symbols::parse(b"#!/bin/sh\n").err(), Some(ImageError::NotSymbols));
    assert_eq!(Symbols::parse(b"").err(), Some(ImageError::NotSymbols));
    assert!(matches!(Symbols::parse(&bytes[..100]).err(), Some(ImageError::Damaged(_))));
    let mut other = bytes.clone();
    other[18] = 243; // RISC-V
    assert_eq!(Symbols::parse(&other).err(), Some(ImageError::WrongMachine));
}

#[test]
fn damaged_files_never_panic() {
    let folder = Folder::new("damaged").unwrap();
    for (source, flags) in [("inlined.c", &["-O2", "-g"][..]), ("inlined.cpp", &["-O2", "-g", "-x", "c++"])] {
        let Some(program) = compile(&folder, source, flags) else { return };
        damage(&std::fs::read(program).unwrap());
    }
}

fn damage(whole: &[u8]) {
    let change = (0..whole.len(), any::<u8>());
    let strategy = (proptest::collection::vec(change, 1..40), 0..=whole.len());
    proptest!(ProptestConfig::with_cases(100), |((changes, length) in strategy)| {
        let mut bytes = whole.to_owned();
        changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        bytes.truncate(length);
        if let Ok(image) = Image::parse(&bytes, &["main"]) {
            image.bias_of_mapping(0x1000, 0x1000);
            let _ = image.linked_range();
        }
        if let Ok(symbols) = Symbols::parse(&bytes) {
            (0x1000..0x1200).for_each(|address| drop(symbols.locate(address)));
        }
    });
}
