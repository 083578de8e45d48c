//! Our services as domains of Xen, reached from dom0: one machine is booted for all cases.
//!
//! `GLASS_XEN_CASE=NAME` runs only the cases whose names contain a word.

use glass_tests::limit::{say, within};
use glass_tests::programs;
use glass_tests::xen::{SHARED, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// All cases together; they take less than a minute.
const LIMIT: Duration = Duration::from_secs(900);
/// One script in dom0.
const SCRIPT: Duration = Duration::from_secs(120);
const IMAGES: [&str; 3] = ["upload-queue", "faults", "bench-disk"];

/// A case and its name.
type Case = (&'static str, fn(&mut World));

const CASES: [Case; 4] = [
    ("service_keeps_uploads", keeps_uploads),
    ("service_crash_is_reported", crash_is_reported),
    ("service_moves_requests_of_any_size", moves_requests_of_any_size),
    ("service_without_devices", without_devices),
];

#[test]
fn services_on_xen() {
    within(LIMIT, || {
        let images: Vec<_> = IMAGES.into_iter().filter_map(programs::image).collect();
        if images.len() < IMAGES.len() {
            return;
        }
        let mut world = match World::boot() {
            Ok(world) => world,
            Err(error) => return programs::skip(&format!("{error:#}")),
        };
        images.iter().for_each(|image| _ = world.bring(image).unwrap());
        // A disk is a file in the memory of dom0.
        let disk = "truncate -s 48M /tmp/disk && losetup /dev/loop0 /tmp/disk";
        world.expect(disk, SCRIPT).unwrap();
        let only = std::env::var("GLASS_XEN_CASE").unwrap_or_default();
        let mut failed = Vec::new();
        for (name, case) in CASES.into_iter().filter(|(name, _)| name.contains(&only)) {
            let begin = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| case(&mut world)));
            let verdict = if result.is_ok() { "ok" } else { "FAILED" };
            say(&format!("xen {name}: {verdict}, {:.1} s", begin.elapsed().as_secs_f64()));
            if result.is_err() {
                failed.push(name);
                world.run("xl destroy service", SCRIPT).unwrap();
            }
        }
        world.power_off().unwrap();
        assert!(failed.is_empty(), "these cases failed: {failed:?}");
    });
}

/// Where dom0 has what the service prints.
const LOG: &str = "/var/log/xen/guest-service.log";
const DISK: &str = "disk = [\"phy:/dev/loop0,xvda,w\"]\n";
const CARD: &str = "vif = [\"mac=00:16:3e:01:02:03\"]\n";

/// Starts an image as the domain `service`, with these devices and command line.
fn start(world: &mut World, image: &str, devices: &str, line: &str) {
    let configuration = format!(
        "name = \"service\"\ntype = \"pvh\"\nkernel = \"{SHARED}/{image}\"\nmemory = 64\nvcpus = 2\ntsc_mode = \"native\"\non_poweroff = \"destroy\"\non_crash = \"destroy\"\n{devices}extra = \"{line}\"\n"
    );
    std::fs::write(world.folder().join("service.cfg"), configuration).unwrap();
    world.expect(&format!("rm -f {LOG}; xl create -q {SHARED}/service.cfg"), SCRIPT).unwrap();
}

/// Waits until the log has a text.
fn wait_for(world: &mut World, text: &str) -> String {
    let looks =
        format!("n=0; until grep -q '{text}' {LOG} || [ $n = 600 ]; do n=$((n+1)); usleep 100000; done; cat {LOG}");
    let log = world.expect(&looks, SCRIPT).unwrap();
    assert!(log.contains(text), "{text:?} is not in: {log}");
    log
}

/// Waits until the domain is gone. Returns what it has printed, and what `xl` reports of its end.
fn wait_for_end(world: &mut World) -> (String, String) {
    let gone =
        "n=0; while xl domid service >/dev/null 2>&1; do n=$((n+1)); [ $n != 300 ] || exit 1; usleep 100000; done";
    let waited = world.run(gone, SCRIPT).unwrap();
    if waited.code != 0 {
        let state = world.run(&format!("xl vcpu-list service; cat {LOG}; dmesg | tail -n 5"), SCRIPT).unwrap();
        panic!("the service does not end: {}", state.output);
    }
    let read = |world: &mut World, file: &str| world.expect(&format!("cat {file}"), SCRIPT).unwrap();
    (read(world, LOG), read(world, "/var/log/xen/xl-service.log"))
}

fn ended_with(reports: &str, code: u32) {
    assert!(reports.contains(&format!("reason code {code}")), "{reports}");
}

/// An upload survives `xl shutdown` and, what was acknowledged, `xl destroy`; the service ends as by SIGTERM.
fn keeps_uploads(world: &mut World) {
    const LINE: &str = "ip=10.99.0.2/24 -- --format";
    start(world, "upload-queue", &format!("{DISK}{CARD}"), LINE);
    wait_for(world, "listening on");
    // More than a frame, an indirect request and the receive window.
    let bytes = 3_000_000;
    let head =
        format!("PUT /uploader HTTP/1.1\\r\\nHost: q\\r\\nContent-Length: {bytes}\\r\\nConnection: close\\r\\n\\r\\n");
    let put = format!("head -c {bytes} /dev/urandom >/tmp/body; (printf '{head}'; cat /tmp/body) | nc 10.99.0.2 8080");
    let answer = world.expect(&put, SCRIPT).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    world.expect("xl destroy service", SCRIPT).unwrap();
    start(world, "upload-queue", &format!("{DISK}{CARD}"), "ip=10.99.0.2/24 -- ");
    let log = wait_for(world, "listening on");
    assert!(log.contains("1 items recovered"), "{log}");
    let get = "wget -q -O /tmp/back http://10.99.0.2:8080/downloader && cmp /tmp/body /tmp/back";
    world.expect(get, SCRIPT).unwrap();
    world.expect("xl shutdown -w service", SCRIPT).unwrap();
    let (log, reports) = wait_for_end(world);
    assert!(log.contains("upload-queue: ended"), "{log}");
    ended_with(&reports, 0);
}

/// A panic is in the log of dom0 with its message and call chain, and `xl` reports a crash.
fn crash_is_reported(world: &mut World) {
    start(world, "faults", "", "-- panic");
    let (log, reports) = wait_for_end(world);
    assert!(log.contains("PANIC at apps/faults") && log.contains("call chain:\n  #0 0x"), "{log}");
    ended_with(&reports, 3);
}

/// Requests with few and with many segments, through grants that stay.
fn moves_requests_of_any_size(world: &mut World) {
    for direction in ["write", "read"] {
        let line = format!("-- --direction {direction} --bytes 4K,44K,1M --in-flight 16 --milliseconds 200");
        start(world, "bench-disk", DISK, &line);
        let (log, reports) = wait_for_end(world);
        assert!(log.lines().filter(|line| line.contains("mb_s")).count() == 3 && !log.contains("error"), "{log}");
        ended_with(&reports, 0);
    }
    let messages = world.expect("dmesg", SCRIPT).unwrap();
    assert!(messages.contains("persistent grants"), "{messages}");
}

/// What a service lacks is a sentence, and an end in order.
fn without_devices(world: &mut World) {
    start(world, "upload-queue", "", "-- ");
    let (log, reports) = wait_for_end(world);
    assert!(log.contains("error: "), "{log}");
    ended_with(&reports, 0);
}
