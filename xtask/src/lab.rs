//! `cargo xtask lab`: a prompt in an emulated machine with an ordinary KVM, whose files are this machine's own.

use crate::progress::Steps;
use crate::{build, packages};
use anyhow::{Context, Result, ensure};
use glass_tests::programs;
use glass_tests::svm::{self, Parts};
use std::io::{IsTerminal, stdin};

/// Builds `glass` and the image of the queue, and runs the machine until its shell ends.
pub fn run() -> Result<()> {
    ensure!(stdin().is_terminal(), "the lab has a prompt: run it in a terminal");
    packages::ensure(packages::FOR_LAB)?;
    let mut steps = Steps::new(2);
    let step = steps.begin("build glass and the upload queue", None);
    step.done(&build::for_lab()?);
    let step = steps.begin("make the machine of Debian's packages", None);
    let parts = Parts::get()?;
    step.done("");
    drop(steps);
    eprintln!("booting, some 10 s; Ctrl-A X ends the machine at once");
    let queue = programs::image("upload-queue").context("the image of the queue is not where it was built")?;
    let status = svm::prompt(&parts, &build::tested(), &queue)?;
    ensure!(status.success(), "QEMU ended with {status}");
    Ok(())
}
