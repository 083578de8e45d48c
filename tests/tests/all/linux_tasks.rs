//! `glass ps` and `glass stacks` print what a Linux guest's kernel reports of its tasks. All kernels: `cargo xtask test --long`.

use glass_tests::limit::{say, within};
use glass_tests::linux_guest::truth::{Frame, Task, Truth};
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::programs;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long a guest may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(720);
/// Bytes of a name that the kernel keeps in a task.
const NAME_BYTES: usize = 15;
/// A tick of `/proc`.
const TICK_NS: u64 = 10_000_000;
/// Ticks that a vCPU may be without a CPU of the host between two reads of clocks.
const TICKS_BETWEEN_CLOCKS_MAX: u64 = 2;
/// The tasks that are blocked without an end; a thread of the kernel that waits for the disk is it for a moment.
const BLOCKED: [&str; 3] = ["vfork-parent", "frozen-write", "frozen-open"];
/// CPUs of each guest.
const VCPUS: usize = 2;
/// The stacks that are compared at least: a small kernel has few threads of its own.
const COMPARED_MIN: usize = 50;
/// How often the stacks of a running guest are read, and the variable with another number.
const ROUNDS: u64 = 5;
const ROUNDS_VARIABLE: &str = "GLASS_LINUX_ROUNDS";

/// A task as `glass stacks` prints it.
#[derive(Debug, Default)]
struct Printed {
    name: String,
    /// In the kernel.
    frames: Vec<Frame>,
    /// In the process.
    user: Vec<String>,
    /// Why there is no stack.
    remark: Option<String>,
}

/// What `glass` prints with these arguments; it is an error if it warns.
fn glass(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !warnings.contains("panicked"), "glass {arguments:?}: {warnings}");
    assert!(!warnings.contains("warning"), "glass {arguments:?}: {warnings}");
    String::from_utf8(output.stdout).unwrap()
}

/// Parses `function+0x1f/0x40` or `function+0x1f/0x40 [module]`.
fn frame(line: &str) -> Frame {
    let (place, module) = match line.split_once(" [") {
        Some((place, module)) => (place, Some(module.trim_end_matches(']').to_owned())),
        None => (line, None),
    };
    let hexadecimal = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap();
    let (function, numbers) = place.rsplit_once('+').unwrap_or((place, "0x0/0x0"));
    let (offset, bytes) = numbers.split_once('/').unwrap();
    Frame { function: function.to_owned(), offset: hexadecimal(offset), bytes: hexadecimal(bytes), module }
}

/// The tasks in the output of `glass stacks`, by their thread IDs.
fn parse(text: &str) -> BTreeMap<u32, Printed> {
    let mut all: BTreeMap<u32, Printed> = BTreeMap::new();
    let (mut tid, mut is_user) = (0, false);
    for line in text.lines().filter(|line| *line != "PID TID NAME STATE") {
        if !line.starts_with(' ') {
            // The name, which may have spaces, is between the IDs and the state.
            let words: Vec<&str> = line.splitn(3, ' ').collect();
            (tid, is_user) = (words[1].parse().unwrap(), false);
            let name = words[2].rsplit_once(' ').unwrap().0.trim_matches(['[', ']']).to_owned();
            all.insert(tid, Printed { name, ..Printed::default() });
            continue;
        }
        let task = all.get_mut(&tid).unwrap();
        match line.trim() {
            "in the process:" => is_user = true,
            remark if remark.starts_with('(') => task.remark = Some(remark.to_owned()),
            call if is_user => task.user.push(call.to_owned()),
            call => task.frames.push(frame(call)),
        }
    }
    all
}

/// The functions that the kernel leaves out of the stacks in `/proc`.
fn of_scheduler(truth: &Truth) -> BTreeSet<&str> {
    let [start, end] = ["__sched_text_start", "__sched_text_end"].map(|name| truth.address(name).unwrap());
    let inside = truth.kallsyms.iter().filter(|symbol| (start..end).contains(&symbol.address));
    inside.map(|symbol| symbol.name.as_str()).collect()
}

