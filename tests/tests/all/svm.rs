//! Guests of an ordinary KVM, sampled by `glass` beside them: our image and a Linux, in an emulated machine that is booted once for all cases.
//! With full sizes there are more machines, see `long`.
//!
//! `GLASS_SVM_CASE=WORD` runs only the cases whose names contain a word, `GLASS_SVM_LOAD=N` runs them up to a load of N.

mod guests;
mod long;
mod perf;

use glass_tests::emulated::Failure;
use glass_tests::limit::{say, within};
use glass_tests::linux::{self, Stack};
use glass_tests::programs;
use glass_tests::stacks::{Piece, State, Track};
use glass_tests::svm::{Lab, Parts, Processor};
use guests::{Counted, Guests, RATE, SCRIPT};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// All of it, twice; once takes 100 s on a quiet host.
const LIMIT: Duration = Duration::from_secs(900);
/// With full sizes.
const LIMIT_LONG: Duration = Duration::from_secs(5400);
/// A host with more to do than this emulates too slowly.
const LOAD_MAX: u64 = 8;
/// How long a host may take until it has less to do.
const LOAD_PATIENCE: Duration = Duration::from_secs(480);
/// How far the idle share of a vCPU may be from what the guest itself counts.
const IDLE_ERROR_PERCENT_MAX: f64 = 10.0;
/// Set where a reason to skip is a failure.
const REQUIRED_VARIABLE: &str = "GLASS_SVM_REQUIRED";

