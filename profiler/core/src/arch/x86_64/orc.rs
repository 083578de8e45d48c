//! Linux's own unwind tables (ORC, `arch/x86/include/asm/orc_types.h`): for each address, which
//! register the caller's stack pointer is computed from, and where the caller's frame pointer is.
//!
//! A kernel keeps them in its memory whether or not it has debug information: an array of addresses,
//! relative to themselves and sorted, and one of entries of six bytes. The entry's last byte has had
//! three layouts since Linux 4.14, and its registers two numberings. Both are detected from the table itself, so a distribution's
//! backports do not matter.

use std::collections::HashMap;
use std::fmt;

use super::{GENERAL, Registers};

/// The most entries of a table; Debian's kernel 6.1 has 368,456.
pub const ENTRIES_MAX: usize = 8 << 20;
/// Bytes of an address in the table.
pub const ADDRESS_BYTES: usize = 4;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 6;

/// So many bits of the hash of an entry are looked at where it may have been seen before.
const RECENT_BITS: u32 = 12;

/// Offsets in `struct pt_regs`.
mod saved {
    pub const R13: u64 = 2 * 8;
    pub const BP: u64 = 4 * 8;
    pub const R10: u64 = 7 * 8;
    pub const DX: u64 = 12 * 8;
    pub const DI: u64 = 14 * 8;
    pub const IP: u64 = 16 * 8;
    pub const BYTES: u64 = 21 * 8;
}

/// Why tables cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrcError {
    /// The two arrays have different, zero or implausible lengths.
    Lengths,
    /// The addresses are not sorted.
    NotSorted,
    /// They have more different entries than any kernel has.
    Rules,
}

impl fmt::Display for OrcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrcError::Lengths => write!(f, "their lengths do not agree"),
            OrcError::NotSorted => write!(f, "their addresses are not sorted"),
            OrcError::Rules => write!(f, "they have more than 65,536 different entries"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Two bits of type, one that ends the stack (Linux 4.14 to 6.2).
    End,
    /// Two bits of type, one for interrupts, one that ends the stack (6.3).
    SignalAndEnd,
    /// Three bits of type, of which some mean an end (6.4 and later).
    Type,
}

/// How registers are numbered (`ORC_REG_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbering {
    /// The stack pointer is 5 (up to 6.12 at least).
    First,
    /// The stack pointer is 3 (7.2).
    Second,
}

/// From what the caller's stack pointer is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    Undefined,
    Dx,
    Di,
    Bp,
    Sp,
    R10,
    R13,
    /// What is in memory where the frame pointer and the offset show.
    BpIndirect,
    /// What is in memory where the stack pointer shows, and the offset.
    SpIndirect,
    Unknown,
}

/// Where the caller's frame pointer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    /// Still in its register.
    Here,
    /// In memory, from the caller's stack pointer.
    FromCaller,
    /// In memory, from the frame pointer.
    FromBp,
}

impl Numbering {
    fn base(self, entry: &[u8; ENTRY_BYTES]) -> Base {
        match (self, entry[4] & 15) {
            (_, 0) => Base::Undefined,
            (_, 2) => Base::Dx,
            (_, 4) => Base::Bp,
            (_, 6) => Base::R10,
            (_, 7) => Base::R13,
            (_, 9) => Base::SpIndirect,
            (Numbering::First, 3) | (Numbering::Second, 5) => Base::Di,
            (Numbering::First, 5) | (Numbering::Second, 3) => Base::Sp,
            (Numbering::First, 8) | (Numbering::Second, 10) => Base::BpIndirect,
            _ => Base::Unknown,
        }
    }

    fn saved(self, entry: &[u8; ENTRY_BYTES]) -> Saved {
        match (self, entry[4] >> 4) {
            (Numbering::First, 1) | (Numbering::Second, 8) => Saved::FromCaller,
            (_, 4) => Saved::FromBp,
            _ => Saved::Here,
        }
    }
}