/// Compares the tasks and stacks of a guest, and of one for AArch64 samples too.
pub fn check(settings: &Settings) {
    match Parts::get(settings.release) {
        Ok(parts) => check_guest(settings, &parts, true),
        Err(reason) => programs::skip(&format!("no Linux {}: {reason:#}", settings.release)),
    }
}

/// Boots a guest and compares while it is paused; then it runs. Of a kernel without types the control groups are not known.
fn check_guest(settings: &Settings, parts: &Parts, has_types: bool) {
    let Some(program) = programs::built("glass") else { return };
    let mut guest = Guest::boot(parts, settings).unwrap();
    guest.start_programs().unwrap();
    let truth = guest.collect().unwrap();
    let pid = guest.pid().to_string();
    let tasks: Value = serde_json::from_str(&glass(&program, &["ps", "--threads", "--json", "--pid", &pid])).unwrap();
    assert_eq!((&tasks["torn"], &tasks["left_out"]), (&Value::from(0), &Value::from(0)));
    let tasks: BTreeMap<u32, &Value> =
        tasks["tasks"].as_array().unwrap().iter().map(|task| (number(&task["tid"]) as u32, task)).collect();
    check_tasks(&truth, &tasks, has_types);
    let stacks = parse(&glass(&program, &["stacks", "--pid", &pid]));
    let figures = check_stacks(&truth, &tasks, &stacks);
    say(&format!("linux guest {}: {figures}", settings.release));
    check_blocked(&truth, &tasks, &parse(&glass(&program, &["stacks", "--blocked", "--pid", &pid])));
    if has_types {
        check_table(&truth, &glass(&program, &["ps", "--pid", &pid]));
    }
    guest.resume().unwrap();
    for _ in 0..programs::number(ROUNDS_VARIABLE, ROUNDS) {
        let stacks = parse(&glass(&program, &["stacks", "--pid", &pid]));
        let is_whole = |task: &&Printed| task.frames.iter().all(|frame| !frame.function.starts_with('['));
        let broken: Vec<&Printed> = stacks.values().filter(|task| !is_whole(task)).collect();
        assert!(broken.is_empty(), "torn stacks: {broken:?}");
        let blocked: Vec<&Printed> = truth.blocked.iter().filter_map(|task| stacks.get(&task.tid)).collect();
        assert_eq!(blocked.len(), truth.blocked.len());
        blocked.iter().for_each(|task| assert!(task.frames.len() > 3 && !task.user.is_empty(), "{task:?}"));
    }
    // A busy host loses most of these samples.
    if settings.release.is_aarch64() && programs::is_long() {
        check_samples(&program, &guest, "raw");
    }
}

