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
