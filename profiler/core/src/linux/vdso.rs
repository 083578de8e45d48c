//! The program that a kernel maps into each process (vDSO), from the kernel's own memory: of a process's mapping not every page is there.

use super::space::{Space, number};
use super::structures::{Fields, Layout, pointer};

/// The most bytes of it; those of Linux 5.10 to 7.3 have two or three pages.
const BYTES_MAX: u64 = 1 << 20;

/// The symbol of its description, for 64-bit processes; the second since Linux 7.2 or a version shortly before that.
const SYMBOLS: [&str; 2] = ["vdso_image_64", "vdso64_image"];
/// The symbol of the file itself, in kernels of AArch64.
pub(super) const FILE: &str = "vdso_start";
/// Bytes of the header of an ELF file.
pub(super) const HEADER_BYTES: usize = 64;

/// The ELF file of the vDSO of 64-bit processes; `address` returns those of the kernel's symbols.
#[must_use]
pub fn vdso(space: &Space<'_>, types: &dyn Layout, address: impl Fn(&str) -> Option<u64>) -> Option<Vec<u8>> {
    if let Some(start) = address(FILE) {
        let bytes = bytes_of(&space.bytes(start, HEADER_BYTES)?)?;
        return space.bytes(start, usize::try_from(bytes).ok()?);
    }
    let image = SYMBOLS.into_iter().find_map(address)?;
    let [data, bytes] = Fields::of(types, ["vdso_image.data", "vdso_image.size"]).ok()?.read(space, image)?;
    let file = space.bytes(pointer(data, 1)?, usize::try_from(bytes).ok().filter(|_| bytes <= BYTES_MAX)?)?;
    file.starts_with(b"\x7fELF").then_some(file)
}

/// How many bytes an ELF file has whose header this is: its table of sections is its last part.
pub(super) fn bytes_of(header: &[u8]) -> Option<u64> {
    let [start, each, count] = [(40, 8), (58, 2), (60, 2)].map(|(at, bytes)| number(header, at, bytes));
    let bytes = start?.checked_add(each? * count?)?;
    (header.starts_with(b"\x7fELF") && bytes <= BYTES_MAX).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::btf::Btf;
    use super::super::testing::{DIRECT, Memory, types};
    use super::*;

    #[test]
    fn its_bytes_by_either_symbol() {
        let (memory, types) = (Memory::new(), types(false));
        let btf = Btf::parse(&types, None).unwrap();
        memory.words(DIRECT + 0x100, &[DIRECT + 0x3000, 0x1800]);
        memory.bytes(DIRECT + 0x3000, b"\x7fELF");
        for name in SYMBOLS {
            let address = |asked: &str| (asked == name).then_some(DIRECT + 0x100);
            let file = vdso(&memory.space(), &btf, address).unwrap();
            assert!(file.len() == 0x1800 && file.starts_with(b"\x7fELF\0"));
        }
        assert_eq!(vdso(&memory.space(), &btf, |_| None), None);
        for image in
            [[DIRECT + 0x3008, 0x1800], [DIRECT + 0x3000, BYTES_MAX + 1], [0x3000, 0x1800], [DIRECT + 0x3000, 3]]
        {
            memory.words(DIRECT + 0x100, &image);
            assert_eq!(vdso(&memory.space(), &btf, |_| Some(DIRECT + 0x100)), None);
        }
    }
}
