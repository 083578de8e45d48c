//! What there is to say about a trace: figures and tables, which the text and the page share, the text and the page.

pub mod difference;
pub mod figures;
mod functions;
mod label;
mod mpi;
pub mod over_time;
pub(crate) mod page;
pub mod sheets;
mod table;
mod text;

pub use text::{HIDDEN_DEFAULT, Settings, View, dominating_wait, summary, text};
