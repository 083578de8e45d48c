//! What there is to say about samples: figures, which the text and the page share, the text, and the data of the page.

pub(crate) mod cost;
pub mod difference;
pub(crate) mod guest_tracks;
pub mod page;
pub(crate) mod processes;
pub(crate) mod text;
pub mod timeline;
pub mod variance;
