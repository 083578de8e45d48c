//! Virtqueues and virtio devices, over two seams: registers ([`Transport`]) and memory ([`Dma`]).
//!
//! Nothing here depends on a kernel. A platform makes a transport and hands it to [`Blk`], [`Net`],
//! [`Vsock`], [`Fs`] or [`Console`]; its loop drives them through [`Driver`]: poll, kick once a round, and before it
//! sleeps, arm. No function blocks and none takes an interrupt.
//!
//! A device may be wrong or hostile. Everything that decides where the driver writes or how far it
//! reads lives in memory that the device cannot reach; what the device writes is copied once,
//! checked, then trusted. A device that answers something impossible is marked broken, reset, and
//! its requests fail; it cannot make the driver corrupt memory, panic or wait forever.
//!
//! Only `dma.rs` and `registers.rs` touch memory through pointers. The device files use `unsafe` for
//! promises about time: that a buffer outlives the request that names it, and that no code reads
//! it meanwhile.
#![no_std]

extern crate alloc;
#[cfg(any(test, feature = "fake"))]
extern crate std;

mod blk;
#[cfg(test)]
mod blk_range_tests;
#[cfg(test)]
mod blk_tests;
#[cfg(test)]
mod blk_watch_tests;
mod checksum;
mod console;
mod console_input;
mod console_output;
mod console_port;
#[cfg(test)]
mod console_tests;
mod disk;
mod dma;
mod error;
#[cfg(any(test, feature = "fake"))]
#[doc(hidden)]
pub mod fake;
mod files;
mod fs;
#[cfg(test)]
mod fs_fake;
#[cfg(test)]
mod fs_tests;
mod fuse;
mod mmio;
mod net;
mod net_buffers;
#[cfg(test)]
mod net_tests;
mod offload;
#[cfg(test)]
mod offload_tests;
mod pci;
#[cfg(test)]
mod pci_tests;
mod queue;
#[cfg(test)]
mod queue_tests;
mod registers;
mod request;
mod rng;
mod session;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod test_allocator;
#[cfg(test)]
mod trace_tests;
mod transport;
mod vsock;
#[cfg(test)]
mod vsock_tests;
mod watch;

pub use blk::Blk;
pub use console::{Console, ConsoleConfig};
pub use disk::{BlockDevice, Complete, Disk};
pub use dma::{Dma, DmaMemory, IdentityDma, PAGE_BYTES, Users};
pub use error::{Lie, SetupError, TransportError};
pub use files::{HostFiles, OpenFile};
pub use fs::Fs;
pub use mmio::{MmioTransport, WINDOW_BYTES};
pub use net::{Net, NetConfig, NetLimits, NetTransmit};
pub use offload::Offload;
pub use pci::{PciConfig, PciLayout, PciRegion, PciTransport, pci_capabilities, pci_device_kind};
pub use registers::{MmioRegisters, Registers};
pub use request::{Request, RequestId, SubmitError};
pub use rng::Rng;
pub use transport::{QueueAddresses, Transport, device, feature, status};
pub use vsock::{VSOCK_HEADER_BYTES, Vsock, VsockConfig, VsockPacket};

use core::fmt;
use core::time::Duration;
use glass_api::Instant;

/// What became of a device, for its user. The device is neither reset nor given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A request has taken this long.
    Silent(Duration),
    /// The device has completed all that it had not answered.
    Answers,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Notice::Silent(time) => {
                write!(f, "has not answered a request for {} s; all fail until it does", time.as_secs_f64())
            }
            Notice::Answers => write!(f, "answers again"),
        }
    }
}

/// What a core's loop does with every driver, whatever its device and bus. All calls return at once.
///
/// A round: `poll` each driver, run tasks, `kick` each driver. To sleep: `arm` each driver; if one
/// reports that work is there, `disarm` and continue; else sleep, `acknowledge` the driver whose interrupt ended that, and
/// `disarm`. A driver that has a `lie` is of no use until its `restart` succeeds.
pub trait Driver {
    /// Takes what the device has completed. Returns whether there was any, so whether tasks may
    /// have been woken or frames wait to be read. A core that spins only polls, and then sleeps: what a poll that returns false has
    /// added to a queue it publishes itself.
    fn poll(&mut self) -> bool;

    /// Hands over everything that tasks have queued, and notifies the device, once, if it wants to know. Returns whether
    /// that has made work: run the tasks before sleeping. A device that requests everything at its start has nothing to hand over.
    fn kick(&mut self) -> bool {
        false
    }

    /// Requests an interrupt when there is work. Returns true when work is there already: do not
    /// sleep then. No completion is lost between the question and the sleep.
    fn arm(&mut self) -> bool;

    /// Requests no more interrupts.
    fn disarm(&mut self);

    /// When to poll next, if nothing else happens.
    fn deadline(&mut self) -> Option<Instant> {
        None
    }

    /// Whether the next round has something to do, whatever the device does. Never sleep then.
    fn has_work(&self) -> bool {
        false
    }

    /// Whether something that was sent has not reached its receiver yet. A platform that ends continues to poll while this is true,
    /// within a limit.
    fn is_delivering(&self) -> bool {
        false
    }

    /// Takes the device's interrupt down. Call it first when its interrupt came, then `poll`; and once after the device was started,
    /// because it may have interrupted before its interrupt was listened to.
    fn acknowledge(&mut self);

    /// Why the device is not used any more, if that is so. All of its requests have failed or will at the next `poll`.
    fn lie(&self) -> Option<Lie>;

    /// Starts a device that has a [`Driver::lie`] once more, with its memory and interrupts as before. After an error it is as broken as before.
    fn restart(&mut self) -> Result<(), SetupError>;

    /// What became of the device since the last call, if its user should see that.
    fn take_notice(&mut self) -> Option<Notice> {
        None
    }

    /// What the trace calls the device: a number of `glass_trace::intern`. Without effect on a device whose requests are not traced.
    fn set_trace_name(&mut self, _name: u32) {}

    /// Reports to the trace what is there already: groups of events were switched on (bits of `glass_trace::Group`).
    fn announce(&self, _groups: u32) {}
}
