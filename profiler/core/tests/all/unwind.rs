//! Unwinds snapshots that a real program takes of itself, with and without frame pointers and tables.

use std::process::Command;
use std::sync::Arc;

use crate::common::{compile, unwind, unwind_with};
use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::image::Image;
use glass_profiler_core::map::SymbolMap;
use glass_profiler_core::model::StackEnd;
use glass_profiler_core::symbols::Symbols;
use glass_profiler_core::unwind::{AddressSpace, CallChain, DEPTH_MAX, UnwindCache};
use glass_tests::folder::Folder;
use proptest::prelude::*;

const COMMON: [&str; 5] = ["-O2", "-static", "-no-pie", "-fcf-protection=none", "-fno-optimize-sibling-calls"];
const FRAME_POINTERS: [&str; 2] = ["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"];
const NO_TABLES: [&str; 2] = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];

struct Snapshot {
    registers: Registers,
    stack: Vec<u8>,
    space: AddressSpace,
    symbols: Symbols,
    image: Arc<Image>,
}

impl Snapshot {
    fn take(name: &str, flags: &[&str]) -> Option<Snapshot> {
        let folder = Folder::new(name).unwrap();
        let program = compile(&folder, "snapshot.c", &[&COMMON, flags].concat())?;
        let output = Command::new(&program).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (registers, stack) = text.split_once('\n').unwrap();
        let words: Vec<u64> = registers.split(' ').map(|word| u64::from_str_radix(word, 16).unwrap()).collect();
        let stack = stack.trim_end().as_bytes().chunks(2);
        let stack = stack.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect();
        let bytes = std::fs::read(&program).unwrap();
        let image = Arc::new(Image::parse(&bytes, &["a", "b", "c"]).unwrap());
        let mut space = AddressSpace::default();
        space.add(image.linked_range(), 0, 0, image.clone());
        let registers = Registers::new(words[0], words[1], words[2]);
        Some(Snapshot { registers, stack, space, symbols: Symbols::parse(&bytes).unwrap(), image })
    }

    fn unwind(&self, registers: Registers) -> CallChain {
        let skip = (registers.rsp - self.registers.rsp) as usize;
        unwind(&self.space, registers, &self.stack[skip..])
    }

    /// The functions of a chain up to and with main.
    fn names(&self, chain: &CallChain) -> Vec<String> {
        let name = |address| self.symbols.locate(address).pop().map_or("?".to_owned(), |location| location.function);
        let names: Vec<String> = chain.calls.iter().map(|call| name(call.address)).collect();
        let end = names.iter().position(|name| name == "main").map_or(names.len(), |index| index + 1);
        names[..end].to_vec()
    }

    fn word(&self, address: u64) -> u64 {
        let offset = (address - self.registers.rsp) as usize;
        u64::from_le_bytes(self.stack[offset..offset + 8].try_into().unwrap())
    }
}

#[test]
fn tables_without_frame_pointers() {
    let Some(snapshot) = Snapshot::take("tables", &["-fomit-frame-pointer"]) else { return };
    assert!(snapshot.image.is_covered(snapshot.registers.rip));
    let chain = snapshot.unwind(snapshot.registers);
    assert_eq!(snapshot.names(&chain), ["c", "b", "a", "main"]);
    assert_eq!(chain.end, StackEnd::Complete, "{chain:?}");
}

#[test]
fn tables_for_debuggers_only() {
    // The C library has .eh_frame all the same: both kinds of table are in one file.
    let flags = [&["-fomit-frame-pointer", "-g"][..], &NO_TABLES].concat();
    let Some(snapshot) = Snapshot::take("debug-frame", &flags) else { return };
    assert!(!snapshot.image.is_covered(snapshot.registers.rip));
    assert!(snapshot.image.is_covered_by_debug(snapshot.registers.rip));
    let chain = snapshot.unwind(Registers { rbp: 12, ..snapshot.registers });
    assert_eq!(snapshot.names(&chain), ["c", "b", "a", "main"]);
    assert_eq!(chain.end, StackEnd::Complete, "{chain:?}");
}

