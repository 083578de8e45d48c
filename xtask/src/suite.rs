//! Test programs: builds them, runs them with progress, and counts what passed, failed and was skipped.

use crate::run;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// The package of the VMM that tests of several packages start.
const VMM: &str = "glass-tests-vmm";
/// The interval between lines of progress.
const QUIET: Duration = Duration::from_secs(1);

/// A built program of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Package whose tests these are.
    pub package: String,
    /// Name of the target in it.
    target: String,
    path: PathBuf,
    /// Folder of the package, in which its tests run.
    folder: PathBuf,
    /// The package's programs, which its integration tests start, and the VMM for tests.
    starts: Vec<PathBuf>,
}

impl Program {
    /// Package and target, for messages.
    pub fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    /// A program of tests in `path`, of a package in `folder`.
    #[cfg(test)]
    pub fn for_test(path: &Path, folder: &Path) -> Program {
        let (package, target) = ("package".to_owned(), "all".to_owned());
        Program { package, target, path: path.to_owned(), folder: folder.to_owned(), starts: Vec::new() }
    }

    /// Whether it has a package's integration tests.
    pub fn is_integration(&self) -> bool {
        self.target != "lib" && self.target != "bin"
    }

    /// Its own file, and those of the programs that its tests start.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.path).chain(&self.starts).map(PathBuf::as_path)
    }

    /// The folder of its package.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The names of its tests.
    pub fn tests(&self) -> Result<Vec<String>> {
        let listed = run::quiet(self.command(&[]).args(["--list", "--format", "terse"]))?;
        Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// A command that runs its tests whose names contain one of `filters`; all, if there are none.
    pub fn command(&self, filters: &[String]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(filters).current_dir(&self.folder);
        command
    }
}

/// Builds the command `glass`, with cargo's own progress, as [`build`] of the whole workspace builds it.
pub fn build_glass() -> Result<()> {
    run::shown(&mut run::cargo(&["build", "--workspace", "--bin", "glass"])).map(drop)
}

/// Builds programs and their tests of `selection` (cargo's arguments) with cargo's own progress; returns the tests.
pub fn build(selection: &[&str]) -> Result<Vec<Program>> {
    let mut command = run::cargo(&["build", "--bins", "--tests", "--message-format=json-render-diagnostics"]);
    command.args(selection).stdin(Stdio::null()).stdout(Stdio::piped());
    let description = run::described(&command);
    let mut cargo = command.spawn().with_context(|| format!("cannot start `{description}`"))?;
    let messages = BufReader::new(cargo.stdout.take().context("standard output is a pipe")?);
    let (mut tests, mut others) = (Vec::new(), Vec::new());
    for message in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(&message?) else { continue };
        if message["reason"] == "compiler-artifact" && message["executable"].is_string() {
            let programs = if message["profile"]["test"] == true { &mut tests } else { &mut others };
            programs.extend(program(&message));
        }
    }
    let status = cargo.wait()?;
    if !status.success() {
        bail!("`{description}` failed ({status})");
    }
    for test in tests.iter_mut().filter(|test| test.is_integration()) {
        let own = others.iter().filter(|other| other.package == test.package || other.package == VMM);
        test.starts = own.map(|other| other.path.clone()).collect();
    }
    Ok(tests)
}

/// The program that one of cargo's messages reports.
fn program(message: &Value) -> Option<Program> {
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
    // `path+file:///folder#name@version`; without a name where the folder has it.
    let (place, id) = message["package_id"].as_str()?.rsplit_once('#')?;
    let package = id.split_once('@').map_or_else(|| place.rsplit('/').next().unwrap_or(place), |(name, _)| name);
    let target = match message["target"]["kind"][0].as_str()? {
        "lib" => "lib".to_owned(),
        "bin" => "bin".to_owned(),
        _ => message["target"]["name"].as_str()?.to_owned(),
    };
    let path = message["executable"].as_str()?.into();
    Some(Program { package: package.to_owned(), target, path, folder, starts: Vec::new() })
}

/// The results of some runs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed, without those that were skipped.
    pub passed: u64,
    /// Tests that did not run because they passed and nothing has changed since.
    pub unchanged: u64,
    /// Tests that cannot run here, each with a printed reason.
    pub skipped: u64,
    /// Failed tests and how often each failed. A program that ends before its tests do is one of them.
    pub failed: BTreeMap<String, u64>,
    /// Of failed tests, why each failed the first time, as far as its output shows it.
    pub reasons: BTreeMap<String, String>,
}

