//! Running other programs: with their own progress, or silent while they succeed.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in a folder of the repository")
}

/// The target directory that cargo uses here.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// A `cargo` command in the repository, with colours only if our own output may have them.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// `program` with its arguments, for a message.
pub fn described(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs to the end and returns standard output; when it fails, prints all its output and returns an error.
pub fn quiet(command: &mut Command) -> Result<String> {
    let description = described(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{description}`"))?;
    if !output.status.success() {
        eprintln!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("`{description}` failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end with our own standard error, on which cargo shows its progress, and returns standard output.
pub fn shown(command: &mut Command) -> Result<String> {
    let description = described(command);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start `{description}`"))?;
    if !output.status.success() {
        bail!("`{description}` failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end with our own output streams.
pub fn streamed(command: &mut Command) -> Result<()> {
    let description = described(command);
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start `{description}`"))?;
    if !status.success() {
        bail!("`{description}` failed ({status})");
    }
    Ok(())
}

/// The path of `program` on the search path.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    // Debian keeps daemons such as nginx in sbin, which the path of an ordinary user lacks.
    let folders = std::env::split_paths(&folders).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}
