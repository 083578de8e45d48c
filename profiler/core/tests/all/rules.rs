//! Unwind rules that most functions have not: a program takes snapshots of itself where they matter.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use crate::common::{compile, unwind};
use glass_profiler_core::arch::x86_64::{GENERAL, Registers};
use glass_profiler_core::image::Image;
use glass_profiler_core::model::StackEnd;
use glass_profiler_core::symbols::Symbols;
use glass_profiler_core::unwind::AddressSpace;
use glass_tests::folder::Folder;

struct Program {
    path: PathBuf,
    space: AddressSpace,
    symbols: Symbols,
    _folder: Folder,
}

/// What a program prints of itself.
struct Snapshot {
    registers: Registers,
    stack: Vec<u8>,
}

impl Program {
    fn new(name: &str) -> Option<Program> {
        let folder = Folder::new(name).unwrap();
        let path = compile(&folder, "rules.c", &["-O2", "-static", "-no-pie", "-fcf-protection=none"])?;
        let bytes = std::fs::read(&path).unwrap();
        let image = Arc::new(Image::parse(&bytes, &[]).unwrap());
        let mut space = AddressSpace::default();
        space.add(image.linked_range(), 0, 0, image);
        Some(Program { path, space, symbols: Symbols::parse(&bytes).unwrap(), _folder: folder })
    }

    fn run(&self, case: &str) -> Snapshot {
        let mut program = Command::new(&self.path);
        // Above the stack, which the program copies beyond its start.
        let output = program.arg(case).env_clear().env("ROOM", "-".repeat(16 << 10)).output().unwrap();
        assert!(output.status.success(), "{case}");
        let text = String::from_utf8(output.stdout).unwrap();
        let (registers, stack) = text.split_once('\n').unwrap();
        let words = registers.split_whitespace().map(|word| u64::from_str_radix(word, 16).unwrap());
        let words: Vec<u64> = words.collect();
        let stack = stack.trim_end().as_bytes().chunks(2);
        let stack = stack.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect();
        let general: [u64; GENERAL] = words[..GENERAL].try_into().unwrap();
        Snapshot { registers: Registers::of_all(words[GENERAL], general), stack }
    }

    /// The functions of a stack up to and with main, and why it ends.
    fn unwind(&self, snapshot: &Snapshot) -> (Vec<String>, StackEnd) {
        let chain = unwind(&self.space, snapshot.registers, &snapshot.stack);
        let name = |address| self.symbols.locate(address).pop().map_or("?".to_owned(), |location| location.function);
        let names: Vec<String> = chain.calls.iter().map(|call| name(call.address)).collect();
        let end = names.iter().position(|name| name == "main").map_or(names.len(), |index| index + 1);
        (names[..end].to_vec(), chain.end)
    }
}

/// Of OpenSSL's SHA-512 34 % of the stacks were broken, of vfork all (2026-11-25).
#[test]
fn the_callers_frame_is_in_any_register_or_in_memory() {
    let Some(program) = Program::new("rules-registers") else { return };
    for case in ["by_rax", "by_r10", "by_r11", "by_r15", "by_memory", "by_return"] {
        let snapshot = program.run(case);
        assert_eq!(
            program.unwind(&snapshot),
            (vec![case.to_owned(), "caller".to_owned(), "main".to_owned()], StackEnd::Complete)
        );
    }
}

#[test]
fn registers_of_a_caller_are_restored_from_memory_and_registers() {
    let Some(program) = Program::new("rules-saved") else { return };
    for (leaf, case) in [("leaf_memory", "by_saved_memory"), ("leaf_register", "by_saved_register")] {
        let snapshot = program.run(case);
        let names = [leaf, case, "caller", "main"].map(str::to_owned).to_vec();
        assert_eq!(program.unwind(&snapshot), (names, StackEnd::Complete));
    }
}

#[test]
fn signal_handlers_have_the_callers_of_what_they_interrupt() {
    let Some(program) = Program::new("rules-signals") else { return };
    for case in ["handle", "handle_without_table"] {
        let (names, end) = program.unwind(&program.run(case));
        assert_eq!(end, StackEnd::Complete, "{case}: {names:?}");
        assert_eq!(names[..2], ["handler_code", "handler"], "{case}");
        assert_eq!(names[3..], ["interrupted", case, "caller", "main"].map(str::to_owned), "{case}: {names:?}");
    }
    // On a stack of its own: that of the interrupted code is not copied.
    let (names, end) = program.unwind(&program.run("handle_elsewhere"));
    assert_eq!(names[3..], ["interrupted"], "{names:?}");
    assert_ne!(end, StackEnd::Complete);
}

/// The frame pointer was followed where a rule had failed: the same caller twice, and none broken (2026-11-25).
#[test]
fn a_rule_that_fails_ends_the_stack() {
    let Some(program) = Program::new("rules-fail") else { return };
    let names = ["leaf_undefined", "by_nothing"].map(str::to_owned).to_vec();
    assert_eq!(program.unwind(&program.run("by_nothing")), (names, StackEnd::RuleFailed));
    let snapshot = program.run("by_r10");
    let Registers { rip, rsp, rbp, .. } = snapshot.registers;
    let without = Snapshot { registers: Registers::new(rip, rsp, rbp), ..snapshot };
    assert_eq!(program.unwind(&without), (vec!["by_r10".to_owned()], StackEnd::RuleFailed));
}
