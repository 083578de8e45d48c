//! Live views of a running service: `glass trace` and `glass tail` of a command or of a queue under load, and the tasks of
//! `glass top`, in a pipe and on a screen. The service continues, however `glass` ends.

use crate::traced::PATIENCE;
use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::process::{Process, descendants, is_alive};
use glass_tests::programs;
use glass_tests::queue::{self, Options, Queue, World};
use glass_tests::terminal::Terminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    tail_prints_what_is_asked_for_until_it_is_told_to_end within 240;
    the_tasks_are_a_table_in_a_pipe within 240;
    the_screen_of_tasks_obeys_keys_and_gives_the_terminal_back within 300;
}

const LIMIT: Duration = Duration::from_secs(720);

struct Live {
    folder: Folder,
    queue: Queue,
    glass: PathBuf,
}

impl Live {
    fn start(world: World) -> Option<Live> {
        let folder = Folder::new("live").unwrap();
        let queue = Queue::start(world, &folder.file("queue.img"), &Options::default()).unwrap()?;
        Some(Live { folder, queue, glass: programs::built("glass")? })
    }

    fn pid(&self) -> String {
        self.queue.service_pid().unwrap().to_string()
    }

    /// `glass` with these arguments, on the queue.
    fn glass(&self, arguments: &[&str]) -> Process {
        let mut command = Command::new(&self.glass);
        command.args(arguments).args(["--pid", &self.pid()]);
        Process::spawn(&mut command, &self.folder.file(arguments[0])).unwrap()
    }

    /// Uploads, downloads and removes an item.
    fn work(&self) {
        let item = Content { seed: 7, length_bytes: 10_000 };
        assert_eq!(self.queue.put(item).unwrap().status(), 200);
        self.queue.take(item).unwrap();
    }

    /// Keeps the queue busy until `until` returns true.
    fn work_until(&self, what: &str, mut until: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !until() {
            assert!(begun.elapsed() < PATIENCE, "{what} takes too long");
            self.work();
        }
    }
}

/// Sends a signal by its name.
fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "process {pid} is not there any more");
}

/// The lines that were printed about events.
fn events(tail: &Process) -> Vec<String> {
    tail.output().lines().filter(|line| !line.starts_with("glass:")).map(str::to_owned).collect()
}

fn tail_prints_what_is_asked_for_until_it_is_told_to_end(world: World) {
    let Some(mut live) = Live::start(world) else { return };
    let mut tail = live.glass(&["tail", "--kind", "span", "--grep", "UPLOAD"]);
    live.work_until("glass tail", || events(&tail).len() >= 4);
    signal("INT", tail.pid());
    let status = tail.wait(PATIENCE).expect("glass tail ends when it is interrupted");
    assert!(status.success() && tail.output().contains("events shown"), "{status}: {}", tail.output());
    for line in events(&tail) {
        assert!(line.to_lowercase().contains("upload"), "{line}");
        let time: f64 = line.split_whitespace().next().unwrap().parse().unwrap();
        assert!((0.0..240.0).contains(&time), "{line}");
    }

    // The reader closes the pipe after the first line.
    let line = format!("{} tail --pid {} 2>&1 | head -n 1; echo ${{PIPESTATUS[0]}}", live.glass.display(), live.pid());
    let log = live.folder.file("head");
    let mut shell = Process::spawn(Command::new("bash").args(["-c", &line]), &log).unwrap();
    live.work_until("glass tail into a closed pipe", || shell.ended().is_some());
    let said = shell.output();
    assert!(said.lines().count() == 2 && said.ends_with("\n0\n"), "{said}");

    // It ends with the service.
    let mut tail = live.glass(&["tail", "--groups", "spans"]);
    live.work_until("glass tail", || events(&tail).len() >= 4);
    live.queue.kill();
    let status = tail.wait(PATIENCE).expect("glass tail ends with its service");
    assert!(status.success() && tail.output().contains("has ended"), "{status}: {}", tail.output());
}

