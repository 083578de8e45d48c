//! C programs by `glass build --c`: the same sources as processes and as the ranks of a VM, with right results, and errors that are reported.

use crate::buses::MACHINES;
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

glass_tests::in_every_world!(
    a_program_finds_what_c_promises within 1800;
    every_line_is_printed within 900;
    failures_are_errors_on_all_ranks within 1800;
    the_functions_of_the_osu_suite_are_there within 900;
    a_trace_shows_who_waited_for_whom within 900;
);
glass_tests::in_worlds!(kvm_only Kvm: a_crash_names_its_rank within 900; a_profile_names_functions_of_c within 900; the_benchmarks_give_right_results within 1800; what_cannot_run_is_refused within 900;);
glass_tests::in_worlds!(tcg_only Tcg: a_crash_names_its_rank within 900; a_profile_names_functions_of_c within 900; the_benchmarks_give_right_results within 1800; what_cannot_run_is_refused within 900;);

/// How long a run may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(900);

fn sources(of: &str) -> Vec<PathBuf> {
    let own = programs::root().join("tests/tests/all");
    match of {
        "osu" => ["osu.c", "point_to_point.c", "collective.c", "floor.c"]
            .iter()
            .map(|name| programs::root().join("bench/osu").join(name))
            .collect(),
        "failures" => vec![own.join("mpi/failures.c")],
        "suite" => vec![own.join("c_programs/suite.c")],
        _ => vec![own.join("c_programs/program.c")],
    }
}

/// The file with an image's symbols.
fn with_symbols(image: &Path) -> PathBuf {
    format!("{}.symbols", image.display()).into()
}

