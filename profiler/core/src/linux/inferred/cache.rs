//! Pages of files in memory: the arrays that have them, their descriptions, and where those are.

use std::collections::HashSet;

use super::files::File;
use super::guest::{Guest, words_of};
use super::mappings::Memory;
use super::{Inferred, Refusal, elected, only};
use crate::linux::space::Space;
use crate::linux::structures::pointer;

/// The most slots of a node, and how many bits select one: in kernels for small machines they are 16.
const SLOTS: usize = 64;
const SLOT_BITS: [u8; 2] = [6, 4];
/// What a node has behind its slots: three bit maps of them.
const MARKS_BYTES: u32 = 24;
/// Words of an `address_space`, of a node and of a description of a page that are looked at.
const CONTENTS_WORDS: usize = 16;
const NODE_WORDS: usize = 16 + SLOTS;
const NODE_WORDS_MIN: usize = 24;
const PAGE_WORDS: usize = 8;
const PAGE_BYTES: u64 = 4096;
/// The most files whose pages are looked at, and the most mappings.
const FILES_MAX: usize = 64;
const MAPPINGS_MAX: usize = 256;
/// Sizes that the description of a page may have.
const SIZES: [u64; 6] = [56, 64, 72, 80, 96, 128];
/// The least pages and nodes.
const LEAST: usize = 8;

/// A node with pages in its slots, or with other nodes.
struct Node {
    words: Vec<u64>,
    contents: u64,
}

fn node_of(entry: u64) -> Option<u64> {
    if entry & 3 == 2 { pointer(entry - 2, 8) } else { None }
}

pub(super) fn infer(guest: &Guest<'_>, files: &[File], spaces: &[Memory], found: &mut Inferred) -> Result<(), Refusal> {
    let mut seen = HashSet::new();
    let contents: Vec<u64> =
        files.iter().map(|file| file.contents).filter(|at| seen.insert(*at)).take(FILES_MAX).collect();
    // The root has the address of the array.
    let roots = contents.iter().flat_map(|contents| {
        let of = |(at, word): (u32, &u64)| {
            let node = guest.words(node_of(*word)?, NODE_WORDS);
            let array = (0..8_u32).find(|index| {
                let inside =
                    contents.wrapping_add(at.into()).wrapping_sub(node.get(*index as usize).copied().unwrap_or(0));
                inside == 8
            })?;
            Some((at, array))
        };
        (0..).step_by(8).zip(&guest.words(*contents, CONTENTS_WORDS)).filter_map(of).collect::<Vec<_>>()
    });
    let (root, _) = elected("address_space.i_pages", LEAST, roots)?;
    found.add("address_space.i_pages.xa_head", root, 8);
    let at = |contents: &u64| Some((*contents, node_of(guest.word(contents.wrapping_add(root.into()))?)?));
    let nodes: Vec<(u64, u64)> = contents.iter().filter_map(at).collect();
    // Behind a node there may be another one of the same file: no two of those that are known overlap.
    let below = nodes.iter().flat_map(|(_, node)| guest.words(*node, NODE_WORDS)).filter_map(node_of);
    let known = below.chain(nodes.iter().map(|(_, node)| *node));
    let size = words_of(known, NODE_WORDS).max(NODE_WORDS_MIN);
    let read = |(contents, node): (u64, u64)| {
        let words = guest.words(node, size);
        (!words.is_empty()).then_some(Node { words, contents })
    };
    let nodes: Vec<Node> = nodes.into_iter().filter_map(read).collect();
    let pages = pages(guest, &nodes, found)?;
    descriptions(guest, spaces, &pages, found)?;
    times(files, found)
}

/// When an inode was changed last, by which it is known that pages are not another build's by now. Three times follow its length: each its seconds and
/// nanoseconds, or, since Linux 6.11, the seconds of all of them and then the nanoseconds.
fn times(files: &[File], found: &mut Inferred) -> Result<(), Refusal> {
    const WHAT: &str = "inode.i_ctime";
    /// Of a day in 2001, and of a second.
    const EARLIEST: u64 = 1_000_000_000;
    const SECOND_NS: u64 = 1_000_000_000;
    let first = found.at("inode.i_size") as u32 + 8;
    let is_valid = |file: &File, places: &[(u32, u32, u32)]| {
        places.iter().all(|(seconds, nanoseconds, bytes)| {
            let word = |at: u32| file.inode_words.get((first + at) as usize / 8).copied().unwrap_or(0) >> (at % 8 * 8);
            let nanoseconds = if *bytes == 4 { word(*nanoseconds) & u64::from(u32::MAX) } else { word(*nanoseconds) };
            (EARLIEST..EARLIEST << 3).contains(&word(*seconds)) && nanoseconds < SECOND_NS
        })
    };
    let apart = ["inode.i_ctime.tv_sec", "inode.i_ctime.tv_nsec"];
    let together = ["inode.i_ctime_sec", "inode.i_ctime_nsec"];
    let layouts = [(apart, [(0, 8, 8), (16, 24, 8), (32, 40, 8)]), (together, [(0, 24, 4), (8, 28, 4), (16, 32, 4)])];
    let fits = |places: &[(u32, u32, u32)]| {
        files.iter().filter(|file| is_valid(file, places)).count() >= (files.len() * 8 / 10).max(LEAST)
    };
    let (names, [.., (seconds, nanoseconds, bytes)]) =
        only(WHAT, layouts.into_iter().filter(|(_, places)| fits(places)))?;
    found.add(names[0], first + seconds, 8);
    found.add(names[1], first + nanoseconds, bytes);
    Ok(())
}

