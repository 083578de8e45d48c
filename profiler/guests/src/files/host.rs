//! The files of this machine that a recorder reads, as a source of names.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glass_profiler_core::budget::{Budget, Meters, NAMES};
use glass_profiler_core::disk::DiskFile;
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::event::{FileIdentity, Mapping};
use glass_profiler_core::files::{self, FileSource};
use glass_profiler_core::guest::ProcessKey;

use crate::files::debuginfod::Debuginfod;
use crate::files::mapped::{VDSO, cannot_be_read, open_mapped, open_path, read_vdso};
use crate::files::open;
use crate::files::opener::Opener;
use crate::files::perf_map::open_perf_map;
use crate::sys::thread_cpu_time_ns;

/// The largest file that is read, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = 4 << 30;
/// Files that are kept open, so that their names can be read when they have no path any more.
const HELD_MAX: usize = 256;
/// How the paths of files in memory begin.
const MEMFD: &str = "/memfd:";
const PAGE_BYTES: u64 = 4096;

/// Files that were opened before this process gave up the right to. They are found by the paths that they had then.
/// Or the way to another process that opens them.
#[derive(Debug, Clone, Default)]
pub struct OpenedFiles {
    files: Arc<HashMap<PathBuf, File>>,
    opener: Option<Arc<Opener>>,
    /// What may be the disks of a VM.
    disks: Arc<Vec<DiskFile>>,
    /// Folders of the user with debug information.
    debug_folders: Arc<Vec<String>>,
}

impl OpenedFiles {
    /// Opens the ordinary files among these.
    pub fn open<'a>(paths: impl Iterator<Item = &'a Path>) -> OpenedFiles {
        let open = |path: &Path| Some((path.to_owned(), open::ordinary(path).ok()?));
        OpenedFiles { files: Arc::new(paths.filter_map(open).collect()), ..OpenedFiles::default() }
    }

    /// All files are opened by another process.
    pub fn by(opener: Opener) -> OpenedFiles {
        OpenedFiles { opener: Some(Arc::new(opener)), ..OpenedFiles::default() }
    }

    /// Whether another process opens files.
    pub fn has_opener(&self) -> bool {
        self.opener.is_some()
    }

    /// These, and what may be the disks of a VM.
    #[must_use]
    pub(crate) fn with_disks(self, disks: Vec<DiskFile>) -> OpenedFiles {
        OpenedFiles { disks: Arc::new(disks), ..self }
    }

    /// These, and debug information in folders beside `/usr/lib/debug`.
    #[must_use]
    pub fn with_debug_folders(self, folders: &[PathBuf]) -> OpenedFiles {
        // The process that opens files may be elsewhere.
        let absolute = |folder: &PathBuf| std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
        let debug_folders = folders.iter().map(|folder| absolute(folder).display().to_string()).collect();
        OpenedFiles { debug_folders: Arc::new(debug_folders), ..self }
    }

    /// What may be the disks of a VM.
    pub(crate) fn disks(&self) -> &[DiskFile] {
        &self.disks
    }

    /// These, and all others are opened by another process.
    #[must_use]
    pub(crate) fn and_by(self, opener: Opener) -> OpenedFiles {
        OpenedFiles { opener: Some(Arc::new(opener)), ..self }
    }

    /// The file at a path as a process sees it, or as we do.
    fn found(&self, process: Option<u32>, path: &str) -> Option<File> {
        match &self.opener {
            Some(opener) => opener.path(process, path),
            None => open_path(process, path).ok(),
        }
    }

    /// The ordinary file at a path as we see it.
    pub(crate) fn open_path(&self, path: &Path) -> Option<File> {
        self.found(None, path.to_str()?)
    }

    /// The file of a path, if it is one of them.
    pub(crate) fn get(&self, path: &Path) -> Option<File> {
        self.files.get(path)?.try_clone().ok()
    }
}

/// Reads files of this machine.
#[derive(Debug)]
pub struct HostFiles {
    opened: OpenedFiles,
    /// Files that processes have mapped, by path and by which file it was.
    held: HashMap<(String, Option<FileIdentity>), File>,
    /// The perf maps of processes.
    perf_maps: HashMap<u32, File>,
    debuginfod: Option<Debuginfod>,
    /// What reading names may cost.
    budget: Budget,
}

impl Default for HostFiles {
    fn default() -> HostFiles {
        HostFiles::with_debuginfod(None)
    }
}

/// An open file of this machine. What is cut off it later cannot be read, and what is appended is not seen.
#[derive(Debug)]
pub struct HostFile {
    file: File,
    bytes: u64,
}

