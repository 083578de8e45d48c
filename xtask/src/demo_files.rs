//! The files of the demo: 256 MiB in sizes from 1 KiB to 64 MiB, or a short one of 6 MiB.

use crate::run;
use anyhow::{Context, Result, ensure};
use glass_tests::content::Content;
use std::path::Path;
use std::process::Command;

/// How many files there are of each size in KiB. Large and small ones alternate when they are sent.
const SIZES: [(u64, usize); 7] =
    [(64 << 10, 1), (16 << 10, 5), (4 << 10, 20), (1 << 10, 28), (256, 15), (16, 15), (1, 16)];
const SIZES_SHORT: [(u64, usize); 5] = [(2 << 10, 1), (1 << 10, 3), (256, 4), (16, 3), (1, 3)];

/// A file to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name in the demo's folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// The files, in the order in which they are sent.
pub fn plan(is_short: bool) -> Vec<File> {
    let mut sizes: Vec<(usize, u64)> = Vec::new();
    for &(kib, count) in if is_short { &SIZES_SHORT[..] } else { &SIZES } {
        sizes.extend((0..count).map(|index| (index * 1000 / count, kib << 10)));
    }
    // Each size is spread evenly over the whole; the sort is stable, so the order never changes.
    sizes.sort_by_key(|(place, _)| *place);
    let file = |(number, (_, bytes))| File { name: format!("file-{number:03}"), bytes };
    sizes.into_iter().enumerate().map(file).collect()
}

/// Writes the files and returns their hashes.
pub fn make(files: &[File], folder: &Path) -> Result<Vec<String>> {
    for (file, seed) in files.iter().zip(1..) {
        let path = folder.join(&file.name);
        let mut output = std::fs::File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut content = Content { seed, length_bytes: file.bytes }.reader();
        std::io::copy(&mut content, &mut output).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let paths: Vec<_> = files.iter().map(|file| folder.join(&file.name)).collect();
    sha256(&paths)
}

/// The SHA-256 of each file, by the system's own `sha256sum`.
pub fn sha256(paths: &[impl AsRef<Path>]) -> Result<Vec<String>> {
    let output = run::quiet(Command::new("sha256sum").args(paths.iter().map(|path| path.as_ref())))?;
    let hashes: Vec<String> = output.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect();
    ensure!(hashes.len() == paths.len(), "sha256sum printed {} lines for {} files", hashes.len(), paths.len());
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::folder::Folder;

    #[test]
    fn the_files_are_256_mib_of_mixed_sizes() {
        let files = plan(false);
        let total: u64 = files.iter().map(|file| file.bytes).sum();
        assert!(total.abs_diff(256 << 20) < 1 << 20, "{total} bytes");
        assert!(files.iter().any(|file| file.bytes == 1 << 10) && files.iter().any(|file| file.bytes == 64 << 20));
        let first_half: u64 = files[..files.len() / 2].iter().map(|file| file.bytes).sum();
        assert!(first_half < total * 3 / 4, "the sizes are not mixed");
        assert_eq!(plan(true).iter().map(|file| file.bytes).sum::<u64>() >> 20, 6);
    }

    #[test]
    fn hashes_are_those_of_the_files() {
        let folder = Folder::new("hashes").unwrap();
        std::fs::write(folder.file("a"), "abc").unwrap();
        std::fs::write(folder.file("b"), "").unwrap();
        let hashes = sha256(&[folder.file("a"), folder.file("b")]).unwrap();
        assert_eq!(hashes[0], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(hashes[1].starts_with("e3b0c442"));
        assert!(sha256(&[folder.file("none")]).is_err());
    }
}
