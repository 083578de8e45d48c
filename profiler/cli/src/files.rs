//! Files that are read or written as a whole: recordings with their warnings; output
//! appears whole or not at all, so that a full disk destroys no earlier file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use glass_profiler_core::names::printable;
use glass_profiler_core::recording::{self, Recording};
use glass_profiler_guests::files::HostFiles;
use rustix::fs::{AtFlags, CWD, OFlags, linkat};

use crate::console::{Busy, say};

/// Reads a file; `hint` describes the expected file.
pub(crate) fn read(path: &Path, hint: &str) -> Result<Vec<u8>> {
    let cannot = || format!("cannot read {} ({hint})", path.display());
    let kind = fs::metadata(path).with_context(cannot)?.file_type();
    // It may be endless.
    ensure!(!kind.is_char_device() && !kind.is_block_device(), "{}: it is a device", cannot());
    fs::read(path).with_context(cannot)
}

/// Reads a recording.
pub(crate) fn open(path: &Path) -> Result<(Vec<u8>, Recording)> {
    let shown = path.display();
    let _busy = Busy::with(&format!("reading {shown}"));
    let bytes = read(path, "give a file that `glass record` or `glass trace` wrote")?;
    let recording = recording::open(&bytes, &mut HostFiles::default()).map_err(|error| anyhow!("{shown} {error}"))?;
    Ok((bytes, recording))
}

/// The number of warnings of a recording, as part of a sentence; empty if there are none.
pub(crate) fn warnings(recording: &Recording) -> String {
    match recording.profile.warnings.len() {
        0 => String::new(),
        1 => " with 1 warning".to_owned(),
        count => format!(" with {count} warnings"),
    }
}

/// Prints the warnings of a recording, if the output does not contain them.
pub(crate) fn warn(path: &Path, recording: &Recording) {
    for warning in &recording.profile.warnings {
        say!("glass: warning: {}: {}", path.display(), printable(warning));
    }
}

/// Fails if `output` is the input file; `what` names the input.
pub(crate) fn ensure_other(input: &Path, output: &Path, what: &str) -> Result<()> {
    let is_same = fs::canonicalize(input).is_ok_and(|input| fs::canonicalize(output).is_ok_and(|it| it == input));
    ensure!(!is_same, "{} is the {what} itself: give another name with --output", output.display());
    Ok(())
}

/// Writes a file: first beside its final path, if that is an ordinary file.
pub(crate) fn write<F>(path: &Path, content: F) -> Result<()>
where
    F: FnOnce(&mut BufWriter<File>) -> io::Result<()>,
{
    let fill = |file: File| {
        let mut writer = BufWriter::new(file);
        content(&mut writer).and_then(|()| writer.flush())
    };
    let written = match part_of(path) {
        None => File::create(path).and_then(fill),
        Some((target, part)) => {
            let written = File::create(&part).and_then(fill).and_then(|()| fs::rename(&part, target));
            if written.is_err() {
                // If it was never created, there is nothing to remove.
                let _ = fs::remove_file(&part);
            }
            written
        }
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// The final path of a file, with links resolved, and its temporary path. `None` for files that
/// can only be written in place: pipes and devices.
fn part_of(path: &Path) -> Option<(PathBuf, PathBuf)> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return None;
    }
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = target.file_name()?.to_string_lossy().into_owned();
    let part = target.with_file_name(format!(".{name}.{}.part", std::process::id()));
    Some((target, part))
}

/// A file that only its owner may read, and that appears under its name when it is whole. Dropped before [`keep`](PartFile::keep), it
/// leaves what was there.
pub(crate) struct PartFile {
    file: File,
    target: PathBuf,
    part: PathBuf,
    /// The part has a name, which has to go.
    has_name: bool,
}

impl PartFile {
    /// Makes it beside the final path, which is an ordinary file or none.
    pub(crate) fn create(path: &Path) -> Result<PartFile> {
        let cannot = || format!("cannot write {}", path.display());
        let parts = part_of(path).ok_or_else(|| anyhow!("it is no ordinary file")).with_context(cannot)?;
        let (target, part) = parts;
        let options = || {
            let mut options = File::options();
            options.read(true).write(true).mode(0o600);
            options
        };
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A file without a name is gone with us, even if we are killed. Not each file system has such.
        let nameless = options().custom_flags(OFlags::TMPFILE.bits() as i32).open(folder);
        let (file, has_name) = match nameless {
            Ok(file) => (file, false),
            Err(_) => (options().create_new(true).open(&part).with_context(cannot)?, true),
        };
        Ok(PartFile { file, target, part, has_name })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name, which another file may have had.
    pub(crate) fn keep(mut self) -> io::Result<()> {
        if !self.has_name {
            let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(CWD, own, CWD, &self.part, AtFlags::SYMLINK_FOLLOW)?;
            self.has_name = true;
        }
        fs::rename(&self.part, &self.target)?;
        self.has_name = false;
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if self.has_name {
            // If it cannot be removed, a part with our number stays.
            let _ = fs::remove_file(&self.part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_whole_leaves_what_was_there() {
        let folder = std::env::temp_dir().join(format!("glass-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, link) = (folder.join("page.html"), folder.join("link.html"));
        write(&file, |to| to.write_all(b"first")).unwrap();
        let failed = write(&file, |to| {
            to.write_all(&[b'x'; 1 << 20])?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(format!("{:#}", failed.unwrap_err()).contains("cannot write"));
        assert_eq!(fs::read(&file).unwrap(), b"first");
        // The target of a link is written, and the link stays.
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, |to| to.write_all(b"second")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"second");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "a part was left behind");
        assert!(ensure_other(&file, &link, "recording").is_err());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_part_appears_when_it_is_kept() {
        use std::os::unix::fs::PermissionsExt;
        let folder = glass_tests::folder::Folder::new("files-part").unwrap();
        let path = folder.file("dump");
        fs::write(&path, b"first").unwrap();
        let part = PartFile::create(&path).unwrap();
        part.file().set_len(9).unwrap();
        drop(part);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        let part = PartFile::create(&path).unwrap();
        (&mut part.file()).write_all(b"second").unwrap();
        part.keep().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a part was left behind");
        assert!(PartFile::create(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn devices_stay_what_they_are() {
        let failed = write(Path::new("/dev/full"), |to| to.write_all(b"x"));
        assert!(failed.is_err());
        assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
        let error = read(Path::new("/dev/zero"), "give a file").unwrap_err();
        assert!(error.to_string().ends_with("it is a device"), "{error}");
    }
}
