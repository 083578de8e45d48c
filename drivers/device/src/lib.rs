//! What every device shares, whatever its bus: what a core's loop does with it ([`Driver`]), a disk ([`BlockDevice`], [`Disk`]) and a network card
//! ([`NetDevice`]) as a service sees them, and the two seams below a driver: memory that the device reaches ([`Dma`]) and
//! [`Registers`].
//!
//! Nothing here depends on a kernel, a bus or TCP/IP. A device may be wrong or hostile: it cannot make a driver corrupt memory, panic or wait
//! forever. What it does against its protocol is a [`Violation`].
//!
//! Only `dma.rs` and `registers.rs` touch memory through pointers.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod checksum;
mod disk;
mod dma;
mod driver;
mod error;
mod net;
mod offload;
mod registers;
mod request;
mod watch;

pub use checksum::Sum;
pub use disk::{BlockDevice, Complete, Disk};
pub use dma::{Dma, DmaMapping, DmaMemory, IdentityDma, Kept, PAGE_BYTES, Users};
pub use driver::{Driver, Notice};
pub use error::{SetupError, Violation};
pub use net::{NetDevice, NetLimits, NetTransmit};
pub use offload::{Offload, PartialChecksum, Segmentation, Verdict, verify};
pub use registers::{MmioRegisters, Registers, after_write};
pub use request::{Request, RequestId, SubmitError};
