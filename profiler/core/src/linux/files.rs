//! A file that a guest has open, from its `struct file`: its path as the guest's first processes see it, and what identifies it.

use super::space::Space;
use super::structures::{Fields, Layout, offset, pointer};

/// The most names in a path, and steps from one mount to the one that it is mounted on.
const STEPS_MAX: usize = 200;
/// The longest path in bytes (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;
/// The longest name in bytes (`NAME_MAX`).
const NAME_BYTES_MAX: u64 = 255;
/// The longest name of a file system that is compared.
const FILE_SYSTEM_BYTES_MAX: usize = 16;
/// In `file.f_mode`: perhaps a file of a layer of an overlay, which has its place in the overlay beside it (`FMODE_BACKING`: bit 25 since Linux
/// 6.5, bit 24 since 6.14 and in later 6.12; bit 25 is then `FMODE_NONOTIFY`).
const MODE_BACKING: u64 = 1 << 24 | 1 << 25;

/// A device, as `/proc/PID/maps` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

/// Where a file is stored. That of a file in layers of a container is its own one, and not that of the layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// The kind of file system: `ext4`.
    pub kind: String,
    /// What identifies the file system, if it has such a number.
    pub uuid: Option<[u8; 16]>,
    /// Its number there.
    pub inode: u64,
}

/// Which contents a file has: others if its inode is another one's by now, or was changed since. A write changes the time before the contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version {
    /// The address of its inode.
    inode_at: u64,
    number: u64,
    file_system: u64,
    /// Seconds and nanoseconds of its last change (`ctime`), which no program can set; `None` if the kernel's types lack it.
    changed: Option<[u64; 2]>,
}

impl Version {
    /// That of the file whose `struct file` is at an address.
    #[must_use]
    pub fn of(space: &Space<'_>, file: u64, offsets: &Offsets) -> Option<Version> {
        let [_, _, inode_at, ..] = offsets.file.read(space, pointer(file, 8)?)?;
        Version::of_inode(space, inode_at, offsets)
    }

    fn of_inode(space: &Space<'_>, inode_at: u64, offsets: &Offsets) -> Option<Version> {
        let [number, file_system, _] = offsets.inode.read(space, pointer(inode_at, 8)?)?;
        let changed = match &offsets.changed {
            Some(changed) => Some(changed.read(space, inode_at)?),
            None => None,
        };
        Some(Version { inode_at, number, file_system, changed })
    }

    /// Whether the inode still has it.
    #[must_use]
    pub fn is_current(&self, space: &Space<'_>, offsets: &Offsets) -> bool {
        Version::of_inode(space, self.inode_at, offsets) == Some(*self)
    }
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// From the root of its mounts, so that of a container's file starts at the container's root; with what stands for a path if it has
    /// none, such as `/memfd:NAME` and `anon_inode:NAME`. `None` if it cannot be read.
    pub path: Option<String>,
    /// It has no name any more.
    pub is_deleted: bool,
    /// Its number within its device, as programs in the guest see it.
    pub inode: u64,
    /// Its device, as programs in the guest see it.
    pub device: Device,
    /// Its length.
    pub bytes: u64,
    /// The address of its `address_space`, by which its contents are found, and which no other file has while this one is open. `None` if
    /// that has not pages of 4 KiB (hugetlbfs).
    pub contents: Option<u64>,
    /// Where it is stored.
    pub stored: Stored,
    /// Which contents it has.
    pub version: Version,
}

/// Where the structures have what is read of them.
#[derive(Debug, Clone, Copy)]
pub struct Offsets {
    /// Dentry, mount, inode, address space.
    file: Fields<4>,
    /// Of kernels that have it.
    overlay: Option<Overlay>,
    /// Parent, name and its length, inode, place in the table of names.
    dentry: Fields<5>,
    /// Mount below, place in that, own root.
    mount: Fields<3>,
    /// How far the part of a mount that files point to is in it.
    mount_inside: u32,
    /// Number, file system, length.
    inode: Fields<3>,
    /// Seconds and nanoseconds of the last change of an inode, if its structure has them by a name that is known.
    changed: Option<Fields<2>>,
    /// Device, type.
    file_system: Fields<2>,
    /// The name of a type.
    kind: Fields<1>,
    /// The identifier of a file system, if its structure has one.
    uuid: Option<u32>,
}

