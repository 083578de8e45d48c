//! The firmware that an image has for QEMU's microvm (platform/vm/src/arch/x86_64/firmware.s): it starts the image sooner than QEMU's.

use glass_profiler_core::elf;
use glass_profiler_guests::files::{HostFile, cache};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the image has it.
const SECTION: &str = ".firmware";
/// QEMU takes multiples of this.
const ROM_BYTES: usize = 64 << 10;
const FILE: &str = "firmware";

/// A file with the firmware of an image, in the cache. `None` if the image has none, or there is no cache: then QEMU's own boots it as well.
pub(super) fn of_image(image: &Path) -> Option<PathBuf> {
    let code = elf::section(&HostFile::open(image).ok()?, SECTION)?;
    // The processor starts 16 bytes before the end.
    let mut rom = vec![0; ROM_BYTES.checked_sub(code.len())?];
    rom.extend_from_slice(&code);
    written(&cache::folder()?, &rom).ok()
}

/// A file with these bytes in `folder`. Its name depends on them, because a VM may be starting with another.
fn written(folder: &Path, rom: &[u8]) -> io::Result<PathBuf> {
    // FNV-1a; that the bytes are the same is checked.
    let hash =
        rom.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    let path = folder.join(format!("{FILE}-{hash:016x}"));
    if fs::read(&path).is_ok_and(|found| found == rom) {
        return Ok(path);
    }
    fs::create_dir_all(folder)?;
    let part = folder.join(format!("{FILE}-{}.part", std::process::id()));
    fs::write(&part, rom)?;
    fs::rename(&part, &path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_and_written_once() {
        let folder = std::env::temp_dir().join(format!("glass-firmware-{}", std::process::id()));
        let cache = folder.join("cache");
        let path = written(&cache, &[1; 100]).unwrap();
        let other = written(&cache, &[2; 100]).unwrap();
        assert_ne!(path, other);
        // One that was cut off is written again.
        fs::write(&path, [1; 50]).unwrap();
        assert_eq!(written(&cache, &[1; 100]).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), [1; 100]);
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        written(&cache, &[1; 100]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
