//! `glass completions`: what a shell needs to complete our commands.

use anyhow::{Context, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

/// Prints a completion script for a shell.
///
/// For bash: `glass completions bash > /etc/bash_completion.d/glass`, or without root under
/// ~/.local/share/bash-completion/completions.
#[derive(clap::Args)]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Prints it.
pub fn run(arguments: Args) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::Arguments::command(), "glass", &mut script);
    // The generator panics where it cannot write, so it writes to memory.
    std::io::Write::write_all(&mut std::io::stdout().lock(), &script).context("cannot write to standard output")
}
