//! System calls, and the symbol by which the C interface finds its host.

#[cfg(glass_static)]
mod alone;
mod calls;
mod memory;

pub(crate) use calls::{cores, exit, machine, now_ns, print_error, process, sleep, variable, yield_now};
pub(crate) use memory::{Peers, segment};

#[unsafe(no_mangle)]
fn glass_mpi_host() -> &'static dyn glass_mpi_abi::Host {
    &crate::host::ProcessHost
}
