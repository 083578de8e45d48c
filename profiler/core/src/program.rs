//! A program that a source has inspected itself: how to unwind it, and where its names are. For programs that
//! no single file describes: a kernel's map with tables in its memory, a stripped image with a map.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::elf::ReadAt;
use crate::image::Image;
use crate::map::SymbolMap;

/// The source of names.
#[derive(Debug, Clone)]
pub enum NamesFrom {
    /// An ELF file or a map, read when names are needed.
    File(String),
    /// A map that has been read.
    Map(Arc<SymbolMap>),
    /// An ELF file that is open.
    Opened(OpenedFile),
    /// The same, of a program in a guest, and where it is from.
    OfGuest(OpenedFile, NameSource),
    /// What a process of a guest, with this process ID, wrote of the code that it generates.
    PerfMap(PerfMap, u32),
}

/// A perf map (`/tmp/perf-PID.map`) as far as it was read; the process may write more.
#[derive(Debug, Clone, Default)]
pub struct PerfMap(Arc<Mutex<Vec<u8>>>);

impl PerfMap {
    /// It has these lines now.
    pub fn set(&self, bytes: Vec<u8>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
    }

    /// How many bytes were read.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// What was read.
    pub(crate) fn lines(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where the name of a frame of a guest's process is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameSource {
    /// A file of debug information, by its build id.
    DebugFile,
    /// The VM's disk.
    Disk,
    /// The folder that the user gave.
    Folder,
    /// What the guest has in memory.
    Memory,
    /// What the process wrote of code that it generated.
    PerfMap,
    /// It has none.
    Nothing,
}

impl NameSource {
    /// For display, behind a number of frames.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            NameSource::DebugFile => "by debug information",
            NameSource::Disk => "by the VM's disk",
            NameSource::Folder => "by --guest-root",
            NameSource::Memory => "by the guest's memory",
            NameSource::PerfMap => "by perf maps",
            NameSource::Nothing => "without a name",
        }
    }
}

/// A file that is open, from wherever it is.
#[derive(Clone)]
pub struct OpenedFile(pub Arc<dyn ReadAt>);

impl ReadAt for OpenedFile {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        self.0.read_at(offset, into)
    }

    fn in_memory(&self) -> Option<&[u8]> {
        self.0.in_memory()
    }

    fn has_holes(&self) -> bool {
        self.0.has_holes()
    }
}

impl fmt::Debug for OpenedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a file of {} bytes", self.0.bytes())
    }
}

/// A program.
#[derive(Debug)]
pub struct Parts {
    /// Path of its file, or the name of a kernel's module.
    pub name: String,
    /// How to unwind it; its build id.
    pub image: Arc<Image>,
    /// The source of names; the first that has one for an address wins.
    pub names: Vec<NamesFrom>,
    /// It is a whole file, and not a part of one, such as a module that a kernel's map lists.
    pub is_whole: bool,
    /// It is an operating system's kernel: addresses of the lower half are of its processes.
    pub is_kernel: bool,
}

/// A program, shared.
#[derive(Debug, Clone)]
pub struct Program(Arc<Parts>);

impl Program {
    /// Creates a program.
    pub fn new(parts: Parts) -> Program {
        Program(Arc::new(parts))
    }

    /// Where it is in our memory: the same for all copies, as long as there is one.
    pub(crate) fn place(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

impl std::ops::Deref for Program {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Program {}
