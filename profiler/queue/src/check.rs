//! All that can be checked of a queue on a disk.

use crate::disk::ReadAt;
use crate::queue::{OpenError, Queue, data_of};
use glass_formats_queue::Entry;

/// What a check found.
#[derive(Debug)]
pub struct Report<D> {
    /// The queue, if it has an index that can be used.
    pub queue: Option<Queue<D>>,
    /// What is wrong, in sentences.
    pub faults: Vec<String>,
}

/// Reads all of a queue and compares it with its checksums. `progress` gets the bytes of data that were read, and those there are.
pub fn check<D: ReadAt>(disk: D, progress: &mut dyn FnMut(u64, u64)) -> Report<D> {
    let queue = match Queue::open(disk) {
        Ok(queue) => queue,
        Err(OpenError::NoIndex(slots)) => {
            let mut faults = vec!["it has no index that can be used, so its items cannot be found".to_owned()];
            for (slot, fault) in slots.iter().enumerate() {
                faults.extend(fault.map(|fault| format!("index slot {slot}: {fault}")));
            }
            return Report { queue: None, faults };
        }
        Err(error) => return Report { queue: None, faults: vec![error.to_string()] },
    };
    let mut faults = queue.faults.clone();
    let items = queue.index.entries.iter().map(|entry| (format!("item {}", entry.id), *entry, true));
    let uploads = queue.index.uploads.iter().enumerate();
    // Not their names: a client that has one may continue the upload.
    let uploads = uploads.filter_map(|(number, upload)| Some((format!("upload {number}"), data_of(upload)?, false)));
    let all: Vec<(String, Entry, bool)> = items.chain(uploads).collect();
    let total = all.iter().map(|(_, entry, _)| entry.length).sum();
    let mut done = 0;
    for (name, entry, is_item) in all {
        let start = done;
        let read = queue.read(&entry, true, &mut |piece| {
            done += piece.len() as u64;
            progress(done, total);
            Ok(())
        });
        match read {
            Err(error) => faults.push(format!("{name}: {error}")),
            Ok(false) if is_item => {
                faults.push(format!("{name}: the bytes after its data in its last block are not zero"))
            }
            Ok(_) => {}
        }
        done = start + entry.length;
    }
    Report { queue: Some(queue), faults }
}
