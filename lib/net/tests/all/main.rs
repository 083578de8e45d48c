//! All tests of the TCP/IP stack in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod common;
mod copies;
mod datagrams;
mod dhcp;
mod handshakes;
mod hostile;
mod ipv6;
mod names;
mod neighbours;
mod path_mtu;
mod platform;
mod recovery;
mod trace;
mod wire;
