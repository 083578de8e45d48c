//! Tests of the store on simulated disks.
#![forbid(unsafe_code)]

mod common;
mod crash;
mod damage;
mod faults;
mod model;
mod open;
mod power;
