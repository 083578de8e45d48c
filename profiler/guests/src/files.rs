//! The files that a recorder asks for: programs, libraries, and the one that has no file, the vDSO.

use std::fs;
use std::io::{Read, Seek, SeekFrom};

use glass_profile::recording::FileSource;

/// The largest file that is read whole, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 30;
/// What `/proc/PID/maps` calls the kernel's shared object.
pub(crate) const VDSO: &str = "[vdso]";

/// Reads files of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostFiles;

impl FileSource for HostFiles {
    fn load(&mut self, path: &str) -> Option<Vec<u8>> {
        if path == VDSO {
            return read_vdso();
        }
        // Only plain files: a path from a recording could name a device or a pipe that never ends.
        let metadata = fs::metadata(path).ok()?;
        if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
            return None;
        }
        fs::read(path).ok()
    }
}

/// Every process has the same vDSO, so ours serves for all.
fn read_vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = crate::process::parse_maps(&maps).into_iter().find(|line| line.path == VDSO)?;
    let mut memory = fs::File::open("/proc/self/mem").ok()?;
    memory.seek(SeekFrom::Start(line.start)).ok()?;
    let mut bytes = vec![0; usize::try_from(line.end - line.start).ok().filter(|bytes| *bytes <= 1 << 20)?];
    memory.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profile::image::Image;

    #[test]
    fn the_vdso_is_an_image_with_unwind_tables() {
        let Some(bytes) = HostFiles.load(VDSO) else { return eprintln!("skipped: this kernel maps no vDSO") };
        let image = Image::parse(&bytes, &["__vdso_clock_gettime"]).unwrap();
        assert!(image.is_covered(image.symbol("__vdso_clock_gettime").unwrap()));
    }

    #[test]
    fn devices_and_directories_are_no_files() {
        assert_eq!(HostFiles.load("/dev/zero"), None);
        assert_eq!(HostFiles.load("/"), None);
    }
}
