//! `cargo xtask check`: formatting, lints, types of scripts, documentation, another architecture, rules. Every part runs, then all failures are reported.

use crate::progress::Steps;
use crate::{aarch64, rules, run, scripts};
use anyhow::{Result, bail};

/// Checks, of which all run whatever the others find.
struct Checks {
    steps: Steps,
    failed: Vec<&'static str>,
}

impl Checks {
    fn new(count: usize) -> Checks {
        Checks { steps: Steps::new(count), failed: Vec::new() }
    }

    fn part(&mut self, title: &'static str, check: impl Fn() -> Result<String>) {
        let step = self.steps.begin(title, None);
        match check() {
            Ok(note) => step.done(&note),
            Err(error) => {
                drop(step);
                eprintln!("error: {error:#}");
                self.failed.push(title);
            }
        }
    }

    fn end(self) -> Result<()> {
        if self.failed.is_empty() { Ok(()) } else { bail!("not in order: {}", self.failed.join(", ")) }
    }
}

/// Runs the checks, or only the repository's own rules.
pub fn run(only_rules: bool) -> Result<()> {
    let mut checks = Checks::new(if only_rules { 1 } else { 6 });
    checks.part("rules of the repository", check_rules);
    if !only_rules {
        checks.part("format", || run::quiet(&mut run::cargo(&["fmt", "--all", "--check"])));
        checks.part("lints", || {
            run::shown(&mut run::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
        });
        checks.part("types of the pages' scripts", scripts::check_types);
        checks.part("documentation", || {
            let mut command = run::cargo(&["doc", "--workspace", "--no-deps"]);
            run::shown(command.env("RUSTDOCFLAGS", "-D warnings"))
        });
        checks.part("compiles for AArch64", aarch64::check);
    }
    checks.end()
}

/// Runs those of AArch64, and the tests of portable crates in its emulation.
pub fn run_for_aarch64() -> Result<()> {
    let mut checks = Checks::new(2);
    checks.part("compiles for AArch64", aarch64::check);
    checks.part("unit tests of portable crates under qemu-aarch64", aarch64::test);
    checks.end()
}

fn check_rules() -> Result<String> {
    let metadata = run::quiet(&mut run::cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    let violations = rules::check(run::root(), &metadata)?;
    for violation in &violations {
        eprintln!("{violation}");
    }
    if violations.is_empty() { Ok(String::new()) } else { bail!("{} violations of the rules above", violations.len()) }
}
