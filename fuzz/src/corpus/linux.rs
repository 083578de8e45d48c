//! The memory of a small Linux: its symbols, its types, a process with two threads, mappings and a file, a module.

use std::sync::OnceLock;

/// The kernel's first address; its image is at the physical address 0.
const TEXT: u64 = 0xffff_ffff_8100_0000;
/// Where the kernel has all memory.
const DIRECT: u64 = 0xffff_8880_0000_0000;
const BYTES: usize = 0x6_0000;

// Physical addresses.
const TABLES: u64 = 0x1000;
const BANNER: u64 = 0x5000;
const INIT_TASK: u64 = 0x6000;
const PROCESS: u64 = 0x6400;
const THREAD: u64 = 0x6800;
const SIGNALS: u64 = 0x7000;
const PID: u64 = 0x7400;
const CGROUPS: u64 = 0x7800;
const TEXTS: u64 = 0x7c00;
const PER_CPU: u64 = 0x7d00;
const CURRENT: u64 = 0x7d80;
const CPUS: u64 = 0x7dc0;
const MODULES: u64 = 0x7e00;
const MODULE: u64 = 0x8000;
const BASES: u64 = 0x8700;
const VDSO: u64 = 0x8710;
const MM: u64 = 0x9000;
const NODE: u64 = 0x9100;
const MAPPINGS: u64 = 0x9200;
const FILE: u64 = 0x9400;
const DENTRIES: u64 = 0x9500;
const INODE: u64 = 0x9700;
const MOUNT: u64 = 0x9a00;
const CONTENTS: u64 = 0x9b00;
const PAGES: u64 = 0x9c00;
/// A page of the file, and its description: those are 64 bytes each, from [`DESCRIPTIONS`] on.
const PAGE: u64 = 0x2_0000;
const DESCRIPTIONS: u64 = 0xffff_ea00_0000_0000;
const TYPES: u64 = 0x2_2000;
const SYMBOLS: u64 = 0x3_0000;
/// Symbols without a meaning: there are 16 markers at least, each of 256 names.
const OTHERS: u64 = 4200;

/// The orders of the kernel's tables of symbols.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Up to 6.4.
    Old,
    /// 6.5 on.
    New,
    /// 7.x.
    Relative,
}

struct Memory(Vec<u8>);

impl Memory {
    fn bytes(&mut self, at: u64, bytes: &[u8]) {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn words(&mut self, at: u64, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.bytes(at + 8 * index as u64, &word.to_le_bytes());
        }
    }

    fn halves(&mut self, at: u64, halves: &[u32]) {
        for (index, half) in halves.iter().enumerate() {
            self.bytes(at + 4 * index as u64, &half.to_le_bytes());
        }
    }
}

/// Memories, one for each order of the tables of symbols. Each starts at the physical address 0.
pub fn memories() -> &'static [Vec<u8>] {
    static MEMORIES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    MEMORIES.get_or_init(|| [Order::Old, Order::New, Order::Relative].map(memory).to_vec())
}

/// Addresses in the kernel of what is not found by a list: an `mm_struct` and a `struct file`.
pub const KNOWN: [u64; 2] = [DIRECT + MM, DIRECT + FILE];

fn memory(order: Order) -> Vec<u8> {
    let mut memory = Memory(vec![0; BYTES]);
    // The image in pages of 2 MiB; all memory, and the descriptions of its pages, in one of 1 GiB.
    let next = |index: u64| TABLES + 0x1000 * index + 3;
    memory.words(TABLES + 511 * 8, &[next(1)]);
    memory.words(TABLES + 0x1000 + 510 * 8, &[next(2)]);
    memory.words(TABLES + 0x2000 + 8 * 8, &[0x83]);
    for start in [DIRECT, DESCRIPTIONS] {
        memory.words(TABLES + (start >> 39 & 511) * 8, &[next(3)]);
    }
    memory.words(TABLES + 0x3000, &[0x83]);
    memory.bytes(BANNER, b"Linux version 6.12.0-small (builder) #1\n\0");
    let types = types();
    memory.bytes(TYPES, &types);
    tasks(&mut memory);
    module(&mut memory);
    process(&mut memory);
    symbols(&mut memory, types.len() as u64, order);
    memory.0
}

