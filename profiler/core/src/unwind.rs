//! From registers and a copied piece of stack to a chain of return addresses.
//!
//! Unwind tables (`.eh_frame`, `.debug_frame`, Linux's ORC) first; where there is no entry for an address, frame
//! pointers, with a look at the instruction in the innermost function: before `push rbp`, after it
//! and at `ret` the frame pointer still or already belongs to the caller; in assembly that needs no
//! frame it always does.

use std::ops::Range;
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, Reg, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};

use crate::event::Registers;
use crate::image::Image;
use crate::model::StackEnd;
use crate::orc::{OrcRegisters, OrcStep};

/// The most frames of a stack; more end it as [`StackEnd::TooDeep`].
pub const DEPTH_MAX: usize = 512;

/// How far above the copied piece a read may lie to be called a piece that is too short; anything
/// further away is a wild address.
const STACK_BYTES_PLAUSIBLE: u64 = 16 << 20;

/// One function call: an address within the calling instruction, and the image it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallAddress {
    /// Index into the images of the [`AddressSpace`], `None` outside of all.
    pub image: Option<u32>,
    /// The address for which the image was linked; as it is if there is no image.
    pub address: u64,
}

/// An unwound stack, innermost call first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallChain {
    /// The calls.
    pub calls: Vec<CallAddress>,
    /// Why there are no more.
    pub end: StackEnd,
}

/// Copied pieces of stack.
#[derive(Debug, Clone, Copy)]
pub struct StackMemory<'a> {
    /// Address of the first byte.
    pub start: u64,
    /// Memory from there upwards.
    pub bytes: &'a [u8],
    /// The stack that was left for this one, if any: its address and its memory.
    pub left: Option<(u64, &'a [u8])>,
}

impl StackMemory<'_> {
    fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        [(self.start, self.bytes)].into_iter().chain(self.left)
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.pieces().find_map(|(start, bytes)| {
            let offset = usize::try_from(address.checked_sub(start)?).ok()?;
            Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk::<8>()?))
        })
    }

    /// `CopyEnded` for an address that can be of the same stack, but was not copied.
    fn end_at(&self, address: u64) -> Option<StackEnd> {
        let plausible = |(start, bytes): (u64, &[u8])| {
            let end = start.saturating_add(bytes.len() as u64);
            let beyond = address.wrapping_add(8) > end && address >= start;
            beyond && address - end.min(address) < STACK_BYTES_PLAUSIBLE
        };
        self.pieces().any(plausible).then_some(StackEnd::CopyEnded)
    }
}

/// An image in an address space.
#[derive(Debug, Clone)]
struct Placed {
    range: Range<u64>,
    bias: u64,
    image_index: u32,
    image: Arc<Image>,
}

/// The images that a process or guest can run code of, and where.
#[derive(Clone, Default)]
pub struct AddressSpace {
    placed: Vec<Placed>,
    /// By `.eh_frame`, and by `.debug_frame`: framehop looks into one table of an image only.
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    debug_unwinder: UnwinderX86_64<Arc<[u8]>>,
}

/// Unwind rules that were used lately. One for all address spaces.
#[derive(Default)]
pub struct UnwindCache(Box<CacheX86_64>);

impl AddressSpace {
    /// Adds an image at `range`, `bias` above the addresses it was linked for. It replaces what was
    /// mapped there before. `image_index` is what [`CallAddress::image`] will say.
    pub fn add(&mut self, range: Range<u64>, bias: u64, image_index: u32, image: Arc<Image>) {
        if range.is_empty() {
            return;
        }
        let range = self.joined(range, bias, image_index);
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        for placed in &self.placed {
            if overlaps(&placed.range) {
                self.unwinder.remove_module(placed.range.start);
                self.debug_unwinder.remove_module(placed.range.start);
            }
        }
        self.placed.retain(|placed| !overlaps(&placed.range));
        let linked = image.linked_range();
        let base = linked.start.wrapping_add(bias);
        let module = |sections| Module::new(String::new(), range.clone(), base, sections);
        if let Some((svma, data)) = &image.eh_frame {
            self.unwinder.add_module(module(ExplicitModuleSectionInfo {
                base_svma: linked.start,
                eh_frame_svma: Some(svma.clone()),
                eh_frame: Some(data.clone()),
                ..Default::default()
            }));
        }
        if let Some(data) = &image.debug_frame {
            self.debug_unwinder.add_module(module(ExplicitModuleSectionInfo {
                base_svma: linked.start,
                debug_frame: Some(data.clone()),
                ..Default::default()
            }));
        }
        self.placed.push(Placed { range, bias, image_index, image });
        self.placed.sort_by_key(|placed| placed.range.start);
    }

