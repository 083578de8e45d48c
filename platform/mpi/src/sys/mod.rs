//! System calls, and the symbol by which the C interface finds its host.

#[cfg(glass_static)]
mod alone;
mod calls;
mod memory;
mod trace;

pub(crate) use calls::{cores, exit, machine, now_ns, print_error, process, sleep, variable, yield_now};
pub(crate) use memory::{Peers, segment};
pub(crate) use trace::trace;

#[unsafe(no_mangle)]
fn glass_mpi_host() -> &'static dyn glass_mpi_abi::Host {
    &crate::host::ProcessHost
}
