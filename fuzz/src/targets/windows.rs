//! The devices of our VMM behind their registers: the input is a script of what a guest writes to registers and memory.

use std::path::PathBuf;
use std::sync::OnceLock;

use glass_vmm::script::{self, step};

use super::Target;
use crate::scratch;

/// All devices of a VM.
pub struct Windows;

/// Where a queue's parts are in the guest's memory, behind `0x4000` times its number.
const AVAILABLE: u16 = 0x1000;
const USED: u16 = 0x2000;
const DATA: u16 = 0xc000;
const SIZE: u32 = 16;
/// Flags of a descriptor.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A script.
#[derive(Default)]
struct Script(Vec<u8>);

impl Script {
    fn register(&mut self, window: u16, at: u16, value: u32) {
        self.0.push(step::WRITE);
        self.0.extend((window * 512 + at).to_le_bytes());
        self.0.push(4);
        self.0.extend(value.to_le_bytes());
    }

    fn memory(&mut self, address: u16, bytes: &[u8]) {
        self.0.push(step::MEMORY);
        self.0.extend(address.to_le_bytes());
        self.0.push(bytes.len() as u8);
        self.0.extend(bytes);
    }

    fn descriptor(&mut self, queue: u16, index: u16, address: u16, bytes: u32, flags: u16) {
        let words = u64::from(bytes) | u64::from(flags) << 32 | u64::from(index + 1) << 48;
        self.memory(queue * 0x4000 + index * 16, &[u64::from(address), words].map(u64::to_le_bytes).concat());
    }

    /// Offers chains, and gives the device a turn.
    fn offer(&mut self, window: u16, queue: u16, heads: &[u16]) {
        let available = queue * 0x4000 + AVAILABLE;
        let words: Vec<u8> = heads.iter().flat_map(|head| head.to_le_bytes()).collect();
        self.memory(available + 4, &words);
        self.memory(available + 2, &(heads.len() as u16).to_le_bytes());
        self.register(window, 0x50, queue.into());
        self.0.extend([step::TURN, window as u8]);
    }

    /// Finds a device and starts it with all of its queues (virtio 1.2, section 4.2.3).
    fn start(window: u16, features: u64, queues: u16) -> Script {
        let mut script = Script::default();
        for at in [0_u16, 4, 8, 0x10, 0x34, 0x70, 0x100] {
            script.0.push(step::READ);
            script.0.extend((window * 512 + at).to_le_bytes());
            script.0.push(4);
        }
        script.register(window, 0x70, 0);
        script.register(window, 0x70, 3);
        for half in 0..2 {
            script.register(window, 0x14, half);
            script.register(window, 0x24, half);
            script.register(window, 0x20, (features >> (32 * half)) as u32);
        }
        script.register(window, 0x70, 11);
        for queue in 0..queues {
            let start = u32::from(queue) * 0x4000;
            let of_queue = [
                (0x30, queue.into()),
                (0x38, SIZE),
                (0x80, start),
                (0x84, 0),
                (0x90, start + u32::from(AVAILABLE)),
                (0x94, 0),
                (0xa0, start + u32::from(USED)),
                (0xa4, 0),
                (0x44, 1),
            ];
            of_queue.into_iter().for_each(|(at, value)| script.register(window, at, value));
        }
        script.register(window, 0x70, 15);
        script
    }

    fn end(mut self, window: u16) -> Vec<u8> {
        self.register(window, 0x70, 0);
        self.0
    }
}

/// A read and a flush.
fn disk(features: u64) -> Vec<u8> {
    let mut script = Script::start(step::DISK, features, 1);
    for (first, kind) in [(0, 0_u64), (3, 4)] {
        script.memory(DATA + first * 0x100, &[kind, 8].map(u64::to_le_bytes).concat());
        script.descriptor(0, first, DATA + first * 0x100, 16, NEXT);
        script.descriptor(0, first + 1, DATA + 0x800, 512, NEXT | WRITE);
        script.descriptor(0, first + 2, DATA + 0x700, 1, WRITE);
    }
    script.offer(step::DISK, 0, &[0, 3]);
    script.end(step::DISK)
}

/// Buffers to receive, a frame that opens a connection, and one that is received.
fn card(features: u64) -> Vec<u8> {
    let mut script = Script::start(step::CARD, features, 2);
    for index in 0..2 {
        script.descriptor(0, index, DATA + index * 0x800, 0x800, WRITE);
        script.descriptor(1, index, DATA + 0x2000 + index * 0x800, 78, 0);
    }
    let mut frame = vec![0; 78];
    (frame[24], frame[25], frame[26], frame[35], frame[58], frame[59]) = (8, 0, 0x45, 6, 0x80, 2);
    frame[66..70].copy_from_slice(&[1, 3, 3, 7]);
    script.memory(DATA + 0x2000, &frame);
    script.0.extend([step::INPUT, 1, 64, 0, 0, 0, 60]);
    script.0.extend([0; 60]);
    script.offer(step::CARD, 0, &[0, 1]);
    script.offer(step::CARD, 1, &[0, 1]);
    script.end(step::CARD)
}

/// Text, and input.
fn console(features: u64) -> Vec<u8> {
    let mut script = Script::start(step::CONSOLE, features, 2);
    script.descriptor(0, 0, DATA, 16, WRITE);
    script.descriptor(1, 0, DATA + 0x100, 5, 0);
    script.0.extend([step::INPUT, 0, 1, 3]);
    script.offer(step::CONSOLE, 0, &[0]);
    script.offer(step::CONSOLE, 1, &[0]);
    script.end(step::CONSOLE)
}

fn entropy(features: u64) -> Vec<u8> {
    let mut script = Script::start(step::ENTROPY, features, 1);
    script.descriptor(0, 0, DATA, 32, WRITE);
    script.offer(step::ENTROPY, 0, &[0]);
    script.end(step::ENTROPY)
}

/// The disk's file.
fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| scratch::disk("windows"))
}

impl Target for Windows {
    fn name(&self) -> &'static str {
        "vmm-windows"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        // Version 1; with indirect descriptors and event indexes.
        let features = [1 << 32, 1 << 32 | 1 << 28 | 1 << 29];
        features
            .into_iter()
            .flat_map(|features| [disk, card, console, entropy].map(|device| device(features)))
            .collect()
    }

    fn run(&self, input: &[u8]) {
        let _ = script::run(input, file());
    }

    fn cost(&self) -> u64 {
        16
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
        for script in Windows.corpus() {
            assert_eq!(script::run(&script, file()), Some(0));
        }
        let cut = &Windows.corpus()[0][..40];
        assert_eq!(script::run(cut, file()).is_none(), glass_devices::has_io_uring());
        std::fs::remove_file(file()).unwrap();
    }
}