/// Builds a program when the first test needs it.
fn build_once(glass: &Path, of: &str, is_image: bool) -> PathBuf {
    static BUILT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let platform = if is_image { "vm" } else { "linux" };
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{of}-{platform}"));
    // A test that failed here has inserted nothing.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if !built.contains(&file) {
        let mut command = Command::new(glass);
        command.args(["build", "--platform", platform, "--output"]).arg(&file).arg("--c").args(sources(of));
        let output = command.args(["--", "-Wall", "-Werror", "-lm"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        built.insert(file.clone());
    }
    file
}

/// A program for a platform.
struct Program {
    world: World,
    glass: PathBuf,
    folder: Folder,
    file: PathBuf,
}

impl Program {
    /// A copy of the built program with a name of its own; `None` after a printed reason.
    fn build(world: World, of: &str) -> Option<Program> {
        if let Some(reason) = world.obstacle() {
            programs::skip(reason);
            return None;
        }
        let has_compiler = Command::new("musl-gcc").arg("--version").stdout(Stdio::null()).status().is_ok();
        if !has_compiler {
            programs::skip("musl-gcc is not installed (package musl-tools)");
            return None;
        }
        let glass = programs::built("glass")?;
        let folder = Folder::new(&format!("c-{of}-{world}")).unwrap();
        // By its name a VM is found; that of the folder is the only one.
        let file = folder.path().join(folder.path().file_name().unwrap());
        let is_image = world != World::Process;
        let built = build_once(&glass, of, is_image);
        std::fs::copy(&built, &file).unwrap();
        if is_image {
            std::fs::copy(with_symbols(&built), with_symbols(&file)).unwrap();
        }
        Some(Program { world, glass, folder, file })
    }

    /// Runs it as `ranks` ranks; all that it printed, and the exit code.
    fn run(&self, ranks: usize, options: &[&str], words: &[&str]) -> (String, Option<i32>) {
        let mut command = Command::new(&self.glass);
        command.args(["run", "--ranks", &ranks.to_string()]);
        match self.world {
            World::Process => _ = command.args(options).arg("--").arg(&self.file),
            world => _ = command.args(["--accel", &world.to_string()]).args(options).arg(&self.file).arg("--"),
        }
        let mut process = Process::spawn(command.args(words), &self.folder.file("log")).unwrap();
        let status = process.wait(LIMIT);
        let output = process.output();
        let status = status.unwrap_or_else(|| panic!("{words:?} with {ranks} ranks does not end: {output}"));
        (output, status.code())
    }
}

fn a_program_finds_what_c_promises(world: World) {
    let Some(program) = Program::build(world, "program") else { return };
    for ranks in [1, 2, 4] {
        for words in [
            &["arguments", "two words", "%41"][..],
            &["globals"],
            &["memory"],
            &["registers"],
            &["library"],
            &["messages"],
        ] {
            let (output, code) = program.run(ranks, &[], words);
            assert_eq!(code, Some(0), "{words:?} with {ranks} ranks: {output}");
            for rank in 0..ranks {
                assert!(output.contains(&format!("rank {rank}: fine")), "{words:?} with {ranks} ranks: {output}");
            }
        }
    }
}

fn the_functions_of_the_osu_suite_are_there(world: World) {
    let Some(program) = Program::build(world, "suite") else { return };
    for ranks in [1, 2, 3] {
        let words: &[&str] = if world == World::Process { &["threads"] } else { &[] };
        let (output, code) = program.run(ranks, &[], words);
        assert_eq!(code, Some(0), "{ranks} ranks: {output}");
        for rank in 0..ranks {
            assert!(output.contains(&format!("rank {rank}: fine")), "{ranks} ranks: {output}");
        }
    }
}

/// Rank 0 receives what rank 1 sends late, and is then late itself.
fn a_trace_shows_who_waited_for_whom(world: World) {
    let Some(program) = Program::build(world, "program") else { return };
    let recording = program.folder.file("ranks.pftrace");
    let (output, code) = program.run(2, &["--trace", "--output", text(&recording)], &["waits"]);
    assert_eq!(code, Some(0), "{output}");
    let report = |arguments: &[&str]| {
        let output = Command::new(&program.glass).arg("report").args(arguments).arg(&recording).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let report = report(&["--text"]);
    let row = |start: &[&str]| {
        let rows = report.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let found = rows.into_iter().find(|row| row.starts_with(start));
        found.unwrap_or_else(|| panic!("no {start:?} in {output}\n{report}")).join(" ")
    };
    let (received, barrier) = (row(&["rank", "0", "MPI_Recv", "1"]), row(&["rank", "1", "MPI_Barrier", "1"]));
    assert!(received.ends_with("100.0 % rank 1") && received.contains(" ms"), "{report}");
    assert!(barrier.ends_with("100.0 % rank 0") && barrier.contains(" ms"), "{report}");
    let collective = row(&["MPI_Barrier", "0", "of", "2", "ranks", "1"]);
    assert!(collective.ends_with("rank 0, 100.0 %"), "{report}");
    let sends = |line: &&str| line.trim_start().starts_with("rank ") && line.contains(" MPI_Send ");
    assert_eq!(report.lines().filter(sends).count(), 1, "rank 0 sends nothing: {report}");
}

/// The ranks of a VM run their program at addresses of its own.
fn a_profile_names_functions_of_c(world: World) {
    let Some(program) = Program::build(world, "program") else { return };
    let mut command = Command::new(&program.glass);
    command.args(["run", "--ranks", "2", "--accel", &world.to_string()]).arg(&program.file).args(["--", "spin"]);
    let mut running = Process::spawn(&mut command, &program.folder.file("log")).unwrap();
    let limit = std::time::Instant::now() + LIMIT;
    while !running.output().contains("spinning") {
        assert!(running.ended().is_none() && std::time::Instant::now() < limit, "{}", running.output());
        std::thread::sleep(Duration::from_millis(20));
    }
    let recording = program.folder.file("c.pftrace");
    let name = program.file.file_name().and_then(|name| name.to_str()).unwrap();
    let mut record = Command::new(&program.glass);
    record.args(["record", "--name", name, "--duration", "2", "--output"]).arg(&recording);
    let recorded = record.output().unwrap();
    let said = String::from_utf8_lossy(&recorded.stderr);
    assert!(recorded.status.success() && !said.contains("could not be checked"), "{said}");
    let report = Command::new(&program.glass).args(["report", "--text"]).arg(&recording).output().unwrap();
    let report = String::from_utf8_lossy(&report.stdout);
    assert!(report.contains("spin_in_c"), "{said}\n{report}");
    drop(running);
}

/// More lines than wait anywhere on their way, in their order.
fn every_line_is_printed(world: World) {
    let Some(program) = Program::build(world, "program") else { return };
    let (output, code) = program.run(2, &[], &["lines"]);
    assert_eq!(code, Some(0), "{output}");
    for rank in 0..2 {
        let found = output.lines().filter(|line| line.ends_with(&format!(" of rank {rank}")));
        let expected = (0..3000).map(|line| format!("line {line} of rank {rank}"));
        assert!(found.eq(expected), "rank {rank}: {output}");
    }
}

/// As `mpi.rs` has it for processes, whose exit code is a rank's; a VM that fails has 1.
fn failures_are_errors_on_all_ranks(world: World) {
    let Some(program) = Program::build(world, "failures") else { return };
    let is_process = world == World::Process;
    let lines = |output: &str, wanted: &str| output.lines().filter(|line| *line == wanted).count();
    for (case, reason, own) in [
        ("killed", if is_process { "rank 1 was ended by signal 9" } else { "rank 1 ended with exit code 137" }, 137),
        ("abort", "rank 2 called MPI_Abort with code 7", 7),
        ("leaves", "rank 0 ended without MPI_Finalize", 1),
        ("fatal", "MPI: rank 0: invalid rank (error 6)", 6),
    ] {
        let (output, code) = program.run(3, &[], &[case]);
        assert_eq!(code, Some(if is_process { own } else { 1 }), "{case}: {output}");
        assert!(output.contains(reason) && !output.contains("went on"), "{case}: {output}");
        if case == "killed" {
            // MPI_ERR_PROC_ABORTED.
            assert_eq!(lines(&output, "barrier returned 58"), 2, "{output}");
        }
    }
    let (output, code) = program.run(3, &[], &["errors"]);
    assert_eq!((code, lines(&output, "15 5 6 4 3 10 55")), (Some(0), 3), "{output}");
}

fn a_crash_names_its_rank(world: World) {
    let Some(program) = Program::build(world, "program") else { return };
    for (case, cause) in [("null", "write to unmapped address 0x8"), ("stack", "stack overflow: the stack of ")] {
        let (output, code) = program.run(2, &[], &[case]);
        assert_eq!(code, Some(102), "{case}: {output}");
        assert!(output.contains(cause) && output.contains("of the C program, whose file is at"), "{case}: {output}");
    }
    let (output, code) = program.run(1, &[], &["fork"]);
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(output.matches("system call 57, which is not there").count(), 1, "{output}");
    assert!(output.contains("rank 0: fine"), "{output}");
}

/// Validated results with more ranks than this machine may have cores; on each bus, and with little memory.
fn the_benchmarks_give_right_results(world: World) {
    let Some(program) = Program::build(world, "osu") else { return };
    for name in ["latency", "bw"] {
        let (output, code) = program.run(2, &[], &[name, "-c", "-i", "3", "-x", "1"]);
        assert_eq!(code, Some(0), "{name}: {output}");
        assert!(output.lines().any(|line| line.starts_with("1048576 ")), "{output}");
    }
    for ranks in [1, 2, 3, 4, 8] {
        for name in ["barrier", "bcast", "reduce", "allreduce", "allgather", "alltoall"] {
            let (output, code) = program.run(ranks, &[], &[name, "-c", "-f", "-i", "2", "-x", "1", "-m", "1:262144"]);
            assert_eq!(code, Some(0), "{name} with {ranks} ranks: {output}");
            assert!(name == "barrier" || output.lines().any(|line| line.starts_with("262144 ")), "{output}");
        }
    }
    for machine in MACHINES.into_iter().chain([&["--memory", "24M"][..], &["--memory", "6G"]]) {
        let (output, code) = program.run(2, machine, &["allreduce", "-c", "-i", "2", "-x", "1", "-m", "1:4096"]);
        assert_eq!(code, Some(0), "{machine:?}: {output}");
    }
}

fn what_cannot_run_is_refused(world: World) {
    let Some(program) = Program::build(world, "program") else { return };
    let run = |options: &[&str]| {
        let mut command = Command::new(&program.glass);
        command.arg("run").args(["--accel", &world.to_string()]).args(options);
        let mut process = Process::spawn(&mut command, &program.folder.file("log")).unwrap();
        let status = process.wait(LIMIT).expect("it ends");
        (process.output(), status.code())
    };
    let image = text(&program.file);
    for (options, expected) in [
        (&["--ranks", "64", image][..], "at most 63 ranks"),
        (&["--cores", "2", image], "give their number by --ranks"),
        (&["--ranks", "3", "--memory", "16M", image, "--", "globals"], "too little memory"),
        (&["--ranks", "3", "--memory", "8M", image, "--", "globals"], "memory is enough for 1 of 4 cores: give"),
        (&["--ranks", "2", "--prefix", image], "--prefix is for ranks that are processes"),
    ] {
        let (output, code) = run(options);
        assert_eq!(code, Some(1), "{options:?}: {output}");
        assert!(output.contains(expected), "{options:?}: {output}");
    }
    let Some(other) = programs::image("hello") else { return };
    let (output, code) = run(&["--ranks", "2", text(&other)]);
    assert!(code == Some(1) && output.contains("has no ranks"), "{output}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours is text")
}
