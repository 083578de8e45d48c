//! All tests of the simulated world in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod common;
mod cores;
mod disk;
mod network;
mod paths;
mod vsock;
mod world;
