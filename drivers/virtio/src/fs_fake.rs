//! A host in memory that serves a small directory by FUSE, or answers what no correct device does.

use crate::fake::{Chain, DAMAGED, Fake, GuardedDma};
use crate::files::HostFiles;
use crate::fs::Fs;
use crate::fuse::Opcode;
use crate::transport::{device, feature};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use core::pin::pin;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll, Waker};
use glass_api::Instant;
use glass_drivers_device::Driver;

pub const ROOT: u64 = 1;
pub const DIRECTORY_MODE: u32 = 0o040_755;
pub const FILE_MODE: u32 = 0o100_644;
pub const LINK_MODE: u32 = 0o120_777;

/// A node of the host's directory.
#[derive(Clone)]
pub struct Node {
    pub parent: u64,
    pub name: String,
    pub mode: u32,
    pub bytes: Vec<u8>,
}

/// The host: a directory by FUSE.
pub struct Host {
    pub fake: Fake,
    pub nodes: BTreeMap<u64, Node>,
    pub nodes_made: u64,
    /// References that the guest has to give back, by node.
    pub lookups: BTreeMap<u64, u64>,
    /// Open files and directories.
    pub open: BTreeMap<u64, u64>,
    pub requests: Vec<u32>,
    /// Of all requests: each has its own.
    pub numbers: BTreeSet<u64>,
    /// How long names are valid, and how long metadata, in seconds.
    pub valid_secs: u64,
    pub metadata_valid_secs: u64,
    /// Changes the next answer.
    pub damage: Option<fn(&mut Vec<u8>)>,
    /// Directories have another entry forever.
    pub is_endless: bool,
    /// Directories have so many entries more.
    pub more_entries: u64,
    /// How long the absence of a name is valid, in seconds; 0 if it is answered by an error.
    pub absence_valid_secs: u64,
    /// It takes nothing that is to be forgotten.
    pub keeps_all: bool,
}

