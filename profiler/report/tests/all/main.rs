//! All tests of reports in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod address;
mod difference;
mod filters;
mod first_screen;
mod golden;
mod guest_processes;
mod host;
mod mpi;
mod page;
mod recordings;
mod same_figures;
mod support;
mod trace_damaged;
mod trace_difference;
mod trace_kicks;
mod trace_page;
mod trace_story;
mod trace_text;
mod trace_tracks;
mod tree;
