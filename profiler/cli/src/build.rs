//! `glass build`: makes a VM image (or a process) of a service's crate.

mod c;

use crate::console;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a service as a bootable VM image or as a Linux executable, with the release profile, and prints its path.
#[derive(clap::Args)]
pub struct Args {
    /// Package of the service [default: the package of the current folder, or the only one of the workspace].
    package: Option<String>,
    /// Build a program of these C sources instead, with Debian's static musl and our MPI (`mpi.h`); what follows `--` is for the compiler.
    #[arg(long, value_name = "FILES", num_args = 1.., conflicts_with_all = ["package", "trace_functions", "without_trace", "stripped"])]
    c: Vec<PathBuf>,
    /// File of a C program or of its image [default: the name of the first source, for an image with `.image`].
    #[arg(short, long, value_name = "FILE", requires = "c")]
    output: Option<PathBuf>,
    /// What to build for.
    #[arg(long, value_enum, default_value_t = Platform::Vm)]
    platform: Platform,
    /// Also write PACKAGE.stripped, without symbols.
    #[arg(long)]
    stripped: bool,
    /// Make the functions of the program traceable by `glass trace --functions`; for measurements: it sets an unstable flag of the
    /// stable compiler (RUSTC_BOOTSTRAP).
    #[arg(long)]
    trace_functions: bool,
    /// Leave all trace events out of the code, to compare with.
    #[arg(long, hide = true, conflicts_with = "trace_functions")]
    without_trace: bool,
    /// Arguments of the compiler of C sources.
    #[arg(last = true, requires = "c")]
    compiler: Vec<String>,
}

/// Where a service runs.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Platform {
    /// A virtual machine
    Vm,
    /// A process of this machine
    Linux,
}

/// Rust flags of a process. `.cargo/config.toml` has them too, but not in effect when we give others.
const PROCESS_FLAGS: [&str; 1] = ["-Cforce-frame-pointers=yes"];

/// Rust flags of a program whose functions can be traced: `docs/decisions/0006-function-tracing.md`. The first is
/// unstable, and [`ALLOW_UNSTABLE`] is what makes a stable compiler take it.
const FUNCTION_FLAGS: [&str; 2] = ["-Zinstrument-xray=always", "--cfg=glass_functions"];
const ALLOW_UNSTABLE: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");

/// Rust flags of an image: code that runs where it is linked, can be unwound, and has no red zone.
const IMAGE_FLAGS: [&str; 6] = [
    "-Cforce-frame-pointers=yes",
    "-Cforce-unwind-tables=yes",
    "-Cno-redzone=yes",
    "-Crelocation-model=static",
    "--cfg=glass_vm",
    // Not chosen by CPUID at run time: wide registers are never switched on in an image.
    "--cfg=chacha20_backend=\"soft\"",
];

/// Linker flags of an image: nothing of the host, our linker script (found through platform/vm's
/// build script), a build id by which the profiler recognizes the symbol file.
const IMAGE_LINK_FLAGS: [&str; 9] = [
    "-nostartfiles",
    "-nostdlib",
    "-static",
    "-no-pie",
    "-Wl,-Tvm.ld",
    "-Wl,-z,max-page-size=4096",
    "-Wl,-z,noexecstack",
    "-Wl,--build-id=sha1",
    "-Wl,--no-eh-frame-hdr",
];

/// The profile, given here so that a service's workspace need not define it. Panics abort because
/// stable Rust cannot unwind without std; the debug information is not loaded into the guest. Optimized for size, and as one unit: a
/// quarter less code, which answers more requests and boots faster (docs/guides/booting.md).
const IMAGE_PROFILE: [&str; 6] = [
    "profile.image.inherits=\"release\"",
    "profile.image.panic=\"abort\"",
    "profile.image.debug=1",
    "profile.image.codegen-units=1",
    "profile.image.lto=\"fat\"",
    "profile.image.opt-level=\"s\"",
];

/// The target is the host's triple; naming it keeps our flags away from build scripts and macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    if !args.c.is_empty() {
        return c::run(&args).map(drop);
    }
    let package = Package::find(args.package.as_deref())?;
    let program = match (args.trace_functions, args.without_trace) {
        (true, _) => package.build_variant(args.platform, "glass-functions", &FUNCTION_FLAGS)?,
        (_, true) => package.build_variant(args.platform, "glass-without-trace", &["--cfg=glass_trace_absent"])?,
        _ => package.build(args.platform)?,
    };
    report_size("built", &program)?;
    if args.stripped {
        let stripped = program.with_extension("stripped");
        strip(&program, &stripped)?;
        report_size("stripped", &stripped)?;
    }
    Ok(())
}

fn report_size(what: &str, file: &Path) -> Result<()> {
    let bytes = file.metadata().with_context(|| format!("cannot look at {}", file.display()))?.len();
    console::print(&format!("{what}: {} ({} KiB)\n", file.display(), bytes.div_ceil(1024)))
}

fn strip(program: &Path, stripped: &Path) -> Result<()> {
    let status = Command::new("strip").arg("-o").arg(stripped).arg(program).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("`strip` failed on {} ({status})", program.display()),
        Err(error) => bail!("cannot run `strip` ({error}): install binutils"),
    }
}