    /// A range together with what is known of the same image beside it: memory for generated code grows by the page.
    fn joined(&self, range: Range<u64>, bias: u64, image_index: u32) -> Range<u64> {
        let beside = |placed: &&Placed| {
            let touches = placed.range.start <= range.end && range.start <= placed.range.end;
            touches && (placed.image_index, placed.bias) == (image_index, bias)
        };
        let joined =
            |all: Range<u64>, placed: &Placed| all.start.min(placed.range.start)..all.end.max(placed.range.end);
        self.placed.iter().filter(beside).fold(range.clone(), joined)
    }

    fn find(&self, address: u64) -> Option<&Placed> {
        let after = self.placed.partition_point(|placed| placed.range.start <= address);
        self.placed[..after].last().filter(|placed| placed.range.contains(&address))
    }

    fn call(&self, address: FrameAddress) -> (CallAddress, Option<&Placed>) {
        let lookup = address.address_for_lookup();
        match self.find(lookup) {
            Some(placed) => {
                let call = CallAddress { image: Some(placed.image_index), address: lookup.wrapping_sub(placed.bias) };
                (call, Some(placed))
            }
            None => (CallAddress { image: None, address: lookup }, None),
        }
    }

    /// The machine code at an address, if that much of it is known.
    pub fn code<const BYTES: usize>(&self, address: u64) -> Option<[u8; BYTES]> {
        let placed = self.find(address)?;
        placed.image.code(address.wrapping_sub(placed.bias))?.first_chunk().copied()
    }

    /// Where the direct call goes that ends in front of `address`, if there is one.
    pub fn target_of_call_before(&self, address: u64) -> Option<u64> {
        const CALL: u8 = 0xe8;
        const CALL_BYTES: usize = 5;
        let [CALL, offset @ ..] = self.code::<CALL_BYTES>(address.wrapping_sub(CALL_BYTES as u64))? else {
            return None;
        };
        Some(address.wrapping_add_signed(i64::from(i32::from_le_bytes(offset))))
    }

    /// Whether `return_address` follows a direct call of the small function that `address` is in.
    fn is_called_from(&self, address: u64, return_address: u64) -> bool {
        /// Assembly without a frame (memcpy and the like) is shorter.
        const FUNCTION_BYTES_MAX: u64 = 4096;
        self.target_of_call_before(return_address)
            .is_some_and(|target| address.wrapping_sub(target) < FUNCTION_BYTES_MAX)
    }

    /// The call address for an instruction that is being executed.
    pub fn at(&self, instruction: u64) -> CallAddress {
        self.call(FrameAddress::from_instruction_pointer(instruction)).0
    }

    /// Unwinds from `registers`; `stack` is the memory from `registers.rsp` upwards.
    pub fn unwind(&self, cache: &mut UnwindCache, registers: Registers, stack: &[u8]) -> CallChain {
        self.unwind_in(cache, registers, &StackMemory { start: registers.rsp, bytes: stack, left: None })
    }

