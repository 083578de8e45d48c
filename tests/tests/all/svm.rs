//! Guests of an ordinary KVM, sampled by `glass` beside them: our image and a Linux, in an emulated machine that is booted once for all cases.
//!
//! `GLASS_SVM_CASE=NAME` runs only the cases whose names contain a word, `GLASS_SVM_LOAD=N` runs them up to a load of N.

use glass_tests::emulated::{Failure, Machine};
use glass_tests::limit::{say, within};
use glass_tests::linux::{self, Stack};
use glass_tests::programs;
use glass_tests::stacks::{self, Piece, State, Track};
use glass_tests::svm::{Lab, Parts};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// All of it, twice; once takes 100 s on a quiet host.
const LIMIT: Duration = Duration::from_secs(900);
/// A host with more to do than this emulates too slowly.
const LOAD_MAX: u64 = 8;
/// How long a host may take until it has less to do.
const LOAD_PATIENCE: Duration = Duration::from_secs(60);
/// One script.
const SCRIPT: Duration = Duration::from_secs(90);
/// How long Linux may take to boot: 30 s on a quiet host.
const LINUX_PATIENCE: Duration = Duration::from_secs(180);
/// How long a guest may take to write another line, which it does each second.
const LINE_PATIENCE: Duration = Duration::from_secs(30);
/// Few enough that none is dropped: a pause takes milliseconds where everything is emulated.
const RATE: &str = "--rate 25";
/// How far the idle share of a vCPU may be from what the guest itself counts.
const IDLE_ERROR_PERCENT_MAX: f64 = 10.0;

/// What Linux prints when it has booted.
const BOOTED: &str = "LINUX READY";
/// What is reported of its QEMU's end.
const ENDED: &str = "QEMU ended";

