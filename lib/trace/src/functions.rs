//! Function tracing: patches calls to the recorder into functions, and removes them.
//!
//! In a program built by `glass build --trace-functions`, every function starts and ends with a sled, 11 bytes of
//! no-ops. While a function is traced its sleds call the recorder (`sys/arch/x86_64/functions.s`), which writes an event.
//!
//! ```text
//!              inactive                             traced
//! entry, tail  eb 09  jmp over the rest             eb 00  jmp to the next instruction
//!              66 0f 1f 84 00 00 02 00 00  nopw     e8 .. .. .. ..  call the recorder
//!                                                   eb 02 nn nn     jmp over the function's number
//! exit         c3     ret                           e8 .. .. .. ..  call the recorder
//!              2e 66 0f 1f 84 00 00 02 00 00  nopw  c3 nn nn        ret; the function's number
//! ```
//! For a thread that executes the code, the two states differ in one byte, the lead: `09` or `00`, `c3` or `e8`. The other bytes
//! are written while no thread can reach them. So code may be switched while other threads run it.

use crate::sys::functions as sys;
use crate::sys::{CONTROL, functions::Entry};
use core::sync::atomic::Ordering;
use glass_formats::trace::{FUNCTIONS_MAX, Group};

/// Bytes of a sled.
pub const SLED_BYTES: usize = 11;
/// Entry of a function, or exit by a tail call: inactive.
const AT_REST: [u8; SLED_BYTES] = [0xeb, 0x09, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 2, 0, 0];
/// A function returns: inactive.
const RETURN_AT_REST: [u8; SLED_BYTES] = [0xc3, 0x2e, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 2, 0, 0];

/// Writes code, which is not writable at its address.
pub trait Text {
    /// Writes code. A thread that runs it meanwhile sees the old or the new value of each byte. Returns false on failure.
    fn write(&mut self, address: usize, bytes: &[u8]) -> bool;
    /// Returns true when every core executes the written code, and false if that cannot be ensured.
    fn synchronize(&mut self) -> bool;
    /// Whether only the caller runs, so that no thread is within a sled.
    fn is_alone(&self) -> bool;
}

/// How many functions can be traced: 0 if the program was not built for it.
pub fn count() -> u32 {
    count_of(sleds())
}

fn count_of(sleds: impl Iterator<Item = Sled>) -> u32 {
    sleds.last().map_or(0, |sled| sled.number + 1)
}

