//! The processes of devices, in their jail, between a guest and a model of QEMU: what they serve, and what a hostile guest does to them.

mod hostile;
mod jailed;
mod model;
