//! Lies for every reader of foreign bytes: guests, devices, networks, files and users.
//!
//! A [`targets::Target`] is one reader: an honest corpus, made by our own writers while it runs, a way to change it,
//! and what must hold of whatever the reader makes of the result. A case is a number: with the target's name and a
//! seed it gives the same bytes again ([`engine::Plan::input`]), so that a failure is three words. Cases run in a worker,
//! a process of its own with a limit of memory; a process that watches it goes on behind a case that killed it.
//!
//! There is no feedback from coverage: it needs an unstable compiler. Instead the mutators know the forms that are
//! read ([`mutate`]), and every target begins with bytes that are believed.
#![forbid(unsafe_code)]

extern crate alloc;

pub mod corpus;
pub mod engine;
pub mod mutate;
pub mod scratch;
pub mod supervisor;
pub mod targets;
pub mod worker;
