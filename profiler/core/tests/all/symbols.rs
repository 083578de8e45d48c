//! Names, inlined calls and lines of real ELF files.

use crate::common::compile;
use glass_profile::image::{Image, ImageError};
use glass_profile::symbols::{Location, Symbols};
use glass_tests::folder::Folder;
use object::{Object, ObjectSymbol};
use proptest::prelude::*;

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
    let line = |location: &Location| (location.function.clone(), location.line.unwrap());
    let named: Vec<_> = deepest.iter().rev().take(3).map(line).collect();
    assert_eq!(named, [("outer".to_owned(), 12), ("middle".to_owned(), 9), ("inner".to_owned(), 5)]);
    assert!(deepest[0].file.as_ref().unwrap().ends_with("inlined.c"));
    assert_eq!(symbols.locate(0), []);
    assert_eq!(symbols.locate(u64::MAX), []);
}

#[test]
fn a_build_id_without_a_byte_is_none() {
    let folder = Folder::new("empty-build-id").unwrap();
    let Some(program) = compile(&folder, "inlined.c", &["-O2", "-Wl,--build-id"]) else { return };
    let mut bytes = std::fs::read(program).unwrap();
    assert_eq!(Image::parse(&bytes, &[]).unwrap().build_id.map(|id| id.len()), Some(20));
    // The note says: a name of 4 bytes, a build id of 20.
    let note = bytes
        .windows(16)
        .position(|window| window.starts_with(&[4, 0, 0, 0, 20, 0, 0, 0]) && window.ends_with(b"GNU\0"));
    bytes[note.unwrap() + 4] = 0;
    let image = Image::parse(&bytes, &[]).unwrap();
    assert_eq!((image.build_id, image.build_id_address), (None, None));
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
        assert_eq!(symbols.locate(address), [Location { function: "outer".to_owned(), file: None, line: None }]);
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
    other[18] = 183; // AArch64
    assert_eq!(Symbols::parse(&other).err(), Some(ImageError::WrongMachine));
}

#[test]
fn damaged_files_never_panic() {
    let folder = Folder::new("damaged").unwrap();
    let Some(program) = compile(&folder, "inlined.c", &["-O2", "-g"]) else { return };
    let whole = std::fs::read(program).unwrap();
    let change = (0..whole.len(), any::<u8>());
    let strategy = (proptest::collection::vec(change, 1..40), 0..=whole.len());
    proptest!(ProptestConfig::with_cases(100), |((changes, length) in strategy)| {
        let mut bytes = whole.clone();
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