/// A case and its name.
type Case = (&'static str, fn(&mut Guests));

const CASES: [Case; 4] = [
    ("a_service_of_two_cores", a_service_of_two_cores),
    ("a_linux_of_two_vcpus", a_linux_of_two_vcpus),
    ("killed_at_any_moment", killed_at_any_moment),
    ("paused_by_its_owner_while_it_is_recorded", paused_by_its_owner_while_it_is_recorded),
];

/// Starts what boots while the first case runs.
const START: Case = ("linux_starts", |guests| _ = guests.run("linux linux 2"));

/// Why the cases could not be judged, or nothing.
enum End {
    Judged,
    Panic(String),
    Silence(String),
}

#[test]
fn guests_of_an_ordinary_kvm() {
    within(LIMIT, || {
        let (Some(glass), Some(queue)) = (programs::built("glass"), programs::image("upload-queue")) else { return };
        let parts = match Parts::get() {
            Ok(parts) => parts,
            Err(error) => return programs::skip(&format!("{error:#}")),
        };
        let start = Instant::now();
        let load_max = programs::number("GLASS_SVM_LOAD", LOAD_MAX) as f64;
        while load() > load_max {
            if start.elapsed() > LOAD_PATIENCE {
                return programs::skip(&format!("the load of this machine is {}, more than {load_max}", load()));
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        let start = Instant::now();
        let mut end = run(&parts, &glass, &queue);
        if let End::Silence(reason) = &end {
            say(&format!("svm: {reason}; once more in a new machine"));
            end = run(&parts, &glass, &queue);
        }
        say(&format!("svm: {:.1} s in all", start.elapsed().as_secs_f64()));
        match end {
            End::Judged => {}
            End::Panic(reason) => programs::skip(&reason),
            End::Silence(reason) => panic!("twice: {reason}"),
        }
    });
}

/// How many processes run or wait for a CPU, on average over a minute.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Boots a machine and runs all cases in it.
///
/// # Panics
/// If cases fail and the machine is not to blame.
fn run(parts: &Parts, glass: &Path, queue: &Path) -> End {
    let lab = match Lab::boot(parts, glass.parent().unwrap()) {
        Ok(lab) => lab,
        Err(error) => {
            let reason = format!("{error:#}");
            return if reason.contains("Kernel panic") { End::Panic(reason) } else { End::Silence(reason) };
        }
    };
    let mut guests = Guests { lab, glass: glass.to_owned(), queue: queue.to_owned() };
    let only = std::env::var("GLASS_SVM_CASE").unwrap_or_default();
    let mut failed = Vec::new();
    for (name, case) in [START].into_iter().chain(CASES.into_iter().filter(|(name, _)| name.contains(&only))) {
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| case(&mut guests)));
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        say(&format!("svm {name}: {verdict}, {:.1} s", start.elapsed().as_secs_f64()));
        if let Err(panic) = result {
            let message = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            say(&format!("svm {name}: {}", message.unwrap_or("a panic without a message")));
            failed.push(name);
            match guests.lab.machine.failure() {
                Some(failure @ Failure::Panic(_)) => return End::Panic(failure.to_string()),
                Some(failure @ Failure::Silence(_)) => return End::Silence(failure.to_string()),
                // Nothing has stopped or read it before.
                None if guests.linux_has_not_booted() => {
                    return End::Silence(format!("Linux has ended while it booted: {}", guests.about_linux()));
                }
                None => {}
            }
        }
    }
    assert!(failed.is_empty(), "these cases failed: {failed:?}");
    End::Judged
}

struct Guests {
    lab: Lab,
    /// `glass`, which reads recordings on this machine.
    glass: PathBuf,
    queue: PathBuf,
}

impl Guests {
    fn run(&mut self, script: &str) -> String {
        self.lab.run(script, SCRIPT).unwrap()
    }

    /// `glass` of this machine.
    fn glass(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.glass).args(arguments).current_dir(self.lab.folder()).output().unwrap();
        assert!(output.status.success(), "glass {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `glass record` in the lab; returns the tracks.
    fn record(&mut self, name: &str, options: &str) -> Vec<Track> {
        self.run(&format!("glass record {options} {RATE} --output $shared/{name}.pftrace"));
        self.tracks(name)
    }

    /// The tracks of a recording in the shared folder.
    fn tracks(&self, name: &str) -> Vec<Track> {
        let file = format!("{name}.pftrace");
        let text = self.glass(&["export", &file, "--format", "speedscope", "--states", "all", "--output", "-"]);
        let tracks = stacks::parse(&text).unwrap();
        for track in &tracks {
            let shares = [State::Running, State::Spinning, State::Idle, State::Paused];
            let shares = shares.map(|state| format!("{state:?} {:.1} %", track.percent_in(state)));
            say(&format!("svm {name}: {}: {}", track.name, shares.join(", ")));
        }
        tracks
    }

    /// `glass ps` lists a VM of two vCPUs, which it would sample by KVM.
    fn assert_is_listed(&mut self, name: &str) {
        let table = self.run("glass ps; glass ps --json >$shared/ps.json");
        say(&table);
        let listed: serde_json::Value = serde_json::from_str(&self.lab.text("ps.json")).unwrap();
        let vm = listed["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == name);
        let vm = vm.unwrap_or_else(|| panic!("no {name}: {listed}"));
        assert_eq!((&vm["backend"], &vm["accel"], &vm["vcpus"]), (&"kvm".into(), &"kvm".into(), &2.into()), "{vm}");
    }

    /// Waits until Linux has booted.
    fn wait_for_linux(&mut self) {
        self.wait_for_linux_to_print(BOOTED, LINUX_PATIENCE);
        // The line before it is whole.
        self.wait_for_linux_to_print("SECOND 2 ", LINE_PATIENCE);
    }

    /// Waits until Linux has printed a text. It must not end.
    fn wait_for_linux_to_print(&mut self, text: &str, limit: Duration) {
        let (log, end) = (self.lab.file("linux.log"), self.lab.file("linux.end"));
        let has = |file: &Path, text: &str| {
            std::fs::read(file).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
        };
        let is_judged = |_: &Machine| has(&log, text) || has(&end, ENDED);
        let waited = self.lab.machine.wait_until(&format!("Linux has printed {text:?}"), limit, is_judged);
        waited.unwrap_or_else(|error| panic!("{error:#}\n{}", self.about_linux()));
        assert!(has(&log, text), "Linux has ended: {}", self.about_linux());
    }

    fn linux_has_not_booted(&self) -> bool {
        self.lab.text("linux.end").contains(ENDED) && !self.lab.text("linux.log").contains(BOOTED)
    }

    /// What its QEMU reports, and what it has printed.
    fn about_linux(&self) -> String {
        format!("{}{}", self.lab.text("linux.end"), self.lab.text("linux.log"))
    }

    /// The second of the last whole line of Linux, and the words behind it.
    fn last_line(&self) -> (u64, Vec<u64>) {
        let text = self.lab.text("linux.log");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let line = whole.lines().rev().find_map(|line| line.strip_prefix("SECOND ")).unwrap_or_default();
        let mut words = line.split_whitespace();
        let second = words.next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{text}"));
        (second, words.skip(1).filter_map(|word| word.parse().ok()).collect())
    }

    /// Waits for a line of Linux that is written from now on, and returns it.
    fn next_line(&mut self) -> Vec<u64> {
        // A line that is being written is not counted as one of now.
        let next = self.last_line().0 + 2;
        self.wait_for_linux_to_print(&format!("SECOND {next} "), LINE_PATIENCE);
        loop {
            let (second, times) = self.last_line();
            if second >= next {
                return times;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// No thread of Linux's VM is traced, and it runs.
    fn assert_linux_is_released(&mut self) {
        let traced = "grep -h TracerPid: /proc/$(cat linux.pid)/task/*/status";
        self.run(&format!(
            "untraced() {{ [ $({traced} | wc -l) -gt 2 ] && ! {traced} | grep -qv '[[:space:]]0$'; }}
            wait_for 20 'all threads are released' untraced || {{ {traced}; exit 1; }}"
        ));
        self.next_line();
    }
}

/// Our service with two cores is found, serves, is idle when it has nothing to do, and is traced.
fn a_service_of_two_cores(guests: &mut Guests) {
    let run = format!(
        "setsid glass run {} --accel kvm --cores 2 --memory 32 --disk queue.img --disk-size 16M --port 8080:8080 -- --port 8080 >$shared/queue.log 2>&1 </dev/null &
        echo $! >queue.pid",
        guests.queue.display()
    );
    guests.run(&run);
    guests.lab.wait_for_text("queue.log", "listening", SCRIPT).unwrap();
    guests.run(
        "head -c 100000 /dev/urandom >item
        curl -sS --fail --max-time 60 -T item http://127.0.0.1:8080/uploader
        curl -sS --fail --max-time 60 -o back http://127.0.0.1:8080/downloader
        cmp item back",
    );
    guests.assert_is_listed("upload-queue");
    let tracks = guests.record("idle", "--name upload-queue --duration 4");
    assert_eq!(tracks.len(), 2, "{tracks:?}");
    for track in &tracks {
        assert!(track.percent_in(State::Idle) > 80.0, "{track:?}");
        for piece in track.known() {
            assert_eq!(piece.broken, None, "{piece:?}");
            let root = piece.functions.last().map_or("", String::as_str);
            assert!(root.starts_with("glass_start") || root == "glass_core_start", "{piece:?}");
        }
    }

    guests.run(
        "glass trace --name upload-queue --duration 6 --output $shared/traced.pftrace >trace.log 2>&1 & tracer=$!
        wait_for 40 'glass traces' grep -q tracing trace.log
        curl -sS --fail --max-time 60 -T item http://127.0.0.1:8080/uploader
        wait $tracer || { cat trace.log; exit 1; }",
    );
    let info: serde_json::Value = serde_json::from_str(&guests.glass(&["info", "traced.pftrace", "--json"])).unwrap();
    say(&format!("svm traced: {}", info["trace"]));
    let path = guests.glass(&["report", "traced.pftrace", "--text", "--view", "path", "--span", "upload"]);
    assert!(path.contains("upload"), "{path}");
    guests.run("kill $(cat queue.pid); gone() { ! kill -0 $(cat queue.pid); }; wait_for 40 'the queue has ended' gone");
    assert!(guests.lab.text("queue.log").contains("upload-queue: ended"), "{}", guests.lab.text("queue.log"));
}

/// Linux under KVM halts a vCPU that waits for a spinlock, until its holder, whose vCPU does not run just now, has released it. For `glass` that is
/// idle, for Linux it is not.
fn waits_for_a_lock(piece: &Piece) -> bool {
    piece.state == State::Idle && piece.functions.iter().any(|name| name == "kvm_wait")
}

/// Linux by the list of its symbols alone: the stacks of a vCPU that always computes, and the idle share of one that waits.
fn a_linux_of_two_vcpus(guests: &mut Guests) {
    guests.wait_for_linux();
    guests.assert_is_listed("linux");
    // What Linux counts while it is sampled, not while `glass` attaches.
    guests.run(&format!(
        "{{
            glass record --pid $(cat linux.pid) --symbols kallsyms {RATE} --duration 10 --output $shared/linux.pftrace || echo failed
            echo recorded
        }} >$shared/record.log 2>&1 &"
    ));
    guests.lab.wait_for_text("record.log", "sampling", SCRIPT).unwrap();
    let before = guests.last_line().1;
    guests.lab.wait_for_text("record.log", "recorded", SCRIPT).unwrap();
    let after = guests.last_line().1;
    assert!(!guests.lab.text("record.log").contains("failed"), "{}", guests.lab.text("record.log"));
    let tracks = guests.tracks("linux");
    assert_eq!(tracks.len(), 2, "{tracks:?}");
    let [busy, waiting] = &tracks[..] else { panic!("{tracks:?}") };
    let idle: Vec<_> = busy.known().filter(|piece| piece.state != State::Running && !waits_for_a_lock(piece)).collect();
    assert!(idle.is_empty() && busy.ns_in(State::Running) > 0, "vCPU 0 computes all the time: {idle:?}");
    let stack =
        |piece: &Piece| Stack { functions: piece.functions.clone(), broken: piece.broken.clone(), weight: piece.ns };
    linux::check(&busy.known().map(stack).collect::<Vec<_>>());
    // user nice system idle iowait irq softirq steal, in ticks (proc_stat(5)).
    let times: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).take(8).collect();
    let all = times.iter().sum::<u64>() as f64 / 100.0;
    let idle = (times[3] + times[4]) as f64 / all;
    // Woken and waiting for a CPU of the host it is idle for `glass`, which sees it at its `hlt`, and stolen from for Linux.
    let idle = idle - IDLE_ERROR_PERCENT_MAX..=idle + times[7] as f64 / all + IDLE_ERROR_PERCENT_MAX;
    let locked: u64 = waiting.known().filter(|piece| waits_for_a_lock(piece)).map(|piece| piece.ns).sum();
    let known: u64 = waiting.known().map(|piece| piece.ns).sum();
    let shown = (waiting.ns_in(State::Idle) - locked) as f64 * 100.0 / known as f64;
    say(&format!("svm linux: vCPU 1 is idle for {shown:.1} % of the time, Linux counts {times:?}"));
    assert!(idle.contains(&shown), "{shown:.1} % idle, and not in {idle:.1?}: {times:?}");
    for piece in waiting.known().filter(|piece| piece.state == State::Idle && !waits_for_a_lock(piece)) {
        assert!(piece.functions.iter().any(|name| name == "do_idle"), "{piece:?}");
    }
    guests.assert_linux_is_released();
}

/// `glass` is killed while it samples: every thread of the VM is released, and the guest runs.
fn killed_at_any_moment(guests: &mut Guests) {
    guests.wait_for_linux();
    for kill in ["0.2", "1.1", "2.3"] {
        guests.run(&format!(
            "glass record --pid $(cat linux.pid) --symbols kallsyms --rate 60 --output killed.pftrace >killed.log 2>&1 & recorder=$!
            wait_for 40 'glass samples' grep -q sampling killed.log || {{ cat killed.log; exit 1; }}
            sleep {kill}
            kill -9 $recorder
            code=0
            wait $recorder || code=$?
            [ $code = 137 ]"
        ));
        guests.assert_linux_is_released();
    }
}

/// What its owner pauses is shown as paused for as long as it is, and continues when its owner wants.
fn paused_by_its_owner_while_it_is_recorded(guests: &mut Guests) {
    guests.wait_for_linux();
    guests.run(&format!(
        "glass record --pid $(cat linux.pid) --symbols kallsyms {RATE} --duration 9 --output $shared/paused.pftrace >paused.log 2>&1 & recorder=$!
        wait_for 40 'glass samples' grep -q sampling paused.log || {{ cat paused.log; exit 1; }}
        sleep 2.5
        monitor linux stop
        sleep 3
        monitor linux cont
        wait $recorder || {{ cat paused.log; exit 1; }}"
    ));
    let tracks = guests.tracks("paused");
    assert_eq!(tracks.len(), 2, "{tracks:?}");
    for track in &tracks {
        let paused_s = Duration::from_nanos(track.ns_in(State::Paused)).as_secs_f64();
        assert!((1.5..5.0).contains(&paused_s), "{} is shown as paused for {paused_s:.2} s of 3", track.name);
        let between = track.between(State::Paused);
        let other = between.iter().find(|piece| ![State::Paused, State::Unknown].contains(&piece.state));
        assert!(other.is_none(), "{} is not paused all the time: {between:?}", track.name);
    }
    assert!(tracks[0].ns_in(State::Running) > 2_000_000_000, "{:?}", tracks[0]);
    guests.assert_linux_is_released();
}
