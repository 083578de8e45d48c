//! What the tests of reports share.

pub mod browser;
pub mod profiles;
pub mod trace_view;
pub mod traces;
