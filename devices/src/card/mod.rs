//! The network card of a VM in front of a TAP device of the host, or of a network in user mode (virtio 1.2, section 5.1).
//!
//! QEMU's own card reads each frame into a buffer and copies it from there to the VM, in the thread that serves everything else. Here the
//! host's kernel reads a frame directly into the VM's buffers, on a thread that does nothing else. Any guest with a driver for virtio-net
//! can have it.

mod datagrams;
mod moves;
mod tap;
#[cfg(test)]
mod tests;
mod user;

use crate::device::{Device, Host, Turn, VERSION_1};
use crate::rings::Ring;
use anyhow::Result;
use glass_lib_jail::SystemCalls;
use moves::{Receiver, Transmitter};
use std::io;
pub use tap::Tap;
pub use tap::check;
pub use user::{Listeners, User, UserNetwork};
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
const MTU: u64 = 1 << 3;
const CHECKSUMS_AND_SEGMENTS: u64 = CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | HOST_TSO4 | HOST_TSO6;

/// The header in front of each frame, and that of devices before virtio 1.0, which does not count buffers.
const HEADER_BYTES: usize = 12;
const OLD_HEADER_BYTES: usize = 10;

/// Where in the configuration the longest packet is, and bytes of the configuration until its end.
const CONFIG_MTU: usize = 10;
const CONFIG_BYTES: usize = 12;

/// What is behind a card. All calls return at once.
pub trait Link: Send {
    /// Adds what it needs of the kernel, once it is open, to what its process may do.
    fn allow(system_calls: SystemCalls) -> SystemCalls;

    /// What it can do for frames.
    fn features(&self) -> u64;

    /// The longest packet, if it is not an ordinary one.
    fn mtu(&self) -> Option<u16>;

    /// Sets the length of the headers in front of frames, and which frames the guest can take.
    fn agree(&mut self, header_bytes: usize, features: u64) -> Result<()>;

    /// Reads the next frame: its length with the header, `WouldBlock` without one. What does not fit is lost.
    ///
    /// # Safety
    /// The pieces are memory that may be written and that no reference leads to.
    unsafe fn read(&mut self, pieces: &[libc::iovec]) -> io::Result<usize>;

    /// Sends a frame.
    ///
    /// # Safety
    /// The pieces are memory that may be read.
    unsafe fn write(&mut self, pieces: &[libc::iovec]) -> io::Result<usize>;

    /// Whether it cuts a frame of several datagrams.
    fn takes_joined_datagrams(&self) -> bool;

    /// What the device waits for.
    fn host(&self) -> Host<'_>;
}

/// The card.
pub struct Card<L> {
    link: L,
    receiver: Receiver,
    transmitter: Transmitter,
    /// What the guest reads, where its VMM does not have that.
    config: Option<[u8; CONFIG_BYTES]>,
}

impl<L: Link> Card<L> {
    /// A card in front of a network. The guest gets its address from its VMM.
    pub fn new(link: L) -> Card<L> {
        Card { link, receiver: Receiver::new(), transmitter: Transmitter::new(), config: None }
    }

    /// Has this address.
    pub fn with_address(self, address: [u8; 6]) -> Card<L> {
        let mut config = [0; CONFIG_BYTES];
        config[..address.len()].copy_from_slice(&address);
        config[CONFIG_MTU..].copy_from_slice(&self.link.mtu().unwrap_or(0).to_le_bytes());
        Card { config: Some(config), ..self }
    }
}

impl<L: Link> Device for Card<L> {
    const NAME: &'static str = "network card";
    const ID: u32 = 1;
    /// To receive, and to transmit.
    const QUEUES: usize = 2;

    fn allow(system_calls: SystemCalls) -> SystemCalls {
        L::allow(system_calls)
    }

    fn features(&self) -> u64 {
        let of_config = self.config.map_or(0, |_| MAC | self.link.mtu().map_or(0, |_| MTU));
        self.link.features() | MRG_RXBUF | of_config
    }

    fn config(&self) -> Option<&[u8]> {
        self.config.as_ref().map(|config| &config[..])
    }

    fn agree(&mut self, features: u64) -> Result<()> {
        let has_count = features & (VERSION_1 | MRG_RXBUF) != 0;
        let header_bytes = if has_count { HEADER_BYTES } else { OLD_HEADER_BYTES };
        self.link.agree(header_bytes, features)?;
        self.receiver.agree(header_bytes, features & MRG_RXBUF != 0);
        Ok(())
    }

    fn work(&mut self, memory: &GuestMemoryMmap, rings: &mut [Ring]) -> Result<Turn> {
        let [receive, transmit] = rings else { unreachable!("there are two queues") };
        let sent = self.transmitter.turn(&mut self.link, memory, transmit, self.receiver.header_bytes);
        let received = self.receiver.turn(&mut self.link, memory, receive);
        Ok(if sent == Turn::Busy { sent } else { received })
    }

    fn finish(&mut self, _: &GuestMemoryMmap, _: &mut [Ring]) -> Result<()> {
        // A turn leaves nothing behind.
        Ok(())
    }

    fn host(&self) -> Option<Host<'_>> {
        Some(self.link.host())
    }
}
