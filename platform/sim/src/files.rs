//! Simulated files: in memory, with latency, and faulty on request.

use crate::chance::Chance;
use crate::clock::SimClock;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use core::time::Duration;
use glass_api::{Buf, DirectoryEntry, File, FileError, FileKind, Files, Metadata, Open, check_path, path_names};
use glass_lib_executor::Executor;
use std::collections::BTreeMap;
use std::rc::Rc;

const LATENCY: Range<Duration> = Duration::from_micros(5)..Duration::from_micros(200);
/// The error of an operation that fails on purpose: EIO.
const FAULT: FileError = FileError::Host(5);

/// A directory of a simulated host. Clones are handles to the same one. A test changes it at once, as programs of the host would; a
/// service's operations take time and overtake each other.
#[derive(Clone)]
pub struct SimFiles {
    inner: Rc<Inner>,
}

struct Inner {
    nodes: RefCell<BTreeMap<String, Node>>,
    nodes_made: Cell<u64>,
    chance: RefCell<Chance>,
    world: RefCell<Option<(SimClock, Executor)>>,
    operations: Cell<u64>,
    fail_every: Cell<Option<u64>>,
}

#[derive(Clone)]
struct Node {
    kind: FileKind,
    number: u64,
    content: Rc<Content>,
}

#[derive(Default)]
struct Content {
    bytes: RefCell<Vec<u8>>,
    modified: Cell<Duration>,
    changed: Cell<Duration>,
    /// It has no name any more.
    is_removed: Cell<bool>,
}

impl Content {
    fn note_write(&self, time: Duration) {
        self.modified.set(time);
        self.changed.set(time);
    }
}

/// An open file.
pub struct SimFile {
    files: SimFiles,
    node: Node,
    is_write: bool,
}

impl SimFiles {
    /// An empty directory whose latencies follow from `seed`.
    pub fn new(seed: u64) -> SimFiles {
        let inner = Inner {
            nodes: RefCell::default(),
            nodes_made: Cell::new(0),
            chance: RefCell::new(Chance::new(seed)),
            world: RefCell::default(),
            operations: Cell::new(0),
            fail_every: Cell::new(None),
        };
        let files = SimFiles { inner: Rc::new(inner) };
        files.insert("", FileKind::Directory, &[]);
        files
    }

    pub(crate) fn attach(&self, clock: SimClock, executor: Executor) {
        *self.inner.world.borrow_mut() = Some((clock, executor));
    }