impl HostFile {
    /// Opens an ordinary file.
    pub fn open(path: &Path) -> io::Result<HostFile> {
        HostFile::of_file(open::ordinary(path)?)
    }

    /// The same of one that is open.
    pub(crate) fn of_file(file: File) -> io::Result<HostFile> {
        let bytes = file.metadata()?.len();
        match bytes <= FILE_BYTES_MAX {
            true => Ok(HostFile { file, bytes }),
            false => Err(io::Error::other("not a file of a usual size")),
        }
    }

    fn of(file: File) -> Option<Box<dyn ReadAt>> {
        let bytes = file.metadata().ok()?.len();
        (bytes <= FILE_BYTES_MAX).then(|| Box::new(HostFile { file, bytes }) as Box<dyn ReadAt>)
    }
}

impl ReadAt for HostFile {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        self.file.read_exact_at(into, offset).is_ok()
    }
}

impl files::Opener for OpenedFiles {
    fn open(&self, inside: Option<ProcessKey>, path: &str) -> Option<Box<dyn ReadAt>> {
        HostFile::of(match inside {
            Some(process) => self.found(Some(process.pid_here()?), path),
            None => self.get(Path::new(path)).or_else(|| self.found(None, path)),
        }?)
    }
}

impl FileSource for HostFiles {
    fn load(&mut self, path: &str) -> Option<Box<dyn ReadAt>> {
        if path == VDSO {
            return Some(Box::new(self.vdso()?));
        }
        HostFile::of(self.opened.get(Path::new(path)).map_or_else(|| self.opened.found(None, path), Some)?)
    }

    fn load_inside(&mut self, process: ProcessKey, path: &str) -> Option<Box<dyn ReadAt>> {
        HostFile::of(self.opened.found(Some(process.pid_here()?), path)?)
    }

    fn opener(&self) -> Option<Box<dyn files::Opener>> {
        Some(Box::new(self.opened.clone()))
    }

    fn debug_folders(&self) -> &[String] {
        &self.opened.debug_folders
    }

    fn budget(&self) -> Budget {
        self.budget.clone()
    }

    fn load_mapped(&mut self, process: ProcessKey, mapping: &Mapping) -> Result<Box<dyn ReadAt>, String> {
        if mapping.path == VDSO {
            return Ok(Box::new(self.vdso().ok_or_else(cannot_be_read)?));
        }
        let file = self.mapped(here(process)?, mapping)?;
        // Such a file can be large, and hold everything but a program.
        if mapping.path.starts_with(MEMFD) && !is_program(&file) {
            return Err("is no program".to_owned());
        }
        HostFile::of(file).ok_or_else(cannot_be_read)
    }

    fn fetch_debug_file(&mut self, build_id: &[u8]) -> Option<Box<dyn ReadAt>> {
        let debuginfod = self.debuginfod.as_mut()?;
        HostFile::of(match &self.opened.opener {
            Some(opener) => opener.debug_file(build_id, debuginfod.patience()),
            None => debuginfod.open(build_id),
        }?)
    }

    fn open_mapped(&mut self, process: ProcessKey, mapping: &Mapping) -> Result<Box<dyn Read>, String> {
        let file = self.mapped(here(process)?, mapping)?;
        Ok(Box::new(file.take(FILE_BYTES_MAX)))
    }

    fn open_perf_map(&mut self, process: ProcessKey) -> Result<Option<Box<dyn Read>>, String> {
        // Of a process of a guest there is none here.
        let Some(process) = process.pid_here() else { return Ok(None) };
        let file = match self.perf_maps.get(&process) {
            Some(file) => file.try_clone().map_err(|_| cannot_be_read())?,
            None => {
                match self.opened.opener.as_ref().map_or_else(|| open_perf_map(process), |o| o.perf_map(process))? {
                    Some(file) => file,
                    None => return Ok(None),
                }
            }
        };
        if self.perf_maps.len() < HELD_MAX && !self.perf_maps.contains_key(&process) {
            self.perf_maps.insert(process, file.try_clone().map_err(|_| cannot_be_read())?);
        }
        Ok(Some(Box::new(from_start(file)?.take(FILE_BYTES_MAX))))
    }
}

/// The process ID of a process of this machine: an equal one of a guest has other files.
fn here(process: ProcessKey) -> Result<u32, String> {
    process.pid_here().ok_or_else(|| "is a file of the guest".to_owned())
}

fn from_start(mut file: File) -> Result<File, String> {
    file.seek(SeekFrom::Start(0)).map_err(|_| cannot_be_read())?;
    Ok(file)
}

