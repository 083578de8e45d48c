//! The very file that a process has mapped, and the vDSO, which has no file.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use glass_profiler_core::event::{Mapping, Placement};

use crate::files::open;
use crate::proc::{living, parse_maps, without_deleted};
use crate::sys::read_process;

/// What `/proc/PID/maps` calls the kernel's shared object.
pub(crate) const VDSO: &str = "[vdso]";
/// Pages of a mapping that are compared with a file of which only the path is the same.
const PAGES_COMPARED: u64 = 16;
const PAGE_BYTES: u64 = 4096;

pub(crate) fn cannot_be_read() -> String {
    "cannot be read".to_owned()
}

/// Opens the file at a path as a process sees it, or as we do.
pub(crate) fn open_path(process: Option<u32>, path: &str) -> io::Result<File> {
    match process {
        Some(process) => open::in_root(living(process), path, true),
        None => open::ordinary(Path::new(path)),
    }
}

/// Opens the file that a process has mapped: through the kernel's link to it, which needs privilege, or by its path as
/// the process and as we see it, if that still is the same file.
pub(crate) fn open_mapped(process: u32, mapping: &Mapping) -> Result<File, String> {
    let process = living(process);
    let folder = format!("/proc/{process}");
    let Mapping { start, end, path, .. } = mapping;
    let is_it = |file: &File| is_same(file, mapping) || has_same_code(process, mapping, file);
    let links = [format!("{folder}/map_files/{start:x}-{end:x}"), format!("{folder}/exe")];
    for link in links {
        // What is mapped there by now may be another.
        let names = fs::read_link(&link).is_ok_and(|target| without_deleted(&target.to_string_lossy()) == *path);
        if names
            && let Ok(file) = open::ordinary(Path::new(&link))
            && is_it(&file)
        {
            return Ok(file);
        }
    }
    let mut is_there = false;
    for file in [open::in_root(process, path, true), open::ordinary(Path::new(path))].into_iter().flatten() {
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
pub(crate) fn read_vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = parse_maps(&maps).into_iter().find(|line| line.path == VDSO)?;
    let mut memory = File::open("/proc/self/mem").ok()?;
    memory.seek(SeekFrom::Start(line.start)).ok()?;
    let mut bytes = vec![0; usize::try_from(line.end - line.start).ok().filter(|bytes| *bytes <= 1 << 20)?];
    memory.read_exact(&mut bytes).ok()?;
    Some(bytes)
}