/// A ring of nodes, each of two words.
fn ring(memory: &mut Memory, nodes: &[u64]) {
    for (index, node) in nodes.iter().enumerate() {
        let (next, before) = (nodes[(index + 1) % nodes.len()], nodes[(index + nodes.len() - 1) % nodes.len()]);
        memory.words(node & 0xff_ffff, &[next, before]);
    }
}

fn tasks(memory: &mut Memory) {
    let ring_of = |offset: u64| [TEXT + INIT_TASK + offset, DIRECT + PROCESS + offset];
    ring(memory, &ring_of(0x10));
    ring(memory, &[DIRECT + SIGNALS + 0x10, TEXT + INIT_TASK + 0x20]);
    ring(memory, &[DIRECT + SIGNALS + 0x110, DIRECT + PROCESS + 0x20, DIRECT + THREAD + 0x20]);
    let all = [(INIT_TASK, 0, 0, "swapper/0"), (PROCESS, 7, 7, "service"), (THREAD, 8, 7, "worker")];
    for (index, (at, tid, pid, name)) in all.into_iter().enumerate() {
        let signal = DIRECT + SIGNALS + if pid == 0 { 0 } else { 0x100 };
        memory.words(at + 0x30, &[signal]);
        memory.halves(at + 0x38, &[tid, pid]);
        memory.bytes(at + 0x40, name.as_bytes());
        let mm = if pid == 0 { 0 } else { DIRECT + MM };
        let leader = DIRECT + if pid == 0 { INIT_TASK } else { PROCESS };
        memory.words(at + 0x50, &[mm, DIRECT + 0x1_0000, 1000 * index as u64, DIRECT + 0x1_3f00]);
        memory.words(at + 0x70, &[TEXT + INIT_TASK, leader]);
        memory.halves(at + 0x80, &[1, 0, u32::from(pid == 0), 0]);
        memory.words(at + 0x90, &[123_456, 5, 6, DIRECT + PID, DIRECT + CGROUPS]);
    }
    memory.halves(PID, &[1]);
    memory.halves(PID + 0x10, &[7]);
    memory.halves(PID + 0x20, &[1]);
    // A set, a group, its node and the outermost one.
    memory.words(CGROUPS, &[DIRECT + CGROUPS + 0x100]);
    memory.words(CGROUPS + 0x100, &[DIRECT + CGROUPS + 0x200]);
    memory.words(CGROUPS + 0x200, &[DIRECT + TEXTS, DIRECT + CGROUPS + 0x300]);
    memory.words(CGROUPS + 0x300, &[DIRECT + TEXTS + 0x10, 0]);
    memory.bytes(TEXTS, b"lab\0");
    memory.words(PER_CPU, &[0, 0]);
    memory.words(CURRENT, &[DIRECT + PROCESS]);
    memory.halves(CPUS, &[2]);
    memory.words(BASES, &[DIRECT, DESCRIPTIONS]);
}

fn module(memory: &mut Memory) {
    ring(memory, &[TEXT + MODULES, DIRECT + MODULE + 8]);
    memory.bytes(MODULE + 0x18, b"dummy");
    memory.words(MODULE + 0x60, &[0xffff_ffff_a000_0000, 0x1000]);
    memory.words(MODULE + 0xa0, &[DIRECT + MODULE + 0x200]);
    memory.words(MODULE + 0xa8, &[2, DIRECT + MODULE + 0x500, DIRECT + MODULE + 0x600]);
    memory.words(MODULE + 0x200, &[DIRECT + MODULE + 0x300, 2, DIRECT + MODULE + 0x400]);
    // An Elf64_Sym: its name, its section, its address.
    memory.halves(MODULE + 0x318, &[1, 1 << 16]);
    memory.words(MODULE + 0x320, &[0xffff_ffff_a000_0010, 16]);
    memory.bytes(MODULE + 0x400, b"\0dummy_init\0");
    memory.halves(MODULE + 0x500, &[0x1000, 0x1010]);
    memory.bytes(MODULE + 0x600, &[8, 0, 0, 0, 0x25, 0, 8, 0, 0, 0, 0x25, 0]);
    memory.words(VDSO, &[DIRECT + MODULE + 0x800, 0x200]);
    memory.bytes(MODULE + 0x800, b"\x7fELF");
}

