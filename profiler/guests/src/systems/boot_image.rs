//! Linux kernels for boot loaders (`vmlinuz`, bzImage, Image): compressed, or without symbols, so they contain no names.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Offset of the boot protocol's magic number (`Documentation/arch/x86/boot.rst`).
const MAGIC_AT: usize = 0x202;
const MAGIC: &[u8] = b"HdrS";
/// The same of AArch64 (`Documentation/arm64/booting.rst`).
const AARCH64_MAGIC_AT: usize = 56;
const AARCH64_MAGIC: &[u8] = b"ARM\x64";

/// Whether these are the first bytes of one.
pub(crate) fn starts_like_one(bytes: &[u8]) -> bool {
    let has = |at: usize, magic: &[u8]| bytes.get(at..).is_some_and(|rest| rest.starts_with(magic));
    has(MAGIC_AT, MAGIC) || has(AARCH64_MAGIC_AT, AARCH64_MAGIC)
}

/// Whether a file is one; not if it cannot be read.
pub fn is_boot_image(path: &Path) -> bool {
    let mut start = [0; MAGIC_AT + MAGIC.len()];
    let is_file = path.metadata().is_ok_and(|data| data.is_file());
    is_file && File::open(path).is_ok_and(|file| file.read_exact_at(&mut start, 0).is_ok()) && starts_like_one(&start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_magic_number_stands_in_the_header() {
        let path = std::env::temp_dir().join(format!("glass-boot-image-{}", std::process::id()));
        let mut bytes = vec![0; 1024];
        std::fs::write(&path, &bytes).unwrap();
        assert!(!is_boot_image(&path));
        bytes[MAGIC_AT..MAGIC_AT + 4].copy_from_slice(MAGIC);
        std::fs::write(&path, &bytes).unwrap();
        assert!(is_boot_image(&path));
        bytes[MAGIC_AT] = 0;
        bytes[AARCH64_MAGIC_AT..AARCH64_MAGIC_AT + 4].copy_from_slice(AARCH64_MAGIC);
        std::fs::write(&path, &bytes).unwrap();
        assert!(is_boot_image(&path));
        bytes[AARCH64_MAGIC_AT] = 0;
        bytes[MAGIC_AT..MAGIC_AT + 4].copy_from_slice(MAGIC);
        std::fs::write(&path, &bytes[..MAGIC_AT + 2]).unwrap();
        assert!(!is_boot_image(&path));
        std::fs::remove_file(&path).unwrap();
        assert!(!is_boot_image(&path));
    }
}
