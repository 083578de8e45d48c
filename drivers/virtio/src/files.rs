//! Files for tasks: [`Fs`] behind `glass_api::Files`, and a [`Driver`] for the platform's loop.
//!
//! A path is looked up name by name. What a lookup answers is kept for as long as the host permits, for [`NAMES_MAX`] names at most. A
//! node of the host is forgotten, so that the host can close it, when no name, open file or operation of ours refers to it.

use crate::fs::{Completion, Data, Fs, Refused};
use crate::fuse::{self, ENTRY_BYTES, Entry, FIXED_BYTES_MAX, Limits, Message, Opcode, ROOT};
use crate::transport::Transport;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::{Rc, Weak};
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::mem;
use core::task::{Poll, Waker};
use core::time::Duration;
use glass_api::{
    Buf, DirectoryEntry, ENTRIES_MAX, File, FileError, FileKind, Files, Instant, Metadata, Open, path_names,
};
use glass_drivers_device::{Dma, Driver, SetupError, Violation};
use glass_lib_trace::{BlockKind, Group, Name};

/// Names that are kept.
const NAMES_MAX: usize = 4096;
/// Requests that wait for room; each is of a task.
const WAITING_MAX: usize = 4096;
/// A host that takes longer for a request is taken to have ended.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Bytes of a directory that are read at once.
const DIRECTORY_BYTES: usize = 32 << 10;
/// How often a file that is to be made, or opened if there is one, may appear and vanish meanwhile.
const CREATE_TRIES: usize = 8;

/// A host that has not taken so many of what it is to forget has ended.
const FORGETS_MAX: usize = 4 * NAMES_MAX;
/// What is of an earlier use of the device fails.
const STARTED_AGAIN: FileError = FileError::Broken("its device was started again");

/// What a request waits for that the device has no room for.
static NO_SPACE: Name = Name::new("files: no room for another request");

/// A directory of the host. Clones are handles to the same one: a task's, and the platform's own to drive it.
pub struct HostFiles<T: Transport, D: Dma> {
    shared: Rc<Shared<T, D>>,
}

impl<T: Transport, D: Dma> Clone for HostFiles<T, D> {
    fn clone(&self) -> HostFiles<T, D> {
        HostFiles { shared: self.shared.clone() }
    }
}

struct Shared<T: Transport, D: Dma> {
    state: RefCell<State<T, D>>,
    releases_due: Rc<Releases>,
    clock: Box<dyn Fn() -> Instant>,
}

struct State<T: Transport, D: Dma> {
    fs: Fs<T, D>,
    /// `None` until the host has answered INIT.
    limits: Option<Limits>,
    /// Requests for which there was no room, or no answer to INIT yet.
    waiting: VecDeque<(Message, Data, Option<Rc<Slot>>)>,
    /// Who waits for which request.
    slots: BTreeMap<u64, Option<Rc<Slot>>>,
    names: BTreeMap<(u64, String), Known>,
    /// The nodes that are referred to.
    nodes: BTreeMap<u64, Weak<Node>>,
    /// Grows with each start of the device: what was open before is not any more.
    generation: u32,
}

/// A name that was looked up.
struct Known {
    /// `None` if there was no such name.
    node: Option<Rc<Node>>,
    valid_until: Instant,
    metadata: Metadata,
    metadata_until: Instant,
}

/// A node of the host that we refer to.
struct Node {
    number: u64,
    generation: u32,
    /// How often the host has counted a reference of ours.
    lookups: Cell<u64>,
    releases_due: Rc<Releases>,
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.number != ROOT {
            self.releases_due.forgets.borrow_mut().push_back((self.number, self.lookups.get(), self.generation));
        }
    }
}

/// What the host is still to be informed of.
#[derive(Default)]
struct Releases {
    /// Node, lookups, generation.
    forgets: RefCell<VecDeque<(u64, u64, u32)>>,
    /// RELEASE and RELEASEDIR, and the generation.
    releases: RefCell<VecDeque<(Message, u32)>>,
}

/// Where a task waits for its answer.
struct Slot {
    answer: RefCell<Option<Completion>>,
    waker: RefCell<Option<Waker>>,
    releases_due: Rc<Releases>,
    generation: u32,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The task has dropped the future: what the host has opened or counted for it is given back.
        if let Some(answer) = self.answer.take().filter(|answer| answer.result.is_ok()) {
            self.releases_due.give_back(&answer, self.generation);
        }
    }
}

