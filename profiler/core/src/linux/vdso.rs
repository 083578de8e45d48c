//! The program that a kernel maps into each process (vDSO), from the kernel's own memory: of a process's mapping not every page is there.

use super::btf::Btf;
use super::space::Space;
use super::structures::{Fields, pointer};

/// The most bytes of it; those of Linux 5.10 to 7.3 have two or three pages.
const BYTES_MAX: u64 = 1 << 20;

/// The symbol of its description, for 64-bit processes; the second since Linux 7.2 or a version shortly before that.
const SYMBOLS: [&str; 2] = ["vdso_image_64", "vdso64_image"];

/// The ELF file of the vDSO of 64-bit processes; `address` returns those of the kernel's symbols.
#[must_use]
pub fn vdso(space: &Space<'_>, btf: &Btf<'_>, address: impl Fn(&str) -> Option<u64>) -> Option<Vec<u8>> {
    let image = SYMBOLS.into_iter().find_map(address)?;
    let [data, bytes] = Fields::of(btf, ["vdso_image.data", "vdso_image.size"]).ok()?.read(space, image)?;
    let file = space.bytes(pointer(data, 1)?, usize::try_from(bytes).ok().filter(|_| bytes <= BYTES_MAX)?)?;
    file.starts_with(b"\x7fELF").then_some(file)
}

#[cfg(test)]
mod tests {
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
