//! Our services as domains of Xen, reached from dom0: one machine is booted for all cases.
//!
//! `GLASS_XEN_CASE=NAME` runs only the cases whose names contain a word.

use crate::record::{judge, load_until};
use crate::{crash, hostile, memory, service};
use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World, in_domains};
use glass_tests::xen::{self, SHARED};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// All cases together; they take two minutes, with --long twenty-five.
const LIMIT: Duration = Duration::from_secs(3600);
/// One script in dom0.
const SCRIPT: Duration = Duration::from_secs(480);
const IMAGES: [&str; 3] = ["upload-queue", "faults", "bench-disk"];

/// Destructions of a domain during uploads.
const DESTROYED: u64 = 2;
const DESTROYED_LONG: u64 = 20;

type Machine = Arc<Mutex<xen::World>>;
/// A case: its name, and whether it runs without --long too.
type Case = (&'static str, fn(&Machine), bool);

const CASES: [Case; 5] = [
    ("service_is_shut_down", shuts_down, true),
    ("service_crash_is_reported", crash_is_reported, true),
    ("service_moves_requests_of_any_size", moves_requests_of_any_size, true),
    ("service_without_devices", without_devices, true),
    ("service_under_load_is_profiled", is_profiled, false),
];

/// A test of the other platforms, whose queue is a domain here.
type Common = (&'static str, fn(World), bool);

const OF_ALL_PLATFORMS: [Common; 14] = [
    ("items_come_out_whole_and_in_order", service::items_come_out_whole_and_in_order, true),
    ("a_foreign_client_uploads_and_downloads", service::a_foreign_client_uploads_and_downloads, false),
    ("each_wrong_request_has_its_answer", service::each_wrong_request_has_its_answer, false),
    ("a_download_waits_for_an_upload", service::a_download_waits_for_an_upload, false),
    ("items_survive_a_restart", service::items_survive_a_restart, false),
    ("a_full_disk_is_told_and_drains", service::a_full_disk_is_told_and_drains, false),
    ("nothing_acknowledged_is_lost", nothing_acknowledged_is_lost, true),
    ("malformed_requests_are_refused", hostile::malformed_requests_are_refused, false),
    ("random_bytes_do_no_harm", hostile::random_bytes_do_no_harm, false),
    ("clients_that_vanish_leave_no_trace", hostile::clients_that_vanish_leave_no_trace, false),
    ("slow_clients_do_not_hold_up_others", hostile::slow_clients_do_not_hold_up_others, false),
    ("one_client_that_announces_and_stalls", hostile::one_client_that_announces_and_stalls_shuts_nobody_out, false),
    ("a_body_may_be_larger_than_memory", memory::a_body_may_be_larger_than_memory, true),
    // With larger bodies this machine takes so long that the queue refuses the clients that wait.
    ("many_large_bodies_at_once", |world| memory::many_bodies_at_once(world, 2), false),
];

#[test]
fn services_on_xen() {
    within(LIMIT, || {
        let images: Vec<_> = IMAGES.into_iter().filter_map(programs::image).collect();
        if images.len() < IMAGES.len() {
            return;
        }
        let machine = match xen::World::boot_with_card() {
            Ok(machine) => machine,
            Err(error) => return programs::skip(&format!("{error:#}")),
        };
        images.iter().for_each(|image| _ = machine.bring(image).unwrap());
        let machine = Arc::new(Mutex::new(machine));
        let only = std::env::var("GLASS_XEN_CASE");
        let is_chosen = |name: &str, is_usual: bool| match &only {
            Ok(word) => name.contains(word),
            Err(_) => is_usual || programs::is_long(),
        };
        let own = CASES.iter().filter(|(name, _, is_usual)| is_chosen(name, *is_usual));
        let mut failed: Vec<_> = own
            .filter(|(name, case, _)| !succeeds(&machine, name, || case(&machine)))
            .map(|(name, ..)| *name)
            .collect();
        let others = OF_ALL_PLATFORMS.iter().filter(|(name, _, is_usual)| is_chosen(name, *is_usual));
        failed.extend(
            others.filter(|(name, test, _)| !succeeds(&machine, name, || test(World::Tcg))).map(|(name, ..)| *name),
        );
        // A case that failed may have poisoned the lock.
        Arc::into_inner(machine)
            .expect("all queues have ended")
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .power_off()
            .unwrap();
        assert!(failed.is_empty(), "these cases failed: {failed:?}");
    });
}

/// Runs a case, reports it, and leaves no domain behind.
fn succeeds(machine: &Machine, name: &str, case: impl FnOnce()) -> bool {
    let begin = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| in_domains(machine, case)));
    let verdict = if result.is_ok() { "ok" } else { "FAILED" };
    say(&format!("xen {name}: {verdict}, {:.1} s", begin.elapsed().as_secs_f64()));
    if result.is_err() {
        dom0(machine).run("xl destroy service", SCRIPT).unwrap();
    }
    result.is_ok()
}