/// A description of a page: where it is, its file and its number in it.
struct Page {
    at: u64,
    words: Vec<u64>,
    contents: u64,
    index: u64,
}

/// The slots of nodes, and what the description of a page has: its file, and its number there, which is that of its slot.
fn pages(guest: &Guest<'_>, nodes: &[Node], found: &mut Inferred) -> Result<Vec<Page>, Refusal> {
    let mut votes = Vec::new();
    let mut described = Vec::new();
    for node in nodes {
        for (at, entry) in (0_u64..).zip(&node.words) {
            let Some(page) = pointer(*entry, 8) else { continue };
            let words = guest.words(page, PAGE_WORDS);
            for (file, _) in (0..).step_by(8).zip(&words).filter(|(_, word)| **word == node.contents) {
                let numbers = (0..).step_by(8).zip(&words).filter(|(_, word)| **word <= at && **word < SLOTS as u64);
                votes.extend(numbers.map(|(index, word)| (at - word, file, index)));
            }
            if words.contains(&node.contents) {
                described.push(Page { at: page, words, contents: node.contents, index: 0 });
            }
        }
    }
    let (slots, file, index): (u64, u32, u32) = elected("xa_node.slots", LEAST, votes)?;
    found.add("xa_node.slots", slots as u32 * 8, 512);
    found.add("folio.mapping", file, 8);
    found.add("folio.index", index, 8);
    described.retain(|page| page.words.get(file as usize / 8) == Some(&page.contents));
    described.iter_mut().for_each(|page| page.index = page.words.get(index as usize / 8).copied().unwrap_or(0));
    // In a node with pages indexes are not shifted, in one with nodes by as many bits for each level as select a slot.
    let has_nodes =
        |node: &Node| node.words[slots as usize..].iter().take(SLOTS).any(|entry| node_of(*entry).is_some());
    let is_shift = |(at, bits): &(u32, u8)| {
        let byte = |node: &Node| (node.words[*at as usize / 8] >> (at % 8 * 8)) as u8;
        nodes.iter().any(has_nodes)
            && nodes.iter().all(|node| match has_nodes(node) {
                true => byte(node) != 0 && byte(node).is_multiple_of(*bits) && byte(node) <= 60,
                false => byte(node) == 0,
            })
    };
    let mut all = (0..slots as u32 * 8).flat_map(|at| SLOT_BITS.map(|bits| (at, bits)));
    // Twelve is a multiple of both.
    let (shift, bits) = all.find(is_shift).ok_or(Refusal { what: "xa_node.shift", candidates: 0 })?;
    only("xa_node.shift", (0..slots as u32 * 8).filter(|at| is_shift(&(*at, bits))))?;
    found.add("xa_node.shift", shift, 1);
    found.sizes.insert("xa_node", slots as u32 * 8 + (8 << bits) + MARKS_BYTES);
    // Flags that all have; the lowest of them is that the contents are there: those below are of pages that are locked, written back, or were used.
    let common = |at: u32| described.iter().fold(u64::MAX, |all, page| all & page.words[at as usize / 8]);
    let are_flags =
        |at: &u32| common(*at) & 0xffff != 0 && described.iter().all(|page| page.words[*at as usize / 8] >> 56 != 0xff);
    let places = (0..PAGE_WORDS as u32 * 8).step_by(8).filter(|at| *at != file && *at != index);
    let flags = only("folio.flags", places.filter(are_flags))?;
    found.add("folio.flags", flags, 8);
    found.enumerators.insert("pageflags.PG_uptodate", common(flags).trailing_zeros());
    Ok(described)
}

/// Where descriptions of pages are, and how large each is: the page tables of a process lead to the same page as its file does.
fn descriptions(guest: &Guest<'_>, spaces: &[Memory], pages: &[Page], found: &mut Inferred) -> Result<(), Refusal> {
    let [file, page, tables] =
        ["vm_area_struct.vm_file", "vm_area_struct.vm_pgoff", "mm_struct.pgd"].map(|path| found.at(path));
    let contents_at = found.at("file.f_mapping");
    let flags = found.at("vm_area_struct.vm_flags");
    let mut votes = Vec::new();
    for space in spaces {
        let root = space
            .words
            .get(tables as usize / 8)
            .and_then(|tables| guest.space().physical(pointer(*tables, PAGE_BYTES)?));
        let Some(root) = root else { continue };
        let own = Space::new(guest.space().memory(), guest.kernel.paging.of_process(root));
        for mapping in space
            .mappings
            .iter()
            .filter(|mapping| mapping.word(file) != 0 && mapping.word(flags) & 2 == 0)
            .take(MAPPINGS_MAX)
        {
            let contents = guest.word(mapping.word(file).wrapping_add(contents_at)).unwrap_or(0);
            let first = mapping.word(page);
            for described in pages.iter().filter(|page| page.contents == contents) {
                let Some(further) = described.index.checked_sub(first) else { continue };
                let address = mapping.start.wrapping_add(further.wrapping_mul(PAGE_BYTES));
                if address >= mapping.end {
                    continue;
                }
                let Some(physical) = own.physical(address) else { continue };
                let number = physical / PAGE_BYTES;
                votes.extend(SIZES.map(|bytes| (bytes, described.at.wrapping_sub(number * bytes))));
            }
        }
    }
    let (bytes, base) = elected("vmemmap_base", LEAST, votes)?;
    found.sizes.insert("page", bytes as u32);
    found.values.insert("vmemmap_base", base);
    Ok(())
}
