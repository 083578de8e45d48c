//! The file system: names, directories, and who may change what when.

use crate::device::{Device, DeviceError};
use crate::error::{MountError, file_error, mount_error};
use crate::file::FatFile;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicI64, Ordering::Relaxed};
use core::time::Duration;
use glass_api::{Block, Clock, DirectoryEntry, ENTRIES_MAX, FileError, FileKind, Files, Metadata, Open, check_path};
use glass_lib_executor::sync::{Mutex, MutexGuard, Permit, Semaphore};
use glass_lib_trace::Name;
use hadris_fat::async_::{FatFs, format};
use hadris_fat::{CacheOptions, FatOptions};
use hadris_fs::{DateTime, DirCursor, FileType, MountOptions, NodeId, OpenMode, RenameMode, Resolve, SetAttr};
use hadris_io::Error;
use hadris_storage::async_::BlockDevice;

static TABLES: Name = Name::new("tables of the file system");
static CONTENTS: Name = Name::new("contents of files");

/// Operations that may read contents at the same time.
const READERS_MAX: usize = 1024;
/// Blocks of tables, and entries of a directory, that are kept in memory: 256 KiB and some 200 KiB.
const CACHED_BLOCKS: usize = 64;
const CACHED_ENTRIES: usize = 1024;
/// Open files and files with sizes that are not written yet.
const NODES_MAX: usize = 4096;

/// The files of a FAT file system that fills a block device. Clones are handles to the same one, which must be the only user of the device.
pub struct Fat<B: Block>(pub(crate) Rc<Volume<B>>);

impl<B: Block> Clone for Fat<B> {
    fn clone(&self) -> Self {
        Fat(self.0.clone())
    }
}

pub(crate) struct Volume<B: Block> {
    pub(crate) block: B,
    system: Mutex<FatFs<Device<B>>>,
    /// Who reads contents has one place, who changes something all of them, so clusters do not get other owners while they are read.
    contents: Semaphore,
    /// Files that were closed since the last operation.
    closed: RefCell<VecDeque<NodeId>>,
    /// How many changes there were.
    changes: Cell<u64>,
    /// Which change was the last of a file. FAT's times are too coarse to show one.
    changed: RefCell<LastChanges>,
    wall: Box<dyn Fn() -> Duration>,
}

/// The number of the last change of each file, for the files that have changed last.
#[derive(Default)]
struct LastChanges {
    changes: BTreeMap<NodeId, u64>,
    /// What stands for all other files: no change of theirs was later.
    forgotten: u64,
}

impl LastChanges {
    fn note(&mut self, node: NodeId, change: u64) {
        if self.changes.len() >= NODES_MAX && !self.changes.contains_key(&node) {
            // Files that have not changed seem to have, once; none that has changed seems not to.
            self.forgotten = self.changes.values().copied().fold(self.forgotten, u64::max);
            self.changes.clear();
        }
        self.changes.insert(node, change);
    }

    fn of(&self, node: NodeId) -> u64 {
        self.changes.get(&node).copied().unwrap_or(self.forgotten)
    }
}

impl<B: Block> Fat<B> {
    /// Uses the file system on `block`, for reading only if the device is. `clock` gives files their times of change.
    pub async fn mount(block: B, clock: impl Clock + 'static) -> Result<Fat<B>, MountError> {
        let device = Device::new(block.clone()).ok_or(MountError::SectorSize(block.info().sector_bytes))?;
        let options = MountOptions::new().with_clock(&LastChange).with_node_limit(NODES_MAX);
        let mounted = FatFs::mount(device, options).await.map_err(|error| mount_error(error.error()))?;
        let cache = CacheOptions::new().with_blocks(CACHED_BLOCKS).with_directory_entries(CACHED_ENTRIES);
        Ok(Fat(Rc::new(Volume {
            block,
            system: Mutex::named(&TABLES, mounted.with_cache(cache)),
            contents: Semaphore::named(&CONTENTS, READERS_MAX),
            closed: RefCell::default(),
            changes: Cell::new(0),
            changed: RefCell::default(),
            wall: Box::new(move || clock.wall().map_or(Duration::ZERO, |wall| wall.since_epoch)),
        })))
    }

    /// Makes an empty file system on `block`, whose contents are lost, and uses it. Call it when [`Fat::mount`] has reported
    /// [`MountError::NotFat`] for a disk that is the service's own.
    pub async fn format(block: B, clock: impl Clock + 'static) -> Result<Fat<B>, MountError> {
        let mut device = Device::new(block.clone()).ok_or(MountError::SectorSize(block.info().sector_bytes))?;
        let now = clock.wall().map_or(0, |wall| wall.since_epoch.as_secs());
        let time = DateTime::from_unix_seconds(i64::try_from(now).unwrap_or(0)).unwrap_or(DateTime::UNIX_EPOCH);
        format(&mut device, &FatOptions::new().with_time(time)).await.map_err(|error| mount_error(&error))?;
        device.flush().await.map_err(|error| mount_error(&error))?;
        Fat::mount(block, clock).await
    }