fn process(memory: &mut Memory) {
    memory.words(MM + 8, &[DIRECT + NODE + 2 + (1 << 3)]);
    memory.words(MM + 72, &[TEXT + TABLES, DIRECT + FILE, 0x7fff_0000]);
    // A leaf: no mapping up to the first, two mappings, none behind.
    let ends = [0x3f_ffff, 0x40_1fff, 0x40_3fff, u64::MAX];
    memory.words(NODE, &[DIRECT + MM + 1]);
    memory.words(NODE + 8, &ends);
    memory.words(NODE + 128, &[0, DIRECT + MAPPINGS, DIRECT + MAPPINGS + 0x100, 0]);
    for (index, start) in [0x40_0000, 0x40_2000].into_iter().enumerate() {
        let at = MAPPINGS + 0x100 * index as u64;
        memory.words(at, &[start, start + 0x2000, DIRECT + MM, 0, 0, 0x75, 0, DIRECT + FILE]);
    }
    memory.words(FILE + 16, &[DIRECT + CONTENTS]);
    memory.words(FILE + 32, &[DIRECT + INODE]);
    memory.words(FILE + 64, &[DIRECT + MOUNT + 32, DIRECT + DENTRIES]);
    // The file's name, and the root.
    for (at, name, bytes) in [(DENTRIES, TEXTS + 0x20, 7), (DENTRIES + 0x100, TEXTS + 0x40, 1)] {
        memory.words(at + 8, &[0, DIRECT + DENTRIES, DIRECT + DENTRIES + 0x100]);
        memory.halves(at + 32, &[0, bytes]);
        memory.words(at + 40, &[DIRECT + name, DIRECT + INODE]);
    }
    memory.bytes(TEXTS + 0x20, b"service\0");
    memory.bytes(TEXTS + 0x40, b"/\0");
    memory.words(MOUNT + 16, &[DIRECT + MOUNT, DIRECT + DENTRIES + 0x100, DIRECT + DENTRIES + 0x100]);
    memory.words(INODE + 40, &[DIRECT + INODE + 0x100, DIRECT + CONTENTS, 0, 42, 0, 0x3000]);
    memory.halves(INODE + 0x110, &[254 << 20 | 16]);
    memory.words(INODE + 0x128, &[DIRECT + INODE + 0x200]);
    memory.words(INODE + 0x200, &[DIRECT + TEXTS + 0x60]);
    memory.bytes(TEXTS + 0x60, b"ext4\0");
    // A node with the page 1 of the file.
    memory.words(CONTENTS + 16, &[DIRECT + PAGES + 2]);
    let description = PAGE / 4096 * 64;
    memory.words(PAGES + 48, &[DESCRIPTIONS + description]);
    memory.words(description, &[1 << 3]);
    memory.words(description + 24, &[DIRECT + CONTENTS, 1]);
    memory.bytes(PAGE, b"\x7fELF");
}

