//! The file of a recording: seen to be writable before anything is attached to, emptied only after that
//! has worked, so that a mistake costs no earlier recording.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use glass_profiler_core::model::Origin;
use glass_profiler_core::recording::Clocks;
use glass_profiler_guests::files::HostFiles;
use glass_profiler_guests::files::debuginfod::Debuginfod;
use glass_profiler_session::Recording;

use crate::console::say;

/// A recording in a file.
pub(crate) type FileRecording = Recording<BufWriter<File>, HostFiles>;

/// A file that can be written. Dropped without [`into_recording`](Output::into_recording), it leaves no new file behind.
pub(crate) struct Output {
    path: PathBuf,
    file: Option<File>,
    is_new: bool,
}

impl Output {
    /// Opens the file, without changing what is in it.
    pub(crate) fn prepare(path: &Path) -> Result<Output> {
        let is_new = !path.exists();
        // What is in it goes later, in `begin`.
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Output { path: path.to_owned(), file: Some(file), is_new })
    }

    /// Its path, if it was made just now.
    pub(crate) fn new_file(&self) -> Option<&Path> {
        self.is_new.then_some(&self.path)
    }

    /// The file itself.
    pub(crate) fn file(&self) -> Option<File> {
        self.file.as_ref()?.try_clone().ok()
    }

    /// The recording that is written into it, with the names that these files have.
    pub(crate) fn into_recording(self, clocks: Clocks, origin: &Origin, files: HostFiles) -> Result<FileRecording> {
        let path = self.path.clone();
        let started = self.begin().and_then(|file| Recording::start(BufWriter::new(file), clocks, origin, files));
        started.with_context(|| format!("cannot write {}", path.display()))
    }

    /// The empty file, to be written.
    fn begin(mut self) -> io::Result<File> {
        let file = self.file.take().ok_or_else(|| io::Error::other("the file was begun before"))?;
        // Pipes and devices have no length.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(file)
    }
}

/// The files of this machine, and debug information from servers, if any are named.
pub(crate) fn host_files() -> HostFiles {
    HostFiles::with_debuginfod(Debuginfod::from_environment(|text| say!("glass: {text}")))
}

/// The error for a recording that could be started, and not completed.
pub(crate) fn cannot_go_on(path: &Path) -> String {
    format!("cannot write {} any further; what was recorded until then can be reported", path.display())
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_new && self.file.is_some() {
            // If it cannot be removed, an empty file stays, which a report calls so.
            let _ = fs::remove_file(&self.path);
        }
    }
}