    /// Returns when all changes are on stable storage. Call it when the service ends: it also marks the file system as clean, which
    /// other systems check.
    pub async fn sync(&self) -> Result<(), FileError> {
        let (mut system, _all) = self.0.change().await;
        system.sync().await.map_err(file_error)
    }
}

impl<B: Block> Volume<B> {
    /// The tables.
    pub(crate) async fn tables(&self) -> MutexGuard<'_, FatFs<Device<B>>> {
        let mut system = self.system.lock().await;
        while let Some(node) = { self.closed.borrow_mut().pop_front() } {
            // If this future is dropped in between, or writing fails, the file's length stays in memory until the next `sync`.
            system.forget(node, 1);
            let _ = system.close(node).await;
        }
        system
    }

    /// The tables, for a change.
    pub(crate) async fn change(&self) -> (MutexGuard<'_, FatFs<Device<B>>>, Permit) {
        let all = self.contents.acquire_many(READERS_MAX).await;
        let system = self.tables().await;
        NOW.store(i64::try_from((self.wall)().as_secs()).unwrap_or(i64::MAX), Relaxed);
        // Before it happens: the operation may be dropped half-way.
        self.changes.set(self.changes.get() + 1);
        (system, all)
    }

    /// A place for who reads contents.
    pub(crate) async fn reading(&self) -> Permit {
        self.contents.acquire().await
    }

    /// How many changes there were.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Notes that `node` has changed now.
    pub(crate) fn note_change(&self, node: NodeId) {
        self.changed.borrow_mut().note(node, self.changes.get());
    }

    /// Closes a file at the start of the next operation.
    pub(crate) fn close(&self, node: NodeId) {
        self.closed.borrow_mut().push_back(node);
    }

    pub(crate) fn metadata(&self, node: NodeId, metadata: &hadris_fs::Metadata) -> Metadata {
        let modified = metadata.modified().map_or(Duration::ZERO, |time| since_epoch(&time));
        let change = self.changed.borrow().of(node);
        Metadata {
            kind: kind(metadata.file_type()),
            bytes: metadata.len(),
            modified,
            changed: modified + Duration::from_nanos(change),
            number: node.get(),
            links: 1,
        }
    }
}

fn since_epoch(time: &DateTime) -> Duration {
    let seconds = u64::try_from(time.unix_seconds()).unwrap_or(0);
    Duration::new(seconds, time.nanoseconds().min(999_999_999))
}

fn kind(kind: FileType) -> FileKind {
    match kind {
        FileType::File => FileKind::File,
        FileType::Dir => FileKind::Directory,
        FileType::Symlink => FileKind::SymbolicLink,
        _ => FileKind::Other,
    }
}

/// The node of a path, which the caller has to forget.
async fn resolve<B: Block>(system: &mut FatFs<Device<B>>, path: &str) -> Result<NodeId, Error<DeviceError>> {
    system.resolve(path.as_bytes(), Resolve::Lexical).await
}

/// The directory of a path, which the caller has to forget, and the name in it.
async fn resolve_parent<'p, B: Block>(
    system: &mut FatFs<Device<B>>,
    path: &'p str,
) -> Result<(NodeId, &'p hadris_fs::Name), Error<DeviceError>> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((resolve(system, parent).await?, hadris_fs::Name::from_bytes(name.as_bytes())))
}

impl<B: Block> Files for Fat<B> {
    type File = FatFile<B>;

    async fn open(&self, path: &str, how: Open) -> Result<FatFile<B>, FileError> {
        check_path(path)?;
        if how == Open::Read {
            let mut system = self.0.tables().await;
            let node = resolve(&mut system, path).await.map_err(file_error)?;
            return self.opened(&mut system, node, OpenMode::Read).await;
        }
        if path.is_empty() {
            return Err(FileError::IsADirectory);
        }
        let (mut system, _all) = self.0.change().await;
        let (parent, name) = resolve_parent(&mut system, path).await.map_err(file_error)?;
        let found = system.lookup(parent, name).await.map_err(file_error);
        let node = match (found, how) {
            (Ok(node), Open::CreateNew) => {
                system.forget(node, 1);
                Err(FileError::Exists)
            }
            (Err(FileError::NotFound), Open::Create | Open::CreateNew) => {
                let made = system.create(parent, name, &SetAttr::new()).await.map_err(file_error);
                made.inspect(|node| self.0.note_change(*node))
            }
            (found, _) => found,
        };
        system.forget(parent, 1);
        self.opened(&mut system, node?, OpenMode::Write).await
    }

    async fn metadata(&self, path: &str) -> Result<Metadata, FileError> {
        check_path(path)?;
        let mut system = self.0.tables().await;
        let node = resolve(&mut system, path).await.map_err(file_error)?;
        let metadata = system.stat(node).await;
        system.forget(node, 1);
        Ok(self.0.metadata(node, &metadata.map_err(file_error)?))
    }

