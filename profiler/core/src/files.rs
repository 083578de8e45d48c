//! Where the bytes of files come from: this crate opens none itself.

use std::io::{Cursor, Read};

use crate::budget::Budget;
use crate::elf::{ReadAt, read_whole};
use crate::event::Mapping;
use crate::guest::ProcessKey;

/// Gives the reader the files that the recording names, if it lacks symbols.
pub trait FileSource {
    /// The file, `None` if there is no such file.
    fn load(&mut self, path: &str) -> Option<Box<dyn ReadAt>>;

    /// The file at a path as a process sees it, `None` if there is no such file. No link leads out of the process's root.
    fn load_inside(&mut self, _process: ProcessKey, _path: &str) -> Option<Box<dyn ReadAt>> {
        None
    }

    /// The very file that a process has mapped, whatever has its path by now or outside of the
    /// process's own view of the file system. Fails with what to say of the path: "was replaced".
    fn load_mapped(&mut self, _process: ProcessKey, mapping: &Mapping) -> Result<Box<dyn ReadAt>, String> {
        self.load(&mapping.path).ok_or_else(|| "cannot be read".to_owned())
    }

    /// The debug information of a program with this build id, from wherever else there may be some.
    fn fetch_debug_file(&mut self, _build_id: &[u8]) -> Option<Box<dyn ReadAt>> {
        None
    }

    /// The same file from its start, to be read piece by piece; once opened it stays at hand.
    fn open_mapped(&mut self, process: ProcessKey, mapping: &Mapping) -> Result<Box<dyn Read>, String> {
        let account = self.budget().account();
        let whole = read_whole(&*self.load_mapped(process, mapping)?, &account).ok_or("cannot be read")?;
        Ok(Box::new(Cursor::new(whole)))
    }

    /// Folders that the user names, with debug information as `/usr/lib/debug` has it.
    fn debug_folders(&self) -> &[String] {
        &[]
    }

    /// What opens files later, when an address is looked up, as [`load`](FileSource::load) and [`load_inside`](FileSource::load_inside)
    /// do. Without it debug information that is in files of its own (`.dwo`, `.dwp`) is not read.
    fn opener(&self) -> Option<Box<dyn Opener>> {
        None
    }

    /// What reading names of these files may cost together: the same for all calls, if it is to have a meaning.
    fn budget(&self) -> Budget {
        Budget::default()
    }

    /// The perf map of a process (`/tmp/perf-PID.map` as the process sees it) from its start, `None` if there is none;
    /// once opened it stays at hand. Fails with what to say of the file: "belongs to another user".
    fn open_perf_map(&mut self, _process: ProcessKey) -> Result<Option<Box<dyn Read>>, String> {
        Ok(None)
    }
}

/// Opens files apart from the source that it comes from, on any thread.
pub trait Opener: Send {
    /// The file at a path as a process sees it, or as we do; `None` if there is no such file.
    fn open(&self, inside: Option<ProcessKey>, path: &str) -> Option<Box<dyn ReadAt>>;
}

/// No files: addresses without a symbol in the recording stay addresses.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFiles;

impl FileSource for NoFiles {
    fn load(&mut self, _path: &str) -> Option<Box<dyn ReadAt>> {
        None
    }
}
