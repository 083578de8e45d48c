//! The command `glass`: one module for each subcommand.
#![forbid(unsafe_code)]
// They panic when the reader is gone: `console` has what does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod build;
mod completions;
mod console;
mod diff;
mod disk;
mod dump;
mod export;
mod files;
mod holder;
mod host_view;
mod import;
mod info;
mod jail;
mod linux;
mod man;
mod new;
mod ps;
mod record;
mod report;
mod run;
mod stacks;
mod symbolizer;
mod tail;
mod tap;
mod target;
mod top;
mod trace;
mod vmm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use console::say;

/// Runs services as processes or VMs, and profiles and traces VMs and processes from outside.
#[derive(Parser)]
#[command(name = "glass", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    New(new::Args),
    Build(build::Args),
    Run(run::Args),
    Disk(disk::Args),
    Tap(tap::Args),
    Ps(ps::Args),
    Stacks(stacks::Args),
    Record(record::Args),
    Dump(dump::Args),
    Top(top::Args),
    Trace(trace::Args),
    Tail(tail::Args),
    Report(report::Args),
    Diff(diff::Args),
    Export(export::Args),
    Import(import::Args),
    Info(info::Args),
    Completions(completions::Args),
    Man(man::Args),
    #[command(hide = true)]
    Holder(holder::Args),
    #[command(hide = true)]
    Vmm(vmm::Args),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::New(args) => new::run(args).map(|()| ExitCode::SUCCESS),
        Command::Build(args) => build::run(args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::run(args),
        Command::Disk(args) => disk::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Tap(args) => tap::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Ps(args) => ps::run(args).map(|()| ExitCode::SUCCESS),
        Command::Stacks(args) => stacks::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Record(args) => record::run(args).map(|()| ExitCode::SUCCESS),
        Command::Dump(args) => dump::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::run(args).map(|()| ExitCode::SUCCESS),
        Command::Tail(args) => tail::run(args).map(|()| ExitCode::SUCCESS),
        Command::Trace(args) => trace::run(args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(args).map(|()| ExitCode::SUCCESS),
        Command::Diff(args) => diff::run(args).map(|()| ExitCode::SUCCESS),
        Command::Export(args) => export::run(args).map(|()| ExitCode::SUCCESS),
        Command::Import(args) => import::run(args).map(|()| ExitCode::SUCCESS),
        Command::Info(args) => info::run(args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => completions::run(args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => man::run(args).map(|()| ExitCode::SUCCESS),
        Command::Holder(args) => holder::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Vmm(args) => vmm::run(args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        // The whole chain in one line: what failed, and what made it fail.
        say!("glass: {error:#}");
        ExitCode::FAILURE
    })
}
