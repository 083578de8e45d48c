//! All tests of the command `glass` in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod bombs;
mod common;
mod export;
mod import;
mod only;
mod ps;
mod record;
mod streams;
mod top;
mod trace;
mod views;
