//! Side-by-side measurements: what is measured, how runs alternate, and the one form of a result.
//!
//! A measurement only runs built programs. `cargo xtask bench NAME` builds them, calls
//! the measurement, prints the table and writes the JSON.
#![forbid(unsafe_code)]

pub mod figure;
pub mod statistics;