/// Where a file of a layer has its place in the overlay (`backing_file`).
#[derive(Debug, Clone, Copy)]
struct Overlay {
    mode: Fields<1>,
    /// Dentry and mount.
    path: Fields<2>,
    /// The file system of a dentry, and that of a mount.
    of_dentry: Fields<1>,
    of_mount: Fields<1>,
}

impl Overlay {
    /// `None` before Linux 6.7, in which the file itself has this place.
    fn of(types: &dyn Layout) -> Option<Overlay> {
        Some(Overlay {
            mode: Fields::of(types, ["file.f_mode"]).ok()?,
            path: Fields::of(types, ["backing_file.user_path.dentry", "backing_file.user_path.mnt"]).ok()?,
            of_dentry: Fields::of(types, ["dentry.d_sb"]).ok()?,
            of_mount: Fields::of(types, ["vfsmount.mnt_sb"]).ok()?,
        })
    }

    /// The dentry and the mount, if the file at an address is in an overlay: behind others there is something else.
    fn place(&self, space: &Space<'_>, file: u64) -> Option<(u64, u64)> {
        let [mode] = self.mode.read(space, file)?;
        let [dentry, mount] = self.path.read(space, file).filter(|_| mode & MODE_BACKING != 0)?;
        let of_dentry = self.of_dentry.read(space, pointer(dentry, 8)?)?;
        let of_mount = self.of_mount.read(space, pointer(mount, 8)?)?;
        (of_dentry == of_mount && pointer(of_mount[0], 8).is_some()).then_some((dentry, mount))
    }
}

/// The time of an inode's last change: since Linux 6.11, since 6.6, and before.
const CHANGED: [[&str; 2]; 3] = [
    ["inode.i_ctime_sec", "inode.i_ctime_nsec"],
    ["inode.__i_ctime.tv_sec", "inode.__i_ctime.tv_nsec"],
    ["inode.i_ctime.tv_sec", "inode.i_ctime.tv_nsec"],
];

impl Offsets {
    /// Those of a kernel; the error is a member that its types lack.
    pub fn of(types: &dyn Layout) -> Result<Offsets, &'static str> {
        let file = ["file.f_path.dentry", "file.f_path.mnt", "file.f_inode", "file.f_mapping"];
        let dentry =
            ["dentry.d_parent", "dentry.d_name.name", "dentry.d_name.len", "dentry.d_inode", "dentry.d_hash.pprev"];
        Ok(Offsets {
            file: Fields::of(types, file)?,
            overlay: Overlay::of(types),
            dentry: Fields::of(types, dentry)?,
            mount: Fields::of(types, ["mount.mnt_parent", "mount.mnt_mountpoint", "mount.mnt.mnt_root"])?,
            mount_inside: offset(types, "mount.mnt")?,
            inode: Fields::of(types, ["inode.i_ino", "inode.i_sb", "inode.i_size"])?,
            changed: CHANGED.into_iter().find_map(|paths| Fields::of(types, paths).ok()),
            file_system: Fields::of(types, ["super_block.s_dev", "super_block.s_type"])?,
            kind: Fields::of(types, ["file_system_type.name"])?,
            uuid: offset(types, "super_block.s_uuid").ok(),
        })
    }
}

/// A name in a directory, or one in none.
struct Dentry {
    parent: u64,
    name_at: u64,
    name_bytes: u64,
    inode: u64,
    is_named: bool,
}

fn dentry(space: &Space<'_>, at: u64, offsets: &Offsets) -> Option<Dentry> {
    let [parent, name_at, name_bytes, inode, place] = offsets.dentry.read(space, pointer(at, 8)?)?;
    Some(Dentry { parent, name_at, name_bytes, inode, is_named: place != 0 })
}

impl Dentry {
    fn name(&self, space: &Space<'_>) -> Option<Vec<u8>> {
        let bytes = usize::try_from(self.name_bytes).ok().filter(|_| self.name_bytes <= NAME_BYTES_MAX)?;
        let mut name = space.bytes(pointer(self.name_at, 1)?, bytes)?;
        // It is being renamed.
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Some(name)
    }
}

