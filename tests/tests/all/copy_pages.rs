//! The pages that copies of a VM use: recorded, made ready, and by functions of the guest.

use crate::copies::{Template, report};
use glass_tests::limit::within;
use glass_tests::port::free_port;
use glass_tests::process::{Process, descendants};
use glass_tests::programs;
use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(480);
/// Of `apps/faults/src/pages.rs`.
const READ: u64 = 40;
const WRITTEN: u64 = 60;

fn pages_of(snapshot: &Path) -> PathBuf {
    let mut path = snapshot.as_os_str().to_owned();
    path.push(".pages");
    path.into()
}

/// The RAM that is a copy's own, in kB.
fn own_kb(process: &Process) -> u64 {
    let of = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
        // Of mappings of the snapshot alone; what is only read stays the file's.
        let mut is_ram = false;
        let mut sum = 0;
        for line in text.lines() {
            if line.contains("-") && line.split_whitespace().nth(1).is_some_and(|flags| flags.ends_with('p')) {
                is_ram = line.ends_with("snapshot") && line.contains(" rw-p ");
            }
            if is_ram && line.starts_with("Anonymous:") {
                sum += line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0);
            }
        }
        sum
    };
    descendants(process.pid()).iter().map(of).sum()
}

/// A copy that starts, and its port.
fn start(template: &Template, snapshot: &Path, words: &[&str], log: &str) -> (Process, u16) {
    let port = free_port().unwrap();
    let mut command = template.run_from(snapshot, &[]);
    command.args(["--port", &format!("{port}:8080")]).args(words);
    let copy = Process::spawn(&mut command, &template.folder.file(log)).unwrap();
    (copy, port)
}

#[test]
fn copies_have_the_pages_ready_that_another_one_has_used() {
    within(LIMIT * 2, || {
        let name = format!("pages-{}", std::process::id());
        let Some(template) = Template::boot(&name, &[]) else { return };
        let snapshot = template.folder.file("snapshot");
        let (is_taken, text) = template.snapshot(&name, &snapshot);
        assert!(is_taken, "{text}");
        let text = template.refusal(&snapshot, &["--record-pages", "--copies", "2"]);
        assert!(text.contains("--copies"), "{text}");

        let (mut copy, port) = start(&template, &snapshot, &["--record-pages"], "record.log");
        report(port);
        assert!(copy.interrupt(LIMIT), "{}", copy.output());
        let output = copy.output();
        if output.contains("Linux 6.7") {
            return programs::skip("the kernel cannot record pages");
        }
        let list = pages_of(&snapshot);
        let count =
            output.split_once(".pages written: ").and_then(|(_, rest)| rest.split_once(" pages")?.0.parse().ok());
        let count: u64 = count.unwrap_or_else(|| panic!("no pages were recorded: {output}"));
        assert!((20..2000).contains(&count), "{output}");
        assert_eq!(fs::metadata(&list).unwrap().mode() & 0o777, 0o600);

        // They are a copy's own before it has answered, and its randomness is, too.
        let mut words = HashSet::new();
        for log in ["first.log", "second.log"] {
            let (copy, port) = start(&template, &snapshot, &[], log);
            let report = report(port);
            report.words.iter().for_each(|word| assert!(words.insert(*word), "{word} twice"));
            assert!(own_kb(&copy) >= count * 4, "{} kB of {count} pages: {}", own_kb(&copy), copy.output());
            assert!(!copy.output().contains("without the pages"), "{}", copy.output());
        }

        // A list that cannot be used is a sentence, and one of other pages is harmless.
        let whole = fs::read(&list).unwrap();
        let mut elsewhere = whole.clone();
        elsewhere[16..].chunks_mut(12).for_each(|range| range[3] = 0xff);
        for (bytes, mode, sentence) in [
            (&b"no list"[..], 0o600, Some("it is cut off")),
            (&whole[..whole.len() - 1], 0o600, Some("it is cut off")),
            (&whole, 0o660, Some("chmod 600")),
            (&elsewhere, 0o600, None),
        ] {
            fs::write(&list, bytes).unwrap();
            fs::set_permissions(&list, fs::Permissions::from_mode(mode)).unwrap();
            let (copy, port) = start(&template, &snapshot, &[], "other.log");
            report(port);
            let output = copy.output();
            assert_eq!(output.contains("without the pages that others have used"), sentence.is_some(), "{output}");
            assert!(output.contains(sentence.unwrap_or_default()) && !output.contains("panicked"), "{output}");
            assert!(own_kb(&copy) < count * 4, "{} kB of {count} pages, {sentence:?}: {output}", own_kb(&copy));
        }
        // A new snapshot of the same name has none.
        let (is_taken, text) = template.snapshot(&name, &snapshot);
        assert!(is_taken && !list.exists(), "{text}");
    });
}

