//! Several cores: each has its own tasks, clock handle and memory, and starts tasks on the others.

use crate::{Cancelled, Clock, Console, JoinTask, Random, Spawn};
use alloc::sync::Arc;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};

/// What each core of a machine has. The first core has disks and a network too: [`Platform`](crate::Platform).
///
/// Tasks, and all that is not `Send`, stay on their core. A closure crosses with [`Cores::spawn_on`], values through the channels of
/// `glasshouse::cores`.
pub trait Cores: Clock + Console + Random + Spawn + Clone + 'static {
    /// A core, as the tasks on it use it.
    type Core: Cores<Core = Self::Core>;

    /// How many cores the machine has, at least one. Their numbers are below this, and the first one's is 0.
    fn cores(&self) -> usize;

    /// The number of the core that this belongs to.
    fn core(&self) -> usize;

    /// Runs `start` on core number `core`, as a task there with the name `name`, and then the future that it returns. The closure is
    /// sent to the core; the future is made there and need not be `Send`.
    ///
    /// It costs an allocation, and where that core sleeps an interrupt (in a process: a system call). The task of a core that has no room for one more
    /// task is dropped, and its handle completes with [`Cancelled`].
    ///
    /// ```
    /// # use glass_api::{Clock, Cores, SpawnOnError};
    /// async fn sum(platform: impl Cores, numbers: Vec<u64>) -> Result<u64, SpawnOnError> {
    ///     let other = platform.cores() - 1;
    ///     let task = platform.spawn_on(other, "sum", move |_core| async move { numbers.iter().sum() })?;
    ///     Ok(task.await.unwrap_or(0))
    /// }
    /// ```
    fn spawn_on<T, F>(
        &self,
        core: usize,
        name: &'static str,
        start: impl FnOnce(Self::Core) -> F + Send + 'static,
    ) -> Result<CoreHandle<T>, SpawnOnError>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static;
}

/// A task that was started on a core by [`Cores::spawn_on`]: await it for its value, on any core, or [`CoreHandle::cancel`] it.
/// Dropping it does neither.
pub struct CoreHandle<T> {
    task: Arc<dyn JoinTask<T> + Send + Sync>,
}

impl<T> CoreHandle<T> {
    /// For platforms: the handle of `task`.
    pub fn new(task: Arc<dyn JoinTask<T> + Send + Sync>) -> CoreHandle<T> {
        CoreHandle { task }
    }

    /// Ends the task: it is dropped on its core instead of being polled. No effect on a task that has ended. Await the handle to
    /// wait until it is dropped.
    pub fn cancel(&self) {
        self.task.cancel();
    }

    /// Whether the task has ended, by itself or cancelled.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

impl<T> Future for CoreHandle<T> {
    type Output = Result<T, Cancelled>;

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<Result<T, Cancelled>> {
        self.task.poll_join(context)
    }
}

impl<T> fmt::Debug for CoreHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("CoreHandle").field("is_finished", &self.is_finished()).finish()
    }
}

/// Why nothing was started on a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnOnError {
    /// There is no core with this number.
    NoCore {
        /// The number.
        core: usize,
        /// How many cores there are.
        cores: usize,
    },
    /// So many closures wait for the core already: it runs a task that does not give way.
    Busy {
        /// The core.
        core: usize,
        /// The bound that was reached.
        waiting_max: usize,
    },
}

impl fmt::Display for SpawnOnError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            SpawnOnError::NoCore { core, cores } => {
                write!(f, "there is no core {core}: the machine has {cores}, numbered from 0 on")
            }
            SpawnOnError::Busy { core, waiting_max } => {
                write!(f, "core {core} does not start tasks: {waiting_max} wait for it, which is the limit")
            }
        }
    }
}

impl core::error::Error for SpawnOnError {}
