//! The files that a recorder asks for: programs, libraries, and the one that has no file, the vDSO.
//!
//! What a process has mapped is that very file and no other of the same path: it may have been replaced or deleted
//! since, and a process in a container has paths of its own.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use glass_profile::event::{FileIdentity, Mapping, Placement};
use glass_profile::recording::FileSource;

use crate::debuginfod::Debuginfod;
use crate::generated::open_perf_map;
use crate::process::{living, parse_maps, without_deleted};
use crate::sys::read_process;

/// The largest file that is read whole, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 30;
/// What `/proc/PID/maps` calls the kernel's shared object.
pub(crate) const VDSO: &str = "[vdso]";
/// Files that are kept open, so that their names can be read when they have no path any more.
const HELD_MAX: usize = 256;
/// How the paths of files in memory begin.
const MEMFD: &str = "/memfd:";
const PAGE_BYTES: u64 = 4096;
/// Pages of a mapping that are compared with a file of which only the path is the same.
const PAGES_COMPARED: u64 = 16;

/// Reads files of this machine.
#[derive(Debug, Default)]
pub struct HostFiles {
    /// Files that processes have mapped, by path and by which file it was.
    held: HashMap<(String, Option<FileIdentity>), File>,
    /// The perf maps of processes.
    perf_maps: HashMap<u32, File>,
    debuginfod: Option<Debuginfod>,
}

impl FileSource for HostFiles {
    fn load(&mut self, path: &str) -> Option<Vec<u8>> {
        if path == VDSO {
            return read_vdso();
        }
        read_whole(&mut open(path)?)
    }

    fn load_mapped(&mut self, process: u32, mapping: &Mapping) -> Result<Vec<u8>, String> {
        if mapping.path == VDSO {
            return read_vdso().ok_or_else(cannot_be_read);
        }
        let mut file = self.mapped(process, mapping)?;
        // Such a file can be large, and hold everything but a program.
        if mapping.path.starts_with(MEMFD) && !is_program(&file) {
            return Err("is no program".to_owned());
        }
        read_whole(&mut file).ok_or_else(cannot_be_read)
    }

    fn fetch_debug_file(&mut self, build_id: &[u8]) -> Option<Vec<u8>> {
        read_whole(&mut self.debuginfod.as_mut()?.open(build_id)?)
    }

    fn open_mapped(&mut self, process: u32, mapping: &Mapping) -> Result<Box<dyn Read>, String> {
        let file = self.mapped(process, mapping)?;
        Ok(Box::new(file.take(FILE_BYTES_MAX)))
    }

    fn open_perf_map(&mut self, process: u32) -> Result<Option<Box<dyn Read>>, String> {
        let file = match self.perf_maps.get(&process) {
            Some(file) => file.try_clone().map_err(|_| cannot_be_read())?,
            None => match open_perf_map(process)? {
                Some(file) => file,
                None => return Ok(None),
            },
        };
        if self.perf_maps.len() < HELD_MAX && !self.perf_maps.contains_key(&process) {
            self.perf_maps.insert(process, file.try_clone().map_err(|_| cannot_be_read())?);
        }
        Ok(Some(Box::new(from_start(file)?.take(FILE_BYTES_MAX))))
    }
}

fn cannot_be_read() -> String {
    "cannot be read".to_owned()
}

fn from_start(mut file: File) -> Result<File, String> {
    file.seek(SeekFrom::Start(0)).map_err(|_| cannot_be_read())?;
    Ok(file)
}

impl HostFiles {
    /// Files of this machine, and the debug information that servers have, if any are named.
    pub fn with_debuginfod(debuginfod: Option<Debuginfod>) -> HostFiles {
        HostFiles { debuginfod, ..HostFiles::default() }
    }

