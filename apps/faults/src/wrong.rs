//! The faults. This module is wrong by design, so the comments of its `unsafe` blocks state the fault, not a proof.
#![allow(unsafe_code)]

use crate::instructions;
use alloc::vec::Vec;
use core::hint::black_box;
use glasshouse::Error;

pub fn past_the_end(index: usize) -> u8 {
    [1, 2, 3][black_box(index + 10)]
}

/// Takes memory until there is none.
pub fn all_memory() -> usize {
    let mut taken = Vec::new();
    loop {
        taken.push(black_box(alloc::vec![1u8; 100_000]));
        if taken.len() > 1 << 20 {
            return taken.len();
        }
    }
}

/// Takes memory in large blocks until there is none and writes both ends of each: how many MiB, and the highest address.
pub fn large_memory() -> (usize, usize) {
    const BLOCK_BYTES: usize = 16 << 20;
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    let mut last = 0;
    loop {
        let mut block = Vec::new();
        if block.try_reserve_exact(BLOCK_BYTES).is_err() {
            return (blocks.len() * (BLOCK_BYTES >> 20), last);
        }
        let ends = block.spare_capacity_mut();
        for place in [0, BLOCK_BYTES - 1] {
            let written = *ends[place].write(place as u8);
            assert_eq!(black_box(written), place as u8);
            last = last.max(&raw const ends[place] as usize);
        }
        blocks.push(block);
    }
}

pub fn recurse(depth: u64) -> u64 {
    let local = black_box([depth; 64]);
    if depth == u64::MAX { local[0] } else { recurse(depth + 1) + local[1] }
}

pub fn read_null() -> u64 {
    // SAFETY: none: page 0 is unmapped, so this is a page fault.
    unsafe { black_box(core::ptr::without_provenance::<u64>(8)).read_volatile() }
}

pub fn write_code() -> u64 {
    let code = recurse as fn(u64) -> u64 as *mut u8;
    // SAFETY: none: code is not writable, so this is a page fault.
    unsafe { black_box(code).write_volatile(0) };
    0
}

pub fn run_data() -> u64 {
    // Code of a function, on the heap.
    let data = black_box(instructions::RETURN.to_vec());
    // SAFETY: none: data is not executable, so the call is a page fault.
    let function = unsafe { core::mem::transmute::<*const u8, extern "C" fn() -> u64>(data.as_ptr()) };
    function()
}

pub fn invalid_instruction() -> u64 {
    instructions::invalid();
    0
}

pub fn privileged_instruction() -> u64 {
    instructions::privileged();
    0
}

/// Compares the image's memory functions with loops, over lengths, alignments and overlaps.
pub fn check_memory_functions() -> Result<(), Error> {
    const SPACE: usize = 600;
    let pattern: Vec<u8> = (0..SPACE).map(|index| (index * 7 + index / 256) as u8).collect();
    for len in (0..140).chain([255, 256, 257]) {
        for from in [0, 1, 7, 16, 100, 130] {
            for to in [0, 1, 3, 8, 16, 99, 100, 101, 115, 116, 163, 300] {
                let mut moved = pattern.clone();
                moved.copy_within(from..from + len, to);
                let expected =
                    |index: usize| pattern[if (to..to + len).contains(&index) { index - to + from } else { index }];
                check((0..SPACE).all(|index| moved[index] == expected(index)), "memmove", len, from, to)?;
                let mut copied = alloc::vec![0xaa; SPACE];
                copied[to..to + len].copy_from_slice(&pattern[from..from + len]);
                let expected =
                    |index: usize| if (to..to + len).contains(&index) { pattern[index - to + from] } else { 0xaa };
                check((0..SPACE).all(|index| copied[index] == expected(index)), "memcpy", len, from, to)?;
                let equal = pattern[from..from + len] == copied[to..to + len];
                check(equal, "memcmp of equal bytes", len, from, to)?;
            }
            let mut set = pattern.clone();
            set[from..from + len].fill(black_box(0x5b));
            let expected = |index: usize| if (from..from + len).contains(&index) { 0x5b } else { pattern[index] };
            check((0..SPACE).all(|index| set[index] == expected(index)), "memset", len, from, 0)?;
            for different in 0..len {
                let mut other = pattern.clone();
                other[from + different] = pattern[from + different].wrapping_add(1);
                let order = pattern[from..from + len].cmp(&other[from..from + len]);
                let expected = pattern[from + different].cmp(&other[from + different]);
                check(order == expected, "memcmp", len, from, different)?;
            }
        }
    }
    Ok(())
}

fn check(good: bool, function: &str, len: usize, from: usize, to: usize) -> Result<(), Error> {
    if good { Ok(()) } else { Err(alloc::format!("{function} is wrong for {len} bytes from {from} to {to}").into()) }
}