/// Records the vCPUs, of which nothing but the pid is given: nearly all stacks are whole, in the kernel and in processes, which have their names.
fn check_samples(program: &Path, guest: &Guest, name: &str) {
    /// The most broken stacks, in percent.
    const BROKEN_MAX: f64 = 2.0;
    const SAMPLES_MIN: u64 = 200;
    let (pid, file) = (guest.pid().to_string(), guest.folder().file(name).display().to_string());
    let output =
        Command::new(program).args(["record", "--pid", &pid, "-F", "199", "--duration", "5", "-o", &file]).output();
    let said = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
    // A busy host loses samples, and the recording warns of that.
    let exported = Command::new(program).args(["export", "--format", "folded", "-o", "-", &file]).output().unwrap();
    let folded = String::from_utf8(exported.stdout).unwrap();
    assert!(exported.status.success(), "{said}{}", String::from_utf8_lossy(&exported.stderr));
    let stacks = folded.lines().filter_map(|line| {
        let (stack, count) = line.rsplit_once(' ')?;
        Some((stack, count.parse::<u64>().ok()?))
    });
    let sum = |has: &dyn Fn(&str) -> bool| -> u64 {
        stacks.clone().filter(|(stack, _)| has(stack)).map(|(_, count)| count).sum()
    };
    let (all, broken) = (sum(&|_| true), sum(&|stack| stack.contains(";[broken stack")));
    let in_kernel = sum(&|stack| stack.contains(";el0t_64_sync;"));
    let of_both = sum(&|stack| stack.contains(";main;") && stack.contains(";el0t_64_sync;"));
    let share = broken as f64 * 100.0 / all.max(1) as f64;
    say(&format!(
        "linux guest for AArch64: {share:.2} % of {all} stacks are broken, {in_kernel} are in the kernel, {of_both} of these below main"
    ));
    assert!(all > SAMPLES_MIN && share <= BROKEN_MAX && in_kernel > 10 && of_both > 0, "{said}\n{folded}");
    for (process, function) in [("without-fp ", ";inner"), ("with-fp ", ";inner"), ("threads ", ";compute")] {
        let count = sum(&|stack| stack.starts_with(process) && stack.contains(function));
        assert!(count > 0, "no {function} of {process}: {said}\n{folded}");
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn check_tasks(truth: &Truth, tasks: &BTreeMap<u32, &Value>, has_types: bool) {
    // The program that collected the truth may have ended.
    let lasting = || truth.tasks.values().filter(|task| task.name != "collect");
    for task in lasting() {
        let found = tasks.get(&task.tid).unwrap_or_else(|| panic!("there is no {task:?}"));
        let name = found["name"].as_str().unwrap();
        let is_kernel_thread = found["is_kernel_thread"].as_bool().unwrap();
        // Of a kernel thread /proc has a longer one.
        let has_name = name == task.name || (is_kernel_thread && task.name.starts_with(name));
        assert!(has_name && name.len() <= NAME_BYTES, "{found} {task:?}");
        assert_eq!(number(&found["pid"]), u64::from(task.pid), "{found} {task:?}");
        // The kernel reads two clocks one after the other, and /proc has the second one.
        let started = number(&found["start_ns"]) / TICK_NS;
        assert!((started..=started + TICKS_BETWEEN_CLOCKS_MAX).contains(&task.start_ticks), "{found} {task:?}");
        let ids: Vec<u32> = found["namespace_tids"].as_array().unwrap().iter().map(|id| number(id) as u32).collect();
        assert_eq!(ids, task.namespace_ids, "{found} {task:?}");
        if has_types {
            assert_eq!(found["cgroup"].as_str().unwrap(), truth.processes[&task.pid].control_group, "{found} {task:?}");
        }
        if is_unchanged(task, found) {
            assert_eq!(found["state"].as_str().unwrap(), task.state.to_string(), "{found} {task:?}");
        }
    }
    let new: Vec<_> = tasks.iter().filter(|(tid, _)| !truth.tasks.contains_key(tid)).collect();
    assert!(new.len() <= 2, "{new:?}");
}

/// Whether a task did not run since the truth was collected. One that has been woken is counted as switched only when it waits again.
fn is_unchanged(task: &Task, found: &Value) -> bool {
    let switches = [0, 1].map(|index| number(&found["switches"][index]));
    switches == [task.switches.0, task.switches.1] && task.state != 'R' && found["state"] != "R"
}

/// Compares the stacks of tasks that did not run meanwhile.
fn check_stacks(truth: &Truth, tasks: &BTreeMap<u32, &Value>, stacks: &BTreeMap<u32, Printed>) -> String {
    let left_out = of_scheduler(truth);
    let (mut compared, mut different, mut with_user, mut on_cpus) = (0, Vec::new(), 0, 0);
    for task in truth.tasks.values() {
        let (Some(found), Some(printed)) = (tasks.get(&task.tid), stacks.get(&task.tid)) else { continue };
        with_user += usize::from(!printed.user.is_empty());
        if !is_unchanged(task, found) {
            continue;
        }
        // One that has been woken, and is about to wait again, is on its CPU still.
        if printed.remark.as_deref() == Some("(on a CPU)") {
            on_cpus += 1;
            continue;
        }
        assert_eq!(printed.remark, None, "{task:?}");
        let frames = printed.frames.iter().filter(|frame| !left_out.contains(frame.function.as_str()));
        compared += 1;
        if !frames.eq(&task.stack) {
            different.push((task, printed));
        }
        if let Some(syscall) = &task.syscall
            && syscall.stack_pointer != 0
        {
            assert!(!printed.user.is_empty(), "{task:?} {printed:?}");
        }
    }
    assert!(on_cpus <= VCPUS, "{on_cpus} tasks are on a CPU");
    assert!(compared > COMPARED_MIN && different.len() * 50 <= compared, "{compared} stacks: {different:#?}");
    let same = compared - different.len();
    format!("{same} of {compared} stacks are equal, {with_user} of {} go into a process", stacks.len())
}

fn check_blocked(truth: &Truth, tasks: &BTreeMap<u32, &Value>, stacks: &BTreeMap<u32, Printed>) {
    for name in BLOCKED {
        let task = truth.blocked.iter().find(|task| task.name == name);
        let task = task.unwrap_or_else(|| panic!("{name}: {:?}", truth.blocked));
        let printed = stacks.get(&task.tid).unwrap_or_else(|| panic!("{name} is not blocked"));
        assert_eq!((&printed.name, &printed.frames), (&task.name, &task.stack));
        assert!(!printed.user.is_empty(), "{printed:?}");
    }
    // Others may have been blocked since.
    assert_eq!(stacks.len(), tasks.values().filter(|task| task["state"] == "D").count());
}

fn check_table(truth: &Truth, text: &str) {
    let title = text.lines().next().unwrap();
    assert_eq!(title.split_whitespace().collect::<Vec<_>>(), ["PID", "NSPID", "S", "CPU", "START", "NAME", "CGROUP"]);
    let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    let nested = truth.tasks_named("in-namespace").next().unwrap();
    let cells: Vec<&str> = line(" in-namespace").split_whitespace().collect();
    assert_eq!(cells[..3], [nested.pid.to_string().as_str(), "1", "R"]);
    assert!(line("/lab/inner").contains("sleep") && line("[kthreadd]").contains(" S "), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("computes-")).count(), 0, "threads need --threads");
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

/// Records the vCPUs of such a guest, and what its threads wait for.
fn record(parts: &Parts) {
    let Some(program) = programs::built("glass") else { return };
    let mut guest = Guest::boot(parts, &Settings::without_types()).unwrap();
    guest.start_programs().unwrap();
    let (pid, root) = (guest.pid().to_string(), parts.root.files.display().to_string());
    // Each finds all members anew, while the guest runs.
    for _ in 0..programs::number(ROUNDS_VARIABLE, ROUNDS) {
        glass(&program, &["ps", "--pid", &pid]);
    }
    let off_cpu: &[&str] = &["--off-cpu"];
    for (options, expected) in [(&[][..], ["without-fp", "inner"]), (off_cpu, ["threads ", "waits_in_futex"])] {
        let file = guest.folder().file("recording.pftrace").display().to_string();
        let record = ["record", "--pid", &pid, "--guest-root", &root, "--duration", "4", "-o", &file];
        let output = Command::new(&program).args(record).args(options).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains("not known"), "{options:?}: {said}");
        // It may warn of lost samples.
        let output = Command::new(&program).args(["export", "--format", "folded", "-o", "-", &file]).output().unwrap();
        let folded = String::from_utf8(output.stdout).unwrap();
        let of_thread = folded.lines().filter(|line| line.contains(expected[0]) && line.contains(expected[1]));
        assert!(of_thread.count() > 0, "{options:?}: no {expected:?} in {folded}");
    }
}

/// A kernel like Firecracker's, which is built where the cache has it not.
#[test]
fn a_kernel_that_describes_nothing() {
    if !programs::is_long() {
        return programs::skip("a kernel is built by --long");
    }
    match Parts::without_types() {
        Ok(parts) => within(LIMIT, move || {
            check_guest(&Settings::without_types(), &parts, false);
            record(&parts);
        }),
        Err(reason) => programs::skip(&format!("no kernel without types: {reason:#}")),
    }
}
