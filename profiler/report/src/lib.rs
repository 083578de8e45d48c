//! Reports of a profile: a summary for the terminal and a page for the browser.
//!
//! ```
//! let profile = glass_profile::model::Profile::default();
//! print!("{}", glass_report::text(&profile, 20));
//! assert!(glass_report::html(&profile).starts_with("<!doctype html>"));
//! ```
//!
//! Both are made from one [`Tree`](glass_profile::tree::Tree), so they cannot disagree.
#![forbid(unsafe_code)]

mod html;
pub mod samples;
pub mod trace;

pub use html::{Side, difference as difference_html, html, recordings_difference, trace_html};
pub use samples::text::{difference as difference_text, text, text_with_tree};
