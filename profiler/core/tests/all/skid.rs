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
const NAMES: [&str; 3] = ["caller", "callee", "caller_by_pointer"];

#[test]
fn a_block_that_ends_with_a_call_or_a_return_has_its_own_time() {
    let folder = Folder::new("skid").unwrap();
    let flags = ["-O2", "-no-pie", "-fcf-protection=none"];
    let Some(program) = compile(&folder, "calls.c", &flags) else { return };
    let image = Arc::new(Image::parse(&std::fs::read(program).unwrap(), &NAMES).unwrap());
    let [caller, callee, by_pointer] = NAMES.map(|name| image.symbol(name).unwrap());
    let mut code = [0; 64];
    image.code(caller, &mut code);
    let call = code.iter().position(|byte| *byte == CALL).unwrap();
    let return_address = caller + call as u64 + 5;
    let mut space = AddressSpace::default();
    space.add(image.linked_range(), 0, 0, image.clone());
    let at = |rip| Registers::new(rip, 0x7000, 1);
    let stack = |top: u64| [top.to_le_bytes(), [0; 8]].concat();
    let [stays, returned] = [false, true].map(|has_returned| Skid::NextBlock { has_returned });

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
    image.code(by_pointer, &mut code);
    let call = code.windows(2).position(|bytes| bytes[0] == INDIRECT && bytes[1] >> 3 & 7 == 2).unwrap();
    let bytes = match code[call + 1] {
        0x15 => 6,
        modrm if modrm >> 6 == 3 => 2,
        other => panic!("a call with {other:#x}"),
    };
    let return_address = by_pointer + (call + bytes) as u64;
    let entered = correction(&space, at(callee), &stack(return_address), stays);
    assert_eq!(entered, Correction::InCaller(Registers::new(return_address - 1, 0x7008, 1)));
    for (registers, top) in [(at(callee + 1), return_address), (at(callee), return_address + 1)] {
        assert_eq!(correction(&space, registers, &stack(top), stays), Correction::None, "{registers:x?} {top:x}");
    }
    assert_eq!(correction(&space, at(return_address), &stack(0), returned), Correction::None);
}
