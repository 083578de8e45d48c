//! Steps through synthetic tables of Linux's three layouts and two numberings of registers.

use crate::common::{compile, unwind};
use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::arch::x86_64::orc::{OrcError, OrcRegisters, OrcStep, OrcTable};
use glass_profiler_core::image::Image;
use glass_profiler_core::map::SymbolMap;
use glass_profiler_core::model::StackEnd;
use glass_profiler_core::unwind::{AddressSpace, DEPTH_MAX, StackMemory, UnwindCache};
use glass_tests::folder::Folder;
use proptest::prelude::*;
use std::sync::Arc;

const KERNEL: u64 = 0xffff_ffff_8100_0000;
const STACK: u64 = 0xffff_c900_0000_0000;

/// `ORC_REG_*`.
const PREV_SP: u8 = 1;
const BP: u8 = 4;
const SP: u8 = 5;
const R10: u8 = 6;
const BP_INDIRECT: u8 = 8;
const SP_INDIRECT: u8 = 9;

/// How the second numbering, of Linux 7.2, writes a register of the first: that of the stack pointer, and that of a frame pointer.
fn renumbered(sp: u8, bp: u8) -> (u8, u8) {
    let sp = match sp {
        SP => 3,
        BP_INDIRECT => 10,
        other => other,
    };
    (sp, if bp == PREV_SP { 8 } else { bp })
}

/// What a layout writes for a call, all registers, an interrupt's frame, and the end.
const LAYOUTS: [[u8; 4]; 3] = [[0, 1, 2, 4], [0, 5, 6, 8], [2, 3 | 8, 4 | 8, 1]];

struct Entry(i16, i16, u8, u8, u8);

/// One function of 16 bytes for each entry.
fn table(entries: &[Entry]) -> OrcTable {
    let address = KERNEL + 0x10_0000;
    let relative = |index: usize| (KERNEL + index as u64 * 16).wrapping_sub(address + index as u64 * 4) as i32;
    let addresses: Vec<u8> = (0..entries.len()).flat_map(|index| relative(index).to_le_bytes()).collect();
    let bytes = entries.iter().flat_map(|Entry(sp_offset, bp_offset, sp, bp, kind)| {
        let (sp_offset, bp_offset) = (sp_offset.to_le_bytes(), bp_offset.to_le_bytes());
        [sp_offset[0], sp_offset[1], bp_offset[0], bp_offset[1], sp | bp << 4, *kind]
    });
    OrcTable::parse(address, &addresses, &bytes.collect::<Vec<_>>()).unwrap()
}

/// A function by the place of its entry.
fn function(index: u64) -> u64 {
    KERNEL + index * 16 + 5
}

