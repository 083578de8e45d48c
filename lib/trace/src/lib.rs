//! The tracing functions that a service and its platform call.
//!
//! An event costs a load and a branch while its group is off. While it is on, it is 32 bytes into the ring of the core
//! (in a process: of the thread) that runs; it does not block or allocate, and overwrites the oldest event. `glass_formats::trace` specifies
//! the bytes, which the profiler reads. A platform provides the memory ([`start`]), gives one [`Writer`] to each
//! core ([`Writer::claim`]) and handles the host's requests in each round ([`follow_host`]).
#![no_std]
#![deny(unsafe_code)]

mod console;
mod emit;
pub mod functions;
mod host;
mod name;
mod spans;
#[allow(unsafe_code)]
mod sys;
pub mod tracing_subscriber;
mod values;
mod writer;

pub use console::{ConsoleLog, LEVELS, LevelFilter, parse_level};
pub use emit::{
    block, block_numbered, complete, connection, counter, emit, gauge, idle_begin, idle_end, interrupt, is_on, kick,
    poll_begin, poll_end, retransmit, segment_in, segment_out, spin_begin, spin_end, submit, task_spawn, timers_fire,
    wake,
};
pub use glass_formats::trace::{
    BlockKind, Event, Group, Kind, Operation, Outcome, Presence, UNREQUESTED_MIN, ValueType, WakeSource,
};
pub use host::{Change, extend, follow_host, has_request, set_origin, set_rate, start, switch};
pub use name::{Name, intern};
pub use sys::{CONTROL, CORE_WORDS_OFFSET, ticks};
pub use values::{Counter, Gauge, Metric, Metrics};
pub use writer::{Writer, set_current};
