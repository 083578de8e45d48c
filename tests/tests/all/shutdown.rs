//! Requests to end: a service finishes the requests in flight, and a second signal ends it at once.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::{self, Options, World};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    requests_in_flight_are_finished within 180;
    a_second_signal_ends_at_once within 180;
}

/// How long a loaded machine may take for anything.
const PATIENCE: Duration = Duration::from_secs(240);
const ITEM: Content = Content { seed: 5, length_bytes: 3_000_000 };

struct Running {
    folder: Folder,
    process: Process,
    address: SocketAddr,
}

/// A queue that answers, as users start it.
fn start(world: World) -> Option<Running> {
    if let Some(reason) = world.obstacle() {
        programs::skip(reason);
        return None;
    }
    let folder = Folder::new("shutdown").unwrap();
    let port = glass_tests::port::free_port().unwrap();
    let mut command = queue::command(world, &folder.file("queue.img"), port, &Options::default())?;
    let process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    let mut running = Running { folder, process, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) };
    running.wait_for("an answer", |running| queue::answer(running.address, Duration::from_secs(2)).is_some());
    Some(running)
}

impl Running {
    fn wait_for(&mut self, what: &str, is_there: impl Fn(&Running) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_there(self) {
            let has_ended = self.process.ended();
            assert!(
                has_ended.is_none() && Instant::now() < end,
                "no {what} ({has_ended:?}):\n{}",
                self.process.output()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.process.pid() as i32).unwrap(), signal).unwrap();
    }

    /// A connection whose upload is half sent.
    fn begin_upload(&self) -> Client {
        let mut client = Client::connect(self.address).unwrap();
        let head = format!("PUT /uploader HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", ITEM.length_bytes);
        client.send(head.as_bytes()).unwrap();
        client.send(&ITEM.bytes()[..1_000_000]).unwrap();
        client
    }
}

pub fn requests_in_flight_are_finished(world: World) {
    let Some(mut running) = start(world) else { return };
    let mut client = running.begin_upload();
    // It waits for an item, which does not come in time.
    let mut waiting = Client::connect(running.address).unwrap();
    waiting.send(b"GET /downloader?wait=600 HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    // Both requests are there once a later one is answered.
    assert!(queue::answer(running.address, PATIENCE).is_some());
    running.send(Signal::TERM);
    assert_eq!(waiting.response("GET").unwrap().status(), 204);
    client.send(&ITEM.bytes()[1_000_000..]).unwrap();
    assert_eq!(client.response("PUT").unwrap().status(), 200);
    let status = running.process.wait(PATIENCE).expect("it ends by itself");
    let said = running.process.output();
    assert!(status.success() && said.contains("upload-queue: ended") && !said.contains("cut"), "{status}: {said}");
    // What was accepted is there.
    let queue = queue::Queue::start(world, &running.folder.file("queue.img"), &Options::default()).unwrap();
    queue.expect("it ran a moment ago").take(ITEM).unwrap();
}

pub fn a_second_signal_ends_at_once(world: World) {
    let Some(mut running) = start(world) else { return };
    let _client = running.begin_upload();
    assert!(queue::answer(running.address, PATIENCE).is_some());
    running.send(Signal::INT);
    // The first one has arrived once the port is closed.
    let address = running.address;
    running.wait_for("closed port", |_| queue::answer(address, Duration::from_millis(300)).is_none());
    let begun = Instant::now();
    running.send(Signal::INT);
    let status = running.process.wait(PATIENCE).expect("it ends");
    let said = running.process.output();
    assert!(!status.success() && !said.contains("upload-queue: ended"), "{status}: {said}");
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(begun.elapsed() < PATIENCE);
}