impl Releases {
    fn give_back(&self, completion: &Completion, generation: u32) {
        let number = fuse::handle(&completion.fixed);
        let mut releases = self.releases.borrow_mut();
        match completion.opcode {
            Opcode::Lookup | Opcode::MakeDirectory | Opcode::Create if number != 0 => {
                self.forgets.borrow_mut().push_back((number, 1, generation));
                if completion.opcode == Opcode::Create {
                    let handle = fuse::handle(&completion.fixed[ENTRY_BYTES..]);
                    releases.push_back((Message::release(number, handle), generation));
                }
            }
            // Their node is not in the answer, and the host does not need it.
            Opcode::Open => releases.push_back((Message::release(ROOT, number), generation)),
            Opcode::OpenDirectory => releases.push_back((Message::release_directory(ROOT, number), generation)),
            _ => {}
        }
    }
}

impl Slot {
    fn fill(&self, completion: Completion) {
        *self.answer.borrow_mut() = Some(completion);
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T: Transport, D: Dma> HostFiles<T, D> {
    /// Makes `fs` usable by tasks. `clock` is the platform's.
    pub fn new(fs: Fs<T, D>, clock: impl Fn() -> Instant + 'static) -> HostFiles<T, D> {
        let mut state = State {
            fs,
            limits: None,
            waiting: VecDeque::new(),
            slots: BTreeMap::new(),
            names: BTreeMap::new(),
            nodes: BTreeMap::new(),
            generation: 0,
        };
        state.begin(clock());
        HostFiles {
            shared: Rc::new(Shared { state: RefCell::new(state), releases_due: Rc::default(), clock: Box::new(clock) }),
        }
    }

    fn now(&self) -> Instant {
        (self.shared.clock)()
    }

    /// Nodes that are remembered.
    #[cfg(test)]
    pub(crate) fn nodes_count(&self) -> usize {
        self.shared.state.borrow().nodes.len()
    }

    /// Sends a request about `node` and returns its answer. It fails if the device was started again since the node was found: its number
    /// may be that of another one now.
    async fn request(&self, node: &Node, message: Message, data: Data) -> Completion {
        if node.generation != self.shared.state.borrow().generation {
            let (opcode, buf) = (message.opcode, data.into_buf());
            let result = Err(STARTED_AGAIN);
            return Completion { number: 0, opcode, result, fixed: [0; FIXED_BYTES_MAX], buf, filled_bytes: 0 };
        }
        let (answer, waker, releases_due) = (RefCell::default(), RefCell::default(), self.shared.releases_due.clone());
        let generation = self.shared.state.borrow().generation;
        let slot = Rc::new(Slot { answer, waker, releases_due, generation });
        self.shared.state.borrow_mut().submit(message, data, Some(slot.clone()), self.now());
        poll_fn(|context| {
            if let Some(mut completion) = slot.answer.borrow_mut().take() {
                // Its numbers may be those of other nodes by now.
                if self.shared.state.borrow().generation != generation {
                    completion.result = Err(STARTED_AGAIN);
                }
                return Poll::Ready(completion);
            }
            *slot.waker.borrow_mut() = Some(context.waker().clone());
            if glass_lib_trace::is_on(Group::Tasks) {
                self.shared.state.borrow().block_on(&slot);
            }
            Poll::Pending
        })
        .await
    }

    async fn simple(&self, node: &Node, message: Message) -> Result<(), FileError> {
        self.request(node, message, Data::None).await.result
    }

    /// The node of `name` in `parent`, and its metadata.
    async fn lookup(&self, parent: &Rc<Node>, name: &str) -> Result<(Rc<Node>, Metadata), FileError> {
        let now = self.now();
        if let Some(known) = self.shared.state.borrow().names.get(&(parent.number, name.into()))
            && known.valid_until > now
        {
            match &known.node {
                None => return Err(FileError::NotFound),
                Some(node) if known.metadata_until > now => return Ok((node.clone(), known.metadata)),
                Some(_) => {}
            }
        }
        let answer = self.request(parent, Message::lookup(parent.number, name), Data::None).await;
        answer.result?;
        self.learn(parent, name, fuse::entry(&answer.fixed))
    }

    /// Keeps what a request has answered of a name.
    fn learn(&self, parent: &Rc<Node>, name: &str, entry: Entry) -> Result<(Rc<Node>, Metadata), FileError> {
        let now = self.now();
        let mut state = self.shared.state.borrow_mut();
        let node = match entry.node {
            0 => None,
            number => Some(state.node(number, &self.shared.releases_due)),
        };
        let known = Known {
            node: node.clone(),
            valid_until: now + entry.name_valid,
            metadata: entry.metadata,
            metadata_until: now + entry.metadata_valid,
        };
        let replaced = state.names.insert((parent.number, name.into()), known);
        let removed = state.evict(now);
        drop(state);
        drop((replaced, removed));
        node.map(|node| (node, entry.metadata)).ok_or(FileError::NotFound)
    }

    /// What was known of a name is not true any more.
    fn unlearn(&self, parent: &Rc<Node>, name: &str) {
        let known = self.shared.state.borrow_mut().names.remove(&(parent.number, name.into()));
        drop(known);
    }

    fn root(&self) -> Rc<Node> {
        self.shared.state.borrow_mut().node(ROOT, &self.shared.releases_due)
    }

    /// The directory that the names lead to.
    async fn directory<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<Rc<Node>, FileError> {
        let mut node = self.root();
        for name in names {
            let (next, metadata) = self.lookup(&node, name).await?;
            match metadata.kind {
                FileKind::Directory => node = next,
                FileKind::SymbolicLink => return Err(FileError::SymbolicLink),
                _ => return Err(FileError::NotADirectory),
            }
        }
        Ok(node)
    }

    /// The directory of a path's last name, and that name; no name for the root.
    async fn parent<'a>(&self, path: &'a str) -> Result<(Rc<Node>, Option<&'a str>), FileError> {
        let names: Vec<&str> = path_names(path)?.collect();
        let Some((last, above)) = names.split_last() else { return Ok((self.root(), None)) };
        Ok((self.directory(above.iter().copied()).await?, Some(last)))
    }

    async fn open_node(&self, node: Rc<Node>, is_write: bool) -> Result<OpenFile<T, D>, FileError> {
        let answer = self.request(&node, Message::open(node.number, is_write), Data::None).await;
        answer.result?;
        Ok(OpenFile { files: self.clone(), node, handle: fuse::handle(&answer.fixed) })
    }

    async fn open_existing(&self, parent: &Rc<Node>, name: &str, is_write: bool) -> Result<OpenFile<T, D>, FileError> {
        let (node, metadata) = self.lookup(parent, name).await?;
        match metadata.kind {
            FileKind::File => self.open_node(node, is_write).await,
            FileKind::Directory => Err(FileError::IsADirectory),
            FileKind::SymbolicLink => Err(FileError::SymbolicLink),
            // Opening a pipe waits for its other end, and a device may do anything.
            FileKind::Other => Err(FileError::Denied),
        }
    }

    async fn create(&self, parent: &Rc<Node>, name: &str) -> Result<OpenFile<T, D>, FileError> {
        let answer = self.request(parent, Message::create(parent.number, name), Data::None).await;
        answer.result?;
        let (node, _) = self.learn(parent, name, fuse::entry(&answer.fixed))?;
        Ok(OpenFile { files: self.clone(), node, handle: fuse::handle(&answer.fixed[ENTRY_BYTES..]) })
    }
}

impl<T: Transport, D: Dma> State<T, D> {
    /// The device has started: INIT comes first.
    fn begin(&mut self, now: Instant) {
        let submitted = self.fs.submit(Message::init(), Data::None, now);
        if let Ok(number) = submitted {
            self.slots.insert(number, None);
        }
    }

