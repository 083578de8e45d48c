//! `cargo xtask check`: formatting, lints, types of scripts, documentation, another architecture, rules. Every part runs, then all failures are reported.

use crate::progress::Steps;
use crate::{aarch64, rules, run, scripts};
use anyhow::{Result, bail};

/// Runs the checks, or only the repository's own rules.
pub fn run(only_rules: bool) -> Result<()> {
    let mut steps = Steps::new(if only_rules { 1 } else { 6 });
    let mut failed = Vec::new();
    let mut part = |title: &'static str, check: &dyn Fn() -> Result<String>| {
        let step = steps.begin(title, None);
        match check() {
            Ok(note) => step.done(&note),
            Err(error) => {
                drop(step);
                eprintln!("error: {error:#}");
                failed.push(title);
            }
        }
    };
    part("rules of the repository", &check_rules);
    if !only_rules {
        part("format", &|| run::quiet(&mut run::cargo(&["fmt", "--all", "--check"])));
        part("lints", &|| {
            run::shown(&mut run::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
        });
        part("types of the pages' scripts", &scripts::check_types);
        part("documentation", &|| {
            let mut command = run::cargo(&["doc", "--workspace", "--no-deps"]);
            run::shown(command.env("RUSTDOCFLAGS", "-D warnings"))
        });
        part("compiles for AArch64", &aarch64::check);
    }
    if failed.is_empty() { Ok(()) } else { bail!("not in order: {}", failed.join(", ")) }
}

fn check_rules() -> Result<String> {
    let metadata = run::quiet(&mut run::cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    let violations = rules::check(run::root(), &metadata)?;
    for violation in &violations {
        eprintln!("{violation}");
    }
    if violations.is_empty() { Ok(String::new()) } else { bail!("{} violations of the rules above", violations.len()) }
}
