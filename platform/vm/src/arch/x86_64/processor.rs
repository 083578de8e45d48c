//! What a secondary core of x86-64 needs beside its stacks, and its start through 16-bit mode.

use crate::arch::apic;
use crate::cores::Core;
use crate::memory::PAGE_TABLES;
use crate::paging::PAGE_BYTES;
use crate::smp::wait;
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use core::time::Duration;

/// Where a core starts, in 16-bit mode: RAM on every VMM, and used by none after it has entered the image.
const TRAMPOLINE: u64 = 0x8000;
const RING0_STACK_BYTES: u64 = 4 << 10;
/// A task state segment and its bitmap of ports, all of which are ring 3's.
const TASK_STATE_BYTES: u64 = 104 + 8192 + 8;
/// Offset of the ring-0 stack pointer, and of the bitmap's offset.
const RSP0: u64 = 4;
const BITMAP_OFFSET: u64 = 102;
/// The boot core's table of segments, without its task state segment (boot.s, gdt).
const SEGMENTS: [u64; 7] = [
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x00cf_9b00_0000_ffff,
    0,
    0x00cf_f300_0000_ffff,
    0x00af_fb00_0000_ffff,
];
/// Between the two requests to start, as Intel's manual has them (volume 3, section 9.4.4.1), though a virtual CPU needs no time.
const AFTER_INIT: Duration = Duration::from_micros(200);
const START_AGAIN: Duration = Duration::from_millis(2);
/// Bytes that a core needs behind its stacks.
pub const OWN_BYTES: u64 = RING0_STACK_BYTES + TASK_STATE_BYTES;

unsafe extern "C" {
    static glass_trampoline: u8;
    static glass_trampoline_end: u8;
    static glass_page_tables: AtomicU64;
    static glass_core_numbers: [AtomicU8; 256];
}

/// The identifier of this core's local APIC.
pub fn identifier() -> u32 {
    apic::identifier().into()
}

/// Whether a core with this identifier can be addressed by the registers that we use.
pub fn is_reachable(identifier: u32) -> bool {
    identifier < 255
}

/// Fills the block of a core that does not run yet, and [`OWN_BYTES`] bytes at `own`: its stack of ring 0 and its task state segment.
///
/// # Safety
/// Those bytes are mapped for writing, zero and used for nothing else.
pub unsafe fn prepare(core: &Core, own: u64) {
    let block = &core.arch;
    block.ring0_stack_top.set(own + RING0_STACK_BYTES);
    let task_state = block.ring0_stack_top.get();
    // SAFETY: both fields are in the area, behind the stack; no reference to it exists.
    unsafe {
        ((task_state + RSP0) as *mut u64).write_unaligned(block.ring0_stack_top.get());
        ((task_state + BITMAP_OFFSET) as *mut u16).write_unaligned(104);
    }
    let limit = TASK_STATE_BYTES - 8;
    let descriptor = limit & 0xffff
        | (task_state & 0xff_ffff) << 16
        | 0x89 << 40
        | (limit >> 16 & 0xf) << 48
        | (task_state >> 24 & 0xff) << 56;
    let entries = SEGMENTS.into_iter().chain([descriptor, task_state >> 32]);
    block.segments.iter().zip(entries).for_each(|(place, entry)| place.set(entry));
    let table = (&raw const block.segments).addr() as u64;
    let words = [size_of_val(&block.segments) as u64 - 1, table, table >> 16, table >> 32, table >> 48];
    block.segments_pointer.set(words.map(|word| word as u16));
}

/// Requests the start of these cores, which have everything else that they need.
pub fn start(cores: &[&'static Core]) {
    let root = PAGE_TABLES.load(Ordering::Relaxed);
    assert!(root < 1 << 32, "the page tables are from the first memory, below 4 GiB");
    // SAFETY: boot.s defines both; a secondary core reads them when it starts, which is requested below.
    let (page_tables, numbers) = unsafe { (&glass_page_tables, &glass_core_numbers) };
    page_tables.store(root, Ordering::Relaxed);
    for core in cores {
        numbers[apic_of(core) as usize].store(core.index() as u8, Ordering::Relaxed);
    }
    let (code, end) = (&raw const glass_trampoline, &raw const glass_trampoline_end);
    // SAFETY: the page is mapped for writing and not used any more: the command line and all that the VMM has handed over were read.
    unsafe { ptr::copy_nonoverlapping(code, TRAMPOLINE as *mut u8, end.addr() - code.addr()) };
    fence(Ordering::SeqCst);
    cores.iter().for_each(|core| apic::init(apic_of(core)));
    wait(AFTER_INIT, || false);
    request(cores);
    // A core that runs already ignores the second request.
    wait(START_AGAIN, || cores.iter().all(|core| core.public.is_up()));
    request(cores);
}

fn request(cores: &[&'static Core]) {
    for core in cores.iter().filter(|core| !core.public.is_up()) {
        apic::start_up(apic_of(core), (TRAMPOLINE / PAGE_BYTES) as u8);
    }
}

fn apic_of(core: &Core) -> u8 {
    core.public.processor.load(Ordering::Relaxed) as u8
}
