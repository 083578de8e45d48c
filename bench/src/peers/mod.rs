//! Programs that do the same as ours, measured in the same run: on the host, and in a VM with Linux.

pub mod helpers;
pub mod linux;
pub mod nginx;
pub mod tusd;
