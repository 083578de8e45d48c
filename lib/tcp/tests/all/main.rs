//! Tests of lib/tcp: scripts of segments, one for each rule, and a model of two ends over a bad network.

mod common;
mod model;
mod receiving;
mod sending;
mod states;
