//! `glass build --c`: links C sources with Debian's static musl and our MPI into a program, and the program into an image.

use super::{Args, IMAGE_PROFILE, Packages, Platform, Target, report_size, strip};
use crate::new;
use anyhow::{Context, Result, bail, ensure};
use glass_formats::C_PROGRAM_SYMBOLS;
use rustix::fs::{Access, access};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian's package `musl-dev` has the C library and the objects that start a program.
const MUSL: &str = "/usr/lib/x86_64-linux-musl";
const COMPILER: &str = "musl-gcc";
/// The package of our MPI library, and the name of its library.
const MPI: &str = "glass-platform-mpi";
const MPI_ARCHIVE: &str = "libmpi_abi.a";
/// The package around a program in an image.
const IMAGE: &str = "glass-platform-c-image";
/// Names the program's file for that package.
const PROGRAM_VARIABLE: &str = "GLASS_PROGRAM";
/// Rust flags of the library: code for any address, without the standard library.
const MPI_FLAGS: [&str; 4] =
    ["-Crelocation-model=pic", "-Cforce-frame-pointers=yes", "--cfg=glass_static", "-Ctarget-feature=+crt-static"];
/// What differs from an image's profile: reductions are loops over elements, which `s` leaves scalar.
const FOR_SPEED: [&str; 1] = ["profile.image.opt-level=3"];
/// How sources are compiled: for any address, with frame pointers and lines for the profiler.
const COMPILE: [&str; 4] = ["-O2", "-g", "-fPIE", "-fno-omit-frame-pointer"];
/// How a program is linked: it runs at any address, which it does to itself when it starts.
const LINK: [&str; 3] =
    ["-static", "-nostartfiles", "-Wl,-pie,--no-dynamic-linker,-z,text,-z,noexecstack,--build-id=sha1"];

/// Builds what the arguments request; returns the file.
pub(super) fn run(args: &Args) -> Result<PathBuf> {
    let sources = &args.c;
    for source in sources {
        ensure!(source.is_file(), "there is no file {}", source.display());
    }
    let repository = new::sources(None)?;
    let output = match &args.output {
        Some(output) => output.clone(),
        None => default_output(&sources[0], args.platform)?,
    };
    // Builds at the same time have the same intermediate files.
    let builds = builds(&repository)?;
    let folder = builds.join("glass-c");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let lock = File::create(folder.join("lock")).context("cannot lock the folder of C programs")?;
    lock.lock().context("cannot lock the folder of C programs")?;
    let archive = mpi(&repository, &folder)?;
    match args.platform {
        Platform::Linux => compile(sources, &args.compiler, &repository, &archive, &output)?,
        Platform::Vm => {
            let (program, stripped) = (folder.join("program"), folder.join("program.stripped"));
            compile(sources, &args.compiler, &repository, &archive, &program)?;
            strip(Target::X86_64, &program, &stripped)?;
            let image = image(&repository, builds, &stripped)?;
            fs::copy(&image, &output).with_context(|| format!("cannot write {}", output.display()))?;
            // For the profiler: the image has the program without its symbols.
            let mut symbols = output.clone().into_os_string();
            symbols.push(C_PROGRAM_SYMBOLS);
            fs::copy(&program, &symbols).with_context(|| format!("cannot write {}", symbols.display()))?;
        }
    }
    report_size("built", &output)?;
    Ok(output)
}

/// Where cargo builds: in the sources, or in this user's cache where they are installed and cannot be written.
fn builds(sources: &Path) -> Result<PathBuf> {
    if access(sources, Access::WRITE_OK).is_ok() {
        return Ok(sources.join("target"));
    }
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    Ok(cache.context("there is no folder to build in: set HOME")?.join("glasshouse/builds"))
}

/// `hello.c` becomes `hello`, or `hello.image` for a VM, in the current folder.
fn default_output(source: &Path, platform: Platform) -> Result<PathBuf> {
    let stem = source.file_stem().with_context(|| format!("{} is no name of a file", source.display()))?;
    let mut name = PathBuf::from(stem);
    match platform {
        Platform::Vm => _ = name.set_extension("image"),
        Platform::Linux => ensure!(name != source, "name the program by --output: its source has no extension"),
    }
    Ok(name)
}

/// Our MPI as an archive.
fn mpi(repository: &Path, folder: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["rustc", "--quiet", "--package", MPI, "--lib", "--crate-type", "staticlib", "--profile", "image"]);
    cargo.args(["--target", Target::X86_64.triple(), "--target-dir"]).arg(folder).current_dir(repository);
    IMAGE_PROFILE.iter().chain(&FOR_SPEED).for_each(|setting| _ = cargo.args(["--config", setting]));
    cargo.env("CARGO_ENCODED_RUSTFLAGS", MPI_FLAGS.join("\x1f")).env_remove("RUSTFLAGS");
    let status = cargo.status().context("cannot run `cargo`: install Rust 1.95 or newer")?;
    ensure!(status.success(), "building our MPI library failed: see cargo's messages above");
    Ok(folder.join(Target::X86_64.triple()).join("image").join(MPI_ARCHIVE))
}

/// Compiles and links. The objects of the C library that start a program come first, and those that end it last.
fn compile(sources: &[PathBuf], options: &[String], repository: &Path, archive: &Path, output: &Path) -> Result<()> {
    let mut command = Command::new(COMPILER);
    command.args(COMPILE).arg("-I").arg(repository.join("lib/mpi-abi/include")).args(LINK);
    command.arg(format!("{MUSL}/rcrt1.o")).arg(format!("{MUSL}/crti.o")).arg(of_compiler("crtbeginS.o")?);
    command.args(sources).args(options).arg(archive);
    command.arg(of_compiler("crtendS.o")?).arg(format!("{MUSL}/crtn.o")).arg("-o").arg(output);
    let status = command.status().context(MISSING)?;
    ensure!(status.success(), "building {} failed: see the compiler's messages above", output.display());
    Ok(())
}

const MISSING: &str = "cannot run `musl-gcc`, which compiles C programs: install it with `apt-get install musl-tools`";

/// A file of the compiler itself.
fn of_compiler(name: &str) -> Result<PathBuf> {
    let output = Command::new(COMPILER).arg(format!("-print-file-name={name}")).output().context(MISSING)?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if !path.is_absolute() {
        bail!("`{COMPILER}` has no {name}: install gcc");
    }
    Ok(path)
}

/// The image around a program.
fn image(repository: &Path, builds: PathBuf, program: &Path) -> Result<PathBuf> {
    let packages = Packages { names: vec![IMAGE.to_owned()], target_folder: builds };
    let mut cargo = packages.cargo();
    cargo.current_dir(repository).arg("--quiet").env(PROGRAM_VARIABLE, program);
    let folder = packages.add_target(&mut cargo, "glass", Platform::Vm, Target::X86_64, &[])?;
    Ok(packages.finish(cargo, &folder, None)?.swap_remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_name_of_its_first_source() {
        let name = |source: &str, platform| default_output(Path::new(source), platform);
        assert_eq!(name("a/hello.c", Platform::Vm).unwrap(), Path::new("hello.image"));
        assert_eq!(name("hello.c", Platform::Linux).unwrap(), Path::new("hello"));
        assert!(name("hello", Platform::Linux).unwrap_err().to_string().contains("--output"));
    }
}