/// The package whose folder `folder` is or lies in; the innermost of several.
fn package_around<'a>(packages: &'a [serde_json::Value], folder: &Path) -> Option<&'a serde_json::Value> {
    let home = |package: &'a serde_json::Value| {
        let home = Path::new(package["manifest_path"].as_str()?).parent()?;
        folder.starts_with(home).then_some((home.components().count(), package))
    };
    packages.iter().filter_map(home).max_by_key(|(depth, _)| *depth).map(|(_, package)| package)
}

/// A package of the workspace around the current folder.
pub struct Package {
    name: String,
    target_folder: PathBuf,
}

impl Package {
    /// Finds `name`, or the package around the current folder, or the only one that has a program.
    pub fn find(name: Option<&str>) -> Result<Package> {
        let output = Command::new("cargo")
            .args(["metadata", "--no-deps", "--format-version=1"])
            .output()
            .context("cannot run `cargo`: install Rust 1.95 or newer")?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            bail!("there is no Cargo package here: change to your service's folder ({})", message.trim());
        }
        let metadata: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("`cargo metadata` printed no JSON")?;
        let target_folder =
            metadata["target_directory"].as_str().context("`cargo metadata` names no target directory")?;
        let target_folder = PathBuf::from(target_folder);
        let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let has_program = |package: &serde_json::Value| {
            let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
            targets.iter().any(|target| target["kind"][0] == "bin" && target["name"] == package["name"])
        };
        let here = std::env::current_dir().context("the current folder is gone")?;
        let mut programs: Vec<&str> = packages
            .iter()
            .filter(|package| has_program(package))
            .filter_map(|package| package["name"].as_str())
            .collect();
        programs.sort_unstable();
        let found = match name {
            Some(name) => packages.iter().find(|package| package["name"] == name),
            None => package_around(packages, &here).or_else(|| match &programs[..] {
                [only] => packages.iter().find(|package| package["name"] == *only),
                _ => None,
            }),
        };
        let programs = || programs.join(", ");
        match (found, name) {
            (Some(package), _) if has_program(package) => {
                Ok(Package { name: package["name"].as_str().unwrap_or_default().to_owned(), target_folder })
            }
            (Some(package), _) => bail!("package {} has no program of its name to build", package["name"]),
            (None, Some(name)) => bail!("there is no package `{name}` here; there is: {}", programs()),
            (None, None) => bail!("which package? There is: {}", programs()),
        }
    }

    /// The package's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Builds for `platform` and returns the program's path. Cargo's own messages show progress.
    pub fn build(&self, platform: Platform) -> Result<PathBuf> {
        let mut cargo = self.cargo();
        let program = match platform {
            Platform::Linux => {
                cargo.arg("--release");
                self.target_folder.join("release").join(&self.name)
            }
            Platform::Vm => self.add_target(&mut cargo, "glass", platform, &[]),
        };
        self.finish(cargo, program)
    }

    /// The same in a folder of its own, with more flags, of which some may be unstable.
    fn build_variant(&self, platform: Platform, folder: &str, flags: &[&str]) -> Result<PathBuf> {
        let mut cargo = self.cargo();
        if flags.iter().any(|flag| flag.starts_with("-Z")) {
            cargo.env(ALLOW_UNSTABLE.0, ALLOW_UNSTABLE.1);
        }
        let program = self.add_target(&mut cargo, folder, platform, flags);
        self.finish(cargo, program)
    }

    fn cargo(&self) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--package", &self.name, "--bin", &self.name]);
        cargo
    }

    /// Has cargo build with our flags into `folder`. Where the program will be.
    fn add_target(&self, cargo: &mut Command, folder: &str, platform: Platform, more_flags: &[&str]) -> PathBuf {
        let folder = self.target_folder.join(folder);
        let (flags, link_flags, profile): (&[&str], &[&str], _) = match platform {
            Platform::Linux => (&PROCESS_FLAGS, &[], "release"),
            Platform::Vm => (&IMAGE_FLAGS, &IMAGE_LINK_FLAGS, "image"),
        };
        let flags = flags.iter().chain(more_flags).map(|flag| flag.to_string());
        let link_flags = link_flags.iter().map(|flag| format!("-Clink-arg={flag}"));
        let flags: Vec<String> = flags.chain(link_flags).collect();
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env_remove("RUSTFLAGS");
        cargo.args(["--profile", profile, "--target", TARGET]).arg("--target-dir").arg(&folder);
        if platform == Platform::Vm {
            for setting in IMAGE_PROFILE {
                cargo.args(["--config", setting]);
            }
        }
        folder.join(TARGET).join(profile).join(&self.name)
    }

    fn finish(&self, mut cargo: Command, program: PathBuf) -> Result<PathBuf> {
        let status = cargo.status().context("cannot run `cargo`: install Rust 1.95 or newer")?;
        if !status.success() {
            bail!("building {} failed: see cargo's messages above", self.name);
        }
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_innermost_package_around_a_folder_is_meant() {
        let packages =
            ["/w/Cargo.toml", "/w/a/Cargo.toml", "/w/ab/Cargo.toml"].map(|path| json!({"manifest_path": path}));
        let around = |folder: &str| package_around(&packages, Path::new(folder)).map(|found| &found["manifest_path"]);
        assert_eq!(around("/w/a/src").unwrap(), "/w/a/Cargo.toml");
        assert_eq!(around("/w/ab").unwrap(), "/w/ab/Cargo.toml");
        assert_eq!(around("/w/b").unwrap(), "/w/Cargo.toml");
        assert_eq!(around("/x"), None);
    }
}
