//! `glass man`: manual pages of all our commands.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::CommandFactory as _;

/// Writes the manual pages of all commands into a folder, for packagers.
#[derive(clap::Args)]
pub struct Args {
    /// The folder for glass.1, glass-record.1 and so on; created if it does not exist.
    folder: PathBuf,
}

/// Writes them.
pub fn run(arguments: Args) -> Result<()> {
    let folder = &arguments.folder;
    let cannot = || format!("cannot write manual pages into {}", folder.display());
    fs::create_dir_all(folder).with_context(cannot)?;
    clap_mangen::generate_to(crate::Arguments::command(), folder).with_context(cannot)
}
