//! Tracing in a VM: the ring of a core, the groups that the command line switches on, the steps of the boot.

use crate::cores::{Core, this_core};
use crate::machine::Ram;
use alloc::boxed::Box;
use alloc::format;
use core::fmt;
use core::slice;
use core::sync::atomic::AtomicU64;
use glass_formats::trace::GROUPS;
use glass_lib_trace::{Event, Group, Kind, Writer};

/// One part in so many of the memory holds events.
const RING_SHARE: u64 = 32;
const RING_BYTES_MIN: u64 = 64 << 10;
const RING_BYTES_MAX: u64 = 4 << 20;
const PAGE_BYTES: u64 = 4096;
/// The numbers of our own spans have this bit, those of the service's spans have not.
const OWN_SPAN: u64 = 1 << 63;
/// Level of the boot's steps: 3 is information.
const LEVEL: u16 = 3;

/// Where in `ram` the ring of the boot core goes: whole pages, at the start of the first range that has room for much
/// more than that. `None` where memory is too short for tracing.
pub fn place(ram: impl Iterator<Item = Ram> + Clone) -> Option<Ram> {
    let total: u64 = ram.clone().map(|(start, end)| end - start).sum();
    let bytes = ring_bytes(total);
    let mut starts = ram.map(|(start, end)| (start.next_multiple_of(PAGE_BYTES), end));
    starts.find(|(start, end)| start + 4 * bytes <= *end).map(|(start, _)| (start, start + bytes))
}

/// Makes tracing possible on the boot core and switches `groups` on. `origin_ticks` is the TSC at time zero.
///
/// # Safety
/// `ring` is mapped, writable RAM that nothing else uses, and starts and ends between pages.
pub unsafe fn start(ring: Ram, origin_ticks: u64, groups: u32) {
    let words = (ring.1 - ring.0) as usize / size_of::<AtomicU64>();
    // SAFETY: the caller vouches for the memory, which is aligned and never given back; any bits are a number.
    let words = unsafe { slice::from_raw_parts(ring.0 as *const AtomicU64, words) };
    glass_lib_trace::start(false, words, origin_ticks, 0);
    if let Some(writer) = Writer::claim("core 0", words) {
        glass_lib_trace::set_current(Some(this_core().trace.get_or_init(|| writer)));
        this_core().trace_memory.set(words);
    }
    if groups != 0 {
        glass_lib_trace::switch(groups);
    }
}

/// Bytes of a ring where there are `memory` bytes for a core.
fn ring_bytes(memory: u64) -> u64 {
    1 << (memory / RING_SHARE).clamp(RING_BYTES_MIN, RING_BYTES_MAX).ilog2()
}

/// Memory for the ring of a secondary core, of which each has `bytes` bytes of memory.
pub fn secondary_ring(bytes: u64) -> &'static [AtomicU64] {
    let words = Box::new_zeroed_slice((ring_bytes(bytes) / 8) as usize);
    // SAFETY: zero is a number.
    let words = Box::leak(unsafe { words.assume_init() });
    glass_lib_trace::extend(words);
    words
}

/// Makes tracing possible on a secondary core, which calls this.
pub fn start_secondary(core: &'static Core) {
    if let Some(writer) = Writer::claim(&format!("core {}", core.index()), core.trace_memory.get()) {
        glass_lib_trace::set_current(Some(core.trace.get_or_init(|| writer)));
    }
}

/// Prints the names of all groups.
pub struct Groups;

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        GROUPS.iter().try_for_each(|(_, name)| write!(f, "{name}, "))?;
        f.write_str("all")
    }
}

/// Does a step of the boot and traces it as a span.
pub fn step<R>(name: &str, work: impl FnOnce() -> R) -> R {
    if !glass_lib_trace::is_on(Group::Spans) {
        return work();
    }
    let core = this_core();
    let number = core.steps.get() + 1;
    core.steps.set(number);
    let parent = core.step.replace(number);
    let emit = |kind: Kind, detail, a, c| {
        glass_lib_trace::emit(Group::Spans, Event { ticks: 0, kind: kind as u16, detail, a, b: number | OWN_SPAN, c });
    };
    let parent_span = if parent == 0 { 0 } else { parent | OWN_SPAN };
    emit(Kind::SpanBegin, LEVEL, glass_lib_trace::intern(name), parent_span);
    emit(Kind::SpanEnter, 0, 0, 0);
    let result = work();
    emit(Kind::SpanExit, 0, 0, 0);
    emit(Kind::SpanEnd, 0, 0, 0);
    core.step.set(parent);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_a_share_of_the_memory() {
        let place = |ram: &[Ram]| place(ram.iter().copied());
        // 3 MiB, 64 MiB and 3 GiB behind an image that ends in the middle of a page.
        assert_eq!(place(&[(0x28_0800, 0x58_0800)]), Some((0x28_1000, 0x29_1000)));
        assert_eq!(place(&[(0x28_0800, 0x428_0800)]), Some((0x28_1000, 0x48_1000)));
        assert_eq!(place(&[(0x28_0000, 0xc000_0000)]), Some((0x28_0000, 0x68_0000)));
        // A range that is too short is passed over, and so is all if each is.
        assert_eq!(place(&[(0x1000, 0x2000), (0x28_0000, 0x48_0000)]), Some((0x28_0000, 0x29_0000)));
        assert_eq!(place(&[(0x28_0000, 0x2a_0000)]), None);
        assert_eq!(place(&[]), None);
    }
}