    /// Puts a file there, and the directories above it; one of that name is replaced, as by a rename.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        self.make_above(path);
        self.insert(path, FileKind::File, bytes);
    }

    /// Puts a symbolic link there.
    pub fn put_link(&self, path: &str) {
        self.make_above(path);
        self.insert(path, FileKind::SymbolicLink, &[]);
    }

    /// Replaces the bytes of a file in place.
    pub fn overwrite(&self, path: &str, bytes: &[u8]) {
        let node = self.inner.nodes.borrow()[path].clone();
        *node.content.bytes.borrow_mut() = bytes.to_vec();
        node.content.note_write(self.next_time());
    }

    /// [`SimFiles::overwrite`] by a program that sets the time of the change back.
    pub fn overwrite_with_old_time(&self, path: &str, bytes: &[u8]) {
        let node = self.inner.nodes.borrow()[path].clone();
        *node.content.bytes.borrow_mut() = bytes.to_vec();
        node.content.changed.set(self.next_time());
    }

    /// Gives a file another name at once, if it is there.
    pub fn move_file(&self, from: &str, to: &str) {
        let Some(node) = self.inner.nodes.borrow_mut().remove(from) else { return };
        node.content.changed.set(self.next_time());
        self.inner.nodes.borrow_mut().insert(to.into(), node);
    }

    /// Removes a file or a link at once.
    pub fn remove(&self, path: &str) {
        let node = self.inner.nodes.borrow_mut().remove(path);
        self.note_removal(node);
    }

    /// As on Linux: that a file has lost its name changes the file, and not its contents.
    fn note_removal(&self, node: Option<Node>) {
        if let Some(node) = node {
            node.content.changed.set(self.next_time());
            node.content.is_removed.set(true);
        }
    }

    /// The bytes of a file.
    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        let nodes = self.inner.nodes.borrow();
        let node = nodes.get(path).filter(|node| node.kind == FileKind::File);
        node.map(|node| node.content.bytes.borrow().clone())
    }

    /// Every so many operations, the last of them fails with EIO.
    pub fn fail_every(&self, operations: Option<u64>) {
        self.inner.fail_every.set(operations);
    }

    /// How many operations there were.
    pub fn operations(&self) -> u64 {
        self.inner.operations.get()
    }

    fn make_above(&self, path: &str) {
        let ends = path.match_indices('/').map(|(at, _)| at);
        for end in ends {
            if !self.inner.nodes.borrow().contains_key(&path[..end]) {
                self.insert(&path[..end], FileKind::Directory, &[]);
            }
        }
    }

    /// A time that no change before has.
    fn next_time(&self) -> Duration {
        let count = self.inner.nodes_made.get() + 1;
        self.inner.nodes_made.set(count);
        let wall = self.inner.world.borrow().as_ref().map_or(Duration::ZERO, |(clock, _)| clock.wall());
        wall + Duration::from_nanos(count)
    }

    fn insert(&self, path: &str, kind: FileKind, bytes: &[u8]) -> Node {
        let changed = self.next_time();
        let content = Content { bytes: RefCell::new(bytes.to_vec()), ..Content::default() };
        content.note_write(changed);
        let node = Node { kind, number: self.inner.nodes_made.get(), content: Rc::new(content) };
        let before = self.inner.nodes.borrow_mut().insert(path.into(), node.clone());
        self.note_removal(before);
        node
    }

    /// Takes some time, and fails where it should.
    async fn operation(&self) -> Result<(), FileError> {
        let world = self.inner.world.borrow().clone();
        let latency = self.inner.chance.borrow_mut().duration(&LATENCY);
        if let Some((clock, executor)) = world {
            executor.sleep_until(clock.now() + latency).await;
        }
        let count = self.inner.operations.get() + 1;
        self.inner.operations.set(count);
        let fails = self.inner.fail_every.get().is_some_and(|every| count.is_multiple_of(every));
        if fails { Err(FAULT) } else { Ok(()) }
    }

    /// What is at `path`, whose directories must be some.
    fn find(&self, path: &str) -> Result<Node, FileError> {
        let nodes = self.inner.nodes.borrow();
        let mut end = 0;
        for name in path_names(path)? {
            let above = nodes.get(path[..end].trim_end_matches('/')).ok_or(FileError::NotFound)?;
            match above.kind {
                FileKind::Directory => {}
                FileKind::SymbolicLink => return Err(FileError::SymbolicLink),
                _ => return Err(FileError::NotADirectory),
            }
            end += name.len() + 1;
        }
        nodes.get(path).cloned().ok_or(FileError::NotFound)
    }

    /// Whether something may be made at `path`: its directory exists.
    fn check_parent(&self, path: &str) -> Result<(), FileError> {
        check_path(path)?;
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        match self.find(parent)?.kind {
            FileKind::Directory => Ok(()),
            _ => Err(FileError::NotADirectory),
        }
    }

    fn children(&self, path: &str) -> Vec<(String, FileKind)> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let nodes = self.inner.nodes.borrow();
        let below = nodes.iter().filter_map(|(path, node)| Some((path.strip_prefix(&prefix)?, node.kind)));
        below
            .filter(|(name, _)| !name.is_empty() && !name.contains('/'))
            .map(|(name, kind)| (name.into(), kind))
            .collect()
    }
}

impl Node {
    fn metadata(&self) -> Metadata {
        let Content { bytes, modified, changed, is_removed } = &*self.content;
        Metadata {
            kind: self.kind,
            bytes: bytes.borrow().len() as u64,
            modified: modified.get(),
            changed: changed.get(),
            number: self.number,
            links: u32::from(!is_removed.get()),
        }
    }
}

impl Files for SimFiles {
    type File = SimFile;

    async fn open(&self, path: &str, how: Open) -> Result<SimFile, FileError> {
        check_path(path)?;
        self.operation().await?;
        let node = match (self.find(path), how) {
            (Ok(_), Open::CreateNew) => return Err(FileError::Exists),
            (Err(FileError::NotFound), Open::Create | Open::CreateNew) => {
                self.check_parent(path)?;
                self.insert(path, FileKind::File, &[])
            }
            (found, _) => found?,
        };
        match node.kind {
            FileKind::File => Ok(SimFile { files: self.clone(), node, is_write: how != Open::Read }),
            FileKind::Directory => Err(FileError::IsADirectory),
            FileKind::SymbolicLink => Err(FileError::SymbolicLink),
            FileKind::Other => Err(FileError::Denied),
        }
    }

