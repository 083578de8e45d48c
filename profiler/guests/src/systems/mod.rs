//! What runs inside a guest: images of ours, a Linux, a kernel that has moved, and the traces of our services.
//!
//! May use: [`find`](crate::find), [`files`](crate::files), [`memory`](crate::memory). No backend: memory is read through
//! [`AddressSpace`](crate::memory::AddressSpace) and the like, and what a sample copies is a [plan](plan::CopyPlan).

pub mod boot_image;
pub mod glasshouse;
pub mod image;
mod landmarks;
mod linux;
pub(crate) mod plan;
mod relocated;
pub(crate) mod stack;
pub mod symbols;
