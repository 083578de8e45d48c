//! All tests of the upload queue in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod common;
mod consumers;
mod crash;
mod disk;
mod failures;
mod format;
mod http;
mod power;
mod process;
mod properties;
mod proxy;
mod rude;
mod shutdown;
mod store;