impl HostFiles {
    /// Files of this machine, and the debug information that servers have, if any are named.
    pub fn with_debuginfod(debuginfod: Option<Debuginfod>) -> HostFiles {
        let budget = Budget::new(NAMES, Meters { memory: resident_bytes, cpu_ns: thread_cpu_time_ns });
        HostFiles {
            opened: OpenedFiles::default(),
            held: HashMap::new(),
            perf_maps: HashMap::new(),
            debuginfod,
            budget,
        }
    }

    /// The same, with files that were opened before.
    pub fn with_opened(self, opened: OpenedFiles) -> HostFiles {
        HostFiles { opened, ..self }
    }

    fn vdso(&self) -> Option<Vec<u8>> {
        self.opened.opener.as_ref().map_or_else(read_vdso, |opener| opener.vdso.clone())
    }

    /// The very file that a process has mapped, from its start.
    fn mapped(&mut self, process: u32, mapping: &Mapping) -> Result<File, String> {
        let key = (mapping.path.clone(), mapping.file);
        if let Some(file) = self.held.get(&key) {
            return from_start(file.try_clone().map_err(|_| cannot_be_read())?);
        }
        let file = match &self.opened.opener {
            Some(opener) => opener.mapped(process, mapping)?,
            None => open_mapped(process, mapping)?,
        };
        if self.held.len() < HELD_MAX
            && let Ok(again) = file.try_clone()
        {
            self.held.insert(key, again);
        }
        from_start(file)
    }
}

fn is_program(file: &File) -> bool {
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).is_ok() && magic == *b"\x7fELF"
}

/// The memory of this process that is resident, in bytes.
fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages: Option<u64> = pages.and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
    pages.unwrap_or(0) * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use glass_profiler_core::event::Placement;
    use glass_profiler_core::guest::GuestId;
    use glass_profiler_core::image::Image;

    #[test]
    fn the_vdso_is_an_image_with_unwind_tables() {
        let Some(file) = HostFiles::default().load(VDSO) else {
            return eprintln!("skipped: this kernel maps no vDSO");
        };
        let image = Image::read(&*file, &["__vdso_clock_gettime"]).unwrap();
        assert!(image.is_covered(image.symbol("__vdso_clock_gettime").unwrap()));
    }

    #[test]
    fn devices_and_directories_are_no_files() {
        assert!(HostFiles::default().load("/dev/zero").is_none());
        assert!(HostFiles::default().load("/").is_none());
    }

    /// Another file of the same path is not what a process has mapped, whether the process still is or not.
    #[test]
    fn a_file_of_the_same_path_is_not_enough() {
        let path = std::env::temp_dir().join(format!("glass-mapped-{}", std::process::id())).display().to_string();
        fs::write(&path, [7; 8192]).unwrap();
        let data = fs::metadata(&path).unwrap();
        let file = FileIdentity { device: (libc::major(data.dev()), libc::minor(data.dev())), inode: data.ino() };
        let placement = Placement::FileOffset(0);
        let mapping = Mapping { start: 0x1000, end: 0x3000, path: path.clone(), placement, file: Some(file) };
        let gone = 1 << 22 | 1;
        assert_eq!(HostFiles::default().load_mapped(ProcessKey::here(gone), &mapping).unwrap().bytes(), 8192);
        let mut holds = HostFiles::default();
        holds.load_mapped(ProcessKey::here(gone), &mapping).unwrap();
        // A process of a guest with the same ID has another file.
        let of_guest = ProcessKey { machine: Some(GuestId(0)), pid: gone };
        let error = holds.load_mapped(of_guest, &mapping).err().unwrap();
        assert_eq!(error, "is a file of the guest");
        fs::rename(&path, format!("{path}-old")).unwrap();
        let error = HostFiles::default().load_mapped(ProcessKey::here(gone), &mapping).err().unwrap();
        assert!(error.contains("is not there any more"), "{error}");
        fs::write(&path, [8; 8192]).unwrap();
        for process in [gone, std::process::id()] {
            let error = HostFiles::default().load_mapped(ProcessKey::here(process), &mapping).err().unwrap();
            assert!(error.contains("was replaced by another file"), "{error}");
        }
        let mut first = [0];
        assert!(holds.load_mapped(ProcessKey::here(gone), &mapping).unwrap().read_at(0, &mut first));
        assert_eq!(first, [7], "it was kept open");
        fs::remove_file(&path).unwrap();
        fs::remove_file(format!("{path}-old")).unwrap();
    }
}
