//! Virtqueues and virtio devices, over two seams: registers ([`Transport`]) and memory ([`Dma`](glass_drivers_device::Dma)).
//!
//! Nothing here depends on a kernel. A platform makes a transport and hands it to [`Blk`], [`Net`],
//! [`Vsock`], [`Fs`] or [`Console`]; its loop drives them through [`Driver`](glass_drivers_device::Driver): poll, kick once a round, and before it
//! sleeps, arm. No function blocks and none takes an interrupt.
//!
//! A device may be wrong or hostile. Everything that decides where the driver writes or how far it
//! reads lives in memory that the device cannot reach; what the device writes is copied once,
//! checked, then trusted. A device that answers something impossible is marked broken, reset, and
//! its requests fail; it cannot make the driver corrupt memory, panic or wait forever.
//!
//! Nothing here touches memory through pointers. The device files use `unsafe` for
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
mod console;
mod console_input;
mod console_output;
mod console_port;
#[cfg(test)]
mod console_tests;
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
mod net_header;
#[cfg(test)]
mod net_header_tests;
#[cfg(test)]
mod net_tests;
mod pci;
#[cfg(test)]
mod pci_tests;
mod queue;
#[cfg(test)]
mod queue_tests;
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

pub use blk::Blk;
pub use console::{Console, ConsoleConfig};
pub use error::TransportError;
pub use files::{HostFiles, OpenFile};
pub use fs::Fs;
pub use mmio::{MmioTransport, WINDOW_BYTES};
pub use net::{Net, NetConfig, Transmit};
pub use pci::{PciConfig, PciLayout, PciRegion, PciTransport, pci_capabilities, pci_device_kind};
pub use rng::Rng;
pub use transport::{QueueAddresses, Transport, device, feature, status};
pub use vsock::{VSOCK_HEADER_BYTES, Vsock, VsockConfig, VsockPacket};