/// Lines of the folded stacks of a recording: the frames, outermost first, and how many samples have them.
fn stacks(template: &Template, recording: &Path) -> Vec<(String, u64)> {
    let folded = template.folder.file("folded");
    let mut command = Command::new(&template.glass);
    command.arg("export").arg(recording).args(["--format", "folded", "-o"]).arg(&folded);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&folded).unwrap();
    text.lines()
        .filter_map(|line| Some((line.rsplit_once(' ')?.0.to_owned(), line.rsplit_once(' ')?.1.parse().ok()?)))
        .collect()
}

#[test]
fn page_faults_of_a_copy_have_the_functions_that_made_them() {
    within(LIMIT * 2, || {
        let name = format!("faulting-{}", std::process::id());
        let Some(template) = Template::boot_image("faults", &name, &[], &["pages"]) else { return };
        let snapshot = template.folder.file("snapshot");
        let (is_taken, text) = template.snapshot(&name, &snapshot);
        assert!(is_taken, "{text}");
        let recording = template.folder.file("faults.pftrace");
        let words = ["--faults", "-o", recording.to_str().unwrap()];
        let (mut copy, port) = start(&template, &snapshot, &words, "faults.log");
        for _ in 0..3 {
            assert_eq!(ask(port, &copy), READ.to_string());
        }
        assert!(copy.interrupt(LIMIT), "{}", copy.output());
        let output = copy.output();
        assert!(output.contains("faults.pftrace written"), "{output}");

        let stacks = stacks(&template, &recording);
        let faults = |function: &str| -> u64 {
            let made = stacks.iter().filter(|(stack, _)| stack.contains(&format!("::{function}")));
            made.map(|(_, count)| count).sum()
        };
        // Each page once, although there were three clients; a page of their code beside them.
        let found = [faults("read_pages"), faults("write_pages")];
        assert!(
            (READ..=READ + 1).contains(&found[0]) && (WRITTEN..=WRITTEN + 1).contains(&found[1]),
            "{found:?}: {stacks:#?}"
        );
        let all: u64 = stacks.iter().map(|(_, count)| count).sum();
        let mut command = Command::new(&template.glass);
        let text = command.arg("report").arg(&recording).args(["--text", "--rows", "1000"]).output().unwrap().stdout;
        let text = String::from_utf8_lossy(&text).into_owned();
        let kilobytes = match all * 4 {
            few @ ..1000 => few.to_string(),
            many => format!("{},{:03}", many / 1000, many % 1000),
        };
        for part in [
            "write_pages",
            "read_pages",
            &format!("{all} page faults, {kilobytes} kB"),
            "pages are not among the faults",
        ] {
            assert!(text.contains(part), "no `{part}`: {text}");
        }
    });
}

/// What the service of a copy answers.
fn ask(port: u16, copy: &Process) -> String {
    let end = Instant::now() + LIMIT;
    loop {
        let mut answer = String::new();
        if let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let _ = stream.read_to_string(&mut answer);
        }
        if !answer.is_empty() {
            return answer.trim().to_owned();
        }
        assert!(Instant::now() < end, "no answer: {}", copy.output());
        std::thread::sleep(Duration::from_millis(5));
    }
}
