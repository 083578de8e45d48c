//! Samples a real process with known shares through `perf_event_open`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glass_profiler_core::images::KERNEL_NAME;
use glass_profiler_core::model::{Cost, Origin, Profile};
use glass_profiler_core::recorder::Recorder;
use glass_profiler_core::recording;
use glass_profiler_guests::backends::process::{Process, ProcessSettings};
use glass_profiler_guests::files::HostFiles;
use glass_profiler_guests::{Flow, GuestError, Source, read_clocks};
use glass_tests::folder::Folder;
use glass_tests::programs::skip;

const SETTINGS: ProcessSettings = ProcessSettings { rate_hz: 2000, stack_bytes: 8192 };

struct Program {
    path: PathBuf,
    folder: Folder,
}

impl Program {
    fn build(name: &str) -> Option<Program> {
        let folder = Folder::new(name).unwrap();
        let path = folder.file("weights");
        compile(&path, &["-g"]).then_some(Program { path, folder })
    }

    /// Compiles it again with other names for its functions: what no profile of this one may show.
    fn build_other(&self, name: &str) -> PathBuf {
        let path = self.folder.file(name);
        assert!(compile(&path, &["-g", "-Da=wrong_a", "-Db=wrong_b", "-Dc=wrong_c", "-Dwork=wrong_work", "-DOTHER=1"]));
        path
    }

    /// Runs one of binutils' programs; `{}` stands for its path.
    fn tool(&self, program: &str, arguments: &[&str]) {
        let path = self.path.display().to_string();
        let arguments = arguments.iter().map(|argument| argument.replace("{}", &path));
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts it for a time; `then` is done once it runs, and then it is recorded to its end.
    fn record(&self, arguments: &[&str], then: impl FnOnce()) -> Option<Profile> {
        let child = Command::new(&self.path).args(arguments).stdin(Stdio::null()).spawn().unwrap();
        record_child(child, then)
    }
}

pub(crate) fn record_child(mut child: Child, then: impl FnOnce()) -> Option<Profile> {
    let pid = child.id();
    // It reads its libraries first.
    std::thread::sleep(Duration::from_millis(200));
    then();
    let process = Process::attach(pid, SETTINGS);
    // Reaps it, so that its end can be seen.
    let waiter = std::thread::spawn(move || child.wait());
    let profile = record_whatever(process);
    assert!(waiter.join().unwrap().unwrap().success());
    profile
}

/// Records a process that its parent waits for, to its end.
pub(crate) fn record_running(pid: u32) -> Option<Profile> {
    // It reads its libraries first.
    std::thread::sleep(Duration::from_millis(200));
    record_whatever(Process::attach(pid, SETTINGS))
}

fn compile(path: &Path, flags: &[&str]) -> bool {
    compile_program("weights.c", path, flags)
}

/// Compiles one of the test programs; `false` if this machine has no compiler.
pub(crate) fn compile_program(name: &str, path: &Path, flags: &[&str]) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-pthread", "-Wl,--build-id"]).args(flags).arg(source).arg("-o").arg(path);
    let Ok(result) = cc.output() else {
        skip("there is no C compiler (cc)");
        return false;
    };
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    true
}

/// Records until the process ends, without a warning; `None` if this machine does not let us.
fn record(process: Result<Process, GuestError>) -> Option<Profile> {
    let profile = record_whatever(process)?;
    assert!(profile.warnings.is_empty(), "{:?}", profile.warnings);
    Some(profile)
}

