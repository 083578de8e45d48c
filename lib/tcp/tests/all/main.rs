//! Tests of lib/tcp: scripts of segments, one for each rule, a model of two ends over a bad network, and one of connections at a bottleneck.

mod bbr_draft;
mod bottleneck;
mod common;
mod hostile;
mod model;
mod path_mtu;
mod paths;
mod receiving;
mod sending;
mod states;
mod throughput;
