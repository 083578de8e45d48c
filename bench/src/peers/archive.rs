//! An archive of files in the form that Linux unpacks at its start (`cpio`, its format "newc": Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;

const MAGIC: &str = "070701";
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const END: &str = "TRAILER!!!";
const ALIGNMENT: usize = 4;

/// An archive that is being written.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// Adds a file that may be executed, and the folders of its path, which has no slash at its start.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
        self.entry(path, PROGRAM, content);
    }

    /// Adds a folder and those that it is in.
    pub fn folder(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
        if self.folders.insert(path.to_owned()) {
            self.entry(path, FOLDER, &[]);
        }
    }

    /// The bytes of the archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(END, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let (bytes, name_bytes) = (content.len(), path.len() + 1);
        // Inode, mode, owner, group, links, time, length, two numbers each of a device and of a special file, length of the name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, bytes as u32, 0, 0, 0, 0, name_bytes as u32, 0];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        self.bytes.extend(fields.iter().flat_map(|field| format!("{field:08X}").into_bytes()));
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_precede_what_is_in_them_and_each_entry_is_aligned() {
        let mut archive = Archive::default();
        archive.file("a/b/c", b"12345");
        archive.file("a/d", b"");
        let bytes = archive.finish();
        let starts: Vec<usize> = (0..bytes.len() - 6).filter(|at| bytes[*at..].starts_with(MAGIC.as_bytes())).collect();
        assert!(starts.iter().all(|start| start.is_multiple_of(ALIGNMENT)));
        let name = |start: &usize| {
            let rest = &bytes[start + 110..];
            String::from_utf8_lossy(&rest[..rest.iter().position(|byte| *byte == 0).unwrap()]).into_owned()
        };
        assert_eq!(starts.iter().map(name).collect::<Vec<_>>(), ["a", "a/b", "a/b/c", "a/d", END]);
        let length = &bytes[starts[2] + 6 + 6 * 8..][..8];
        assert_eq!(length, b"00000005");
    }
}
