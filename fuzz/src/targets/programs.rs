//! Symbol files: ELF with DWARF and unwind tables, maps, ORC; and unwinding with them over arbitrary memory.

use std::sync::Arc;

use fastrand::Rng;
use glass_profiler_core::arch::x86_64::orc::OrcTable;
use glass_profiler_core::arch::{aarch64, x86_64};
use glass_profiler_core::image::Image;
use glass_profiler_core::map::SymbolMap;
use glass_profiler_core::symbols::{INLINE_DEPTH_MAX, Symbols, check_names};
use glass_profiler_core::trace::sleds;
use glass_profiler_core::unwind::{AddressSpace, DEPTH_MAX, StackMemory, UnwindCache};

use super::Target;
use crate::corpus::elf;
use crate::mutate;

const KEPT: [&str; 3] = ["_start", "data_word", "glass_start"];
/// Start of the stack of every guest here.
const STACK: u64 = 0x7fff_0000_0000;

/// Unwinds from an address of code, over a stack whose words are addresses of code and of the stack itself; by the rules of each processor, whatever the file
/// is for.
fn unwind(space: &AddressSpace, cache: &mut UnwindCache, ip: u64, fp: u64, stack: &[u8]) {
    let mut of_aarch64 = aarch64::Registers { pc: ip, sp: STACK, ..Default::default() };
    (of_aarch64.general[aarch64::FP], of_aarch64.general[aarch64::LR]) = (fp, word(stack));
    let pieces = [(STACK, stack.to_vec()), (STACK + (1 << 30), stack.to_vec())];
    for registers in [x86_64::Registers::new(ip, STACK, fp).into(), of_aarch64.into()] {
        for memory in [&pieces[..1], &pieces] {
            let chain = space.unwind(cache, &registers, StackMemory(memory));
            assert!((1..=DEPTH_MAX).contains(&chain.calls.len()));
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

fn locate(symbols: &Symbols, address: u64) {
    let locations = symbols.locate(address);
    assert!(locations.len() <= INLINE_DEPTH_MAX + 1);
    assert!(locations.iter().all(|location| !location.function.is_empty() && location.line != Some(0)));
}

/// A symbol file from the first byte to the last name, and its code unwound.
pub struct Programs;

impl Target for Programs {
    fn name(&self) -> &'static str {
        "elf"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        elf::programs().to_vec()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        mutate::elf(bytes, corpus, rng);
    }

    fn run(&self, input: &[u8]) {
        let _ = check_names(&input);
        let symbols = Symbols::parse(input).ok();
        if let (Ok(functions), Some(symbols)) = (sleds::functions(&input), &symbols) {
            assert!(functions.len() <= input.len() / 32);
            assert_eq!(sleds::named(&functions, symbols).len(), functions.len());
        }
        let image = Image::parse(input, &KEPT).ok().map(Arc::new);
        let mut addresses = vec![0, 1, u64::MAX, u64::MAX - 1, 1 << 63];
        if let Some(image) = &image {
            let range = image.linked_range();
            addresses.extend([range.start, range.end, range.end.wrapping_sub(1)]);
            for (start, code) in image.code_segments() {
                let step = (code.len() / 60).max(1);
                addresses
                    .extend((0..code.len()).step_by(step).take(64).map(|offset| start.wrapping_add(offset as u64)));
            }
            addresses.extend(KEPT.iter().filter_map(|name| image.symbol(name)));
        }
        if let Some(symbols) = &symbols {
            addresses.iter().for_each(|address| locate(symbols, *address));
        }
        let Some(image) = image else { return };
        let mut space = AddressSpace::default();
        space.add(image.linked_range(), 0, 0, image);
        let words = addresses.iter().enumerate().flat_map(|(index, address)| [*address, STACK + 8 * index as u64]);
        let stack: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let mut cache = UnwindCache::default();
        for address in addresses {
            unwind(&space, &mut cache, address, STACK + 16, &stack);
        }
    }
}

/// Valid programs with arbitrary stacks: the input is `rip`, `rbp` and the stack.
pub struct Stacks;

impl Target for Stacks {
    fn name(&self) -> &'static str {
        "unwind"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let stack = |image: &Image| {
            let code: Vec<u64> =
                image.code_segments().flat_map(|(start, code)| start..start + code.len() as u64).collect();
            let word = |index: usize| match index % 3 {
                0 => code.get(index * 7 % code.len().max(1)).copied().unwrap_or(0),
                1 => STACK + 8 * (index as u64 * 5 % 64),
                _ => index as u64,
            };
            (0..66).map(word).flat_map(u64::to_le_bytes).collect()
        };
        images().iter().map(|image| stack(image)).collect()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.bool() {
            true => mutate::words(bytes, 0, 8, rng),
            false => mutate::plain(bytes, corpus, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        64 << 10
    }

    fn run(&self, input: &[u8]) {
        let Some((head, stack)) = input.split_first_chunk::<16>() else { return };
        let (rip, rbp) = (word(head), word(&head[8..]));
        let mut cache = UnwindCache::default();
        let mut both = AddressSpace::default();
        for (index, image) in (0u32..).zip(images()) {
            let mut space = AddressSpace::default();
            space.add(image.linked_range(), 0, 0, image.clone());
            unwind(&space, &mut cache, rip, rbp, stack);
            let bias = u64::from(index) << 32;
            let range = image.linked_range();
            both.add(range.start.wrapping_add(bias)..range.end.wrapping_add(bias), bias, index, image.clone());
        }
        unwind(&both, &mut cache, rip, rbp, stack);
    }
}

/// The programs of the corpus, read once.
fn images() -> &'static [Arc<Image>] {
    static IMAGES: std::sync::OnceLock<Vec<Arc<Image>>> = std::sync::OnceLock::new();
    IMAGES.get_or_init(|| {
        let parse = |program: &Vec<u8>| Arc::new(Image::parse(program, &KEPT).expect("a valid program"));
        elf::programs().iter().map(parse).collect()
    })
}

/// Maps of symbols in text.
pub struct Maps;

impl Target for Maps {
    fn name(&self) -> &'static str {
        "map"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let mut kallsyms = String::new();
        for index in 0..60u64 {
            let kind = *b"tTwdDBrA".get(index as usize % 8).unwrap_or(&b't') as char;
            kallsyms += &format!("{:016x} {kind} function_{index}\n", 0xffff_ffff_8100_0000 + index * 64);
        }
        kallsyms += "ffffffffc0000000 t nf_init\t[nf_tables]\nffffffffc0000040 t nf_exit\t[nf_tables]\n";
        let sizes = "0000000000201000 0000000000000020 T _start\n0000000000201020 0000000000000010 t _ZN5queue4push17h0123456789abcdefE\n                 U missing\n0000000000203000 D data_word\n";
        let hidden = "0000000000000000 T _text\n0000000000000000 t other\n";
        [kallsyms.as_str(), sizes, hidden].map(|text| text.as_bytes().to_vec()).into()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        mutate::text(bytes, corpus, rng);
    }

    fn run(&self, input: &[u8]) {
        let Ok(map) = SymbolMap::parse(input, &KEPT) else { return };
        let map = Arc::new(map);
        let _ = (map.modules(), map.symbol("_start"), map.functions(&["_start", "function_3"]));
        let symbols = Symbols::of_map(map.clone());
        for address in
            [0, 1, 0x20_1000, 0x20_1025, 0xffff_ffff_8100_0010, 0xffff_ffff_c000_0041, u64::MAX - 1, u64::MAX]
        {
            assert!(map.name(address).is_none_or(|name| !name.is_empty()));
            locate(&symbols, address);
        }
        let image = Arc::new(Image::of_map(&map, 0x20_0000..u64::MAX, None));
        let mut space = AddressSpace::default();
        space.add(image.linked_range(), 0, 0, image);
        unwind(&space, &mut UnwindCache::default(), 0x20_1001, STACK, &[0x20; 512]);
    }
}

/// Linux's own unwind tables: the input is the number of entries, their addresses, the entries, then a stack.
pub struct Orc;

impl Target for Orc {
    fn name(&self) -> &'static str {
        "orc"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        const COUNT: u32 = 24;
        let corpus = [[0u8, 1, 2, 4], [0, 5, 6, 8], [2, 3 | 8, 4 | 8, 1]].map(|kinds| {
            let mut bytes = COUNT.to_le_bytes().to_vec();
            bytes.extend((0..COUNT as i32).flat_map(|index| (index * 16 - index * 4).to_le_bytes()));
            for index in 0..COUNT as usize {
                let register = [5u8, 4 | 1 << 4, 5 | 4 << 4, 8, 9, 6][index % 6];
                bytes.extend([8 + 8 * (index % 4) as u8, 0, 0xf0, 0xff, register, kinds[index % 4]]);
            }
            let word = |index: u64| if index.is_multiple_of(2) { ORC + index % 24 * 16 + 5 } else { STACK + index * 8 };
            bytes.extend((0..64).map(word).flat_map(u64::to_le_bytes));
            bytes
        });
        corpus.into()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..4) {
            0 => mutate::words(bytes, 4 + 4 * 24, 6, rng),
            1 => mutate::words(bytes, 4, 4, rng),
            2 => mutate::words(bytes, 4 + 10 * 24, 8, rng),
            _ => mutate::plain(bytes, corpus, rng),
        }
    }

    fn run(&self, input: &[u8]) {
        let Some((count, rest)) = input.split_first_chunk::<4>() else { return };
        let count = (u32::from_le_bytes(*count) as usize).min(rest.len() / 10);
        let (addresses, rest) = rest.split_at(count * 4);
        let (entries, stack) = rest.split_at(count * 6);
        let Ok(table) = OrcTable::parse(ORC, addresses, entries) else { return };
        let map = SymbolMap::parse(b"0000000000001000 T start_of_it\n", &[]).expect("a valid map");
        let image = Arc::new(Image::of_map(&map, 0x1000..u64::MAX, Some(Arc::new(table))));
        let mut space = AddressSpace::default();
        space.add(image.linked_range(), 0, 0, image);
        for offset in (0..24 * 16).step_by(7) {
            unwind(&space, &mut UnwindCache::default(), ORC + offset, STACK + 64, stack);
        }
    }
}

/// Addresses of the kernel's code and tables.
const ORC: u64 = 0xffff_ffff_8100_0000;