#[test]
fn hostile_memory_and_registers_cost_a_bounded_time() {
    const CASES: u32 = 2000;
    let with_tables = Snapshot::take("hostile-tables", &["-fomit-frame-pointer"]);
    let with_pointers = Snapshot::take("hostile-pointers", &[FRAME_POINTERS, NO_TABLES].concat());
    let (Some(with_tables), Some(with_pointers)) = (with_tables, with_pointers) else { return };
    let base = with_tables.registers.rsp;
    let functions: Vec<u64> = ["a", "b", "c"].iter().map(|name| with_tables.image.symbol(name).unwrap()).collect();
    // Words of the stack: addresses in functions, of other words of the stack, small numbers, anything.
    let word = prop_oneof![
        (0..3usize, 0..60u64).prop_map(move |(function, offset)| functions[function] + offset),
        (0..256u64).prop_map(move |index| base + index * 8),
        0..4u64,
        any::<u64>(),
    ];
    let stack = proptest::collection::vec(word.clone(), 0..256);
    let start = std::time::Instant::now();
    let cache = std::cell::RefCell::new(UnwindCache::default());
    proptest!(ProptestConfig::with_cases(CASES), |(stack in stack, rip in word.clone(), rbp in word.clone(), rsp in word.clone())| {
        let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
        for snapshot in [&with_tables, &with_pointers] {
            for rsp in [base, rsp] {
                let chain = unwind_with(&snapshot.space, &mut cache.borrow_mut(), Registers::new(rip, rsp, rbp), &bytes);
                prop_assert!(!chain.calls.is_empty() && chain.calls.len() <= DEPTH_MAX);
                prop_assert_eq!(chain.end == StackEnd::TooDeep, chain.calls.len() == DEPTH_MAX);
            }
        }
    });
    // A stack takes some microseconds; most of the time goes into making up cases. Without a bound, one stack takes minutes.
    assert!(start.elapsed().as_secs() < 300, "{:?}", start.elapsed());
}

#[test]
fn frame_pointers_without_tables() {
    let Some(snapshot) = Snapshot::take("pointers", &[FRAME_POINTERS, NO_TABLES].concat()) else { return };
    assert!(!snapshot.image.is_covered(snapshot.registers.rip));
    let chain = snapshot.unwind(snapshot.registers);
    assert_eq!(snapshot.names(&chain), ["c", "b", "a", "main"]);
    // The C library's start has tables.
    assert_eq!(chain.end, StackEnd::Complete, "{chain:?}");
}

#[test]
fn neither_is_told_as_such() {
    let Some(snapshot) = Snapshot::take("neither", &[&["-fomit-frame-pointer"][..], &NO_TABLES].concat()) else {
        return;
    };
    // A program without frame pointers may have anything in rbp: here, something that is no address, and the 0 that
    // ends the chain of those that keep them. Such stacks counted as whole (2026-11-22).
    for rbp in [12, 0] {
        let chain = snapshot.unwind(Registers { rbp, ..snapshot.registers });
        // c needs no frame (its variables are in the red zone), so the top of the stack shows its caller.
        assert_eq!(snapshot.names(&chain), ["c", "b"]);
        assert_eq!(chain.end, StackEnd::NoUnwindInfo, "{rbp}");
    }
}

#[test]
fn before_and_after_the_frame_is_set_up() {
    let Some(snapshot) = Snapshot::take("prologue", &[FRAME_POINTERS, NO_TABLES].concat()) else { return };
    let frame = snapshot.registers.rbp;
    let start = snapshot.image.symbol("c").unwrap();
    let caller = snapshot.word(frame);
    let mut code = [0; 256];
    snapshot.image.code(start, &mut code);
    assert_eq!(code[..4], [0x55, 0x48, 0x89, 0xe5], "c starts with push rbp; mov rbp, rsp");
    let ret = start + code.iter().position(|byte| *byte == 0xc3).unwrap() as u64;
    let moments = [
        ("at push", Registers::new(start, frame + 8, caller)),
        ("after push", Registers::new(start + 1, frame, caller)),
        ("after mov", Registers::new(start + 4, frame, frame)),
        ("at ret", Registers::new(ret, frame + 8, caller)),
    ];
    for (moment, registers) in moments {
        let chain = snapshot.unwind(registers);
        assert_eq!(snapshot.names(&chain), ["c", "b", "a", "main"], "{moment}");
        assert_eq!(chain.end, StackEnd::Complete, "{moment}");
    }
}