    /// Unwinds from `registers` through the memory of one or two stacks.
    pub fn unwind_in(&self, cache: &mut UnwindCache, registers: Registers, stack: &StackMemory<'_>) -> CallChain {
        let mut read = |address: u64| stack.word(address).ok_or(());
        // Other registers are known only of a function that was interrupted.
        let mut interrupted = None;
        let mut calls = Vec::new();
        let mut frame = FrameAddress::from_instruction_pointer(registers.rip);
        let mut unwound = UnwindRegsX86_64::new(registers.rip, registers.rsp, registers.rbp);
        loop {
            let (call, placed) = self.call(frame);
            if placed.is_none() && !calls.is_empty() {
                return CallChain { calls, end: StackEnd::BadAddress };
            }
            calls.push(call);
            if placed.is_some_and(|placed| placed.image.is_root(call.address)) {
                return CallChain { calls, end: StackEnd::Complete };
            }
            if calls.len() == DEPTH_MAX {
                return CallChain { calls, end: StackEnd::TooDeep };
            }
            if let Some(orc) = placed.and_then(|placed| placed.image.orc.as_ref()) {
                let known = OrcRegisters::new(unwound.ip(), unwound.get(Reg::RSP), unwound.get(Reg::RBP));
                let mut caller = interrupted.take().unwrap_or(known);
                let step = orc.step(call.address, &mut caller, &mut |address| stack.word(address));
                (unwound, interrupted) = (UnwindRegsX86_64::new(caller.ip, caller.sp, caller.bp), Some(caller));
                let end = match step {
                    OrcStep::Caller => match FrameAddress::from_return_address(caller.ip) {
                        Some(next) => {
                            frame = next;
                            continue;
                        }
                        None => StackEnd::Complete,
                    },
                    OrcStep::Interrupted => {
                        frame = FrameAddress::from_instruction_pointer(caller.ip);
                        continue;
                    }
                    OrcStep::Start => StackEnd::Complete,
                    OrcStep::CannotRead(address) => stack.end_at(address).unwrap_or(StackEnd::BadAddress),
                    OrcStep::Unknown => StackEnd::NoUnwindInfo,
                };
                return CallChain { calls, end };
            }
            interrupted = None;
            let by_eh = placed.is_some_and(|placed| placed.image.is_covered(call.address));
            let covered = by_eh || placed.is_some_and(|placed| placed.image.is_covered_by_debug(call.address));
            let next = if covered {
                let unwinder = if by_eh { &self.unwinder } else { &self.debug_unwinder };
                unwinder.unwind_frame(frame, &mut unwound, &mut cache.0, &mut read)
            } else {
                let innermost = placed.filter(|_| calls.len() == 1);
                match innermost.and_then(|placed| caller_by_instruction(self, placed, &mut unwound, &mut read)) {
                    Some(next) => Ok(Some(next)),
                    None => caller_by_frame_pointer(&mut unwound, &mut read),
                }
            };
            let end = match next {
                Ok(Some(return_address)) => match FrameAddress::from_return_address(return_address) {
                    Some(next) => {
                        frame = next;
                        continue;
                    }
                    None => StackEnd::Complete,
                },
                Ok(None) | Err(framehop::Error::ReturnAddressIsNull) => StackEnd::Complete,
                Err(framehop::Error::CouldNotReadStack(address)) => {
                    let otherwise = if covered { StackEnd::BadAddress } else { StackEnd::NoUnwindInfo };
                    stack.end_at(address).unwrap_or(otherwise)
                }
                Err(_) if covered => StackEnd::BadAddress,
                Err(_) => StackEnd::NoUnwindInfo,
            };
            return CallChain { calls, end };
        }
    }
}

/// The return address of the innermost function if it has no frame, not yet or no longer. Judged by
/// the next instruction, or by a word on top of the stack that can only be the return address.
/// Updates the registers to the caller's.
fn caller_by_instruction(
    space: &AddressSpace,
    placed: &Placed,
    registers: &mut UnwindRegsX86_64,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Option<u64> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const PUSH_RBP: u8 = 0x55;
    const RET: u8 = 0xc3;
    const MOV_RBP_RSP: [[u8; 3]; 2] = [[0x48, 0x89, 0xe5], [0x48, 0x8b, 0xec]];
    let address = registers.ip();
    let code = placed.image.code(address.wrapping_sub(placed.bias))?;
    let stack_pointer = registers.get(Reg::RSP);
    let saved = MOV_RBP_RSP.iter().any(|instruction| code.starts_with(instruction));
    let at = if saved { stack_pointer.checked_add(8)? } else { stack_pointer };
    let return_address = read(at).ok()?;
    let frameless = saved
        || code[0] == PUSH_RBP
        || code[0] == RET
        || code.starts_with(&ENDBR64)
        || space.is_called_from(address, return_address);
    if !frameless {
        return None;
    }
    if saved {
        registers.set(Reg::RBP, read(stack_pointer).ok()?);
    }
    registers.set(Reg::RSP, at.checked_add(8)?);
    registers.set_ip(return_address);
    Some(return_address)
}

/// The return address beside the saved frame pointer; `None` at the chain's end. framehop's own rule
/// for an address without table takes the innermost function for one without frame, which is right
/// for hand-written assembly and wrong for a compiler's code.
fn caller_by_frame_pointer(
    registers: &mut UnwindRegsX86_64,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Result<Option<u64>, framehop::Error> {
    let frame = registers.get(Reg::RBP);
    if frame == 0 {
        return Ok(None);
    }
    let stack_pointer = frame.checked_add(16).ok_or(framehop::Error::IntegerOverflow)?;
    if stack_pointer <= registers.get(Reg::RSP) {
        return Err(framehop::Error::FramepointerUnwindingMovedBackwards);
    }
    let mut read = |address| read(address).map_err(|()| framehop::Error::CouldNotReadStack(address));
    let (caller_frame, return_address) = (read(frame)?, read(frame + 8)?);
    registers.set(Reg::RSP, stack_pointer);
    registers.set(Reg::RBP, caller_frame);
    registers.set_ip(return_address);
    Ok((return_address != 0).then_some(return_address))
}
