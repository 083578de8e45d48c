//! Files that processes write about their generated code: perf maps and jitdumps.

use fastrand::Rng;
use glass_profiler_core::jit;

use super::Target;
use crate::mutate;

/// Address of a function in the valid files.
const CODE: u64 = 0x40_0000;

/// A file of either kind, to its end.
pub struct Generated;

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = [kind, 16 + body.len() as u32].map(u32::to_le_bytes).concat();
    bytes.extend(100u64.to_le_bytes());
    bytes.extend(body);
    bytes
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A dump: lines, a function, another one over it, which moves, and the end.
fn dump() -> Vec<u8> {
    let mut bytes: Vec<u8> = [0x4a69_5444u32, 1, 40, 62, 0, 7].iter().flat_map(|half| half.to_le_bytes()).collect();
    bytes.extend(words(&[99, 0]));
    let lines = [&words(&[CODE, 2, CODE, 3])[..], b"a.js\0", &words(&[CODE + 8, 4]), b"\xff\0"].concat();
    bytes.extend(record(2, &lines));
    for number in 0..2 {
        let load = [&words(&[7 << 32 | 7, CODE, CODE, 16, number])[..], b"JS:*f a.js:1\0", &[0x90; 16]].concat();
        bytes.extend(record(0, &load));
    }
    bytes.extend(record(1, &words(&[7 << 32 | 7, CODE, CODE, CODE + 4096, 16, 1])));
    bytes.extend(record(3, &[]));
    bytes
}

impl Target for Generated {
    fn name(&self) -> &'static str {
        "jit"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let map = format!("{CODE:x} 10 JS:*f a.js:1\n0x{:x} 20 _ZN1f1gEv\n{CODE:x} 8 g\n", CODE + 16);
        vec![map.into_bytes(), dump()]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.bool() {
            true => mutate::words(bytes, 40, 4, rng),
            false => mutate::plain(bytes, corpus, rng),
        }
    }

    fn run(&self, input: &[u8]) {
        for address in [CODE, CODE + 9, CODE + 4096, 0, u64::MAX] {
            assert!(jit::read_any(input, address).iter().all(|location| location.line != Some(0)));
        }
    }
}
