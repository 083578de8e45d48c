//! What every part of the profiler agrees on: the model of a profile, and how to get one.
//!
//! This crate does no I/O of its own: readers, writers, files and times are arguments. The way of
//! a sample: a guest gives [`event::Event`]s, [`recorder::Recorder`] unwinds them and appends them to
//! a recording ([`recording`]), [`recording::read`] turns the file into a [`model::Profile`].
#![forbid(unsafe_code)]

pub mod arch;
pub mod budget;
mod cfi;
mod debug_files;
pub mod disk;
pub mod durations;
pub mod elf;
pub mod event;
pub mod files;
pub mod format;
pub mod guest;
pub mod guest_processes;
pub mod identity;
pub mod image;
pub mod images;
pub mod jit;
mod kind;
mod layer;
pub mod linux;
pub mod live;
pub mod map;
pub mod memory;
mod metered;
pub mod model;
pub mod names;
pub mod program;
pub mod recorder;
pub mod recording;
mod relocatable;
pub mod remarks;
mod stack_end;
mod state;
pub mod symbols;
pub mod threads;
pub mod trace;
pub mod tree;
pub mod unwind;
pub mod view;
pub mod words;
