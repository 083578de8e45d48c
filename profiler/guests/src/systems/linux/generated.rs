//! Code that processes of a Linux guest generate, and the perf maps that they write: read from the page cache, by the files that a process has open.

use std::sync::Arc;

use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::image::Image;
use glass_profiler_core::linux::page_cache::CachedFile;
use glass_profiler_core::linux::space::Space;
use glass_profiler_core::linux::{files, open_files};
use glass_profiler_core::map::SymbolMap;
use glass_profiler_core::program::{NamesFrom, Parts, PerfMap, Program};

use super::in_ram::Types;
use super::outside::Memory;

/// The most bytes of a map that are read. Those of large programs in Java or JavaScript have some MiB.
const MAP_BYTES_MAX: u64 = 32 << 20;
const PAGE_BYTES: u64 = 4096;

/// The code that a process generates.
pub(super) struct Generated {
    /// What stands for it.
    pub(super) program: Program,
    /// What it has written of that.
    pub(super) map: PerfMap,
}

impl Generated {
    /// That of the process with this ID.
    pub(super) fn of(pid: u32) -> Generated {
        let map = PerfMap::default();
        // It has no unwind tables.
        let image = Arc::new(Image::of_map(&SymbolMap::default(), 0..u64::MAX, None));
        let names = vec![NamesFrom::PerfMap(map.clone(), pid)];
        let parts = Parts { name: format!("[jit {pid}]"), image, names, is_whole: false, is_kernel: false };
        Generated { program: Program::new(parts), map }
    }

    /// The map that the task at an address has open, if there is more of it than was read.
    pub(super) fn read_map(&self, memory: &Memory, space: &Space<'_>, task: u64, types: &Types) -> Option<Vec<u8>> {
        let offsets = types.open_files.as_ref()?;
        let all = open_files::list(space, task, offsets).into_iter();
        let maps = all.filter_map(|at| files::file(space, at, &types.files)).filter(|file| {
            let path = file.path.as_deref().unwrap_or_default();
            !file.is_deleted && is_map(path) && file.bytes <= MAP_BYTES_MAX
        });
        let (contents, bytes) = { maps }.find_map(|file| Some((file.contents?, file.bytes)))?;
        let is_longer = bytes as usize > self.map.bytes();
        let pages = *types.pages.as_ref().ok().filter(|_| is_longer)?;
        Some(lines(&CachedFile::new(memory.clone(), pages, contents, bytes)))
    }
}

/// Whether a file is called as a perf map. The number is the process's own, which its namespace decides: it has no other one open.
fn is_map(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let number = name.strip_prefix("perf-").and_then(|rest| rest.strip_suffix(".map"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What is in memory of a file; a page that is not there is an empty line.
fn lines(file: &dyn ReadAt) -> Vec<u8> {
    let mut bytes = vec![b'\n'; file.bytes() as usize];
    for (index, page) in (0..).zip(bytes.chunks_mut(PAGE_BYTES as usize)) {
        if !file.read_at(index * PAGE_BYTES, page) {
            page.fill(b'\n');
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_maps() {
        assert!(is_map("/tmp/perf-7.map") && is_map("/var/perf-4711.map"));
        for path in ["/tmp/perf-.map", "/tmp/perf-x.map", "/tmp/perf-7.map/x", "/tmp/perf-7.mapx", ""] {
            assert!(!is_map(path), "{path}");
        }
    }
}
