//! An index of version 3: its pages, and the log that continues them.

use crate::disk::ReadAt;
use crate::queue::{OpenError, read as read_blocks};
use glass_formats_queue::{
    self as format, BLOCK_BYTES, Checkpoint, CheckpointSlot, Contents, ENTRY_BYTES, Fault, Index, Layout, Table,
    decode_page,
};

/// Pages that are reported one by one.
const PAGES_NAMED: usize = 16;

/// Entries that are left out because they contradict others: the uploads that a queue may have, and some more.
const ENTRIES_LEFT_OUT_MAX: usize = 1000;

/// An index, as far as it can be read, and what is wrong with it.
pub(crate) struct Found {
    pub(crate) index: Index,
    pub(crate) faults: Vec<String>,
}

pub(crate) fn read(disk: &impl ReadAt, layout: Layout) -> Result<Found, OpenError> {
    let mut faults = Vec::new();
    // What is read and kept is not longer than the disk is.
    let end_bytes = u64::from(layout.index().end) * BLOCK_BYTES as u64;
    if disk.bytes() < end_bytes {
        return Err(OpenError::Foreign("its index is behind its end"));
    }
    let checkpoint_bytes = layout.checkpoint_blocks() as usize * BLOCK_BYTES;
    let slots = [0, 1].map(|number| match read_blocks(disk, layout.checkpoint_start(number), checkpoint_bytes) {
        Ok(bytes) => Checkpoint::decode(layout, number, &bytes),
        Err(error) => {
            faults.push(error.to_string());
            CheckpointSlot::Empty
        }
    });
    let (checkpoint, broken) = format::newest_checkpoint(slots).map_err(OpenError::NoIndex)?;
    if let Some((slot, fault)) = broken {
        faults.push(format!(
            "checkpoint {slot} of the index cannot be used: {fault}; a power cut while it was written leaves this, and nothing is lost \
             then, or the disk is damaged"
        ));
    }
    let (mut table, mut sum, mut newest, mut damaged) = (Table::new(), 0u64, 0, Vec::new());
    for (page, is_second) in (0..).zip(&checkpoint.places) {
        let bytes = read_blocks(disk, layout.page_place(page, *is_second), BLOCK_BYTES);
        let decoded = bytes.map_err(|error| error.to_string()).and_then(|bytes| {
            let header = decode_page(page, &bytes).map_err(|fault| fault.to_string())?;
            Ok((bytes, header))
        });
        let added = match decoded {
            Ok((bytes, (checksum, sequence))) => {
                (sum, newest) = (sum.wrapping_add(checksum), sequence.max(newest));
                table.add_page(&bytes)
            }
            Err(what) => {
                damaged.push(what);
                table.grow()
            }
        };
        added.map_err(|_| OpenError::Foreign("its index is larger than the memory"))?;
    }
    for what in damaged.iter().take(PAGES_NAMED) {
        faults.push(format!("{what}; its items cannot be found"));
    }
    if damaged.len() > PAGES_NAMED {
        faults.push(format!("{} more pages of the index are damaged", damaged.len() - PAGES_NAMED));
    }
    if damaged.is_empty() && sum != checkpoint.sum {
        faults.push(Fault::Pages.to_string());
    }
    let ring = read_blocks(disk, layout.log_start(), layout.log_blocks as usize * BLOCK_BYTES)?;
    let replayed = table.replay(layout, &ring, &checkpoint);
    let (sequence, next_id) = match replayed.map_err(|_| OpenError::Foreign("its index is larger than the memory"))? {
        Ok((end, _)) => {
            if !end.broken.is_empty() {
                faults.push(format!(
                    "the log of the index ends in parts of a commit; a power cut during a commit leaves this, and nothing is lost then, \
                     or the disk is damaged, and the commit after {} may be lost",
                    end.sequence
                ));
            }
            (end.sequence, end.next_id)
        }
        Err(fault) => {
            faults.push(fault.to_string());
            // Whatever can be found of it.
            (checkpoint.sequence, format::NUMBER_MAX)
        }
    };
    if newest > sequence {
        faults.push(Fault::Log { sequence }.to_string());
    }
    let contents = contents(&mut table, layout, next_id, &mut faults)?;
    let entries = contents.items.iter().map(|(_, place)| table.item(*place)).collect();
    let uploads = contents.uploads.into_iter().map(|(upload, _)| upload).collect();
    Ok(Found { index: Index { sequence, next_id, entries, uploads }, faults })
}

/// What the entries are together, without those that contradict: of what pages had that are damaged, an upload may have a part.
fn contents(table: &mut Table, layout: Layout, next_id: u64, faults: &mut Vec<String>) -> Result<Contents, OpenError> {
    for _ in 0..ENTRIES_LEFT_OUT_MAX {
        match table.contents(layout, next_id) {
            Ok(contents) => return Ok(contents),
            Err(fault @ (Fault::Entry { position, .. } | Fault::Upload { position, .. })) => {
                faults.push(fault.to_string());
                table.set(position as u32, &[0; ENTRY_BYTES]);
            }
            Err(fault) => return Err(OpenError::Index(fault)),
        }
    }
    table.contents(layout, next_id).map_err(OpenError::Index)
}
