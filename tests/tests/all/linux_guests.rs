//! Linux guests come with a truth that is plausible. All kernels: `cargo xtask test --long`.

use glass_tests::limit::{say, within};
use glass_tests::linux_guest::truth::{BlockedTask, Truth};
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::programs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a guest may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(720);
/// The bit of CR4 for five levels of page tables.
const LA57: u64 = 1 << 12;
/// A folder for the truth and the RAM of each kernel, to develop a reader against.
const CORPUS_VARIABLE: &str = "GLASS_LINUX_CORPUS";

/// Boots a guest, and checks what it reports.
fn check(settings: &Settings) {
    let start = Instant::now();
    let parts = match Parts::get(settings.release) {
        Ok(parts) => parts,
        Err(reason) => {
            let reason = format!("{reason:#}");
            let first = reason.lines().next().unwrap_or_default();
            return programs::skip(&format!("no Linux {}: {first}", settings.release));
        }
    };
    say(&format!(
        "linux guest {}: its parts are there after {:.1} s",
        parts.kernel.version,
        start.elapsed().as_secs_f64()
    ));
    let mut guest = Guest::boot(&parts, settings).unwrap();
    guest.start_programs().unwrap();
    let truth = guest.collect().unwrap();
    say(&format!(
        "linux guest {}: the truth is there after {:.1} s",
        parts.kernel.version,
        start.elapsed().as_secs_f64()
    ));
    if let Some(folder) = std::env::var_os(CORPUS_VARIABLE) {
        let kind = if settings.isolation { "-pti" } else { "" };
        keep(&guest, &PathBuf::from(folder).join(format!("{}{kind}", settings.release)));
    }
    assert!(truth.uname.contains(&parts.kernel.version), "{}", truth.uname);
    check_kernel(&truth);
    check_tasks(&truth);
    check_mappings(&truth);
    check_blocked(&truth);
    let registers = guest.registers().unwrap();
    let registers = registers.split_whitespace().filter_map(|word| word.strip_prefix("CR4="));
    let are_five = |register| u64::from_str_radix(register, 16).unwrap() & LA57 != 0;
    let levels: Vec<bool> = registers.map(are_five).collect();
    assert_eq!(levels, vec![settings.five_levels && settings.release != Release::Bullseye510; 2]);
    guest.resume().unwrap();
    let is_isolated = guest.run("grep -q -w pti /proc/cpuinfo", LIMIT).unwrap().code == 0;
    assert_eq!(is_isolated, settings.isolation);
}

/// Keeps the RAM and the truth of a guest that is stopped.
fn keep(guest: &Guest, folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let truth = folder.join("truth");
    let _ = std::fs::remove_dir_all(&truth);
    let copied = std::process::Command::new("cp").arg("-r").arg(guest.folder().file("truth")).arg(&truth).status();
    assert!(copied.unwrap().success());
    guest.dump(&folder.join("ram.elf")).unwrap();
    std::fs::copy(guest.folder().file("root.img"), folder.join("root.img")).unwrap();
    std::fs::write(folder.join("registers"), guest.registers().unwrap()).unwrap();
}

fn check_kernel(truth: &Truth) {
    assert!(truth.kallsyms.len() > 50_000, "{} symbols", truth.kallsyms.len());
    assert!(truth.address("_text").is_some_and(|address| address > 0xffff_ffff_8000_0000));
    let of_module = truth.kallsyms.iter().filter(|symbol| symbol.module.as_deref() == Some("dummy")).count();
    assert!(of_module > 3 && truth.modules.iter().any(|module| module.name == "dummy"), "{:?}", truth.modules);
    assert!(truth.physical.iter().any(|(first, _, name)| name == "Kernel code" && *first > 0), "{:?}", truth.physical);
    assert!(truth.memory["MemTotal"] > 500 << 10, "{:?}", truth.memory);
}