/// The stack pointer is the base of most entries.
fn numbering(entries: &[[u8; ENTRY_BYTES]]) -> Numbering {
    let count = |number: u8| entries.iter().filter(|entry| entry[4] & 15 == number).count();
    if count(3) > count(5) { Numbering::Second } else { Numbering::First }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Undefined,
    EndOfStack,
    Call,
    Registers,
    InterruptFrame,
}

/// The registers that an entry can name; some are known only for an interrupted function.
#[derive(Debug, Clone, Copy, Default)]
pub struct OrcRegisters {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer.
    pub bp: u64,
    others: Others,
}

/// The values of the registers that only a few entries name.
#[derive(Debug, Clone, Copy, Default)]
enum Others {
    #[default]
    Unknown,
    /// In the `struct pt_regs` at this address.
    SavedAt(u64),
    /// Those of a sample, by their DWARF numbers.
    Sampled([u64; GENERAL]),
}

impl Others {
    /// The value of the register with a DWARF number, which is this far in `struct pt_regs`.
    fn get(
        &self,
        number: usize,
        saved_offset: u64,
        word: &mut impl FnMut(u64) -> Result<u64, OrcStep>,
    ) -> Result<u64, OrcStep> {
        match self {
            Others::Unknown => Err(OrcStep::Unknown),
            Others::SavedAt(at) => word(at.wrapping_add(saved_offset)),
            Others::Sampled(registers) => Ok(registers[number]),
        }
    }
}

impl OrcRegisters {
    /// Those of a function that has called another.
    pub fn new(ip: u64, sp: u64, bp: u64) -> OrcRegisters {
        OrcRegisters { ip, sp, bp, others: Others::Unknown }
    }

    /// Those of a sampled core.
    pub fn of(registers: &Registers) -> OrcRegisters {
        let others = registers.general().map_or(Others::Unknown, Others::Sampled);
        OrcRegisters { others, ..OrcRegisters::new(registers.rip, registers.rsp, registers.rbp) }
    }
}

/// The result of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrcStep {
    /// The registers are the caller's; `ip` is a return address.
    Caller,
    /// The registers are those of code that was interrupted; `ip` is an instruction.
    Interrupted,
    /// There is no caller within the kernel.
    Start,
    /// The stack could not be read there.
    CannotRead(u64),
    /// The tables have no entry for this address, or name a register whose value is not known.
    Unknown,
}

/// The tables of one kernel.
pub struct OrcTable {
    /// The lowest address.
    base: u64,
    /// The lower halves of the addresses above the base, which are sorted.
    offsets: Vec<u16>,
    /// By the upper half of an address: how many there are below it. One more than there are halves.
    blocks: Vec<u32>,
    /// The rule of each address: a place in `rules`.
    entries: Vec<u16>,
    /// Each once: the 370,000 addresses of a kernel have some thousands.
    rules: Vec<[u8; ENTRY_BYTES]>,
    layout: Layout,
    numbering: Numbering,
}

impl fmt::Debug for OrcTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "OrcTable of {} entries from {:#x}, {:?}, {:?}",
            self.entries.len(),
            self.base,
            self.layout,
            self.numbering
        )
    }
}

impl OrcTable {
    /// Decodes the two arrays from memory; the first is at `address`. Addresses in later calls
    /// are relative to the same origin.
    pub fn parse(address: u64, addresses: &[u8], entries: &[u8]) -> Result<OrcTable, OrcError> {
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        let (addresses, other_rest) = addresses.as_chunks::<ADDRESS_BYTES>();
        let agree = rest.is_empty() && other_rest.is_empty() && entries.len() == addresses.len();
        if !agree || entries.is_empty() || entries.len() > ENTRIES_MAX {
            return Err(OrcError::Lengths);
        }
        let absolute = |index: usize| {
            let own = address.wrapping_add((index * ADDRESS_BYTES) as u64);
            own.wrapping_add_signed(i64::from(i32::from_le_bytes(addresses[index])))
        };
        let offset = |index| u32::try_from(absolute(index).wrapping_sub(absolute(0))).map_err(|_| OrcError::NotSorted);
        OrcTable::of(absolute(0), (0..addresses.len()).map(offset), entries)
    }

