//! The world a service runs in.

use crate::{Block, Cores, Net};
use alloc::string::String;
use core::fmt;

/// Everything that a service can ask of the world: the first core, with its devices. Handles are cheap to clone.
pub trait Platform: Cores {
    /// The disks' type.
    type Block: Block;
    /// The network's type.
    type Net: Net;

    /// The service's arguments, without a program name.
    fn args(&self) -> &[String];

    /// Disk number `index`, from 0 on; `None` when there are not so many.
    fn block(&self, index: usize) -> Option<Self::Block>;

    /// The network.
    fn net(&self) -> Self::Net;

    /// Completes when the service is to end: after SIGTERM or SIGINT to its process, or when `glass run` passes one on
    /// to its VM. A service that never calls this ends at the first of them, as a process without a handler does. One
    /// that does call it finishes what it has begun and returns; a second signal ends it at once.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use glass_api::Platform;
    /// async fn serve(platform: impl Platform) {
    ///     let stop = platform.shutdown();
    ///     platform.spawn("work", async { /* ... */ }).unwrap();
    ///     stop.await;
    ///     platform.print(format_args!("ends now"));
    /// }
    /// ```
    fn shutdown(&self) -> impl Future<Output = ()> + 'static;

    /// How much memory the service uses.
    fn memory(&self) -> MemoryUse;
}

/// Memory of a service: the heap of a VM, the resident memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Bytes in use.
    pub used_bytes: u64,
    /// The most that were in use since the start.
    pub peak_bytes: u64,
    /// Bytes that there are: the heap's size, or what the host lets the process have.
    pub total_bytes: u64,
}

/// Text for the person who runs the service.
pub trait Console {
    /// Prints one line; a line end is added. Output may be delayed and, when the host does not read
    /// it, dropped: the console never blocks a service.
    fn print(&self, line: fmt::Arguments);

    /// Completes when there is room for `bytes` bytes, so that a line of so many bytes, its end included, is not
    /// dropped if it is printed next. For output that must be whole: it waits as long as the host does not read. A
    /// console that never drops has room at once. `usize::MAX` waits until everything that was printed has been taken.
    async fn room(&self, bytes: usize) {
        let _ = bytes;
    }
}

/// Unpredictable bytes.
pub trait Random {
    /// Fills `bytes`. Good enough for keys on platforms with a hardware source; under simulation
    /// they follow from the seed.
    fn fill_random(&self, bytes: &mut [u8]);
}
