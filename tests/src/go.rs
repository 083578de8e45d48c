//! Programs of other people in Go, from its proxy of modules.

use crate::{cache, programs};
use anyhow::ensure;
use std::path::PathBuf;
use std::process::Command;

/// The program `name`, which Go builds once of `package` in a folder with these files (their names and texts); `None` after printing that the test is
/// skipped, without a Go that is new enough, or without the proxy.
pub fn built(name: &str, files: &[(&str, &str)], package: &str) -> Option<PathBuf> {
    let Some(go) = programs::go() else {
        programs::skip(&format!("there is no go to build {name}"));
        return None;
    };
    let texts: String = files.iter().map(|(_, text)| *text).collect();
    let built = cache::filled(&format!("{name}-{}", cache::digest(texts.as_bytes())), |folder| {
        files.iter().try_for_each(|(file, text)| std::fs::write(folder.join(file), text))?;
        let output = Command::new(go).args(["build", "-o", name, package]).current_dir(folder).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    });
    match built {
        Ok(folder) => Some(folder.join(name)),
        Err(error) => {
            programs::skip(&format!("{name} cannot be built: {error:#}"));
            None
        }
    }
}
