//! `cargo xtask test`: the host's tests, if something has changed since they passed, and the end-to-end tests against built programs and
//! booted images.

use crate::progress::{Steps, locked};
use crate::suite::{self, Program, Tally};
use crate::unchanged::{self, Unchanged};
use crate::{bench, build, packages, run, scripts};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The package of the end-to-end tests.
const END_TO_END: &str = "glass-tests";
/// End-to-end tests in parallel: each runs its own VM or service, and waits most of the time.
const END_TO_END_THREADS: &str = "--test-threads=4";
/// The starts of the names of the longest end-to-end tests: three use one core all the time, one waits half a minute. They start beside the
/// tests on the host.
const LONGEST_END_TO_END: [&str; 4] =
    ["xen_services::", "first_service::", "outside::", "web::a_daemon_that_ends_is_an_error"];

/// The start of the names of tests in an emulated machine with an ordinary KVM, which uses both cores: they run alone.
const SVM: &str = "svm::";

/// The part of the tests of AArch64 images.
const AARCH64: &str = "aarch64";

/// The package whose tests run guests that never sleep: beside other tests, such a guest runs for longer and uses a core all that time.
const BUSY: &str = "glass-profiler-guests";
/// The packages with the longest tests of the others, the longest last.
const LONGEST: [&str; 2] = ["glass-profiler-export", REPORT];
/// The package of the pages, whose scripts have tests.
const REPORT: &str = "glass-profiler-report";

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only tests whose names contain one of these
    names: Vec<String>,
    /// Only one part: host, docs, scripts, ring, end-to-end, process, kvm, tcg, aarch64, svm, benchmarks, or a crate by its name or folder
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Run the tests this often and count the failures of each
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Fail instead of skip if a program is missing, and run all tests, and each benchmark for a moment
    #[arg(long)]
    ci: bool,
    /// Also run the tests on the host that passed and have not changed since; --ci, --long, --repeat and names do so too
    #[arg(long)]
    all: bool,
    /// Use full sizes and counts: 1 GiB bodies, 1,000 kills, 10,000 random requests
    #[arg(long)]
    long: bool,
}

impl Options {
    /// Whether tests run that passed and have not changed since.
    fn runs_all(&self) -> bool {
        self.all || self.ci || self.long || self.repeat > 1 || !self.names.is_empty()
    }
}

/// The selection of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    All,
    Host,
    Docs,
    Scripts,
    Ring,
    EndToEnd,
    /// The end-to-end tests of one platform: process, kvm, tcg or aarch64.
    World(String),
    /// Those in an emulated machine with an ordinary KVM.
    Svm,
    /// Each benchmark for a moment.
    Benchmarks,
    /// All tests of a package that does not need built programs.
    Package {
        name: String,
        has_library: bool,
    },
}

impl Part {
    fn parse(text: Option<&str>) -> Result<Part> {
        Ok(match text {
            None => Part::All,
            Some("host") => Part::Host,
            Some("docs") => Part::Docs,
            Some("scripts") => Part::Scripts,
            Some("ring") => Part::Ring,
            Some("end-to-end" | END_TO_END | "tests") => Part::EndToEnd,
            Some(world @ ("process" | "kvm" | "tcg" | AARCH64)) => Part::World(world.to_owned()),
            Some("svm") => Part::Svm,
            Some("benchmarks") => Part::Benchmarks,
            Some(name) => package(name)?,
        })
    }

    fn has_host(&self) -> bool {
        matches!(self, Part::All | Part::Host | Part::Package { .. })
    }

    fn has_busy(&self) -> bool {
        match self {
            Part::All | Part::Host => true,
            Part::Package { name, .. } => name == BUSY,
            _ => false,
        }
    }

    fn has_docs(&self) -> bool {
        matches!(self, Part::All | Part::Docs | Part::Package { has_library: true, .. })
    }

    fn has_scripts(&self) -> bool {
        match self {
            Part::All | Part::Host | Part::Scripts => true,
            Part::Package { name, .. } => name == REPORT,
            _ => false,
        }
    }

    fn has_ring(&self) -> bool {
        matches!(self, Part::All | Part::Ring)
    }

    fn has_end_to_end(&self) -> bool {
        matches!(self, Part::All | Part::EndToEnd | Part::World(_))
    }

    /// With `--ci` or `--long`, or where they are named.
    fn has_svm(&self, options: &Options) -> bool {
        *self == Part::Svm || (matches!(self, Part::All | Part::EndToEnd) && (options.ci || options.long))
    }

    /// With `--ci`, or where they are named.
    fn has_benchmarks(&self, options: &Options) -> bool {
        *self == Part::Benchmarks || (*self == Part::All && options.ci && options.names.is_empty())
    }

    /// Whether services are built, as a step of their own.
    fn has_services(&self) -> bool {
        self.has_end_to_end() || matches!(self, Part::Svm | Part::Benchmarks)
    }