/// A case and its name.
type Case = (&'static str, fn(&mut Guests));

/// A machine, and the cases that run in it.
struct Plan {
    /// The first word of its cases' names.
    name: &'static str,
    processor: Processor,
    /// A script that starts the Linux guest.
    start: &'static str,
    cases: &'static [Case],
}

const PLAN: Plan = Plan {
    name: "svm",
    processor: Processor::FourLevels,
    start: "linux linux 2",
    // Not beside each other: QEMU 7.2 resets a Linux that boots beside another guest in four of ten boots.
    cases: &[
        ("a_linux_of_two_vcpus", a_linux_of_two_vcpus),
        ("killed_at_any_moment", killed_at_any_moment),
        ("paused_by_its_owner_while_it_is_recorded", paused_by_its_owner_while_it_is_recorded),
        ("a_service_of_two_cores", a_service_of_two_cores),
    ],
};

/// How a machine with cases ended.
enum End {
    Judged {
        /// The names of the cases that failed.
        failed: Vec<String>,
    },
    /// The machine failed: its kernel has printed this panic.
    Panic(String),
    /// The machine failed without a printed reason.
    Silence(String),
}

#[test]
fn guests_of_an_ordinary_kvm() {
    let is_long = programs::is_long();
    within(if is_long { LIMIT_LONG } else { LIMIT }, move || {
        let (Some(glass), Some(queue)) = (programs::built("glass"), programs::image("upload-queue")) else { return };
        let parts = match Parts::get() {
            Ok(parts) => parts,
            Err(error) => return skip(&format!("{error:#}")),
        };
        let start = Instant::now();
        let load_max = programs::number("GLASS_SVM_LOAD", LOAD_MAX) as f64;
        while load() > load_max {
            if start.elapsed() > LOAD_PATIENCE {
                return skip(&format!("the load of this machine is {}, more than {load_max}", load()));
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        let mut failed = Vec::new();
        let mut panics = Vec::new();
        for plan in [PLAN].iter().chain(if is_long { long::PLANS } else { &[] }) {
            let start = Instant::now();
            // A second machine decides.
            let mut end = run(plan, &parts, &glass, &queue);
            if let End::Silence(reason) | End::Panic(reason) = &end {
                say(&format!("{}: {reason}; once more in a new machine", plan.name));
                end = run(plan, &parts, &glass, &queue);
            }
            say(&format!("{}: {:.1} s in all", plan.name, start.elapsed().as_secs_f64()));
            match end {
                End::Judged { failed: cases } => failed.extend(cases),
                End::Panic(reason) => panics.push(format!("{}: {reason}", plan.name)),
                End::Silence(reason) => failed.push(format!("{}, twice: {reason}", plan.name)),
            }
        }
        assert!(failed.is_empty(), "these cases failed: {failed:#?}");
        if !panics.is_empty() {
            skip(&panics.join("; "));
        }
    });
}

/// The test could not be made, which is a failure where it is required.
fn skip(reason: &str) {
    assert!(std::env::var_os(REQUIRED_VARIABLE).is_none(), "cannot be skipped here: {reason}");
    programs::skip(reason);
}

/// How many processes run or wait for a CPU, on average over a minute.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Boots a machine and runs its cases in it.
fn run(plan: &Plan, parts: &Parts, glass: &Path, queue: &Path) -> End {
    let word = std::env::var("GLASS_SVM_CASE").unwrap_or_default();
    let named = plan.cases.iter().map(|(name, case)| (format!("{}::{name}", plan.name), case));
    let chosen: Vec<_> = named.filter(|(name, _)| name.contains(&word)).collect();
    let mut failed = Vec::new();
    if chosen.is_empty() {
        return End::Judged { failed };
    }
    let lab = match Lab::boot(parts, glass.parent().unwrap(), plan.processor) {
        Ok(lab) => lab,
        Err(error) => {
            let reason = format!("{error:#}");
            return if reason.contains("Kernel panic") { End::Panic(reason) } else { End::Silence(reason) };
        }
    };
    let mut guests = Guests { lab, glass: glass.to_owned(), queue: queue.to_owned(), start: plan.start };
    if let Err(error) = guests.lab.run(plan.start, SCRIPT) {
        return guests.end().unwrap_or(End::Judged { failed: vec![format!("{}: {error:#}", plan.name)] });
    }
    for (name, case) in chosen {
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| case(&mut guests)));
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        say(&format!("{name}: {verdict}, {:.1} s", start.elapsed().as_secs_f64()));
        if let Err(panic) = result {
            let message = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            say(&format!("{name}: {}", message.unwrap_or("a panic without a message")));
            say(&guests.about_linux());
            if let Some(end) = guests.end() {
                return end;
            }
            failed.push(name);
        }
    }
    End::Judged { failed }
}

impl Guests {
    /// Why nothing that failed is to be judged, if the machine failed.
    fn end(&mut self) -> Option<End> {
        match self.lab.machine.failure() {
            Some(failure @ Failure::Panic(_)) => Some(End::Panic(failure.to_string())),
            Some(failure @ Failure::Silence(_)) => Some(End::Silence(failure.to_string())),
            // QEMU's emulation resets a Linux now and then, before anything has stopped it too. If `glass` ended it, it ends in a second machine too.
            None => self.linux_has_ended().then(|| End::Silence(format!("Linux has ended: {}", self.about_linux()))),
        }
    }
}

/// Our service with two cores is found, serves, is idle when it has nothing to do, and is traced.
fn a_service_of_two_cores(guests: &mut Guests) {
    guests.end_linux();
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
    let (tracks, counted) = guests.record_beside_linux("linux", "--symbols kallsyms --duration 10");
    let [busy, waiting] = &tracks[..] else { panic!("{tracks:?}") };
    // The host may not run it, or handle an exit of it.
    let is_idle = |piece: &&Piece| !matches!(piece.state, State::Running | State::Stolen | State::InVmm);
    let idle: Vec<_> = busy.known().filter(is_idle).filter(|piece| !waits_for_a_lock(piece)).collect();
    assert!(idle.is_empty() && busy.ns_in(State::Running) > 0, "vCPU 0 computes all the time: {idle:?}");
    linux::check(&busy.known().map(stack).collect::<Vec<_>>());
    assert_is_idle_as_counted(waiting, &counted, IDLE_ERROR_PERCENT_MAX);
    for piece in waiting.known().filter(|piece| piece.state == State::Idle && !waits_for_a_lock(piece)) {
        assert!(piece.functions.iter().any(|name| name == "do_idle"), "{piece:?}");
    }
    guests.assert_linux_is_released();
}

fn stack(piece: &Piece) -> Stack {
    Stack { functions: piece.functions.clone(), broken: piece.broken.clone(), weight: piece.ns }.of_kernel()
}

/// A vCPU is shown as idle for as long as Linux counts, within some points. At its `hlt`, woken and waiting for a CPU of the host, or while the host
/// handles the exit, Linux may count it as idle or as stolen from.
fn assert_is_idle_as_counted(track: &Track, counted: &Counted, error_percent_max: f64) {
    let known: u64 = track.known().map(|piece| piece.ns).sum();
    let percent = |is_meant: &dyn Fn(&Piece) -> bool| {
        let ns: u64 = track.known().filter(|piece| is_meant(piece)).map(|piece| piece.ns).sum();
        ns as f64 * 100.0 / known as f64
    };
    let is_idling = |piece: &Piece| piece.functions.iter().any(|name| name == "do_idle");
    let idle = percent(&|piece| piece.state == State::Idle && !waits_for_a_lock(piece));
    let either = percent(&|piece| matches!(piece.state, State::Stolen | State::InVmm) && is_idling(piece));
    say(&format!(
        "{} is idle for {idle:.1} % of the time, and stopped by the host there for {either:.1} %; Linux: {counted:.1?}",
        track.name
    ));
    let is_as_counted =
        idle <= counted.idle + counted.stolen + error_percent_max && idle + either >= counted.idle - error_percent_max;
    assert!(is_as_counted, "{idle:.1} to {:.1} % idle, and Linux counts {counted:.1?}", idle + either);
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
