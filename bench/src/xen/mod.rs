//! `xen`: what a domain of Xen costs and how fast it is. Xen runs in QEMU's emulation.

mod block;
mod network;
mod traces;

use crate::outcome::Part;

/// The parts.
pub const PARTS: [Part; 3] = [("traces", traces::run), ("block", block::run), ("network", network::run)];

/// What the figures can show.
const EMULATED: &str = "Xen runs in QEMU's emulation (TCG), where a hypercall takes some 16 us and memory is as slow as code: ratios of ways that make the same kinds of calls are meaningful, microseconds are not those of hardware";
