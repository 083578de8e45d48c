//! `platform`: what the machine below a service costs, over virtio-mmio and over PCI, and the cost of a card that cannot send.

mod tap;
mod tx_blocked;
mod wakes;

use crate::Part;

/// The parts, each in its own module.
pub const PARTS: [Part; 2] = [("wakes", wakes::run), ("tx-blocked", tx_blocked::run)];
