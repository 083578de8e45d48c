//! Programs with every part that we parse: symbols, debug information with inlined calls, both kinds of unwind
//! tables, a build id, a table of sleds.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::scratch;

/// Names of C, C++ and Rust; a function that was inlined; one that calls itself; sleds as from `glass build
/// --trace-functions`.
const SOURCE: &str = r#"
__attribute__((noinline)) static int leaf(int value) { volatile int kept = value * 3; return kept; }
static inline __attribute__((always_inline)) int middle(int value) { return leaf(value + 1) + leaf(value); }
__attribute__((noinline)) int _ZN5queue4push17h0123456789abcdefE(int value) {
    volatile char room[200];
    room[value & 127] = 1;
    return middle(value) + room[3];
}
__attribute__((noinline)) int _ZNSt6vectorIiSaIiEE9push_backEOi(int value) {
    return value > 3 ? _ZNSt6vectorIiSaIiEE9push_backEOi(value - 1) + value : _ZN5queue4push17h0123456789abcdefE(value);
}
int data_word = 7;
void _start(void) {
    data_word = _ZNSt6vectorIiSaIiEE9push_backEOi(data_word);
    for (;;) {}
}
__asm__(
    ".section xray_instr_map,\"a\",@progbits\n"
    ".quad _start - ., _start - .\n.zero 16\n"
    ".quad _start - ., _start - .\n.zero 16\n"
    ".quad _ZN5queue4push17h0123456789abcdefE - ., _ZN5queue4push17h0123456789abcdefE - .\n.zero 16\n"
    ".text\n"
);
"#;

const FLAGS: [&[&str]; 4] = [
    &["-O2", "-g", "-fomit-frame-pointer", "-fasynchronous-unwind-tables"],
    &["-O1", "-g", "-gz=zlib", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"],
    &["-O2", "-g1", "-gdwarf-4", "-fno-omit-frame-pointer"],
    &["-O2", "-s"],
];

fn compile(number: usize, flags: &[&str]) -> std::io::Result<Vec<u8>> {
    let output = scratch::path(&format!("program-{}-{number}", std::process::id()));
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-", "-nostdlib", "-static", "-no-pie", "-fcf-protection=none", "-Wl,--build-id"])
        .args(flags)
        .arg("-o")
        .arg(&output)
        .stdin(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = compiler.stdin.take() {
        input.write_all(SOURCE.as_bytes())?;
    }
    let status = compiler.wait()?;
    if !status.success() {
        return Err(std::io::Error::other(format!("cc: {status}")));
    }
    let program = std::fs::read(&output);
    std::fs::remove_file(&output)?;
    program
}

/// The programs. Rust itself links with `cc`, so it is installed.
pub fn programs() -> &'static [Vec<u8>] {
    static PROGRAMS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let compiled = FLAGS.iter().enumerate().map(|(number, flags)| compile(number, flags));
        compiled.collect::<Result<_, _>>().expect("cc compiles a small program")
    })
}
