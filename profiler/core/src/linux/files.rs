//! A file that a guest has open, from its `struct file`: its path as the guest's first processes see it, and what identifies it.

use super::btf::Btf;
use super::space::Space;
use super::structures::{Fields, offset, pointer};

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
}

/// Where the structures have what is read of them.
#[derive(Debug, Clone, Copy)]
pub struct Offsets {
    /// Dentry, mount, inode, address space, mode.
    file: Fields<5>,
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
    /// Device, type.
    file_system: Fields<2>,
    /// The name of a type.
    kind: Fields<1>,
}

/// Where a file of a layer has its place in the overlay (`backing_file`).
#[derive(Debug, Clone, Copy)]
struct Overlay {
    /// Dentry and mount.
    path: Fields<2>,
    /// The file system of a dentry, and that of a mount.
    of_dentry: Fields<1>,
    of_mount: Fields<1>,
}

impl Overlay {
    /// `None` before Linux 6.7, in which the file itself has this place.
    fn of(btf: &Btf<'_>) -> Option<Overlay> {
        Some(Overlay {
            path: Fields::of(btf, ["backing_file.user_path.dentry", "backing_file.user_path.mnt"]).ok()?,
            of_dentry: Fields::of(btf, ["dentry.d_sb"]).ok()?,
            of_mount: Fields::of(btf, ["vfsmount.mnt_sb"]).ok()?,
        })
    }

    /// The dentry and the mount, if the file at an address is in an overlay: behind others there is something else.
    fn place(&self, space: &Space<'_>, file: u64) -> Option<(u64, u64)> {
        let [dentry, mount] = self.path.read(space, file)?;
        let of_dentry = self.of_dentry.read(space, pointer(dentry, 8)?)?;
        let of_mount = self.of_mount.read(space, pointer(mount, 8)?)?;
        (of_dentry == of_mount && pointer(of_mount[0], 8).is_some()).then_some((dentry, mount))
    }
}

impl Offsets {
    /// Those of a kernel; the error is a member that its types lack.
    pub fn of(btf: &Btf<'_>) -> Result<Offsets, &'static str> {
        let file = ["file.f_path.dentry", "file.f_path.mnt", "file.f_inode", "file.f_mapping", "file.f_mode"];
        let dentry =
            ["dentry.d_parent", "dentry.d_name.name", "dentry.d_name.len", "dentry.d_inode", "dentry.d_hash.pprev"];
        Ok(Offsets {
            file: Fields::of(btf, file)?,
            overlay: Overlay::of(btf),
            dentry: Fields::of(btf, dentry)?,
            mount: Fields::of(btf, ["mount.mnt_parent", "mount.mnt_mountpoint", "mount.mnt.mnt_root"])?,
            mount_inside: offset(btf, "mount.mnt")?,
            inode: Fields::of(btf, ["inode.i_ino", "inode.i_sb", "inode.i_size"])?,
            file_system: Fields::of(btf, ["super_block.s_dev", "super_block.s_type"])?,
            kind: Fields::of(btf, ["file_system_type.name"])?,
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

/// The number, the device, the length and the kind of file system of an inode.
struct Inode {
    number: u64,
    device: Device,
    bytes: u64,
    file_system: String,
}

fn inode(space: &Space<'_>, at: u64, offsets: &Offsets) -> Option<Inode> {
    let [number, file_system, bytes] = offsets.inode.read(space, pointer(at, 8)?)?;
    let [device, kind] = offsets.file_system.read(space, pointer(file_system, 8)?)?;
    let [name] = offsets.kind.read(space, pointer(kind, 8)?)?;
    let file_system = space.text(pointer(name, 1)?, FILE_SYSTEM_BYTES_MAX)?;
    let device = Device { major: (device >> 20) as u32, minor: device as u32 & 0xf_ffff };
    Some(Inode { number, device, bytes, file_system })
}

/// The file whose `struct file` is at an address. `None` if that is not one, or not any more.
#[must_use]
pub fn file(space: &Space<'_>, at: u64, offsets: &Offsets) -> Option<File> {
    let [mut name_at, mut mount_at, inode_at, contents, mode] = offsets.file.read(space, pointer(at, 8)?)?;
    let own = inode(space, inode_at, offsets)?;
    let contents = pointer(contents, 8).filter(|_| own.file_system != "hugetlbfs");
    let bytes = own.bytes;
    let mut shown = own;
    let overlay = offsets.overlay.filter(|_| mode & MODE_BACKING != 0);
    if let Some(place) = overlay.and_then(|overlay| overlay.place(space, at)) {
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
    })
}
