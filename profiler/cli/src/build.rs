//! `glass build`: makes VM images (or processes) of services' crates.

mod c;
mod std_crates;
mod target;

use crate::console;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use target::Library;

pub use target::{Target, check as check_target};

/// Builds a service as a bootable image or a Linux executable, and prints its path.
#[derive(clap::Args)]
pub struct Args {
    /// Packages of services; cargo builds several in parallel, and each has the features that any of them selects [default: the package of
    /// the current folder, or the only one of the workspace].
    #[arg(value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Build a program of these C sources instead, with Debian's static musl and our MPI (`mpi.h`); what follows `--` is for the compiler.
    #[arg(long, value_name = "FILES", num_args = 1.., conflicts_with_all = ["packages", "trace_functions", "without_trace", "stripped"])]
    c: Vec<PathBuf>,
    /// File of a C program or of its image [default: the name of the first source, for an image with `.image`].
    #[arg(short, long, value_name = "FILE", requires = "c")]
    output: Option<PathBuf>,
    /// What to build for.
    #[arg(long, value_enum, default_value_t = Platform::Vm)]
    platform: Platform,
    /// Processor of the image.
    #[arg(long, value_enum, default_value_t = Target::X86_64, conflicts_with = "c")]
    target: Target,
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

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    if !args.c.is_empty() {
        return c::run(&args).map(drop);
    }
    let (platform, target) = (args.platform, args.target);
    check_target(platform, target)?;
    if args.trace_functions && target != Target::X86_64 {
        bail!("functions can be traced on x86-64 only: leave out --trace-functions");
    }
    let packages = Packages::find(&args.packages)?;
    let programs = match (args.trace_functions, args.without_trace) {
        (true, _) => packages.build_variant(platform, target, "glass-functions", &FUNCTION_FLAGS)?,
        (_, true) => packages.build_variant(platform, target, "glass-without-trace", &["--cfg=glass_trace_absent"])?,
        _ => packages.build(platform, target)?,
    };
    for program in programs {
        report_size("built", &program)?;
        if args.stripped {
            let stripped = program.with_extension("stripped");
            strip(target, &program, &stripped)?;
            report_size("stripped", &stripped)?;
        }
    }
    Ok(())
}

fn report_size(what: &str, file: &Path) -> Result<()> {
    let bytes = file.metadata().with_context(|| format!("cannot look at {}", file.display()))?.len();
    console::print(&format!("{what}: {} ({} KiB)\n", file.display(), bytes.div_ceil(1024)))
}

