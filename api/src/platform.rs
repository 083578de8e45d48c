//! The platform that a service runs on.

use crate::{Block, Cores, Files, Net};
use alloc::string::String;
use core::fmt;

/// Everything that a service can request from its platform: the first core, with its devices. Handles are cheap to clone.
pub trait Platform: Cores {
    /// The disks' type.
    type Block: Block;
    /// The files' type.
    type Files: Files;
    /// The network's type.
    type Net: Net;

    /// The service's arguments, without a program name.
    fn args(&self) -> &[String];

    /// Disk number `index`, from 0 on; `None` when there are not so many. `glass run` supports one disk, a process that is started
    /// directly several.
    fn block(&self, index: usize) -> Option<Self::Block>;

    /// The directory that the service was given; `None` without one.
    fn files(&self) -> Option<Self::Files>;

    /// The network.
    fn net(&self) -> Self::Net;

    /// Completes when the service is to end: after SIGTERM or SIGINT to its process, or when `glass run` passes one on
    /// to its VM. Calling this installs the handler; before the first call a signal ends the service at once. After the first signal
    /// the service should finish its work and return from `serve`. A second signal ends it at once.
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

    /// Which copy of a VM this is (`glass run --from`): 0 in a service that was started, another number in each copy of its VM. It changes while the
    /// service waits. Random numbers of a copy are its own from its first moment on; what the service has made of earlier ones is the same in all
    /// copies, so a service that has keys, tokens or names of itself compares this number before it uses them, and makes new ones.
    ///
    /// ```
    /// # use glass_api::{Platform, Random};
    /// struct Token { generation: u64, bytes: [u8; 32] }
    ///
    /// fn token<'a>(platform: &impl Platform, token: &'a mut Token) -> &'a [u8; 32] {
    ///     if token.generation != platform.generation() {
    ///         token.generation = platform.generation();
    ///         platform.fill_random(&mut token.bytes);
    ///     }
    ///     &token.bytes
    /// }
    /// ```
    fn generation(&self) -> u64 {
        0
    }
}

/// Memory of a service: the heap of a VM, the resident memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Bytes in use.
    pub used_bytes: u64,
    /// The most that were in use since the start.
    pub peak_bytes: u64,
    /// The size of the heap, or the memory limit of the process (that of its cgroup, or the host's memory).
    pub total_bytes: u64,
}

/// Text for the person who runs the service.
pub trait Console {
    /// Prints one line; a line end is added. Output may be delayed and, when the host does not read
    /// it, dropped: the console never blocks a service.
    fn print(&self, line: fmt::Arguments);

    /// Waits until a line of `bytes` bytes (with its line end) would not be dropped. If the buffer is smaller than that, waits
    /// until it is empty. `usize::MAX` waits until all output was written, like a flush. It waits as long as the host does
    /// not read; a console that never drops has room at once.
    async fn writable(&self, bytes: usize) {
        let _ = bytes;
    }
}

/// Unpredictable bytes.
pub trait Random {
    /// Fills `bytes` with cryptographically secure random bytes. In a simulation they follow from the seed.
    fn fill_random(&self, bytes: &mut [u8]);
}
