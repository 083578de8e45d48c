//! One core's executor: tasks, wakers and timers, and nothing of the world.
//!
//! A platform owns the loop: it calls [`Executor::run_ready`], polls its devices, calls
//! [`Executor::fire_timers`] and sleeps until [`Executor::next_deadline`]. The executor never
//! blocks, takes time as an argument and allocates only when a task or a timer is created.
//!
//! Cost of a wake: one `fetch_or` on a word of a bitmap, and the platform's [`Unpark`] when the
//! core had nothing to run. Cost of a poll: a scan of two words and a virtual call. Each tells the trace, which costs
//! a load and a branch at the begin and the end of a poll, in a wake and in a wait while nobody looks.
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

pub use executor::{Executor, TASKS_MAX};
pub use ready::Unpark;
pub use timers::Sleep;
