//! The disks of a guest, read from outside while the guest runs: images of disks, partitions, and files of the file systems on them.
//!
//! A guest writes all of that: nothing is loaded whole, each loop has a bound, and what does not fit is no file.

mod bytes;
#[doc(hidden)]
pub mod example;
pub mod ext4;
mod kinds;
pub mod partitions;
pub mod qcow2;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::elf::ReadAt;
use ext4::{Ext4, Ext4File, NotRead};
use qcow2::Qcow2;

/// The most images below one another.
const LAYERS_MAX: usize = 16;
/// The most file systems of all disks of a guest.
const FILE_SYSTEMS_MAX: usize = 256;

/// A file of this machine, or a device, that may be a disk of a guest.
#[derive(Clone)]
pub struct DiskFile {
    /// Its path.
    pub path: String,
    /// What is in it.
    pub file: Arc<dyn ReadAt>,
}

impl std::fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes", self.path, self.file.bytes())
    }
}

/// The file systems on the disks of a guest.
#[derive(Default)]
pub struct Disks {
    file_systems: Vec<Ext4>,
    /// What is on them that is not read: a phrase for each.
    others: Vec<String>,
}

/// A file of an image of which it is known what is below it.
enum Layer {
    Image(qcow2::Found),
    Plain,
}

impl Disks {
    /// Finds them in files, of which any may be no disk. A file that an image names as what is below it is one of these, by its path: no file is
    /// opened because an image names it.
    pub fn open(files: &[DiskFile]) -> Disks {
        let mut disks = Disks::default();
        let mut layers = Vec::new();
        for file in files {
            layers.push(match qcow2::find(&*file.file) {
                None => Ok(Layer::Plain),
                Some(found) => found.map(Layer::Image),
            });
        }
        let below = |index: usize| match layers.get(index) {
            Some(Ok(Layer::Image(qcow2::Found { backing: Some(path), .. }))) => Some(named(files, index, path)),
            _ => None,
        };
        let used: BTreeSet<usize> = (0..files.len()).filter_map(|index| below(index)?).collect();
        for (index, file) in files.iter().enumerate().filter(|(index, _)| !used.contains(index)) {
            match &layers[index] {
                Err(what) => disks.others.push(format!("{what} in {}", file.path)),
                Ok(_) => match joined(files, &layers, &below, index) {
                    Some(disk) => disks.search(&file.path, &disk),
                    None => disks
                        .others
                        .push(format!("an image in {}, of which the VMM has not opened all layers", file.path)),
                },
            }
        }
        disks
    }

    /// Looks for file systems on a disk, which may have partitions.
    fn search(&mut self, path: &str, disk: &Arc<dyn ReadAt>) {
        let whole = 0..disk.bytes();
        let partitions = partitions::list(&**disk);
        let ranges = partitions.into_iter().enumerate().map(|(index, range)| (Some(index + 1), range));
        for (number, range) in [(None, whole)].into_iter().chain(ranges) {
            if self.file_systems.len() + self.others.len() >= FILE_SYSTEMS_MAX {
                return;
            }
            let place = number.map_or_else(String::new, |number| format!("partition {number} of "));
            match Ext4::open(Arc::clone(disk), &range) {
                Ok(found) => self.file_systems.push(found),
                Err(NotRead::Other(what)) => self.others.push(format!("{what} in {place}{path}")),
                Err(NotRead::Feature(what)) => self.others.push(format!("ext4 with {what} in {place}{path}")),
                Err(NotRead::Unknown) => {}
            }
        }
    }

    /// The files with a number, one in each file system that may be the one with this identifier; in any if that is not known.
    pub fn files(&self, uuid: Option<[u8; 16]>, inode: u64) -> impl Iterator<Item = Ext4File> {
        let of = move |of: &&Ext4| uuid.is_none_or(|uuid| of.uuid == uuid);
        self.file_systems.iter().filter(of).filter_map(move |of| of.file(inode))
    }

    /// Whether there is a file system with this identifier.
    #[must_use]
    pub fn has(&self, uuid: [u8; 16]) -> bool {
        self.file_systems.iter().any(|of| of.uuid == uuid)
    }

    /// What is on the disks that is not read, a phrase each: "XFS in partition 2 of /srv/a.img".
    #[must_use]
    pub fn others(&self) -> &[String] {
        &self.others
    }
}

/// Which of the files an image names: by its path, which may be relative to the image's folder, or else by its name if only one has it.
fn named(files: &[DiskFile], image: usize, path: &str) -> Option<usize> {
    let path = path.strip_prefix("file:").unwrap_or(path);
    let folder = files[image].path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{folder}/{path}") };
    let others = || files.iter().enumerate().filter(|(index, _)| *index != image);
    if let Some((index, _)) = others().find(|(_, file)| file.path == whole) {
        return Some(index);
    }
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut same = others().filter(|(_, file)| name(&file.path) == name(path));
    same.next().filter(|_| same.next().is_none()).map(|(index, _)| index)
}

