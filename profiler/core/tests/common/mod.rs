//! Builds small programs with the machine's C compiler.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder for one test's files, removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("glass-profile-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles a program of `tests/programs`; `None` and a word on it if there is no C compiler.
pub fn compile(folder: &Folder, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let output = folder.0.join("program");
    let result = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&output).output();
    let Ok(result) = result else {
        eprintln!("skipped: there is no C compiler (cc)");
        return None;
    };
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    Some(output)
}
