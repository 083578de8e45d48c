//! The project's own commands: `cargo xtask check | test | fuzz | mutants | miri | demo | bench | figures | lab | static | package | licences`.
#![forbid(unsafe_code)]

mod aarch64;
mod bench;
mod build;
mod check;
mod demo;
mod demo_files;
mod figures;
mod fuzz;
mod lab;
mod miri;
mod mutants;
mod package;
mod packages;
mod progress;
mod rules;
mod run;
mod scripts;
mod suite;
mod test;
mod unchanged;

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
        /// Only AArch64: all compiles for it without a warning, and the unit tests of portable crates pass in its emulation by qemu-user
        #[arg(long, conflicts_with = "rules")]
        aarch64: bool,
    },
    /// All tests: on the host, then end to end against built programs and booted images
    Test(test::Options),
    /// Feeds mutated inputs to every parser of untrusted input, for a given time
    Fuzz(fuzz::Options),
    /// Changes the code in one place at a time and counts how often a test fails
    Mutants(mutants::Options),
    /// Runs tests of the libraries in Miri, which detects undefined behaviour, if it is installed
    Miri,
    /// Runs the queue as a VM under load, with the profiler attached
    Demo(demo::Options),
    /// Measures, and prints comparable programs measured in the same run
    Bench(bench::Options),
    /// Writes the page of all figures, bench/results/README.md, from the results in bench/results/today
    Figures,
    /// Boots an emulated machine with an ordinary KVM and gives a prompt in it, for guests that this machine's KVM cannot run
    Lab,
    /// Builds glass as one file without shared libraries, for a dom0 of Xen or any other system; prints where it is
    Static,
    /// Makes a Debian package and an archive of glass
    Package(package::Options),
    /// Checks licences and advisories of all that glass is built of by cargo-deny, which is built first
    Licences,
}

/// Ends our child processes on an interrupt, and keeps the figures of a benchmark.
fn end_children_on_interrupt() {
    let handler = ctrlc::set_handler(|| {
        bench::keep_interrupted();
        glass_tests::process::kill_all();
        glass_tests::folder::remove_all();
        eprintln!("interrupted");
        std::process::exit(130);
    });
    handler.expect("no other handler is set");
}

fn main() -> ExitCode {
    end_children_on_interrupt();
    let result = match Arguments::parse().command {
        Command::Check { aarch64: true, .. } => check::run_for_aarch64(),
        Command::Check { rules, .. } => check::run(rules),
        Command::Test(options) => test::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Mutants(options) => mutants::run(&options),
        Command::Miri => miri::run(),
        Command::Demo(options) => demo::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Figures => figures::run(run::root()),
        Command::Lab => lab::run(),
        Command::Package(options) => package::run(&options),
        Command::Licences => package::deny(),
        Command::Static => build::static_glass().map(|glass| println!("{}", glass.display())),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