pub struct Site {
    pub host: Host,
    pub files: HostFiles<Fake, GuardedDma>,
    pub now: Rc<Cell<Instant>>,
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Host {
    pub fn add(&mut self, parent: u64, name: &str, mode: u32, bytes: &[u8]) -> u64 {
        self.nodes_made += 1;
        let node = ROOT + self.nodes_made;
        self.nodes.insert(node, Node { parent, name: name.to_string(), mode, bytes: bytes.to_vec() });
        node
    }

    pub fn find(&self, parent: u64, name: &str) -> Option<u64> {
        self.nodes.iter().find(|(_, node)| node.parent == parent && node.name == name).map(|(number, _)| *number)
    }

    pub fn attributes(&self, number: u64) -> Vec<u8> {
        let node = &self.nodes[&number];
        let mut bytes = vec![0; 88];
        bytes[0..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&(node.bytes.len() as u64).to_le_bytes());
        bytes[32..40].copy_from_slice(&1000u64.to_le_bytes());
        bytes[60..64].copy_from_slice(&node.mode.to_le_bytes());
        bytes
    }

    pub fn entry(&mut self, number: u64) -> Vec<u8> {
        *self.lookups.entry(number).or_default() += 1;
        let mut bytes = vec![0; 40];
        bytes[0..8].copy_from_slice(&number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.valid_secs.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.metadata_valid_secs.to_le_bytes());
        bytes.extend(self.attributes(number));
        bytes
    }

    pub fn open(&mut self, number: u64) -> Vec<u8> {
        let handle = 100 + self.open.len() as u64 + self.requests.len() as u64;
        self.open.insert(handle, number);
        [handle.to_le_bytes(), [0; 8]].concat()
    }

    /// What the host answers: bytes behind the header, or an errno.
    pub fn serve(&mut self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let name = |from: usize| {
            let end = body[from..].iter().position(|byte| *byte == 0).unwrap() + from;
            String::from_utf8(body[from..end].to_vec()).unwrap()
        };
        match opcode {
            26 => {
                assert_eq!((u32_at(body, 0), u32_at(body, 4)), (7, 31));
                assert_eq!(u32_at(body, 12), 1 << 22 | 1 << 5, "MAX_PAGES and BIG_WRITES");
                let mut answer = vec![0; 64];
                answer[0] = 7;
                answer[4] = 36;
                // Two pages, so that reads are split.
                answer[12..16].copy_from_slice(&(1u32 << 22).to_le_bytes());
                answer[20..24].copy_from_slice(&8192u32.to_le_bytes());
                answer[28] = 2;
                Ok(answer)
            }
            1 => match self.find(node, &name(0)) {
                Some(found) => Ok(self.entry(found)),
                None if self.absence_valid_secs > 0 => {
                    let mut absent = vec![0; 128];
                    absent[16..24].copy_from_slice(&self.absence_valid_secs.to_le_bytes());
                    Ok(absent)
                }
                None => Err(2),
            },
            3 => Ok([vec![0; 16], self.attributes(node)].concat()),
            4 => {
                assert_eq!(u32_at(body, 0), 1 << 3 | 1 << 6, "size and handle are set, nothing else");
                assert_eq!(self.open[&u64_at(body, 8)], node);
                let size = u64_at(body, 16) as usize;
                self.nodes.get_mut(&node).unwrap().bytes.resize(size, 0);
                Ok([vec![0; 16], self.attributes(node)].concat())
            }
            9 => match self.find(node, &name(8)) {
                Some(_) => Err(17),
                None => {
                    let made = self.add(node, &name(8), DIRECTORY_MODE, &[]);
                    Ok(self.entry(made))
                }
            },
            10 | 11 => {
                let found = self.find(node, &name(0)).ok_or(2)?;
                if opcode == 11 && self.nodes.values().any(|other| other.parent == found) {
                    return Err(39);
                }
                self.nodes.remove(&found);
                Ok(Vec::new())
            }
            12 => {
                let (old, new_parent) = (name(8), u64_at(body, 0));
                let new = name(8 + old.len() + 1);
                let found = self.find(node, &old).ok_or(2)?;
                if let Some(replaced) = self.find(new_parent, &new) {
                    self.nodes.remove(&replaced);
                }
                let moved = self.nodes.get_mut(&found).unwrap();
                (moved.parent, moved.name) = (new_parent, new);
                Ok(Vec::new())
            }
            14 | 27 => Ok(self.open(node)),
            15 => {
                let (offset, count) = (u64_at(body, 8) as usize, u32_at(body, 16) as usize);
                assert!(count <= 8192 && self.open[&u64_at(body, 0)] == node);
                let bytes = &self.nodes[&node].bytes;
                let from = offset.min(bytes.len());
                Ok(bytes[from..(from + count).min(bytes.len())].to_vec())
            }
            16 => {
                let (offset, count) = (u64_at(body, 8) as usize, u32_at(body, 16) as usize);
                assert!(count <= 8192 && body.len() == 40 + count);
                let bytes = &mut self.nodes.get_mut(&node).unwrap().bytes;
                bytes.resize(bytes.len().max(offset + count), 0);
                bytes[offset..offset + count].copy_from_slice(&body[40..]);
                Ok([(count as u32).to_le_bytes(), [0; 4]].concat())
            }
            18 | 29 => {
                assert!(self.open.remove(&u64_at(body, 0)).is_some(), "what is closed was open");
                Ok(Vec::new())
            }
            20 => Ok(Vec::new()),
            28 if self.is_endless => {
                let next = u64_at(body, 8) + 1;
                Ok([&[1; 8][..], &next.to_le_bytes(), &[2, 0, 0, 0], &[4, 0, 0, 0], b"..", &[0; 6]].concat())
            }
            28 if self.more_entries > 0 => {
                let offset = u64_at(body, 8);
                let numbers = offset..(offset + 1000).min(self.more_entries);
                Ok(numbers
                    .flat_map(|number| {
                        let mut entry =
                            [&[1; 8][..], &(number + 1).to_le_bytes(), &[8, 0, 0, 0], &[8, 0, 0, 0]].concat();
                        entry.extend(alloc::format!("{number:08}").bytes());
                        entry
                    })
                    .collect())
            }
            28 => {
                let offset = u64_at(body, 8) as usize;
                let children: Vec<_> = self.nodes.iter().filter(|(_, child)| child.parent == node).collect();
                let mut answer = Vec::new();
                // Two at once, so that there are several requests.
                for (index, (number, child)) in children.iter().enumerate().skip(offset).take(2) {
                    answer.extend_from_slice(&number.to_le_bytes());
                    answer.extend_from_slice(&(index as u64 + 1).to_le_bytes());
                    answer.extend_from_slice(&(child.name.len() as u32).to_le_bytes());
                    answer.extend_from_slice(&(child.mode >> 12).to_le_bytes());
                    answer.extend_from_slice(child.name.as_bytes());
                    answer.resize(answer.len().next_multiple_of(8), 0);
                }
                Ok(answer)
            }
            35 => match self.find(node, &name(16)) {
                Some(_) => Err(17),
                None => {
                    let made = self.add(node, &name(16), FILE_MODE, &[]);
                    Ok([self.entry(made), self.open(made)].concat())
                }
            },
            other => panic!("the driver sends no request {other}"),
        }
    }

    /// Serves one request.
    pub fn answer(&mut self, chain: &Chain) -> u32 {
        let request = chain.read();
        assert_eq!(u32_at(&request, 0) as usize, request.len(), "the header has the length of the request");
        let (opcode, node) = (u32_at(&request, 4), u64_at(&request, 16));
        self.requests.push(opcode);
        assert!(self.numbers.insert(u64_at(&request, 8)), "no other request has its number");
        let (error, body) = match self.serve(opcode, node, &request[40..]) {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let mut answer = ((16 + body.len()) as u32).to_le_bytes().to_vec();
        answer.extend_from_slice(&error.to_le_bytes());
        answer.extend_from_slice(&request[8..16]);
        answer.extend(body);
        if let Some(damage) = self.damage.take() {
            damage(&mut answer);
        }
        chain.write(&answer)
    }

    /// Takes what the guest has forgotten.
    pub fn take_forgets(&mut self) {
        if self.keeps_all {
            return;
        }
        while let Some(chain) = self.fake.with(0, |queue| queue.take()) {
            let request = chain.read();
            assert_eq!((u32_at(&request, 4), request.len()), (Opcode::Forget as u32, 48));
            assert!(self.numbers.insert(u64_at(&request, 8)), "no other request has its number");
            let count = self.lookups.get_mut(&u64_at(&request, 16)).expect("the node was looked up");
            *count = count.checked_sub(u64_at(&request, 40)).expect("no more is forgotten than was looked up");
            self.fake.with(0, |queue| queue.complete(chain.head, 0));
        }
        self.lookups.retain(|_, count| *count > 0);
    }

    pub fn serve_all(&mut self) {
        while let Some(chain) = self.fake.with(1, |queue| queue.take()) {
            let written = self.answer(&chain);
            self.fake.with(1, |queue| queue.complete(chain.head, written));
        }
        self.take_forgets();
    }
}

pub fn site() -> Site {
    site_with(feature::EVENT_IDX | feature::INDIRECT)
}

/// Its device has these features.
pub fn site_with(features: u64) -> Site {
    let fake = Fake::new(device::FS, features, &[0; 40]);
    let now = Rc::new(Cell::new(Instant(1_000_000_000_000)));
    let clock = now.clone();
    let files = HostFiles::new(Fs::new(fake.clone(), GuardedDma).unwrap(), move || clock.get());
    let mut host = Host {
        fake,
        nodes: BTreeMap::new(),
        nodes_made: 0,
        lookups: BTreeMap::new(),
        open: BTreeMap::new(),
        requests: Vec::new(),
        numbers: BTreeSet::new(),
        valid_secs: 1,
        metadata_valid_secs: 1,
        damage: None,
        is_endless: false,
        more_entries: 0,
        absence_valid_secs: 0,
        keeps_all: false,
    };
    let root = Node { parent: 0, name: String::new(), mode: DIRECTORY_MODE, bytes: Vec::new() };
    host.nodes.insert(ROOT, root);
    let folder = host.add(ROOT, "folder", DIRECTORY_MODE, &[]);
    host.add(folder, "file", FILE_MODE, &content(20_000));
    host.add(ROOT, "link", LINK_MODE, b"folder");
    Site { host, files, now }
}

pub fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 % 251) as u8).collect()
}

impl Site {
    pub fn round(&mut self) {
        self.files.kick();
        self.host.serve_all();
        self.files.poll();
    }

    pub fn run<T>(&mut self, task: impl Future<Output = T>) -> T {
        let mut task = pin!(task);
        for _ in 0..1000 {
            if let Poll::Ready(value) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return value;
            }
            self.round();
        }
        panic!("the task does not end");
    }

    /// Nothing of the host is referred to any more.
    pub fn assert_nothing_left(&mut self) {
        (0..3).for_each(|_| self.round());
        // Names are kept, each with one node; all else was given back.
        assert!(self.host.open.is_empty(), "{:?}", self.host.open);
        assert_eq!(DAMAGED.load(Ordering::SeqCst), 0);
    }
}
