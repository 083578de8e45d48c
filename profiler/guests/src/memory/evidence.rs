//! Whether memory is where it is supposed to be: by what a guest's page tables and stacks lead to.
//!
//! A page table that an entry of another one names looks like one, and the stack of a vCPU has return addresses. Other memory, and memory at
//! another place, has neither. The guest runs meanwhile and writes what it likes, so a few contradictions are nothing, and each walk has a
//! bound; a guest that builds tables to mislead has its own stacks cut short.

use std::collections::{HashSet, VecDeque};

use super::{Physical, Translator};
use glass_profiler_core::arch::x86_64::paging::Paging;

/// What a vCPU used when it was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InUse {
    /// What selects its address space.
    pub(crate) paging: Paging,
    /// Its stack pointer.
    pub(crate) stack_pointer: u64,
}

/// The most tables that are read in memory that is certain, and then in a proposed layout.
const TABLES_MAX: usize = 2048;
const ANSWERS_MAX: usize = 64;
/// The most tables in doubtful memory that are looked for.
const QUESTIONS_MAX: usize = 64;
/// Bytes of a stack that are read, and the return addresses in it that count.
const STACK_BYTES: usize = 1024;
const RETURNS_MAX: u32 = 8;
/// So many signs for a layout outweigh one against it.
const WEIGHT: u32 = 4;

const PAGE_BYTES: usize = 4096;
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// In a large page's entry this bit is an attribute, not one of the address (Intel SDM volume 3, table 4-18).
const LARGE_ATTRIBUTE: u64 = 1 << 12;
/// No machine has RAM or devices from here on.
const ADDRESS_END: u64 = 1 << 46;

/// A page table: its address, and its level from 0, whose entries are pages.
pub(super) type Table = (u64, u32);

/// Signs that a layout is right, and that it is wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) good: u32,
    pub(super) bad: u32,
}

impl Evidence {
    /// How good it is; `None` if it is not enough.
    pub(super) fn score(self) -> Option<u32> {
        self.good.checked_sub(self.bad.saturating_mul(WEIGHT)).filter(|score| *score > 0)
    }
}

fn root(paging: &Paging) -> Option<Table> {
    const CR0_PAGING: u64 = 1 << 31;
    const CR4_PHYSICAL_EXTENSION: u64 = 1 << 5;
    const CR4_FIVE_LEVELS: u64 = 1 << 12;
    const EFER_LONG_MODE_ACTIVE: u64 = 1 << 10;
    let is_long = paging.cr0 & CR0_PAGING != 0
        && paging.cr4 & CR4_PHYSICAL_EXTENSION != 0
        && paging.efer.is_none_or(|efer| efer & EFER_LONG_MODE_ACTIVE != 0);
    is_long.then_some((paging.cr3 & ADDRESS, if paging.cr4 & CR4_FIVE_LEVELS != 0 { 4 } else { 3 }))
}

/// The tables that a page has if it is a table of this level. `None` if it is none: most of its words are no entries, or it is empty.
fn tables_in(page: &[u8; PAGE_BYTES], level: u32) -> Option<Vec<Table>> {
    let (mut next, mut present, mut others) = (Vec::new(), 0, 0);
    for entry in page.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)) {
        if entry & PRESENT == 0 {
            // Where a page is in swap, for example.
            others += u32::from(entry != 0);
            continue;
        }
        present += 1;
        let (address, is_large) = (entry & ADDRESS, level > 0 && entry & LARGE != 0);
        let unused = ((1u64 << (12 + 9 * level)) - 1) & !LARGE_ATTRIBUTE;
        if address >= ADDRESS_END || (is_large && (level > 2 || address & unused != 0)) {
            return None;
        }
        if level > 0 && !is_large {
            next.push((address, level - 1));
        }
    }
    (present > others).then_some(next)
}

