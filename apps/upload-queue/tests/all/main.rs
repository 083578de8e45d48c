//! All tests of the upload queue in one program, so that it is linked once.
#![forbid(unsafe_code)]

mod access;
mod access_log;
mod common;
mod consumers;
mod crash;
mod cross_origin;
mod digests;
mod disk;
mod failures;
mod format;
mod group_model;
mod groups;
mod grow;
mod http;
mod leases;
mod power;
mod process;
mod properties;
mod proxy;
mod ranges;
mod resumable;
mod resume;
mod rude;
mod scrub;
mod settings;
mod shutdown;
mod status;
mod store;
#[cfg(target_arch = "x86_64")]
mod tls;
mod upgrade;