    fn node(&mut self, number: u64, releases_due: &Rc<Releases>) -> Rc<Node> {
        let generation = self.generation;
        let kept = self.nodes.get(&number).and_then(Weak::upgrade);
        let node = kept.unwrap_or_else(|| {
            let node = Rc::new(Node { number, generation, lookups: Cell::new(0), releases_due: releases_due.clone() });
            self.nodes.insert(number, Rc::downgrade(&node));
            node
        });
        node.lookups.set(node.lookups.get() + 1);
        node
    }

    /// Removes names beyond the limit, those first that are not valid any more.
    fn evict(&mut self, now: Instant) -> Vec<Known> {
        let mut names = Vec::new();
        if self.names.len() > NAMES_MAX {
            names.extend(self.names.extract_if(.., |_, known| known.valid_until <= now).map(|(_, known)| known));
            while self.names.len() > NAMES_MAX / 2 {
                names.extend(self.names.pop_first().map(|(_, known)| known));
            }
        }
        names
    }

    fn submit(&mut self, message: Message, data: Data, slot: Option<Rc<Slot>>, now: Instant) {
        if self.limits.is_none() || !self.waiting.is_empty() {
            if let Some(violation) = self.fs.violation() {
                return refuse(FileError::Broken(violation.as_str()), message.opcode, data, slot);
            }
            if self.waiting.len() >= WAITING_MAX {
                return refuse(FileError::TooMany, message.opcode, data, slot);
            }
            self.waiting.push_back((message, data, slot));
            return;
        }
        let opcode = message.opcode;
        match self.fs.submit(message, data, now) {
            Ok(number) => _ = self.slots.insert(number, slot),
            Err(Refused::Full(message, data)) => self.waiting.push_back((message, data, slot)),
            Err(Refused::Error(error, data)) => refuse(error, opcode, data, slot),
        }
    }

