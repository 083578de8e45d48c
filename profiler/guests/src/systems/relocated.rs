//! A kernel that has moved itself away from the addresses that it was linked for, as Nanos does: how far, by the code that
//! lies where it certainly runs. That is where a core stands that may do everything, and where its interrupts lead.

use glass_profiler_core::image::Image;

use crate::arch::CoreState;
use crate::arch::x86_64::gates::{GATE_BYTES, target_of_gate};
use crate::error::GuestError;
use crate::memory::AddressSpace;

/// What is compared to find where in the image some code is. References to addresses would differ: a relocation of its own.
const CODE_BYTES: usize = 24;
/// A kernel moves by whole pages.
const PAGE_BYTES: u64 = 4096;
/// Gates of an interrupt table that are looked at: those of exceptions.
const GATES: usize = 32;
/// Places all over the image at which it is compared with the guest, and how much at each.
const PLACES: u64 = 64;
const PLACE_BYTES: usize = 16;
/// Of four places one may differ, by a relocation for example.
const DIFFERING: (u64, u64) = (1, 4);
/// Where one piece of code may be in an image.
const CANDIDATES_MAX: usize = 16;

/// What has to be added to the addresses that an image was linked for. `None` if it runs where it was linked for, or if
/// none of the code at hand is in it.
pub(crate) fn slide(image: &Image, state: &CoreState, core: &mut impl AddressSpace) -> Result<Option<u64>, GuestError> {
    let mut entries = handlers(state.interrupt_table, core)?;
    if state.is_privileged {
        entries.insert(0, state.registers.ip());
    }
    let linked = image.linked_range();
    if entries.iter().any(|entry| linked.contains(entry)) {
        return Ok(None);
    }
    for entry in entries {
        let mut code = [0; CODE_BYTES];
        if core.read(entry, &mut code)? < code.len() {
            continue;
        }
        for slide in candidates(image, entry, &code).into_iter().take(CANDIDATES_MAX) {
            if is_there(image, slide, core)? {
                return Ok(Some(slide));
            }
        }
    }
    Ok(None)
}

/// Where the gates of an interrupt table lead.
fn handlers(table: Option<u64>, core: &mut impl AddressSpace) -> Result<Vec<u64>, GuestError> {
    let Some(table) = table else { return Ok(Vec::new()) };
    let mut gates = [0; GATES * GATE_BYTES];
    let read = core.read(table, &mut gates)?;
    let (gates, _) = gates[..read].as_chunks::<GATE_BYTES>();
    let mut targets: Vec<u64> = gates.iter().map(target_of_gate).filter(|target| *target != 0).collect();
    targets.dedup();
    Ok(targets)
}

/// By how much the image may have moved if `code` of it is at `address`.
fn candidates(image: &Image, address: u64, code: &[u8]) -> Vec<u64> {
    let mut slides = Vec::new();
    for (linked, segment) in image.code_segments() {
        // Of the same place in a page.
        let first = address.wrapping_sub(linked) % PAGE_BYTES;
        for offset in (first..segment.len() as u64).step_by(PAGE_BYTES as usize) {
            if segment[offset as usize..].starts_with(code) {
                slides.push(address.wrapping_sub(linked.wrapping_add(offset)));
            }
        }
    }
    slides
}

