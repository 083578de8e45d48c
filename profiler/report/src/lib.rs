//! Reports of a profile: a summary for the terminal and a page for the browser.
//!
//! ```
//! let profile = glass_profiler_core::model::Profile::default();
//! print!("{}", glass_profiler_report::text(&profile, 20));
//! assert!(glass_profiler_report::html(&profile).starts_with("<!doctype html>"));
//! ```
//!
//! Both are made from one [`Tree`](glass_profiler_core::tree::Tree), so they cannot disagree.
#![forbid(unsafe_code)]

mod html;
pub mod samples;
pub mod trace;

pub use html::{Side, difference as difference_html, html, html_in, recordings_difference, trace_html, trace_html_in};
pub use samples::text::{difference as difference_text, text, text_with_tree};