/// The types of the structures above.
fn types() -> Vec<u8> {
    const HALF: u32 = 1;
    const WORD: u32 = 2;
    const CHAR: u32 = 3;
    let mut types = Types::default();
    types.other("int", 1 << 24, &[4, 32]);
    types.other("long", 1 << 24, &[8, 64]);
    types.other("char", 1 << 24, &[1, 8]);
    let mut number = 3;
    let mut add = |name: &str, bytes: u32, members: &[(&str, u32, u32)]| {
        types.structure(name, bytes, members);
        number += 1;
        number
    };
    let thread = add("thread_struct", 8, &[("sp", WORD, 0)]);
    let entity = add("sched_entity", 8, &[("sum_exec_runtime", WORD, 0)]);
    let task = [
        ("tasks", WORD, 0x10),
        ("thread_node", WORD, 0x20),
        ("signal", WORD, 0x30),
        ("pid", HALF, 0x38),
        ("tgid", HALF, 0x3c),
        ("comm", WORD, 0x40),
        ("mm", WORD, 0x50),
        ("stack", WORD, 0x58),
        ("start_time", WORD, 0x60),
        ("thread", thread, 0x68),
        ("real_parent", WORD, 0x70),
        ("group_leader", WORD, 0x78),
        ("__state", HALF, 0x80),
        ("exit_state", HALF, 0x84),
        ("on_cpu", HALF, 0x88),
        ("flags", HALF, 0x8c),
        ("se", entity, 0x90),
        ("nvcsw", WORD, 0x98),
        ("nivcsw", WORD, 0xa0),
        ("thread_pid", WORD, 0xa8),
        ("cgroups", WORD, 0xb0),
    ];
    add("task_struct", 0x100, &task);
    add("signal_struct", 0x20, &[("thread_head", WORD, 0x10)]);
    add("pid", 0x40, &[("level", HALF, 0), ("numbers", WORD, 0x10)]);
    add("upid", 16, &[("nr", HALF, 0)]);
    add("css_set", 8, &[("dfl_cgrp", WORD, 0)]);
    add("cgroup", 8, &[("kn", WORD, 0)]);
    add("kernfs_node", 16, &[("name", WORD, 0), ("__parent", WORD, 8)]);
    let arch =
        add("mod_arch_specific", 24, &[("num_orcs", HALF, 0), ("orc_unwind_ip", WORD, 8), ("orc_unwind", WORD, 16)]);
    let module =
        [("list", WORD, 8), ("name", WORD, 0x18), ("mem", WORD, 0x60), ("kallsyms", WORD, 0xa0), ("arch", arch, 0xa8)];
    add("module", 0x200, &module);
    add("module_memory", 16, &[("base", WORD, 0), ("size", HALF, 8)]);
    add("mod_kallsyms", 24, &[("symtab", WORD, 0), ("num_symtab", HALF, 8), ("strtab", WORD, 16)]);
    let context = add("mm_context", 8, &[("vdso", WORD, 0)]);
    let path = add("path", 16, &[("mnt", WORD, 0), ("dentry", WORD, 8)]);
    let name = add("qstr", 16, &[("len", HALF, 4), ("name", WORD, 8)]);
    let links = add("hlist_bl_node", 16, &[("pprev", WORD, 8)]);
    let outer = add("vfsmount", 16, &[("mnt_root", WORD, 0)]);
    let array = add("xarray", 16, &[("xa_head", WORD, 8)]);
    let tree = add("maple_tree", 16, &[("ma_root", WORD, 8)]);
    add("maple_range_64", 256, &[("pivot", WORD, 8), ("slot", WORD, 128)]);
    add("maple_arange_64", 256, &[("pivot", WORD, 8), ("slot", WORD, 80)]);
    add("mm_struct", 96, &[("mm_mt", tree, 0), ("pgd", WORD, 72), ("exe_file", WORD, 80), ("context", context, 88)]);
    let mapping = [
        ("vm_start", WORD, 0),
        ("vm_end", WORD, 8),
        ("vm_mm", WORD, 16),
        ("vm_flags", WORD, 40),
        ("vm_pgoff", WORD, 48),
        ("vm_file", WORD, 56),
    ];
    add("vm_area_struct", 64, &mapping);
    let file = [("f_mode", HALF, 8), ("f_mapping", WORD, 16), ("f_inode", WORD, 32), ("f_path", path, 64)];
    let file = add("file", 96, &file);
    add("backing_file", 112, &[("file", file, 0), ("user_path", path, 96)]);
    let dentry = [("d_hash", links, 8), ("d_parent", WORD, 24), ("d_name", name, 32), ("d_inode", WORD, 48)];
    add("dentry", 64, &dentry);
    add("inode", 96, &[("i_sb", WORD, 40), ("i_mapping", WORD, 48), ("i_ino", WORD, 64), ("i_size", WORD, 80)]);
    add("super_block", 48, &[("s_dev", HALF, 16), ("s_type", WORD, 40)]);
    add("file_system_type", 8, &[("name", WORD, 0)]);
    add("mount", 48, &[("mnt_parent", WORD, 16), ("mnt_mountpoint", WORD, 24), ("mnt", outer, 32)]);
    add("address_space", 24, &[("i_pages", array, 8)]);
    add("xa_node", 576, &[("shift", CHAR, 0), ("slots", WORD, 40)]);
    add("page", 64, &[("flags", WORD, 0)]);
    add("folio", 64, &[("flags", WORD, 0), ("mapping", WORD, 24), ("index", WORD, 32)]);
    add("vdso_image", 16, &[("data", WORD, 0), ("size", WORD, 8)]);
    let bit = types.text("PG_uptodate");
    types.other("pageflags", 6 << 24 | 1, &[4, bit, 3]);
    types.file()
}

/// Builds a description of types (BTF).
struct Types {
    types: Vec<u32>,
    texts: Vec<u8>,
}

impl Default for Types {
    fn default() -> Types {
        Types { types: Vec::new(), texts: vec![0] }
    }
}

