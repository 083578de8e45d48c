//! The network card of a VM in front of a TAP device of the host (virtio 1.2, section 5.1).
//!
//! QEMU's own card reads each frame into a buffer and copies it from there to the VM, in the thread that serves everything else. Here the
//! host's kernel reads a frame directly into the VM's buffers, in a process that does nothing else. Any guest with a driver for virtio-net
//! can have it.

mod datagrams;
mod moves;
mod tap;
#[cfg(test)]
mod tests;

use crate::device::{Device, Turn, VERSION_1};
use crate::jail;
use crate::rings::Ring;
use anyhow::{Context, Result};
use glass_lib_jail::SystemCalls;
use moves::{Receiver, Transmitter};
use std::os::fd::{AsFd, BorrowedFd};
pub use tap::Tap;
pub use tap::check;
use vm_memory::GuestMemoryMmap;

/// Features (virtio 1.2, section 5.1.3).
const CSUM: u64 = 1 << 0;
const GUEST_CSUM: u64 = 1 << 1;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const GUEST_ECN: u64 = 1 << 9;
const HOST_TSO4: u64 = 1 << 11;
const HOST_TSO6: u64 = 1 << 12;
const HOST_ECN: u64 = 1 << 13;
const MAC: u64 = 1 << 5;
const MRG_RXBUF: u64 = 1 << 15;
const FEATURES: u64 =
    CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | HOST_TSO4 | HOST_TSO6 | HOST_ECN | MRG_RXBUF;

/// The header in front of each frame, and that of devices before virtio 1.0, which does not count buffers.
const HEADER_BYTES: usize = 12;
const OLD_HEADER_BYTES: usize = 10;

/// The card.
pub struct Card {
    tap: Tap,
    receiver: Receiver,
    transmitter: Transmitter,
    /// Its address, where its VMM does not have that.
    address: Option<[u8; 6]>,
}

impl Card {
    /// A card in front of a TAP device.
    pub fn new(tap: Tap) -> Card {
        Card { tap, receiver: Receiver::new(), transmitter: Transmitter::new(), address: None }
    }

    /// Has this address. Without it the guest gets it from its VMM.
    pub fn with_address(self, address: [u8; 6]) -> Card {
        Card { address: Some(address), ..self }
    }
}

impl Device for Card {
    const NAME: &'static str = "network card";
    const ID: u32 = 1;
    /// To receive, and to transmit.
    const QUEUES: usize = 2;

    /// What a driver agrees to reaches the TAP device.
    fn allow(system_calls: SystemCalls) -> SystemCalls {
        jail::allow_control(system_calls, &[libc::TUNSETVNETHDRSZ, libc::TUNSETOFFLOAD])
    }

    fn features(&self) -> u64 {
        FEATURES | self.address.map_or(0, |_| MAC)
    }

    fn config(&self) -> Option<&[u8]> {
        self.address.as_ref().map(|address| &address[..])
    }

    fn agree(&mut self, features: u64) -> Result<()> {
        let has_count = features & (VERSION_1 | MRG_RXBUF) != 0;
        let header_bytes = if has_count { HEADER_BYTES } else { OLD_HEADER_BYTES };
        self.tap.agree(header_bytes, features).context("the TAP device does not have the guest's offloads")?;
        self.receiver.agree(header_bytes, features & MRG_RXBUF != 0);
        Ok(())
    }

    fn work(&mut self, memory: &GuestMemoryMmap, rings: &mut [Ring]) -> Result<Turn> {
        let [receive, transmit] = rings else { unreachable!("there are two queues") };
        let sent = self.transmitter.turn(&self.tap, memory, transmit, self.receiver.header_bytes);
        let received = self.receiver.turn(&self.tap, memory, receive);
        Ok(if sent == Turn::Busy { Turn::Busy } else { received })
    }

    fn finish(&mut self, _: &GuestMemoryMmap, _: &mut [Ring]) -> Result<()> {
        // A turn leaves nothing behind.
        Ok(())
    }

    fn host(&self) -> Option<(BorrowedFd<'_>, &'static str)> {
        Some((self.tap.as_fd(), "the TAP device has been removed"))
    }
}
