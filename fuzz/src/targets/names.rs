//! Mangled names, which can stand for endless ones; and compressed sections, which can expand without an end.

use fastrand::Rng;
use glass_profiler_core::elf;
use glass_profiler_core::symbols::demangle;

use super::Target;
use crate::mutate;

/// Names of C++ and Rust.
pub struct Names;

/// Parts of names, of which most may be in each other.
const PARTS: [&str; 48] = [
    "N", "E", "I", "J", "S_", "S0_", "S1_", "T_", "T0_", "L", "Z", "X", "P", "R", "1a", "v", "i", "Dp", "DT", "cl",
    "sr", "cv", "dt", "F", "M", "Ul", "C1", "D1", "St", "B_", "B0_", "B1_", "B2_", "B3_", "B4_", "T", "G_", "L_", "D",
    "p", "K", "j1_", "A", "C1a", "Nv", "cvT_I", "IXL_Z", "GD1RC1I",
];

impl Target for Names {
    fn name(&self) -> &'static str {
        "names"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let mut doubled = "_Z1f1aIiE".to_owned();
        ('0'..='9').chain('A'..='Z').step_by(2).take(10).for_each(|seen| doubled += &format!("1bIS{seen}_S{seen}_E"));
        let nested = "_Z".to_owned() + &"cvT_I".repeat(10);
        let tuples = "_RMC0TTTTTEB6_EB5_EB4_EB3_E";
        let plain = [
            "_ZNSt6vectorIiSaIiEE9push_backEOi",
            "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
            "_RNvMs_NtCs1_5queue5storeINtB4_5StorehE4push",
        ];
        plain.into_iter().chain([&*doubled, &nested, tuples]).map(|name| name.as_bytes().to_vec()).collect()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        if rng.u32(..4) == 0 {
            return mutate::text(bytes, corpus, rng);
        }
        for _ in 0..rng.usize(1..20) {
            let at = rng.usize(2.min(bytes.len())..=bytes.len());
            bytes.splice(at..at, mutate::pick(rng, &PARTS).bytes());
        }
    }

    fn bytes_max(&self) -> usize {
        20 << 10
    }

    fn run(&self, input: &[u8]) {
        let Ok(name) = std::str::from_utf8(input) else { return };
        let plain = demangle(name);
        assert!(plain.len() <= (17 << 10).max(name.len()), "{} bytes", plain.len());
    }
}

/// One compressed section: the input is the format, the size that it claims, and the content.
pub struct Compressed;

/// `ch_type` of zlib and of Zstandard.
const FORMATS: [u32; 2] = [1, 2];
const HEAD_BYTES: usize = 5;

/// An ELF file with the section `.a`, compressed.
fn file(format: u32, claimed: u64, content: &[u8]) -> Vec<u8> {
    const NAMES: &[u8] = b"\0.a\0.b\0\0";
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    let content_at = 64 + NAMES.len() as u64;
    let section_bytes = 24 + content.len() as u64;
    let table_at = (content_at + section_bytes).next_multiple_of(8);
    elf.extend([&2u16.to_le_bytes()[..], &62u16.to_le_bytes(), &1u32.to_le_bytes(), &[0; 16]].concat());
    elf.extend([&table_at.to_le_bytes()[..], &[0; 4]].concat());
    elf.extend([64u16, 56, 0, 64, 3, 2].map(u16::to_le_bytes).concat());
    elf.extend(NAMES);
    elf.extend([&format.to_le_bytes()[..], &[0; 4], &claimed.to_le_bytes(), &1u64.to_le_bytes(), content].concat());
    elf.resize(table_at as usize + 64, 0);
    for (name, kind, flags, at, bytes) in
        [(1u32, 1u32, 0x800u64, content_at, section_bytes), (4, 3, 0, 64, NAMES.len() as u64)]
    {
        elf.extend([name, kind].map(u32::to_le_bytes).concat());
        elf.extend([flags, 0, at, bytes, 0, 1, 0].map(u64::to_le_bytes).concat());
    }
    elf
}

impl Target for Compressed {
    fn name(&self) -> &'static str {
        "compressed"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        // A hundred zeros, as `zlib` and as a block of Zstandard that repeats a byte.
        let zlib = [0, 100, 0, 0, 0, 0x78, 0x9c, 0x63, 0x60, 0xa0, 0x3d, 0, 0, 0, 0x64, 0, 1].to_vec();
        let zstd = [1, 100, 0, 0, 0, 0x28, 0xb5, 0x2f, 0xfd, 0, 10 << 3, 0x23, 3, 0, 0].to_vec();
        vec![zlib, zstd]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        mutate::plain(bytes, corpus, rng);
    }

    fn bytes_max(&self) -> usize {
        64 << 10
    }

    fn run(&self, input: &[u8]) {
        let Some((head, content)) = input.split_first_chunk::<HEAD_BYTES>() else { return };
        let claimed = u64::from(u32::from_le_bytes([head[1], head[2], head[3], head[4]]));
        let section = elf::section(&file(FORMATS[usize::from(head[0]) % 2], claimed, content), ".a");
        assert!(section.is_none_or(|section| section.len() as u64 == claimed));
    }

    fn cost(&self) -> u64 {
        4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_decompressed() {
        for input in Compressed.corpus() {
            let file = file(FORMATS[usize::from(input[0])], 100, &input[HEAD_BYTES..]);
            assert_eq!(elf::section(&file, ".a").as_deref(), Some(&[0; 100][..]), "{input:x?}");
        }
    }
}
