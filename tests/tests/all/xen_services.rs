//! Our services as domains of Xen, reached from dom0: one machine is booted for all cases.
//!
//! `GLASS_XEN_CASE=NAME` runs only the cases whose names contain a word.

use glass_tests::limit::{say, within};
use glass_tests::programs;
use glass_tests::xen::World;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// All cases together; they take a minute, with --long ten.
const LIMIT: Duration = Duration::from_secs(2400);
/// One script in dom0.
const SCRIPT: Duration = Duration::from_secs(120);
const IMAGES: [&str; 3] = ["upload-queue", "faults", "bench-disk"];

/// A case and its name.
type Case = (&'static str, fn(&mut World));

const CASES: [Case; 7] = [
    ("service_keeps_uploads", keeps_uploads),
    ("service_is_destroyed", is_destroyed),
    ("service_refuses_malformed_requests", refuses_malformed_requests),
    ("service_moves_more_than_its_memory", moves_more_than_its_memory),
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

const DISK: &str = "disk = [\"phy:/dev/loop0,xvda,w\"]\n";
const CARD: &str = "vif = [\"mac=00:16:3e:01:02:03\"]\n";

/// For scripts: `put FILE` uploads a file and fails unless that is acknowledged; `take FILE` receives and removes the oldest item, and
/// fails unless it is the file; `oldest` prints the status of the oldest item.
const CLIENT: &str = r#"
request() { printf "$1 HTTP/1.1\r\nHost: q\r\n$2Connection: close\r\n\r\n"; }
put() { (request 'PUT /uploader' "Content-Length: $(stat -c %s $1)\r\n"; cat $1) | nc 10.99.0.2 8080 | head -n 1 | grep -q ' 200'; }
oldest() { request 'GET /downloader?wait=0' '' | nc 10.99.0.2 8080 | head -n 1; }
take() {
    request 'GET /downloader?wait=0' '' | nc 10.99.0.2 8080 >/tmp/answer
    tag=$(head -c 1000 /tmp/answer | sed -n 's/^[Ee][Tt]ag: *//p' | tr -d '\r')
    tail -c $(stat -c %s $1) /tmp/answer | cmp - $1 || return 1
    request 'DELETE /downloader' "If-Match: $tag\r\n" | nc 10.99.0.2 8080 | head -n 1 | grep -q ' 20'
}
"#;

/// Starts an image as the domain `service`, with these devices and command line.
fn start(world: &mut World, image: &str, devices: &str, line: &str) {
    world.start_service(image, 64, devices, line).unwrap();
}

/// Starts the queue and waits until it listens. Returns what it has printed.
fn start_queue(world: &mut World, memory_mib: u32, options: &str) -> String {
    let line = format!("ip=10.99.0.2/24 -- {options}");
    world.start_service("upload-queue", memory_mib, &format!("{DISK}{CARD}"), &line).unwrap();
    world.wait_for_service("listening on").unwrap()
}

fn ended_with(reports: &str, code: u32) {
    assert!(reports.contains(&format!("reason code {code}")), "{reports}");
}

/// An upload survives `xl shutdown` and, what was acknowledged, `xl destroy`; the service ends as by SIGTERM.
fn keeps_uploads(world: &mut World) {
    start_queue(world, 64, "--format");
    // More than a frame, an indirect request and the receive window.
    let bytes = 3_000_000;
    let head =
        format!("PUT /uploader HTTP/1.1\\r\\nHost: q\\r\\nContent-Length: {bytes}\\r\\nConnection: close\\r\\n\\r\\n");
    let put = format!("head -c {bytes} /dev/urandom >/tmp/body; (printf '{head}'; cat /tmp/body) | nc 10.99.0.2 8080");
    let answer = world.expect(&put, SCRIPT).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    world.expect("xl destroy service", SCRIPT).unwrap();
    let log = start_queue(world, 64, "");
    assert!(log.contains("1 items recovered"), "{log}");
    let get = "wget -q -O /tmp/back http://10.99.0.2:8080/downloader && cmp /tmp/body /tmp/back";
    world.expect(get, SCRIPT).unwrap();
    world.expect("xl shutdown -w service", SCRIPT).unwrap();
    let (log, reports) = world.end_of_service().unwrap();
    assert!(log.contains("upload-queue: ended"), "{log}");
    ended_with(&reports, 0);
}

/// `xl destroy` during an upload, several times: all acknowledged uploads are there, whole and in order; the one that was not acknowledged
/// is whole or not there.
fn is_destroyed(world: &mut World) {
    let rounds = if programs::is_long() { 20 } else { 3 };
    for round in 0..rounds {
        start_queue(world, 64, if round == 0 { "--format" } else { "" });
        let check = "take /tmp/a && take /tmp/b && case $(oldest) in *' 200'*) take /tmp/c;; esac";
        let (first, second, pause) = (100_000 + 150_001 * round, 1_500_000 - 70_001 * round, 40_000 * (round % 10));
        let script = format!(
            "{CLIENT} {} || exit 1
            head -c {first} /dev/urandom >/tmp/a; head -c {second} /dev/urandom >/tmp/b; head -c 4000000 /dev/urandom >/tmp/c
            put /tmp/a && put /tmp/b || exit 2
            put /tmp/c >/dev/null 2>&1 & usleep {pause}; xl destroy service; killall nc; wait",
            if round == 0 { "true" } else { check }
        );
        world.expect(&script, SCRIPT).unwrap_or_else(|error| panic!("round {round}: {error:#}"));
    }
}

fn refuses_malformed_requests(world: &mut World) {
    start_queue(world, 64, "--format");
    for request in [
        r"GARBAGE\r\n\r\n",
        r"GET /healthz HTTP/1.1\r\nbad header\r\n\r\n",
        r"PUT /uploader HTTP/1.1\r\nHost: q\r\nContent-Length: -5\r\n\r\n",
        r"PUT /uploader HTTP/1.1\r\nHost: q\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        r"PUT /uploader HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let answer = world.expect(&format!("printf '{request}' | nc 10.99.0.2 8080 | head -n 1"), SCRIPT).unwrap();
        assert!(answer.starts_with("HTTP/1.1 4"), "{request}: {answer}");
    }
    world.expect("wget -q -O /dev/null http://10.99.0.2:8080/healthz && xl destroy service", SCRIPT).unwrap();
}

/// By --long; else as much as a test of a minute has time for. dom0 sends and receives a MB a second here.
fn moves_more_than_its_memory(world: &mut World) {
    let items = if programs::is_long() { 20 } else { 1 };
    start_queue(world, 32, "--format");
    let script = format!(
        "{CLIENT} head -c 2516582 /dev/urandom >/tmp/a; n=0
        while [ $n != {items} ]; do n=$((n+1)); put /tmp/a && take /tmp/a || exit $n; done; rm /tmp/a /tmp/answer; xl destroy service"
    );
    world.expect(&script, SCRIPT * 10).unwrap();
}

/// A panic is in the log of dom0 with its message and call chain, and `xl` reports a crash.
fn crash_is_reported(world: &mut World) {
    start(world, "faults", "", "-- panic");
    let (log, reports) = world.end_of_service().unwrap();
    assert!(log.contains("PANIC at apps/faults") && log.contains("call chain:\n  #0 0x"), "{log}");
    ended_with(&reports, 3);
}

/// Requests with few and with many segments, through grants that stay.
fn moves_requests_of_any_size(world: &mut World) {
    for direction in ["write", "read"] {
        let line = format!("-- --direction {direction} --bytes 4K,44K,1M --in-flight 16 --milliseconds 200");
        start(world, "bench-disk", DISK, &line);
        let (log, reports) = world.end_of_service().unwrap();
        assert!(log.lines().filter(|line| line.contains("mb_s")).count() == 3 && !log.contains("error"), "{log}");
        ended_with(&reports, 0);
    }
    let messages = world.expect("dmesg", SCRIPT).unwrap();
    assert!(messages.contains("persistent grants"), "{messages}");
}

/// What a service lacks is a sentence, and an end in order.
fn without_devices(world: &mut World) {
    start(world, "upload-queue", "", "-- ");
    let (log, reports) = world.end_of_service().unwrap();
    assert!(log.contains("error: "), "{log}");
    ended_with(&reports, 0);
}
