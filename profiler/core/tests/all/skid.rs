//! Samples of an emulator at the start of a block belong to the block before.

use std::sync::Arc;

use crate::common::compile;
use glass_profiler_core::arch::x86_64::Registers;
use glass_profiler_core::event::Skid;
use glass_profiler_core::image::Image;
use glass_profiler_core::unwind::AddressSpace;
use glass_profiler_core::unwind::skid::{Correction, correction};
use glass_tests::folder::Folder;

const CALL: u8 = 0xe8;
/// `call` of a register or of memory, with the latter's ModRM bytes.
const INDIRECT: u8 = 0xff;
const NAMES: [&str; 5] = ["caller", "callee", "caller_by_pointer", "jumper", "caller_of_jumper"];

#[test]
fn a_block_that_ends_with_a_call_or_a_return_has_its_own_time() {
    let folder = Folder::new("skid").unwrap();
    let flags = ["-O2", "-no-pie", "-fcf-protection=none"];
    let Some(program) = compile(&folder, "calls.c", &flags) else { return };
    let image = Arc::new(Image::parse(&std::fs::read(program).unwrap(), &NAMES).unwrap());
    let [caller, callee, by_pointer, jumper, of_jumper] = NAMES.map(|name| image.symbol(name).unwrap());
    let [return_address, after_jumper] = [caller, of_jumper].map(|function| function + direct_call(&image, function));
    let mut space = AddressSpace::default();
    space.add(image.linked_range(), 0, 0, image.clone());
    let at = |rip| Registers::new(rip, 0x7000, 1);
    let stack = |top: u64| [top.to_le_bytes(), [0; 8]].concat();
    let [stays, returned] = [false, true].map(|has_returned| Skid::NextBlock { has_returned, block: None });

    let entered = correction(&space, at(callee), &stack(return_address), stays);
    assert_eq!(entered, Correction::InCaller(Registers::new(return_address - 1, 0x7008, 1)));
    assert_eq!(correction(&space, at(return_address), &stack(0), returned), Correction::InCallee(callee));

    // A machine that stops anywhere, a word on the stack that is no return address of this call, a block
    // behind a call that never returned, code that is not known.
    for (registers, top, skid) in [
        (at(callee), return_address, Skid::None),
        (at(return_address), 0, Skid::None),
        (at(callee), return_address + 1, stays),
        (at(callee + 1), return_address, stays),
        (at(return_address), 0, stays),
        (at(caller), return_address, stays),
        (at(caller), 0, returned),
        (at(0x10), return_address, stays),
        (at(0x10), 0, returned),
    ] {
        assert_eq!(
            correction(&space, registers, &stack(top), skid),
            Correction::None,
            "{registers:x?} {top:x} {skid:?}"
        );
    }
    assert_eq!(correction(&space, at(callee), &[], stays), Correction::None);

    // Where the call leads to is not in its code: the start of any function may be it.
    let mut code = [0; 64];
    image.code(by_pointer, &mut code);
    let call = code.windows(2).position(|bytes| bytes[0] == INDIRECT && bytes[1] >> 3 & 7 == 2).unwrap();
    let bytes = match code[call + 1] {
        0x15 => 6,
        modrm if modrm >> 6 == 3 => 2,
        other => panic!("a call with {other:#x}"),
    };
    let after_pointer = by_pointer + (call + bytes) as u64;
    let entered = correction(&space, at(callee), &stack(after_pointer), stays);
    assert_eq!(entered, Correction::InCaller(Registers::new(after_pointer - 1, 0x7008, 1)));
    for (registers, top) in [(at(callee + 1), after_pointer), (at(callee), after_pointer + 1)] {
        assert_eq!(correction(&space, registers, &stack(top), stays), Correction::None, "{registers:x?} {top:x}");
    }
    assert_eq!(correction(&space, at(after_pointer), &stack(0), returned), Correction::None);

    // The emulator has shown the block: it is exact, whatever was called and however.
    let known = |registers: Registers, top, has_returned, block| {
        correction(&space, registers, &stack(top), Skid::NextBlock { has_returned, block: Some(block) })
    };
    let in_caller = |address: u64| Correction::InCaller(Registers::new(address - 1, 0x7008, 1));
    assert_eq!(known(at(callee), return_address, false, caller), in_caller(return_address));
    assert_eq!(known(at(callee), after_pointer, false, by_pointer), in_caller(after_pointer));
    assert_eq!(known(at(jumper), after_jumper, false, of_jumper), in_caller(after_jumper));
    let jumped = Correction::InJump { entered: Registers::new(jumper, 0x7000, 1), block: jumper + 1 };
    assert_eq!(known(at(callee), after_jumper, false, jumper + 1), jumped);
    assert_eq!(
        known(at(callee), after_pointer, false, jumper + 1),
        Correction::InJump { entered: Registers::new(jumper, 0x7000, 1), block: jumper + 1 }
    );
    for after in [return_address, after_pointer, after_jumper] {
        assert_eq!(known(at(after), 0, true, callee + 1), Correction::InCallee(callee + 1), "{after:x}");
    }
    // The function has jumped to its own start, or to an address after a call; the stack has no return address, or one after no call; it is inside of
    // a function that nothing has called.
    for (registers, top, has_returned, block) in [
        (at(callee), return_address, false, callee + 1),
        (at(return_address), 0, true, caller),
        (at(callee), 0, false, jumper),
        (at(callee), after_jumper + 1, false, jumper),
        (at(callee + 1), after_jumper, false, jumper),
        (at(return_address), 0, false, callee),
        (at(return_address + 1), 0, true, callee),
    ] {
        assert_eq!(known(registers, top, has_returned, block), Correction::None, "{registers:x?} {top:x} {block:x}");
    }
    // Already at the next block, or nowhere in code: the return address decides.
    for block in [callee, 0x10] {
        assert_eq!(known(at(callee), return_address, false, block), in_caller(return_address));
    }
    for block in [return_address, 0x10] {
        assert_eq!(known(at(return_address), 0, true, block), Correction::InCallee(callee));
    }

    // Without a block: `jumper` cannot return, and jumps to one function only. Who has jumped to the start of a function is not in its code.
    assert_eq!(correction(&space, at(after_jumper), &stack(0), returned), Correction::InCallee(callee));
    assert_eq!(correction(&space, at(callee), &stack(after_jumper), stays), Correction::None);
}

/// Where the first direct call of a function ends, in bytes from its start.
fn direct_call(image: &Image, function: u64) -> u64 {
    let mut code = [0; 64];
    image.code(function, &mut code);
    code.iter().position(|byte| *byte == CALL).unwrap() as u64 + 5
}