    /// Whether images for AArch64 are built, and whether others are.
    fn has_aarch64(&self) -> (bool, bool) {
        match self {
            Part::World(world) => (world == AARCH64, world != AARCH64),
            Part::All | Part::EndToEnd => (true, true),
            _ => (false, true),
        }
    }

    fn step_count(&self, options: &Options) -> usize {
        let on_the_host = [
            self.has_busy(),
            self.has_svm(options),
            self.has_host(),
            self.has_docs(),
            self.has_scripts(),
            self.has_ring(),
            self.has_benchmarks(options),
        ];
        usize::from(!self.selection().is_empty())
            + usize::from(self.has_services())
            + usize::from(self.has_end_to_end())
            + on_the_host.into_iter().filter(|has| *has).count()
    }

    /// Arguments of cargo that select the packages whose tests are built.
    fn selection(&self) -> Vec<&str> {
        match self {
            // Always all of them: in another selection dependencies have other features, and are built once more. `--lib`: the MPI
            // library is a file that programs load.
            Part::All | Part::Host | Part::EndToEnd | Part::World(_) | Part::Svm | Part::Benchmarks => {
                vec!["--workspace", "--lib"]
            }
            Part::Package { name, .. } => vec!["--package", name],
            Part::Docs | Part::Scripts | Part::Ring => vec![],
        }
    }
}

