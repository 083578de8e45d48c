//! The RAM of a guest of the lab: a memory file of its QEMU, which starts at the physical address 0.

use anyhow::{Context, Result};
use glass_profiler_core::memory::Physical;
use rustix::fs::{SeekFrom, seek};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// In the name of the file.
const MEMORY_FILE: &str = "memory-backend-memfd";
const CHUNK_BYTES: usize = 1 << 20;

/// An open memory file.
pub(super) struct Ram {
    file: File,
}

impl Ram {
    /// That of the QEMU with a pid.
    pub(super) fn of(pid: u32) -> Result<Ram> {
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(Result::ok) {
            let is_ram = std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().contains(MEMORY_FILE));
            if is_ram {
                return Ok(Ram { file: File::open(entry.path())? });
            }
        }
        None.context("the QEMU has no memory file")
    }

    /// What was written to.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        let (mut ranges, mut at) = (Vec::new(), 0);
        while let Ok(start) = seek(&self.file, SeekFrom::Data(at)) {
            let Ok(end) = seek(&self.file, SeekFrom::Hole(start)) else { break };
            ranges.push(start..end);
            at = end;
        }
        ranges
    }

    /// Copies it to a file; what was not written to stays a hole.
    pub(super) fn copy(&self, to: &Path) -> Result<()> {
        let (to, mut bytes) = (File::create(to)?, vec![0; CHUNK_BYTES]);
        for range in self.ranges() {
            for start in range.clone().step_by(CHUNK_BYTES) {
                let part = &mut bytes[..(range.end - start).min(CHUNK_BYTES as u64) as usize];
                self.file.read_exact_at(part, start)?;
                to.write_all_at(part, start)?;
            }
        }
        Ok(())
    }

    /// Reads all of it once, and counts the bytes that are not zero.
    pub(super) fn pass(&self) -> usize {
        let (mut bytes, mut count) = (vec![0; CHUNK_BYTES], 0);
        for range in self.ranges() {
            for start in range.clone().step_by(CHUNK_BYTES) {
                let part = &mut bytes[..(range.end - start).min(CHUNK_BYTES as u64) as usize];
                if self.file.read_exact_at(part, start).is_ok() {
                    count += part.iter().filter(|byte| **byte != 0).count();
                }
            }
        }
        count
    }
}

impl Physical for Ram {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.file.read_exact_at(into, address).is_ok()
    }
}