/// The roots of a mount.
struct Mount {
    parent: u64,
    mounted_on: u64,
    root: u64,
}

fn mount(space: &Space<'_>, at: u64, offsets: &Offsets) -> Option<Mount> {
    let [parent, mounted_on, root] = offsets.mount.read(space, pointer(at, 8)?)?;
    Some(Mount { parent, mounted_on, root })
}

/// The names up to the root of all mounts, joined (`prepend_path` of `fs/d_path.c`).
fn path(space: &Space<'_>, mut at: u64, mut mount_at: u64, offsets: &Offsets) -> Option<Vec<u8>> {
    let (mut names, mut bytes) = (Vec::new(), 0);
    let mut of = mount(space, mount_at, offsets)?;
    for _ in 0..STEPS_MAX {
        if at == of.root {
            if of.parent == mount_at {
                return Some(joined(&names));
            }
            (at, mount_at) = (of.mounted_on, of.parent);
            of = mount(space, mount_at, offsets)?;
            continue;
        }
        let entry = dentry(space, at, offsets)?;
        // The root of a file system, outside of what is mounted of it.
        if entry.parent == at {
            return Some(joined(&names));
        }
        let name = entry.name(space)?;
        bytes += name.len() + 1;
        if bytes > PATH_BYTES_MAX {
            return None;
        }
        names.push(name);
        at = entry.parent;
    }
    None
}

fn joined(names: &[Vec<u8>]) -> Vec<u8> {
    if names.is_empty() {
        return b"/".to_vec();
    }
    names.iter().rev().flat_map(|name| [b"/", name.as_slice()].concat()).collect()
}

/// What a file without a directory is shown as: `d_dname` of its dentry.
fn without_directory(name: &[u8], file_system: &str, inode: u64) -> Vec<u8> {
    let numbered = |kind: &str| format!("{kind}:[{inode}]").into_bytes();
    match file_system {
        "anon_inodefs" => [b"anon_inode:", name].concat(),
        "pipefs" => numbered("pipe"),
        "sockfs" => numbered("socket"),
        _ => [b"/", name].concat(),
    }
}

/// The number, the device, the length and the file system of an inode: its kind and its identifier.
struct Inode {
    number: u64,
    device: Device,
    bytes: u64,
    file_system: String,
    uuid: Option<[u8; 16]>,
}

fn inode(space: &Space<'_>, at: u64, offsets: &Offsets) -> Option<Inode> {
    let [number, file_system, bytes] = offsets.inode.read(space, pointer(at, 8)?)?;
    let file_system = pointer(file_system, 8)?;
    let [device, kind] = offsets.file_system.read(space, file_system)?;
    let uuid = offsets.uuid.and_then(|offset| {
        let mut bytes = [0; 16];
        space.read(file_system.checked_add(offset.into())?, &mut bytes)?;
        (bytes != [0; 16]).then_some(bytes)
    });
    let [name] = offsets.kind.read(space, pointer(kind, 8)?)?;
    let file_system = space.text(pointer(name, 1)?, FILE_SYSTEM_BYTES_MAX)?;
    let device = Device { major: (device >> 20) as u32, minor: device as u32 & 0xf_ffff };
    Some(Inode { number, device, bytes, file_system, uuid })
}

