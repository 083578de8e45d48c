//! The memory of a kernel for tests: physical memory, also where kernels of four levels have it, and the types of its structures.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use glass_tests::btf::Builder;

use super::btf::Btf;
use super::space::Space;
use super::structures::Layout;
use crate::arch::x86_64::paging::Paging;
use crate::memory::Physical;

/// Where physical memory is in the kernel's address space, and once more where it has its descriptions of pages.
pub(super) const DIRECT: u64 = 0xffff_8880_0000_0000;
const DESCRIPTIONS: u64 = 0xffff_ea00_0000_0000;
/// Bytes of memory, without those of the page tables behind them.
pub(super) const BYTES: u64 = 2 << 20;
pub(super) const PAGING: Paging = Paging { cr0: 1 << 31 | 1, cr3: BYTES, cr4: 1 << 5, efer: Some(1 << 10) };

pub(super) struct Memory {
    bytes: Mutex<Vec<u8>>,
    pub(super) reads: AtomicUsize,
    /// After so many reads, the guest writes a word.
    later: Mutex<Option<(usize, u64, u64)>>,
}

impl Physical for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        let later = self.later.lock().unwrap().take_if(|(after, ..)| reads >= *after);
        if let Some((_, address, value)) = later {
            self.set(address, value);
        }
        let bytes = self.bytes.lock().unwrap();
        let found = usize::try_from(address).ok().and_then(|at| bytes.get(at..)?.get(..into.len()));
        found.map(|found| into.copy_from_slice(found)).is_some()
    }
}

impl Memory {
    pub(super) fn new() -> Memory {
        let memory = Memory {
            bytes: Mutex::new(vec![0; BYTES as usize + 0x2000]),
            reads: AtomicUsize::new(0),
            later: Mutex::default(),
        };
        let (tables, gibibyte) = (DIRECT + BYTES, 0x83);
        for start in [DIRECT, DESCRIPTIONS] {
            memory.set(tables + (start >> 39 & 511) * 8, (BYTES + 0x1000) | 3);
        }
        memory.set(tables + 0x1000, gibibyte);
        memory
    }

