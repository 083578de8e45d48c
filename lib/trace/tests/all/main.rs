//! All tests of tracing in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod common;
mod events;
mod rings;
mod spans;
