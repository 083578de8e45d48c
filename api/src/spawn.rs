//! Tasks that run beside each other on one core.

use alloc::rc::Rc;
use alloc::string::String;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};

/// Starts tasks.
pub trait Spawn {
    /// Runs `task` until it ends. `name` is what traces and profiles call it.
    ///
    /// Dropping the handle detaches the task. A panic in a task ends the whole service, unless it is [contained](Spawn::contain). When
    /// `serve` returns, tasks that still run are abandoned, without their destructors.
    ///
    /// ```
    /// # use glass_api::{Cancelled, Spawn, SpawnError};
    /// async fn sum(platform: impl Spawn, numbers: Vec<u64>) -> Result<Option<u64>, SpawnError> {
    ///     let task = platform.spawn("sum", async move { numbers.iter().sum() })?;
    ///     match task.await {
    ///         Ok(sum) => Ok(Some(sum)),
    ///         Err(Cancelled) => Ok(None),
    ///     }
    /// }
    /// ```
    fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError>;

    /// `task`, whose panic is its value in a process and in a simulation: the service continues. **In a VM a panic ends the service**
    /// as any other does, with a crash report; `glass run --restart` starts it again.
    ///
    /// Message and place of the panic are printed once, on standard error. The trace counts it as `panics contained`, and has a
    /// warning with the task and the place.
    ///
    /// What `task` owns is dropped, and what it had borrowed is free again (`RefCell`, the locks of `sync`), but **what it was
    /// changing stays as it is then**. So contain what shares nothing that a half done change would break. A panic in a destructor during the
    /// unwinding ends the process; so does any panic of a program that is built with `panic = "abort"`.
    ///
    /// ```
    /// # use glass_api::{Cores, SpawnError};
    /// /// Whether a hook, which may panic, has run to its end.
    /// async fn call(platform: impl Cores, hook: impl Future<Output = ()> + 'static) -> Result<bool, SpawnError> {
    ///     let task = platform.spawn("hook", platform.contain(hook))?;
    ///     Ok(matches!(task.await, Ok(Ok(()))))
    /// }
    /// ```
    fn contain<F: Future>(&self, task: F) -> impl Future<Output = Result<F::Output, Panicked>> + use<Self, F>;
}

/// A task that was spawned: await it for its value, or [`JoinHandle::cancel`] it. Dropping it does neither.
pub struct JoinHandle<T> {
    task: Rc<dyn JoinTask<T>>,
}

/// The executor's side of a [`JoinHandle`]; not for services.
pub trait JoinTask<T> {
    /// Returns the task's value, once; [`Cancelled`] if it was dropped before it ended. Only one task may wait for it.
    fn poll_join(&self, context: &mut Context) -> Poll<Result<T, Cancelled>>;

    /// Requests cancellation: the executor drops the task when it would poll it next.
    fn cancel(&self);

    /// Whether the task has ended, by itself or cancelled.
    fn is_finished(&self) -> bool;
}

impl<T> JoinHandle<T> {
    /// For executors: the handle of `task`.
    pub fn new(task: Rc<dyn JoinTask<T>>) -> JoinHandle<T> {
        JoinHandle { task }
    }

    /// Requests cancellation: the executor drops the task, with everything that it holds, when it would poll it next. No effect
    /// on a task that has ended. Await the handle to wait until it is dropped.
    pub fn cancel(&self) {
        self.task.cancel();
    }

    /// Whether the task has ended, by itself or cancelled.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Cancelled>;

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<Result<T, Cancelled>> {
        self.task.poll_join(context)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish()
    }
}

/// The task was dropped before it completed: by [`JoinHandle::cancel`], or because its simulated node was powered off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the task was cancelled")
    }
}

impl core::error::Error for Cancelled {}

/// The panic of a contained task: [`Spawn::contain`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked {
    /// The message of the panic.
    pub message: String,
    /// File, line and column, as in `src/lib.rs:7:5`.
    pub place: String,
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "a panic at {}: {}", self.place, self.message)
    }
}

impl core::error::Error for Panicked {}

/// The executor already has its maximum number of tasks.
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