    /// Records in the trace what a task waits on.
    fn block_on(&self, slot: &Rc<Slot>) {
        let number = self.slots.iter().find(|(_, other)| other.as_ref().is_some_and(|other| Rc::ptr_eq(other, slot)));
        match number {
            Some((number, _)) => glass_lib_trace::block_numbered(BlockKind::Request, self.fs.trace_name(), *number),
            None => glass_lib_trace::block(BlockKind::Resource, &NO_SPACE, self.fs.trace_name().into()),
        }
    }

    /// Submits what waits, as far as there is room, or fails it if the device is broken.
    fn admit(&mut self, now: Instant) {
        if let Some(violation) = self.fs.violation() {
            for (message, data, slot) in mem::take(&mut self.waiting) {
                refuse(FileError::Broken(violation.as_str()), message.opcode, data, slot);
            }
        }
        while self.limits.is_some()
            && let Some((message, data, slot)) = self.waiting.pop_front()
        {
            let opcode = message.opcode;
            match self.fs.submit(message, data, now) {
                Ok(number) => _ = self.slots.insert(number, slot),
                Err(Refused::Full(message, data)) => {
                    self.waiting.push_front((message, data, slot));
                    return;
                }
                Err(Refused::Error(error, data)) => refuse(error, opcode, data, slot),
            }
        }
    }
}

fn refuse(error: FileError, opcode: Opcode, data: Data, slot: Option<Rc<Slot>>) {
    let Some(slot) = slot else { return };
    let buf = data.into_buf();
    slot.fill(Completion { number: 0, opcode, result: Err(error), fixed: [0; FIXED_BYTES_MAX], buf, filled_bytes: 0 });
}

impl<T: Transport, D: Dma> Shared<T, D> {
    /// Takes one completion.
    fn poll_one(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(completion) = state.fs.poll_one() else { return false };
        let slot = state.slots.remove(&completion.number).flatten();
        if completion.opcode == Opcode::Init {
            state.limits = completion.result.ok().and_then(|()| fuse::limits(&completion.fixed).ok());
            if state.limits.is_none() {
                state.fs.break_with(Violation::BadAnswer);
            }
            return true;
        }
        drop(state);
        if let Some(slot) = slot {
            slot.fill(completion);
        }
        true
    }

    /// Informs the host of what was closed and is not referred to.
    fn send_releases(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        let generation = state.generation;
        for (message, of) in self.releases_due.releases.take() {
            if of == generation {
                state.submit(message, Data::None, None, now);
            }
        }
        loop {
            let Some((node, lookups, of)) = self.releases_due.forgets.borrow().front().copied() else { return };
            if of == generation && !state.fs.forget(node, lookups) && state.fs.violation().is_none() {
                if self.releases_due.forgets.borrow().len() > FORGETS_MAX {
                    state.fs.break_with(Violation::NoAnswer);
                }
                return;
            }
            self.releases_due.forgets.borrow_mut().pop_front();
            if state.nodes.get(&node).is_some_and(|node| node.strong_count() == 0) {
                state.nodes.remove(&node);
            }
        }
    }
}

impl<T: Transport, D: Dma> Driver for HostFiles<T, D> {
    fn poll(&mut self) -> bool {
        let mut progress = false;
        while self.shared.poll_one() {
            progress = true;
        }
        let now = self.now();
        let mut state = self.shared.state.borrow_mut();
        state.admit(now);
        state.fs.expect_answers(Instant(now.0.saturating_sub(ANSWER_TIME.as_nanos() as u64)));
        progress
    }

    fn kick(&mut self) -> bool {
        self.shared.send_releases(self.now());
        self.shared.state.borrow_mut().fs.kick();
        false
    }

    fn arm(&mut self) -> bool {
        self.shared.state.borrow_mut().fs.arm()
    }

