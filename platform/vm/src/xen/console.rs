//! The console of a domain, written to without memory and without tasks, so that it also takes a crash report.
//!
//! Layout: `xen/include/public/io/console.h`. The daemon in dom0 reads at a limited rate, so a writer waits for room, within a bound.

use super::{events, yield_to_others};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Address of the page; 0 for none.
static PAGE: AtomicU64 = AtomicU64::new(0);
static PORT: AtomicU32 = AtomicU32::new(0);
/// Our index, a count that wraps: that in the page is never read back.
static PRODUCED: AtomicU32 = AtomicU32::new(0);

const OUTPUT: u64 = 1024;
const OUTPUT_BYTES: u32 = 2048;
const CONSUMED_INDEX: u64 = 3080;
const PRODUCED_INDEX: u64 = 3084;
/// How often a writer lets others run before it gives up: seconds.
const YIELDS_MAX: u32 = 200_000;

/// Uses the page at `page` and our end `port` of its event channel.
///
/// # Safety
/// The page must be the console's, and mapped from now on.
pub unsafe fn initialize(page: u64, port: u32) {
    PORT.store(port, Ordering::Relaxed);
    PAGE.store(page, Ordering::Relaxed);
    if page != 0 {
        PRODUCED.store(index(page, PRODUCED_INDEX).load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn index(page: u64, offset: u64) -> &'static AtomicU32 {
    // SAFETY: `initialize` was promised the page; the word is in it and aligned. Xen's daemon accesses it atomically.
    unsafe { AtomicU32::from_ptr((page + offset) as *mut u32) }
}

/// Writes all of `bytes`; what there is no room for in seconds is dropped.
pub fn write(bytes: &[u8]) {
    let page = PAGE.load(Ordering::Relaxed);
    if page == 0 {
        return;
    }
    let mut rest = bytes;
    for _ in 0..YIELDS_MAX {
        let produced = PRODUCED.load(Ordering::Relaxed);
        let filled = produced.wrapping_sub(index(page, CONSUMED_INDEX).load(Ordering::Acquire));
        let space = OUTPUT_BYTES.saturating_sub(filled) as usize;
        let (now, later) = rest.split_at(rest.len().min(space));
        for (at, &byte) in (produced..).zip(now) {
            let place = page + OUTPUT + u64::from(at % OUTPUT_BYTES);
            // SAFETY: inside the page.
            unsafe { (place as *mut u8).write_volatile(byte) };
        }
        if !now.is_empty() {
            let produced = produced.wrapping_add(now.len() as u32);
            PRODUCED.store(produced, Ordering::Relaxed);
            index(page, PRODUCED_INDEX).store(produced, Ordering::Release);
            fence(Ordering::SeqCst);
            events::send(PORT.load(Ordering::Relaxed));
        }
        rest = later;
        if rest.is_empty() {
            return;
        }
        yield_to_others();
    }
}

/// Waits until the daemon has read everything, within a bound: with the domain its console ends.
pub fn flush() {
    let page = PAGE.load(Ordering::Relaxed);
    if page == 0 {
        return;
    }
    let is_read = || index(page, CONSUMED_INDEX).load(Ordering::Acquire) == PRODUCED.load(Ordering::Relaxed);
    for _ in 0..YIELDS_MAX {
        if is_read() {
            return;
        }
        yield_to_others();
    }
}