/// Memory in which only these words are not zero.
fn words(words: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    for (offset, word) in words {
        bytes[*offset as usize..*offset as usize + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[test]
fn from_an_interrupted_function_to_the_entry_of_a_system_call_in_each_layout() {
    // The second numbering came after the third layout; stacks of 7.3 were broken (2026-11-25).
    for ([call, all, frame, end], is_second) in
        [(0, false), (1, false), (2, false), (2, true)].map(|(at, second)| (LAYOUTS[at], second))
    {
        let entries = [
            Entry(8, 0, SP, 0, call),
            Entry(16, -16, BP, PREV_SP, call),
            Entry(8, 0, SP, 0, frame),
            Entry(0, 0, SP, 0, all),
            Entry(0, 0, 0, 0, end),
            // Calls are what most entries are: by this the layout is known.
            Entry(8, 0, SP, 0, call),
            Entry(8, 0, SP, 0, call),
            Entry(8, 0, SP, 0, call),
        ];
        let entries = entries.map(|Entry(sp_offset, bp_offset, sp, bp, kind)| {
            let (sp, bp) = if is_second { renumbered(sp, bp) } else { (sp, bp) };
            Entry(sp_offset, bp_offset, sp, bp, kind)
        });
        let table = Arc::new(table(&entries));
        let map = SymbolMap::parse(format!("{KERNEL:x} T _stext\n").as_bytes(), &[]).unwrap();
        let image = Arc::new(Image::of_map(&map, KERNEL..KERNEL + 0x1000, Some(table)));
        let bias = 0x20_0000;
        let mut space = AddressSpace::default();
        space.add(KERNEL + bias..KERNEL + bias + 0x1000, bias, 7, image);
        // A function, called by the handler, whose caller pushed an error code before the processor's
        // frame; that interrupted a function with a frame pointer, called from the entry, where all
        // registers of a process lie.
        let memory = words(&[
            (0, function(2) + bias),
            (16, function(1) + bias),
            (24, 0x10),
            (40, STACK + 100 * 8),
            (50 * 8, STACK + 60 * 8),
            (51 * 8, function(3) + bias),
            (52 * 8 + 16 * 8, 0x40_1000),
            (52 * 8 + 17 * 8, 0x33),
        ]);
        let registers = Registers::new(function(0) + bias, STACK, STACK + 50 * 8);
        let chain = unwind(&space, registers, &memory);
        let addresses: Vec<u64> = chain.calls.iter().map(|call| call.address).collect();
        // Return addresses are looked up one byte before, that of the interrupted function is not.
        assert_eq!(addresses, [function(0), function(2) - 1, function(1), function(3) - 1], "{call}");
        assert_eq!(chain.interrupted, [2]);
        assert_eq!(chain.end, StackEnd::Complete);
        assert!(chain.calls.iter().all(|call| call.image == Some(7)));
        // Where nothing calls.
        let chain = unwind(&space, Registers { rip: function(4) + bias, ..registers }, &[]);
        assert_eq!((chain.calls.len(), chain.end), (1, StackEnd::Complete));
        // A copy that is too short keeps what it has.
        let chain = unwind(&space, registers, &memory[..48]);
        assert_eq!((chain.calls.len(), chain.end), (3, StackEnd::CopyEnded));
    }
}

#[test]
fn a_module_of_a_kernel_has_tables_of_its_own() {
    let folder = Folder::new("orc-module").unwrap();
    let Some(object) = compile(&folder, "module.S", &["-c"]) else { return };
    let image = Image::parse(&std::fs::read(object).unwrap(), &["outer", "inner", "outer_return"]).unwrap();
    let symbol = |name| image.symbol(name).unwrap();
    let (outer, inner, back) = (symbol("outer"), symbol("inner"), symbol("outer_return"));
    let space = {
        let mut space = AddressSpace::default();
        space.add(KERNEL..KERNEL + 0x1000, KERNEL, 7, Arc::new(image));
        space
    };
    // The first byte of a function, behind its `push`, and its last instruction; then its caller, whose own is not in the module.
    for (offset, pushed) in [(0, 0), (1, 8), (3, 0)] {
        let memory = words(&[(pushed, KERNEL + back), (pushed + 16, 0x1000)]);
        let chain = unwind(&space, Registers::new(KERNEL + inner + offset, STACK, 0), &memory);
        let addresses: Vec<u64> = chain.calls.iter().map(|call| call.address).collect();
        assert_eq!((addresses, chain.end), (vec![inner + offset, back - 1], StackEnd::BadAddress), "{offset}");
    }
    let chain = unwind(&space, Registers::new(KERNEL + outer, STACK, 0), &words(&[(0, KERNEL + back)]));
    assert_eq!(chain.calls.len(), 2);
}

#[test]
fn registers_that_point_to_where_the_stack_pointer_is() {
    let table = table(&[
        Entry(-8, 0, BP_INDIRECT, 0, 0),
        Entry(8, 0, SP_INDIRECT, 0, 0),
        Entry(0, 0, R10, 0, 0),
        Entry(0, 0, SP, 0, 1),
    ]);
    let memory = words(&[(64, STACK + 200), (192, function(1)), (0, STACK + 300), (300, function(0))]);
    let mut read = |address: u64| {
        let offset = usize::try_from(address.checked_sub(STACK)?).ok()?;
        Some(u64::from_le_bytes(*memory.get(offset..)?.first_chunk::<8>()?))
    };
    let mut registers = OrcRegisters::new(function(0), STACK, STACK + 72);
    assert_eq!(table.step(function(0), &mut registers, &mut read), OrcStep::Caller);
    assert_eq!((registers.ip, registers.sp, registers.bp), (function(1), STACK + 200, STACK + 72));
    // The stack of an interrupt keeps where the other was.
    let mut registers = OrcRegisters::new(function(1), STACK, 0);
    assert_eq!(table.step(function(1), &mut registers, &mut read), OrcStep::Caller);
    assert_eq!((registers.ip, registers.sp), (function(0), STACK + 308));
    // A register that was not saved.
    assert_eq!(table.step(function(2), &mut registers, &mut read), OrcStep::Unknown);
    // No entry there.
    assert_eq!(table.step(KERNEL - 1, &mut registers, &mut read), OrcStep::Unknown);
    assert_eq!(table.step(0, &mut registers, &mut read), OrcStep::Unknown);
}

#[test]
fn an_interrupts_stack_leads_to_the_one_that_it_left() {
    let table = Arc::new(table(&[Entry(8, 0, SP_INDIRECT, 0, 0), Entry(0, 0, 0, 0, 4)]));
    let map = SymbolMap::parse(format!("{KERNEL:x} T _stext\n").as_bytes(), &[]).unwrap();
    let mut space = AddressSpace::default();
    space.add(KERNEL..KERNEL + 32, 0, 0, Arc::new(Image::of_map(&map, KERNEL..KERNEL + 32, Some(table))));
    let (task, memory) = (STACK + 0x10_0000, words(&[(0, STACK + 0x10_0000)]));
    let left = words(&[(0, function(1))]);
    let registers = Registers::new(function(0), STACK, 0);
    let unwind = |pieces: &[(u64, Vec<u8>)]| {
        let chain = space.unwind(&mut UnwindCache::default(), &registers.into(), StackMemory(pieces));
        (chain.calls.len(), chain.end)
    };
    assert_eq!(unwind(&[(STACK, memory.clone()), (task, left)]), (2, StackEnd::Complete));
    assert_eq!(unwind(&[(STACK, memory)]), (1, StackEnd::CopyEnded));
}

/// The kernel at `KERNEL`, with a function of 16 bytes for each entry.
fn kernel(entries: &[Entry]) -> AddressSpace {
    let range = KERNEL..KERNEL + 16 * entries.len() as u64;
    let map = SymbolMap::parse(format!("{KERNEL:x} T _stext\n").as_bytes(), &[]).unwrap();
    let mut space = AddressSpace::default();
    space.add(range.clone(), 0, 0, Arc::new(Image::of_map(&map, range, Some(Arc::new(table(entries))))));
    space
}

/// The calls of a stack, and its end.
fn chain(space: &AddressSpace, registers: Registers, stack: &[(u64, u64)]) -> (Vec<u64>, StackEnd) {
    let chain = unwind(space, registers, &words(stack));
    (chain.calls.iter().map(|call| call.address).collect(), chain.end)
}

/// At `__x86_indirect_thunk_rax` stacks of 5.10 and 6.1 had one frame and counted as complete, those of 6.12 as without tables (2026-11-27).
#[test]
fn a_thunk_for_indirect_calls_has_no_rule() {
    for ([call, all, _, end], without) in LAYOUTS.into_iter().zip([LAYOUTS[0][3], LAYOUTS[1][3], 0]) {
        let space = kernel(&[
            Entry(0, 0, 0, 0, without),
            Entry(24, 0, SP, 0, call),
            Entry(0, 0, SP, 0, all),
            Entry(0, 0, 0, 0, end),
            Entry(8, 0, SP, 0, call),
            Entry(8, 0, SP, 0, call),
        ]);
        let user = (40 + 17 * 8, 0x33);
        let whole = |inner: u64| vec![function(0) + inner, function(1) - 1, function(2) - 1];
        // At its start; and behind its inner call.
        let caller = [(0, function(1)), (24, function(2)), (32 + 17 * 8, 0x33)];
        let registers = Registers::new(function(0), STACK, 0);
        assert_eq!(chain(&space, registers, &caller), (whole(0), StackEnd::Complete));
        let caller = [(0, function(0) + 2), (8, function(1)), (32, function(2)), user];
        let inner = Registers::new(function(0) + 6, STACK, 0);
        assert_eq!(chain(&space, inner, &caller), (whole(6), StackEnd::Complete));
        // What is not behind a call is no return address, and the stack of a process is not read for one.
        let alone = if without == 0 { StackEnd::NoUnwindInfo } else { StackEnd::Complete };
        for word in [function(3), KERNEL - 0x1000, 0x40_1000, 0] {
            assert_eq!(chain(&space, registers, &[(0, word)]), (vec![function(0)], alone), "{word:#x}");
        }
        let of_process = Registers::new(function(0), 0x7ffe_0000, 0);
        assert_eq!(chain(&space, of_process, &[(0, function(1))]), (vec![function(0)], alone));
        // An entry that means the end is one.
        if without == 0 {
            let ends = Registers::new(function(3), STACK, 0);
            assert_eq!(chain(&space, ends, &[(0, function(1))]), (vec![function(3)], StackEnd::Complete));
        }
    }
}

/// The rules in `__switch_to_asm` are those of several variants of the code that fills the predictor of returns (5.10 and 6.1, 2026-11-27).
#[test]
fn patched_code_has_pushed_other_words_than_its_rule_expects() {
    let space =
        kernel(&[Entry(32, -16, SP, PREV_SP, 0), Entry(16, 0, SP, 0, 0), Entry(0, 0, 0, 0, 4), Entry(8, 0, SP, 0, 0)]);
    let inner = function(0) - 1;
    for (cfa, pushed) in [(32, vec![]), (24, vec![]), (40, vec![inner]), (48, vec![inner; 2])] {
        for other in [0, 0x77] {
            let pushed = pushed.iter().copied().chain([other; 8]).take(8).enumerate();
            let pushed = pushed.map(|(at, word)| (8 * at as u64, word));
            let frames = [(cfa - 16, STACK + 512), (cfa - 8, function(1)), (cfa + 8, function(2))];
            let stack: Vec<(u64, u64)> = pushed.chain(frames).collect();
            let found = chain(&space, Registers::new(function(0), STACK, 0), &stack);
            let whole = vec![function(0), function(1) - 1, function(2) - 1];
            assert_eq!(found, (whole, StackEnd::Complete), "{cfa} {other:#x}");
        }
    }
    // A caller in code of which nothing is known is not passed over.
    let stack = [(16, function(1)), (24, KERNEL + (1 << 20)), (32, function(1))];
    let (calls, end) = chain(&space, Registers::new(function(0), STACK, 0), &stack);
    assert_eq!((calls, end), (vec![function(0)], StackEnd::BadAddress));
    // Code that has called was not interrupted among patched calls: its rule stands.
    let stack = [(24, function(0)), (32 + 16, function(1))];
    let (calls, end) = chain(&space, Registers::new(function(0), STACK, 0), &stack);
    assert_eq!((calls, end), (vec![function(0), function(0) - 1], StackEnd::Complete));
}

/// A new task begins where no call leads: its first stacks broke in 6.1 (2026-11-27).
#[test]
fn a_function_is_started_by_a_return() {
    let space = kernel(&[
        Entry(16, 0, SP, 0, 0),
        Entry(0, 0, 0, 0, 0),
        Entry(0, 0, 0, 0, 4),
        Entry(8, 0, SP, 0, 0),
        Entry(8, 0, SP, 0, 0),
    ]);
    let start = KERNEL + 2 * 16;
    let registers = Registers::new(function(0), STACK, 0);
    let unwound = unwind(&space, registers, &words(&[(8, start)]));
    let calls: Vec<u64> = unwound.calls.iter().map(|call| call.address).collect();
    assert_eq!((calls, unwound.interrupted, unwound.end), (vec![function(0), start], vec![1], StackEnd::Complete));
    // A call at the end of a function leads to the first byte of the next one, too.
    let stack = [(8, KERNEL + 4 * 16), (16, function(2))];
    let (calls, end) = chain(&space, registers, &stack);
    assert_eq!((calls, end), (vec![function(0), KERNEL + 4 * 16 - 1, function(2) - 1], StackEnd::Complete));
}

/// Behind `call error_entry` the processor's frame is not where the rule has it, while that function copies the registers (6.12, 2026-11-27).
#[test]
fn an_entry_whose_registers_are_saved_by_a_function_that_it_calls() {
    let space = kernel(&[Entry(8, 0, SP, 0, 0), Entry(8, 0, SP, 0, 2), Entry(16, 0, SP, 0, 0), Entry(0, 0, 0, 0, 4)]);
    let registers = Registers::new(function(0), STACK, 0);
    let saved = |code_segment| {
        let all = 8;
        let frame = [function(2), code_segment, 0x246, STACK + 400, 0x18];
        let registers: Vec<(u64, u64)> = (16..).zip(frame).map(|(index, word)| (all + index * 8, word)).collect();
        let stack = [(0, function(1)), (all + 8, 3), (all + 16, 0), (all + 24, 0x55b0_2e63_ecf8)];
        let interrupted = [(408, function(3))];
        chain(&space, Registers::new(function(0), STACK, 0), &[&stack[..], &registers, &interrupted].concat())
    };
    assert_eq!(saved(0x33), (vec![function(0), function(1) - 1], StackEnd::Complete));
    let whole = vec![function(0), function(1) - 1, function(2), function(3) - 1];
    assert_eq!(saved(0x10), (whole, StackEnd::Complete));
    // The frame where the rule has it.
    let frame = [(0, function(1)), (16, function(2)), (24, 0x33), (32, 0x246), (48, 0x2b)];
    assert_eq!(chain(&space, registers, &frame), (vec![function(0), function(1) - 1], StackEnd::Complete));
}

#[test]
fn tables_that_contradict_themselves_are_refused() {
    let parse = |addresses: &[i32], entries: usize| {
        let addresses: Vec<u8> = addresses.iter().flat_map(|address| address.to_le_bytes()).collect();
        OrcTable::parse(KERNEL, &addresses, &vec![0; entries * 6]).err()
    };
    assert_eq!(parse(&[], 0), Some(OrcError::Lengths));
    assert_eq!(parse(&[0], 2), Some(OrcError::Lengths));
    assert_eq!(parse(&[64, 0], 2), Some(OrcError::NotSorted));
    assert_eq!(parse(&[0, 64], 2), None);
    let addresses = vec![0; 4 * 0x1_0001];
    let entries: Vec<u8> = (0..0x1_0001u32).flat_map(|number| [&number.to_le_bytes()[..], &[SP, 0]].concat()).collect();
    let of_rules = |count: usize| OrcTable::parse(KERNEL, &addresses[..4 * count], &entries[..6 * count]).err();
    // The addresses are relative to their own places, so they are sorted.
    assert_eq!([of_rules(0x1_0000), of_rules(0x1_0001)], [None, Some(OrcError::Rules)]);
}

/// The table is in blocks of 64 KiB of addresses, some of them without an entry.
#[test]
fn an_address_has_the_last_entry_that_is_not_above_it() {
    let starts = [0u64, 0x10, 0xfff0, 0xffff, 0x1_0000, 0x1_0010, 0x3_0000, 0x3_fffe, 0x3_ffff, 0x20_0000, 0x20_0001];
    let table_at = KERNEL + 0x100_0000;
    let relative = |(index, start): (usize, &u64)| {
        ((KERNEL + start).wrapping_sub(table_at + index as u64 * 4) as i32).to_le_bytes()
    };
    let addresses: Vec<u8> = starts.iter().enumerate().flat_map(relative).collect();
    // Each other one is a call; the others are no code.
    let entries: Vec<u8> = (0..starts.len()).flat_map(|index| [8, 0, 0, 0, [SP, 0][index % 2], 0]).collect();
    let table = OrcTable::parse(table_at, &addresses, &entries).unwrap();
    let near = |start: &u64| [start.wrapping_sub(1), *start, start + 1, start + 0x1_0000, start + 0x7_0000];
    for offset in starts.iter().flat_map(near).chain([0x7000_0000]) {
        let last = starts.iter().rposition(|start| *start <= offset).filter(|_| offset < u64::MAX);
        let is_call = last.is_some_and(|last| last % 2 == 0);
        let begins = is_call && last.is_some_and(|last| starts[last] == offset);
        let address = KERNEL.wrapping_add(offset);
        assert_eq!((table.has_rule(address), table.is_start(address)), (is_call, begins), "{offset:x}");
    }
}

proptest! {
    #[test]
    fn whatever_lies_in_memory_ends(
        entries in proptest::collection::vec((-64..64i16, -64..64i16, any::<u8>(), any::<u8>()), 1..40),
        stack in proptest::collection::vec(prop_oneof![(0..40u64).prop_map(function), (0..300u64).prop_map(|i| STACK + i * 8), any::<u64>()], 0..300),
        rip in 0..40u64, rbp in 0..300u64,
    ) {
        let entries: Vec<Entry> = entries.into_iter().map(|(a, b, c, d)| Entry(a, b, c & 15, c >> 4, d & 15)).collect();
        let map = SymbolMap::parse(format!("{KERNEL:x} T _stext\n").as_bytes(), &[]).unwrap();
        let mut space = AddressSpace::default();
        let range = KERNEL..KERNEL + 0x1000;
        space.add(range.clone(), 0, 0, Arc::new(Image::of_map(&map, range, Some(Arc::new(table(&entries))))));
        let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
        let registers = Registers::new(function(rip), STACK, STACK + rbp * 8);
        let chain = unwind(&space, registers, &bytes);
        prop_assert!(!chain.calls.is_empty() && chain.calls.len() <= DEPTH_MAX);
    }
}