    async fn metadata(&self, path: &str) -> Result<Metadata, FileError> {
        check_path(path)?;
        self.operation().await?;
        self.find(path).map(|node| node.metadata())
    }

    async fn read_dir(&self, path: &str) -> Result<Vec<DirectoryEntry>, FileError> {
        check_path(path)?;
        self.operation().await?;
        match self.find(path)?.kind {
            FileKind::Directory => {
                let entry = |(name, kind)| DirectoryEntry { name, kind };
                Ok(self.children(path).into_iter().map(entry).collect())
            }
            FileKind::SymbolicLink => Err(FileError::SymbolicLink),
            _ => Err(FileError::NotADirectory),
        }
    }

    async fn create_dir(&self, path: &str) -> Result<(), FileError> {
        check_path(path)?;
        self.operation().await?;
        if self.find(path).is_ok() {
            return Err(FileError::Exists);
        }
        self.check_parent(path)?;
        self.insert(path, FileKind::Directory, &[]);
        Ok(())
    }

    async fn remove_dir(&self, path: &str) -> Result<(), FileError> {
        check_path(path)?;
        self.operation().await?;
        match self.find(path)?.kind {
            _ if path.is_empty() => return Err(FileError::Denied),
            FileKind::Directory if self.children(path).is_empty() => {}
            FileKind::Directory => return Err(FileError::NotEmpty),
            _ => return Err(FileError::NotADirectory),
        }
        self.inner.nodes.borrow_mut().remove(path);
        Ok(())
    }

    async fn remove_file(&self, path: &str) -> Result<(), FileError> {
        check_path(path)?;
        self.operation().await?;
        if self.find(path)?.kind == FileKind::Directory {
            return Err(FileError::IsADirectory);
        }
        self.remove(path);
        Ok(())
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        check_path(from)?;
        check_path(to)?;
        self.operation().await?;
        let node = self.find(from)?;
        self.check_parent(to)?;
        if node.kind == FileKind::Directory {
            // What is below it would have to move too, which no test needs.
            return Err(FileError::Denied);
        }
        match self.find(to) {
            Ok(other) if other.kind == FileKind::Directory => return Err(FileError::IsADirectory),
            _ => {}
        }
        node.content.changed.set(self.next_time());
        self.inner.nodes.borrow_mut().remove(from);
        let before = self.inner.nodes.borrow_mut().insert(to.into(), node);
        if from != to {
            self.note_removal(before);
        }
        Ok(())
    }
}

impl File for SimFile {
    async fn metadata(&self) -> Result<Metadata, FileError> {
        self.files.operation().await?;
        Ok(self.node.metadata())
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<usize, FileError>, Buf) {
        if let Err(error) = self.files.operation().await {
            return (Err(error), buf);
        }
        let Some(into) = buf.as_mut() else { return (Err(FileError::Shared), buf) };
        let bytes = self.node.content.bytes.borrow();
        let from = bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or(&[]);
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        (Ok(count), buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), FileError>, Buf) {
        if !self.is_write {
            return (Err(FileError::Denied), buf);
        }
        if let Err(error) = self.files.operation().await {
            return (Err(error), buf);
        }
        let Ok(start) = usize::try_from(offset) else { return (Err(FileError::NoSpace), buf) };
        let mut bytes = self.node.content.bytes.borrow_mut();
        let end = start + buf.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(&buf);
        self.node.content.note_write(self.files.next_time());
        drop(bytes);
        (Ok(()), buf)
    }

    async fn truncate(&self, bytes: u64) -> Result<(), FileError> {
        if !self.is_write {
            return Err(FileError::Denied);
        }
        self.files.operation().await?;
        self.node.content.bytes.borrow_mut().resize(usize::try_from(bytes).map_err(|_| FileError::NoSpace)?, 0);
        self.node.content.note_write(self.files.next_time());
        Ok(())
    }

    async fn sync(&self) -> Result<(), FileError> {
        self.files.operation().await
    }
}
