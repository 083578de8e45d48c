//! The command `glass`: one module for each subcommand.
#![forbid(unsafe_code)]

mod build;
mod last_words;
mod queue;
mod record;
mod report;
mod run;
mod target;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs services as processes or VMs, and looks into any guest to see where its time goes.
#[derive(Parser)]
#[command(name = "glass", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Build(build::Args),
    Run(run::Args),
    Record(record::Args),
    Report(report::Args),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Build(args) => build::run(args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::run(args),
        Command::Record(args) => record::run(args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        // The whole chain in one line: what failed, and what made it fail.
        eprintln!("glass: {error:#}");
        ExitCode::FAILURE
    })
}