/// A disk with all its layers; `None` if one is missing, or is below itself.
fn joined(
    files: &[DiskFile],
    layers: &[Result<Layer, &'static str>],
    below: &dyn Fn(usize) -> Option<Option<usize>>,
    top: usize,
) -> Option<Arc<dyn ReadAt>> {
    let mut chain = vec![top];
    while let Some(next) = below(*chain.last()?) {
        chain.push(next.filter(|next| !chain.contains(next) && chain.len() < LAYERS_MAX)?);
    }
    let mut disk: Option<Arc<dyn ReadAt>> = None;
    for index in chain.into_iter().rev() {
        let file = Arc::clone(&files[index].file);
        disk = Some(match layers[index].as_ref().ok()? {
            Layer::Plain => file,
            Layer::Image(found) => Arc::new(Qcow2::new(file, found, disk)),
        });
    }
    disk
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(path: &str, bytes: Vec<u8>) -> DiskFile {
        DiskFile { path: path.to_owned(), file: Arc::new(bytes) }
    }

    fn contents(file: &dyn ReadAt) -> Option<Vec<u8>> {
        let mut bytes = vec![0; file.bytes() as usize];
        file.read_at(0, &mut bytes).then_some(bytes)
    }

    fn only(disks: &Disks) -> Vec<u8> {
        let mut files = disks.files(Some(example::UUID), example::INODE);
        let file = files.next().unwrap();
        assert!(files.next().is_none());
        contents(&file).unwrap()
    }

    #[test]
    fn a_file_through_all_layers() {
        let (text, file_system) = example::ext4();
        assert_eq!(only(&Disks::open(&[disk("/a/raw", file_system.clone())])), text);
        let (partitioned, _) = example::gpt(&file_system, 512);
        assert_eq!(only(&Disks::open(&[disk("/a/gpt", partitioned.clone())])), text);
        let (other, _) = example::first_sector(&file_system);
        assert_eq!(only(&Disks::open(&[disk("/a/mbr", other)])), text);
        for kind in example::Kind::ALL {
            let image = example::qcow2(&partitioned, kind, None);
            assert_eq!(only(&Disks::open(&[disk("/a/qcow2", image)])), text, "{kind:?}");
        }
    }

    #[test]
    fn images_below_others() {
        let (text, file_system) = example::ext4();
        let top = |path| disk("/a/top", example::qcow2(&vec![0; file_system.len()], example::Kind::Empty, Some(path)));
        let base = disk("/a/base", file_system.clone());
        for path in ["base", "/a/base", "file:/a/base", "/elsewhere/base"] {
            assert_eq!(only(&Disks::open(&[base.clone(), top(path)])), text, "{path}");
        }
        let reason = |files: &[DiskFile]| Disks::open(files).others.join("; ");
        assert!(reason(&[top("base")]).contains("has not opened all layers"));
        // Below itself, and two that are below each other.
        assert!(reason(&[top("top")]).contains("has not opened all layers"));
        let other = disk("/a/base", example::qcow2(&[0; 4096], example::Kind::Empty, Some("top")));
        assert_eq!(Disks::open(&[top("base"), other]).files(None, example::INODE).count(), 0);
        // Two of the same name: neither is meant for certain.
        let twice = [top("/x/base"), base, disk("/b/base", file_system)];
        assert!(reason(&twice).contains("has not opened all layers"));
    }

    #[test]
    fn what_is_not_read_is_named() {
        let mut xfs = vec![0; 128 << 10];
        xfs[..4].copy_from_slice(b"XFSB");
        let (partitioned, _) = example::gpt(&xfs, 512);
        let mut encrypted = example::qcow2(&[0; 4096], example::Kind::Empty, None);
        encrypted[35] = 1;
        let (_, mut newer) = example::ext4();
        newer[1024 + 0x63] = 1;
        let files = [disk("/a", partitioned), disk("/b", encrypted), disk("/c", newer), disk("/d", vec![0; 4096])];
        let expected = [
            "XFS in partition 1 of /a",
            "an encrypted image of the format qcow2 in /b",
            "ext4 with features of a newer Linux in /c",
        ];
        assert_eq!(Disks::open(&files).others, expected);
    }

    #[test]
    fn another_file_system_or_another_number_has_no_file() {
        let (_, file_system) = example::ext4();
        let disks = Disks::open(&[disk("/a", file_system)]);
        assert_eq!(disks.files(Some([9; 16]), example::INODE).count(), 0);
        assert_eq!(disks.files(None, example::INODE).count(), 1);
        assert!(disks.has(example::UUID) && !disks.has([9; 16]));
        // A directory, inodes that are not used, and what is behind the table.
        for inode in [0, 2, 9, 15, 17, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(disks.files(None, inode).count(), 0, "{inode}");
        }
    }
}
