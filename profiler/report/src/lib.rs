//! Reports of a profile: a summary for the terminal and a page for the browser.
//!
//! ```
//! let profile = glass_profile::model::Profile::default();
//! print!("{}", glass_report::text(&profile, 20));
//! assert!(glass_report::html(&profile).starts_with("<!doctype html>"));
//! ```
//!
//! Both are made from one [`tree::Tree`], so they cannot disagree.
#![forbid(unsafe_code)]

mod cost;
pub mod data;
pub mod difference;
pub mod format;
mod html;
pub mod names;
mod text;
pub mod timeline;
pub mod trace;
mod trace_page;
pub mod tree;
pub mod words;

pub use html::{Side, difference as difference_html, html, recordings_difference, trace_html};
pub use text::{difference as difference_text, text, text_with_tree};
