//! `glass record --off-cpu` of a Linux guest: what each of its threads waits for, and where, without a stop of the guest.

use crate::agent::linux;
use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::programs;
use glass_tests::stacks::{self, Track};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

/// How long a guest may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(720);
const SHORT: Duration = Duration::from_secs(120);
/// How far the share of a thread's time on a CPU may be from what the guest counts, in percent of all time: on a loaded machine few samples are taken.
const SHARE_ERROR_MAX: f64 = 12.0;

/// The VM's name.
const NAME: &str = "linux-off-cpu";
/// Processes that live for a fifth of a second each.
const SHORT_LIVED: usize = 12;

/// Threads of the guest's programs, what they wait for all the time, and functions of theirs, the innermost first.
const WAITS: [(&str, &str, &[&str]); 10] = [
    ("in-futex", "[waits for a lock]", &["waits_in_futex"]),
    ("in-nanosleep", "[waits for a timer]", &["waits_in_nanosleep"]),
    ("in-poll", "[waits for events]", &["waits_in_poll"]),
    ("in-read", "[waits for a pipe]", &["waits_in_read"]),
    ("in-epoll", "[waits for events]", &["waits_in_epoll"]),
    ("vfork-parent", "[waits for a process]", &["wait_in_vfork", "main"]),
    ("frozen-write", "[waits for a lock]", &["write_to_frozen", "main"]),
    ("frozen-open", "[waits for a lock]", &["open_in_frozen", "main"]),
    ("vfork-child", "[waits for a signal]", &[]),
    ("sleeps-deep", "[waits for a timer]", &[]),
];

fn glass(arguments: &[&str]) -> String {
    let program = programs::built("glass").unwrap();
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("panicked"), "glass {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap() + &said
}

/// What the samples of a thread had as their innermost frame: how often.
fn leaves(track: &Track) -> BTreeMap<&str, u64> {
    let mut all = BTreeMap::new();
    for piece in track.known() {
        *all.entry(piece.functions.first().map_or("", String::as_str)).or_default() += piece.ns;
    }
    all
}

/// Nanoseconds that a process has run, and has waited for a CPU (`/proc/PID/schedstat`).
fn schedstat(guest: &mut Guest, name: &str) -> (f64, f64) {
    let text = guest.expect(&format!("cat /proc/$(pidof {name})/schedstat"), SHORT).unwrap();
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn each_thread_has_what_it_waits_for() {
    within(LIMIT, || {
        if programs::built("glass").is_none() {
            return;
        }
        let parts = match Parts::get(Release::Bookworm61) {
            Ok(parts) => parts,
            Err(reason) => return programs::skip(&format!("no Linux 6.1: {reason:#}")),
        };
        let options = ["-name", NAME].map(str::to_owned).to_vec();
        let mut guest = Guest::boot(&parts, &Settings { options, ..Settings::new(Release::Bookworm61) }).unwrap();
        guest.start_programs().unwrap();
        let folder = Folder::new("off-cpu").unwrap();
        let file = |name: &str| folder.file(name).display().to_string();
        let (recording, export, pid) = (file("off.pftrace"), file("off.json"), guest.pid().to_string());
        let root = parts.root.files.display().to_string();
        guest.expect(&format!("(sleep 2; for i in $(seq {SHORT_LIVED}); do sleep 0.2; done) &"), SHORT).unwrap();
        let before = schedstat(&mut guest, "without-fp");
        let recorded =
            ["record", "--off-cpu", "--pid", &pid, "--guest-root", &root, "--duration", "6", "-o", &recording];
        let said = glass(&recorded);
        let after = schedstat(&mut guest, "without-fp");
        assert!(said.contains("nothing is stopped for a sample"), "{said}");
        glass(&["export", &recording, "--format", "speedscope", "-o", &export]);
        let tracks = stacks::parse(&std::fs::read_to_string(export).unwrap()).unwrap();
        let track = |thread: &str| {
            let is_it = |track: &&Track| track.name.split(", ").any(|name| name.split(' ').next() == Some(thread));
            // A process whose other threads have other names is the first of several.
            let of_thread = tracks.iter().filter(is_it).find(|track| track.name.contains(&format!("{thread} ")));
            of_thread.unwrap_or_else(|| panic!("no thread {thread}: {:?}", tracks.iter().map(|track| &track.name)))
        };
        for (thread, wait, functions) in WAITS {
            let track = track(thread);
            assert_eq!(leaves(track).keys().copied().collect::<Vec<_>>(), [wait], "{thread}");
            let piece = track.known().next().unwrap();
            assert_eq!(piece.broken, None, "{thread}: {piece:?}");
            let mut own = piece.functions.iter();
            for function in functions {
                assert!(own.any(|name| name == function), "{thread} is not in {function}: {piece:?}");
            }
        }
        // Those that start and end meanwhile, too: the guest's lists are read again when it has started a task.
        let short_lived = tracks.iter().filter(|track| track.name.split(", ").any(|name| name.starts_with("sleep ")));
        assert!(short_lived.count() >= SHORT_LIVED * 3 / 4, "{:?}", tracks.iter().map(|track| &track.name));
        // One that computes is on a CPU for as long as the guest's scheduler counts, and waits for one else.
        let computes = leaves(track("without-fp"));
        let of = |leaf: &str| computes.get(leaf).copied().unwrap_or(0) as f64;
        let sampled = of("[on a CPU]") * 100.0 / (of("[on a CPU]") + of("[waits for a CPU]"));
        let (ran, waited) = (after.0 - before.0, after.1 - before.1);
        let counted = ran * 100.0 / (ran + waited);
        say(&format!("off-CPU: on a CPU by samples {sampled:.1} %, by the guest's scheduler {counted:.1} %"));
        assert!((sampled - counted).abs() < SHARE_ERROR_MAX, "{computes:?}");
        assert!(computes.len() == 2, "{computes:?}");
        let report = glass(&["report", "--text", &recording]);
        assert!(report.contains("samples, running or waiting") && report.contains("[waits for a lock]"), "{report}");
        assert!(report.contains("Pauses    none"), "{report}");
        // The same guest, which took long to boot, for a test of the agent.
        if programs::is_long() {
            linux::check_on_the_page(&mut guest, NAME, "without-fp");
        }
    });
}

#[test]
fn options_of_vcpus_are_refused() {
    let Some(program) = programs::built("glass") else { return };
    let refused = |arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let own = std::process::id().to_string();
    let said = refused(&["record", "--off-cpu", "--pid", &own, "-o", "/dev/null"]);
    assert!(said.contains("leave out --off-cpu"), "{said}");
    let said = refused(&["record", "--off-cpu", "--host", "--pid", &own]);
    assert!(said.contains("--host"), "{said}");
}
