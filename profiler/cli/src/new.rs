//! `glass new`: makes the crate of a new service.

use crate::console;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Creates the crate of a service, with a test and a README.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the service and of its folder: lower-case letters, digits and hyphens.
    name: String,
    /// Folder of Glasshouse's sources [default: those installed with `glass`, or those that it was built from].
    #[arg(long, value_name = "PATH")]
    glasshouse: Option<PathBuf>,
}

/// The repository that this command was built in; empty in a package (build.rs).
const OWN_REPOSITORY: &str = env!("GLASS_SOURCES");
/// Where a package has the sources, from the folder of the program (`cargo xtask package`).
const INSTALLED: &str = "../share/glasshouse";

/// The files of a new crate. `my-service` and `my_service` stand for its name, `GLASSHOUSE` for the folder of the sources.
const FILES: [(&str, &str); 7] = [
    ("Cargo.toml", include_str!("../template/Cargo.toml.in")),
    (".cargo/config.toml", include_str!("../template/config.toml")),
    ("src/main.rs", include_str!("../template/main.rs")),
    ("src/lib.rs", include_str!("../template/lib.rs")),
    ("tests/service.rs", include_str!("../template/service.rs")),
    ("README.md", include_str!("../template/README.md")),
    (".gitignore", include_str!("../template/gitignore")),
];

/// Names that a crate cannot have, because the language or a build has them.
const RESERVED: [&str; 13] = [
    "test",
    "core",
    "std",
    "alloc",
    "self",
    "super",
    "crate",
    "build",
    "deps",
    "examples",
    "incremental",
    "glasshouse",
    "proc-macro",
];

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    check_name(&args.name)?;
    let sources = sources(args.glasshouse.as_deref())?;
    let folder = Path::new(&args.name);
    if let Err(error) = fs::create_dir(folder) {
        bail!("cannot make the folder {}: {error}; choose another name or another place", folder.display());
    }
    for (path, text) in FILES {
        write(&folder.join(path), &fill(text, &args.name, &sources))?;
    }
    // The versions that Glasshouse is tested with. Cargo drops what a service does not use.
    let lock = sources.join("Cargo.lock");
    if lock.is_file() {
        fs::copy(&lock, folder.join("Cargo.lock")).with_context(|| format!("cannot copy {}", lock.display()))?;
    }
    console::print(&format!("made {0}/: next, `cd {0}` and `cargo run`\n", args.name))
}

fn check_name(name: &str) -> Result<()> {
    let is_word = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !name.ends_with('-');
    if !is_word || name.len() > 60 {
        bail!("`{name}` is no name for a service: use lower-case letters, digits and hyphens, such as my-service");
    }
    if RESERVED.contains(&name) {
        bail!("`{name}` has a meaning for Rust: choose another name");
    }
    Ok(())
}

/// The folder of Glasshouse's sources: `given`, or those installed with this command, or those that it was built from.
pub(crate) fn sources(given: Option<&Path>) -> Result<PathBuf> {
    let has_library = |path: &Path| path.join("glasshouse/Cargo.toml").is_file();
    let path = match given {
        Some(path) if !has_library(path) => {
            bail!("{} has no sources of Glasshouse: name their folder by --glasshouse", path.display())
        }
        Some(path) => path.to_owned(),
        None => default_folders().into_iter().find(|path| has_library(path)).with_context(|| {
            let folders: Vec<String> = default_folders().iter().map(|path| path.display().to_string()).collect();
            format!(
                "the sources of Glasshouse are not in {}: name their folder by `glass new --glasshouse`",
                folders.join(" or ")
            )
        })?,
    };
    let path = path.canonicalize().with_context(|| format!("cannot open {}", path.display()))?;
    if path.to_str().is_none_or(|path| path.contains(['"', '\\', '\n'])) {
        bail!("the path {} cannot be written into Cargo.toml: move the sources", path.display());
    }
    Ok(path)
}

/// Where the sources can be, the preferred folder first.
fn default_folders() -> Vec<PathBuf> {
    let installed = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join(INSTALLED)));
    let own = (!OWN_REPOSITORY.is_empty()).then(|| PathBuf::from(OWN_REPOSITORY));
    installed.into_iter().chain(own).collect()
}

fn fill(text: &str, name: &str, sources: &Path) -> String {
    let text = text.replace("my-service", name).replace("my_service", &name.replace('-', "_"));
    text.replace("GLASSHOUSE", &sources.display().to_string())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_cargo_takes_are_taken() {
        for good in ["tally", "my-service", "s3-proxy"] {
            check_name(good).unwrap();
        }
        for bad in ["", "My", "a_b", "-a", "a-", "1a", "a/b", "ä", "test", "../x", &"a".repeat(61)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_of_the_template_is_left() {
        for (path, text) in FILES {
            let filled = fill(text, "s3-proxy", Path::new("/sources"));
            assert!(!filled.contains("my-service") && !filled.contains("my_service"), "{path}: {filled}");
            assert!(!filled.contains("GLASSHOUSE"), "{path}");
        }
        assert!(fill(FILES[2].1, "s3-proxy", Path::new("/r")).contains("s3_proxy::serve"));
        assert_eq!(fill(FILES[5].1, "x", Path::new("/r")).lines().count(), 3, "the README has three lines");
    }

    #[test]
    fn another_folder_is_not_taken_for_the_sources() {
        assert!(sources(None).unwrap().join("Cargo.toml").is_file());
        let refusal = sources(Some(Path::new("/"))).unwrap_err().to_string();
        assert!(refusal.contains("--glasshouse"), "{refusal}");
    }
}
