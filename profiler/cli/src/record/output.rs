//! The file of a recording: seen to be writable before anything is attached to. An earlier recording is kept as NAME.old, and a mistake costs
//! none.

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

/// A file that can be written. A recording that has its name is kept as NAME.old. Dropped without
/// [`into_recording`](Output::into_recording), it leaves no new file behind, and the earlier one has its name again.
pub(crate) struct Output {
    path: PathBuf,
    file: Option<File>,
    is_new: bool,
    /// Where the earlier recording is by now.
    old: Option<PathBuf>,
}

/// The new file of a recording that was not begun, to be removed by a process that may.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unused<'a> {
    pub(crate) path: &'a Path,
    /// What gets its name again.
    pub(crate) old: Option<&'a Path>,
}

impl Unused<'_> {
    /// Removes it if it is empty still.
    pub(crate) fn remove(self) -> io::Result<()> {
        if !fs::metadata(self.path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0) {
            return Ok(());
        }
        match self.old {
            Some(old) => fs::rename(old, self.path),
            None => fs::remove_file(self.path),
        }
    }
}

impl Output {
    /// Opens the file. One that is there and not empty is renamed.
    pub(crate) fn prepare(path: &Path) -> Result<Output> {
        let cannot = || format!("cannot write {}", path.display());
        // Of a link, the file is meant.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let has_content = fs::metadata(&path).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0);
        let old = match has_content {
            true => {
                // Also in a folder where files can be renamed: this one may be protected.
                File::options().write(true).open(&path).with_context(cannot)?;
                let mut old = path.clone().into_os_string();
                old.push(".old");
                fs::rename(&path, &old).with_context(cannot)?;
                Some(PathBuf::from(old))
            }
            false => None,
        };
        let is_new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        Ok(Output { file: Some(file.with_context(cannot)?), path, is_new, old })
    }

    /// Its file, if it was made just now.
    pub(crate) fn unused(&self) -> Option<Unused<'_>> {
        self.is_new.then_some(Unused { path: &self.path, old: self.old.as_deref() })
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
        if let Some(unused) = self.unused().filter(|_| self.file.is_some()) {
            // In a jail without a holder an empty file stays, which a report calls so.
            if let (Err(_), Some(old)) = (unused.remove(), unused.old) {
                say!("glass: the earlier recording is {}", old.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::folder::Folder;

    #[test]
    fn an_earlier_recording_is_kept() {
        let folder = Folder::new("record-output").unwrap();
        let (path, old) = (folder.file("glass.pftrace"), folder.file("glass.pftrace.old"));
        let read = |path: &Path| fs::read_to_string(path).ok();
        drop(Output::prepare(&path).unwrap());
        assert!(!path.exists());
        for text in ["first", "second"] {
            let mut begun = Output::prepare(&path).unwrap().begin().unwrap();
            std::io::Write::write_all(&mut begun, text.as_bytes()).unwrap();
        }
        assert_eq!((read(&path).as_deref(), read(&old).as_deref()), (Some("second"), Some("first")));
        // A mistake, in this process or in one that may rename nothing.
        drop(Output::prepare(&path).unwrap());
        assert_eq!(read(&path).as_deref(), Some("second"));
        let mut output = Output::prepare(&path).unwrap();
        output.unused().unwrap().remove().unwrap();
        output.file = None;
        assert_eq!(read(&path).as_deref(), Some("second"));
        // What is no file has no earlier one.
        assert!(Output::prepare(Path::new("/dev/null")).unwrap().unused().is_none());
        assert!(!Path::new("/dev/null.old").exists());
    }
}
