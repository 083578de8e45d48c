//! `--process` and `--thread` of report, export and diff.

use crate::common::linux_guest::recording;
use crate::common::{Folder, complaint, glass};

fn stdout(arguments: &[&str]) -> String {
    let output = glass(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_command_uses_only_the_samples_of_a_process_or_a_thread() {
    let folder = Folder::new("only");
    let file = folder.write("linux.pftrace", &recording());
    let text = stdout(&["report", &file, "--text", "--process", "make"]);
    assert!(text.contains("100 % = 60 running samples") && text.contains("left out: 100 of other"), "{text}");
    let page = folder.file("report.html");
    stdout(&["report", &file, "--thread", "158", "-o", &page]);
    assert!(std::fs::read_to_string(&page).unwrap().contains("only thread 158 "));
    let folded = stdout(&["export", &file, "-f", "folded", "-o", "-", "--process", "155", "--thread", "io_thd_1"]);
    assert_eq!(folded, "redis-server 155 (1 in its namespace);start_thread;serve 30\n");
    let out = folder.file("flame.svg");
    let output = glass(&["export", &file, "-f", "svg", "-o", &out, "--process", "cc1"]);
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("glass: only process cc1 (cc1 11): 20 of 200 samples") && words.contains("20 samples in "));
    let difference = stdout(&["diff", &file, &file, "--text", "--process", "redis-server"]);
    assert!(difference.contains("100 % = 100 (A) and 100 (B)") && difference.contains("only process"), "{difference}");
}

#[test]
fn what_is_not_there_is_one_sentence_that_lists_what_is() {
    let folder = Folder::new("only-errors");
    let file = folder.write("linux.pftrace", &recording());
    let wanted = "has no samples of process nginx: there are redis-server 155 (1 in its namespace), make 9, cc1 11";
    for command in [&["report", &file, "--text"][..], &["export", &file, "-f", "svg"], &["diff", &file, &file]] {
        let error = complaint(&[command, &["--process", "nginx"]].concat());
        assert!(error.contains(wanted), "{error}");
    }
    let error = complaint(&["export", &file, "-f", "ctf", "--process", "make"]);
    assert!(error.contains("ctf has a trace, and --process and --thread select samples"), "{error}");
    let without = folder.write("plain.pftrace", &crate::common::recording());
    assert!(complaint(&["report", &without, "--text", "--process", "make"]).contains("has no processes: "));
}
