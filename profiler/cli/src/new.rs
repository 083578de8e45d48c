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
    /// Folder of the Glasshouse repository [default: the one that this `glass` was built from].
    #[arg(long, value_name = "PATH")]
    glasshouse: Option<PathBuf>,
}

/// Where this command was built.
const OWN_REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The files of a new crate. `my-service` and `my_service` stand for its name, `GLASSHOUSE` for the repository.
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
    let repository = repository(args.glasshouse.as_deref())?;
    let folder = Path::new(&args.name);
    if let Err(error) = fs::create_dir(folder) {
        bail!("cannot make the folder {}: {error}; choose another name or another place", folder.display());
    }
    for (path, text) in FILES {
        write(&folder.join(path), &fill(text, &args.name, &repository))?;
    }
    // The versions that the repository is tested with. Cargo drops what a service does not use.
    let lock = repository.join("Cargo.lock");
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

/// The folder of the Glasshouse repository: `given`, or where this command was built.
pub(crate) fn repository(given: Option<&Path>) -> Result<PathBuf> {
    let path = given.unwrap_or(Path::new(OWN_REPOSITORY));
    if !path.join("glasshouse/Cargo.toml").is_file() {
        bail!("{} is not the Glasshouse repository: name its folder by --glasshouse", path.display());
    }
    let path = path.canonicalize().with_context(|| format!("cannot open {}", path.display()))?;
    if path.to_str().is_none_or(|path| path.contains(['"', '\\', '\n'])) {
        bail!("the path {} cannot be written into Cargo.toml: move the repository", path.display());
    }
    Ok(path)
}

fn fill(text: &str, name: &str, repository: &Path) -> String {
    let text = text.replace("my-service", name).replace("my_service", &name.replace('-', "_"));
    text.replace("GLASSHOUSE", &repository.display().to_string())
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
            let filled = fill(text, "s3-proxy", Path::new("/repository"));
            assert!(!filled.contains("my-service") && !filled.contains("my_service"), "{path}: {filled}");
            assert!(!filled.contains("GLASSHOUSE"), "{path}");
        }
        assert!(fill(FILES[2].1, "s3-proxy", Path::new("/r")).contains("s3_proxy::serve"));
        assert_eq!(fill(FILES[5].1, "x", Path::new("/r")).lines().count(), 3, "the README has three lines");
    }

    #[test]
    fn another_folder_is_not_taken_for_the_repository() {
        assert!(repository(None).unwrap().join("Cargo.toml").is_file());
        let refusal = repository(Some(Path::new("/"))).unwrap_err().to_string();
        assert!(refusal.contains("--glasshouse"), "{refusal}");
    }
}
