//! Events of a trace in words, one line each: for `glass tail`, for details in viewers and for the report of a crash.
//! Nothing else in the profiler words them.

mod describer;
mod message;
mod phrase;

pub use describer::{Describer, Line, Names};
pub use message::value;
pub use phrase::{flags, kind_name, operation, resource, wait, wait_object};