fn the_tasks_are_a_table_in_a_pipe(world: World) {
    let Some(live) = Live::start(world) else { return };
    let mut top = live.glass(&["top", "--tasks", "--once", "--duration", "3"]);
    live.work_until("glass top", || top.ended().is_some());
    let table = top.output();
    assert!(top.ended().unwrap().success() && !table.contains('\x1b'), "{table}");
    let row = |name: &str| {
        let row = table.lines().find(|line| line.trim_start().starts_with(name));
        row.unwrap_or_else(|| panic!("{name} is not in the table:\n{table}")).to_owned()
    };
    // The table is of one moment, in which the task that accepts may be at work.
    let is_at_work = |row: &str| ["running", "runnable"].iter().any(|state| row.contains(state));
    let (main, commit) = (row("main #"), row("commit #"));
    assert!(main.contains("a new connection (") || is_at_work(&main), "{table}");
    assert!(commit.contains("waiting") || is_at_work(&commit), "{table}");
    for title in ["task (", "state", "since", "waits on", "polls/s", "run %", "longest"] {
        assert!(row("task (").contains(title), "{table}");
    }
    live.work();
}

fn the_screen_of_tasks_obeys_keys_and_gives_the_terminal_back(world: World) {
    let Some(live) = Live::start(world) else { return };
    let line = format!("{} top --tasks --pid {}", live.glass.display(), live.pid());
    let start = || {
        let Some(mut terminal) = Terminal::start(&line, 90, 24) else {
            programs::skip("there is no program `script` to give us a terminal");
            return None;
        };
        let is_known = |shown: &str| shown.contains("commit #") && shown.contains("a new connection (");
        terminal.wait_for("the tasks are not shown", || live.work(), is_known);
        Some(terminal)
    };
    let Some(mut terminal) = start() else { return };
    assert!(terminal.shown().contains("▼run %"), "{}", terminal.shown());
    for (keys, is_right) in [
        ("n", (|shown| shown.contains("▼task")) as fn(&str) -> bool),
        ("s", |shown| shown.contains("▼state")),
        ("?", |shown| shown.contains("Keys of glass top") && shown.contains("any key goes back")),
        (" ", |shown| shown.contains("main #")),
        ("/comm", |shown| shown.contains("filter: comm_") && !shown.contains("main #")),
        ("\r", |shown| shown.contains("? help q quit") && !shown.contains("main #")),
        ("\x1b", |shown| shown.contains("main #")),
        ("p", |shown| shown.contains("[PAUSED]")),
    ] {
        terminal.press(keys);
        terminal.wait_for(&format!("{keys:?} does not do what it should"), || (), is_right);
    }
    terminal.press("q");
    assert!(terminal.end().0.success());
    for name in ["INT", "TERM", "HUP"] {
        let Some(terminal) = start() else { return };
        signal(name, terminal.glass());
        let (status, output) = terminal.end();
        assert!(status.success(), "{name}: {status} {output:?}");
    }
    live.work();
}