    /// Writes at an address of the kernel.
    pub(super) fn bytes(&self, address: u64, bytes: &[u8]) {
        let at = (address - DIRECT) as usize;
        self.bytes.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn set(&self, address: u64, word: u64) {
        self.bytes(address, &word.to_le_bytes());
    }

    pub(super) fn words(&self, address: u64, words: &[u64]) {
        self.bytes(address, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
    }

    /// The guest writes a word after so many reads from now on.
    pub(super) fn set_later(&self, reads: usize, address: u64, word: u64) {
        let after = self.reads.load(Ordering::Relaxed) + reads;
        *self.later.lock().unwrap() = Some((after, address, word));
    }

    pub(super) fn space(&self) -> Space<'_> {
        Space::new(self, PAGING)
    }

    /// Words that may mean something, by random numbers, in a range of addresses.
    pub(super) fn fill(&self, range: Range<u64>, random: &[u64]) {
        for (address, random) in range.step_by(8).zip(random.iter().cycle()) {
            let mixed = random.wrapping_mul(address | 1).rotate_left(29) ^ random;
            let place = DIRECT + mixed % 0x8000;
            let word = match mixed >> 59 {
                0..4 => 0,
                // Pointers, nodes of trees with a kind, nodes of arrays, and small numbers.
                4..12 => place & !7,
                12..20 => place & !0xff | (mixed >> 20 & 3) << 3 | 6,
                20..24 => place & !7 | 2,
                24..28 => mixed >> 40 & 0xff,
                28 => u64::MAX,
                _ => mixed,
            };
            self.set(address, word);
        }
    }
}

const WORD: u32 = 2;
/// Of a structure with two of them.
const HALF: u32 = 1;

/// The types of a kernel: those of Linux 6.12 mostly, or with the lists that were before 6.1.
pub(super) fn types(has_lists: bool) -> Vec<u8> {
    let mut types = Builder::new(0);
    types.other("int", 1 << 24, &[4, 32]);
    types.other("long", 1 << 24, &[8, 64]);
    types.other("char", 1 << 24, &[1, 8]);
    let mut number = 3;
    let mut add = |name: &str, bytes: u32, members: &[(&str, u32, u32)]| {
        let members: Vec<_> = members.iter().map(|(name, kind, offset)| (*name, *kind, offset * 8)).collect();
        types.structure(name, bytes, 0, &members);
        number += 1;
        number
    };
    let context = add("mm_context", 8, &[("vdso", WORD, 0)]);
    let path = add("path", 16, &[("mnt", WORD, 0), ("dentry", WORD, 8)]);
    let name = add("qstr", 16, &[("hash", HALF, 0), ("len", HALF, 4), ("name", WORD, 8)]);
    let links = add("hlist_bl_node", 16, &[("next", WORD, 0), ("pprev", WORD, 8)]);
    let outer = add("vfsmount", 16, &[("mnt_root", WORD, 0), ("mnt_sb", WORD, 8)]);
    let array = add("xarray", 16, &[("xa_flags", HALF, 4), ("xa_head", WORD, 8)]);
    let tree = add("maple_tree", 16, &[("ma_root", WORD, 8)]);
    add("maple_range_64", 256, &[("pivot", WORD, 8), ("slot", WORD, 128)]);
    add("maple_arange_64", 256, &[("pivot", WORD, 8), ("slot", WORD, 80)]);
    let head = if has_lists { ("mmap", WORD, 0) } else { ("mm_mt", tree, 0) };
    add("mm_struct", 1000, &[head, ("pgd", WORD, 72), ("exe_file", WORD, 600), ("context", context, 608)]);
    let mut vma = vec![
        ("vm_start", WORD, 0),
        ("vm_end", WORD, 8),
        ("vm_mm", WORD, 16),
        ("vm_flags", WORD, 40),
        ("vm_pgoff", WORD, 48),
        ("vm_file", WORD, 56),
    ];
    vma.extend([("vm_next", WORD, 24), ("vm_prev", WORD, 32)].into_iter().filter(|_| has_lists));
    add("vm_area_struct", 64, &vma);
    let file = [
        ("f_mode", HALF, 8),
        ("f_mapping", WORD, 16),
        ("f_inode", WORD, 32),
        ("f_flags", HALF, 40),
        ("f_path", path, 64),
    ];
    let file = add("file", 96, &file);
    add("backing_file", 112, &[("file", file, 0), ("user_path", path, 96)]);
    let dentry =
        [("d_hash", links, 8), ("d_parent", WORD, 24), ("d_name", name, 32), ("d_inode", WORD, 48), ("d_sb", WORD, 56)];
    add("dentry", 64, &dentry);
    let inode = [
        ("i_sb", WORD, 40),
        ("i_mapping", WORD, 48),
        ("i_ino", WORD, 64),
        ("i_size", WORD, 80),
        ("i_ctime_sec", WORD, 96),
        ("i_ctime_nsec", WORD, 104),
    ];
    add("inode", 112, &inode);
    add("super_block", 64, &[("s_dev", HALF, 16), ("s_type", WORD, 40), ("s_uuid", WORD, 48)]);
    add("file_system_type", 8, &[("name", WORD, 0)]);
    add("mount", 48, &[("mnt_parent", WORD, 16), ("mnt_mountpoint", WORD, 24), ("mnt", outer, 32)]);
    add("address_space", 24, &[("i_pages", array, 8)]);
    add("xa_node", 576, &[("shift", 3, 0), ("slots", WORD, 40)]);
    add("page", 64, &[("flags", WORD, 0)]);
    add("folio", 64, &[("flags", WORD, 0), ("mapping", WORD, 24), ("index", WORD, 32)]);
    add("task_struct", 32, &[("files", WORD, 16)]);
    add("files_struct", 16, &[("fdt", WORD, 8)]);
    add("fdtable", 16, &[("max_fds", HALF, 0), ("fd", WORD, 8)]);
    add("vdso_image", 16, &[("data", WORD, 0), ("size", WORD, 8)]);
    // A structure of this name, for the text.
    let bit = types.strings_bytes() as u32;
    types.structure("PG_uptodate", 0, 0, &[]);
    types.other("pageflags", 6 << 24 | 1, &[4, bit, 3]);
    types.file()
}

/// The offsets that a parser takes from the types.
pub(super) fn offsets<T>(has_lists: bool, of: impl Fn(&dyn Layout) -> Result<T, &'static str>) -> T {
    let types = types(has_lists);
    of(&Btf::parse(&types, None).unwrap()).unwrap()
}
