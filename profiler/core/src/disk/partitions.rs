//! The partitions of a disk: of a GPT (UEFI specification 2.10, chapter 5), or of a table in the first sector (MBR).
//!
//! No more of them is used than where they are: crates for these tables load them as their headers describe them, which a guest writes, or want
//! to write to the disk.

use std::ops::Range;

use super::bytes::{half, read, word};
use crate::elf::ReadAt;

/// The most partitions of a disk.
const PARTITIONS_MAX: usize = 256;
/// Sizes of a sector; a table in the first sector counts in sectors of the first size.
const SECTORS: [u64; 2] = [512, 4096];
/// Sizes of an entry of a GPT.
const ENTRY_BYTES: Range<u32> = 128..4097;
/// Kinds of entries in the first sector: an extended partition, in which there is a chain of others.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// Where the partitions of a disk are, in bytes: first, behind the last. None on another kind of disk.
pub fn list(disk: &dyn ReadAt) -> Vec<Range<u64>> {
    let mut found = gpt(disk);
    if found.is_empty() {
        found = in_first_sector(disk);
    }
    found.retain(|range| range.start < range.end && range.start > 0 && range.end <= disk.bytes());
    found
}

/// Those of a GPT: by the header behind the first sector, or else by its copy in the last one.
fn gpt(disk: &dyn ReadAt) -> Vec<Range<u64>> {
    let headers = SECTORS.into_iter().flat_map(|sector| {
        let last = (disk.bytes() / sector).saturating_sub(1).saturating_mul(sector);
        [(sector, sector), (sector, last)]
    });
    let mut tables = headers.filter_map(|(sector, at)| entries(disk, sector, at));
    tables.find(|found| !found.is_empty()).unwrap_or_default()
}

fn entries(disk: &dyn ReadAt, sector: u64, header_at: u64) -> Option<Vec<Range<u64>>> {
    let header: [u8; 92] = read(disk, header_at)?;
    let (at, count, bytes) = (word(&header, 72)?.checked_mul(sector)?, half(&header, 80)?, half(&header, 84)?);
    if !header.starts_with(b"EFI PART") || !ENTRY_BYTES.contains(&bytes) {
        return None;
    }
    let mut found = Vec::new();
    for index in 0..u64::from(count).min(PARTITIONS_MAX as u64) {
        let entry: [u8; 48] = read(disk, at.checked_add(index * u64::from(bytes))?)?;
        let (first, last) = (word(&entry, 32)?, word(&entry, 40)?);
        // An entry that is not used has no kind.
        if entry[..16] != [0; 16]
            && let (Some(start), Some(end)) = (first.checked_mul(sector), last.checked_add(1))
            && let Some(end) = end.checked_mul(sector)
        {
            found.push(start..end);
        }
    }
    Some(found)
}

/// The four entries of a table in a sector: kind, first sector, sectors.
fn table(disk: &dyn ReadAt, sector: u64) -> Option<[(u8, u64, u64); 4]> {
    let bytes: [u8; 512] = read(disk, sector.checked_mul(SECTORS[0])?)?;
    if bytes[510..] != [0x55, 0xaa] {
        return None;
    }
    let mut entries = [(0, 0, 0); 4];
    for (entry, bytes) in entries.iter_mut().zip(bytes[446..510].chunks(16)) {
        *entry = (bytes[4], half(bytes, 8)?.into(), half(bytes, 12)?.into());
    }
    Some(entries)
}

fn in_first_sector(disk: &dyn ReadAt) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    for (kind, start, sectors) in table(disk, 0).into_iter().flatten() {
        match kind {
            0 => {}
            kind if EXTENDED.contains(&kind) => chain(disk, start, &mut found),
            _ => found.push(bytes_of(start, sectors)),
        }
    }
    found
}

/// The partitions in an extended one: each has a table with itself and the place of the next table.
fn chain(disk: &dyn ReadAt, extended: u64, found: &mut Vec<Range<u64>>) {
    let mut at = extended;
    // A chain that leads to itself ends here too.
    for _ in 0..PARTITIONS_MAX {
        let Some([(kind, start, sectors), next, ..]) = table(disk, at) else { return };
        if kind != 0 {
            found.push(bytes_of(at.saturating_add(start), sectors));
        }
        if !EXTENDED.contains(&next.0) {
            return;
        }
        at = extended.saturating_add(next.1);
    }
}

fn bytes_of(start: u64, sectors: u64) -> Range<u64> {
    let bytes = |sectors: u64| sectors.saturating_mul(SECTORS[0]);
    bytes(start)..bytes(start.saturating_add(sectors))
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn both_kinds_of_tables_and_none() {
        let file_system = vec![7; 64 << 10];
        for sector in SECTORS {
            let (mut disk, range) = example::gpt(&file_system, sector);
            assert_eq!(list(&disk), std::slice::from_ref(&range), "{sector}");
            // The first header is damaged, its copy is at the end.
            disk[sector as usize] = 0;
            assert_eq!(list(&disk), [range], "{sector}");
        }
        let (disk, ranges) = example::first_sector(&file_system);
        assert_eq!(list(&disk), ranges);
        assert_eq!(list(&file_system), []);
        assert_eq!(list(&Vec::new()), []);
    }

    #[test]
    fn what_leads_out_of_the_disk_or_in_a_circle_is_left_out() {
        let (mut disk, ranges) = example::first_sector(&[7; 4096]);
        // The table behind the first partition of the extended one leads to itself.
        let table = 33 * 512;
        assert_eq!(disk[table + 446 + 16 + 4], 0, "the last of the chain");
        disk[table + 446 + 16 + 4] = 5;
        disk[table + 446 + 16 + 8..][..4].copy_from_slice(&17u32.to_le_bytes());
        assert!(list(&disk).len() <= PARTITIONS_MAX + 2);
        disk.truncate(ranges[0].end as usize);
        assert_eq!(list(&disk), ranges[..1]);
        let (mut disk, _) = example::gpt(&[7; 4096], 512);
        disk[512 + 80..512 + 84].fill(0xff);
        assert!(list(&disk).len() <= PARTITIONS_MAX);
        disk[512 + 72..512 + 80].fill(0xff);
        let copy = disk.len() - 512;
        disk[copy] = 0;
        assert_eq!(list(&disk), []);
    }
}
