//! All tests of the fuzzer in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod coverage;
mod halves;
mod real_disks;
mod short;
