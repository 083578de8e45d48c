//! The memory in which ranks that are processes leave the events of their MPI calls: one file for all, as the trace of a process
//! (docs/formats/trace.md), with a ring for each rank. The launcher makes it and carries out what a recorder requests.

use anyhow::{Context, Result};
use glass_formats::trace::{
    CONTROL_BYTES, CONTROL_MAGIC, Control, EVENT_BYTES, NAME_BYTES, NAMES_OFFSET, RING_BYTES, RINGS_MAX, RINGS_OFFSET,
    RingEntry, TRACE_VERSION, words_of_name,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// Events of a rank's ring: 8 MiB, of which what is never written is never allocated.
const RING_EVENTS: u64 = 1 << 18;
/// Any number: rings are found by their distance from it.
const AREA_ADDRESS: u64 = 1 << 40;

/// The memory of a job's trace.
pub(super) struct RanksTrace {
    file: File,
}

impl RanksTrace {
    /// For `ranks` ranks, of which the first [`RINGS_MAX`] have rings; `groups` are on.
    pub fn make(ranks: u32, groups: u32) -> Result<RanksTrace> {
        const FAILED: &str = "cannot make the memory of the trace";
        // Inherited by every rank: it is not closed when a program begins.
        let file = File::from(memfd_create("glass-trace", MemfdFlags::ALLOW_SEALING).context(FAILED)?);
        let rings = u64::from(ranks).min(RINGS_MAX as u64);
        let ring_bytes = RING_EVENTS * EVENT_BYTES as u64;
        file.set_len(CONTROL_BYTES as u64 + rings * ring_bytes).context(FAILED)?;
        // A rank must not be able to remove pages that others have mapped.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).context(FAILED)?;
        let made = RanksTrace { file };
        let write = |offset: usize, bytes: &[u8]| made.file.write_all_at(bytes, offset as u64).context(FAILED);
        for ring in 0..rings {
            // Name 0 is none.
            let (name, entry) = (ring as usize + 1, RINGS_OFFSET + ring as usize * RING_BYTES);
            let text = words_of_name(&format!("rank {ring}")).map(u64::to_le_bytes).concat();
            write(NAMES_OFFSET + name * NAME_BYTES, &text)?;
            write(entry + offset_of!(RingEntry, address), &(AREA_ADDRESS + ring * ring_bytes).to_le_bytes())?;
            write(entry + offset_of!(RingEntry, capacity), &RING_EVENTS.to_le_bytes())?;
            write(entry + offset_of!(RingEntry, name), &(name as u32).to_le_bytes())?;
            write(entry + offset_of!(RingEntry, taken), &1u32.to_le_bytes())?;
        }
        write(offset_of!(Control, version), &TRACE_VERSION.to_le_bytes())?;
        write(offset_of!(Control, is_process), &1u32.to_le_bytes())?;
        write(offset_of!(Control, area_address), &AREA_ADDRESS.to_le_bytes())?;
        write(offset_of!(Control, area_bytes), &(rings * ring_bytes).to_le_bytes())?;
        write(offset_of!(Control, names_used), &(rings as u32 + 1).to_le_bytes())?;
        write(offset_of!(Control, rings_lost), &(ranks - rings as u32).to_le_bytes())?;
        write(offset_of!(Control, groups), &groups.to_le_bytes())?;
        write(offset_of!(Control, magic), &CONTROL_MAGIC.to_le_bytes())?;
        Ok(made)
    }

    /// The descriptor that ranks inherit.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn word(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        // The pages are there from the start; what cannot be read is as if it were never written.
        let _ = self.file.read_exact_at(&mut word, offset as u64);
        u32::from_le_bytes(word)
    }

    /// Switches the groups that a recorder requests.
    pub fn follow_host(&self) {
        let request = self.word(offset_of!(Control, request));
        if request == self.word(offset_of!(Control, answered)) {
            return;
        }
        let groups = self.word(offset_of!(Control, groups_wanted));
        let put = |offset: usize, word: u32| _ = self.file.write_all_at(&word.to_le_bytes(), offset as u64);
        put(offset_of!(Control, groups), groups);
        put(offset_of!(Control, answered), request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_finds_the_rings_and_switches_groups() {
        let trace = RanksTrace::make(40, 128).unwrap();
        let word = |offset| trace.word(offset);
        assert_eq!(word(offset_of!(Control, groups)), 128);
        assert_eq!(word(offset_of!(Control, rings_lost)), 8);
        let last = RINGS_OFFSET + (RINGS_MAX - 1) * RING_BYTES;
        assert_eq!(word(last + offset_of!(RingEntry, capacity)), RING_EVENTS as u32);
        let mut name = [0; 9];
        trace.file.read_exact_at(&mut name, (NAMES_OFFSET + 32 * NAME_BYTES) as u64).unwrap();
        assert_eq!(&name, b"\x07\0rank 31");
        trace.file.write_all_at(&5u32.to_le_bytes(), offset_of!(Control, groups_wanted) as u64).unwrap();
        trace.follow_host();
        assert_eq!(word(offset_of!(Control, groups)), 128, "nothing was requested");
        trace.file.write_all_at(&1u32.to_le_bytes(), offset_of!(Control, request) as u64).unwrap();
        trace.follow_host();
        assert_eq!((word(offset_of!(Control, groups)), word(offset_of!(Control, answered))), (5, 1));
    }
}
