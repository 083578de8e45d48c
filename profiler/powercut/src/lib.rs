//! The states of a disk that a power cut may leave, from a log of its writes, and what a check finds in each
//! ([decision 62](../../../docs/decisions/0062-power-cuts.md)).
#![forbid(unsafe_code)]

pub mod campaign;
pub mod commands;
pub mod http;
pub mod image;
pub mod items;
pub mod log;
pub mod page;
pub mod progress;
pub mod state;
pub mod text;
pub mod timeline;
