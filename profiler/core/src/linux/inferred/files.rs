//! Files that processes have mapped: their directory entries, mounts, inodes and file systems.

use std::collections::{HashMap, HashSet};

use super::guest::{Guest, is_text, words_of};
use super::mappings::{Memory, name_of};
use super::{Inferred, Refusal, elected, only};
use crate::linux::structures::pointer;

/// The most files that are looked at.
const FILES_MAX: usize = 256;
/// Words of each structure that are looked at.
const FILE_WORDS: usize = 32;
const DENTRY_WORDS: usize = 24;
const INODE_WORDS: usize = 48;
const FILE_SYSTEM_WORDS: usize = 32;
/// The most steps from one mount to the one that it is mounted on.
const MOUNTS_MAX: usize = 16;
/// The longest name of a file system.
const KIND_BYTES: usize = 24;

/// A file.
pub(super) struct File {
    /// The words of its `struct file`.
    words: Vec<u64>,
    /// Its directory entry.
    entry: u64,
    entry_words: Vec<u64>,
    pub(super) inode: u64,
    pub(super) inode_words: Vec<u64>,
    /// Its `address_space`.
    pub(super) contents: u64,
}

fn at(words: &[u64], at: u64) -> u64 {
    words.get(at as usize / 8).copied().unwrap_or(0)
}

/// The places of words that are something.
fn places(words: &[u64], is_it: impl Fn(u64) -> bool) -> Vec<u32> {
    (0..).step_by(8).zip(words).filter(|(_, word)| is_it(**word)).map(|(at, _)| at).collect()
}

pub(super) fn infer(guest: &Guest<'_>, spaces: &[Memory], found: &mut Inferred) -> Result<Vec<File>, Refusal> {
    let [of_mapping, to_entry] = ["vm_area_struct.vm_file", "file.f_path.dentry"].map(|path| found.at(path));
    let mut seen = HashSet::from([0]);
    let mapped = spaces.iter().flat_map(|space| &space.mappings).map(|mapping| mapping.word(of_mapping));
    let mapped: Vec<u64> = mapped.filter(|file| seen.insert(*file)).take(FILES_MAX).collect();
    let words = words_of(mapped.iter().copied(), FILE_WORDS);
    let read = |file: u64| {
        let words = guest.words(pointer(file, 8)?, words);
        let entry = pointer(at(&words, to_entry), 8)?;
        name_of(guest, entry)?;
        let entry_words = guest.words(entry, DENTRY_WORDS);
        Some(File { words, entry, entry_words, inode: 0, inode_words: Vec::new(), contents: 0 })
    };
    let mut files: Vec<File> = mapped.into_iter().filter_map(read).collect();
    inodes(guest, &mut files, found)?;
    entries(guest, &files, found)?;
    mounts(guest, &files, found)?;
    numbers(guest, &files, found)?;
    Ok(files)
}

/// The inode of a directory entry: its contents lead back to it, and the file has both.
fn inodes(guest: &Guest<'_>, files: &mut [File], found: &mut Inferred) -> Result<(), Refusal> {
    let mut votes = Vec::new();
    for file in files.iter() {
        for (place, word) in (0..).step_by(8).zip(&file.entry_words) {
            let Some(inode) = pointer(*word, 8).filter(|inode| *inode != file.entry) else { continue };
            if !file.words.contains(&inode) {
                continue;
            }
            let of_file = |contents: &u64| file.words.contains(contents);
            let leads_back = |contents: u64| {
                pointer(contents, 8).filter(of_file).and_then(|contents| guest.word(contents)) == Some(inode)
            };
            let words = places(&guest.words(inode, INODE_WORDS / 2), leads_back);
            votes.extend(words.into_iter().map(|contents| (place, contents)));
        }
    }
    let (entry, contents) = elected("dentry.d_inode", files.len() * 8 / 10, votes)?;
    found.add("dentry.d_inode", entry, 8);
    found.add("inode.i_mapping", contents, 8);
    let words = words_of(files.iter().map(|file| at(&file.entry_words, entry.into())), INODE_WORDS);
    for file in files.iter_mut() {
        file.inode = at(&file.entry_words, entry.into());
        file.inode_words = guest.words(file.inode, words);
        file.contents = at(&file.inode_words, contents.into());
    }
    let least = files.len() * 8 / 10;
    let of_files =
        |what: fn(&File) -> u64| files.iter().flat_map(move |file| places(&file.words, |word| word == what(file)));
    found.add("file.f_inode", elected("file.f_inode", least, of_files(|file| file.inode))?, 8);
    found.add("file.f_mapping", elected("file.f_mapping", least, of_files(|file| file.contents))?, 8);
    Ok(())
}