    /// A table of entries and their addresses above `base`.
    fn of(
        base: u64,
        sorted: impl ExactSizeIterator<Item = Result<u32, OrcError>>,
        all: &[[u8; ENTRY_BYTES]],
    ) -> Result<OrcTable, OrcError> {
        let (mut offsets, mut blocks, mut last) = (Vec::with_capacity(sorted.len()), Vec::new(), 0);
        for offset in sorted {
            let offset = offset?;
            if offset < last {
                return Err(OrcError::NotSorted);
            }
            last = offset;
            blocks.resize((offset >> 16) as usize + 1, offsets.len() as u32);
            offsets.push(offset as u16);
        }
        blocks.push(offsets.len() as u32);
        blocks.shrink_to_fit();
        let (mut known, mut rules, mut entries) = (HashMap::new(), Vec::new(), Vec::with_capacity(all.len()));
        // The last one of each hash: most are found there, and hashing them well takes as long as all else.
        let mut recent = vec![0u16; 1 << RECENT_BITS];
        for entry in all {
            let number = entry.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            let place = &mut recent[(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - RECENT_BITS)) as usize];
            if rules.get(usize::from(*place)) != Some(entry) {
                let rule = *known.entry(entry).or_insert(rules.len());
                *place = u16::try_from(rule).map_err(|_| OrcError::Rules)?;
                if rule == rules.len() {
                    rules.push(*entry);
                }
            }
            entries.push(*place);
        }
        Ok(OrcTable { base, offsets, blocks, entries, rules, layout: layout(all), numbering: numbering(all) })
    }

    /// The table of a module of the kernel that has this one: written alike, and too small to show how.
    pub fn parse_of_module(&self, address: u64, addresses: &[u8], entries: &[u8]) -> Result<OrcTable, OrcError> {
        let table = OrcTable::parse(address, addresses, entries)?;
        Ok(OrcTable { layout: self.layout, numbering: self.numbering, ..table })
    }

    /// A table of addresses and their entries, in any order.
    pub fn of_entries(mut found: Vec<(u64, [u8; ENTRY_BYTES])>) -> Result<OrcTable, OrcError> {
        // Where a function ends and another begins, the entry of the latter counts.
        found.sort_by_key(|(address, entry)| (*address, entry[4] & 15 != 0));
        let base = found.first().map(|(address, _)| *address).ok_or(OrcError::Lengths)?;
        let offset = |(address, _): &(u64, _)| u32::try_from(address - base).map_err(|_| OrcError::Lengths);
        let entries: Vec<_> = found.iter().map(|(_, entry)| *entry).collect();
        OrcTable::of(base, found.iter().map(offset), &entries)
    }

    /// How many addresses are not above one, and how far that is from the base.
    fn until(&self, address: u64) -> Option<(usize, u32)> {
        let offset = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let block = (offset >> 16) as usize;
        // Behind the last block there is no address.
        let [start, end] =
            [block, block + 1].map(|at| self.blocks.get(at).map_or(self.offsets.len(), |at| *at as usize));
        let inside = self.offsets[start..end].partition_point(|known| *known <= offset as u16);
        Some((start + inside, offset))
    }

    fn find(&self, address: u64) -> Option<&[u8; ENTRY_BYTES]> {
        let (after, _) = self.until(address)?;
        self.rules.get(usize::from(*self.entries.get(after.checked_sub(1)?)?))
    }

    fn kind(&self, entry: &[u8; ENTRY_BYTES]) -> Kind {
        let bits = entry[5];
        let (kind, ends) = match self.layout {
            Layout::End => (bits & 3, bits & 4 != 0),
            Layout::SignalAndEnd => (bits & 3, bits & 8 != 0),
            Layout::Type => {
                return match bits & 7 {
                    1 => Kind::EndOfStack,
                    2 => Kind::Call,
                    3 => Kind::Registers,
                    4 => Kind::InterruptFrame,
                    _ => Kind::Undefined,
                };
            }
        };
        match (entry[4] & 15, kind) {
            (0, _) if ends => Kind::EndOfStack,
            (0, _) => Kind::Undefined,
            (_, 0) => Kind::Call,
            (_, 1) => Kind::Registers,
            (_, 2) => Kind::InterruptFrame,
            _ => Kind::Undefined,
        }
    }

    /// Whether there is a rule for an address by which its caller is found.
    pub fn has_rule(&self, address: u64) -> bool {
        let kind = self.find(address).map(|entry| self.kind(entry));
        matches!(kind, Some(Kind::Call | Kind::Registers | Kind::InterruptFrame))
    }

    /// Whether an address has an entry without a rule, although the stack may not end there. Until 6.4 (`UNWIND_HINT_EMPTY`) one entry meant both.
    pub fn is_without_rule(&self, address: u64) -> bool {
        match self.find(address).map(|entry| self.kind(entry)) {
            Some(Kind::Undefined) => true,
            Some(Kind::EndOfStack) => self.layout != Layout::Type,
            _ => false,
        }
    }

    /// Whether an entry begins at an address, and the byte in front of it, of no function, has no rule. Code that is not described, such as what
    /// `secondary_startup_64` returns to, is no start.
    pub fn is_start(&self, address: u64) -> bool {
        let begins = self.until(address).is_some_and(|(after, offset)| {
            let is_in_block =
                |at: &usize| self.blocks.get((offset >> 16) as usize).is_some_and(|start| *at >= *start as usize);
            after.checked_sub(1).filter(is_in_block).is_some_and(|last| self.offsets[last] == offset as u16)
        });
        let is_described = self.find(address).is_some_and(|entry| self.kind(entry) != Kind::Undefined);
        begins && is_described && !self.has_rule(address.wrapping_sub(1))
    }

    /// Goes from a function to its caller. `address` is within the calling instruction, in the terms of
    /// the table; `read` returns a word of the stack.
    pub fn step(
        &self,
        address: u64,
        registers: &mut OrcRegisters,
        read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> OrcStep {
        let Some(entry) = self.find(address) else { return OrcStep::Unknown };
        let kind = self.kind(entry);
        match kind {
            Kind::EndOfStack => return OrcStep::Start,
            Kind::Undefined => return OrcStep::Unknown,
            Kind::Call | Kind::Registers | Kind::InterruptFrame => {}
        }
        match self.caller(entry, kind, registers, read) {
            Ok(Some(caller)) => *registers = caller,
            Ok(None) => return OrcStep::Start,
            Err(step) => return step,
        }
        if kind == Kind::Call { OrcStep::Caller } else { OrcStep::Interrupted }
    }

    /// The caller's registers, `None` if that is not the kernel's own code.
    fn caller(
        &self,
        entry: &[u8; ENTRY_BYTES],
        kind: Kind,
        registers: &OrcRegisters,
        read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Result<Option<OrcRegisters>, OrcStep> {
        let mut word = |address: u64| read(address).ok_or(OrcStep::CannotRead(address));
        let sp_offset = i64::from(i16::from_le_bytes([entry[0], entry[1]]));
        let bp_offset = i64::from(i16::from_le_bytes([entry[2], entry[3]]));
        let base = self.numbering.base(entry);
        let sp = match base {
            Base::Dx => registers.others.get(1, saved::DX, &mut word)?.wrapping_add_signed(sp_offset),
            Base::Di => registers.others.get(5, saved::DI, &mut word)?.wrapping_add_signed(sp_offset),
            Base::Bp => registers.bp.wrapping_add_signed(sp_offset),
            Base::Sp => registers.sp.wrapping_add_signed(sp_offset),
            Base::R10 => registers.others.get(10, saved::R10, &mut word)?.wrapping_add_signed(sp_offset),
            Base::R13 => registers.others.get(13, saved::R13, &mut word)?.wrapping_add_signed(sp_offset),
            Base::BpIndirect => word(registers.bp.wrapping_add_signed(sp_offset))?,
            Base::SpIndirect => word(registers.sp)?.wrapping_add_signed(sp_offset),
            Base::Undefined | Base::Unknown => return Err(OrcStep::Unknown),
        };
        let mut caller = *registers;
        match kind {
            Kind::Call => {
                caller.ip = word(sp.wrapping_sub(8))?;
                caller.sp = sp;
                caller.others = Others::Unknown;
                if caller.sp <= registers.sp && base == Base::Sp {
                    // The addresses of a stack must increase.
                    return Err(OrcStep::Unknown);
                }
            }
            Kind::Registers | Kind::InterruptFrame => {
                // The processor pushes ip, cs, flags, sp and ss; the kernel the others below them.
                let below = registers.sp.wrapping_add(saved::IP);
                let (all, frame) = match kind {
                    Kind::Registers => (Some(sp), sp.wrapping_add(saved::IP)),
                    _ if !is_frame(sp, &mut word) && is_frame(below, &mut word) => (Some(registers.sp), below),
                    _ => (None, sp),
                };
                let code_segment = word(frame.wrapping_add(8))?;
                if code_segment & 3 != 0 {
                    return Ok(None);
                }
                caller.ip = word(frame)?;
                caller.sp = word(frame.wrapping_add(24))?;
                caller.others = Others::Unknown;
                if let Some(all) = all {
                    caller.bp = word(all.wrapping_add(saved::BP))?;
                    caller.others = all.checked_add(saved::BYTES).map_or(Others::Unknown, |_| Others::SavedAt(all));
                }
            }
            Kind::Undefined | Kind::EndOfStack => return Err(OrcStep::Unknown),
        }
        match self.numbering.saved(entry) {
            Saved::FromCaller => caller.bp = word(sp.wrapping_add_signed(bp_offset))?,
            Saved::FromBp => caller.bp = word(registers.bp.wrapping_add_signed(bp_offset))?,
            Saved::Here => {}
        }
        Ok(Some(caller))
    }
}

/// Whether there may be what the processor pushes for an interrupt. The entry of an exception calls `error_entry`, which puts all registers below that
/// frame, and continues as another function (`sync_regs`, in 6.12) or returns; until the entry's next instruction its rule is that of the frame alone.
fn is_frame(at: u64, word: &mut impl FnMut(u64) -> Result<u64, OrcStep>) -> bool {
    /// The highest selector (Intel SDM volume 3, 3.4.2), and a flag that is always set (volume 1, 3.4.3).
    const SELECTOR_MAX: u64 = 0xffff;
    const ALWAYS_SET: u64 = 1 << 1;
    let mut field = |offset: u64| word(at.wrapping_add(offset)).unwrap_or(0);
    let (code_segment, flags, stack_segment) = (field(8), field(16), field(32));
    let are_selectors = (8..=SELECTOR_MAX).contains(&code_segment) && stack_segment <= SELECTOR_MAX;
    are_selectors && flags & ALWAYS_SET != 0 && flags >> 32 == 0
}

/// Most entries are calls, whose type was 0 and is 2; the fourth bit was unused at first.
fn layout(entries: &[[u8; ENTRY_BYTES]]) -> Layout {
    let calls_old = entries.iter().filter(|entry| entry[5] & 7 == 0 && entry[4] & 15 != 0).count();
    let calls_new = entries.iter().filter(|entry| entry[5] & 7 == 2 && entry[4] & 15 != 0).count();
    if calls_new > calls_old {
        Layout::Type
    } else if entries.iter().any(|entry| entry[5] & 8 != 0) {
        Layout::SignalAndEnd
    } else {
        Layout::End
    }
}
