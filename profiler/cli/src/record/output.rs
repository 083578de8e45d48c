//! The file of a recording: seen to be writable before anything is attached to, emptied only after that
//! has worked, so that a mistake costs no earlier recording.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A file that can be written. Dropped without [`begin`](Output::begin), it leaves no new file behind.
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

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The empty file, to be written.
    pub(crate) fn begin(mut self) -> io::Result<File> {
        let file = self.file.take().ok_or_else(|| io::Error::other("the file was begun before"))?;
        // Pipes and devices have no length.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(file)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_new && self.file.is_some() {
            // If it cannot be removed, an empty file stays, which a report calls so.
            let _ = fs::remove_file(&self.path);
        }
    }
}
