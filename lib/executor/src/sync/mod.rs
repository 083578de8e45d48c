//! Waiting for each other among tasks of one core.
//!
//! | type | for |
//! |---|---|
//! | [`Notify`] | a state that changes: a condition variable |
//! | [`Semaphore`], [`Mutex`] | a bounded number of holders, one holder |
//! | [`channel`], [`oneshot`] | values from task to task, in order or once |
//! | [`Watch`] | the latest value of something, such as a configuration |
//! | [`Latch`] | something that happens once, such as the start or the end of a service |
//!
//! All of them are fair: the task that waits longest goes first, and a newcomer never overtakes. A wake-up is O(log n) in the
//! number of waiting tasks. All futures are cancel safe: a permit, lock or notification that was given to a dropped future goes to
//! the next waiter. Each wait has a name in the trace; the functions `named` choose it.
//!
//! Everything here belongs to one core, as tasks do, which the compiler checks: nothing of it is `Send`. Values cross from one core to another
//! through the channels of `glasshouse::cores`.
//!
//! ```
//! use glass_lib_executor::sync::{Mutex, channel};
//! use std::rc::Rc;
//!
//! # async fn example() {
//! let (sender, mut receiver) = channel(8);
//! let total = Rc::new(Mutex::new(0));
//! sender.send(5).await.unwrap();
//! drop(sender);
//! while let Some(number) = receiver.recv().await {
//!     *total.lock().await += number;
//! }
//! # }
//! ```

mod channel;
mod latch;
mod mutex;
mod notify;
mod oneshot;
mod semaphore;
mod watch;

pub use channel::{Receiver, SendError, Sender, TrySendError, channel, channel_named};
pub use latch::{Latch, Opened};
pub use mutex::{Mutex, MutexGuard};
pub use notify::{Notified, Notify};
pub use oneshot::{Closed, OneReceiver, OneSender, oneshot, oneshot_named};
pub use semaphore::{Acquire, Permit, Semaphore};
pub use watch::{Watch, Watcher};

use core::future::poll_fn;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Poll;
use glass_lib_trace::{BlockKind, Name, block};

/// The number of the next [`Reason`]; 0 is none.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

static TURN: Name = Name::new("turn");

/// What a trace calls a wait.
struct Reason {
    kind: BlockKind,
    name: &'static Name,
    /// Distinguishes it from others that have the same name.
    number: u64,
}

impl Reason {
    fn new(kind: BlockKind, name: &'static Name) -> Reason {
        // Relaxed: numbers only have to differ.
        Reason { kind, name, number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed) }
    }

    /// The task that is being polled waits.
    fn block(&self) {
        block(self.kind, self.name, self.number);
    }
}

/// Returns to the executor once: every task that was runnable when this round started is polled before this one. A task that
/// was woken during this round may be polled after it.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if core::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        block(BlockKind::Yield, &TURN, 0);
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}
