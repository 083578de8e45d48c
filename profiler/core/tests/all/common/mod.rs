//! Builds small programs with the machine's C compiler.

use glass_tests::folder::Folder;
use glass_tests::programs::skip;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program of `tests/programs`; `None` and a word on it if there is no C compiler.
pub fn compile(folder: &Folder, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let output = folder.file("program");
    let result = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&output).output();
    let Ok(result) = result else {
        skip("there is no C compiler (cc)");
        return None;
    };
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    Some(output)
}