    /// The very file that a process has mapped, from its start.
    fn mapped(&mut self, process: u32, mapping: &Mapping) -> Result<File, String> {
        let key = (mapping.path.clone(), mapping.file);
        if let Some(file) = self.held.get(&key) {
            return from_start(file.try_clone().map_err(|_| cannot_be_read())?);
        }
        let file = open_mapped(process, mapping)?;
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

/// Opens an ordinary file; a path from a recording could name a device or a pipe that never ends.
fn open(path: &str) -> Option<File> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    // If it has just become a pipe, nobody is waited for.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

fn read_whole(file: &mut File) -> Option<Vec<u8>> {
    if file.metadata().ok()?.len() > FILE_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    // It may grow meanwhile.
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Opens the file that a process has mapped: through the kernel's link to it, which needs privilege, or by its path as
/// the process and as we see it, if that still is the same file.
fn open_mapped(process: u32, mapping: &Mapping) -> Result<File, String> {
    let process = living(process);
    let folder = format!("/proc/{process}");
    let Mapping { start, end, path, .. } = mapping;
    let is_it = |file: &File| is_same(file, mapping) || has_same_code(process, mapping, file);
    let links = [format!("{folder}/map_files/{start:x}-{end:x}"), format!("{folder}/exe")];
    for link in links {
        // What is mapped there by now may be another.
        let names = fs::read_link(&link).is_ok_and(|target| without_deleted(&target.to_string_lossy()) == *path);
        if names
            && let Some(file) = open(&link)
            && is_it(&file)
        {
            return Ok(file);
        }
    }
    let mut is_there = false;
    for path in [format!("{folder}/root{path}"), path.clone()] {
        let Some(file) = open(&path) else { continue };
        if is_it(&file) {
            return Ok(file);
        }
        is_there = true;
    }
    let why = if is_there { "was replaced by another file" } else { "is not there any more" };
    Err(format!("{why}, and what process {process} runs cannot be opened"))
}

fn is_same(file: &File, mapping: &Mapping) -> bool {
    let Some(identity) = mapping.file else { return true };
    let device = |number: u64| (libc::major(number), libc::minor(number));
    file.metadata().is_ok_and(|data| (device(data.dev()), data.ino()) == (identity.device, identity.inode))
}

/// Whether pages of a mapping, all over it, are those of a file. Some file systems (overlays, for containers) number
/// files in another way for the kernel than for programs.
fn has_same_code(process: u32, mapping: &Mapping, file: &File) -> bool {
    let Placement::FileOffset(offset) = mapping.placement else { return false };
    let pages = mapping.end.saturating_sub(mapping.start) / PAGE_BYTES;
    let mut compared = 0;
    for index in 0..pages.min(PAGES_COMPARED) {
        let at = index * pages / pages.min(PAGES_COMPARED) * PAGE_BYTES;
        let (mut seen, mut expected) = ([0; PAGE_BYTES as usize], [0; PAGE_BYTES as usize]);
        let Some(place) = offset.checked_add(at) else { return false };
        // The last page of a file is filled up with zeros.
        let there = file.read_at(&mut expected, place).unwrap_or(0);
        if there == 0 || read_process(process, mapping.start + at, &mut seen) != seen.len() {
            continue;
        }
        if seen != expected {
            return false;
        }
        compared += 1;
    }
    compared > 0
}

/// Every process has the same vDSO, so ours serves for all.
fn read_vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = parse_maps(&maps).into_iter().find(|line| line.path == VDSO)?;
    let mut memory = File::open("/proc/self/mem").ok()?;
    memory.seek(SeekFrom::Start(line.start)).ok()?;
    let mut bytes = vec![0; usize::try_from(line.end - line.start).ok().filter(|bytes| *bytes <= 1 << 20)?];
    memory.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profile::image::Image;

    #[test]
    fn the_vdso_is_an_image_with_unwind_tables() {
        let Some(bytes) = HostFiles::default().load(VDSO) else {
            return eprintln!("skipped: this kernel maps no vDSO");
        };
        let image = Image::parse(&bytes, &["__vdso_clock_gettime"]).unwrap();
        assert!(image.is_covered(image.symbol("__vdso_clock_gettime").unwrap()));
    }

    #[test]
    fn devices_and_directories_are_no_files() {
        assert_eq!(HostFiles::default().load("/dev/zero"), None);
        assert_eq!(HostFiles::default().load("/"), None);
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
        assert_eq!(HostFiles::default().load_mapped(gone, &mapping).unwrap().len(), 8192);
        let mut holds = HostFiles::default();
        holds.load_mapped(gone, &mapping).unwrap();
        fs::rename(&path, format!("{path}-old")).unwrap();
        let error = HostFiles::default().load_mapped(gone, &mapping).unwrap_err();
        assert!(error.contains("is not there any more"), "{error}");
        fs::write(&path, [8; 8192]).unwrap();
        for process in [gone, std::process::id()] {
            let error = HostFiles::default().load_mapped(process, &mapping).unwrap_err();
            assert!(error.contains("was replaced by another file"), "{error}");
        }
        assert_eq!(holds.load_mapped(gone, &mapping).unwrap()[0], 7, "it was kept open");
        fs::remove_file(&path).unwrap();
        fs::remove_file(format!("{path}-old")).unwrap();
    }
}
