//! All tests of the smallest service in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod common;
mod process;
mod trace;
