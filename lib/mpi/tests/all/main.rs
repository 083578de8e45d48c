//! The engine in a world of threads of which one runs at a time, chosen by a seed.
#![cfg(not(loom))]

mod collectives;
mod messages;
mod simulated;
mod traced;
mod typed;
