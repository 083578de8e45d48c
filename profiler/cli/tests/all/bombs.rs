//! Programs whose files expand to gigabytes: they are recorded and reported within 512 MiB.

use crate::common::{Folder, glass};
use glass_tests::elf_bomb::{DEBUG_SECTIONS, with_sections, zeros};
use glass_tests::programs::skip;
use std::process::{Command, Output};

const BUSY: &str = r#"
#include <time.h>
volatile unsigned long sum;
__attribute__((noinline)) void busy_here(void) { for (int i = 0; i < 10000; i++) sum += i; }
int main(void) {
    struct timespec now;
    do { for (int i = 0; i < 100; i++) busy_here(); clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now); } while (now.tv_nsec < 300000000 && !now.tv_sec);
}
"#;

/// Runs `glass`, which may have 512 MiB of data.
fn limited(arguments: &str) -> Output {
    let script = format!("ulimit -d 524288; exec {} {arguments}", env!("CARGO_BIN_EXE_glass"));
    Command::new("sh").args(["-c", &script]).output().unwrap()
}

/// A file of 130 KB made a recorder take 4 GiB for each of eleven sections (2026-11-25).
#[test]
fn a_program_that_expands_is_recorded_with_the_names_of_its_symbol_table() {
    let folder = Folder::new("bombs");
    let (source, program) = (folder.write("busy.c", BUSY.as_bytes()), folder.file("busy"));
    match Command::new("cc").args(["-O1", "-o", &program, &source]).status() {
        Ok(status) => assert!(status.success()),
        Err(_) => return skip("there is no C compiler (cc)"),
    }
    let plain = std::fs::read(&program).unwrap();
    let sizes = [(4u64 << 30, true), (20 << 20, false)];
    for (bytes, is_left_out) in sizes {
        let frame = zeros(bytes);
        let bomb = with_sections(&plain, &DEBUG_SECTIONS.map(|name| (name, bytes, &frame[..])));
        // Not in place: a program that just ran may not be written to.
        std::fs::remove_file(&program).unwrap();
        std::fs::write(&program, bomb).unwrap();
        let mode = Command::new("chmod").args(["755", &program]).status().unwrap();
        assert!(mode.success());
        let recording = folder.file("a.pftrace");
        let recorded = limited(&format!("record --rate 1000 --output {recording} -- {program}"));
        let text = String::from_utf8_lossy(&recorded.stderr);
        if text.contains("not permitted") {
            return skip(&text);
        }
        assert!(recorded.status.success(), "{text}");
        let table = String::from_utf8(glass(&["report", &recording, "--text"]).stdout).unwrap();
        assert!(table.contains("busy_here"), "{table}");
        assert_eq!(table.contains("are left out"), is_left_out, "{table}");

        // Without its end a recording needs the file itself.
        let whole = std::fs::read(&recording).unwrap();
        std::fs::write(&recording, &whole[..whole.len() - 300]).unwrap();
        let cut = limited(&format!("report {recording} --text"));
        assert!(cut.status.success(), "{}", String::from_utf8_lossy(&cut.stderr));
    }
}
