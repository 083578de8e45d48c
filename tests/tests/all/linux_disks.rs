//! Names of programs of a Linux guest from the VM's own disk: raw, in an image that QEMU makes of it while the guest runs, and one below another; with a
//! store of debug information; and never of another build than the one that runs. Other kernels: `other_kernels`.

use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::programs;
use glass_tests::qmp::Qmp;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a guest may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(900);
const SHORT: Duration = Duration::from_secs(120);
/// How long QEMU may take to copy a disk.
const COPY_LIMIT: Duration = Duration::from_secs(240);
/// The shares of user frames that have to have names, in percent: with a store of debug information, and with the disk alone, of whose programs some are
/// stripped.
const NAMED_MIN: f64 = 90.0;
const NAMED_BY_DISK_MIN: f64 = 85.0;
/// The share of stacks of programs that have to be whole, in percent.
const WHOLE_MIN: f64 = 99.0;
/// The samples of programs that a recording has at least, on a machine that loses most of them.
const SAMPLES_MIN: u64 = 150;
/// Programs of the guest, which run all the time.
const PROGRAMS: [&str; 14] = [
    "without-fp",
    "with-fp",
    "stripped",
    "static",
    "static-musl",
    "threads",
    "deep",
    "in-namespace",
    "in-container",
    "goroutines",
    "go-calls-c",
    "python3.11",
    "redis-server",
    "redis-benchmark",
];
/// A package of Debian with the debug information of the interpreter.
const STORE_PACKAGE: &str = "python3.11-dbg";
/// A function that only the table of symbols of its program names, which is no part of what the program needs to run.
const OWN_FUNCTION: &str = " inner ";
/// How the root of a broken stack starts.
const BROKEN: &str = "[broken stack";
/// A program that generates code, and the function that it names in its perf map.
const GENERATES: &str = include_str!("linux_disks/generates.c");
const GENERATED_FUNCTION: &str = "counts_down";

fn glass(arguments: &[&str]) -> String {
    let program = programs::built("glass").unwrap();
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("panicked"), "glass {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap() + &said
}

/// Records the guest, which has no more of its files in memory than it needs. Returns the recording.
fn record(guest: &mut Guest, folder: &Folder, name: &str, options: &[&str]) -> String {
    guest.expect("sync; echo 3 >/proc/sys/vm/drop_caches", SHORT).unwrap();
    let (recording, pid) = (folder.file(name).display().to_string(), guest.pid().to_string());
    let recorded = ["record", "--pid", &pid, "--duration", "8", "-F", "99", "-o", &recording];
    glass(&[&recorded[..], options].concat());
    recording
}

