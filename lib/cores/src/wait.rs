//! What a channel needs of other crates: the trace of its waits, and the errors of a send. With loom's atomics those crates cannot be built, and a
//! model has no trace.

#[cfg(not(loom))]
pub(crate) use glass_lib_executor::sync::{SendError, TrySendError};
#[cfg(not(loom))]
pub(crate) use glass_lib_trace::{BlockKind, Name, block};

#[cfg(loom)]
pub(crate) use models::{BlockKind, Name, SendError, TrySendError, block};

#[cfg(loom)]
mod models {
    #[derive(Debug)]
    pub struct SendError<T>(pub T);

    #[derive(Debug)]
    pub enum TrySendError<T> {
        Full(T),
        Closed(T),
    }

    pub(crate) enum BlockKind {
        Notify,
        Resource,
        Yield,
    }

    #[derive(Debug)]
    pub struct Name;

    impl Name {
        pub(crate) const fn new(_: &'static str) -> Name {
            Name
        }
    }

    pub(crate) fn block(_: BlockKind, _: &Name, _: u64) {}
}
