//! `glass top` as a person and as a script use it: in a terminal of its own, and in a pipe.

use crate::common::Folder;
use glass_tests::programs::skip;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A program whose time goes into functions with known names, three quarters into the first. Both end by the clock: how long a count
/// of additions takes depends on where the code lies.
const SOURCE: &str = "
static volatile unsigned long sink;
__attribute__((noinline)) static void heavy_work(long n) { for (long end = __builtin_ia32_rdtsc() + n * 3; (long)__builtin_ia32_rdtsc() < end;) sink++; }
__attribute__((noinline)) static void light_work(long n) { for (long end = __builtin_ia32_rdtsc() + n; (long)__builtin_ia32_rdtsc() < end;) sink++; }
int main(void) { for (;;) { heavy_work(100000); light_work(100000); } }
";
/// What a terminal is told when its other screen is taken, and when it is given back.
const TAKEN: &str = "\x1b[?1049h";
const GIVEN_BACK: &str = "\x1b[?1049l";

struct Busy {
    child: Child,
    folder: Folder,
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
        Some(Busy { child, folder })
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
    assert!((65.0..85.0).contains(&heavy) && (15.0..35.0).contains(&light), "{table}");
    assert!(table.contains("busy.c:3") && table.contains("samples"), "{table}");
}

/// Runs a shell line in a terminal of 80 columns and 24 rows; `keys` are pressed after a while each.
/// What the terminal got, and whether the line succeeded.
fn in_a_terminal(line: &str, keys: &[&str]) -> Option<(String, bool)> {
    let mut script = Command::new("script");
    script.args(["-qec", &format!("stty cols 80 rows 24; {line}"), "/dev/null"]);
    let script = script.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut script) = script else {
        skip("there is no program `script` to give us a terminal");
        return None;
    };
    let mut output = script.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = output.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let mut input = script.stdin.take().unwrap();
    for key in keys {
        std::thread::sleep(Duration::from_millis(700));
        let _ = input.write_all(key.as_bytes());
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let status = loop {
        match script.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                script.kill().unwrap();
                break script.wait().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    drop(input);
    Some((reader.join().unwrap(), status.success()))
}

fn top(arguments: &str) -> String {
    let glass = env!("CARGO_BIN_EXE_glass");
    // The modes of the terminal before and after must be the same.
    format!("stty -g > $HOLD/before; {glass} top {arguments}; code=$?; stty -g > $HOLD/after; exit $code")
}

fn held(busy: &Busy, line: &str) -> String {
    line.replace("$HOLD", &busy.folder.path().display().to_string())
}

fn modes_are_restored(busy: &Busy) -> bool {
    let read = |name: &str| std::fs::read_to_string(busy.folder.file(name)).unwrap_or_default();
    !read("before").is_empty() && read("before") == read("after")
}

#[test]
fn the_screen_shows_the_functions_and_a_key_ends_it() {
    let Some(mut busy) = Busy::start("screen") else { return };
    // One look, the surroundings of the first function and back, and the end.
    let keys = ["", "\r", "\x1b", "q"];
    let Some((shown, succeeded)) = in_a_terminal(&held(&busy, &top(&format!("--pid {}", busy.pid()))), &keys) else {
        return;
    };
    if shown.contains("not permitted") {
        return skip(&shown);
    }
    assert!(succeeded, "{shown}");
    for text in ["heavy_work", "light_work", "running", "called by", "busy.c:3"] {
        assert!(shown.contains(text), "{text} was not shown: {shown:?}");
    }
    let (taken, given_back) = (shown.find(TAKEN), shown.rfind(GIVEN_BACK));
    assert!(taken.is_some() && taken < given_back, "{shown:?}");
    assert!(modes_are_restored(&busy));
    assert!(busy.child.try_wait().unwrap().is_none(), "the process goes on");
}

#[test]
fn when_the_guest_ends_the_last_table_stays() {
    let Some(busy) = Busy::start("end") else { return };
    let line = format!("(sleep 2; kill {}) & {}", busy.pid(), held(&busy, &top(&format!("--pid {}", busy.pid()))));
    let pid = busy.child.id();
    // The zombie counts as ended, so nobody has to wait for it.
    let Some((shown, succeeded)) = in_a_terminal(&line, &[]) else { return };
    if shown.contains("not permitted") {
        return skip(&shown);
    }
    assert!(succeeded, "{shown}");
    let after = &shown[shown.rfind(GIVEN_BACK).expect("the terminal was given back")..];
    assert!(after.contains("heavy_work") && after.contains(&format!("{pid}) has ended")), "{after:?}");
    assert!(modes_are_restored(&busy));
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let Some(busy) = Busy::start("signal") else { return };
    let glass = env!("CARGO_BIN_EXE_glass");
    let line = format!(
        "stty -g > $HOLD/before; (sleep 1.5; pkill -TERM -P $$ glass) & {glass} top --pid {}; stty -g > $HOLD/after",
        busy.pid()
    );
    let Some((shown, succeeded)) = in_a_terminal(&held(&busy, &line), &[]) else { return };
    if shown.contains("not permitted") {
        return skip(&shown);
    }
    assert!(succeeded && shown.contains(GIVEN_BACK), "{shown:?}");
    assert!(modes_are_restored(&busy));
}