/// The package of the workspace with this name or folder.
fn package(name_or_folder: &str) -> Result<Part> {
    let metadata = run::quiet(&mut run::cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata did not print JSON")?;
    let manifest = run::root().join(name_or_folder).join("Cargo.toml");
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_meant =
        |package: &&Value| package["name"] == name_or_folder || package["manifest_path"].as_str() == manifest.to_str();
    let found = packages.iter().find(is_meant).with_context(|| {
        format!(
            "there is no part {name_or_folder:?}: give host, docs, scripts, ring, end-to-end, process, kvm, tcg, aarch64, svm, benchmarks, or a crate's name or folder"
        )
    })?;
    let name = found["name"].as_str().context("a package has no name")?.to_owned();
    let is_library =
        |target: &Value| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib"));
    let has_library = found["targets"].as_array().is_some_and(|targets| targets.iter().any(is_library));
    Ok(Part::Package { name, has_library })
}

/// Installs, builds and runs. The last line printed has the counts.
pub fn run(options: &Options) -> Result<()> {
    let part = Part::parse(options.only.as_deref())?;
    let mut missing = packages::ensure(packages::FOR_TEST)?;
    if options.long {
        missing.extend(packages::ensure(packages::FOR_TEST_LONG)?);
    }
    if options.ci && !missing.is_empty() {
        let programs: Vec<&str> = missing.iter().map(|package| package.program).collect();
        bail!("these programs are missing: {}", programs.join(", "));
    }
    let mut steps = Steps::new(part.step_count(options));
    // As the test of Xen has it.
    let with_xen = options.long || std::env::var_os("GLASS_XEN_CASE").is_some();
    let programs = build_all(&part, options, with_xen, &mut steps)?;
    let steps_of_a_run = steps.left();
    let mut total = Tally::default();
    for round in 1..=options.repeat {
        if round > 1 {
            steps.more(steps_of_a_run);
        }
        let tally = run_once(&part, options, &programs, &mut steps)?;
        if options.repeat > 1 {
            eprintln!("run {round} of {}: {}", options.repeat, tally.line());
        }
        total.add(tally);
    }
    // The counts are the last line.
    drop(steps);
    let verdict = total.verdict();
    if let Err(error) = &verdict {
        eprintln!("{error}");
    }
    if total == Tally::default() {
        bail!("no test has such a name; `cargo xtask test --only PART` without a name runs all of a part");
    }
    println!("\n{}", total.line());
    verdict.map_err(|_| anyhow::anyhow!("{} tests failed", total.failed.len()))
}

/// Builds the tests of `part`, and in parallel the programs of end-to-end tests.
fn build_all(part: &Part, options: &Options, with_xen: bool, steps: &mut Steps) -> Result<Vec<Program>> {
    let (with_benchmarks, (with_aarch64, with_others)) = (part.has_benchmarks(options), part.has_aarch64());
    let required = options.ci;
    let mut selection = part.selection();
    if selection.is_empty() {
        return Ok(Vec::new());
    }
    let step = steps.begin("build glass and the tests, in parallel the services", None);
    let mut services = None;
    if part.has_services() {
        suite::build_glass()?;
        services = Some(std::thread::spawn(move || {
            timed(|| -> Result<String> {
                let mut last = String::new();
                if with_others {
                    last = build::services_for_tests(with_xen, with_benchmarks)?;
                }
                if with_aarch64 {
                    last = build::services_for_aarch64(required)?;
                }
                Ok(last)
            })
        }));
    }
    if with_benchmarks {
        selection.extend(build::BENCHMARK_EXAMPLES);
    }
    let programs = suite::build(&selection);
    let services = services.map(|thread| thread.join().expect("building services does not panic"));
    let programs = programs?;
    step.done(&format!("{} test programs", programs.len()));
    if let Some((result, time)) = services {
        let step = steps.begin("build the services", None);
        step.done_within(time, &result?);
    }
    Ok(programs)
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// Runs the tests of `part`: first those that use both cores, by themselves, then the others on the host, then those end to end, and the longest of
/// these beside both. What computes all the time runs last: beside it, guests take several times as long.
fn run_once(part: &Part, options: &Options, programs: &[Program], steps: &mut Steps) -> Result<Tally> {
    let host_programs = programs.iter().filter(|program| part.has_host() && is_host(program, part));
    let (busy, others): (Vec<&Program>, Vec<&Program>) =
        host_programs.partition(|program| program.is_integration() && program.package == BUSY);
    let mut total = Tally::default();
    if !busy.is_empty() {
        total.add(counted(steps, "tests with busy guests", || on_the_host(busy, options))?);
    }
    let [svm, longest, rest] = end_to_end(programs, part, options)?;
    if part.has_svm(options) {
        total.add(counted(steps, "tests under an ordinary KVM, emulated", || Ok(run_end_to_end(svm, options)))?);
    }
    std::thread::scope(|scope| -> Result<()> {
        let longest = scope.spawn(|| run_end_to_end(longest, options));
        if !others.is_empty() {
            total.add(counted(steps, "tests on the host", || on_the_host(others, options))?);
        }
        if part.has_end_to_end() {
            total.add(counted(steps, "tests end to end", || {
                let mut tally = run_end_to_end(rest, options);
                tally.add(longest.join().expect("running tests does not panic"));
                Ok(tally)
            })?);
        }
        Ok(())
    })?;
    if part.has_docs() {
        total.add(counted(steps, "examples in the documentation", || Ok(examples(part, &options.names)))?);
    }
    if part.has_scripts() {
        total.add(counted(steps, "unit tests of the pages' scripts", || Ok(scripts::test(&options.names)))?);
    }
    if part.has_ring() {
        total.add(counted(steps, "the trace ring under every order of memory accesses", check_ring)?);
    }
    if part.has_benchmarks(options) {
        total.add(counted(steps, "each benchmark for a moment", bench::test_all)?);
    }
    Ok(total)
}

/// Runs tests as a step of this title.
fn counted(steps: &mut Steps, title: &str, work: impl FnOnce() -> Result<Tally>) -> Result<Tally> {
    let step = steps.begin(title, None);
    let tally = work()?;
    step.done(&tally.line());
    Ok(tally)
}

/// Runs the programs that changed, the longest first, two at a time because they wait much.
fn on_the_host(mut programs: Vec<&Program>, options: &Options) -> Result<Tally> {
    // They are taken from the end.
    programs.sort_by_key(|program| {
        let place = LONGEST.iter().position(|package| program.package == *package);
        place.filter(|_| program.is_integration())
    });
    let programs = Mutex::new(programs);
    let unchanged = Mutex::new(Unchanged::open());
    let total = Mutex::new(Tally::default());
    // The lock is released before the program runs.
    let next = || locked(&programs).pop();
    let work = || -> Result<()> {
        while let Some(program) = next() {
            let result = run_if_changed(program, options, &unchanged)?;
            locked(&total).add(result);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(work));
        threads.into_iter().try_for_each(|thread| thread.join().expect("running tests does not panic"))
    })?;
    Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a program, or returns the result of an earlier run if nothing has changed since.
fn run_if_changed(program: &Program, options: &Options, unchanged: &Mutex<Unchanged>) -> Result<Tally> {
    let state = unchanged::state(program)?;
    if !options.runs_all()
        && let Some(result) = locked(unchanged).result(program, &state)
    {
        return Ok(result);
    }
    let (result, time) = timed(|| suite::execute(&program.name(), &mut program.command(&options.names)));
    if time > Duration::from_secs(1) {
        eprintln!("    {:5.1} s  {}: {}", time.as_secs_f64(), program.name(), result.line());
    }
    if options.names.is_empty() {
        locked(unchanged).store(program, state, &result)?;
    }
    Ok(result)
}

fn is_host(program: &Program, part: &Part) -> bool {
    program.package != END_TO_END || matches!(part, Part::Package { .. })
}

/// Programs, each with the names of some of its tests.
type Selected<'a> = Vec<(&'a Program, Vec<String>)>;

/// The selected tests end to end: those that run alone, the longest of the others, and the rest.
fn end_to_end<'a>(programs: &'a [Program], part: &Part, options: &Options) -> Result<[Selected<'a>; 3]> {
    let (mut svm, mut longest, mut rest) = (Selected::new(), Selected::new(), Selected::new());
    if !part.has_end_to_end() && !part.has_svm(options) {
        return Ok([svm, longest, rest]);
    }
    let module = match part {
        Part::World(world) => format!("::{world}::"),
        _ => String::new(),
    };
    let is_chosen = |test: &String| {
        format!("::{test}").contains(&module)
            && (options.names.is_empty() || options.names.iter().any(|name| test.contains(name)))
    };
    let is_longest = |test: &String| LONGEST_END_TO_END.iter().any(|start| test.starts_with(start));
    for program in programs.iter().filter(|program| program.package == END_TO_END) {
        let chosen = program.tests()?.into_iter().filter(is_chosen);
        let (of_svm, others): (Vec<_>, Vec<_>) =
            chosen.partition(|test| program.is_integration() && test.starts_with(SVM));
        let (of_longest, of_rest) = others.into_iter().partition(|test| program.is_integration() && is_longest(test));
        if part.has_svm(options) {
            svm.push((program, of_svm));
        }
        if part.has_end_to_end() {
            longest.push((program, of_longest));
            rest.push((program, of_rest));
        }
    }
    Ok([svm, longest, rest])
}