/// The parent of a directory entry, which has a name in the same way, and its place in the table of names: what leads to it is outside of its parent and its
/// inode, which have lists of their own, and mostly it is the last of its row.
fn entries(guest: &Guest<'_>, files: &[File], found: &mut Inferred) -> Result<(), Refusal> {
    let name = found.at("dentry.d_name.name") as u32;
    let least = files.len() / 2;
    let is_parent = |file: &File, word: u64| word != file.entry && name_of(guest, word) == Some(name);
    let votes = files.iter().flat_map(|file| places(&file.entry_words, |word| is_parent(file, word)));
    let parent = elected("dentry.d_parent", least, votes)?;
    found.add("dentry.d_parent", parent, 8);
    let in_table = |file: &File, place: u32| {
        let (next, previous) = (at(&file.entry_words, place.into()), at(&file.entry_words, u64::from(place) + 8));
        let is_in = |start: u64, bytes: u64| previous.wrapping_sub(start) < bytes;
        let is_elsewhere =
            !is_in(at(&file.entry_words, parent.into()), 256) && !is_in(file.inode, 1024) && !is_in(file.entry, 256);
        // The lowest bit of the first of a row is a lock.
        let leads = || Some(guest.word(pointer(previous, 8)?)? & !1 == file.entry.wrapping_add(place.into()));
        next == 0 && is_elsewhere && leads() == Some(true)
    };
    let votes = files.iter().flat_map(|file| {
        (0..DENTRY_WORDS as u32 * 8 - 8).step_by(8).filter(|place| in_table(file, *place)).collect::<Vec<_>>()
    });
    let place = elected("dentry.d_hash", least, votes)?;
    found.add("dentry.d_hash.pprev", place + 8, 8);
    Ok(())
}

/// The mount of a file, in front of its directory entry: the first of all mounts is its own parent, others lead to it.
fn mounts(guest: &Guest<'_>, files: &[File], found: &mut Inferred) -> Result<(), Refusal> {
    let (entry, name) = (found.at("file.f_path.dentry"), found.at("dentry.d_name.name") as u32);
    let is_entry = |address: Option<u64>| address.is_some_and(|address| name_of(guest, address) == Some(name));
    let mut inner: Vec<u64> = files.iter().filter_map(|file| pointer(at(&file.words, entry - 8), 8)).collect();
    inner.sort_unstable();
    inner.dedup();
    // The distances of the structure's start, of its parent and of its place in that, from the part that files point to.
    let all = (8..=64).step_by(8).flat_map(|start: u64| (8..=start).step_by(8).map(move |parent| (start, parent)));
    let leads = |mut mount: u64, (start, parent): (u64, u64)| {
        for _ in 0..MOUNTS_MAX {
            let next = guest.pointer(mount.wrapping_sub(parent))?;
            if !is_entry(guest.pointer(mount)) {
                return None;
            }
            if next == mount - start {
                return Some(());
            }
            mount = next.checked_add(start)?;
        }
        None
    };
    let of_all =
        |distances: &(u64, u64)| !inner.is_empty() && inner.iter().all(|mount| leads(*mount, *distances).is_some());
    let (start, parent) = only("mount.mnt_parent", all.filter(of_all))?;
    let is_place = |distance: &u64| inner.iter().all(|mount| is_entry(guest.pointer(mount - *distance)));
    let place = only("mount.mnt_mountpoint", (8..=start).step_by(8).filter(is_place))?;
    found.add("file.f_path.mnt", entry as u32 - 8, 8);
    found.add("mount.mnt", start as u32, 24);
    found.add("mount.mnt.mnt_root", start as u32, 8);
    found.add("mount.mnt_parent", (start - parent) as u32, 8);
    found.add("mount.mnt_mountpoint", (start - place) as u32, 8);
    Ok(())
}

