//! `cargo xtask miri`: undefined behaviour in code that any host can run.

use crate::run;
use anyhow::Result;

/// Packages with `unsafe`, or below code that has it, whose tests need neither files nor sockets.
const PACKAGES: [&str; 5] =
    ["glass-formats", "glass-lib-executor", "glass-lib-trace", "glass-drivers-device", "glass-drivers-virtio"];

/// Runs the tests of [`PACKAGES`], or prints why they cannot run.
pub fn run() -> Result<()> {
    if !run::cargo(&["miri", "--version"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: this toolchain has no Miri, which comes with nightly Rust (`rustup component add miri`)");
        return Ok(());
    }
    let mut command = run::cargo(&["miri", "test", "--lib"]);
    run::streamed(command.args(PACKAGES.iter().flat_map(|package| ["--package", package])))
}