/// Whether the code of an image is in the guest, so far from where it was linked for.
fn is_there(image: &Image, slide: u64, core: &mut impl AddressSpace) -> Result<bool, GuestError> {
    let total: u64 = image.code_segments().map(|(_, segment)| segment.len() as u64).sum();
    let (mut same, mut different) = (0u64, 0u64);
    for (linked, segment) in image.code_segments() {
        let step = (total / PLACES).max(PLACE_BYTES as u64) as usize;
        for (index, code) in segment.chunks(step).enumerate() {
            let Some(code) = code.first_chunk::<PLACE_BYTES>() else { continue };
            let mut found = [0; PLACE_BYTES];
            let address = linked.wrapping_add((index * step) as u64).wrapping_add(slide);
            match core.read(address, &mut found)? == found.len() && found == *code {
                true => same += 1,
                false => different += 1,
            }
        }
    }
    let (differing, of) = DIFFERING;
    Ok(same > 0 && different * of <= (same + different) * differing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::arch::Width;
    use glass_profiler_core::arch::x86_64::Registers;
    use glass_profiler_core::arch::x86_64::paging::Paging;

    /// A guest whose memory begins at an address.
    struct Guest(u64, Vec<u8>);

    impl AddressSpace for Guest {
        fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
            let rest = address.checked_sub(self.0).and_then(|offset| self.1.get(usize::try_from(offset).ok()?..));
            let count = rest.map_or(0, |rest| rest.len().min(into.len()));
            into[..count].copy_from_slice(&rest.unwrap_or_default()[..count]);
            Ok(count)
        }
    }

    const MOVED: u64 = 0xffff_ffff_c000_0000;

    /// This test's own program, its first executable segment, and a guest that has that at another place, followed by an
    /// interrupt table.
    fn guest() -> (Image, u64, Guest, u64) {
        let image = Image::parse(&std::fs::read(std::env::current_exe().unwrap()).unwrap(), &[]).unwrap();
        let (linked, code) = image.code_segments().max_by_key(|(_, code)| code.len()).unwrap();
        let slide = MOVED.wrapping_sub(linked & !(PAGE_BYTES - 1));
        let (start, mut memory) = (linked.wrapping_add(slide), code.to_vec());
        // A relocation here and there.
        memory.iter_mut().skip(5000).step_by(100_001).for_each(|byte| *byte ^= 0xff);
        let table = start + memory.len() as u64;
        let handler = (start + 0x1234).to_le_bytes();
        let gate = [&handler[..2], &[8, 0, 0, 0x8e], &handler[2..], &[0; 4]].concat();
        (0..GATES).for_each(|index| memory.extend(if index % 3 == 0 { vec![0; 16] } else { gate.clone() }));
        (image, slide, Guest(start, memory), table)
    }

    fn state(rip: u64, is_privileged: bool, interrupt_table: Option<u64>) -> CoreState {
        let registers = Registers { rip, ..Default::default() };
        let paging = Paging { cr0: 0, cr3: 0, cr4: 0, efer: None };
        let (registers, paging) = (registers.into(), paging.into());
        CoreState { registers, paging, width: Width::Bits64, is_privileged, is_at_reset: false, interrupt_table }
    }

    #[test]
    fn a_kernel_that_moved_is_found_where_a_core_stands_or_its_interrupts_lead() {
        let (image, moved, mut guest, table) = guest();
        let start = guest.0;
        let mut slide = |state: CoreState| slide(&image, &state, &mut guest).unwrap();
        assert_eq!(slide(state(start + 0x2345, true, None)), Some(moved));
        // In a process of the guest only the table shows it.
        assert_eq!(slide(state(0x40_0000, false, Some(table))), Some(moved));
        assert_eq!(slide(state(0x40_0000, false, None)), None);
        // Where it was linked for, elsewhere, and at an address that is nowhere.
        assert_eq!(slide(state(image.linked_range().start, true, None)), None);
        assert_eq!(slide(state(table, true, None)), None);
        assert_eq!(slide(state(u64::MAX - 5, true, Some(u64::MAX - 5))), None);
    }

    #[test]
    fn other_code_is_not_taken_for_it() {
        let (image, _, mut guest, _) = guest();
        let start = guest.0;
        // All but the page that the core stands in.
        guest.1.iter_mut().skip(3 * PAGE_BYTES as usize).for_each(|byte| *byte ^= 0x55);
        assert_eq!(slide(&image, &state(start + 0x2345, true, None), &mut guest).unwrap(), None);
    }
}
