//! MPI programs in C as processes under `glass run --ranks`: results, failures of ranks, and a test suite of other people.

mod judge;
mod open_mpi;

use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::{limit, programs, python};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A job that hangs is killed after this; more ranks than cores on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(480);
const FAILURES: &str = include_str!("mpi/failures.c");

/// The launcher, and the library that programs load.
struct Mpi {
    glass: PathBuf,
    library: PathBuf,
}

impl Mpi {
    fn find() -> Option<Mpi> {
        Some(Mpi { glass: programs::built("glass")?, library: programs::built("libmpi_abi.so")? })
    }

    fn include() -> PathBuf {
        programs::root().join("lib/mpi-abi/include")
    }

    /// Compiles C sources with the host's compiler; `None` after a printed reason if there is none.
    fn compile(&self, folder: &Folder, sources: &[PathBuf]) -> Option<PathBuf> {
        let program = folder.file("program");
        let library = folder.file("libmpi_abi.so.1");
        std::os::unix::fs::symlink(&self.library, &library).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-O2", "-Wall", "-Werror", "-pthread", "-I"])
            .arg(Mpi::include())
            .args(sources)
            .arg(&library);
        let Ok(output) = cc.arg("-o").arg(&program).output() else {
            programs::skip("there is no cc");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(program)
    }

    /// Runs a program as `ranks` ranks; its exit code and all that it printed.
    fn run(&self, folder: &Folder, ranks: usize, words: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(&self.glass);
        command.args(["run", "--ranks", &ranks.to_string(), "--"]).args(words);
        command.env("GLASS_MPI_LIBRARY", &self.library);
        let mut process = Process::spawn(&mut command, &folder.file(&format!("log-{ranks}"))).unwrap();
        let status = process.wait(PATIENCE);
        let output = process.output();
        let status = status.unwrap_or_else(|| panic!("{words:?} with {ranks} ranks does not end: {output}"));
        (status.code(), output)
    }
}

fn osu_sources() -> Vec<PathBuf> {
    let folder = programs::root().join("bench/osu");
    ["osu.c", "point_to_point.c", "collective.c", "floor.c"].iter().map(|name| folder.join(name)).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours is text")
}

#[test]
fn the_benchmarks_give_right_results_with_more_ranks_than_cores_too() {
    limit::within(Duration::from_secs(1200), || {
        let Some(mpi) = Mpi::find() else { return };
        let folder = Folder::new("mpi-osu").unwrap();
        let Some(program) = mpi.compile(&folder, &osu_sources()) else { return };
        let program = text(&program);
        for name in ["latency", "bw"] {
            let (code, output) = mpi.run(&folder, 2, &[program, name, "-c", "-i", "3", "-x", "1"]);
            assert_eq!(code, Some(0), "{name}: {output}");
            assert!(output.lines().any(|line| line.starts_with("1048576 ")), "{output}");
        }
        for ranks in [1, 2, 3, 4, 8] {
            for name in ["barrier", "bcast", "reduce", "allreduce", "allgather", "alltoall"] {
                let arguments = [program, name, "-c", "-f", "-i", "2", "-x", "1", "-m", "1:262144"];
                let (code, output) = mpi.run(&folder, ranks, &arguments);
                assert_eq!(code, Some(0), "{name} with {ranks} ranks: {output}");
                assert!(name == "barrier" || output.lines().any(|line| line.starts_with("262144 ")), "{output}");
            }
        }
    });
}

/// Runs one case of `failures.c` with 3 ranks.
fn failure(case: &'static str) -> Option<(Option<i32>, String)> {
    limit::within(Duration::from_secs(300), move || {
        let mpi = Mpi::find()?;
        let folder = Folder::new(&format!("mpi-{case}")).unwrap();
        let source = folder.write("failures.c", FAILURES.as_bytes()).unwrap();
        let program = mpi.compile(&folder, &[source])?;
        Some(mpi.run(&folder, 3, &[text(&program), case]))
    })
}

fn count(output: &str, line: &str) -> usize {
    output.lines().filter(|found| *found == line).count()
}

#[test]
fn a_rank_that_is_killed_is_an_error_on_all_others() {
    let Some((code, output)) = failure("killed") else { return };
    assert_eq!(code, Some(128 + 9), "{output}");
    assert!(output.contains("rank 1 was ended by signal 9"), "{output}");
    // MPI_ERR_PROC_ABORTED.
    assert_eq!(count(&output, "barrier returned 58"), 2, "{output}");
}

#[test]
fn abort_ends_all_ranks_with_its_code() {
    let Some((code, output)) = failure("abort") else { return };
    assert_eq!(code, Some(7), "{output}");
    assert!(output.contains("rank 2 called MPI_Abort with code 7"), "{output}");
    assert!(!output.contains("went on"), "{output}");
}

#[test]
fn a_rank_that_leaves_without_finalize_ends_the_job() {
    let Some((code, output)) = failure("leaves") else { return };
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("rank 0 ended without MPI_Finalize"), "{output}");
}

