//! All tests of the ways to read a guest in one program, so that it is linked once.
mod common;
mod debuginfod;
mod file;
mod gdbstub;
mod jit;
mod kvm;
mod linux;
mod malfunctioning;
mod monitor;
mod moved;
mod owner;
mod paused;
mod process;
mod ram;
mod symbols;
mod truth;
mod vmm;
