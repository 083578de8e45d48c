//! Open MPI 6, whose library of the standard ABI is a package of Debian's newest suite: programs linked with ours run with it, and programs linked with it
//! run with ours. It runs in a root of its own, because it needs the C library of that suite.

use super::{Mpi, PATIENCE, osu_sources, text};
use anyhow::{Context, Result};
use glass_tests::cache;
use glass_tests::emulated::packages;
use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::linux_guest::Release;
use glass_tests::process::Process;
use glass_tests::programs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Debian's name for `libmpi_abi.so.1` of Open MPI, and the header of the standard.
const LIBRARY: &str = "libmpi_abi_openmpi.so.1.0.0";
const HEADERS: &str = "usr/lib/x86_64-linux-gnu/openmpi/include/standard_abi";
/// A table of the suite, with checked results.
const TABLE: [&str; 7] = ["allreduce", "-c", "-i", "3", "-x", "1", "-m"];
const SIZES: &str = "1:4096";
/// Where the root has the folder of a test.
const MOUNTED: &str = "mnt";

/// The root, with Open MPI and all that it needs.
fn root() -> Result<PathBuf> {
    let kind = "open-mpi";
    let downloaded = Release::Newest.packages_with_dependencies(kind, &["openmpi-bin"], &["libopenmpi-dev"])?;
    let name = downloaded.file_name().context("a folder without a name")?.to_string_lossy().into_owned();
    cache::filled(&format!("{kind}-root-{name}"), |root| {
        packages::unpack(&downloaded, root, &[])?;
        for folder in ["bin", "lib", "lib64", "sbin"] {
            if !root.join(folder).exists() {
                symlink(Path::new("usr").join(folder), root.join(folder))?;
            }
        }
        for folder in ["proc", "sys", "dev", "tmp", MOUNTED] {
            std::fs::create_dir_all(root.join(folder))?;
        }
        let library = root.join(LIBRARIES).join("libmpi_abi.so.1");
        symlink(LIBRARY, &library).context("this Open MPI has no library of the standard ABI")?;
        Ok(std::fs::metadata(library).map(drop)?)
    })
}

/// Runs a program of the test's folder as two ranks of Open MPI.
fn run(root: &Path, folder: &Folder, program: &str) -> (bool, String) {
    // All ends with it: the mounts and the processes are its own.
    let script = format!(
        "set -e; cd \"$1\"; mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev; mount --bind \"$2\" {MOUNTED}; mount -t tmpfs tmpfs tmp; shift 2; \
         exec env -i PATH=/usr/sbin:/usr/bin HOME=/tmp OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \"$(command -v chroot)\" . \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", &script, "sh"]);
    command.arg(root).arg(folder.file("."));
    command.args(["/usr/bin/mpirun.openmpi", "--map-by", ":oversubscribe", "-n", "2"]);
    command.arg(format!("/{MOUNTED}/{program}")).args(TABLE).arg(SIZES);
    let mut process = Process::spawn(&mut command, &folder.file("log-of-open-mpi")).unwrap();
    let status = process.wait(PATIENCE);
    (status.is_some_and(|status| status.success()), process.output())
}

#[test]
fn programs_run_with_open_mpi() {
    if !programs::is_long() {
        return programs::skip("Open MPI, of 100 MB with what it needs, is tried by --long");
    }
    within(Duration::from_secs(900), || {
        let Some(mpi) = Mpi::find() else { return };
        if !rustix::process::geteuid().is_root() {
            return programs::skip("Open MPI runs in a root of its own, which only root can make");
        }
        let root = match root() {
            Ok(root) => root,
            Err(error) => return programs::skip(&format!("Open MPI 6 cannot be had: {error:#}")),
        };
        let folder = Folder::new("mpi-open-mpi").unwrap();
        if mpi.compile(&folder, &osu_sources()).is_none() {
            return;
        }
        let is_whole = |output: &str| output.lines().any(|line| line.starts_with("4096 "));
        let (is_done, output) = run(&root, &folder, "program");
        assert!(is_done && is_whole(&output), "ours with theirs: {output}");

        let theirs = folder.file("program-of-open-mpi");
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-O2", "-pthread", "-I"]).arg(root.join(HEADERS)).args(osu_sources());
        // What the library needs in turn is in the root alone.
        cc.arg(root.join(LIBRARIES).join(LIBRARY)).arg("-Wl,--allow-shlib-undefined").arg("-o").arg(&theirs);
        let compiled = cc.output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let (code, output) = mpi.run(&folder, 2, &[&[text(&theirs)], &TABLE[..], &[SIZES]].concat());
        assert!(code == Some(0) && is_whole(&output), "theirs with ours: {output}");
    });
}
