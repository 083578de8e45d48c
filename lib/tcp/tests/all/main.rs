//! Tests of lib/tcp against models of networks.

mod bottleneck;
mod throughput;
