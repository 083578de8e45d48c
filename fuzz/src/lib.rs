//! Changed inputs for every parser of untrusted input: of guests, devices, networks, files and users.
//!
//! A [`targets::Target`] is one parser: a valid corpus, made by our own writers at run time, a mutator,
//! and the properties that must hold for any input. A case is a number: with the target's name and a
//! seed it gives the same bytes again ([`engine::Plan::input`]), so that these three reproduce a failure. Cases run in a worker,
//! a separate process with a memory limit; the supervisor continues after a case that killed it.
//!
//! The mutators are written for the formats ([`mutate`]), and every target starts with valid bytes. In a build with counters at the
//! edges of the code ([`sys`]), inputs that reach new code are kept and changed further ([`coverage`], decision 23).
#![deny(unsafe_code)]

extern crate alloc;

pub mod corpus;
pub mod coverage;
pub mod engine;
pub mod mutate;
pub mod scratch;
pub mod supervisor;
#[allow(unsafe_code)] // The compiler calls it, and its counters are raw memory.
pub mod sys;
pub mod targets;
pub mod worker;
