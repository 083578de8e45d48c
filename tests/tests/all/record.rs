//! The profiler records the queue under load: the report names the queue's own functions, few stacks
//! are broken, and the queue works undisturbed.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::process::Process;
use glass_tests::programs::{self, Variant};
use glass_tests::queue::{Options, Queue, World};
use glass_tests::terminal::Terminal;
use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

glass_tests::in_every_world! {
    a_recording_names_what_the_queue_does within 240;
}

/// How long the test of the live screen may take.
const LIVE_LIMIT: Duration = Duration::from_secs(120);

/// One stack in so many may be broken.
const BROKEN_SHARE: u64 = 100;
/// And so many of a recording with few samples, of which they are no share.
const BROKEN_MAX: u64 = 5;

fn a_recording_names_what_the_queue_does(world: World) {
    let folder = Folder::new("record").unwrap();
    let mut options = Options::default();
    if world == World::Process {
        // Optimized, as users run it: the stacks of the others are longer than what is copied of them.
        let Some(program) = programs::variant("upload-queue", Variant::Functions, false) else { return };
        options.program = Some(program);
    }
    let Some(queue) = Queue::start(world, &folder.file("queue.img"), &options).unwrap() else { return };
    let Some(glass) = programs::built("glass") else { return };
    let recording = folder.file("recording");
    let mut record = Command::new(&glass);
    record.args(["record", "--pid", &queue.service_pid().unwrap().to_string(), "--rate", "499", "--duration", "3"]);
    record.arg("--output").arg(&recording);
    let mut recorder = Process::spawn(&mut record, &folder.file("record.log")).unwrap();
    let moved = load_until(&queue, 200_000, || recorder.wait(Duration::ZERO).is_some());
    assert!(recorder.ended().is_some_and(|status| status.success()), "glass record: {}", recorder.output());
    let names: &[&str] =
        if world == World::Process { &["upload_queue"] } else { &["upload_queue", "smoltcp", "virtio"] };
    let broken = judge(&glass, &recording, names);
    say(&format!("record {world}: {moved} items moved meanwhile, {broken} stacks broken"));
}

/// Moves items of this length through the queue until a condition holds; returns how many.
pub fn load_until(queue: &Queue, length_bytes: u64, mut is_over: impl FnMut() -> bool) -> u64 {
    let mut seed = 0;
    while !is_over() {
        seed += 1;
        assert!(seed < 100_000, "glass record does not end after its duration");
        let item = Content { seed, length_bytes };
        assert_eq!(queue.put(item).unwrap().status(), 200);
        queue.take(item).unwrap();
    }
    seed
}

/// Checks that functions of these names are in a recording and few stacks broken; returns how many of how many are.
pub fn judge(glass: &Path, recording: &Path, names: &[&str]) -> String {
    let report = |arguments: &[&str]| {
        let output = Command::new(glass).arg("report").arg(recording).args(arguments).output().unwrap();
        assert!(output.status.success(), "glass report: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = report(&["--text", "--top", "500"]);
    let page = recording.with_extension("html");
    report(&["--output", &page.to_string_lossy()]);
    let page = std::fs::read_to_string(page).unwrap();
    // The table has room for short names only; the page holds the whole ones.
    for name in names {
        assert!(page.contains(name), "no function of {name} is in the page; the table:\n{text}");
    }
    let (broken, samples) = broken_of(&text).unwrap_or_else(|| panic!("the table has no line about broken stacks:\n{text}"));
    assert!(broken <= BROKEN_MAX.max(samples / BROKEN_SHARE), "{broken} of {samples} stacks are broken:\n{text}");
    format!("{broken} of {samples}")
}

#[test]
fn the_live_screen_leaves_the_queue_running() {
    within(LIVE_LIMIT, || {
        let folder = Folder::new("top").unwrap();
        let Some(queue) = Queue::start(World::Tcg, &folder.file("queue.img"), &Options::default()).unwrap() else {
            return;
        };
        let Some(glass) = programs::built("glass") else { return };
        let line = format!("{} top --rate 199 --pid {}", glass.display(), queue.service_pid().unwrap());
        let Some(mut terminal) = Terminal::start(&line, 100, 30) else {
            return programs::skip("there is no program `script` to give us a terminal");
        };
        let mut seed = 0;
        let mut load = || {
            seed += 1;
            let item = Content { seed, length_bytes: 200_000 };
            assert_eq!(queue.put(item).unwrap().status(), 200);
            queue.take(item).unwrap();
        };
        // Not all texts need be visible at the same moment.
        let show = |terminal: &mut Terminal, load: &mut dyn FnMut(), texts: &[&'static str]| {
            let missing = RefCell::new(texts.to_vec());
            terminal.wait_for("what the queue does", load, |shown| {
                missing.borrow_mut().retain(|text| !shown.contains(text));
                missing.borrow().is_empty()
            });
        };
        show(&mut terminal, &mut load, &["vcpu 0", "running", "pause"]);
        // The function that calls all others has hardly a sample of its own: only total time puts it in the first rows.
        terminal.press("t");
        show(&mut terminal, &mut load, &["▼total", "glass_start"]);
        terminal.press("/smoltcp\r");
        show(&mut terminal, &mut load, &["with \"smoltcp\"", "smoltcp::"]);
        terminal.press("q");
        let (status, shown) = terminal.end();
        assert!(status.success(), "{shown:?}");
        let item = Content { seed: 0, length_bytes: 200_000 };
        assert_eq!(queue.put(item).unwrap().status(), 200);
        queue.get(item).unwrap();
        say(&format!("top: {seed} items moved meanwhile"));
    });
}

/// The numbers in `0.3 % broken: 1 of 399`.
fn broken_of(text: &str) -> Option<(u64, u64)> {
    let after = text.lines().find_map(|line| line.split_once("% broken: "))?.1;
    let mut words = after.split_whitespace().map(|word| word.replace(',', "").parse());
    Some((words.next()?.ok()?, words.nth(1)?.ok()?))
}

#[test]
fn the_number_of_broken_stacks_is_read() {
    assert_eq!(broken_of("a\n  Stacks    0.3 % broken: 1 of 399\n"), Some((1, 399)));
    assert_eq!(broken_of("  Stacks    <0.1 % broken: 1 of 3,990 do not\n"), Some((1, 3990)));
    assert_eq!(broken_of("nothing"), None);
}
