//! What every part of the profiler agrees on: the model of a profile, and how to get one.
//!
//! This crate does no I/O of its own: readers and writers are arguments.
#![forbid(unsafe_code)]

pub mod model;
