//! All tests of HTTP in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod client;
mod panics;
mod peers;
mod random;
mod requests;
mod streams;
mod world;
