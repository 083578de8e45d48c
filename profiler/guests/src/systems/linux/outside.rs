//! What the reader of a Linux guest has to read it with: its RAM, its disks, and what the user has given of its files.

use std::path::PathBuf;
use std::sync::Arc;

use crate::files::{OpenedFiles, debuginfod};
use crate::memory::{Machine, Physical};

/// The RAM of the guest, for what reads files out of it.
#[derive(Clone)]
pub(super) struct Memory(pub(super) Arc<dyn Machine>);

impl Physical for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.0.read(address, into)
    }
}

/// How the processes of a Linux guest are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestProcesses {
    /// A folder that has the guest's files by their paths: what is not in the guest's memory is read there.
    pub root: Option<PathBuf>,
    /// Disks of the guest beside those that its VMM has open.
    pub disks: Vec<PathBuf>,
    /// Folders with debug information beside `/usr/lib/debug`.
    pub debug_folders: Vec<PathBuf>,
    /// Names of processes and paths of files are left out.
    pub without_names: bool,
}

impl GuestProcesses {
    /// Whether files are to be opened that a process in its jail may not open: those of folders that the user names, and what is downloaded.
    #[must_use]
    pub fn needs_opener(&self) -> bool {
        self.root.is_some() || !self.debug_folders.is_empty() || debuginfod::has_servers()
    }
}

/// What is known of a guest's files from elsewhere than its memory, and what is left out of its processes.
#[derive(Debug, Clone)]
pub(crate) struct Outside {
    pub(super) settings: GuestProcesses,
    pub(super) opened: OpenedFiles,
}

impl Outside {
    pub(crate) fn new(settings: GuestProcesses, opened: OpenedFiles) -> Outside {
        Outside { settings, opened }
    }

    /// The name of a file by its path, or by its number.
    pub(super) fn name(&self, path: &str, inode: u64) -> String {
        match (self.settings.without_names, path) {
            (false, path) if !path.is_empty() => path.to_owned(),
            _ => format!("[file {inode}]"),
        }
    }

    /// What a thread is called: its name, or its number.
    pub(super) fn thread_name(&self, tid: u32, name: String) -> String {
        if self.settings.without_names { format!("thread {tid}") } else { name }
    }
}
