//! The command `glass`: one module for each subcommand.
#![forbid(unsafe_code)]
// They panic when the reader is gone: `console` has what does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod agent;
mod arguments;
mod build;
mod completions;
mod console;
mod diff;
mod disk;
mod dump;
mod export;
mod files;
mod help;
mod holder;
mod host_view;
mod import;
mod info;
mod jail;
mod linux;
mod man;
mod new;
mod only;
mod open;
mod powercut;
mod ps;
mod queue;
mod record;
mod report;
mod rights;
mod run;
mod snapshot;
mod stacks;
mod symbolizer;
mod tail;
mod tap;
mod target;
mod top;
mod trace;
mod vmm;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use console::say;

/// Shows from outside where a VM or a process spends its time; runs services as VMs without an OS.
#[derive(Parser)]
#[command(name = "glass", version = env!("GLASS_VERSION"))]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    New(new::Args),
    Build(build::Args),
    Run(run::Args),
    Snapshot(snapshot::Args),
    Powercut(powercut::Args),
    Queue(queue::Args),
    #[command(hide = true)]
    Disk(disk::Args),
    #[command(hide = true)]
    Tap(tap::Args),
    Agent(agent::Args),
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
}

impl Command {
    /// Whether it reads the memory of VMs or processes, or samples them.
    fn profiles(&self) -> bool {
        use Command::*;
        matches!(self, Ps(_) | Stacks(_) | Record(_) | Dump(_) | Top(_) | Trace(_) | Tail(_))
    }
}

/// Parses the arguments of a command that starts a VM, or that the agent starts again and again, by its own parser, without those of all others, which
/// take twice as long as the rest of a start. `None` where the whole parser has to: for other commands, for help, and to report what is wrong.
fn parse_alone() -> Option<Command> {
    fn parse<A: clap::Args>(name: &'static str) -> Option<A> {
        let command = A::augment_args(clap::Command::new(name));
        let matches = command.try_get_matches_from(std::env::args_os().skip(1)).ok()?;
        A::from_arg_matches(&matches).ok()
    }
    let name = std::env::args_os().nth(1)?;
    match name.to_str()? {
        "run" => parse("run").map(Command::Run),
        "record" => parse("record").map(Command::Record),
        "info" => parse("info").map(Command::Info),
        "holder" => parse("holder").map(Command::Holder),
        _ => None,
    }
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|name| name == "vmm") {
        let done = vmm::Args::parse(std::env::args_os().skip(2)).and_then(vmm::run);
        return exit_code(done.map(|()| ExitCode::SUCCESS));
    }
    let command = parse_alone().unwrap_or_else(|| {
        let matches = help::grouped(Arguments::command()).get_matches();
        Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command
    });
    if command.profiles() {
        rights::take();
    }
    let result = match command {
        Command::New(args) => new::run(args).map(|()| ExitCode::SUCCESS),
        Command::Build(args) => build::run(args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::run(args),
        Command::Snapshot(args) => snapshot::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Powercut(args) => powercut::run(args),
        Command::Queue(args) => queue::run(&args),
        Command::Disk(args) => disk::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Tap(args) => tap::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Agent(args) => agent::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Ps(args) => ps::run(args).map(|()| ExitCode::SUCCESS),
        Command::Stacks(args) => stacks::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Record(args) => record::run(args),
        Command::Dump(args) => dump::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::run(args).map(|()| ExitCode::SUCCESS),
        Command::Tail(args) => tail::run(args).map(|()| ExitCode::SUCCESS),
        Command::Trace(args) => trace::run(args),
        Command::Report(args) => report::run(args).map(|()| ExitCode::SUCCESS),
        Command::Diff(args) => diff::run(args).map(|()| ExitCode::SUCCESS),
        Command::Export(args) => export::run(args).map(|()| ExitCode::SUCCESS),
        Command::Import(args) => import::run(args).map(|()| ExitCode::SUCCESS),
        Command::Info(args) => info::run(args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => completions::run(args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => man::run(args).map(|()| ExitCode::SUCCESS),
        Command::Holder(args) => holder::run(&args).map(|()| ExitCode::SUCCESS),
    };
    exit_code(result)
}

fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        // The whole chain in one line: what failed, and what made it fail.
        say!("glass: {error:#}");
        ExitCode::FAILURE
    })
}
