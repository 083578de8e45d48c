//! A single-core executor: tasks, wakers and timers. It does no I/O.
//!
//! A platform owns the loop: it calls [`Executor::run_ready`], polls its devices, calls
//! [`Executor::fire_timers`] and sleeps until [`Executor::next_deadline`]: one *round*. The executor never
//! blocks, takes time as an argument and allocates when a task or a timer is created; the primitives of [`sync`] allocate when
//! a task waits.
//!
//! Cost of a wake: one `fetch_or` on a word of a bitmap, and the platform's [`Unpark`] when the
//! core had nothing to run. Cost of a poll: a scan of two words and a virtual call. Wakes, waits, and the start and end of a poll
//! are trace points: a load and a branch each while tracing is off.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod executor;
mod join;
mod ready;
pub mod sync;
mod timers;
mod uncontained;

pub use executor::{Executor, TASKS_MAX};
pub use ready::Unpark;
pub use timers::Sleep;
pub use uncontained::Uncontained;
