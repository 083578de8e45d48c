//! The stable compiler puts counters on edges, with the options that `cargo xtask fuzz --coverage` gives it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `xtask/src/fuzz.rs`.
const OPTIONS: [&str; 3] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=3",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
];

/// A parser with two branches, whose counters are read by the module that glass-fuzz has.
const PROGRAM: &str = r#"
#[path = "SYS"]
mod sys;

#[inline(never)]
fn parse(text: &[u8]) -> u32 {
    text.iter().fold(0, |sum, byte| match byte {
        b'a' => sum + 1,
        b'b' => sum * 3 % 7,
        _ => sum,
    })
}

fn main() {
    let mut counts = Vec::new();
    let mut of = |text: &str| {
        sys::take(&mut counts);
        std::hint::black_box(parse(std::hint::black_box(text.as_bytes())));
        sys::take(&mut counts);
        counts.clone()
    };
    let [plain, again, branch, often] = ["aa", "aa", "ab", "aaaa"].map(&mut of);
    assert!(sys::count() > 0 && plain.len() == sys::count());
    assert!(plain.iter().any(|count| *count > 0));
    assert_eq!(plain, again, "the same input counts the same");
    assert!(branch.iter().zip(&plain).any(|(branch, plain)| *branch > 0 && *plain == 0), "another branch is another edge");
    assert!(often.iter().zip(&plain).any(|(often, plain)| often > plain), "more passes are more");
}
"#;

#[test]
fn the_stable_compiler_counts_edges() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("coverage-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let (source, program) = (folder.join("main.rs"), folder.join("main"));
    let sys = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sys.rs");
    std::fs::write(&source, PROGRAM.replace("SYS", &sys.display().to_string())).expect("a file can be written");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(compiler);
    command.args(["--edition", "2024", "-O"]).args(OPTIONS).arg("-o").arg(&program).arg(&source);
    let built = command.output().expect("the compiler runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).output().expect("the program runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    std::fs::remove_dir_all(&folder).expect("our folder is there");
}
