//! `glass export`, `info`, `completions` and `man` as a user or a packager uses them.

use glass_tests::programs::skip;
use std::process::Command;

use crate::common::{Folder, complaint, glass, recording};

fn stdout(arguments: &[&str]) -> String {
    let output = glass(arguments);
    assert!(output.status.success(), "{arguments:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_format_goes_to_a_file_or_to_standard_output() {
    let folder = Folder::new("formats");
    let file = folder.write("a.pftrace", &recording());
    let begins: [(&str, &str, &[u8]); 6] = [
        ("folded", "profile.folded", b"main;work 2\n"),
        ("pprof", "profile.pb.gz", b"\x1f\x8b"),
        ("firefox", "profile.firefox.json", b"{\"meta\":"),
        ("speedscope", "profile.speedscope.json", b"{\"$schema\":"),
        ("svg", "flame.svg", b"<svg"),
        ("perfetto", "profile.perfetto-trace", b"\x0a"),
    ];
    for (format, name, begin) in begins {
        // Under its own name in the current folder.
        let output = Command::new(env!("CARGO_BIN_EXE_glass"))
            .args(["export", "--format", format, &file])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(name) && said.contains("open it with"), "{said}");
        let made = std::fs::read(folder.path().join(name)).unwrap();
        assert!(made.starts_with(begin), "{format}: {:?}", &made[..made.len().min(40)]);
        let piped = glass(&["export", "--format", format, "--output", "-", &file]);
        assert_eq!((piped.status.success(), &piped.stdout), (true, &made), "{format}");
    }
    assert_eq!(
        stdout(&["export", "-f", "folded", "-o", "-", "--states", "all", &file]),
        "[idle];main;work 1\nmain;work 2\n"
    );
    let with_lines = stdout(&["export", "-f", "folded", "-o", "-", "--lines", &file]);
    assert_eq!(with_lines, "main (src/main.rs:3);work (src/main.rs:9) 2\n");
}

#[test]
fn what_cannot_be_exported_is_said_in_one_sentence() {
    let folder = Folder::new("export-errors");
    let file = folder.write("a.pftrace", &recording());
    let export = |arguments: &[&str]| complaint(&[&["export"], arguments].concat());
    assert!(export(&["-f", "svg", "--lines", &file]).contains("--lines is for --format folded"));
    assert!(export(&["-f", "svg", "-o", &file, &file]).contains("is the recording itself"));
    assert_eq!(std::fs::read(&file).unwrap(), recording(), "the recording was overwritten");
    assert!(
        export(&["-f", "svg", "-o", "/no/such/folder/a.svg", &file]).contains("cannot write /no/such/folder/a.svg")
    );
    assert!(export(&["-f", "svg", "/no/such/file"]).contains("cannot read /no/such/file"));
    let wrong = glass(&["export", "-f", "pdf", &file]);
    assert!(!wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("speedscope"));
}

#[test]
fn binary_is_kept_from_a_terminal() {
    let folder = Folder::new("terminal");
    let file = folder.write("a.pftrace", &recording());
    // util-linux's script gives a command a terminal.
    let command = format!("{} export -f pprof -o - {file}", env!("CARGO_BIN_EXE_glass"));
    let Ok(output) = Command::new("script").args(["-qec", &command, "/dev/null"]).output() else {
        return skip("there is no program script (util-linux)");
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("pprof is binary") && !said.contains('\u{1f}'), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

#[test]
fn info_tells_what_is_there_and_what_it_cost() {
    let folder = Folder::new("info");
    let file = folder.write("a.pftrace", &recording());
    let text = stdout(&["info", &file]);
    for part in [
        "a guest",
        "a mechanism",
        "vcpu 0",
        "/images/queue",
        "0102030405",
        "all, with lines",
        "mind the gap",
        "60.0 \u{b5}s",
        "format version 3, complete",
        "25.0 % of the expected",
        "distinct stacks",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let json: serde_json::Value = serde_json::from_str(&stdout(&["info", "--json", &file])).unwrap();
    assert_eq!(json["samples"], 3);
    assert_eq!(json["tracks"][0]["idle"], 1);
    assert_eq!(json["images"][0]["build_id"], "0102030405");
    assert_eq!(json["cost"]["samples_lost"], 1);
    assert_eq!(json["is_complete"], true);
    assert!(complaint(&["info", "/no/such/file"]).contains("/no/such/file"));
    assert!(complaint(&["info", env!("CARGO_BIN_EXE_glass")]).contains("is a program (ELF)"));
}

#[test]
fn a_damaged_recording_is_used_as_far_as_it_goes() {
    let folder = Folder::new("damaged");
    let whole = recording();
    let cut = folder.write("cut.pftrace", &whole[..whole.len() - 9]);
    let text = stdout(&["info", &cut]);
    assert!(text.contains("cut off") && text.contains("not complete"), "{text}");
    assert_eq!(stdout(&["export", "-f", "folded", "-o", "-", &cut]), "main;work 2\n");
    for (name, bytes, part) in [("empty", &b""[..], "is empty"), ("text", b"hello", "is not a recording")] {
        let file = folder.write(name, bytes);
        assert!(complaint(&["info", &file]).contains(part));
        assert!(complaint(&["export", "-f", "svg", "-o", &folder.file("x.svg"), &file]).contains(part));
        assert!(!folder.path().join("x.svg").exists());
    }
}

/// All subcommands, from the list that the command prints.
fn subcommands() -> Vec<String> {
    let help = stdout(&["--help"]);
    let list = help.split("Usage:").nth(1).unwrap().split("Options:").next().unwrap().to_owned();
    let names: Vec<String> = list
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|name| name != "help")
        .collect();
    assert!(names.len() >= 8 && names.contains(&"record".to_owned()), "{names:?}");
    names
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let folder = Folder::new("man");
    stdout(&["man", &folder.file("pages")]);
    let page = |name: &str| std::fs::read_to_string(folder.path().join("pages").join(name)).unwrap_or_default();
    assert!(page("glass.1").contains("glass\\-record"), "{}", page("glass.1"));
    for name in subcommands() {
        let page = page(&format!("glass-{name}.1"));
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}: {page}");
    }
    assert!(complaint(&["man", "/proc/no/folder"]).contains("/proc/no/folder"));
}

#[test]
fn shells_complete_our_commands() {
    for (shell, part) in [
        ("zsh", "#compdef glass"),
        ("fish", "complete -c glass"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-Arg"),
    ] {
        let script = stdout(&["completions", shell]);
        assert!(script.contains(part), "{shell}");
        assert!(subcommands().iter().all(|name| script.contains(name.as_str())), "{shell}");
    }
    let folder = Folder::new("completions");
    let script = folder.write("glass.bash", stdout(&["completions", "bash"]).as_bytes());
    // The completions of bash itself for `glass export --format <Tab>` and of `glass in<Tab>`.
    let bash = format!(
        "source {script} && complete -p glass && COMP_WORDS=(glass export --format '') COMP_CWORD=3 && \
         _glass glass '' --format && echo \"${{COMPREPLY[@]}}\" && COMP_WORDS=(glass in) COMP_CWORD=1 && \
         _glass glass in glass && echo \"${{COMPREPLY[@]}}\""
    );
    let Ok(output) = Command::new("bash").args(["--norc", "-c", &bash]).output() else {
        return skip("there is no bash");
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(lines[0].contains("-F _glass") && lines[0].ends_with("glass"), "{said}");
    assert_eq!(lines[1], "folded pprof firefox speedscope svg perfetto chrome ctf otlp-profiles otlp-traces");
    assert_eq!(lines[2], "info");
}