    async fn read_dir(&self, path: &str) -> Result<Vec<DirectoryEntry>, FileError> {
        check_path(path)?;
        let mut system = self.0.tables().await;
        let node = resolve(&mut system, path).await.map_err(file_error)?;
        let mut entries = Vec::new();
        let mut cursor = DirCursor::START;
        let end = loop {
            match system.readdir(node, cursor).await {
                Ok(Some(_)) if entries.len() >= ENTRIES_MAX => break Err(FileError::TooMany),
                Ok(Some(entry)) => {
                    cursor = entry.next_cursor();
                    if let Ok(name) = entry.name().to_str() {
                        entries.push(DirectoryEntry { name: String::from(name), kind: kind(entry.file_type()) });
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(file_error(error)),
            }
        };
        system.forget(node, 1);
        end.map(|()| entries)
    }

    async fn create_dir(&self, path: &str) -> Result<(), FileError> {
        check_path(path)?;
        if path.is_empty() {
            return Err(FileError::Exists);
        }
        let (mut system, _all) = self.0.change().await;
        let (parent, name) = resolve_parent(&mut system, path).await.map_err(file_error)?;
        let made = system.mkdir(parent, name, &SetAttr::new()).await;
        system.forget(parent, 1);
        let node = made.map_err(file_error)?;
        self.0.note_change(node);
        system.forget(node, 1);
        Ok(())
    }

    async fn remove_dir(&self, path: &str) -> Result<(), FileError> {
        check_path(path)?;
        if path.is_empty() {
            return Err(FileError::Denied);
        }
        let (mut system, _all) = self.0.change().await;
        let (parent, name) = resolve_parent(&mut system, path).await.map_err(file_error)?;
        let removed = system.rmdir(parent, name).await;
        system.forget(parent, 1);
        removed.map_err(file_error)
    }

    async fn remove_file(&self, path: &str) -> Result<(), FileError> {
        check_path(path)?;
        if path.is_empty() {
            return Err(FileError::IsADirectory);
        }
        let (mut system, _all) = self.0.change().await;
        let (parent, name) = resolve_parent(&mut system, path).await.map_err(file_error)?;
        let removed = system.unlink(parent, name).await;
        system.forget(parent, 1);
        removed.map_err(file_error)
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        check_path(from)?;
        check_path(to)?;
        if from.is_empty() || to.is_empty() {
            return Err(FileError::Denied);
        }
        let (mut system, _all) = self.0.change().await;
        let (from_parent, from_name) = resolve_parent(&mut system, from).await.map_err(file_error)?;
        let moved = match resolve_parent(&mut system, to).await {
            Ok((to_parent, to_name)) => {
                let moved = system.rename(from_parent, from_name, to_parent, to_name, RenameMode::Replace).await;
                if moved.is_ok()
                    && let Ok(node) = system.lookup(to_parent, to_name).await
                {
                    self.0.note_change(node);
                    system.forget(node, 1);
                }
                system.forget(to_parent, 1);
                moved
            }
            Err(error) => Err(error),
        };
        system.forget(from_parent, 1);
        moved.map_err(file_error)
    }
}

impl<B: Block> Fat<B> {
    /// Opens a node that was found, and forgets it if that fails.
    async fn opened(
        &self,
        system: &mut FatFs<Device<B>>,
        node: NodeId,
        mode: OpenMode,
    ) -> Result<FatFile<B>, FileError> {
        match system.open(node, mode).await {
            Ok(()) => Ok(FatFile::new(self.clone(), node, mode == OpenMode::Write)),
            Err(error) => {
                system.forget(node, 1);
                Err(file_error(error))
            }
        }
    }
}

/// Seconds since 1970, of the last change that began.
static NOW: AtomicI64 = AtomicI64::new(0);

/// The clock of `hadris-fat`, which has to be static.
struct LastChange;

impl hadris_fs::Clock for LastChange {
    fn now(&self) -> DateTime {
        DateTime::from_unix_seconds(NOW.load(Relaxed)).unwrap_or(DateTime::UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_remembered_in_bounded_memory_and_never_seem_older_than_they_are() {
        let mut last = LastChanges::default();
        let node = |number: u64| NodeId::new(number).unwrap();
        for change in 1..=3 * NODES_MAX as u64 {
            let before = last.of(node(change));
            last.note(node(change), change);
            assert!(last.changes.len() <= NODES_MAX && last.of(node(change)) == change && before < change);
        }
        // What was forgotten counts as changed when the last of them did.
        assert_eq!((last.of(node(1)), last.of(node(99_999))), (2 * NODES_MAX as u64, 2 * NODES_MAX as u64));
        last.note(node(1), 3 * NODES_MAX as u64 + 1);
        assert_eq!(last.of(node(1)), 3 * NODES_MAX as u64 + 1);
    }
}
