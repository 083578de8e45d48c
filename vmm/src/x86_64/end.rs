//! The end of the VM, from any of its threads.

use std::process;
use std::thread;

/// The status of a VM that ends for another reason than its guest's request.
const FAILED: i32 = 1;

/// Ends the process and reports why.
pub fn failed(why: &str) -> ! {
    eprintln!("glass: the VM is ended: {why}");
    process::exit(FAILED)
}

/// A thread that the VM needs: if it panics, the VM ends.
pub struct Vital(&'static str);

/// Marks the current thread, as long as the result lives.
pub fn with_thread(name: &'static str) -> Vital {
    Vital(name)
}

impl Drop for Vital {
    fn drop(&mut self) {
        if thread::panicking() {
            failed(&format!("a fault in {}, reported above, is one of glass", self.0));
        }
    }
}
