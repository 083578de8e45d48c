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
const LIMIT: Duration = Duration::from_secs(240);
/// Bytes of a name that the kernel keeps in a task.
const NAME_BYTES: usize = 15;
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

/// Boots a guest and compares while it is paused; then it runs.
fn check(settings: &Settings) {
    let Some(program) = programs::built("glass") else { return };
    let parts = match Parts::get(settings.release) {
        Ok(parts) => parts,
        Err(reason) => return programs::skip(&format!("no Linux {}: {reason:#}", settings.release)),
    };
    let mut guest = Guest::boot(&parts, settings).unwrap();
    guest.start_programs().unwrap();
    let truth = guest.collect().unwrap();
    let pid = guest.pid().to_string();
    let tasks: Value = serde_json::from_str(&glass(&program, &["ps", "--threads", "--json", "--pid", &pid])).unwrap();
    assert_eq!((&tasks["torn"], &tasks["left_out"]), (&Value::from(0), &Value::from(0)));
    let tasks: BTreeMap<u32, &Value> =
        tasks["tasks"].as_array().unwrap().iter().map(|task| (number(&task["tid"]) as u32, task)).collect();
    check_tasks(&truth, &tasks);
    let stacks = parse(&glass(&program, &["stacks", "--pid", &pid]));
    let figures = check_stacks(&truth, &tasks, &stacks);
    say(&format!("linux guest {}: {figures}", settings.release));
    check_blocked(&truth, &tasks, &parse(&glass(&program, &["stacks", "--blocked", "--pid", &pid])));
    check_table(&truth, &glass(&program, &["ps", "--pid", &pid]));
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
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn check_tasks(truth: &Truth, tasks: &BTreeMap<u32, &Value>) {
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
        assert_eq!(number(&found["start_ns"]) / 10_000_000, task.start_ticks, "{found} {task:?}");
        let ids: Vec<u32> = found["namespace_tids"].as_array().unwrap().iter().map(|id| number(id) as u32).collect();
        assert_eq!(ids, task.namespace_ids, "{found} {task:?}");
        assert_eq!(found["cgroup"].as_str().unwrap(), truth.processes[&task.pid].control_group, "{found} {task:?}");
        if is_unchanged(task, found) {
            assert_eq!(found["state"].as_str().unwrap(), task.state.to_string(), "{found} {task:?}");
        }
    }
    let new: Vec<_> = tasks.iter().filter(|(tid, _)| !truth.tasks.contains_key(tid)).collect();
    assert!(new.len() <= 2, "{new:?}");
}

/// Whether a task did not run since the truth was collected.
fn is_unchanged(task: &Task, found: &Value) -> bool {
    let switches = [0, 1].map(|index| number(&found["switches"][index]));
    switches == [task.switches.0, task.switches.1] && task.state != 'R'
}

/// Compares the stacks of tasks that did not run meanwhile.
fn check_stacks(truth: &Truth, tasks: &BTreeMap<u32, &Value>, stacks: &BTreeMap<u32, Printed>) -> String {
    let left_out = of_scheduler(truth);
    let (mut compared, mut different, mut with_user) = (0, Vec::new(), 0);
    for task in truth.tasks.values() {
        let (Some(found), Some(printed)) = (tasks.get(&task.tid), stacks.get(&task.tid)) else { continue };
        with_user += usize::from(!printed.user.is_empty());
        if !is_unchanged(task, found) {
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
    assert!(compared > 60 && different.len() * 50 <= compared, "{compared} stacks: {different:#?}");
    let same = compared - different.len();
    format!("{same} of {compared} stacks are equal, {with_user} of {} go into a process", stacks.len())
}

fn check_blocked(truth: &Truth, tasks: &BTreeMap<u32, &Value>, stacks: &BTreeMap<u32, Printed>) {
    assert!(truth.blocked.len() >= 3, "{:?}", truth.blocked);
    for task in &truth.blocked {
        let printed = stacks.get(&task.tid).unwrap_or_else(|| panic!("{} is not blocked", task.name));
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
