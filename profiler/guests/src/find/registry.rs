//! The VMs that `glass run` has started on this machine: one small JSON file each, so that
//! `glass record` finds a VM's symbol file and socket by its name or process id.
//!
//! The files are in a folder that only the user can enter. A file of a process that has ended is
//! ignored and removed.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The largest file that is read, in bytes: a valid one has some hundred.
const ENTRY_BYTES_MAX: u64 = 64 << 10;
/// The most files that are read.
const ENTRIES_MAX: usize = 10_000;

/// A running VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Process id of the VMM.
    pub pid: u32,
    /// The image, with symbols.
    pub elf: PathBuf,
    /// The unix socket of QEMU's gdbstub; our own VMM has none.
    pub gdb: Option<PathBuf>,
    /// Its name.
    pub name: String,
    /// "kvm" or "tcg".
    pub accel: String,
    /// How many cores it has.
    pub vcpus: u32,
    /// What else joins it with its host.
    #[serde(default)]
    pub links: Links,
}

/// What joins a VM of `glass run` with its host, besides TCP/IP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    /// Its socket device, if it has one.
    pub vsock: Option<Vsock>,
    /// The directory that is shared with it, if there is one.
    pub share: Option<Share>,
    /// The unix socket at which our own VMM gets requests for a snapshot.
    #[serde(default)]
    pub snapshots: Option<PathBuf>,
    /// Its disk.
    #[serde(default)]
    pub disk: Option<PathBuf>,
}

/// A socket device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vsock {
    /// The VM's context identifier.
    pub cid: u32,
    /// The unix socket for clients on the host.
    pub socket: PathBuf,
    /// TCP ports of 127.0.0.1, and the vsock ports to which they lead.
    pub ports: Vec<(u16, u32)>,
}

/// A directory of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The directory.
    pub path: PathBuf,
    /// Whether the VM can only read.
    pub is_read_only: bool,
}

/// Removes the entry from the registry when it is dropped.
#[derive(Debug)]
pub struct Registered {
    path: PathBuf,
}

impl Drop for Registered {
    fn drop(&mut self) {
        // One that stays is recognised by its dead process and removed later.
        let _ = fs::remove_file(&self.path);
    }
}

/// The registry's folder, created if it does not exist: `$XDG_RUNTIME_DIR/glass-UID`, or in `/tmp`.
/// Fails if it belongs to another user or others could write to it.
pub fn folder() -> io::Result<PathBuf> {
    let base =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute() && path.is_dir());
    folder_in(&base.unwrap_or_else(|| PathBuf::from("/tmp")))
}

fn folder_in(base: &Path) -> io::Result<PathBuf> {
    let user = fs::metadata("/proc/self")?.uid();
    let path = base.join(format!("glass-{user}"));
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = fs::symlink_metadata(&path)?;
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o022 != 0 {
        let text = format!("{} is not a folder of ours alone: remove it", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(path)
}

/// Removes folders in `parent` that belong to processes which are gone. `owner` returns a folder's process
/// from its name, `None` for folders that stay.
pub fn remove_orphans(parent: &Path, owner: impl Fn(&str) -> Option<u32>) {
    /// There are some more the next time.
    const FOLDERS_MAX: usize = 1000;
    for folder in fs::read_dir(parent).into_iter().flatten().flatten().take(FOLDERS_MAX) {
        let owner = folder.file_name().to_str().and_then(&owner);
        if owner.is_some_and(|owner| !fs::exists(format!("/proc/{owner}")).unwrap_or(true)) {
            // A remaining folder is harmless.
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

/// Announces a VM until the result is dropped.
pub fn register(entry: &Entry) -> io::Result<Registered> {
    register_in(&folder()?, entry)
}

fn register_in(folder: &Path, entry: &Entry) -> io::Result<Registered> {
    let path = folder.join(format!("{}.json", entry.pid));
    let temporary = folder.join(format!("{}.new", entry.pid));
    // Written under another name and renamed: a reader of the folder finds a whole file or none.
    File::create(&temporary)?.write_all(serde_json::to_string(entry)?.as_bytes())?;
    fs::rename(&temporary, &path)?;
    Ok(Registered { path })
}

/// The VMs that are running, by process id.
pub fn list() -> io::Result<Vec<Entry>> {
    list_in(&folder()?)
}

fn list_in(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for file in fs::read_dir(folder)?.take(ENTRIES_MAX) {
        let path = file?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let Ok(entry) = read(&path) else { continue };
        if fs::metadata(format!("/proc/{}", entry.pid)).is_ok() {
            entries.push(entry);
        } else {
            // Left by a run that was killed.
            let _ = fs::remove_file(&path);
        }
    }
    entries.sort_by_key(|entry: &Entry| entry.pid);
    Ok(entries)
}

fn read(path: &Path) -> io::Result<Entry> {
    let mut text = String::new();
    File::open(path)?.take(ENTRY_BYTES_MAX).read_to_string(&mut text)?;
    serde_json::from_str(&text).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: u32) -> Entry {
        let (elf, gdb) = (PathBuf::from("/images/a"), Some(PathBuf::from("/run/gdb")));
        Entry { pid, elf, gdb, name: "a".to_owned(), accel: "tcg".to_owned(), vcpus: 1, links: Links::default() }
    }

    #[test]
    fn a_vm_is_listed_while_it_is_registered_and_runs() {
        let base = std::env::temp_dir().join(format!("glass-registry-test-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let folder = folder_in(&base).unwrap();
        let ours = register_in(&folder, &entry(std::process::id())).unwrap();
        // No process has the highest id that Linux gives to none.
        let _dead = register_in(&folder, &entry(1 << 22 | 1)).unwrap();
        fs::write(folder.join("7.json"), "{").unwrap();
        assert_eq!(list_in(&folder).unwrap(), [entry(std::process::id())]);
        assert!(!folder.join(format!("{}.json", 1 << 22 | 1)).exists());
        drop(ours);
        assert_eq!(list_in(&folder).unwrap(), []);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let base = std::env::temp_dir().join(format!("glass-registry-open-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let folder = folder_in(&base).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(folder_in(&base).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::remove_dir_all(&base).unwrap();
    }
}
