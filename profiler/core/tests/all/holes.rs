//! Files of which pages are missing, as those of a guest's page cache.

use glass_profiler_core::budget::Account;
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::image::Image;
use glass_profiler_core::symbols::Symbols;
use glass_tests::folder::Folder;

use super::common::compile;

const PAGE_BYTES: u64 = 4096;

/// A file, and which of its pages are missing.
#[derive(Clone)]
struct Holes(Vec<u8>, Vec<bool>);

impl ReadAt for Holes {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        let pages = offset / PAGE_BYTES..(offset + into.len() as u64).div_ceil(PAGE_BYTES);
        let is_there = pages.into_iter().all(|page| self.1.get(page as usize) == Some(&false));
        is_there && ReadAt::read_at(&self.0, offset, into)
    }

    fn has_holes(&self) -> bool {
        true
    }
}

/// The file without the pages for which `is_missing` holds.
fn without(bytes: &[u8], is_missing: impl Fn(u64) -> bool) -> Holes {
    Holes(bytes.to_vec(), (0..(bytes.len() as u64).div_ceil(PAGE_BYTES)).map(is_missing).collect())
}

fn section_headers(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes[40..].first_chunk().unwrap())
}

fn open(file: &Holes) -> Image {
    Image::of_file(Box::new(file.clone()), true, Account::alone()).unwrap()
}

/// Addresses throughout the code, and the starts of their functions by the unwind tables.
fn functions(image: &Image, addresses: &[u64]) -> Vec<Option<u64>> {
    addresses.iter().map(|address| image.function_start(*address)).collect()
}

fn this_program() -> (Vec<u8>, Image, Vec<u64>) {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let image = Image::parse(&bytes, &[]).unwrap();
    let addresses = image.code_ranges().flat_map(|range| range.step_by(256)).collect();
    (bytes, image, addresses)
}

#[test]
fn the_section_headers_of_a_program_are_missing() {
    let (bytes, whole, addresses) = this_program();
    let file = without(&bytes, |page| page >= section_headers(&bytes) / PAGE_BYTES);
    let image = open(&file);
    assert_eq!((&image.build_id, image.linked_range()), (&whole.build_id, whole.linked_range()));
    let expected = functions(&whole, &addresses);
    assert!(expected.iter().flatten().count() > addresses.len() / 2);
    assert_eq!(functions(&image, &addresses), expected);
    // Read with its code, as far as that is there.
    assert_eq!(functions(&Image::read(&file, &[]).unwrap(), &addresses), expected);
}

#[test]
fn the_dynamic_symbols_of_a_library_remain() {
    let folder = Folder::new("holes").unwrap();
    let flags = ["-O2", "-shared", "-fPIC", "-Wl,--build-id"];
    let Some(library) = compile(&folder, "inlined.c", &flags) else { return };
    let bytes = std::fs::read(library).unwrap();
    let whole = Image::parse(&bytes, &["outer"]).unwrap();
    let outer = whole.symbol("outer").unwrap();
    let last = section_headers(&bytes) / PAGE_BYTES;
    let file = without(&bytes, |page| page >= last);
    let image = Image::read(&file, &["outer"]).unwrap();
    assert_eq!((image.symbol("outer"), image.function_start(outer)), (Some(outer), Some(outer)));
    assert_eq!((&image.build_id, image.code_segments().count()), (&whole.build_id, 1));
    let name = |file: &dyn ReadAt| Symbols::read(file).unwrap().locate(outer).pop().map(|location| location.function);
    assert_eq!(name(&file).as_deref(), Some("outer"));
    // The other way around: a table of symbols is missing to which section headers lead.
    let headers = without(&bytes, |_| false);
    assert_eq!(name(&headers).as_deref(), Some("outer"));
}

/// What is there is as in the whole file, and no other is made of it.
#[test]
fn pages_are_missing_anywhere() {
    let (bytes, whole, addresses) = this_program();
    let expected = functions(&whole, &addresses);
    let mut found = Vec::new();
    for seed in 1..9u64 {
        let chosen = |page: u64| (page + 1).wrapping_mul(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 40;
        // The first pages have the headers; from half of the pages to one of 32.
        let is_missing = |page| page > 1 && chosen(page) % (1 << (1 + seed % 5)) == 0;
        let file = without(&bytes, is_missing);
        let Ok(image) = Image::of_file(Box::new(file.clone()), true, Account::alone()) else {
            panic!("the headers are there, seed {seed}")
        };
        let _ = Symbols::read(&file);
        let functions = functions(&image, &addresses);
        for (address, (function, expected)) in addresses.iter().zip(functions.iter().zip(&expected)) {
            assert!(function.is_none() || function == expected, "{address:#x}, seed {seed}");
        }
        found.push(functions.iter().flatten().count());
    }
    assert!(found.iter().filter(|found| **found > 100).count() >= 4, "{found:?} of {}", addresses.len());
}
