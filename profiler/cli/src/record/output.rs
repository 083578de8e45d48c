//! The file of a recording: seen to be writable before anything is attached to. An earlier recording is kept as NAME.old, and a mistake costs
//! none.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use glass_profiler_core::model::Origin;
use glass_profiler_core::recording::Clocks;
use glass_profiler_guests::files::debuginfod::Debuginfod;
use glass_profiler_guests::files::{HostFiles, OpenedFiles};
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
    /// Where the one is that was there, until the new one is begun.
    older: Option<PathBuf>,
    /// A holder brings them in order.
    has_holder: bool,
}

/// The new file of a recording, and the earlier ones: what a process that may has to bring in order in the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    pub(crate) path: &'a Path,
    /// What gets its name again, if there is no recording.
    pub(crate) old: Option<&'a Path>,
    /// What gets the name of that one then, and is removed otherwise.
    pub(crate) older: Option<&'a Path>,
}

impl Files<'_> {
    /// Removes the new file if nothing was recorded and it is empty still, and gives the earlier ones their names; otherwise there is one earlier
    /// recording less. `was_sampled`: there is a recording, also if it is not written yet.
    pub(crate) fn settle(self, was_sampled: bool) -> io::Result<()> {
        let is_empty = || fs::metadata(self.path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0);
        let is_unused = !was_sampled && is_empty();
        match (is_unused, self.old, self.older) {
            (true, Some(old), older) => {
                fs::rename(old, self.path)?;
                older.map_or(Ok(()), |older| fs::rename(older, old))
            }
            (true, None, _) => fs::remove_file(self.path),
            // Another process may have done it.
            (false, _, Some(older)) if older.exists() => fs::remove_file(older),
            (false, ..) => Ok(()),
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
        let (mut old, mut older) = (None, None);
        if has_content {
            // Also in a folder where files can be renamed: this one may be protected.
            File::options().write(true).open(&path).with_context(cannot)?;
            let name = |ending: &str| {
                let mut name = path.clone().into_os_string();
                name.push(ending);
                PathBuf::from(name)
            };
            let kept = name(".old");
            if kept.exists() {
                let moved = name(&format!(".old.{}", std::process::id()));
                fs::rename(&kept, &moved).with_context(cannot)?;
                older = Some(moved);
            }
            fs::rename(&path, &kept).with_context(cannot)?;
            old = Some(kept);
        }
        let is_new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        Ok(Output { file: Some(file.with_context(cannot)?), path, is_new, old, older, has_holder: false })
    }

    /// Its files, if it was made just now.
    fn files(&self) -> Option<Files<'_>> {
        self.is_new.then_some(Files { path: &self.path, old: self.old.as_deref(), older: self.older.as_deref() })
    }

    /// Its files for a holder, which [settles](Files::settle) them in the end.
    pub(crate) fn files_for_holder(&mut self) -> Option<Files<'_>> {
        self.has_holder = true;
        self.files()
    }

    /// From here on there is a recording, or an empty one: before this process may remove no file any more, and no holder does it.
    pub(crate) fn commit(&mut self) {
        if let Some(older) = self.older.take() {
            // If it cannot be removed, it stays.
            let _ = fs::remove_file(older);
        }
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
        self.commit();
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

/// The same for a process in its jail that reads a guest: it starts no program that would download debug information, so that is only there if another
/// process opens its files.
pub(crate) fn files_of_guest(opened: OpenedFiles) -> HostFiles {
    let files = if opened.has_opener() { host_files() } else { HostFiles::default() };
    files.with_opened(opened)
}

/// The error for a recording that could be started, and not completed.
pub(crate) fn cannot_go_on(path: &Path) -> String {
    format!("cannot write {} any further; what was recorded until then can be reported", path.display())
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(files) = self.files().filter(|_| self.file.is_some()) {
            // In a jail without a holder an empty file stays, which a report calls so.
            if let (Err(_), Some(old), false) = (files.settle(false), files.old, self.has_holder) {
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
        for text in ["zeroth", "first", "second"] {
            let mut begun = Output::prepare(&path).unwrap().begin().unwrap();
            std::io::Write::write_all(&mut begun, text.as_bytes()).unwrap();
        }
        assert_eq!((read(&path).as_deref(), read(&old).as_deref()), (Some("second"), Some("first")));
        // A mistake, in this process or in one that may rename nothing.
        let both = || (read(&path), read(&old));
        drop(Output::prepare(&path).unwrap());
        assert_eq!(both(), (Some("second".to_owned()), Some("first".to_owned())));
        let mut output = Output::prepare(&path).unwrap();
        output.files().unwrap().settle(false).unwrap();
        output.file = None;
        assert_eq!(both(), (Some("second".to_owned()), Some("first".to_owned())));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "a file was left over");
        // What is no file has no earlier one.
        assert!(Output::prepare(Path::new("/dev/null")).unwrap().files().is_none());
        assert!(!Path::new("/dev/null.old").exists());
    }
}
