//! All tests of the web server in simulations, in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod answers;
mod cached;
mod changes;
mod listing;
mod on_disk;
mod site;
mod stalled;
