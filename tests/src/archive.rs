//! An archive that a Linux kernel unpacks as its first file system: `cpio`'s format `newc` (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;

const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_000;
const NAME_OF_END: &str = "TRAILER!!!";

/// An archive in memory.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    count: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// Adds a folder, and before it those above it.
    pub fn folder(&mut self, name: &str) {
        self.folders_above(name);
        if self.folders.insert(name.to_owned()) {
            self.add(name, FOLDER, b"");
        }
    }

    fn folders_above(&mut self, name: &str) {
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above);
        }
    }

    /// Adds a symbolic link, and the folders above it.
    pub fn link(&mut self, name: &str, target: &str) {
        self.folders_above(name);
        self.add(name, LINK, target.as_bytes());
    }

    /// Adds a file that all may read and, if `is_program`, run, and the folders above it.
    pub fn file(&mut self, name: &str, is_program: bool, data: &[u8]) {
        self.folders_above(name);
        self.add(name, FILE | if is_program { 0o755 } else { 0o644 }, data);
    }

    /// The whole of it.
    pub fn finish(mut self) -> Vec<u8> {
        self.add(NAME_OF_END, 0, b"");
        self.bytes
    }

    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.count += 1;
        let fields = [self.count, mode, 0, 0, 1, 0, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.bytes.extend(format!("070701{header}{name}\0").into_bytes());
        self.align();
        self.bytes.extend(data);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_their_kind_and_rights() {
        let mut archive = Archive::default();
        archive.file("a/b/run", true, b"#!");
        archive.file("a/text", false, b"");
        archive.link("a/link", "run");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let modes: Vec<&str> = text.match_indices("070701").map(|(at, _)| &text[at + 14..at + 22]).collect();
        assert_eq!(modes, ["000041ed", "000041ed", "000081ed", "000081a4", "0000a1ff", "00000000"]);
        assert!(text.contains("a/b/run\0") && text.contains("#!") && bytes.len().is_multiple_of(4));
    }
}
