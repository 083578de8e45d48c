//! What runs inside a guest: images of ours, a Linux, a kernel that has moved, and the traces of our services.
//!
//! May use: [`find`](crate::find), [`files`](crate::files), [`memory`](crate::memory). No backend: memory is read through
//! [`AddressSpace`](crate::memory::AddressSpace) and the like, and what a sample copies is a `CopyPlan`.

pub(crate) mod boot_image;
pub mod glasshouse;
pub(crate) mod image;
mod landmarks;
pub(crate) mod linux;
pub(crate) mod plan;
mod relocated;
pub(crate) mod stack;
pub(crate) mod symbols;
pub mod vmcoreinfo;