fn strip(target: Target, program: &Path, stripped: &Path) -> Result<()> {
    let (strip, package) = target.strip();
    let status = Command::new(strip).arg("-o").arg(stripped).arg(program).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("`{strip}` failed on {} ({status})", program.display()),
        Err(error) => bail!("cannot run `{strip}` ({error}): install {package}"),
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

/// Packages of the workspace around the current folder.
pub struct Packages {
    names: Vec<String>,
    target_folder: PathBuf,
}

impl Packages {
    /// Finds `names`, or without a name the package around the current folder, or the only one that has a program.
    pub fn find(names: &[String]) -> Result<Packages> {
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
        let all = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let names = match names {
            [] => vec![default_package(all)?],
            _ => names.iter().map(|name| named_package(all, name)).collect::<Result<_>>()?,
        };
        Ok(Packages { names, target_folder })
    }

    /// The name of the first.
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// Builds for `platform`, an image for `target`, and returns the programs' paths. Cargo's own messages show progress.
    pub fn build(&self, platform: Platform, target: Target) -> Result<Vec<PathBuf>> {
        let mut cargo = self.cargo();
        let folder = match platform {
            Platform::Linux => {
                cargo.arg("--release");
                self.target_folder.join("release")
            }
            Platform::Vm => self.add_target(&mut cargo, "glass", platform, target, &[])?,
        };
        self.finish(cargo, &folder, (platform == Platform::Vm).then_some(target))
    }

    /// The same in a folder of its own, with more flags, of which some may be unstable.
    fn build_variant(&self, platform: Platform, target: Target, folder: &str, flags: &[&str]) -> Result<Vec<PathBuf>> {
        let mut cargo = self.cargo();
        if flags.iter().any(|flag| flag.starts_with("-Z")) {
            cargo.env(ALLOW_UNSTABLE.0, ALLOW_UNSTABLE.1);
        }
        let folder = self.add_target(&mut cargo, folder, platform, target, flags)?;
        self.finish(cargo, &folder, (platform == Platform::Vm).then_some(target))
    }

    fn cargo(&self) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.arg("build");
        for name in &self.names {
            cargo.args(["--package", name, "--bin", name]);
        }
        cargo
    }

    /// Has cargo build with our flags into `folder`. Returns the folder in which the programs will be.
    fn add_target(
        &self,
        cargo: &mut Command,
        folder: &str,
        platform: Platform,
        target: Target,
        more_flags: &[&str],
    ) -> Result<PathBuf> {
        let folder = self.target_folder.join(folder);
        let (flags, link_flags, profile): (&[&str], &[&str], _) = match platform {
            Platform::Linux => (&PROCESS_FLAGS, &[], "release"),
            Platform::Vm => (target.flags(), target.link_flags(), "image"),
        };
        let flags = flags.iter().chain(more_flags).map(|flag| flag.to_string());
        let link_flags = link_flags.iter().map(|flag| format!("-Clink-arg={flag}"));
        let flags: Vec<String> = flags.chain(link_flags).collect();
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env_remove("RUSTFLAGS");
        cargo.args(["--profile", profile, "--target", target.triple()]).arg("--target-dir").arg(&folder);
        if platform == Platform::Vm {
            cargo.envs(target.c_flags());
            for setting in IMAGE_PROFILE {
                cargo.args(["--config", setting]);
            }
            Library::find(target)?.add(cargo);
        }
        Ok(folder.join(target.triple()).join(profile))
    }

    /// Runs cargo; if it fails for an image, the error names the crates that need the standard library.
    fn finish(&self, mut cargo: Command, folder: &Path, image: Option<Target>) -> Result<Vec<PathBuf>> {
        let status = cargo.status().context("cannot run `cargo`: install Rust 1.95 or newer")?;
        if !status.success() {
            let names = self.names.join(", ");
            let explain = |target| self.names.iter().find_map(|name| std_crates::explain(name, target));
            match image.and_then(explain) {
                Some(explanation) => bail!("building {names} failed: {explanation}"),
                None => bail!("building {names} failed: see cargo's messages above"),
            }
        }
        Ok(self.names.iter().map(|name| folder.join(name)).collect())
    }
}

fn has_program(package: &serde_json::Value) -> bool {
    let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    targets.iter().any(|target| target["kind"][0] == "bin" && target["name"] == package["name"])
}

/// The names of all that have a program, in order.
fn programs(packages: &[serde_json::Value]) -> Vec<&str> {
    let mut names: Vec<&str> =
        packages.iter().filter(|package| has_program(package)).filter_map(|package| package["name"].as_str()).collect();
    names.sort_unstable();
    names
}

/// The package around the current folder, or the only one that has a program.
fn default_package(packages: &[serde_json::Value]) -> Result<String> {
    let here = std::env::current_dir().context("the current folder is gone")?;
    let programs = programs(packages);
    match (package_around(packages, &here), &programs[..]) {
        (Some(package), _) => named_package(packages, package["name"].as_str().unwrap_or_default()),
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) => bail!("which package? There is: {}", programs.join(", ")),
    }
}

/// Checks that the package `name` can be built.
fn named_package(packages: &[serde_json::Value], name: &str) -> Result<String> {
    match packages.iter().find(|package| package["name"] == name) {
        Some(package) if has_program(package) => Ok(name.to_owned()),
        Some(_) => bail!("package {name:?} has no program of its name to build"),
        None => bail!("there is no package `{name}` here; there is: {}", programs(packages).join(", ")),
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
