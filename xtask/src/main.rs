//! The project's own commands: `cargo xtask check | test | demo | bench`.
#![forbid(unsafe_code)]

mod build;
mod check;
mod packages;
mod progress;
mod rules;
mod run;
mod test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, checks, tests, shows and measures Glasshouse")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Format, lints, documentation and the rules of the repository
    Check {
        /// Only the rules, which take a second
        #[arg(long)]
        rules: bool,
    },
    /// All tests: on the host, then end to end against built programs and booted images
    Test(test::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Check { rules } => check::run(rules),
        Command::Test(options) => test::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