fn record_whatever(process: Result<Process, GuestError>) -> Option<Profile> {
    let mut process = match process {
        Ok(process) => process,
        Err(error @ GuestError::NotPermitted { .. }) => {
            skip(&error.to_string());
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let clocks = read_clocks();
    let origin = Origin { rate_hz: SETTINGS.rate_hz, ..Default::default() };
    let mut recorder = Recorder::start(Vec::new(), clocks, &origin).unwrap();
    let files = RefCell::new(HostFiles::default());
    let mut sink = |event| recorder.event(event, &mut *files.borrow_mut()).unwrap();
    process.announce(&mut sink).unwrap();
    let start = Instant::now();
    while process.collect(Duration::from_millis(50), &mut sink).unwrap() == Flow::More {
        assert!(start.elapsed() < Duration::from_secs(240), "the program does not end");
    }
    process.detach(&mut sink).unwrap();
    let counts = process.counts();
    let cost = Cost { losses: counts.losses, ..Default::default() };
    let end = read_clocks().monotonic_ns;
    let (cost, bytes) = recorder.finish(&cost, end, &mut *files.borrow_mut(), || 0).unwrap();
    let profile = recording::read(&bytes, &mut glass_profiler_core::files::NoFiles).unwrap();
    assert_eq!(profile.cost, cost);
    assert_eq!(profile.samples.len() as u64, cost.samples_taken);
    Some(profile)
}

/// The functions of a stack, outermost first, up to where it entered the kernel.
pub(crate) fn functions(profile: &Profile, stack: u32) -> Vec<&str> {
    let frames = profile.stacks[stack as usize].frames.iter().map(|frame| &profile.frames[*frame as usize]);
    frames.filter(|frame| frame.image != KERNEL_NAME).map(|frame| frame.function.as_str()).collect()
}

/// Checks that the samples whose innermost function is one of a, b and c have the program's shares.
fn check_shares(profile: &Profile, callers: &[&str]) {
    let mut counts = [0u32; 3];
    let mut other = 0;
    for sample in &profile.samples {
        let mut names = functions(profile, sample.stack);
        names.retain(|name| *name != "spin");
        let Some(start) = names.iter().position(|name| *name == "work") else {
            other += 1;
            continue;
        };
        match names[start..] {
            ["work", "a"] => counts[0] += 1,
            ["work", "a", "b"] => counts[1] += 1,
            ["work", "a", "b", "c"] => counts[2] += 1,
            _ => other += 1,
        }
        assert!(callers.iter().all(|caller| names.contains(caller)), "{names:?}");
    }
    let total = f64::from(counts.iter().sum::<u32>());
    assert!(total > 500.0, "{counts:?}, {other} other");
    assert!(f64::from(other) < total * 0.05, "{counts:?}, {other} other");
    for (count, share) in counts.iter().zip([0.1, 0.3, 0.6]) {
        let expected = total * share;
        // Five standard deviations: one run in two million fails by chance.
        let tolerance = 5.0 * (total * share * (1.0 - share)).sqrt();
        assert!(
            (f64::from(*count) - expected).abs() < tolerance,
            "{counts:?}: {count} is not {expected} +- {tolerance}"
        );
    }
}

fn check_cost(profile: &Profile) {
    let cost = &profile.cost;
    assert!(cost.samples_lost * 10 < cost.samples_wanted, "{cost:?}");
    assert_eq!(cost.samples_wanted, cost.samples_taken + cost.samples_lost);
    assert!(cost.stacks_broken * 100 < cost.samples_taken, "{cost:?}");
    assert_eq!(cost.pause.count, 0);
}

#[test]
fn a_command_from_its_start() {
    let Some(program) = Program::build("command") else { return };
    let mut command = Command::new(&program.path);
    command.arg("1.0");
    let Some(profile) = record(Process::spawn(command, SETTINGS)) else { return };
    check_shares(&profile, &["_start", "main"]);
    check_cost(&profile);
    assert_eq!(profile.tracks.len(), 1);
    assert_eq!(profile.tracks[0].name, "weights");
}

#[test]
fn a_running_process_and_the_threads_it_starts_later() {
    let Some(program) = Program::build("threads") else { return };
    let mut child = Command::new(&program.path).args(["0.8", "2"]).stdin(Stdio::null()).spawn().unwrap();
    // Reaps it, so that its end can be seen.
    let process = Process::attach(child.id(), SETTINGS);
    let waiter = std::thread::spawn(move || child.wait());
    let profile = record(process);
    assert!(waiter.join().unwrap().unwrap().success());
    let Some(profile) = profile else { return };
    check_shares(&profile, &["work"]);
    check_cost(&profile);
    let names: Vec<&str> = profile.tracks.iter().map(|track| track.name.as_str()).collect();
    assert!(names.contains(&"second"), "{names:?}");
}

#[test]
fn what_cannot_be_sampled_says_why() {
    let gone = Process::attach(1 << 22 | 1, SETTINGS).err().unwrap();
    assert!(gone.to_string().contains("no process"), "{gone}");
    let missing = Process::spawn(Command::new("/no/such/program"), SETTINGS).err().unwrap();
    match missing {
        GuestError::Command { .. } => assert!(missing.to_string().contains("/no/such/program"), "{missing}"),
        GuestError::NotPermitted { .. } => skip(&missing.to_string()),
        other => panic!("{other}"),
    }
}

/// Nothing of another build of the program is in a profile.
fn expect_right_names(profile: &Profile) {
    check_shares(profile, &["work"]);
    assert!(profile.frames.iter().all(|frame| !frame.function.starts_with("wrong")), "{:?}", profile.warnings);
    assert!(profile.warnings.is_empty(), "{:?}", profile.warnings);
    assert!(profile.frames.iter().any(|frame| frame.function == "c" && frame.line.is_some()));
}

/// An update puts another file in the place of one that runs: its names were shown (2026-11-22).
#[test]
fn a_program_that_was_replaced_while_it_ran() {
    let Some(program) = Program::build("replaced") else { return };
    let other = program.build_other("other");
    let replace = || std::fs::rename(&other, &program.path).unwrap();
    let Some(profile) = program.record(&["1.5"], replace) else { return };
    expect_right_names(&profile);
}

#[test]
fn a_program_that_was_deleted_while_it_ran() {
    let Some(program) = Program::build("deleted") else { return };
    let Some(profile) = program.record(&["1.5"], || std::fs::remove_file(&program.path).unwrap()) else { return };
    expect_right_names(&profile);
}

/// In a container a path is another file than outside of it.
#[test]
fn a_program_in_a_mount_namespace_of_its_own() {
    let Some(program) = Program::build("inside") else { return };
    let outside = program.folder.file("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::rename(program.build_other("other"), outside.join("weights")).unwrap();
    let inside = program.folder.file("inside");
    std::fs::create_dir(&inside).unwrap();
    std::fs::rename(&program.path, inside.join("weights")).unwrap();
    let script = "mount --bind \"$0\" \"$1\" && exec \"$1/weights\" 1.5";
    if let Some(profile) = record_unshared(script, &[&inside, &outside]) {
        expect_right_names(&profile);
    }
}

/// There is no file of this path outside.
#[test]
fn a_program_in_a_root_of_its_own() {
    let Some(program) = Program::build("jail") else { return };
    let root = program.folder.file("root");
    std::fs::create_dir_all(root.join("usr")).unwrap();
    std::fs::rename(&program.path, root.join("weights")).unwrap();
    let script = "ln -s usr/lib usr/lib64 \"$0\" && mount --bind /usr \"$0/usr\" && exec chroot \"$0\" /weights 1.5";
    if let Some(profile) = record_unshared(script, &[&root]) {
        expect_right_names(&profile);
    }
}

/// Records what a script of the shell becomes in a mount namespace of its own; `$0` is the first argument.
fn record_unshared(script: &str, arguments: &[&Path]) -> Option<Profile> {
    let is_permitted = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    if !is_permitted.is_ok_and(|status| status.success()) {
        skip("a mount namespace needs the right to make one");
        return None;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script]).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    record_child(unshare.spawn().unwrap(), || ())
}

/// `pthread_exit` in main: what is left looked like the end of the process (2026-11-22).
#[test]
fn a_process_whose_first_thread_has_ended() {
    let Some(program) = Program::build("headless") else { return };
    let Some(profile) = program.record(&["1.0", "2", "and leave"], || ()) else { return };
    expect_right_names(&profile);
}

/// Not a test of its own: what `more_threads_than_descriptors` runs.
#[test]
#[ignore = "runs in a process with a low limit, started by another test"]
fn attach_with_few_descriptors() {
    let Ok(pid) = std::env::var("GLASS_TEST_PROCESS") else { return };
    match Process::attach(pid.parse().unwrap(), SETTINGS) {
        Ok(_) => {}
        Err(error @ GuestError::NotPermitted { .. }) => skip(&error.to_string()),
        Err(error) => panic!("{error}"),
    }
}

/// Each thread takes a descriptor for each CPU; the usual limit is 1024 (2026-11-22: "too many open files").
#[test]
fn more_threads_than_descriptors() {
    let (stop, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let threads: Vec<_> = (0..1000)
        .map(|_| {
            let wait = wait.clone();
            std::thread::spawn(move || {
                // Until the sender is gone.
                let _ = wait.lock().unwrap().recv();
            })
        })
        .collect();
    let attach = |limits: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "process::attach_with_few_descriptors", "--ignored"]);
        command.env("GLASS_TEST_PROCESS", std::process::id().to_string()).output().unwrap()
    };
    let raised = attach("ulimit -Sn 64");
    let refused = attach("ulimit -Sn 64; ulimit -Hn 64");
    drop(stop);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(raised.status.success(), "{}", String::from_utf8_lossy(&raised.stdout));
    if !refused.status.success() {
        let said = format!("{}{}", String::from_utf8_lossy(&refused.stdout), String::from_utf8_lossy(&refused.stderr));
        assert!(said.contains("prlimit --nofile"), "{said}");
    }
}

