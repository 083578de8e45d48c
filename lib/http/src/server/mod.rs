//! The server: connections that are answered, how they are accepted, and what is bounded while strangers use them.

mod accept;
mod connection;
mod connections;
mod responses;
mod slots;

pub use connection::{Connection, Exchange};
pub use connections::{Connected, Connections};
pub use slots::{Slot, SlotLimits, Slots};