/// The file whose `struct file` is at an address. `None` if that is not one, or not any more.
#[must_use]
pub fn file(space: &Space<'_>, at: u64, offsets: &Offsets) -> Option<File> {
    let [mut name_at, mut mount_at, inode_at, contents] = offsets.file.read(space, pointer(at, 8)?)?;
    let own = inode(space, inode_at, offsets)?;
    let version = Version::of_inode(space, inode_at, offsets)?;
    let contents = pointer(contents, 8).filter(|_| own.file_system != "hugetlbfs");
    let bytes = own.bytes;
    let stored = Stored { kind: own.file_system.clone(), uuid: own.uuid, inode: own.number };
    let mut shown = own;
    if let Some(place) = offsets.overlay.and_then(|overlay| overlay.place(space, at)) {
        (name_at, mount_at) = place;
        shown = inode(space, dentry(space, name_at, offsets)?.inode, offsets)?;
    }
    let name = dentry(space, name_at, offsets)?;
    let mount_at = pointer(mount_at, 8)?.checked_sub(offsets.mount_inside.into())?;
    let is_root = name.parent == name_at;
    let is_outside = is_root && mount(space, mount_at, offsets)?.root != name_at;
    let path = match is_outside {
        true => name.name(space).map(|name| without_directory(&name, &shown.file_system, shown.number)),
        false => path(space, name_at, mount_at, offsets),
    };
    Some(File {
        is_deleted: match is_outside {
            true => path.as_ref().is_some_and(|path| path.starts_with(b"/")),
            false => !is_root && !name.is_named,
        },
        path: path.map(|path| String::from_utf8_lossy(&path).into_owned()),
        inode: shown.number,
        device: shown.device,
        bytes,
        contents,
        stored,
        version,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{DIRECT, Memory, offsets};
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering;

    const FILE: u64 = DIRECT + 0x1000;
    const INODE: u64 = DIRECT + 0x1400;
    const UPPER_INODE: u64 = DIRECT + 0x1600;
    const DISK: u64 = DIRECT + 0x1800;
    const OVERLAY: u64 = DIRECT + 0x1a00;
    const CONTENTS: u64 = DIRECT + 0x1c00;
    const TEXTS: u64 = DIRECT + 0x4000;
    const UUID: [u8; 16] = *b"of a file system";
    /// `mount.mnt` in its mount.
    const INSIDE: u64 = 32;

    fn dentry_at(index: u64) -> u64 {
        DIRECT + 0x2000 + index * 0x40
    }

    fn mount_at(index: u64) -> u64 {
        DIRECT + 0xd000 + index * 0x40
    }

    fn dentry(memory: &Memory, index: u64, parent: u64, name: &str, inode: u64) {
        let text = TEXTS + index * 0x140;
        memory.bytes(text, name.as_bytes());
        let hash = 7;
        let length = (name.len() as u64) << 32 | hash;
        memory.words(dentry_at(index), &[0, 0, 1, dentry_at(parent), length, text, inode, DISK]);
    }

    fn mount(memory: &Memory, index: u64, parent: u64, mounted_on: u64, root: u64) {
        memory.words(mount_at(index), &[0, 0, mount_at(parent), dentry_at(mounted_on), dentry_at(root), DISK]);
    }

    fn inode(memory: &Memory, at: u64, number: u64, file_system: u64, name: &str, device: u64) {
        memory.set(at + 40, file_system);
        memory.set(at + 64, number);
        memory.set(at + 80, 1234);
        memory.set(file_system + 16, device);
        memory.bytes(file_system + 48, &UUID);
        memory.set(file_system + 40, file_system + 0x100);
        memory.set(file_system + 0x100, file_system + 0x110);
        memory.bytes(file_system + 0x110, name.as_bytes());
    }

    fn open(memory: &Memory, dentry: u64, mount: u64, mode: u64) {
        let path = [mount_at(mount) + INSIDE, dentry_at(dentry)];
        memory.words(FILE, &[0, mode, CONTENTS, 0, INODE, 0, 0, 0, path[0], path[1]]);
    }

    /// `/srv/data/lib/a.so`, of which `/srv` is in the first mount and `/srv/data` is another one's root.
    fn example() -> Memory {
        let memory = Memory::new();
        dentry(&memory, 0, 0, "/", 0);
        dentry(&memory, 1, 0, "srv", 0);
        dentry(&memory, 2, 1, "data", 0);
        dentry(&memory, 3, 3, "/", 0);
        // A root is in no table of names.
        [0, 3].iter().for_each(|root| memory.set(dentry_at(*root) + 16, 0));
        dentry(&memory, 4, 3, "lib", 0);
        dentry(&memory, 5, 4, "a.so", INODE);
        mount(&memory, 0, 0, 0, 0);
        mount(&memory, 1, 0, 2, 3);
        inode(&memory, INODE, 77, DISK, "ext4", 254 << 20 | 3);
        open(&memory, 5, 1, 0);
        memory
    }

    fn read(memory: &Memory) -> Option<File> {
        file(&memory.space(), FILE, &offsets(false, Offsets::of))
    }

    fn path(memory: &Memory) -> Option<String> {
        read(memory).unwrap().path
    }

    #[test]
    fn a_path_across_mounts() {
        let memory = example();
        let expected = File {
            path: Some("/srv/data/lib/a.so".to_owned()),
            is_deleted: false,
            inode: 77,
            device: Device { major: 254, minor: 3 },
            bytes: 1234,
            contents: Some(CONTENTS),
            stored: Stored { kind: "ext4".to_owned(), uuid: Some(UUID), inode: 77 },
            version: Version { inode_at: INODE, number: 77, file_system: DISK, changed: Some([0, 0]) },
        };
        assert_eq!(read(&memory), Some(expected));
        // The root of a mount, and the root of all.
        open(&memory, 3, 1, 0);
        assert_eq!((path(&memory).as_deref(), read(&memory).unwrap().is_deleted), (Some("/srv/data"), false));
        open(&memory, 0, 0, 0);
        assert_eq!((path(&memory).as_deref(), read(&memory).unwrap().is_deleted), (Some("/"), false));
        // Not beneath what is mounted.
        open(&memory, 1, 1, 0);
        assert_eq!(path(&memory).as_deref(), Some("/srv"));
    }

    #[test]
    fn files_that_have_no_name_any_more() {
        let memory = example();
        memory.set(dentry_at(5) + 16, 0);
        let found = read(&memory).unwrap();
        assert_eq!((found.path.as_deref(), found.is_deleted), (Some("/srv/data/lib/a.so"), true));
        let lone = |name, file_system| {
            dentry(&memory, 6, 6, name, INODE);
            inode(&memory, INODE, 77, DISK, file_system, 1);
            open(&memory, 6, 1, 0);
            let found = read(&memory).unwrap();
            (found.path.unwrap(), found.is_deleted, found.contents.is_some())
        };
        assert_eq!(lone("memfd:trace", "tmpfs\0"), ("/memfd:trace".to_owned(), true, true));
        assert_eq!(lone("[perf_event]", "anon_inodefs\0"), ("anon_inode:[perf_event]".to_owned(), false, true));
        assert_eq!(lone("", "sockfs\0"), ("socket:[77]".to_owned(), false, true));
        assert_eq!(lone("", "pipefs\0"), ("pipe:[77]".to_owned(), false, true));
        assert_eq!(lone("anon_hugepage", "hugetlbfs\0"), ("/anon_hugepage".to_owned(), true, false));
    }

    /// The contents are those of the file in the layer; all that a program sees is the overlay's. Each version has its own bit, which had
    /// another meaning before.
    #[test]
    fn a_file_of_an_overlay() {
        let memory = example();
        dentry(&memory, 7, 0, "merged", UPPER_INODE);
        memory.set(dentry_at(7) + 56, OVERLAY);
        mount(&memory, 2, 0, 0, 0);
        memory.set(mount_at(2) + INSIDE + 8, OVERLAY);
        inode(&memory, UPPER_INODE, 99, OVERLAY, "overlay", 40);
        memory.words(FILE + 96, &[mount_at(2) + INSIDE, dentry_at(7)]);
        for (mode, is_overlay) in [(0, false), (1 << 24, true), (1 << 25, true), (1 << 26, false)] {
            open(&memory, 5, 1, mode);
            let found = read(&memory).unwrap();
            let (path, inode, minor) = if is_overlay { ("/merged", 99, 40) } else { ("/srv/data/lib/a.so", 77, 3) };
            let got = (found.path.as_deref(), found.inode, found.device.minor, found.contents);
            assert_eq!(got, (Some(path), inode, minor, Some(CONTENTS)), "{mode:x}");
        }
        // What is behind another file is no place.
        open(&memory, 5, 1, 1 << 25);
        for (at, value) in [(FILE + 96, 0), (FILE + 104, 3), (dentry_at(7) + 56, DISK)] {
            memory.set(at, value);
            assert_eq!(path(&memory).as_deref(), Some("/srv/data/lib/a.so"), "{at:x}");
            memory.words(FILE + 96, &[mount_at(2) + INSIDE, dentry_at(7)]);
        }
    }

    #[test]
    fn contents_that_are_others_by_now() {
        let offsets = offsets(false, Offsets::of);
        let memory = example();
        let version = read(&memory).unwrap().version;
        assert_eq!(Version::of(&memory.space(), FILE, &offsets), Some(version));
        // Its length and its path do not matter; its number, its file system and the time of its last change do.
        for (at, is_current) in [(80, true), (64, false), (40, false), (96, false), (104, false)] {
            let memory = example();
            memory.set(INODE + at, memory.space().word(INODE + at).unwrap() ^ 8);
            assert_eq!(version.is_current(&memory.space(), &offsets), is_current, "{at}");
        }
    }

    #[test]
    fn loops_and_violations() {
        let violations = [
            ("a parent that is a child", dentry_at(4) + 24, dentry_at(5)),
            ("a mount on itself", mount_at(1) + 24, dentry_at(3)),
            ("mounts on each other", mount_at(0) + 16, mount_at(1)),
            ("a long name", dentry_at(4) + 32, 256 << 32),
            ("a name in no memory", dentry_at(4) + 40, u64::MAX - 1),
            ("a parent in no memory", dentry_at(4) + 24, 0x1000),
        ];
        for (what, at, value) in violations {
            let memory = example();
            memory.set(at, value);
            if what == "mounts on each other" {
                memory.set(mount_at(0) + 24, dentry_at(3));
            }
            if what == "a mount on itself" {
                memory.set(mount_at(1) + 16, mount_at(2));
                mount(&memory, 2, 1, 3, 3);
            }
            assert_eq!(path(&memory), None, "{what}");
            let reads = memory.reads.load(Ordering::Relaxed);
            assert!(reads < 2 * STEPS_MAX + 60, "{what}: {reads} reads");
            assert_eq!(read(&memory).unwrap().inode, 77, "{what}");
        }
        for (at, value) in [(FILE + 32, 0), (INODE + 40, 8), (DISK + 40, 0), (DISK + 0x100, 0)] {
            let memory = example();
            memory.set(at, value);
            assert_eq!(read(&memory), None);
        }
        for at in [0, FILE + 4, u64::MAX - 7] {
            assert_eq!(file(&example().space(), at, &offsets(false, Offsets::of)), None);
        }
        // 200 names of 22 bytes are longer than a path.
        let memory = example();
        for index in 8..100 {
            dentry(&memory, index, index - 1, &"x".repeat(49), INODE);
        }
        dentry(&memory, 8, 3, "y", INODE);
        open(&memory, 60, 1, 0);
        assert_eq!(path(&memory).map(|path| path.len()), Some("/srv/data/y".len() + 52 * 50));
        open(&memory, 99, 1, 0);
        assert_eq!(path(&memory), None);
        // A name that is shorter than its length, since it is being changed.
        let memory = example();
        memory.bytes(TEXTS + 5 * 0x140 + 1, b"\0");
        assert_eq!(path(&memory).as_deref(), Some("/srv/data/lib/a"));
    }

    proptest! {
        #[test]
        fn any_memory_is_survived(random in proptest::collection::vec(any::<u64>(), 1..40), kept in 0u64..5) {
            let memory = example();
            let ranges = [FILE, INODE, DISK, dentry_at(0), mount_at(0)].into_iter().zip([0x60, 0x60, 0x180, 0x200, 0x100]);
            for (index, (start, bytes)) in (0..).zip(ranges) {
                if index != kept && random[0] >> index & 1 == 0 {
                    memory.fill(start..start + bytes, &random);
                }
            }
            memory.set(FILE + 32, INODE);
            let found = read(&memory);
            prop_assert!(memory.reads.load(Ordering::Relaxed) < STEPS_MAX * 3 * 5 + 100);
            prop_assert!(found.and_then(|file| file.path).is_none_or(|path| path.len() <= 3 * PATH_BYTES_MAX));
        }
    }
}