#[test]
fn a_copy_that_is_too_short_keeps_what_it_has() {
    let Some(snapshot) = Snapshot::take("short", &["-fomit-frame-pointer"]) else { return };
    let whole = snapshot.unwind(snapshot.registers);
    let mut seen = 0;
    for bytes in 0..snapshot.stack.len() {
        let chain = unwind(&snapshot.space, snapshot.registers, &snapshot.stack[..bytes]);
        assert_eq!(chain.calls, whole.calls[..chain.calls.len()], "{bytes} bytes");
        if chain.end != StackEnd::Complete {
            assert_eq!(chain.end, StackEnd::CopyEnded, "{bytes} bytes");
            assert!(chain.calls.len() >= seen);
            seen = chain.calls.len();
        }
    }
    assert!(seen >= 4);
}

#[test]
fn a_chain_in_a_circle_and_wild_registers_end() {
    let Some(snapshot) = Snapshot::take("circle", &[FRAME_POINTERS, NO_TABLES].concat()) else { return };
    // Frames without an end: each points to the next, and all return into a.
    let inside = snapshot.image.symbol("a").unwrap() + 12;
    let mut stack = Vec::new();
    for index in 0..4000u64 {
        stack.extend((0x7000_0000 + (index + 1) * 16).to_le_bytes());
        stack.extend(inside.to_le_bytes());
    }
    let registers = Registers::new(inside, 0x7000_0000, 0x7000_0000);
    let chain = unwind(&snapshot.space, registers, &stack);
    assert_eq!(chain.end, StackEnd::TooDeep);
    assert_eq!(chain.calls.len(), glass_profiler_core::unwind::DEPTH_MAX);
    // One frame that points to itself.
    stack[..8].copy_from_slice(&0x7000_0000u64.to_le_bytes());
    let chain = unwind(&snapshot.space, registers, &stack);
    assert_eq!(chain.end, StackEnd::NoUnwindInfo);
    assert!(chain.calls.len() <= 3);
    for value in [0, 1, u64::MAX, u64::MAX - 7, 1 << 63] {
        for registers in [
            Registers { rip: value, ..registers },
            Registers { rsp: value, ..registers },
            Registers { rbp: value, ..registers },
            Registers::new(value, value, value),
        ] {
            unwind(&snapshot.space, registers, &stack);
        }
    }
}

/// One page of a program was mapped again, and the whole program lost its names and callers (2026-11-25).
#[test]
fn a_mapping_over_a_part_of_another_leaves_what_is_beside_it() {
    let image = Arc::new(Image::of_map(&SymbolMap::default(), 0..0x10_000, None));
    let mut space = AddressSpace::default();
    space.add(0x40_0000..0x40_8000, 0x40_0000, 1, image.clone());
    space.add(0x40_3000..0x40_4000, 0, 2, image.clone());
    let at = |space: &AddressSpace, address| (space.at(address).image, space.at(address).address);
    assert_eq!(at(&space, 0x40_2fff), (Some(1), 0x2fff));
    assert_eq!(at(&space, 0x40_3000), (Some(2), 0x40_3000));
    assert_eq!(at(&space, 0x40_4000), (Some(1), 0x4000));
    // Over the end of one and the start of another.
    space.add(0x40_8000..0x40_9000, 0, 3, image.clone());
    space.add(0x40_7000..0x40_8800, 0, 4, image);
    let images = [0x40_6fff, 0x40_7000, 0x40_87ff, 0x40_8800, 0x40_9000].map(|address| at(&space, address).0);
    assert_eq!(images, [Some(1), Some(4), Some(4), Some(3), None]);
}