#[test]
fn errors_are_those_of_the_standard() {
    let Some((code, output)) = failure("errors") else { return };
    assert_eq!(code, Some(0), "{output}");
    // MPI_ERR_TRUNCATE, MPI_ERR_COMM, MPI_ERR_RANK, MPI_ERR_TAG, MPI_ERR_TYPE, MPI_ERR_OP, MPI_ERR_UNSUPPORTED_OPERATION.
    assert_eq!(count(&output, "15 5 6 4 3 10 55"), 3, "{output}");
}

#[test]
fn a_fatal_error_ends_all_ranks() {
    let Some((code, output)) = failure("fatal") else { return };
    assert_eq!(code, Some(6), "{output}");
    assert!(output.contains("MPI: rank 0: invalid rank (error 6)"), "{output}");
    assert!(!output.contains("went on"), "{output}");
}

/// The other library of the standard ABI that there is as a package (MPICH 5): programs linked with one run with the other.
#[test]
fn programs_run_with_the_other_library_of_the_standard() {
    limit::within(Duration::from_secs(300), || {
        let Some(mpi) = Mpi::find() else { return };
        let environment = match python::environment("mpich==5.0.2") {
            Ok(environment) => environment,
            Err(error) => return programs::skip(&format!("MPICH cannot be had: {error:#}")),
        };
        let folder = Folder::new("mpi-other").unwrap();
        let Some(ours) = mpi.compile(&folder, &osu_sources()) else { return };
        let theirs = folder.file("program-of-mpich");
        let mut mpicc = Command::new(environment.join("bin/mpicc_abi"));
        mpicc.args(["-std=c11", "-O2", "-pthread", "-o"]).arg(&theirs).args(osu_sources());
        // It names its own folder of before it was moved.
        mpicc.arg(format!("-L{}", environment.join("lib").display()));
        mpicc.arg(format!("-I{}", environment.join("include").display()));
        let compiled = mpicc.output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let table = ["allreduce", "-c", "-i", "3", "-x", "1", "-m", "1:4096"];
        let (code, output) = mpi.run(&folder, 2, &[&[text(&theirs)], &table[..]].concat());
        assert!(code == Some(0) && output.lines().any(|line| line.starts_with("4096 ")), "theirs with ours: {output}");
        let mut command = Command::new(environment.join("bin/mpiexec"));
        command.args(["-n", "2"]).arg(&ours).args(table).env("LD_LIBRARY_PATH", environment.join("lib"));
        let mut process = Process::spawn(&mut command, &folder.file("log-of-mpich")).unwrap();
        let status = process.wait(PATIENCE);
        let output = process.output();
        assert!(
            status.is_some_and(|status| status.success()) && output.lines().any(|line| line.starts_with("4096 ")),
            "ours with theirs: {output}"
        );
    });
}