/// The number of an inode, its length, and its file system, which its mount has too.
fn numbers(guest: &Guest<'_>, files: &[File], found: &mut Inferred) -> Result<(), Refusal> {
    let mount = found.at("file.f_path.mnt");
    let least = files.len() * 8 / 10;
    let votes = files.iter().flat_map(|file| {
        let of_mount = pointer(at(&file.words, mount), 8).map_or(Vec::new(), |mount| guest.words(mount, 4));
        let of_inode = |(inside, word): (u32, &u64)| {
            let word = pointer(*word, 8)?;
            Some(places(&file.inode_words, |own| own == word).into_iter().map(move |place| (place, inside)))
        };
        (0..).step_by(8).zip(&of_mount).filter_map(of_inode).flatten().collect::<Vec<_>>()
    });
    let (file_system, _) = elected("inode.i_sb", least, votes)?;
    found.add("inode.i_sb", file_system, 8);
    let mut all: Vec<u64> =
        files.iter().filter_map(|file| pointer(at(&file.inode_words, file_system.into()), 8)).collect();
    all.sort_unstable();
    all.dedup();
    let all: Vec<Vec<u64>> = all.into_iter().map(|at| guest.words(at, FILE_SYSTEM_WORDS)).collect();
    // The device, how many bits the size of a block has, and that size. Those of layers may have none.
    let is_device = |place: &u64| {
        let of = |words: &&Vec<u64>| {
            let bits = at(words, *place) >> 32 & 0xff;
            at(words, *place) as u32 != 0 && (9..=20).contains(&bits) && at(words, place + 8) == 1 << bits
        };
        all.iter().filter(of).count() * 2 >= all.len()
    };
    let device = only("super_block.s_dev", (0..FILE_SYSTEM_WORDS as u64 * 8).step_by(8).filter(is_device))?;
    found.add("super_block.s_dev", device as u32, 4);
    let is_kind = |place: &u64| {
        all.iter().all(|words| {
            let name =
                pointer(at(words, *place), 8).and_then(|kind| guest.word(kind)).and_then(|name| pointer(name, 1));
            name.and_then(|name| guest.bytes(name, KIND_BYTES)).is_some_and(|name| is_text(&name))
        })
    };
    let kind = only("super_block.s_type", (0..FILE_SYSTEM_WORDS as u64 * 8).step_by(8).filter(is_kind))?;
    found.add("super_block.s_type", kind as u32, 8);
    found.add("file_system_type.name", 0, 8);
    // A number that no other inode of its file system has, names of it, no device, and a length.
    let number_at = |place: &u64| {
        let mut known: HashMap<(u64, u64), u64> = HashMap::new();
        let of = |file: &&File| {
            let [number, links, length] = [0, 8, 16].map(|further| at(&file.inode_words, place + further));
            let own = *known.entry((at(&file.inode_words, file_system.into()), number)).or_insert(file.inode);
            let is_valid = number != 0 && number >> 48 == 0 && links < 1 << 16;
            own == file.inode && is_valid && length != 0 && length >> 48 == 0
        };
        files.iter().filter(of).count() >= least
    };
    let number = only("inode.i_ino", (0..INODE_WORDS as u64 * 8).step_by(8).filter(number_at))?;
    found.add("inode.i_ino", number as u32, 8);
    found.add("inode.i_size", number as u32 + 16, 8);
    Ok(())
}
