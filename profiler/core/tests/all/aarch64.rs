//! Unwinds snapshots that a real program for AArch64 takes of itself, with tables and without, with signed return addresses; QEMU runs it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use glass_profiler_core::arch::aarch64::{FP, LR, Registers};
use glass_profiler_core::image::Image;
use glass_profiler_core::model::StackEnd;
use glass_profiler_core::symbols::Symbols;
use glass_profiler_core::unwind::{AddressSpace, CallChain, StackMemory, UnwindCache};
use glass_tests::folder::Folder;
use glass_tests::programs::skip;

const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
const COMMON: [&str; 4] = ["-O2", "-static", "-no-pie", "-fno-optimize-sibling-calls"];
const TABLES: [&str; 2] = ["-fomit-frame-pointer", "-mbranch-protection=none"];
const RECORDS: [&str; 4] = [
    "-fno-omit-frame-pointer",
    "-mno-omit-leaf-frame-pointer",
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
];

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
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/snapshot_aarch64.c");
        let program = folder.file("program");
        let compiled = Command::new(COMPILER).args(COMMON).args(flags).arg(&source).arg("-o").arg(&program).output();
        let Ok(compiled) = compiled else {
            skip(&format!("there is no {COMPILER}"));
            return None;
        };
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        // The processor with pointer authentication.
        let Ok(output) = Command::new(EMULATOR).args(["-cpu", "max"]).arg(&program).output() else {
            skip(&format!("there is no {EMULATOR}"));
            return None;
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let (registers, stack) = text.split_once('\n').unwrap();
        let words: Vec<u64> = registers.split(' ').map(|word| u64::from_str_radix(word, 16).unwrap()).collect();
        let stack = stack.trim_end().as_bytes().chunks(2);
        let stack = stack.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect();
        let bytes = std::fs::read(&program).unwrap();
        let image = Arc::new(Image::parse(&bytes, &["a", "b", "c"]).unwrap());
        let mut space = AddressSpace::default();
        space.add(image.linked_range(), 0, 0, image.clone());
        let mut registers = Registers { pc: words[0], sp: words[1], ..Registers::default() };
        (registers.general[FP], registers.general[LR]) = (words[2], words[3]);
        Some(Snapshot { registers, stack, space, symbols: Symbols::parse(&bytes).unwrap(), image })
    }

    fn unwind(&self, registers: Registers) -> CallChain {
        let skip = (registers.sp - self.registers.sp) as usize;
        let pieces = [(registers.sp, self.stack[skip..].to_vec())];
        self.space.unwind(&mut UnwindCache::default(), &registers.into(), StackMemory(&pieces))
    }

    /// Checks that a chain has these functions, main, and what has called main up to the program's start.
    fn check(&self, chain: &CallChain, expected: &[&str]) {
        let name = |address| self.symbols.locate(address).pop().map_or("?".to_owned(), |location| location.function);
        let names: Vec<String> = chain.calls.iter().map(|call| name(call.address)).collect();
        assert_eq!(names[..expected.len()], *expected, "{names:?}");
        assert_eq!((names.last().map(String::as_str), chain.end), (Some("_start"), StackEnd::Complete), "{names:?}");
    }

    fn word(&self, address: u64) -> u64 {
        let offset = (address - self.registers.sp) as usize;
        u64::from_le_bytes(self.stack[offset..offset + 8].try_into().unwrap())
    }

    /// The address of the first instruction of c for which this holds.
    fn in_c(&self, is_it: impl Fn(u32) -> bool) -> u64 {
        let start = self.image.symbol("c").unwrap();
        let mut code = [0; 256];
        self.image.code(start, &mut code);
        let mut words = code.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        start + 4 * words.position(is_it).unwrap() as u64
    }
}

#[test]
fn tables_without_frame_records() {
    let Some(snapshot) = Snapshot::take("aarch64-tables", &TABLES) else { return };
    assert!(snapshot.image.is_covered(snapshot.registers.pc));
    snapshot.check(&snapshot.unwind(snapshot.registers), &["c", "b", "a", "main"]);
    // The rule of a function that calls none leaves the return address in its register.
    let mut lost = snapshot.registers;
    lost.general[LR] = 0;
    assert_eq!(snapshot.unwind(lost).calls.len(), 1);
}

#[test]
fn signed_return_addresses() {
    for flags in [&["-fomit-frame-pointer"][..], &RECORDS] {
        let flags = [flags, &["-mbranch-protection=pac-ret+leaf"]].concat();
        let Some(snapshot) = Snapshot::take("aarch64-signed", &flags) else { return };
        let signed = snapshot.stack.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let is_signed = |word: &u64| word >> 48 != 0 && snapshot.image.has_code(snapshot.registers.stripped(*word));
        assert!(signed.filter(is_signed).count() >= 3, "no return address is signed");
        snapshot.check(&snapshot.unwind(snapshot.registers), &["c", "b", "a", "main"]);
    }
}

#[test]
fn frame_records_without_tables() {
    let Some(snapshot) = Snapshot::take("aarch64-records", &RECORDS) else { return };
    assert!(!snapshot.image.is_covered(snapshot.registers.pc));
    snapshot.check(&snapshot.unwind(snapshot.registers), &["c", "b", "a", "main"]);
}

#[test]
fn before_and_after_the_record_is_there() {
    let Some(snapshot) = Snapshot::take("aarch64-prologue", &RECORDS) else { return };
    let record = snapshot.registers.general[FP];
    let (fp, lr) = (snapshot.word(record), snapshot.word(record + 8));
    let start = snapshot.image.symbol("c").unwrap();
    // `stp x29, x30, [sp, #-N]!`: c starts with it.
    assert_eq!(snapshot.in_c(|word| word & 0xffc0_7fff == 0xa980_7bfd), start);
    let (set, ret) = (snapshot.in_c(|word| word == 0x9100_03fd), snapshot.in_c(|word| word == 0xd65f_03c0));
    let frame_bytes = {
        let mut code = [0; 4];
        snapshot.image.code(start, &mut code);
        u64::from(128 - (u32::from_le_bytes(code) >> 15 & 0x7f)) * 8
    };
    let at = |pc, sp| {
        let mut registers = Registers { pc, sp, ..Registers::default() };
        (registers.general[FP], registers.general[LR]) = (fp, lr);
        registers
    };
    let moments = [
        ("at stp", at(start, record + frame_bytes)),
        ("after stp", at(set, record)),
        ("at ret", at(ret, record + frame_bytes)),
    ];
    for (moment, registers) in moments {
        println!("{moment}");
        snapshot.check(&snapshot.unwind(registers), &["c", "b", "a", "main"]);
    }
}
