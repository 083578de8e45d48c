//! All tests of end to end in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod addresses;
mod build;
mod console;
mod crash;
mod faults;
mod full;
mod functions;
mod glass;
mod hostile;
mod live;
mod memory;
mod oracle;
mod owner;
mod record;
mod service;

mod trace;
mod trace_vm;
mod traced;
