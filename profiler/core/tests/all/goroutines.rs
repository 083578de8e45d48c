//! Stacks of Go: C and the runtime run on the stack of a thread, called from that of a goroutine.

use std::sync::Arc;

use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::image::Image;
use glass_profiler_core::map::SymbolMap;
use glass_profiler_core::model::StackEnd;
use glass_profiler_core::unwind::{AddressSpace, StackMemory, UnwindCache};

const NAMES: [&str; 6] = [
    "main.main",
    "runtime.systemstack.abi0",
    "runtime.inner",
    "runtime.goexit.abi0",
    "runtime.mcall",
    "runtime.mstart.abi0",
];
const MAIN: u64 = 0x40_1000;
const SYSTEM_STACK: u64 = 0x40_2000;
const INNER: u64 = 0x40_3000;
const GOEXIT: u64 = 0x40_4000;
const MCALL: u64 = 0x40_5000;
const MSTART: u64 = 0x40_6000;
const END: u64 = 0x40_7000;
const GOROUTINE: u64 = 0xc0_0000_1000;
const THREAD: u64 = 0x7ffe_0000_0000;

/// The functions of a stack of `runtime.inner`, and why it ends.
fn unwound(frame_pointer: u64, pieces: &[(u64, &[u64])]) -> (Vec<u64>, StackEnd) {
    let lines: String =
        NAMES.iter().zip(1..).map(|(name, at)| format!("{:x} T {name}\n", MAIN + (at - 1) * 0x1000)).collect();
    let map = SymbolMap::parse(format!("{lines}{END:x} T end\n").as_bytes(), &[]).unwrap();
    let mut space = AddressSpace::default();
    space.add(MAIN..END, 0, 0, Arc::new(Image::of_map(&map, MAIN..END, None)));
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let pieces: Vec<(u64, Vec<u8>)> = pieces.iter().map(|(start, words)| (*start, bytes(words))).collect();
    let registers = Registers::new(INNER + 8, THREAD, frame_pointer);
    let chain = space.unwind(&mut UnwindCache::default(), &registers.into(), StackMemory(&pieces));
    (chain.calls.iter().map(|call| call.address & !0xfff).collect(), chain.end)
}

/// Such stacks had callers by chance, or none, and counted as broken or even as whole (2026-11-27).
#[test]
fn the_stack_of_a_goroutine_is_followed_from_that_of_its_thread() {
    let thread: (u64, &[u64]) = (THREAD, &[1, GOROUTINE, SYSTEM_STACK + 16, 7, 7]);
    let goroutine: (u64, &[u64]) = (GOROUTINE, &[GOROUTINE + 32, MAIN + 16, 5, 5, 0, GOEXIT + 1]);
    let whole = (vec![INNER, SYSTEM_STACK, MAIN, GOEXIT], StackEnd::Complete);
    assert_eq!(unwound(THREAD + 8, &[thread, goroutine]), whole);
    // Without the other stack; with something that is no return address there.
    let other = (vec![INNER, SYSTEM_STACK], StackEnd::OtherStack);
    assert_eq!(unwound(THREAD + 8, &[thread]), other);
    assert_eq!(unwound(THREAD + 8, &[thread, (GOROUTINE, &[GOROUTINE + 32, 16])]), other);
    // Both are one piece if they are near to each other.
    let near: (u64, &[u64]) = (THREAD, &[1, THREAD + 40, SYSTEM_STACK + 16, 7, 7, 0, MAIN + 16, GOEXIT + 1, 0]);
    let (calls, _) = unwound(THREAD + 8, &[near]);
    assert_eq!(calls[..3], [INNER, SYSTEM_STACK, MAIN]);
}

#[test]
fn the_scheduler_and_the_start_of_a_thread_have_no_callers() {
    for root in [MCALL, MSTART] {
        let thread: (u64, &[u64]) = (THREAD, &[1, GOROUTINE, root + 16, 0x1234, MAIN + 16]);
        assert_eq!(unwound(THREAD + 8, &[thread]), (vec![INNER, root], StackEnd::Complete));
    }
}
