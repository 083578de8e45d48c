//! A few cases of every target, the same in each run; `cargo xtask fuzz` runs many.

use std::process::Command;

/// For each target; slow targets run fewer.
const CASES: u64 = 60;

#[test]
fn no_reader_fails_on_the_first_cases() {
    let folder = std::env::temp_dir().join(format!("glass-fuzz-test-{}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_glass-fuzz"))
        // A debug build on a busy machine: the limit is only for cases that never end.
        .args(["--cases", &CASES.to_string(), "--seed", "1", "--seconds", "600", "--case-seconds", "10", "--folder"])
        .arg(&folder)
        .output()
        .expect("the built program runs");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if output.status.success() {
        // Inputs that failed are worth keeping.
        std::fs::remove_dir_all(&folder).expect("our folder is there");
    }
    assert!(output.status.success(), "{said}\nfrom {}", folder.display());
    for target in glass_fuzz::targets::ALL {
        let cases = CASES.div_ceil(target.cost()).to_string();
        let ran = |line: &str| line.split_whitespace().take(2).eq([target.name(), &cases]);
        assert!(said.lines().any(ran), "{} did not run {cases} cases: {said}", target.name());
    }
}
