//! The words by which a VMM makes a VM a copy of another one, and the VM shows when that is possible (`docs/formats/snapshot.md`).

use core::sync::atomic::AtomicU64;

/// What the command line has in front of the physical address of [`Generation`], hexadecimal behind `0x`.
pub const GENERATION_WORD: &str = "generation=";

/// A part of the memory below the image, aligned to 8 bytes. The image writes only the first word, and only its first core does.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Generation {
    /// While the core is halted where it takes note of a new generation before it does anything else: its ticks before the halt. Otherwise 0.
    pub halted_ticks: AtomicU64,
    /// 0 for a VM that has booted; for a copy a number that no other copy has. The VMM writes it while the VM is stopped.
    pub number: AtomicU64,
    /// With a new number: random bytes that the VMM has given to no other VM.
    pub seed: [AtomicU64; 4],
    /// With a new number: the address of the copy's network card, its first byte lowest; 0 if card and IP address are those of the VM that was copied.
    pub card: AtomicU64,
    /// With a card: the copy's IPv4 address as a number in the low half, and the bits of its prefix in the high half; 0 if a DHCP server gives it.
    pub address: AtomicU64,
    /// With an address: that of the router for other networks as a number, 0 without one.
    pub gateway: AtomicU64,
}

impl Generation {
    /// The offset of [`Generation::halted_ticks`].
    pub const HALTED_TICKS: u64 = core::mem::offset_of!(Generation, halted_ticks) as u64;
    /// The offset of [`Generation::number`].
    pub const NUMBER: u64 = core::mem::offset_of!(Generation, number) as u64;
    /// The offset of [`Generation::seed`].
    pub const SEED: u64 = core::mem::offset_of!(Generation, seed) as u64;
    /// The offset of [`Generation::card`].
    pub const CARD: u64 = core::mem::offset_of!(Generation, card) as u64;
    /// The offset of [`Generation::address`].
    pub const ADDRESS: u64 = core::mem::offset_of!(Generation, address) as u64;
    /// The offset of [`Generation::gateway`].
    pub const GATEWAY: u64 = core::mem::offset_of!(Generation, gateway) as u64;
    /// Bytes of it.
    pub const BYTES: u64 = size_of::<Generation>() as u64;
}