/// Follows tables; `visit` gets each with whether it is one, if it can be read.
fn follow(memory: &impl Physical, start: Vec<Table>, tables_max: usize, mut visit: impl FnMut(Table, Option<bool>)) {
    let mut known: HashSet<Table> = start.iter().copied().collect();
    let mut open = VecDeque::from(start);
    let mut page = [0; PAGE_BYTES];
    for _ in 0..tables_max {
        let Some(table) = open.pop_front() else { break };
        if !memory.read(table.0, &mut page) {
            visit(table, None);
            continue;
        }
        let inner = tables_in(&page, table.1);
        visit(table, Some(inner.is_some()));
        open.extend(inner.into_iter().flatten().filter(|inner| known.len() < 1 << 20 && known.insert(*inner)));
    }
}

/// The tables that the vCPUs use and that are in no memory that is certain.
pub(super) fn questions(certain: &impl Physical, in_use: &[InUse]) -> Vec<Table> {
    let mut missing = Vec::new();
    let mut roots: Vec<Table> = in_use.iter().filter_map(|used| root(&used.paging)).collect();
    roots.sort_unstable();
    roots.dedup();
    follow(certain, roots, TABLES_MAX, |table, is_table| {
        if is_table.is_none() && missing.len() < QUESTIONS_MAX {
            missing.push(table);
        }
    });
    missing
}

/// Whether a stack is in no memory that is certain, as far as these page tables lead to it.
pub(super) fn is_missing(certain: &impl Physical, memory: &impl Physical, used: &InUse) -> bool {
    let page = Translator::new(used.paging).translate_page(memory, used.stack_pointer & !(PAGE_BYTES as u64 - 1));
    page.is_some_and(|page| !certain.read(page, &mut [0]))
}

/// What a layout has where tables and stacks are missed.
pub(super) fn weigh(certain: &impl Physical, proposed: &impl Physical, in_use: &[InUse], tables: &[Table]) -> Evidence {
    let mut evidence = Evidence::default();
    follow(proposed, tables.to_vec(), ANSWERS_MAX, |_, is_table| match is_table {
        Some(true) => evidence.good += 1,
        _ => evidence.bad += 1,
    });
    for used in in_use.iter().filter(|used| is_missing(certain, proposed, used)) {
        match returns(proposed, used) {
            0 => evidence.bad += 1,
            count => evidence.good += count,
        }
    }
    evidence
}

/// How many words of a stack are return addresses: behind an instruction that calls.
fn returns(memory: &impl Physical, used: &InUse) -> u32 {
    let mut translator = Translator::new(used.paging);
    let mut stack = [0; STACK_BYTES];
    let bytes = translator.read(memory, used.stack_pointer, &mut stack);
    let words = stack[..bytes].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let is_return = |address: &u64| {
        let mut code = [0; 7];
        let start = address.wrapping_sub(code.len() as u64);
        translator.read(memory, start, &mut code) == code.len() && ends_with_call(code)
    };
    words.filter(|address| *address > 0xffff).filter(is_return).take(RETURNS_MAX as usize).count() as u32
}