fn check_tasks(truth: &Truth) {
    assert!(truth.tasks.len() > 60, "{} tasks", truth.tasks.len());
    let nested = truth.tasks_named("in-namespace").next().unwrap();
    assert_eq!(nested.namespace_ids, [nested.tid, 3, 1]);
    for (name, function) in [
        ("in-futex", "futex"),
        ("in-nanosleep", "nanosleep"),
        ("in-poll", "do_sys_poll"),
        ("in-read", "pipe_read"),
        ("in-epoll", "do_epoll_wait"),
        ("sleeps-deep", "nanosleep"),
    ] {
        let task = truth.tasks_named(name).next().unwrap_or_else(|| panic!("no thread {name}"));
        assert!(task.state == 'S' && task.syscall.is_some(), "{task:?}");
        assert!(task.stack.iter().any(|frame| frame.function.contains(function)), "{name}: {:?}", task.stack);
    }
    assert_eq!(truth.tasks_named("computes-0").next().map(|task| task.state), Some('R'));
    for name in ["without-fp", "with-fp", "stripped", "static", "static-musl", "deep"] {
        let task = truth.tasks_named(name).next().unwrap_or_else(|| panic!("no process {name}"));
        let path = format!("/app/{name}");
        let process = &truth.processes[&task.pid];
        assert_eq!(process.program.as_ref(), Some(&path));
        assert!(process.maps.iter().any(|line| line.path == path && line.rights == "r-xp"), "{:?}", process.maps);
    }
    assert!(truth.processes.values().any(|process| process.control_group == "/lab/inner"));
    assert_eq!(truth.tasks_named("python3.11").count(), 3);
}

/// Mappings of many kinds, and a process in a container.
fn check_mappings(truth: &Truth) {
    let task = truth.tasks_named("has-mappings").next().unwrap();
    let maps = &truth.processes[&task.pid].maps;
    for (path, rights) in [
        ("/tmp/a file", "rw-s"),
        ("/tmp/deleted (deleted)", "rw-s"),
        ("/memfd:unnamed (deleted)", "rw-s"),
        ("/dev/zero (deleted)", "rw-s"),
        ("/app/static", "rw-p"),
        ("/frozen/file", "r--p"),
        ("/tmp/bound/stripped", "r--p"),
        ("", "---p"),
        ("[stack]", "rw-p"),
        ("[vdso]", "r-xp"),
    ] {
        assert!(maps.iter().any(|line| line.path == path && line.rights == rights), "{path} {rights}: {maps:#?}");
    }
    let task = truth.tasks_named("in-container").next().unwrap();
    assert_eq!(task.namespace_ids, [task.tid, 1]);
    let maps = &truth.processes[&task.pid].maps;
    assert!(maps.iter().any(|line| line.path.ends_with("/app/in-container")), "{maps:#?}");
}

fn check_blocked(truth: &Truth) {
    for (name, function) in [("vfork-parent", "vfork"), ("frozen-write", "write"), ("frozen-open", "open")] {
        let has_name = |task: &&BlockedTask| task.name == name;
        let task = truth.blocked.iter().find(has_name).unwrap_or_else(|| panic!("{name}: {:?}", truth.blocked));
        assert!(task.stack.iter().any(|frame| frame.function.contains(function)), "{task:?}");
        let same = &truth.tasks[&task.tid];
        assert_eq!((same.name.as_str(), same.state), (name, 'D'));
        // Those in /proc lack the functions of the scheduler.
        let mut frames = task.stack.iter();
        let is_part = same.stack.iter().all(|frame| frames.any(|other| other == frame));
        assert!(is_part && same.stack.len() >= 3, "{:?} {:?}", task.stack, same.stack);
    }
}

#[test]
fn linux_6_1() {
    within(LIMIT, || check(&Settings::new(Release::Bookworm61)));
}

#[test]
fn other_kernels() {
    if !programs::is_long() {
        return programs::skip("other kernels than 6.1 are booted by --long");
    }
    for settings in Settings::others() {
        within(LIMIT, move || check(&settings));
    }
}
