//! Devices that a process of the host serves for a VM: the input is a script of what QEMU sends and the guest writes.

use std::path::PathBuf;
use std::sync::OnceLock;

use glass_devices::script::{self, step};

use super::Target;
use crate::scratch;

/// `glass disk` and `glass tap`.
pub struct Served {
    name: &'static str,
    is_disk: bool,
}

/// The disk.
pub const DISK: Served = Served { name: "served-disk", is_disk: true };
/// The network card.
pub const CARD: Served = Served { name: "served-card", is_disk: false };

/// Where the model of QEMU has the guest's memory.
const QEMU: u64 = 0x7f00_0000_0000;
/// Descriptors of a queue, and where its parts are in the guest's memory, behind `0x4000` times its number.
const SIZE: u32 = 16;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const DATA: u16 = 0xc000;

/// A script.
#[derive(Default)]
struct Script(Vec<u8>);

impl Script {
    fn message(&mut self, request: u8, file: u8, words: &[u64]) {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.extend([step::MESSAGE, request, file, payload.len() as u8]);
        self.0.extend(payload);
    }

    fn write(&mut self, address: u16, bytes: &[u8]) {
        self.0.push(step::WRITE);
        self.0.extend(address.to_le_bytes());
        self.0.push(bytes.len() as u8);
        self.0.extend(bytes);
    }

    fn descriptor(&mut self, table: u16, index: u16, address: u16, bytes: u32, flags: u16) {
        let words = u64::from(bytes) | u64::from(flags) << 32 | u64::from(index + 1) << 48;
        self.write(table + index * 16, &[u64::from(address), words].map(u64::to_le_bytes).concat());
    }

    /// Offers chains.
    fn offer(&mut self, queue: u16, heads: &[u16]) {
        let available = queue * 0x4000 + AVAILABLE as u16;
        let words: Vec<u8> = heads.iter().flat_map(|head| head.to_le_bytes()).collect();
        self.write(available + 4, &words);
        self.write(available + 2, &(heads.len() as u16).to_le_bytes());
        self.0.push(step::TURN);
    }

    /// Gives the device the memory, and starts queues.
    fn start(features: u64, queues: u32) -> Script {
        let mut script = Script::default();
        for request in [1, 3, 15] {
            script.message(request, 0, &[]);
        }
        script.message(2, 0, &[features]);
        script.message(5, 1, &[1, 0, script::MEMORY_BYTES, QEMU, 0]);
        for queue in 0..u64::from(queues) {
            let start = QEMU + queue * 0x4000;
            script.message(8, 0, &[queue | u64::from(SIZE) << 32]);
            script.message(10, 0, &[queue]);
            script.message(9, 0, &[queue, start, start + USED, start + AVAILABLE, 0]);
            for request in [13, 14, 12] {
                script.message(request, 2, &[queue]);
            }
            script.message(18, 0, &[queue | 1 << 32]);
        }
        script
    }
}

/// Requests of each type, with one descriptor each for the header, the data and the status.
fn disk(features: u64) -> Vec<u8> {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    let mut script = Script::start(features, 1);
    for (index, (kind, flags)) in [(0, WRITE), (1, 0), (8, WRITE), (11, 0), (13, 0)].into_iter().enumerate() {
        let (first, at) = (index as u16 * 3, DATA + index as u16 * 0x800);
        script.write(at, &[u64::from(kind as u32), 8].map(u64::to_le_bytes).concat());
        // A range for those that have one.
        script.write(at + 0x100, &[16, 8].map(u64::to_le_bytes).concat());
        let bytes = if kind > 8 { 16 } else { 512 };
        script.descriptor(0, first, at, 16, NEXT);
        script.descriptor(0, first + 1, at + 0x100, bytes, NEXT | flags);
        script.descriptor(0, first + 2, at + 0x700, 1, WRITE);
    }
    script.offer(0, &[0, 3, 6, 9, 12]);
    script.0.push(step::TURN);
    script.message(24, 0, &[12 << 32, 0, 0]);
    script.message(11, 0, &[0]);
    script.0
}

/// Buffers to receive, frames to send, and one that is received.
fn card(features: u64) -> Vec<u8> {
    const WRITE: u16 = 2;
    let mut script = Script::start(features, 2);
    for index in 0..4 {
        script.descriptor(0, index, DATA + index * 0x800, 0x800, WRITE);
        script.descriptor(0x4000, index, DATA + index * 0x800, 60, 0);
    }
    script.0.extend([step::FRAME, 80]);
    script.0.extend([0; 80]);
    script.offer(0, &[0, 1, 2, 3]);
    script.offer(1, &[0, 1, 2, 3]);
    script.message(11, 0, &[0]);
    script.message(11, 0, &[1]);
    script.0
}

/// The disk's file.
fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| scratch::disk("served"))
}

impl Target for Served {
    fn name(&self) -> &'static str {
        self.name
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        // Version 1 and messages that enable queues, with indirect descriptors, event indexes, flushes or merged buffers.
        let common = 1_u64 << 32 | 1 << 30;
        let features = [common, common | 1 << 28 | 1 << 29, common | 1 << 9 | 1 << 15];
        features.into_iter().map(if self.is_disk { disk } else { card }).collect()
    }

    fn run(&self, input: &[u8]) {
        match self.is_disk {
            true => _ = script::run_disk(input, file()),
            false => _ = script::run_card(input),
        }
    }

    fn cost(&self) -> u64 {
        if self.is_disk { 16 } else { 4 }
    }

    fn bytes_max(&self) -> usize {
        8 << 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_scripts_are_done_to_their_end() {
        for script in DISK.corpus() {
            assert_eq!(script::run_disk(&script, file()), Some(0));
        }
        for script in CARD.corpus() {
            assert_eq!(script::run_card(&script), Some(0));
        }
        let refused = [&DISK.corpus()[0][..], &[step::MESSAGE, 99, 0, 0]].concat();
        assert_eq!(script::run_disk(&refused, file()).is_none(), glass_devices::has_io_uring());
        std::fs::remove_file(file()).unwrap();
    }
}