impl Tally {
    /// Adds another's counts.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.unchanged += other.unchanged;
        self.skipped += other.skipped;
        for (name, count) in other.failed {
            *self.failed.entry(name).or_default() += count;
        }
        for (name, reason) in other.reasons {
            self.reasons.entry(name).or_insert(reason);
        }
    }

    /// The counts in one line; the last that a run prints.
    pub fn line(&self) -> String {
        let failed: u64 = self.failed.values().sum();
        let unchanged = match self.unchanged {
            0 => String::new(),
            count => format!(", {count} passed before and unchanged"),
        };
        format!("{} passed, {failed} failed, {} skipped{unchanged}", self.passed, self.skipped)
    }

    /// An error that names the failed tests, if there are any.
    pub fn verdict(&self) -> Result<()> {
        if self.failed.is_empty() {
            return Ok(());
        }
        let line = |(name, count): (&String, &u64)| match self.reasons.get(name) {
            Some(reason) => format!("  {name} ({count}x): {reason}"),
            None => format!("  {name} ({count}x)"),
        };
        let names: Vec<String> = self.failed.iter().map(line).collect();
        bail!("these tests failed:\n{}", names.join("\n"))
    }
}

/// The state of a program's output, read line by line.
struct Reader {
    name: String,
    tally: Tally,
    /// Announced tests without a result.
    expected: u64,
    ended: u64,
    /// From the first line that describes failures to the end.
    describes: bool,
    /// The test that is described.
    described: Option<String>,
    /// The line before this one.
    last: String,
    printed: Instant,
}

impl Reader {
    fn line(&mut self, line: &str) {
        self.note_reason(line);
        self.count(line);
        line.clone_into(&mut self.last);
    }

    /// A benchmark prints `NAME: reason` before its result. Of a test the output follows all results, and the reason the place where it panicked.
    fn note_reason(&mut self, line: &str) {
        const CHARACTERS_MAX: usize = 300;
        if let Some(test) = line.strip_prefix("---- ").and_then(|rest| rest.split_once(" stdout")) {
            self.described = Some(test.0.to_owned());
        }
        let of_benchmark = line.strip_prefix("test ").and_then(|rest| {
            let test = rest.strip_suffix(" ... FAILED")?;
            Some((test.to_owned(), self.last.strip_prefix(test)?.strip_prefix(": ")?.to_owned()))
        });
        let of_panic = || {
            let is_behind = self.last.starts_with("thread '") && self.last.contains("panicked at ");
            Some((self.described.clone().filter(|_| is_behind)?, line.to_owned()))
        };
        if let Some((test, reason)) = of_benchmark.or_else(of_panic) {
            let reason = reason.chars().take(CHARACTERS_MAX).collect();
            self.tally.reasons.entry(format!("{}: {test}", self.name)).or_insert(reason);
        }
    }

    fn count(&mut self, line: &str) {
        if let Some(count) = line.strip_prefix("running ").and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok())
        {
            self.expected += count;
            self.describes = false;
            return;
        }
        let result = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "));
        match result {
            Some((test, "FAILED")) => {
                eprintln!("    FAILED {}: {test}", self.name);
                *self.tally.failed.entry(format!("{}: {test}", self.name)).or_default() += 1;
                self.ended += 1;
            }
            Some((test, outcome)) if outcome == "ok" || outcome.starts_with("ignored") => {
                self.ended += 1;
                self.tally.passed += u64::from(outcome == "ok");
                if self.printed.elapsed() >= QUIET {
                    eprintln!("    {}: {} of {}, {test}", self.name, self.ended, self.expected);
                    self.printed = Instant::now();
                }
            }
            _ if line.starts_with("skipped ") => {
                self.tally.skipped += 1;
                eprintln!("    {line}");
            }
            _ if line.starts_with("test result: ") => self.describes = false,
            _ => {
                self.describes |= line == "failures:";
                if self.describes || self.ended < self.expected {
                    eprintln!("{line}");
                }
            }
        }
    }

    fn finish(mut self, status: Result<std::process::ExitStatus>) -> Tally {
        // Skipped tests return early, so for their runner they passed.
        self.tally.passed = self.tally.passed.saturating_sub(self.tally.skipped);
        let problem = match status {
            Ok(status) if status.success() && self.ended >= self.expected => return self.tally,
            Ok(_) if self.ended >= self.expected && !self.tally.failed.is_empty() => return self.tally,
            Ok(status) => format!("{status} after {} of {} tests", self.ended, self.expected),
            Err(error) => format!("{error:#}"),
        };
        eprintln!("    FAILED {}: {problem}", self.name);
        *self.tally.failed.entry(format!("{}: {problem}", self.name)).or_default() += 1;
        self.tally
    }
}

