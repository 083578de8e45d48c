//! `glass top` as a user and as a script use it: in a terminal, and in a pipe.

use crate::common::Folder;
use glass_tests::programs::skip;
use glass_tests::terminal::Terminal;
use std::process::{Child, Command, Output};

/// A program whose time goes into functions with known names, three quarters into the first. Both end by the clock: how long a count
/// of additions takes depends on where the code lies.
const SOURCE: &str = "
static volatile unsigned long sink;
__attribute__((noinline)) static void heavy_work(long n) { for (long end = __builtin_ia32_rdtsc() + n * 3; (long)__builtin_ia32_rdtsc() < end;) sink++; }
__attribute__((noinline)) static void light_work(long n) { for (long end = __builtin_ia32_rdtsc() + n; (long)__builtin_ia32_rdtsc() < end;) sink++; }
int main(void) { for (;;) { heavy_work(100000); light_work(100000); } }
";
/// What is written to a terminal to give its first screen back.
const GIVEN_BACK: &str = "\x1b[?1049l";

struct Busy {
    child: Child,
    _folder: Folder,
}

impl Busy {
    fn start(name: &str) -> Option<Busy> {
        let folder = Folder::new(name);
        let (source, program) = (folder.write("busy.c", SOURCE.as_bytes()), folder.file("busy"));
        let built = Command::new("cc").args(["-O1", "-g"]).args([&source, "-o", &program]).status();
        if !built.is_ok_and(|status| status.success()) {
            skip("there is no C compiler (cc)");
            return None;
        }
        let child = Command::new(&program).spawn().unwrap();
        Some(Busy { child, _folder: folder })
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn may_sample(output: &Output) -> bool {
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("not permitted") {
        skip(&text);
    }
    !text.contains("not permitted")
}

#[test]
fn a_pipe_gets_one_table() {
    let Some(busy) = Busy::start("pipe") else { return };
    let mut glass = Command::new(env!("CARGO_BIN_EXE_glass"));
    let output = glass.args(["top", "--pid", &busy.pid(), "--duration", "1"]).output().unwrap();
    if !may_sample(&output) {
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(!table.contains('\x1b'), "{table:?}");
    let self_percent = |name: &str| -> f64 {
        let row = table.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("no {name}:\n{table}"));
        row.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (heavy, light) = (self_percent("heavy_work"), self_percent("light_work"));
    // Three to one if nothing else runs. The clock continues while the program waits for a CPU, so a busy host shifts it either way.
    assert!(heavy > light * 1.5 && light > 2.0 && heavy + light > 80.0, "{table}");
    assert!(table.contains("busy.c:3") && table.contains("samples"), "{table}");
}

/// `glass top` of the program in a terminal that shows its functions; `None` after printing why the test is skipped.
fn screen(busy: &Busy) -> Option<Terminal> {
    let line = format!("{} top --pid {}", env!("CARGO_BIN_EXE_glass"), busy.pid());
    let Some(mut terminal) = Terminal::start(&line, 80, 24) else {
        skip("there is no program `script` to give us a terminal");
        return None;
    };
    let has_functions = |shown: &str| ["heavy_work", "light_work", "running"].iter().all(|text| shown.contains(text));
    terminal.wait_for("the functions", || (), |shown| has_functions(shown) || shown.contains("not permitted"));
    if terminal.output().contains("not permitted") {
        skip(&terminal.output());
        return None;
    }
    Some(terminal)
}

#[test]
fn the_screen_shows_the_functions_and_a_key_ends_it() {
    let Some(mut busy) = Busy::start("screen") else { return };
    let Some(mut terminal) = screen(&busy) else { return };
    terminal.wait_for("the lines", || (), |shown| shown.contains("busy.c:3"));
    // The surroundings of the first function and back, and the end.
    terminal.press("\r");
    terminal.wait_for("the callers", || (), |shown| shown.contains("called by"));
    terminal.press("\x1b");
    terminal.wait_for("all functions again", || (), |shown| !shown.contains("called by"));
    terminal.press("q");
    let (status, shown) = terminal.end();
    assert!(status.success(), "{shown}");
    assert!(busy.child.try_wait().unwrap().is_none(), "the process goes on");
}

#[test]
fn when_the_guest_ends_the_last_table_stays() {
    let Some(mut busy) = Busy::start("end") else { return };
    let Some(terminal) = screen(&busy) else { return };
    // The zombie counts as ended, so the test need not wait for it.
    busy.child.kill().unwrap();
    let (status, shown) = terminal.end();
    assert!(status.success(), "{shown}");
    let after = &shown[shown.rfind(GIVEN_BACK).expect("the terminal was given back")..];
    assert!(after.contains("heavy_work") && after.contains(&format!("{}) has ended", busy.pid())), "{after:?}");
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let Some(busy) = Busy::start("signal") else { return };
    let Some(terminal) = screen(&busy) else { return };
    Command::new("kill").args(["-TERM", &terminal.glass().to_string()]).status().unwrap();
    // It checks what was given back.
    terminal.end();
}