/// The innermost functions of the program, and how many samples each has.
fn functions_of_program(profile: &Profile) -> Vec<(String, u32)> {
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    for sample in &profile.samples {
        let frames = &profile.stacks[sample.stack as usize].frames;
        let frame = frames.iter().rev().map(|frame| &profile.frames[*frame as usize]).find(|f| f.image != KERNEL_NAME);
        if let Some(frame) = frame.filter(|frame| frame.image == "weights") {
            *counts.entry(frame.function.clone()).or_default() += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

/// Three functions were 109 rows, one for each address (2026-11-22).
#[test]
fn functions_without_names_are_still_functions() {
    let Some(program) = Program::build("nameless") else { return };
    assert!(compile(&program.path, &["-DSPREAD"]));
    program.tool("strip", &["--strip-all", "{}"]);
    let Some(profile) = program.record(&["1.5"], || ()) else { return };
    let counts = functions_of_program(&profile);
    assert!((3..8).contains(&counts.len()), "{} rows: {counts:?}", counts.len());
    assert!(counts[..3].iter().all(|(name, _)| name.starts_with("0x")), "{counts:?}");
    let all: u32 = counts.iter().map(|(_, count)| count).sum();
    for ((_, count), share) in counts.iter().zip([0.6, 0.3, 0.1]) {
        assert!((f64::from(*count) / f64::from(all) - share).abs() < 0.08, "{counts:?}");
    }
    assert!(profile.warnings.iter().any(|text| text.contains("stripped")), "{:?}", profile.warnings);
}

#[test]
fn names_come_from_a_separate_debug_file() {
    let Some(program) = Program::build("split") else { return };
    let debug = program.folder.file("weights.debug");
    let split = debug.display().to_string();
    program.tool("objcopy", &["--only-keep-debug", "{}", &split]);
    program.tool("objcopy", &["--strip-all", &format!("--add-gnu-debuglink={split}"), "{}"]);
    std::fs::set_permissions(&program.path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let Some(profile) = program.record(&["1.5"], || ()) else { return };
    expect_right_names(&profile);
    // One of another build is not believed.
    let other = program.build_other("other");
    std::fs::rename(other, &debug).unwrap();
    let Some(profile) = program.record(&["1.0"], || ()) else { return };
    assert!(profile.frames.iter().all(|frame| !frame.function.starts_with("wrong")));
    assert!(functions_of_program(&profile)[0].0.starts_with("0x"));
}

/// Time in system calls had one name, `[kernel]`, where perf has the kernel's functions (2026-11-22).
#[test]
fn the_kernels_functions_are_in_the_stack_of_a_system_call() {
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "of=/dev/null", "bs=1M", "count=6000"]).stderr(Stdio::null());
    let Some(profile) = record_whatever(Process::spawn(dd, SETTINGS)) else { return };
    if let Some(why) = profile.warnings.iter().find(|text| text.starts_with("time in the kernel")) {
        return skip(why);
    }
    let kernel = |sample: &glass_profiler_core::model::Sample| -> Vec<String> {
        let frames = profile.stacks[sample.stack as usize].frames.iter().map(|frame| &profile.frames[*frame as usize]);
        frames.filter(|frame| frame.image == KERNEL_NAME).map(|frame| frame.function.clone()).collect()
    };
    let chains: Vec<Vec<String>> = profile.samples.iter().map(kernel).filter(|names| !names.is_empty()).collect();
    assert!(chains.len() > 20, "{} of {} samples", chains.len(), profile.samples.len());
    // Outermost first: the entry, then what reads.
    let reads = |names: &&Vec<String>| names.len() > 3 && names.iter().any(|name| name.contains("vfs_read"));
    let reading = chains.iter().filter(reads).count();
    assert!(reading > chains.len() / 2, "{:?}", &chains[..5]);
    let is_named = |names: &Vec<String>| names.iter().all(|name| !name.starts_with("0x") && name != KERNEL_NAME);
    let named = chains.iter().filter(|names| is_named(names)).count();
    assert!(named * 20 >= chains.len() * 19, "{named} of {}", chains.len());
    // What called it is there all the same, and the kernel's part ends where its own begins.
    let whole = profile.samples.iter().filter(|sample| !functions(&profile, sample.stack).is_empty()).count();
    assert!(whole * 20 >= profile.samples.len() * 19, "{whole} of {}", profile.samples.len());
}

/// Threads were looked for in rounds, and one that was started meanwhile was sampled twice: by its own event, and by the one that it had
/// inherited (2026-11-25). Children that were there already were not sampled at all.
#[test]
fn each_thread_and_child_is_sampled_once() {
    let folder = Folder::new("births").unwrap();
    let program = folder.file("births");
    if !compile_program("births.c", &program, &[]) {
        return;
    }
    for delay_ms in [2, 5, 8] {
        let mut births = Command::new(&program).arg("60").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(births.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        let process = Process::attach(births.id(), SETTINGS);
        let pid = births.id();
        let waiter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            let used = cpu_times(pid);
            births.kill().unwrap();
            births.wait().unwrap();
            used
        });
        let Some(profile) = record_whatever(process) else { return };
        let used = waiter.join().unwrap();
        let processes = glass_profiler_core::identity::processes(&profile);
        let of_child = processes.iter().find(|process| process.pid == child).expect("the child is sampled");
        assert_eq!((of_child.name.as_str(), of_child.tracks.len()), ("child", 1));
        let cost = &profile.cost;
        assert_eq!(cost.samples_wanted, cost.samples_taken + cost.samples_lost);
        let (mut counts, mut doubled) = (HashMap::new(), Vec::new());
        for sample in &profile.samples {
            *counts.entry(profile.tracks[sample.track as usize].id).or_insert(0.0) += 1.0;
        }
        for (tid, seconds) in &used {
            let expected = seconds * f64::from(SETTINGS.rate_hz);
            let counted: f64 = counts.get(tid).copied().unwrap_or(0.0);
            if counted > 1.5 * expected + 30.0 {
                doubled.push((*tid, counted, expected));
            }
        }
        assert!(doubled.is_empty() && used.len() > 30, "of {}: {doubled:?}", used.len());
    }
}

/// The CPU time of each thread of a process since its start, in seconds.
fn cpu_times(pid: u32) -> HashMap<u64, f64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let time = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some((thread.file_name().to_str()?.parse().ok()?, text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9))
    };
    threads.filter_map(time).collect()
}

