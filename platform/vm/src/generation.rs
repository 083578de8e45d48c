//! Which copy of a VM this one is. A VMM copies a VM while that is halted in [`crate::run`]; what is here runs before anything else in the copy, so that
//! no random number of the other one is given out again, and the clock continues (`docs/formats/snapshot.md`).

use crate::arch::ticks;
use crate::cores::this_core;
use crate::{clock, random};
use core::net::Ipv4Addr;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use glass_formats::Generation;
use glass_lib_net::Address;

/// Where the VMM writes; null without a VMM that makes copies.
static PAGE: AtomicPtr<Generation> = AtomicPtr::new(ptr::null_mut());
/// The generation that was taken note of last.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// From here on the VMM may make copies.
///
/// # Safety
/// At the address is a [`Generation`], which stays mapped for reading and writing, and to which nothing else leads.
pub unsafe fn initialize(address: u64) {
    PAGE.store(ptr::with_exposed_provenance_mut(address as usize), Ordering::Relaxed);
}

fn page() -> Option<&'static Generation> {
    // SAFETY: who has called `initialize` vouches for it. It is made of atomics, so it may change at any time.
    unsafe { PAGE.load(Ordering::Relaxed).as_ref() }
}

/// The number of this VM's generation: 0 for one that has booted, and another one in each copy.
pub fn number() -> u64 {
    NUMBER.load(Ordering::Relaxed)
}

/// Which card and IPv4 address this copy has in place of those of the VM that was copied; `None` if it has those.
pub fn card() -> Option<([u8; 6], Address)> {
    let page = page()?;
    let [card, address, gateway] = [&page.card, &page.address, &page.gateway].map(|word| word.load(Ordering::Relaxed));
    let [mac @ .., _, _] = card.to_le_bytes();
    (card != 0).then(|| (mac, address_of(address, gateway)))
}

fn address_of(address: u64, gateway: u64) -> Address {
    let ip = |word: u64| Ipv4Addr::from_bits(word as u32);
    match address {
        0 => Address::Dhcp,
        _ => Address::Static {
            address: ip(address),
            prefix_bits: (address >> 32) as u8,
            gateway: (gateway != 0).then(|| ip(gateway)),
        },
    }
}

/// The core is about to halt, and calls [`follow`] next.
pub fn before_halt() {
    if let Some(page) = page() {
        page.halted_ticks.store(ticks().max(1), Ordering::Relaxed);
    }
}

/// Takes note of a new generation, if this VM has become a copy while it was halted. Whether it has.
pub fn follow() -> bool {
    let Some(page) = page() else { return false };
    let before = page.halted_ticks.swap(0, Ordering::Relaxed);
    let number = page.number.load(Ordering::Relaxed);
    if number == NUMBER.load(Ordering::Relaxed) {
        return false;
    }
    clock::continue_from(before, ticks());
    // The time of day has gone further meanwhile.
    this_core().wall.set(None);
    random::add(page.seed.each_ref().map(|word| word.load(Ordering::Relaxed).to_le_bytes()).as_flattened());
    NUMBER.store(number, Ordering::Relaxed);
    true
}
