//! What the C interface needs of a process.

use crate::{fabric, job, sys};
use glass_mpi::{Fabric, Segment};
use glass_mpi_abi::Host;
use std::io::Write;

/// This process.
pub(crate) struct ProcessHost;

impl Host for ProcessHost {
    fn join(&self) -> Result<(Box<dyn Fabric>, Segment), String> {
        job::join().map(|(fabric, segment)| (Box::new(fabric) as Box<dyn Fabric>, segment))
    }

    fn print(&self, line: &str) {
        // There is no other place to report to when standard error is closed.
        let _ = writeln!(std::io::stderr(), "{line}");
    }

    fn exit(&self, code: i32) -> ! {
        sys::exit(code)
    }

    fn machine(&self) -> String {
        std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_or("localhost".to_owned(), |name| name.trim().to_owned())
    }

    fn process(&self) -> u32 {
        std::process::id()
    }

    fn now_ns(&self) -> u64 {
        fabric::now_ns()
    }
}