    fn disarm(&mut self) {
        self.shared.state.borrow_mut().fs.disarm();
    }

    fn deadline(&mut self) -> Option<Instant> {
        self.shared.state.borrow().fs.oldest().map(|since| since + ANSWER_TIME + Duration::from_nanos(1))
    }

    fn acknowledge(&mut self) {
        self.shared.state.borrow_mut().fs.acknowledge();
    }

    fn violation(&self) -> Option<Violation> {
        self.shared.state.borrow().fs.violation()
    }

    /// What is open, and every name, is of the device's last use: operations on them fail.
    fn restart(&mut self) -> Result<(), SetupError> {
        // Every task that waits for an answer gets one.
        self.poll();
        let now = self.now();
        let mut state = self.shared.state.borrow_mut();
        let dropped = (mem::take(&mut state.names), mem::take(&mut state.nodes), mem::take(&mut state.slots));
        state.limits = None;
        state.generation += 1;
        let restarted = state.fs.restart();
        if restarted.is_ok() {
            state.begin(now);
        }
        drop(state);
        drop(dropped);
        restarted
    }

    fn set_trace_name(&mut self, name: u32) {
        self.shared.state.borrow_mut().fs.set_trace_name(name);
    }
}

impl<T: Transport + 'static, D: Dma + 'static> Files for HostFiles<T, D> {
    type File = OpenFile<T, D>;

    async fn open(&self, path: &str, how: Open) -> Result<OpenFile<T, D>, FileError> {
        let (parent, name) = self.parent(path).await?;
        let name = name.ok_or(FileError::IsADirectory)?;
        match how {
            Open::Read => self.open_existing(&parent, name, false).await,
            Open::Write => self.open_existing(&parent, name, true).await,
            Open::CreateNew => self.create(&parent, name).await,
            Open::Create => {
                for _ in 0..CREATE_TRIES {
                    match self.open_existing(&parent, name, true).await {
                        Err(FileError::NotFound) => {}
                        opened => return opened,
                    }
                    match self.create(&parent, name).await {
                        Err(FileError::Exists) => self.unlearn(&parent, name),
                        created => return created,
                    }
                }
                Err(FileError::NotFound)
            }
        }
    }

    async fn metadata(&self, path: &str) -> Result<Metadata, FileError> {
        let (parent, name) = self.parent(path).await?;
        let Some(name) = name else {
            let answer = self.request(&parent, Message::attributes(ROOT, None), Data::None).await;
            return answer.result.map(|()| fuse::attributes(&answer.fixed).0);
        };
        Ok(self.lookup(&parent, name).await?.1)
    }

    async fn read_dir(&self, path: &str) -> Result<Vec<DirectoryEntry>, FileError> {
        let node = self.directory(path_names(path)?).await?;
        let answer = self.request(&node, Message::open_directory(node.number), Data::None).await;
        answer.result?;
        let handle = fuse::handle(&answer.fixed);
        // Closed when this ends, in whatever way.
        let open = OpenDirectory { node: node.clone(), handle };
        let (mut entries, mut offset, mut requests) = (Vec::new(), 0, 0);
        let mut buf = Buf::zeroed(DIRECTORY_BYTES).map_err(|_| FileError::OutOfMemory)?;
        loop {
            let message = Message::read_directory(open.node.number, open.handle, offset, DIRECTORY_BYTES as u32);
            let answer = self.request(&open.node, message, Data::Fill(buf, 0..DIRECTORY_BYTES)).await;
            answer.result?;
            buf = answer.buf.ok_or(FileError::Broken("a buffer is lost"))?;
            let next = fuse::directory_entries(&buf[..answer.filled_bytes], &mut entries).map_err(FileError::Broken)?;
            match next {
                None => return Ok(entries),
                // Each answer had an entry, though perhaps none with a name of ours.
                _ if entries.len() > ENTRIES_MAX || requests >= ENTRIES_MAX => return Err(FileError::TooMany),
                Some(next) if next == offset => return Err(FileError::Broken("a directory does not end")),
                Some(next) => (offset, requests) = (next, requests + 1),
            }
        }
    }

    async fn create_dir(&self, path: &str) -> Result<(), FileError> {
        let (parent, name) = self.parent(path).await?;
        let name = name.ok_or(FileError::Exists)?;
        let answer = self.request(&parent, Message::make_directory(parent.number, name), Data::None).await;
        answer.result?;
        self.learn(&parent, name, fuse::entry(&answer.fixed)).map(drop)
    }

