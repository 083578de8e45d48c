//! `glass completions`: a script with which a shell completes our commands.

use anyhow::Result;
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
    // The generator panics if it cannot write, so it writes to memory.
    crate::console::print(&String::from_utf8_lossy(&script))
}
