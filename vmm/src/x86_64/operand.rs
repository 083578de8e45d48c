//! Where the operand in memory of an instruction is (Intel SDM, volume 2, chapter 2), as far as that is needed to find the page of a fault: of an
//! instruction without one the address is any.

use kvm_bindings::kvm_regs;

const REX: u8 = 0x40;
/// Prefixes that come first, and those of them that select a segment with a base.
const LEGACY: [u8; 11] = [0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3];
const FS: u8 = 0x64;
const GS: u8 = 0x65;
/// Lengths of the constant behind an operand, which an address relative to the next instruction depends on.
const CONSTANTS: [u64; 4] = [0, 1, 2, 4];

/// The addresses at which the operand of the instruction `code` may begin: several if it is relative to the next instruction. `segments` returns the bases
/// of FS and GS.
pub fn addresses(code: &[u8], registers: &kvm_regs, segments: impl FnOnce() -> Option<[u64; 2]>) -> Vec<u64> {
    decode(code, registers, segments).unwrap_or_default()
}

fn decode(code: &[u8], registers: &kvm_regs, segments: impl FnOnce() -> Option<[u64; 2]>) -> Option<Vec<u64>> {
    let mut at = 0;
    let mut base = 0;
    let mut segment = None;
    while LEGACY.contains(code.get(at)?) {
        segment = Some(code[at]).filter(|prefix| [FS, GS].contains(prefix)).or(segment);
        at += 1;
    }
    if let Some(prefix) = segment {
        base = segments()?[usize::from(prefix == GS)];
    }
    // Bits X and B, which extend the index and the base.
    let (mut extends_index, mut extends_base) = (0, 0);
    let mut rex = |bits: u8| (extends_index, extends_base) = (bits >> 1 & 1, bits & 1);
    match *code.get(at)? {
        bits if bits & 0xf0 == REX => {
            rex(bits);
            at += 1;
            at += opcode_bytes(&code[at..])?;
        }
        // VEX and EVEX have them inverted.
        0xc5 => at += 3,
        0xc4 => {
            rex(!*code.get(at + 1)? >> 5);
            at += 4;
        }
        0x62 => {
            rex(!*code.get(at + 1)? >> 5);
            at += 5;
        }
        _ => at += opcode_bytes(&code[at..])?,
    }
    let form = *code.get(at)?;
    at += 1;
    let (mode, low) = (form >> 6, form & 7);
    if mode == 3 {
        return None;
    }
    let mut address = base;
    let mut is_relative = false;
    let displacement_bytes = |mode| [0, 1, 4][usize::from(mode)];
    let mut bytes = displacement_bytes(mode);
    if low == 4 {
        let scaled = *code.get(at)?;
        at += 1;
        let index = scaled >> 3 & 7 | extends_index << 3;
        if index != 4 {
            address = address.wrapping_add(register(registers, index) << (scaled >> 6));
        }
        match (scaled & 7, mode) {
            (5, 0) => bytes = 4,
            (low, _) => address = address.wrapping_add(register(registers, low | extends_base << 3)),
        }
    } else if low == 5 && mode == 0 {
        (is_relative, bytes) = (true, 4);
    } else {
        address = address.wrapping_add(register(registers, low | extends_base << 3));
    }
    let displacement = code.get(at..at + bytes)?;
    let displacement = match *displacement {
        [] => 0,
        [byte] => i64::from(byte.cast_signed()),
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        _ => return None,
    };
    address = address.wrapping_add_signed(displacement);
    if !is_relative {
        return Some(vec![address]);
    }
    let end = registers.rip.wrapping_add((at + bytes) as u64);
    Some(CONSTANTS.map(|constant| address.wrapping_add(end).wrapping_add(constant)).into())
}

fn opcode_bytes(code: &[u8]) -> Option<usize> {
    Some(match *code {
        [0x0f, 0x38 | 0x3a, ..] => 3,
        [0x0f, ..] => 2,
        [_, ..] => 1,
        [] => return None,
    })
}

/// A general register by its number in instructions.
fn register(registers: &kvm_regs, number: u8) -> u64 {
    let kvm_regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, .. } = *registers;
    [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15][usize::from(number & 15)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_where_the_processor_has_them() {
        let registers = kvm_regs {
            rax: 0x1000,
            rcx: 0x10,
            rbx: 0x2000,
            rsp: 0x3000,
            rbp: 0x4000,
            r9: 0x5000,
            r12: 0x6000,
            r13: 0x7000,
            rip: 0x10_0000,
            ..Default::default()
        };
        let at = |code: &[u8]| addresses(code, &registers, || Some([0x100, 0x200]));
        for (code, expected) in [
            (&[0x8b, 0x00][..], 0x1000),                                // mov eax, [rax]
            (&[0x48, 0x89, 0x4b, 0xf8], 0x1ff8),                        // mov [rbx-8], rcx
            (&[0x8b, 0x84, 0x8b, 0, 1, 0, 0], 0x2140),                  // mov eax, [rbx+rcx*4+0x100]
            (&[0x8b, 0x04, 0x25, 0x78, 0x56, 0x34, 0x12], 0x1234_5678), // mov eax, [0x12345678]
            (&[0x48, 0x8b, 0x04, 0x24], 0x3000),                        // mov rax, [rsp]
            (&[0x41, 0x8b, 0x04, 0x24], 0x6000),                        // mov eax, [r12]
            (&[0x41, 0x8b, 0x45, 0x01], 0x7001),                        // mov eax, [r13+1]
            (&[0x43, 0xc6, 0x04, 0x09, 2], 0xa000),                     // mov byte [r9+r9], 2
            (&[0xf3, 0x0f, 0x6f, 0x45, 0x00], 0x4000),                  // movdqu xmm0, [rbp]
            (&[0xc5, 0xfe, 0x6f, 0x03], 0x2000),                        // vmovdqu ymm0, [rbx]
            (&[0xc4, 0xc1, 0x7e, 0x6f, 0x01], 0x5000),                  // vmovdqu ymm0, [r9]
            (&[0x65, 0x48, 0x8b, 0x00], 0x1200),                        // mov rax, gs:[rax]
            (&[0x64, 0x48, 0x8b, 0x00], 0x1100),                        // mov rax, fs:[rax]
            (&[0xf0, 0x0f, 0xc1, 0x03], 0x2000),                        // lock xadd [rbx], eax
        ] {
            assert_eq!(at(code), [expected], "{code:x?}");
        }
        // cmp byte [rip+0x10], 0
        assert!(at(&[0x80, 0x3d, 0x10, 0, 0, 0, 0]).contains(&0x10_0017));
        // mov eax, ecx; what is cut off; prefixes without an end
        assert!(at(&[0x89, 0xc8]).is_empty());
        for length in 0..7 {
            at(&[0x8b, 0x84, 0x8b, 0, 1, 0, 0][..length]);
        }
        assert!(at(&[0x66; 15]).is_empty());
    }
}