/// `call` with a 32-bit offset (`e8`), or of a register or memory (`ff /2`) with its lengths (Intel SDM volume 2, CALL).
fn ends_with_call(code: [u8; 7]) -> bool {
    let is_indirect = |length: &usize| code[7 - length] == 0xff && code[8 - length] >> 3 & 7 == 2;
    code[2] == 0xe8 || [2, 3, 4, 6, 7].iter().any(is_indirect)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Physical memory from an address on.
    struct Memory(Vec<(u64, Vec<u8>)>);

    impl Physical for Memory {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let inside = self.0.iter().find_map(|(start, bytes)| {
                bytes.get(usize::try_from(address.checked_sub(*start)?).ok()?..)?.get(..into.len())
            });
            inside.map(|bytes| into.copy_from_slice(bytes)).is_some()
        }
    }

    const PAGING: Paging = Paging { cr0: 1 << 31 | 1, cr3: 0x1000, cr4: 1 << 5, efer: Some(1 << 10) };
    const USED: InUse = InUse { paging: PAGING, stack_pointer: 0x20_0800 };
    const HIGH: u64 = 4 << 30;

    fn set(bytes: &mut [u8], at: usize, value: u64) {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Low memory: code at the virtual address 0x1_5000, whose table is there; the table of the stack's page is high.
    fn low() -> Vec<u8> {
        let mut low = vec![0; 0x10000];
        set(&mut low, 0x1000, 0x2003);
        set(&mut low, 0x2000, 0x3003);
        set(&mut low, 0x3000, 0x4003);
        set(&mut low, 0x3008, HIGH | 3);
        set(&mut low, 0x4000 + 0x15 * 8, 0x5003);
        low[0x5100] = 0xe8;
        low
    }

    /// High memory: a table, and a stack with a return address.
    fn high() -> Vec<u8> {
        let mut high = vec![0; 0x4000];
        set(&mut high, 0, (HIGH + 0x1000) | 3);
        set(&mut high, 0x1800 + 64, 0x1_5105);
        // Saved registers.
        (0..4).for_each(|index| set(&mut high, 0x1800 + index * 8, 0x20_0900));
        high
    }

    #[test]
    fn a_table_and_a_stack_show_where_memory_is() {
        let certain = Memory(vec![(0, low())]);
        let questions = questions(&certain, &[USED]);
        assert_eq!(questions, [(HIGH, 0)]);
        let weigh = |start: u64| {
            let proposed = Memory(vec![(0, low()), (start, high())]);
            weigh(&certain, &proposed, &[USED], &questions)
        };
        assert_eq!(weigh(HIGH), Evidence { good: 2, bad: 0 });
        // Elsewhere: no table there, or another page.
        for wrong in [HIGH + 0x1000, HIGH - 0x1000, HIGH - 0x2000, 8 << 30] {
            assert_eq!(weigh(wrong).score(), None, "{wrong:x}");
        }
    }

    #[test]
    fn a_stack_alone_shows_it() {
        // All tables are low.
        let mut low = low();
        set(&mut low, 0x3008, 0x6003);
        set(&mut low, 0x6000, (HIGH + 0x1000) | 3);
        let certain = Memory(vec![(0, low.clone())]);
        assert_eq!(questions(&certain, &[USED]), []);
        let weigh = |start: u64| weigh(&certain, &Memory(vec![(0, low.clone()), (start, high())]), &[USED], &[]);
        assert_eq!(weigh(HIGH).score(), Some(1));
        assert_eq!(weigh(HIGH + 0x1000), Evidence { good: 0, bad: 1 });
        assert_eq!(weigh(8 << 30), Evidence { good: 0, bad: 1 });
    }

    #[test]
    fn what_is_no_table() {
        let page = |words: &[u64]| {
            let mut page = [0; PAGE_BYTES];
            words.iter().enumerate().for_each(|(index, word)| set(&mut page, index * 8, *word));
            page
        };
        assert_eq!(tables_in(&page(&[0x7003, 0x8000_0000_0000_9001]), 1), Some(vec![(0x7000, 0), (0x9000, 0)]));
        assert_eq!(tables_in(&page(&[0x20_1083]), 1), Some(vec![]), "a large page with an attribute");
        for (words, level) in [
            (&[0][..], 0),
            (&[0x20_2083], 1),
            (&[0x83], 3),
            (&[0x6f6c_6c6f_6c6c_6f6d | 1], 0),
            (&[0x7002], 1),
            (&[0x1_5105, 0x20_0900], 0),
        ] {
            assert_eq!(tables_in(&page(words), level), None, "{words:x?}");
        }
    }

    #[test]
    fn calls() {
        assert!(ends_with_call([0, 0, 0xe8, 1, 2, 3, 4]));
        assert!(ends_with_call([0, 0, 0, 0, 0, 0xff, 0xd0]), "call rax");
        assert!(ends_with_call([0, 0xff, 0x15, 1, 2, 3, 4]), "call [rip + x]");
        assert!(!ends_with_call([0; 7]) && !ends_with_call([0, 0, 0, 0, 0, 0xff, 0xc0]));
    }

    /// Tables that lead to themselves and to everywhere end the walk.
    #[test]
    fn any_memory_is_survived() {
        let mut seed = 1u64;
        for _ in 0..20 {
            let mut bytes = vec![0; 0x10000];
            for at in (0..bytes.len()).step_by(8) {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                set(&mut bytes, at, seed & 0xffff | 1);
            }
            let memory = Memory(vec![(0, bytes)]);
            let used = InUse { stack_pointer: seed, ..USED };
            let questions = questions(&memory, &[used]);
            weigh(&memory, &memory, &[used], &questions);
        }
    }
}
