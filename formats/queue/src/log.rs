//! The log of an index of version 3: what commits change, in the order of commits, in a ring of blocks.
//!
//! Log blocks are numbered without end; number n is at place n mod the blocks of the log. A commit is one or more of them, each with a
//! checksum of its own, and counts only if all are there.

use super::pages::{Checkpoint, Layout};
use super::{
    BLOCK_BYTES, CLEARED, ENTRY_BYTES, EntryBytes, Fault, HEADER_BYTES, NUMBER_MAX, check_sealed, seal, u32_at, u64_at,
};
use alloc::vec::Vec;

const LOG_MAGIC: [u8; 8] = *b"GLSQULOG";
/// A place, and the entry that it has from then on.
const CHANGE_BYTES: usize = 8 + ENTRY_BYTES;
/// Changes of a log block.
pub const LOG_ENTRIES: usize = (BLOCK_BYTES - HEADER_BYTES) / CHANGE_BYTES;

/// Blocks of a commit with so many changes.
pub fn log_blocks(changes: usize) -> u32 {
    changes.div_ceil(LOG_ENTRIES).max(1) as u32
}

/// The header of a log block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBlock {
    /// Counts log blocks.
    pub number: u64,
    /// The commit that it is of.
    pub sequence: u64,
    /// Larger than the id of every item so far.
    pub next_id: u64,
    /// Which one of the commit it is, from 0.
    pub part: u32,
    /// How many the commit has.
    pub parts: u32,
}

impl LogBlock {
    /// Writes it with `changes`, [`LOG_ENTRIES`] at most, to a block.
    pub fn encode(&self, changes: &[(u32, EntryBytes)], block: &mut [u8]) {
        block.fill(0);
        block[0..8].copy_from_slice(&LOG_MAGIC);
        for (at, word) in [(8, self.number), (16, self.sequence), (24, self.next_id)] {
            block[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        for (at, word) in [(32, self.part), (36, self.parts), (40, changes.len() as u32)] {
            block[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        for ((place, entry), bytes) in changes.iter().zip(block[HEADER_BYTES..].chunks_exact_mut(CHANGE_BYTES)) {
            bytes[..4].copy_from_slice(&place.to_le_bytes());
            bytes[8..].copy_from_slice(entry);
        }
        seal(block);
    }

    /// Reads the header of a block.
    pub fn decode(block: &[u8]) -> Result<LogBlock, Fault> {
        check_sealed(block, LOG_MAGIC)?;
        let [number, sequence, next_id] = [8, 16, 24].map(|at| u64_at(block, at));
        let [part, parts, count] = [32, 36, 40].map(|at| u32_at(block, at));
        if number.max(sequence).max(next_id) > NUMBER_MAX {
            return Err(Fault::Number(number.max(sequence).max(next_id)));
        }
        if part >= parts || count > LOG_ENTRIES as u32 {
            return Err(Fault::Count { count, count_max: LOG_ENTRIES as u32 });
        }
        Ok(LogBlock { number, sequence, next_id, part, parts })
    }
}

fn changes(block: &[u8]) -> impl Iterator<Item = (u32, &EntryBytes)> {
    let changes = block[HEADER_BYTES..].chunks_exact(CHANGE_BYTES).take(u32_at(block, 40) as usize);
    changes.map(|bytes| (u32_at(bytes, 0), bytes[8..].try_into().expect("the rest of a change is an entry")))
}

/// Where a log ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEnd {
    /// The last commit.
    pub sequence: u64,
    /// Larger than the id of every item so far.
    pub next_id: u64,
    /// The log block of the next commit.
    pub log_block: u64,
    /// Blocks of the ring with parts of a commit that did not succeed, or with anything else that is neither empty nor of the log: none of
    /// them may be joined with parts of a later commit.
    pub broken: Vec<u32>,
}

/// Gives the changes of all commits after `checkpoint` to `apply`; `ring` has all blocks of the log. Fails if there are commits after the
/// last one that can be read, because the next commit is only written when the one before is durable.
pub fn replay(
    layout: Layout,
    ring: &[u8],
    checkpoint: &Checkpoint,
    mut apply: impl FnMut(u32, &EntryBytes) -> Result<(), Fault>,
) -> Result<LogEnd, Fault> {
    let bytes = |place: u64| &ring[place as usize * BLOCK_BYTES..][..BLOCK_BYTES];
    let blocks = u64::from(layout.log_blocks);
    let found: Vec<Option<LogBlock>> = (0..blocks)
        .map(|place| LogBlock::decode(bytes(place)).ok().filter(|block| block.number % blocks == place))
        .collect();
    let &Checkpoint { mut sequence, mut next_id, mut log_block, .. } = checkpoint;
    let at = |number: u64| found[(number % blocks) as usize].filter(|block| block.number == number);
    while let Some(first) = at(log_block) {
        let is_part = |part: u32| {
            at(log_block + u64::from(part))
                .is_some_and(|block| block == LogBlock { number: block.number, part, ..first })
        };
        let is_next = first.sequence == sequence + 1 && first.next_id >= next_id && u64::from(first.parts) <= blocks;
        if !is_next || !(0..first.parts).all(is_part) {
            break;
        }
        for part in 0..first.parts {
            for (place, entry) in changes(bytes((log_block + u64::from(part)) % blocks)) {
                if place as usize >= layout.entries_max() {
                    return Err(Fault::Count { count: place, count_max: layout.entries_max() as u32 });
                }
                apply(place, entry)?;
            }
        }
        (sequence, next_id) = (first.sequence, first.next_id);
        log_block += u64::from(first.parts);
    }
    if found.iter().flatten().any(|block| block.number >= log_block && block.sequence > sequence + 1) {
        return Err(Fault::Log { sequence });
    }
    let is_broken = |place: &u64| match found[*place as usize] {
        Some(block) => block.number >= log_block && block.sequence > sequence,
        None => ![0, CLEARED].iter().any(|unused| bytes(*place).iter().all(|byte| byte == unused)),
    };
    let broken = (0..blocks).filter(is_broken).map(|place| place as u32).collect();
    Ok(LogEnd { sequence, next_id, log_block, broken })
}
