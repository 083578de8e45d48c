//! Files of a few kilobytes that expand to gigabytes or take hours: they are left out, in one sentence.

use crate::common::go::{self, Fault, TEXT, Version};
use crate::common::{compile, unwind};
use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::budget::{Budget, Limits, Meters, Over};
use glass_profiler_core::elf::{ImageError, ReadAt};
use glass_profiler_core::image::Image;
use glass_profiler_core::model::StackEnd;
use glass_profiler_core::symbols::{Location, Symbols};
use glass_profiler_core::unwind::AddressSpace;
use glass_tests::elf_bomb::{DEBUG_SECTIONS, repeated, with_sections, zeros};
use glass_tests::folder::Folder;
use object::{Object, ObjectSymbol};
use std::sync::Arc;

const SMALL: Limits = Limits { bytes: 16 << 20, growth_bytes: u64::MAX, work: 20_000_000 };

fn program(source: &str) -> Option<(Vec<u8>, u64)> {
    let folder = Folder::new("bombs").unwrap();
    let bytes = std::fs::read(compile(&folder, source, &["-O1", "-g", "-no-pie"])?).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let outer = file.symbols().find(|symbol| symbol.name() == Ok("outer")).unwrap().address();
    Some((bytes.clone(), outer))
}

fn read(bytes: &[u8], limits: Limits) -> Symbols {
    let budget = Budget::new(limits, Meters::NONE);
    Symbols::read_with(&bytes, budget.account(), &mut |_, _| None).unwrap()
}

/// What the symbol table has is still there.
fn expect_outer(symbols: &Symbols, address: u64) {
    let outer = Location::of_name("outer");
    assert_eq!(symbols.locate(address), [outer]);
}

/// Eleven sections of 4 GiB each were decompressed, one after the other (2026-11-25).
#[test]
fn debug_information_that_expands_is_left_out_and_the_symbol_table_is_not() {
    let Some((bytes, outer)) = program("jumping.c") else { return };
    let frame = zeros(4 << 30);
    let bomb = with_sections(&bytes, &DEBUG_SECTIONS.map(|name| (name, 4 << 30, &frame[..])));
    assert!(bomb.len() < 200 << 10, "{} bytes", bomb.len());
    let symbols = read(&bomb, SMALL);
    let Some(Over::Bytes { needed, max }) = symbols.left_out() else { panic!("{:?}", symbols.left_out()) };
    assert!(needed >= 44 << 30 && max == 16 << 20);
    expect_outer(&symbols, outer);
    // Each is small enough, and all are not.
    let frame = zeros(2 << 20);
    let each = with_sections(&bytes, &DEBUG_SECTIONS.map(|name| (name, 2 << 20, &frame[..])));
    assert!(matches!(read(&each, SMALL).left_out(), Some(Over::Bytes { .. })));
    expect_outer(&read(&each, SMALL), outer);
    // Those that claim to be small are decompressed so far only, and are damaged.
    let frame = zeros(4 << 30);
    let bomb = with_sections(&bytes, &DEBUG_SECTIONS.map(|name| (name, 1 << 20, &frame[..])));
    let symbols = read(&bomb, SMALL);
    assert_eq!(symbols.left_out(), None);
    expect_outer(&symbols, outer);
}

/// A table of lines in which each byte is a row of its own, of 24 bytes.
#[test]
fn debug_information_that_takes_long_is_left_out() {
    let Some((bytes, outer)) = program("jumping.c") else { return };
    // A unit of DWARF 4 with a table of lines: DW_TAG_compile_unit with DW_AT_stmt_list as DW_FORM_sec_offset.
    let abbreviations = [1, 0x11, 0, 0x10, 0x17, 0, 0, 0];
    let unit = [&12u32.to_le_bytes()[..], &4u16.to_le_bytes(), &[0; 4], &[8, 1, 0, 0, 0, 0]].concat();
    let rows = 8u64 << 20;
    // Its header (DWARF 4, 6.2.4) has the place of its end. The byte 0x4b advances the address and the line.
    let standard = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
    let head = [&[1u8, 1, 1, 0xfb, 14, 13][..], &standard, &[0, 0]].concat();
    let start = [&[0, 9, 2][..], &outer.to_le_bytes()].concat();
    let length = 2 + 4 + head.len() as u64 + start.len() as u64 + rows;
    let lines =
        [&(length as u32).to_le_bytes()[..], &4u16.to_le_bytes(), &(head.len() as u32).to_le_bytes(), &head, &start];
    let lines = lines.concat();
    let plain = |bytes: &[u8]| repeated(bytes, 0, 1);
    let (abbreviations_frame, unit_frame, lines_frame) =
        (plain(&abbreviations), plain(&unit), repeated(&lines, 0x4b, rows));
    let bomb = with_sections(
        &bytes,
        &[
            (".debug_abbrev", abbreviations.len() as u64 + 1, &abbreviations_frame),
            (".debug_info", unit.len() as u64 + 1, &unit_frame),
            (".debug_line", lines.len() as u64 + rows, &lines_frame),
            (".debug_aranges", 0, &zeros(0)),
        ],
    );
    let symbols = read(&bomb, Limits { work: 5_000_000, ..SMALL });
    assert_eq!(symbols.left_out(), Some(Over::Work));
    expect_outer(&symbols, outer);
    // So it is a test: with more work it is read to its end.
    assert_eq!(read(&bomb, SMALL).left_out(), None);
}