/// The report as text, with one line for each of the texts that is wrapped.
fn report(recording: &str, options: &[&str]) -> String {
    let report = glass(&[&["report", "--text", "--top", "100", recording], options].concat());
    report.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The stacks of processes, outermost first: the name of the process, its functions, and how many samples have them.
fn stacks(recording: &str) -> Vec<(String, Vec<String>, u64)> {
    let folded = glass(&["export", "--format", "folded", recording, "-o", "-"]);
    let lines = folded.lines().filter_map(|line| {
        let (stack, count) = line.rsplit_once(' ')?;
        let mut parts = stack.split(';').map(str::to_owned);
        let process = parts.next()?.rsplit_once(' ')?.0.to_owned();
        Some((process, parts.collect(), count.parse().ok()?))
    });
    lines.collect()
}

/// How many of the samples of programs reach the start of their thread, in percent, and of how many.
fn whole(recording: &str) -> (f64, u64) {
    let (mut all, mut broken) = (0, 0);
    for (process, functions, count) in stacks(recording) {
        if PROGRAMS.contains(&process.as_str()) {
            all += count;
            broken += if functions.first().is_some_and(|first| first.starts_with(BROKEN)) { count } else { 0 };
        }
    }
    (100.0 - broken as f64 * 100.0 / all.max(1) as f64, all)
}

/// The number in front of a text.
fn number(report: &str, text: &str) -> f64 {
    let (before, _) = report.split_once(text).unwrap_or_else(|| panic!("no {text:?}: {report}"));
    let word = before.split_whitespace().next_back().unwrap();
    word.replace(',', "").trim_end_matches('%').parse().unwrap_or_else(|_| panic!("{word} {text}: {report}"))
}

/// Checks that programs have their names from the disk, and whole stacks.
fn check(recording: &str, what: &str, named_min: f64) {
    let report = report(recording, &[]);
    let (named, of_disk) = (number(&report, "% of user frames:"), number(&report, " by the VM's disk"));
    let (whole, samples) = whole(recording);
    say(&format!(
        "linux disks: {what}: {named:.1} % of user frames are named, {of_disk} frames by the disk; {whole:.2} % of {samples} stacks of programs are whole"
    ));
    assert!(named >= named_min && of_disk > 100.0, "{what}: {report}");
    assert!(whole >= WHOLE_MIN && samples > SAMPLES_MIN, "{what}: {report}");
    assert!(report.contains(OWN_FUNCTION), "{what}: {report}");
    // What is in the layers of a container, too.
    assert!(!report.contains("is not on the VM's disk") && !report.contains("is on none of"), "{what}: {report}");
}

/// Moves the root's disk into an image of the format qcow2, with all that is on it.
fn mirror(qmp: &mut Qmp, image: &Path) {
    let arguments = json!({
        "device": "root", "target": image, "format": "qcow2", "sync": "full", "mode": "absolute-paths", "job-id": "copy",
    });
    qmp.execute("drive-mirror", arguments).unwrap();
    let start = Instant::now();
    let job = |qmp: &mut Qmp| qmp.execute("query-block-jobs", json!({})).unwrap().as_array().unwrap().first().cloned();
    while !job(qmp).is_some_and(|job| job["ready"] == true) {
        assert!(start.elapsed() < COPY_LIMIT, "{:?}", job(qmp));
        std::thread::sleep(Duration::from_millis(20));
    }
    qmp.execute("block-job-complete", json!({ "device": "copy" })).unwrap();
    while job(qmp).is_some() {
        assert!(start.elapsed() < COPY_LIMIT, "{:?}", job(qmp));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The guest with its programs, and those that generate code; `None` after the reason was printed why there is none.
fn started(release: Release, folder: &Folder) -> Option<Guest> {
    programs::built("glass")?;
    if !programs::is_long() {
        programs::skip("it records Linux guests many times: run it by --long");
        return None;
    }
    let parts = match Parts::get(release) {
        Ok(parts) => parts,
        Err(reason) => {
            programs::skip(&format!("no Linux {release}: {reason:#}"));
            return None;
        }
    };
    let settings = Settings { tools: Some(tools(folder)), ..Settings::new(release) };
    let mut guest = Guest::boot(&parts, &settings).unwrap();
    guest.start_programs().unwrap();
    Some(guest)
}

/// Checks names with the disk alone, and with a store of debug information beside it.
fn named(guest: &mut Guest, folder: &Folder, release: Release) {
    check(&record(guest, folder, "raw.pftrace", &[]), &format!("{release}, a raw disk"), NAMED_BY_DISK_MIN);
    match store(folder) {
        Ok(store) => {
            let recording = record(guest, folder, "store.pftrace", &["--debug-dir", &store.display().to_string()]);
            check(&recording, &format!("{release}, a store"), NAMED_MIN);
        }
        Err(reason) => say(&format!("no store of debug information: {reason:#}")),
    }
}

/// A store of debug information: a package, unpacked.
fn store(folder: &Folder) -> anyhow::Result<PathBuf> {
    let packages = Release::Bookworm61.packages("store", &[STORE_PACKAGE])?;
    let unpacked = folder.file("store");
    std::fs::create_dir(&unpacked)?;
    glass_tests::emulated::packages::unpack(&packages, &unpacked, &[])?;
    Ok(unpacked.join("usr/lib/debug"))
}

#[test]
fn linux_6_1() {
    within(LIMIT, || {
        let folder = Folder::new("linux-disks").unwrap();
        let Some(mut guest) = started(Release::Bookworm61, &folder) else { return };
        generated(&mut guest, &folder);
        not_written(&mut guest, &folder);
        written_over(&mut guest, &folder);
        named(&mut guest, &folder, Release::Bookworm61);
        let mut qmp = guest.monitor().unwrap();
        mirror(&mut qmp, &folder.file("root.qcow2"));
        check(&record(&mut guest, &folder, "image.pftrace", &[]), "an image", NAMED_BY_DISK_MIN);
        let layer = json!({ "device": "root", "snapshot-file": folder.file("layer.qcow2"), "format": "qcow2" });
        qmp.execute("blockdev-snapshot-sync", layer).unwrap();
        drop(qmp);
        check(&record(&mut guest, &folder, "layers.pftrace", &[]), "an image below another", NAMED_BY_DISK_MIN);
        not_written(&mut guest, &folder);
    });
}

#[test]
fn other_kernels() {
    for release in Release::ALL.into_iter().filter(|release| *release != Release::Bookworm61) {
        within(LIMIT, move || {
            let folder = Folder::new("linux-disks").unwrap();
            let Some(mut guest) = started(release, &folder) else { return };
            not_written(&mut guest, &folder);
            written_over(&mut guest, &folder);
            named(&mut guest, &folder, release);
        });
    }
}

/// A disk with the program that generates code, which guests mount at `/tools`.
fn tools(folder: &Folder) -> PathBuf {
    std::fs::create_dir(folder.file("tools")).unwrap();
    std::fs::write(folder.file("generates.c"), GENERATES).unwrap();
    let script = "PATH=$PATH:/usr/sbin:/sbin; gcc -O1 -static -fno-omit-frame-pointer generates.c -o tools/generates && \
        mke2fs -q -t ext4 -d tools tools.img 8M";
    let made = Command::new("sh").args(["-c", script]).current_dir(folder.path()).status().unwrap();
    assert!(made.success());
    folder.file("tools.img")
}

/// Code that a process generates has the names of its perf map, and its callers those of its program, which is on a disk of its own.
fn generated(guest: &mut Guest, folder: &Folder) {
    guest.expect("( /tools/generates & ) && sleep 1", SHORT).unwrap();
    let (recording, pid) = (folder.file("generated.pftrace").display().to_string(), guest.pid().to_string());
    glass(&["record", "--pid", &pid, "--duration", "4", "-F", "99", "-o", &recording]);
    let folded = glass(&["export", "--format", "folded", "--process", "generates", &recording, "-o", "-"]);
    let of_map = folded.lines().filter(|line| line.contains(&format!("main;{GENERATED_FUNCTION} "))).count();
    assert!(of_map > 0, "{folded}{}", glass(&["info", &recording]));
    guest.expect("killall generates", SHORT).unwrap();
}

/// Functions of a process in a recording that have one of these names: how many samples each.
fn samples_of(recording: &str, process: &str, names: [&str; 2]) -> [u64; 2] {
    let stacks = stacks(recording);
    names.map(|name| {
        let is_it = |(of, functions, _): &&(String, Vec<String>, u64)| {
            of == process && functions.iter().any(|function| function == name)
        };
        stacks.iter().filter(is_it).map(|(.., count)| count).sum()
    })
}

/// A program of which a part was written over, not yet on the disk, has no name of the one that is there, although they have one build id, one length and
/// one number.
fn not_written(guest: &mut Guest, folder: &Folder) {
    let script = "cp /app/with-fp /next && sync && echo 0 >/proc/sys/vm/dirty_writeback_centisecs && \
        sed s/inner/other/g /next | dd of=/next conv=notrunc 2>/dev/null && ( /next >/dev/null 2>&1 & ) && sleep 1";
    guest.expect(script, SHORT).unwrap();
    let (recording, pid) = (folder.file("next.pftrace").display().to_string(), guest.pid().to_string());
    glass(&["record", "--pid", &pid, "--duration", "4", "-F", "99", "-o", &recording]);
    let (of_disk, of_guest) = ("inner", "other");
    let [wrong, right] = samples_of(&recording, "next", [of_disk, of_guest]);
    let report = report(&recording, &["--process", "next"]);
    assert!(wrong == 0 && right > 0, "{wrong} {right} {report}");
    assert!(report.contains("/next: what the guest runs is not on the VM's disk"), "{report}");
    guest.expect("echo 500 >/proc/sys/vm/dirty_writeback_centisecs; killall next; rm /next; sync", SHORT).unwrap();
}

/// While a recording runs, a program ends, another build is written into its file, and is run: each has its own names, also after the file was removed.
fn written_over(guest: &mut Guest, folder: &Folder) {
    guest.expect("cp /app/with-fp /next && sync && ( /next >/dev/null 2>&1 & ) && sleep 1", SHORT).unwrap();
    let (recording, pid) = (folder.file("over.pftrace").display().to_string(), guest.pid().to_string());
    let arguments = ["record", "--pid", &pid, "--duration", "10", "-F", "99", "-o", &recording];
    std::thread::scope(|scope| {
        let recorded = scope.spawn(|| glass(&arguments));
        std::thread::sleep(Duration::from_secs(5));
        let script = "killall next; sleep 1; sed s/inner/other/g /app/with-fp | dd of=/next conv=notrunc 2>/dev/null && sync && \
            ( /next >/dev/null 2>&1 & ) && sleep 1; rm /next";
        guest.expect(script, SHORT).unwrap();
        recorded.join().unwrap();
    });
    let [before, after] = samples_of(&recording, "next", ["inner", "other"]);
    assert!(before > 0 && after > 0, "{before} {after} {}", report(&recording, &["--process", "next"]));
    guest.expect("killall next; sync", SHORT).unwrap();
}
