//! All tests of exports in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod common;
mod host;
mod linux_guest;
mod mirage;
mod otlp;
mod processes;
mod programs;
mod readers;
mod traces;
