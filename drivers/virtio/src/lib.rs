//! Virtqueues and virtio devices, over two seams: registers ([`Transport`]) and memory ([`Dma`]).
//!
//! Nothing here knows a kernel. A platform makes a transport and hands it to [`Blk`], [`Net`] or
//! [`Console`]; its loop drives them through [`Driver`]: poll, kick once a round, and before it
//! sleeps, arm. No function blocks and none takes an interrupt.
//!
//! A device may be wrong or hostile. Everything that decides where the driver writes or how far it
//! reads lives in memory that the device cannot reach; what the device writes is copied once,
//! checked, then trusted. A device that answers something impossible is marked broken, reset, and
//! its requests fail; it cannot make the driver corrupt memory, panic or wait for ever.
//!
//! Only `dma.rs` and `mmio.rs` touch memory through pointers. The device files use `unsafe` for
//! promises about time: that a buffer outlives the request that names it, and that nobody looks at
//! it meanwhile.
#![no_std]

extern crate alloc;
#[cfg(any(test, feature = "fake"))]
extern crate std;

mod blk;
#[cfg(test)]
mod blk_tests;
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
mod mmio;
mod net;
mod net_buffers;
#[cfg(test)]
mod net_tests;
mod offload;
mod queue;
#[cfg(test)]
mod queue_tests;
mod request;
mod session;
#[cfg(test)]
mod trace_tests;
mod transport;

pub use blk::Blk;
pub use console::{Console, ConsoleConfig};
pub use disk::Disk;
pub use dma::{Dma, DmaMemory, IdentityDma, PAGE_BYTES};
pub use error::{Lie, SetupError, TransportError};
pub use mmio::{MmioRegisters, MmioTransport, Registers, WINDOW_BYTES};
pub use net::{Net, NetConfig, NetRxToken, NetTxToken};
pub use request::{Request, RequestId, SubmitError};
pub use transport::{QueueAddresses, Transport, device, feature, status};

/// What a platform's loop does with every device. All calls return at once.
///
/// A round: `poll` each driver, run tasks, `kick` each driver. To sleep: `arm` each driver; if any
/// says that work is there, `disarm` and go on; else sleep, and afterwards `disarm`.
pub trait Driver {
    /// Takes what the device has completed. Returns whether there was any, so whether tasks may
    /// have been woken or frames wait to be read.
    fn poll(&mut self) -> bool;

    /// Tells the device about everything that was queued since the last call, if it wants to know.
    fn kick(&mut self);

    /// Asks for an interrupt when there is work. Returns true when work is there already: do not
    /// sleep then. No completion is lost between the question and the sleep.
    fn arm(&mut self) -> bool;

    /// Asks for no more interrupts.
    fn disarm(&mut self);

    /// Takes the device's interrupt down. Call it first when its interrupt came, then `poll`.
    fn acknowledge_interrupt(&mut self);
}
