//! What the C interface needs of a process.

use crate::{job, sys};
use alloc::boxed::Box;
use alloc::string::String;
use glass_lib_mpi::{Fabric, Segment};
use glass_lib_mpi_abi::Host;

/// This process.
pub(crate) struct ProcessHost;

impl Host for ProcessHost {
    fn join(&self) -> Result<(Box<dyn Fabric>, Segment), String> {
        job::join().map(|(fabric, segment)| (Box::new(fabric) as Box<dyn Fabric>, segment))
    }

    fn print(&self, line: &str) {
        sys::print_error(line);
    }

    fn exit(&self, code: i32) -> ! {
        sys::exit(code)
    }

    fn machine(&self) -> String {
        sys::machine()
    }

    fn process(&self) -> u32 {
        sys::process()
    }

    fn now_ns(&self) -> u64 {
        sys::now_ns()
    }
}
