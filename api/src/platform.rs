//! The world a service runs in.

use crate::{Block, Clock, Net};
use alloc::string::String;
use core::fmt;

/// Everything that a service can ask of the world. Handles are cheap to clone.
pub trait Platform: Clock + Console + Random + Spawn + Clone + 'static {
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

/// Tasks that run beside each other on one core.
pub trait Spawn {
    /// Runs `task` until it ends. `name` is what traces and profiles call it.
    fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + 'static) -> Result<(), SpawnError>;
}

/// There are as many tasks as the executor can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpawnError {
    /// The bound that was reached.
    pub tasks_max: usize,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} tasks are running already, which is the limit", self.tasks_max)
    }
}

impl core::error::Error for SpawnError {}