    async fn remove_dir(&self, path: &str) -> Result<(), FileError> {
        let (parent, name) = self.parent(path).await?;
        let name = name.ok_or(FileError::Denied)?;
        let removed = self.simple(&parent, Message::remove(parent.number, name, true)).await;
        self.unlearn(&parent, name);
        removed
    }

    async fn remove_file(&self, path: &str) -> Result<(), FileError> {
        let (parent, name) = self.parent(path).await?;
        let name = name.ok_or(FileError::IsADirectory)?;
        let removed = self.simple(&parent, Message::remove(parent.number, name, false)).await;
        self.unlearn(&parent, name);
        removed
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let (parent, name) = self.parent(from).await?;
        let (new_parent, new_name) = self.parent(to).await?;
        let (name, new_name) = (name.ok_or(FileError::Denied)?, new_name.ok_or(FileError::Denied)?);
        let renamed = self.simple(&parent, Message::rename(parent.number, name, new_parent.number, new_name)).await;
        self.unlearn(&parent, name);
        self.unlearn(&new_parent, new_name);
        renamed
    }
}

/// A directory that is open. Dropping it closes it.
struct OpenDirectory {
    node: Rc<Node>,
    handle: u64,
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        let message = Message::release_directory(self.node.number, self.handle);
        self.node.releases_due.releases.borrow_mut().push_back((message, self.node.generation));
    }
}

/// A file of the host that is open.
pub struct OpenFile<T: Transport, D: Dma> {
    files: HostFiles<T, D>,
    node: Rc<Node>,
    handle: u64,
}

impl<T: Transport, D: Dma> OpenFile<T, D> {
    /// What the host permits; an error if its device was started again and has not answered yet.
    fn limits(&self) -> Result<Limits, FileError> {
        self.files.shared.state.borrow().limits.ok_or(STARTED_AGAIN)
    }
}

impl<T: Transport + 'static, D: Dma + 'static> File for OpenFile<T, D> {
    async fn metadata(&self) -> Result<Metadata, FileError> {
        let message = Message::attributes(self.node.number, Some(self.handle));
        let answer = self.files.request(&self.node, message, Data::None).await;
        answer.result.map(|()| fuse::attributes(&answer.fixed).0)
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<usize, FileError>, Buf) {
        let mut done = 0;
        while done < buf.len() {
            let limits = match self.limits() {
                Ok(limits) => limits,
                Err(error) => return (Err(error), buf),
            };
            let bytes = (buf.len() - done).min(limits.read_bytes_max);
            let message = Message::read(self.node.number, self.handle, offset + done as u64, bytes as u32);
            let answer = self.files.request(&self.node, message, Data::Fill(buf, done..done + bytes)).await;
            buf = answer.buf.expect("each completion has its buffer");
            match answer.result {
                Err(error) => return (Err(error), buf),
                Ok(()) => done += answer.filled_bytes,
            }
            if answer.filled_bytes < bytes {
                break;
            }
        }
        (Ok(done), buf)
    }

    async fn write(&self, offset: u64, mut buf: Buf) -> (Result<(), FileError>, Buf) {
        let mut done = 0;
        while done < buf.len() {
            let limits = match self.limits() {
                Ok(limits) => limits,
                Err(error) => return (Err(error), buf),
            };
            let bytes = (buf.len() - done).min(limits.write_bytes_max);
            let message = Message::write(self.node.number, self.handle, offset + done as u64, bytes as u32);
            let answer = self.files.request(&self.node, message, Data::Send(buf, done..done + bytes)).await;
            buf = answer.buf.expect("each completion has its buffer");
            match answer.result.map(|()| fuse::written(&answer.fixed)) {
                Err(error) => return (Err(error), buf),
                Ok(0) => return (Err(FileError::NoSpace), buf),
                Ok(count) if count > bytes => return (Err(FileError::Broken("more was written than was sent")), buf),
                Ok(count) => done += count,
            }
        }
        (Ok(()), buf)
    }

    async fn truncate(&self, bytes: u64) -> Result<(), FileError> {
        self.files.simple(&self.node, Message::truncate(self.node.number, self.handle, bytes)).await
    }

    async fn sync(&self) -> Result<(), FileError> {
        self.files.simple(&self.node, Message::sync(self.node.number, self.handle)).await
    }
}

impl<T: Transport, D: Dma> Drop for OpenFile<T, D> {
    fn drop(&mut self) {
        let message = Message::release(self.node.number, self.handle);
        self.node.releases_due.releases.borrow_mut().push_back((message, self.node.generation));
    }
}
