//! All tests of the api on a process in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod cores;
mod disks;
mod files;
mod sockets;
mod vsock;