/// Services of several processes without a common parent (`--pid 1,2`).
#[test]
fn several_processes_are_sampled_together_to_the_end_of_the_last() {
    let count = |to: u32| format!("i=0; while [ $i -lt {to} ]; do i=$((i+1)); done");
    let shell = |text: String| Command::new("sh").args(["-c", &text]).spawn().unwrap();
    let (mut first, mut last) = (shell(count(40_000)), shell(count(400_000)));
    let pids = [first.id(), last.id()];
    let process = Process::attach_all(&pids, SETTINGS);
    let waiter = std::thread::spawn(move || {
        first.wait().unwrap();
        let ended = std::time::Instant::now();
        last.wait().unwrap();
        ended.elapsed()
    });
    let Some(profile) = record_whatever(process) else { return };
    assert!(waiter.join().unwrap() > Duration::from_millis(100), "the last one ran on alone");
    let processes = glass_profiler_core::identity::processes(&profile);
    let found: Vec<u32> = processes.iter().map(|process| process.pid).collect();
    assert_eq!(found, pids);
    let samples = |pid: u32| {
        let tracks = processes.iter().filter(|process| process.pid == pid).flat_map(|process| &process.tracks);
        let tracks: Vec<_> = tracks.copied().collect();
        profile.samples.iter().filter(|sample| tracks.contains(&(sample.track as usize))).count()
    };
    let (of_first, of_last) = (samples(pids[0]), samples(pids[1]));
    assert!(of_first > 5 && of_last > 2 * of_first, "{of_first} and {of_last}");
    let gone = Process::attach_all(&[std::process::id(), 1 << 22 | 1], SETTINGS).err().unwrap();
    assert!(gone.to_string().contains("4194305"), "{gone}");
}