/// Runs a program of tests (or cargo with its documentation's). Failures are printed, other tests once a second.
pub fn execute(name: &str, command: &mut Command) -> Tally {
    let now = Instant::now();
    let mut reader = Reader {
        name: name.to_owned(),
        tally: Tally::default(),
        expected: 0,
        ended: 0,
        describes: false,
        described: None,
        last: String::new(),
        printed: now,
    };
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.with_context(|| format!("cannot start `{}`", run::described(command)));
    let status = child.and_then(|mut child| {
        lines(&mut child, |line| reader.line(line))?;
        Ok(child.wait()?)
    });
    reader.finish(status)
}

/// Passes on each line of both output streams of `child` until it closes them.
fn lines(child: &mut Child, mut each: impl FnMut(&str)) -> Result<()> {
    fn forward(stream: impl Read, sender: &Sender<String>) {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { return };
            // The receiver outlives both streams.
            let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
        }
    }
    let (sender, receiver) = channel();
    let stdout = child.stdout.take().context("standard output is a pipe")?;
    let stderr = child.stderr.take().context("standard error is a pipe")?;
    std::thread::scope(|scope| {
        let errors = sender.clone();
        scope.spawn(move || forward(stderr, &errors));
        scope.spawn(move || forward(stdout, &sender));
        receiver.iter().for_each(|line| each(&line));
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(script: &str) -> Tally {
        execute("p all", Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn passed_ignored_and_skipped_tests_are_counted() {
        let tally = outcome(
            "echo; echo running 4 tests; echo 'test a ... ok'; echo 'test b ... ignored, later'; \
             echo 'skipped c: no KVM' >&2; sleep 0.1; echo 'test c ... ok'; echo 'test d ... ok'; echo; echo 'test result: ok. 3 passed'",
        );
        assert_eq!(tally, Tally { passed: 2, skipped: 1, ..Tally::default() });
        assert_eq!(tally.line(), "2 passed, 0 failed, 1 skipped");
        tally.verdict().unwrap();
    }

    #[test]
    fn a_failed_test_is_named() {
        let mut tally = outcome("echo running 1 test; echo 'test x::y ... FAILED'; exit 101");
        assert_eq!(tally.failed, BTreeMap::from([("p all: x::y".to_owned(), 1)]));
        tally.add(tally.clone());
        assert!(tally.verdict().unwrap_err().to_string().contains("p all: x::y (2x)"));
    }

    #[test]
    fn a_failed_test_has_its_reason() {
        let tally = outcome(
            "echo running 2 tests; echo 'x::y: it ended'; echo 'test x::y ... FAILED'; echo 'test z ... FAILED'; echo failures:; \
             echo '---- z stdout ----'; echo \"thread 'z' (7) panicked at a.rs:1:2:\"; echo 'left is 1'; echo 'stack backtrace:'; exit 101",
        );
        let error = tally.verdict().unwrap_err().to_string();
        assert!(
            error.contains("p all: x::y (1x): it ended\n") && error.ends_with("p all: z (1x): left is 1"),
            "{error}"
        );
    }

    #[test]
    fn a_program_that_ends_early_or_does_not_start_failed() {
        let failed = |script: &str| outcome(script).failed.into_keys().next().unwrap();
        assert!(failed("echo running 2 tests; echo 'test a ... ok'; exit 0").contains("after 1 of 2 tests"));
        assert!(failed("echo running 1 test; echo 'test a ... ok'; exit 1").contains("exit status: 1"));
        let absent = execute("p", &mut Command::new("/no/such/program"));
        assert!(absent.verdict().unwrap_err().to_string().contains("cannot start"));
    }

    #[test]
    fn cargo_reports_programs() {
        let message = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/lib/net#glass-lib-net@0.1.0","manifest_path":"/w/lib/net/Cargo.toml",
            "target":{"kind":["test"],"name":"all"},"profile":{"test":true},"executable":"/w/target/debug/deps/all-1"}"#;
        let program = |message: &str| program(&serde_json::from_str(message).unwrap());
        let expected = Program {
            package: "glass-lib-net".into(),
            target: "all".into(),
            path: "/w/target/debug/deps/all-1".into(),
            folder: "/w/lib/net".into(),
            starts: Vec::new(),
        };
        assert_eq!(program(message), Some(expected.clone()));
        let in_folder = message.replace("glass-lib-net@0.1.0", "0.1.0").replace("lib/net#", "glass-lib-net#");
        assert_eq!(program(&in_folder), Some(expected));
        assert_eq!(program("{}"), None);
    }
}
