//! All tests of end to end in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod addresses;
mod boots;
mod broken;
mod build;
mod buses;
mod c_programs;
mod console;
mod cores;
mod crash;
mod disk;
mod entropy;
mod faults;
mod first_service;
mod full;
mod functions;
mod glass;
mod hostile;
mod live;
mod memory;
mod mpi;
mod names;
mod network;
mod oracle;
mod owner;
mod platform_vm;
mod record;
mod service;
mod shutdown;
mod trace;
mod trace_vm;
mod traced;
mod vsock;
mod web;
mod xen;
mod xen_services;
