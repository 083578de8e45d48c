//! Power cuts of disks whose logs are made here.

mod campaign;
mod common;
mod derived;
mod logs;
