//! The memory of processes: its page tables, its mappings, and which file each is of.

use std::collections::HashSet;

use super::guest::{Guest, is_text, words_of};
use super::tasks::Tasks;
use super::{Inferred, Refusal, elected, only};
use crate::linux::maple;
use crate::linux::structures::pointer;

/// The most processes whose memory is looked at, the newest, and the most mappings of each.
const PROCESSES_MAX: usize = 48;
const MAPPINGS_MAX: usize = 96;
/// Words of a `mm_struct`, a `vm_area_struct`, a `file` and a `dentry` that are looked at.
const MM_WORDS: usize = 256;
const MAPPING_WORDS: usize = 24;
const FILE_WORDS: usize = 32;
const DENTRY_WORDS: usize = 24;
/// The longest name that a `dentry` has within itself.
const SHORT_NAME_MAX: u64 = 40;
const PAGE_BYTES: u64 = 4096;
/// The highest address of a process.
const USER_END: u64 = 1 << 56;
/// The longest ELF file of the vDSO.
const VDSO_BYTES_MAX: u64 = 1 << 20;

/// A mapping: its `vm_area_struct`, and its range by the tree or list that it is in.
pub(super) struct Mapping {
    at: u64,
    words: Vec<u64>,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// The memory of a process.
pub(super) struct Memory {
    mm: u64,
    pub(super) words: Vec<u64>,
    pub(super) mappings: Vec<Mapping>,
}

impl Mapping {
    /// The word at an offset.
    pub(super) fn word(&self, at: u64) -> u64 {
        self.words.get(at as usize / 8).copied().unwrap_or(0)
    }
}

/// Finds the members of mappings and of what has them.
pub(super) fn infer(guest: &Guest<'_>, tasks: &Tasks, found: &mut Inferred) -> Result<Vec<Memory>, Refusal> {
    let mm = found.at("task_struct.mm") as u32;
    let mut seen = HashSet::from([0]);
    let newest = tasks.all.iter().rev().map(|task| task.word(mm)).filter(|mm| seen.insert(*mm)).take(PROCESSES_MAX);
    let newest: Vec<u64> = newest.collect();
    let words = words_of(newest.iter().copied(), MM_WORDS);
    let mut spaces: Vec<Memory> = newest
        .into_iter()
        .map(|mm| Memory { mm, words: guest.words(mm, words), mappings: Vec::new() })
        .filter(|space| !space.words.is_empty())
        .collect();
    tables(guest, &spaces, found)?;
    match tree(guest, &spaces) {
        Ok((root, inside)) => of_trees(guest, &mut spaces, (root, inside), found),
        Err(refusal) => of_lists(guest, &mut spaces, found).map_err(|_| refusal)?,
    }
    let all = spaces.iter().flat_map(|space| space.mappings.iter().map(|mapping| mapping.at));
    let words = words_of(all, MAPPING_WORDS);
    spaces.iter_mut().flat_map(|space| &mut space.mappings).for_each(|mapping| mapping.words.truncate(words));
    members(&spaces, found)?;
    file(guest, &spaces, found)?;
    program_and_vdso(guest, &spaces, found)?;
    Ok(spaces)
}

/// The page tables: a page of which the entries for the kernel are those of the kernel's own.
fn tables(guest: &Guest<'_>, spaces: &[Memory], found: &mut Inferred) -> Result<(), Refusal> {
    const WHAT: &str = "mm_struct.pgd";
    const LAST: u64 = PAGE_BYTES - 8;
    let mut own = [0; 8];
    let root = guest.kernel.paging.x86_64().map_or(0, |paging| paging.cr3 & !(PAGE_BYTES - 1));
    let is_there = guest.space().memory().read(root + LAST, &mut own);
    let own = Some(u64::from_le_bytes(own)).filter(|entry| is_there && *entry != 0);
    let is_table = |word: u64| {
        pointer(word, PAGE_BYTES)
            .and_then(|page| guest.word(page.wrapping_add(LAST)))
            .is_some_and(|entry| own == Some(entry))
    };
    let votes = spaces.iter().flat_map(|space| {
        let words = space.words.iter().zip((0..).step_by(8));
        words.filter(|(word, _)| is_table(**word)).map(|(_, at)| at).collect::<Vec<u32>>()
    });
    found.add(WHAT, elected(WHAT, spaces.len() * 9 / 10, votes)?, 8);
    Ok(())
}

/// Where `mm_struct` has the root of its tree, and the tree that itself: the root has the tree's address.
fn tree(guest: &Guest<'_>, spaces: &[Memory]) -> Result<(u32, u32), Refusal> {
    const NODE_BYTES: u64 = 256;
    let votes = spaces.iter().flat_map(|space| {
        let of = |(at, word): (u32, &u64)| {
            let node = pointer(word & !(NODE_BYTES - 1), NODE_BYTES).filter(|_| word & 3 == 2)?;
            let tree = guest.word(node).filter(|parent| parent & 1 == 1)? & !1;
            let inside = space.mm.wrapping_add(at.into()).wrapping_sub(tree);
            let inside = Some(inside).filter(|inside| *inside < 64 && *inside <= u64::from(at))?;
            Some((at, inside as u32))
        };
        (0..).step_by(8).zip(&space.words).filter_map(of).collect::<Vec<_>>()
    });
    elected("mm_struct.mm_mt", spaces.len() * 9 / 10, votes)
}

fn of_trees(guest: &Guest<'_>, spaces: &mut [Memory], (root, inside): (u32, u32), found: &mut Inferred) {
    found.add("mm_struct.mm_mt", root - inside, 16);
    found.add("maple_tree.ma_root", inside, 8);
    // How a node of each kind is laid out follows from the numbers of its slots, which are the same since there are such trees.
    for (path, at) in [
        ("maple_range_64.pivot", 8),
        ("maple_range_64.slot", 128),
        ("maple_arange_64.pivot", 8),
        ("maple_arange_64.slot", 80),
    ] {
        found.add(path, at, 8);
    }
    let Ok(offsets) = maple::Offsets::of(found) else { return };
    for space in spaces {
        let entries = maple::entries(
            guest.space(),
            space.mm.wrapping_add((root - inside).into()),
            &offsets,
            super::super::mappings::MAPPINGS_MAX,
        );
        let entries = entries.unwrap_or_default().into_iter().take(MAPPINGS_MAX);
        let mapping = |entry: maple::Entry| {
            let words = guest.words(pointer(entry.value, 8)?, MAPPING_WORDS);
            Some(Mapping { at: entry.value, words, start: entry.first, end: entry.last.wrapping_add(1) })
        };
        space.mappings = entries.filter_map(mapping).collect();
    }
}

/// Before Linux 6.1: the first mapping has the range in its first two words and no mapping before it, and each leads to the next.
fn of_lists(guest: &Guest<'_>, spaces: &mut [Memory], found: &mut Inferred) -> Result<(), Refusal> {
    const WHAT: &str = "mm_struct.mmap";
    let is_range = |words: &[u64]| {
        let (start, end) = (words[0], words[1]);
        start < end && end < USER_END && start.is_multiple_of(PAGE_BYTES) && end.is_multiple_of(PAGE_BYTES)
    };
    let read = |at: u64| {
        Some(guest.words(pointer(at, 8)?, MAPPING_WORDS)).filter(|words| !words.is_empty() && is_range(words))
    };
    let votes = spaces.iter().flat_map(|space| {
        let of = |(at, word): (u32, &u64)| {
            let first = read(*word)?;
            let next = |link: usize| {
                let second = read(first[link])?;
                (first[link + 1] == 0 && second[link + 1] == *word && second[0] >= first[1]).then_some(())
            };
            Some((at, (2..8).find(|link| next(*link).is_some())?))
        };
        (0..).step_by(8).zip(&space.words).filter_map(of).collect::<Vec<_>>()
    });
    let (head, link) = elected(WHAT, spaces.len() * 9 / 10, votes)?;
    found.add(WHAT, head, 8);
    found.add("vm_area_struct.vm_next", link as u32 * 8, 8);
    found.add("vm_area_struct.vm_prev", link as u32 * 8 + 8, 8);
    for space in spaces {
        let mut next = space.words.get(head as usize / 8).copied().unwrap_or(0);
        while let Some(words) = read(next).filter(|_| space.mappings.len() < MAPPINGS_MAX) {
            let (at, start, end) = (next, words[0], words[1]);
            next = words[link];
            space.mappings.push(Mapping { at, words, start, end });
        }
    }
    Ok(())
}

/// Range, owner and flags of mappings.
fn members(spaces: &[Memory], found: &mut Inferred) -> Result<(), Refusal> {
    let all = || spaces.iter().flat_map(|space| space.mappings.iter().map(move |mapping| (space, mapping)));
    let least = all().count() * 9 / 10;
    let places = |is_it: &dyn Fn(&Memory, &Mapping, u64) -> bool| -> Vec<u32> {
        let of = |(space, mapping): (&Memory, &Mapping)| {
            let words = (0..).step_by(8).zip(&mapping.words);
            words.filter(|(_, word)| is_it(space, mapping, **word)).map(|(at, _)| at).collect::<Vec<u32>>()
        };
        all().flat_map(of).collect()
    };
    for (path, is_it) in [
        (
            "vm_area_struct.vm_start",
            &(|_: &Memory, mapping: &Mapping, word| word == mapping.start) as &dyn Fn(&Memory, &Mapping, u64) -> bool,
        ),
        ("vm_area_struct.vm_end", &|_, mapping, word| word == mapping.end),
        ("vm_area_struct.vm_mm", &|space, _, word| word == space.mm),
    ] {
        found.add(path, elected(path, least, places(is_it))?, 8);
    }
    // What is permitted now may be permitted, some is code that cannot be written, and some is data.
    let (write, execute) = (2, 4);
    let may_be = |word: u64| word != 0 && word >> 48 == 0 && word & 7 & !(word >> 4) == 0;
    let are_flags = |at: &u64| {
        let word = |mapping: &Mapping| mapping.word(*at);
        let has = |bits: u64| all().any(|(_, mapping)| word(mapping) & (write | execute) == bits);
        let rights = all().filter(|(_, mapping)| may_be(word(mapping)) && word(mapping) & 0x70 != 0).count();
        rights > least && has(write) && has(execute) && has(0)
    };
    let flags = only("vm_area_struct.vm_flags", (0..MAPPING_WORDS as u64 * 8).step_by(8).filter(are_flags))?;
    found.add("vm_area_struct.vm_flags", flags as u32, 8);
    Ok(())
}

/// A file of a mapping, its directory entry with the name in itself, and which page of the file a mapping begins with.
fn file(guest: &Guest<'_>, spaces: &[Memory], found: &mut Inferred) -> Result<(), Refusal> {
    const WHAT: &str = "vm_area_struct.vm_file";
    let mut votes = Vec::new();
    let mut known: std::collections::HashMap<u64, Vec<(u32, u32)>> = std::collections::HashMap::new();
    for mapping in spaces.iter().flat_map(|space| &space.mappings) {
        for (at, word) in (0..).step_by(8).zip(&mapping.words).skip(3) {
            let Some(file) = pointer(*word, 8) else { continue };
            let places = known.entry(file).or_insert_with(|| {
                // The mount is in front of the directory entry.
                let words = (0..).step_by(8).zip(guest.words(file, FILE_WORDS)).skip(1);
                words.filter_map(|(at, word)| Some((at, name_of(guest, word)?))).collect()
            });
            votes.extend(places.iter().map(|(entry, name)| (at, *entry, *name)));
        }
    }
    let least = spaces.len() * 2;
    let (at, entry, name) = elected(WHAT, least, votes)?;
    found.add(WHAT, at, 8);
    found.add("file.f_path.dentry", entry, 8);
    found.add("dentry.d_name.name", name, 8);
    found.add("dentry.d_name.len", name - 4, 4);
    // Of two mappings of a file, one behind the other, the second begins with the page behind the first.
    let pairs = spaces.iter().flat_map(|space| space.mappings.windows(2));
    let follows = |pair: &&[Mapping]| {
        let same = pair[0].word(at.into()) == pair[1].word(at.into()) && pair[0].word(at.into()) != 0;
        same && pair[0].end == pair[1].start
    };
    let votes = pairs.filter(follows).flat_map(|pair| {
        let pages = pair[0].end.wrapping_sub(pair[0].start) / PAGE_BYTES;
        let places = (0..).step_by(8).take(MAPPING_WORDS);
        places
            .filter(move |at| pair[1].word(u64::from(*at)).wrapping_sub(pair[0].word(u64::from(*at))) == pages)
            .collect::<Vec<u32>>()
    });
    found.add("vm_area_struct.vm_pgoff", elected("vm_area_struct.vm_pgoff", spaces.len(), votes)?, 8);
    Ok(())
}

/// Where a directory entry has the pointer to its name, if one is at an address: the name is in itself, and its length in front of the pointer.
pub(super) fn name_of(guest: &Guest<'_>, entry: u64) -> Option<u32> {
    let entry = pointer(entry, 8)?;
    let bytes = guest.bytes(entry, DENTRY_WORDS * 8)?;
    (8..).step_by(8).zip(bytes.as_chunks::<8>().0.iter().skip(1)).find_map(|(at, word)| {
        let name = u64::from_le_bytes(*word).checked_sub(entry).filter(|name| (16..128).contains(name))? as usize;
        let length = bytes.get(at as usize - 4..)?.first_chunk().map(|word| u32::from_le_bytes(*word))?;
        let text = bytes.get(name..name + length as usize + 1).filter(|_| u64::from(length) < SHORT_NAME_MAX)?;
        (is_text(text) && !text[..length as usize].contains(&0)).then_some(at)
    })
}

/// The program of a process, which is the file of one of its mappings, and where its vDSO is: code of no file. The description of that follows it.
fn program_and_vdso(guest: &Guest<'_>, spaces: &[Memory], found: &mut Inferred) -> Result<(), Refusal> {
    let (file, flags) = (found.at("vm_area_struct.vm_file"), found.at("vm_area_struct.vm_flags"));
    // What a word is, and the one behind it.
    let places = |is_it: &dyn Fn(&Memory, u64, u64) -> bool| -> Vec<u32> {
        let of = |space: &Memory| {
            let words = (0..).step_by(8).zip(space.words.windows(2));
            words
                .filter(|(_, pair)| pair[0] != 0 && is_it(space, pair[0], pair[1]))
                .map(|(at, _)| at)
                .collect::<Vec<u32>>()
        };
        spaces.iter().flat_map(of).collect()
    };
    let most = spaces.len() * 8 / 10;
    let is_program = |space: &Memory, word, _| space.mappings.iter().any(|mapping| mapping.word(file) == word);
    found.add("mm_struct.exe_file", elected("mm_struct.exe_file", most, places(&is_program))?, 8);
    let is_vdso = |space: &Memory, word, next| {
        let mut at = space.mappings.iter().filter(|mapping| mapping.start == word);
        guest.image.contains(&next) && at.any(|mapping| mapping.word(file) == 0 && mapping.word(flags) & 7 == 5)
    };
    let vdso = elected("mm_struct.context.vdso", most, places(&is_vdso))?;
    found.add("mm_struct.context.vdso", vdso, 8);
    let described = spaces.iter().filter_map(|space| space.words.get(vdso as usize / 8 + 1).copied());
    let image = elected("vdso_image_64", most, described.filter(|image| guest.image.contains(image)))?;
    let is_elf = guest.pointer(image).and_then(|file| guest.half(file)) == Some(u32::from_le_bytes(*b"\x7fELF"));
    let is_size = guest.word(image + 8).is_some_and(|bytes| bytes.is_multiple_of(PAGE_BYTES) && bytes < VDSO_BYTES_MAX);
    if !is_elf || !is_size {
        return Err(Refusal { what: "vdso_image.data", candidates: 0 });
    }
    found.addresses.insert("vdso_image_64", image);
    found.add("vdso_image.data", 0, 8);
    found.add("vdso_image.size", 8, 8);
    Ok(())
}
