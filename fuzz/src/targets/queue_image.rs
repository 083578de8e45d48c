//! Disks of an upload queue, as `glass queue` reads them.

use fastrand::Rng;
use glass_profiler_queue::{Queue, check};

use super::Target;
use super::queue_disk::{QueueDisk, disk_of};
use crate::mutate;

/// A disk that no queue uses.
pub struct QueueImage;

impl Target for QueueImage {
    fn name(&self) -> &'static str {
        "queue-image"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        QueueDisk.corpus()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..4) {
            0 => mutate::plain(bytes, corpus, rng),
            _ => QueueDisk.change(bytes, corpus, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        QueueDisk.bytes_max()
    }

    fn run(&self, input: &[u8]) {
        let Some(disk) = disk_of(input) else { return };
        // The index may be that of a longer disk.
        let report = check(&disk[..], &mut |done, all| assert!(done <= all));
        let Some(queue) = report.queue else {
            assert!(!report.faults.is_empty(), "no queue, and no reason");
            return;
        };
        assert!(Queue::open(&disk[..]).is_ok_and(|again| again.index == queue.index));
        for entry in &queue.index.entries {
            let mut bytes = 0;
            let result = queue.read(entry, false, &mut |piece| {
                bytes += piece.len() as u64;
                Ok(())
            });
            assert!(bytes <= entry.length && (result.is_err() || bytes == entry.length));
            assert!(result.is_ok() || !report.faults.is_empty(), "a damaged item, and no fault");
        }
    }
}