#[test]
fn a_command_is_traced_from_its_start_and_goes_on() {
    within(LIMIT, || {
        let folder = Folder::new("live-command").unwrap();
        let (Some(glass), Some(service)) = (programs::built("glass"), programs::built("upload-queue")) else { return };
        let (file, disk, port) =
            (folder.file("a.pftrace"), folder.file("queue.img"), glass_tests::port::free_port().unwrap());
        let mut command = Command::new(&glass);
        command.args(["trace", "--output"]).arg(&file).arg("--").arg(&service).arg("--disk").arg(&disk);
        command.args(["--disk-size", "64M", "--bind", "127.0.0.1", "--", "--port", &port.to_string()]);
        let mut trace = Process::spawn(&mut command, &folder.file("trace.log")).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let begun = Instant::now();
        while queue::answer(address, Duration::from_secs(1)).is_none() {
            assert!(trace.ended().is_none() && begun.elapsed() < PATIENCE, "{}", trace.output());
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = descendants(trace.pid())[0];
        let item = Content { seed: 3, length_bytes: 50_000 };
        let mut client = glass_tests::http::Client::connect(address).unwrap();
        let answer = client.put("/uploader", item.length_bytes, &mut item.reader()).unwrap();
        // The span of the upload ends after its response was sent, and before the connection's next request is read.
        client.request("GET", "/healthz").unwrap();
        signal("INT", trace.pid());
        let status = trace.wait(PATIENCE).expect("glass trace ends when it is interrupted");
        let goes_on = is_alive(pid);
        let newest_events = || {
            let mut last = Command::new(&glass);
            last.args(["trace", "--last", "--pid", &pid.to_string(), "--output"]).arg(folder.file("last.pftrace"));
            let said = String::from_utf8(last.output().unwrap().stderr).unwrap();
            said.lines().find(|line| line.contains("  events ")).map(str::to_owned)
        };
        let events = newest_events();
        client.request("GET", "/healthz").unwrap();
        let events_later = newest_events();
        // Nothing else ends it.
        signal("KILL", pid);
        let said = trace.output();
        assert!(answer.status() == 200 && status.success() && goes_on, "{status}: {said}");
        assert!(said.contains("continues to run") && said.contains(" 0 lost"), "{said}");
        assert!(events.is_some() && events == events_later, "groups are on after it: {events:?}, {events_later:?}");
        let report = Command::new(&glass).args(["report", "--text", "--span", "upload"]).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&report.stdout);
        assert!(text.contains("span `upload`") && text.contains("bytes=50000"), "{report:?}");
        // The service read its disk before `glass` had found its trace.
        let report = Command::new(&glass).args(["report", "--text"]).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&report.stdout);
        assert!(text.contains("\n  disk 0 read "), "{report:?}");
    });
}

#[test]
fn a_vm_whose_console_nobody_reads_ends_quietly() {
    within(LIMIT, || {
        if let Some(reason) = World::Tcg.obstacle() {
            return programs::skip(reason);
        }
        let folder = Folder::new("live-console").unwrap();
        let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("upload-queue")) else { return };
        for (name, traced) in [("plain", ""), ("traced", "--trace")] {
            let (disk, recording) = (folder.file(&format!("{name}.img")), folder.file("a.pftrace"));
            // It prints more than a line when it starts.
            let line = format!(
                "{} run {} --accel tcg {traced} -o {} --disk {} --disk-size 64M | head -n 1; echo ${{PIPESTATUS[0]}}",
                glass.display(),
                image.display(),
                recording.display(),
                disk.display()
            );
            let mut shell = Process::spawn(Command::new("bash").args(["-c", &line]), &folder.file(name)).unwrap();
            shell.wait(PATIENCE).unwrap_or_else(|| panic!("it goes on: {}", shell.output()));
            let said = shell.output();
            assert!(said.contains("upload-queue: ") && said.ends_with("\n0\n"), "{said}");
            assert!(!said.contains("panicked") && !said.contains("QEMU ended"), "{said}");
            assert_eq!(recording.exists(), !traced.is_empty(), "{said}");
        }
    });
}

#[test]
fn a_command_that_is_no_service_is_told_and_ended() {
    within(LIMIT, || {
        let folder = Folder::new("live-other").unwrap();
        let Some(glass) = programs::built("glass") else { return };
        let file = folder.file("a.pftrace");
        for subcommand in ["trace", "tail"] {
            let mut command = Command::new(&glass);
            command.arg(subcommand);
            if subcommand == "trace" {
                command.arg("--output").arg(&file);
            }
            let mut process = Process::spawn(command.args(["--", "sleep", "1000"]), &folder.file("log")).unwrap();
            let begun = Instant::now();
            let pid = loop {
                if let Some(pid) = descendants(process.pid()).first() {
                    break *pid;
                }
                assert!(begun.elapsed() < PATIENCE && process.ended().is_none(), "{}", process.output());
                std::thread::sleep(Duration::from_millis(1));
            };
            let status = process.wait(PATIENCE).expect("glass gives up");
            let said = process.output();
            assert!(!status.success() && said.lines().count() == 1, "{status}: {said}");
            assert!(said.contains("keeps no trace") && said.contains("the command was killed"), "{said}");
            assert!(!is_alive(pid) && !file.exists(), "{said}");
        }
    });
}
