//! The trace of a guest: control pages, a ring of events for each core or thread,
//! and a table of names. `docs/formats/trace.md` specifies them.

mod control;
mod event;
mod mpi;
mod ring;

pub use control::{
    CONTROL_BYTES, CONTROL_MAGIC, Control, FUNCTIONS_MAX, FUNCTIONS_OFFSET, HOST_LINE_OFFSET, NAME_BYTES,
    NAME_TEXT_BYTES, NAMES_MAX, NAMES_OFFSET, NameEntry, RING_BYTES, RING_NAME_NONE, RINGS_MAX, RINGS_OFFSET,
    RingEntry, TRACE_SYMBOL, TRACE_VERSION, words_of_name,
};
pub use event::{
    BlockKind, Event, GROUPS, Group, Kind, MPI_ANY, MpiRole, Operation, Outcome, Presence, TRACE_CONTEXT,
    UNREQUESTED_MIN, VMM_SPANS, ValueType, WakeSource,
};
pub use mpi::{MPI_CALLS, mpi_call};
pub use ring::{EVENT_BYTES, EVENT_WORDS, Ring, readable};