impl Types {
    fn text(&mut self, text: &str) -> u32 {
        let at = self.texts.len() as u32;
        self.texts.extend([text.as_bytes(), b"\0"].concat());
        at
    }

    fn other(&mut self, name: &str, info: u32, rest: &[u32]) {
        let name = self.text(name);
        self.types.extend([name, info]);
        self.types.extend(rest);
    }

    fn structure(&mut self, name: &str, bytes: u32, members: &[(&str, u32, u32)]) {
        self.other(name, 4 << 24 | members.len() as u32, &[bytes]);
        for (name, kind, offset) in members {
            let name = self.text(name);
            self.types.extend([name, *kind, offset * 8]);
        }
    }

    fn file(&self) -> Vec<u8> {
        let (types, texts) = (4 * self.types.len() as u32, self.texts.len() as u32);
        let head = [0x0001_eb9f, 24, 0, types, types, texts];
        let words = head.iter().chain(&self.types).flat_map(|word| word.to_le_bytes());
        words.chain(self.texts.iter().copied()).collect()
    }
}

/// The tables of the symbols.
fn symbols(memory: &mut Memory, types_bytes: u64, order: Order) {
    let mut symbols: Vec<(u64, String)> = [
        (0, "T_text"),
        (TABLES, "Dinit_top_pgt"),
        (BANNER, "Dlinux_banner"),
        (INIT_TASK, "Dinit_task"),
        (PER_CPU, "D__per_cpu_offset"),
        (CURRENT, "Dcurrent_task"),
        (CPUS, "Dnr_cpu_ids"),
        (MODULES, "Dmodules"),
        (BASES, "Dpage_offset_base"),
        (BASES + 8, "Dvmemmap_base"),
        (VDSO, "Dvdso_image_64"),
        (TYPES, "D__start_BTF"),
        (TYPES + types_bytes, "D__stop_BTF"),
    ]
    .map(|(at, name)| (at, name.to_owned()))
    .to_vec();
    symbols.extend((0..OTHERS).map(|index| (SYMBOLS + 4 * index, format!("tf{index}"))));
    let count = symbols.len() as u32;
    let (mut names, mut markers) = (Vec::new(), Vec::new());
    for (index, (_, name)) in symbols.iter().enumerate() {
        if index % 256 == 0 {
            markers.push(names.len() as u32);
        }
        // Each character is a token of its own.
        names.push(name.len() as u8);
        names.extend(name.bytes());
    }
    let (mut tokens, mut index) = (Vec::new(), Vec::new());
    for token in 0..=255u8 {
        index.extend((tokens.len() as u16).to_le_bytes());
        tokens.extend(Some(token).filter(u8::is_ascii_graphic));
        tokens.push(0);
    }
    let from_base: Vec<u32> = symbols.iter().map(|(at, _)| !(*at as u32)).collect();
    // Zeros in front would be taken for offsets, which are sorted.
    let others: Vec<u64> = (0..0x1000u64).map(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    memory.words(SYMBOLS - 8 * others.len() as u64, &others);
    let mut at = SYMBOLS;
    if order == Order::Old {
        memory.halves(at, &from_base);
        at = (at + 4 * u64::from(count)).next_multiple_of(8);
        memory.words(at, &[TEXT]);
        at += 8;
    }
    memory.halves(at, &[count]);
    // With four bytes more in the old order.
    at += if order == Order::Old { 8 } else { 4 };
    memory.bytes(at, &names);
    at = (at + names.len() as u64).next_multiple_of(8);
    memory.halves(at, &markers);
    at = (at + 4 * markers.len() as u64).next_multiple_of(8);
    memory.bytes(at, &tokens);
    at = (at + tokens.len() as u64).next_multiple_of(8);
    memory.bytes(at, &index);
    at += index.len() as u64;
    match order {
        Order::Old => {}
        Order::New => {
            at = at.next_multiple_of(8);
            memory.halves(at, &from_base);
            memory.words((at + 4 * u64::from(count)).next_multiple_of(8), &[TEXT]);
        }
        Order::Relative => {
            let places = (0u64..).map(|index| at + 4 * index);
            let relative: Vec<u32> =
                symbols.iter().zip(places).map(|((to, _), from)| to.wrapping_sub(from) as u32).collect();
            memory.halves(at, &relative);
        }
    }
}
