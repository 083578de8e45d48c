//! mpi4py's own test suite over our library: nothing may fail; what we do not have counts as unsupported.

use super::{Mpi, text};
use anyhow::{Context, Result, ensure};
use glass_tests::folder::Folder;
use glass_tests::{cache, limit, programs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const VERSION: &str = "4.1.2";
/// Runs modules of the suite and prints what became of their cases.
const RUNNER: &str = include_str!("judge.py");
/// What every run tries: messages, collectives, types, operations, requests.
const MODULES: [&str; 8] = [
    "test_p2p_buf",
    "test_p2p_obj",
    "test_p2p_buf_matched",
    "test_cco_buf",
    "test_cco_nb_vec",
    "test_op",
    "test_request",
    "test_status",
];
/// What a long run tries besides.
const MODULES_LONG: [&str; 14] = [
    "test_p2p_obj_matched",
    "test_cco_obj",
    "test_cco_vec",
    "test_cco_nb_buf",
    "test_cco_pr_buf",
    "test_cco_pr_vec",
    "test_msgspec",
    "test_msgzero",
    "test_datatype",
    "test_comm",
    "test_group",
    "test_attributes",
    "test_info",
    "test_pack",
];

/// mpi4py, compiled against our header, and the folder of its tests.
fn mpi4py(mpi: &Mpi) -> Result<(PathBuf, PathBuf)> {
    let header = std::fs::read(Mpi::include().join("mpi.h"))?;
    let folder = cache::filled(&format!("mpi4py-{VERSION}-{}", cache::digest(&header)), |folder| {
        let wrapper = folder.join("mpicc");
        let lines = format!("#!/bin/sh\nexec cc -I{} \"$@\" {}\n", Mpi::include().display(), mpi.library.display());
        std::fs::write(&wrapper, lines)?;
        run(Command::new("chmod").arg("+x").arg(&wrapper))?;
        let python = folder.join("venv/bin/python");
        run(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
        let name = format!("mpi4py=={VERSION}");
        let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "mpi4py", &name, "--dest"];
        // The archive's tests are what we want; pip builds its description on the way.
        run(Command::new(&python).args(download).arg(folder).env("MPICC", &wrapper))?;
        let archive = folder.join(format!("mpi4py-{VERSION}.tar.gz"));
        run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder))?;
        let target = folder.join("modules");
        let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target"];
        let mut install_command = Command::new(&python);
        install_command.args(install).arg(&target).arg(&archive);
        run(install_command.env("MPICC", &wrapper).env("CFLAGS", "-O0"))
    })?;
    Ok((folder.join("modules"), folder.join(format!("mpi4py-{VERSION}/test"))))
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn mpi4py_judges() {
    limit::within(Duration::from_secs(3600), || {
        let Some(mpi) = Mpi::find() else { return };
        let (modules, tests) = match mpi4py(&mpi) {
            Ok(found) => found,
            Err(error) => return programs::skip(&format!("mpi4py cannot be built: {error:#}")),
        };
        let long: &[&str] = if programs::is_long() { &MODULES_LONG } else { &[] };
        let folder = Folder::new("mpi4py").unwrap();
        let runner = folder.write("judge.py", RUNNER.as_bytes()).unwrap();
        for ranks in [1, 2, 3] {
            for module in MODULES.iter().chain(long) {
                judge(&mpi, &folder, ranks, &runner, &[&modules, &tests], module);
            }
        }
    });
}

fn judge(mpi: &Mpi, folder: &Folder, ranks: usize, runner: &Path, paths: &[&Path], module: &str) {
    let paths: Vec<&str> = paths.iter().map(|path| text(path)).collect();
    let (code, output) = mpi.run(folder, ranks, &["python3", text(runner), &paths.join(":"), module]);
    let reports: Vec<&str> = output.lines().filter(|line| line.starts_with("judged ")).collect();
    limit::say(&format!("{module} with {ranks} ranks: {}", reports.first().unwrap_or(&"no report")));
    assert!(reports.len() == ranks && reports.iter().all(|report| report.contains(" 0 failed")), "{output}");
    assert_eq!(code, Some(0), "{output}");
}