/// Chooses all functions: used when the service itself, not the profiler, switches the group on.
pub fn choose_all() {
    for word in &CONTROL.functions_wanted {
        word.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Traces the chosen functions, and no others; none if `groups` lacks [`Group::Functions`].
pub fn switch(groups: u32, text: &mut impl Text) {
    let traced = switch_sleds(sleds, |number| is_wanted(groups, number), sys::code, text);
    CONTROL.functions_on.store(traced, Ordering::Relaxed);
}

/// Whether a function is to be traced while these groups are on.
fn is_wanted(groups: u32, number: u32) -> bool {
    let word = CONTROL.functions_wanted.get(number as usize / 64);
    let is_chosen = word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (number % 64) != 0);
    is_chosen && groups & Group::Functions as u32 != 0
}

/// The place of a sled in its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Begin,
    Return,
    TailCall,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sled {
    address: usize,
    /// Of the function.
    number: u32,
    place: Place,
    /// Address of the recorder's entry for such a place.
    recorder: usize,
}

/// The program's table. A function's number is the count of other functions before it.
fn sleds() -> impl Iterator<Item = Sled> {
    sleds_of(sys::table(), sys::recorders())
}

fn sleds_of(table: &[Entry], recorders: [usize; 3]) -> impl Iterator<Item = Sled> {
    let mut number = 0;
    let mut last = None;
    table.iter().map_while(move |entry| {
        let word = |offset: usize| {
            let bytes = entry.first_chunk::<24>().and_then(|bytes| bytes.get(offset..offset + 8));
            // An address relative to the word itself.
            let relative = usize::from_le_bytes(bytes.unwrap_or_default().try_into().unwrap_or_default());
            (entry.as_ptr() as usize).wrapping_add(offset).wrapping_add(relative)
        };
        let function = word(8);
        if last.is_some_and(|last| last != function) {
            number += 1;
        }
        last = Some(function);
        let (place, recorder) = match entry[16] {
            1 => (Place::Return, recorders[1]),
            2 => (Place::TailCall, recorders[2]),
            _ => (Place::Begin, recorders[0]),
        };
        ((number as usize) < FUNCTIONS_MAX).then_some(Sled { address: word(0), number, place, recorder })
    })
}

impl Sled {
    fn at_rest(&self) -> [u8; SLED_BYTES] {
        if self.place == Place::Return { RETURN_AT_REST } else { AT_REST }
    }

    /// `None` if the recorder is out of reach.
    fn traced(&self) -> Option<[u8; SLED_BYTES]> {
        let mut code = self.at_rest();
        let call = if self.place == Place::Return { 0 } else { 2 };
        let distance = (self.recorder as i64).wrapping_sub(self.address as i64 + call as i64 + 5);
        code[call] = 0xe8;
        code[call + 1..call + 5].copy_from_slice(&i32::try_from(distance).ok()?.to_le_bytes());
        let number = u16::try_from(self.number).ok()?.to_le_bytes();
        if self.place == Place::Return {
            code[5] = 0xc3;
            code[6..8].copy_from_slice(&number);
        } else {
            code[1] = 0x00;
            code[7..9].copy_from_slice(&[0xeb, 0x02]);
            code[9..11].copy_from_slice(&number);
        }
        Some(code)
    }

    /// Index of the lead byte.
    fn lead(&self) -> usize {
        if self.place == Place::Return { 0 } else { 1 }
    }
}

/// Returns how many functions are traced now.
fn switch_sleds<I: Iterator<Item = Sled>>(
    sleds: impl Fn() -> I,
    is_wanted: impl Fn(u32) -> bool,
    code: impl Fn(usize) -> [u8; SLED_BYTES],
    text: &mut impl Text,
) -> u32 {
    // The bytes after the leads of sleds at rest. Once written they never change, so a thread
    // within a sled executes what it expects.
    for sled in sleds().filter(|sled| is_wanted(sled.number)) {
        let (lead, rest) = (sled.lead(), sled.lead() + 1);
        let (Some(traced), now) = (sled.traced(), code(sled.address)) else { continue };
        let is_known = now[rest..] == sled.at_rest()[rest..];
        if is_known && now[lead] == sled.at_rest()[lead] && !text.write(sled.address + rest, &traced[rest..]) {
            break;
        }
    }
    // No core may follow a lead to bytes that it has fetched before.
    let is_safe = text.synchronize();
    let mut traced_count = 0;
    let mut last = None;
    for sled in sleds() {
        let (lead, rest) = (sled.lead(), sled.lead() + 1);
        let (Some(traced), now) = (sled.traced(), code(sled.address)) else { continue };
        // Only a sled with our bytes is patched.
        if now[..lead] != traced[..lead] || now[rest..] != traced[rest..] {
            continue;
        }
        let is_wanted = is_safe && is_wanted(sled.number);
        let wanted = if is_wanted { traced[lead] } else { sled.at_rest()[lead] };
        if now[lead] != wanted && !text.write(sled.address + lead, &[wanted]) {
            continue;
        }
        if is_wanted && last != Some(sled.number) {
            traced_count += 1;
            last = Some(sled.number);
        }
    }
    text.synchronize();
    if text.is_alone() {
        for sled in sleds().filter(|sled| !is_wanted(sled.number)) {
            let now = code(sled.address);
            if now != sled.at_rest()
                && sled.traced().is_some_and(|traced| now[sled.lead() + 1..] == traced[sled.lead() + 1..])
            {
                text.write(sled.address, &sled.at_rest());
            }
        }
        text.synchronize();
    }
    traced_count
}

#[cfg(test)]
mod tests;
