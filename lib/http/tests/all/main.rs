//! All tests of the HTTP server's side in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod peers;
mod random;
mod requests;
mod world;
