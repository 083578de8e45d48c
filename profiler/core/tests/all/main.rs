//! All tests of recordings, unwinding and symbols in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod aarch64;
mod bombs;
mod common;
mod damaged;
mod disks;
mod go;
mod goroutines;
mod holes;
mod jit;
mod orc;
mod processes;
mod recording;
mod rules;
mod segments;
mod skid;
mod split;
mod symbols;
mod threads;
mod trace_build;
mod trace_builder;
mod trace_example;
mod trace_path;
mod trace_pieces;
mod trace_reason;
mod unseen;
mod unwind;
mod views;
