//! Measures the memory reads of one sample for each way of reading RAM: four levels of page tables
//! and a stack, with a new translator each time as the backends do, and with the translations kept.
//! `memory_cost PID CR3 ADDRESS` of a VM whose address space and stack are known.
#![forbid(unsafe_code)]

use std::time::Instant;

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::arch::x86_64::paging::Paging;
use glass_profiler_guests::memory::{Physical, Ram, Translator};

const ROUNDS: u32 = 2000;
const STACK_BYTES: usize = 2048;

fn number(word: &str) -> Result<u64, std::num::ParseIntError> {
    u64::from_str_radix(word.trim_start_matches("0x"), 16)
}

/// Median of the nanoseconds that `work` takes.
fn median_ns(mut work: impl FnMut()) -> u128 {
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [pid, root, address] = &words[..] else {
        return Err("usage: memory_cost PID CR3 ADDRESS (hexadecimal, from QEMU's `info registers`)".into());
    };
    let (root, address) = (number(root)?, number(address)?);
    let paging = Paging { cr0: 1 << 31, cr3: root, cr4: 1 << 5, efer: None };
    let mut stack = vec![0; STACK_BYTES];
    println!("clock alone: {} ns", median_ns(|| ()));
    for ram in Ram::candidates(pid.parse()?, Architecture::X86_64)? {
        let copied = Translator::new(paging).read(&ram, address, &mut stack);
        if copied == 0 {
            continue;
        }
        let fresh = median_ns(|| {
            std::hint::black_box(Translator::new(paging).read(&ram, address, &mut stack));
        });
        let mut kept = Translator::new(paging);
        let cached = median_ns(|| {
            std::hint::black_box(kept.read(&ram, address, &mut stack));
        });
        let bare = median_ns(|| {
            std::hint::black_box(ram.read(root, &mut stack[..8]));
        });
        println!("{ram}: {copied} bytes, walked {fresh} ns, walk kept {cached} ns, one read {bare} ns");
    }
    Ok(())
}