/// `xl destroy` instead of `kill -9`.
fn nothing_acknowledged_is_lost(world: World) {
    crash::nothing_acknowledged_is_lost(world, if programs::is_long() { DESTROYED_LONG } else { DESTROYED });
}

const DISK: &str = "disk = [\"phy:/dev/loop0,xvda,w\"]\n";

fn dom0(machine: &Machine) -> MutexGuard<'_, xen::World> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts an image as the domain `service`, with these devices and command line.
fn start(machine: &Machine, image: &str, devices: &str, line: &str) {
    dom0(machine).start_service(image, 64, devices, line).unwrap();
}

/// Waits for the end of the domain, of which `xl` reports this code. Returns what it has printed.
fn end(machine: &Machine, code: u32) -> String {
    let (log, reports) = dom0(machine).end_of_service().unwrap();
    assert!(reports.contains(&format!("reason code {code}")), "{reports}");
    log
}

/// A service ends by `xl shutdown` as by SIGTERM, and what it has accepted is there afterwards.
fn shuts_down(machine: &Machine) {
    let folder = Folder::new("xen-shutdown").unwrap();
    // More than a frame, an indirect request and the receive window.
    let item = Content { seed: 5, length_bytes: 3_000_000 };
    let start = || {
        let queue = Queue::start(World::Tcg, &folder.file("queue.img"), &Options::default()).unwrap();
        queue.expect("a domain starts or that is an error")
    };
    let mut queue = start();
    assert_eq!(queue.put(item).unwrap().status(), 200);
    dom0(machine).expect("xl shutdown service", SCRIPT).unwrap();
    let log = end(machine, 0);
    assert!(log.contains("upload-queue: ended"), "{log}");
    queue.kill();
    let queue = start();
    assert!(queue.output().contains("1 items recovered"), "{}", queue.output());
    queue.take(item).unwrap();
}

/// `glass` in dom0 records the queue while the host uses it. The domain and dom0 share one CPU here, so most samples are taken while the domain
/// waits: their stacks have the loop that waits.
fn is_profiled(machine: &Machine) {
    let (Some(in_dom0), Some(glass)) = (programs::built_static("glass", false), programs::built("glass")) else {
        return;
    };
    let folder = Folder::new("xen-profiled").unwrap();
    let queue = Queue::start(World::Tcg, &folder.file("queue.img"), &Options::default()).unwrap();
    let queue = queue.expect("a domain starts or that is an error");
    let shared = dom0(machine).folder().to_owned();
    dom0(machine).bring(&in_dom0).unwrap();
    let record = format!(
        "{SHARED}/glass record --domain service --symbols {SHARED}/upload-queue --duration 20 --output {SHARED}/profiled.pftrace"
    );
    let recorder = std::thread::scope(|scope| {
        let recorder = scope.spawn(|| dom0(machine).expect(&record, SCRIPT).unwrap());
        let moved = load_until(&queue, 1_000_000, || recorder.is_finished());
        recorder.join().map(|said| (moved, said))
    });
    let (moved, said) = recorder.unwrap();
    let recording = folder.file("profiled.pftrace");
    std::fs::rename(shared.join("profiled.pftrace"), &recording).unwrap();
    let broken = judge(&glass, &recording, &["glass_start", "glass_platform_vm::run::run"]);
    say(&format!("record xen: {moved} items moved meanwhile, {broken} % of the stacks broken\n{said}"));
}

/// A panic is in the log of dom0 with its message and call chain, and `xl` reports a crash.
fn crash_is_reported(machine: &Machine) {
    start(machine, "faults", "", "-- panic");
    let log = end(machine, 3);
    assert!(log.contains("PANIC at apps/faults") && log.contains("call chain:\n  #0 0x"), "{log}");
}

/// Requests with few and with many segments, through grants that stay.
fn moves_requests_of_any_size(machine: &Machine) {
    // A disk is a file in the memory of dom0.
    let disk = "truncate -s 48M /tmp/disk && losetup /dev/loop0 /tmp/disk";
    dom0(machine).expect(disk, SCRIPT).unwrap();
    for direction in ["write", "read"] {
        let line = format!("-- --direction {direction} --bytes 4K,44K,1M --in-flight 16 --milliseconds 200");
        start(machine, "bench-disk", DISK, &line);
        let log = end(machine, 0);
        assert!(log.lines().filter(|line| line.contains("mb_s")).count() == 3 && !log.contains("error"), "{log}");
    }
    let messages = dom0(machine).expect("dmesg", SCRIPT).unwrap();
    assert!(messages.contains("persistent grants"), "{messages}");
}

/// What a service lacks is a sentence, and an end in order.
fn without_devices(machine: &Machine) {
    start(machine, "upload-queue", "", "-- ");
    let log = end(machine, 0);
    assert!(log.contains("error: "), "{log}");
}