/// One byte of an entry that stands for many attributes.
#[test]
fn attributes_without_bytes_are_limited() {
    let Some((bytes, outer)) = program("jumping.c") else { return };
    for (count, is_refused) in [(20, false), (100_000, true)] {
        // DW_TAG_compile_unit without children, and DW_AT_external as DW_FORM_flag_present so many times.
        let abbreviations = [&[1, 0x11, 0][..], &[0x3f, 0x19].repeat(count), &[0, 0, 0]].concat();
        let unit = [&8u32.to_le_bytes()[..], &4u16.to_le_bytes(), &[0; 4], &[8, 1]].concat();
        let frames = [&abbreviations, &unit].map(|bytes| repeated(&bytes[..bytes.len().min(100_000)], 0, 1));
        let sizes = [abbreviations.len().min(100_000) as u64 + 1, unit.len() as u64 + 1];
        let sections = [(".debug_abbrev", sizes[0], &frames[0][..]), (".debug_info", sizes[1], &frames[1])];
        let bomb = with_sections(&bytes, &sections);
        let symbols = read(&bomb, SMALL);
        assert_eq!(symbols.left_out(), is_refused.then_some(Over::Work), "{count} attributes");
        expect_outer(&symbols, outer);
    }
}

/// An expression was evaluated as long as it jumped: `glass record` never ended (2026-11-25).
#[test]
fn an_expression_that_jumps_for_ever_ends_its_stack() {
    let Some((bytes, outer)) = program("jumping.c") else { return };
    let image = Image::parse(&bytes, &[]).unwrap();
    assert!(image.is_covered(outer));
    let mut space = AddressSpace::default();
    space.add(image.linked_range(), 0, 0, Arc::new(image));
    let registers = Registers::new(outer + 1, 0x7fff_0000, 0);
    let chain = unwind(&space, registers, &[0; 64]);
    assert_eq!((chain.calls.len(), chain.end), (1, StackEnd::RuleFailed));
}

/// A table of numbers whose steps lead nowhere.
#[test]
fn numbers_of_go_that_never_reach_an_address_end() {
    let bytes = go::program(Version::Go20, false, Fault { numbers: true, ..Fault::default() });
    let symbols = read(&bytes, Limits { work: 3_000_000, ..SMALL });
    let main = Location {
        function: "main.main".to_owned(),
        file: Some("/src/main.go".to_owned()),
        line: None,
        start_line: Some(5),
    };
    assert_eq!((symbols.locate(TEXT), symbols.left_out()), (vec![main], None));
    (0..4).for_each(|_| drop(symbols.locate(TEXT)));
    assert_eq!(symbols.left_out(), Some(Over::Work));
    assert_eq!(symbols.locate(TEXT), []);
}

/// A program whose last segment is as long as its headers claim, with zeros.
struct Long(Vec<u8>);

impl ReadAt for Long {
    fn bytes(&self) -> u64 {
        4 << 30
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        for (at, byte) in (offset as usize..).zip(into) {
            *byte = self.0.get(at).copied().unwrap_or(0);
        }
        true
    }
}

#[test]
fn a_table_of_go_of_gigabytes_is_left_out() {
    let mut bytes = go::program(Version::Go20, false, Fault { bytes: Some(1 << 30), ..Fault::default() });
    // The size of the second segment.
    bytes[64 + 56 + 32..][..8].copy_from_slice(&(2u64 << 30).to_le_bytes());
    let error = Symbols::read(&Long(bytes)).err();
    assert!(matches!(error, Some(ImageError::TooMuch(Over::Bytes { .. }))), "{error:?}");
}