fn run_end_to_end(selected: Selected, options: &Options) -> Tally {
    let mut total = Tally::default();
    // Without a name all tests of a program would run.
    for (program, tests) in selected.into_iter().filter(|(_, tests)| !tests.is_empty()) {
        total.add(suite::execute(&program.name(), &mut end_to_end_command(program, &tests, options)));
    }
    total
}

/// A command that runs just `tests`.
fn end_to_end_command(program: &Program, tests: &[String], options: &Options) -> Command {
    let mut command = program.command(tests);
    command
        .args(["--exact", END_TO_END_THREADS])
        .env("GLASS_PROGRAMS", build::tested())
        .env("GLASS_TESTS_REQUIRED", "1");
    if options.ci {
        command.env("GLASS_SVM_REQUIRED", "1").env("GLASS_AARCH64_REQUIRED", "1");
    }
    if options.long {
        command.env("GLASS_TESTS_LONG", "1");
    }
    command
}

/// Compiles and runs the examples of the documentation of every library, or of one.
fn examples(part: &Part, names: &[String]) -> Tally {
    let mut command = run::cargo(&["test", "--doc", "--quiet"]);
    match part {
        Part::Package { name, .. } => command.args(["--package", name]),
        _ => command.arg("--workspace"),
    };
    suite::execute("documentation", command.arg("--").args(names).arg("--format=pretty"))
}

/// The packages with a ring that loom checks.
const WITH_RING: [&str; 3] = ["glass-formats", "glass-lib-cores", "glass-lib-mpi"];

/// The crate `loom` replaces the atomics in a separate build.
fn check_ring() -> Result<Tally> {
    let folder = run::target_dir().join("loom");
    let mut tally = Tally::default();
    for package in WITH_RING {
        let cargo = |last: &[&str]| {
            let mut command = run::cargo(&["test", "--package", package, "--release", "--test", "ring"]);
            command.arg("--target-dir").arg(&folder).env("RUSTFLAGS", "--cfg loom").args(last);
            command
        };
        run::shown(&mut cargo(&["--no-run"]))?;
        tally.add(suite::execute(&format!("{package} ring"), &mut cargo(&[])));
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn an_emulated_kvm_is_for_ci() {
        #[derive(Parser)]
        struct Words {
            #[command(flatten)]
            options: Options,
        }
        let options = |word: &[&str]| Words::parse_from([&["test"], word].concat()).options;
        for (part, words, has) in [
            (Part::All, &[][..], false),
            (Part::All, &["--ci"], true),
            (Part::EndToEnd, &["--long"], true),
            (Part::Svm, &[], true),
            (Part::Host, &["--ci"], false),
        ] {
            assert_eq!(part.has_svm(&options(words)), has, "{part:?} {words:?}");
        }
    }

    #[test]
    fn parts_have_names() {
        let parse = |text| Part::parse(Some(text)).unwrap();
        assert_eq!(parse("end-to-end"), Part::EndToEnd);
        assert_eq!(parse("kvm"), Part::World("kvm".into()));
        assert!(!parse("svm").has_end_to_end());
        let net = Part::Package { name: "glass-lib-net".into(), has_library: true };
        assert_eq!([parse("lib/net"), parse("glass-lib-net")], [net.clone(), net]);
        // A program cannot have examples.
        assert!(!parse("profiler/cli").has_docs());
        let error = Part::parse(Some("nonsense")).unwrap_err().to_string();
        assert!(error.contains("no part \"nonsense\"") && error.contains("end-to-end"), "{error}");
    }
}
