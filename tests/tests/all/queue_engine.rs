//! The upload queue with its items in NATS JetStream, which several queues share: `--store nats://...` (decision 71).

mod crash;
mod model;

use glass_tests::folder::Folder;
use glass_tests::http::{Client, Response};
use glass_tests::limit::within;
use glass_tests::nats::{self, Server};
use glass_tests::port::free_port;
use glass_tests::process::{self, Process, Signal};
use glass_tests::programs;
use glass_tests::queue::answer;
use serde_json::Value;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(900);
const START_LIMIT: Duration = Duration::from_secs(240);

/// A process of the queue. Dropping it ends it.
struct Service {
    process: Option<Process>,
    arguments: Vec<String>,
    port: u16,
    folder: Folder,
}

impl Service {
    /// Starts one with these options of the platform and of the service, and waits until it answers.
    fn start(options: &[&str], arguments: &[&str]) -> Service {
        let (port, folder) = (free_port().unwrap(), Folder::new("queue-engine").unwrap());
        let port_text = port.to_string();
        let common = ["--bind", "127.0.0.1", "--", "--port", &*port_text];
        let all = options.iter().chain(&common).chain(arguments);
        let arguments = all.map(|argument| (*argument).to_owned()).collect();
        let mut service = Service { process: None, arguments, port, folder };
        service.start_again();
        service
    }

    /// One over an engine.
    fn over(server: &Server, name: &str) -> Service {
        Service::start(&[], &["--store", &server.queue(name)])
    }

    fn start_again(&mut self) {
        let program = programs::built("upload-queue").expect("the caller has looked");
        let log = self.folder.file("log");
        let mut process = Process::spawn(Command::new(program).args(&self.arguments), &log).unwrap();
        let end = Instant::now() + START_LIMIT;
        while answer(self.address(), Duration::from_secs(1)).is_none() {
            assert!(process.ended().is_none() && Instant::now() < end, "{}", process.output());
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process = Some(process);
    }

    fn kill(&mut self) {
        self.process = None;
    }

    /// Stops it, or has it continue.
    fn stop(&self, is_stopped: bool) {
        let process = self.process.as_ref().expect("it runs");
        process::send(process.pid(), if is_stopped { Signal::STOP } else { Signal::CONT });
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    fn output(&self) -> String {
        self.process.as_ref().map(Process::output).unwrap_or_default()
    }

    fn send(&self, method: &str, target: &str, fields: &[(&str, &str)], body: &[u8]) -> io::Result<Response> {
        send(self.address(), method, target, fields, body)
    }

    /// Uploads an item; the status.
    fn put(&self, body: &[u8]) -> u16 {
        self.send("PUT", "/uploader", &[], body).unwrap().status()
    }

    /// Takes the oldest item; `None` if there is none.
    fn take(&self, secs: u64) -> Option<Taken> {
        let answer = self.send("POST", &format!("/leases?secs={secs}"), &[], &[]).unwrap();
        Taken::of(&answer)
    }

    fn acknowledge(&self, taken: &Taken) -> u16 {
        self.send("DELETE", &taken.lease, &[("If-Match", &taken.token)], &[]).unwrap().status()
    }

    /// The items that `/items` lists.
    fn list(&self) -> Vec<Value> {
        let answer = self.send("GET", "/items?count=1000", &[], &[]).unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let list: Value = serde_json::from_slice(&answer.body).unwrap();
        list["items"].as_array().unwrap().clone()
    }
}

/// An item that a consumer has.
#[derive(Debug, Clone)]
struct Taken {
    lease: String,
    token: String,
    deliveries: String,
    body: Vec<u8>,
}

impl Taken {
    fn of(answer: &Response) -> Option<Taken> {
        if answer.status() == 204 {
            return None;
        }
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let field = |name| answer.head.header(name).unwrap_or_else(|| panic!("no {name}")).to_owned();
        let (lease, token, deliveries) = (field("location"), field("lease-token"), field("delivery-count"));
        Some(Taken { lease, token, deliveries, body: answer.body.clone() })
    }
}

fn send(address: SocketAddr, method: &str, target: &str, fields: &[(&str, &str)], body: &[u8]) -> io::Result<Response> {
    let mut client = Client::connect(address)?;
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    for (name, value) in fields {
        head += &format!("{name}: {value}\r\n");
    }
    if method == "PUT" || !body.is_empty() {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    head += "\r\n";
    let mut message = head.into_bytes();
    message.extend_from_slice(body);
    client.send(&message)?;
    client.response(method)
}

/// A server, unless something is missing here.
fn server() -> Option<Server> {
    programs::built("upload-queue")?;
    Server::start_durable()
}

fn content(tag: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(tag);
    let mut bytes = tag.to_le_bytes().to_vec();
    bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(length.saturating_sub(8)));
    bytes
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let end = Instant::now() + START_LIMIT;
    while !is_true() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn items_come_out_whole_and_in_order_and_leave_nothing() {
    within(LIMIT, || {
        let Some(server) = server() else { return };
        let queue = Service::over(&server, "jobs");
        // Longer than a chunk, exactly one, one byte, none.
        let items =
            [content(1, 5_000_000), content(2, 1 << 20), content(3, 8)[..1].to_vec(), Vec::new(), content(5, 70_000)];
        for item in &items {
            assert_eq!(queue.put(item), 200);
        }
        let lengths: Vec<_> = queue.list().iter().map(|item| item["bytes"].as_u64().unwrap() as usize).collect();
        assert_eq!(lengths, items.each_ref().map(Vec::len));
        for (number, item) in items.iter().enumerate() {
            if number % 2 == 0 {
                let taken = queue.take(60).unwrap();
                assert!(taken.body == *item, "item {number} has {} bytes", taken.body.len());
                assert_eq!((queue.acknowledge(&taken), queue.acknowledge(&taken)), (200, 404));
            } else {
                let answer = queue.send("GET", "/downloader", &[("Want-Repr-Digest", "sha-256=1")], &[]).unwrap();
                assert!(answer.body == *item && answer.head.header("repr-digest").is_some(), "item {number}");
                let delete = || queue.send("DELETE", "/downloader", &[("If-Match", answer.etag())], &[]).unwrap();
                assert_eq!((delete().status(), delete().status()), (200, 412));
            }
        }
        assert!(queue.take(60).is_none() && queue.list().is_empty());
        let stored = || server.ask("$JS.API.STREAM.INFO.jobs-data", "").unwrap()["state"]["messages"].as_u64();
        wait_until("data of items that are gone stays", || stored() == Some(0));
    });
}

#[test]
fn what_is_wrong_with_an_upload_is_refused_and_leaves_nothing() {
    within(LIMIT, || {
        let Some(server) = server() else { return };
        let queue = Service::over(&server, "jobs");
        let digest = ("Content-Digest", "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:");
        assert_eq!(queue.send("PUT", "/uploader", &[digest], &content(1, 3_000_000)).unwrap().status(), 400);
        let mut cut = Client::connect(queue.address()).unwrap();
        cut.send(b"PUT /uploader HTTP/1.1\r\nHost: test\r\nContent-Length: 4000000\r\n\r\n").unwrap();
        cut.send(&content(2, 2_500_000)).unwrap();
        drop(cut);
        for (method, target, fields) in [
            ("POST", "/uploader", vec![("Tus-Resumable", "1.0.0"), ("Upload-Length", "5")]),
            ("PUT", "/uploader", vec![("Upload-Complete", "?1")]),
            ("OPTIONS", "/uploader", vec![]),
        ] {
            let answer = queue.send(method, target, &fields, &[]).unwrap();
            assert!(answer.status() == 501 && answer.text().contains("cannot be resumed"), "{}", answer.text());
        }
        assert!(queue.list().is_empty());
        let chunked = b"PUT /uploader HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n";
        let mut client = Client::connect(queue.address()).unwrap();
        client.send(chunked).unwrap();
        assert_eq!(client.response("PUT").unwrap().status(), 200);
        assert_eq!(queue.take(60).unwrap().body, b"abcdefg");
        let stored = || server.ask("$JS.API.STREAM.INFO.jobs-data", "").unwrap()["state"]["messages"].as_u64();
        wait_until("data of uploads that failed stays", || stored() == Some(1));
    });
}

#[test]
fn two_queues_give_an_item_to_one_consumer_at_a_time() {
    within(LIMIT, || {
        let Some(server) = server() else { return };
        let (mut first, second) = (Service::over(&server, "jobs"), Service::over(&server, "jobs"));
        assert_eq!(first.put(b"one"), 200);
        let taken = second.take(3).unwrap();
        assert_eq!((&*taken.body, &*taken.deliveries), (&b"one"[..], "1"));
        assert!(first.take(60).is_none() && second.take(60).is_none());
        // A lease is in the engine: the end of a queue does not end it.
        first.kill();
        first.start_again();
        assert_eq!(first.list()[0]["state"], "leased");
        let waited = first.send("POST", "/leases?secs=60&wait=30", &[], &[]).unwrap();
        let again = Taken::of(&waited).unwrap();
        assert_eq!((&*again.body, &*again.deliveries), (&b"one"[..], "2"));
        // The older token is refused by both, the newer one accepted by both.
        let refused = second.send("DELETE", &taken.lease, &[("If-Match", &taken.token)], &[]).unwrap();
        assert!(refused.status() == 412 && refused.text().contains("Another consumer"), "{}", refused.text());
        assert_eq!(first.acknowledge(&taken), 412);
        let extended = second.send("PUT", &again.lease, &[("If-Match", &again.token)], &[]).unwrap();
        assert_eq!(extended.status(), 204);
        assert_eq!((second.acknowledge(&again), first.acknowledge(&again)), (200, 404));
        // Many at once, of two queues: each item has one consumer.
        for number in 0..20_u8 {
            assert_eq!([&first, &second][usize::from(number % 2)].put(&[number]), 200);
        }
        let addresses = [first.address(), second.address()];
        let takers: Vec<_> = (0..8)
            .map(|number| {
                std::thread::spawn(move || {
                    let mut found = Vec::new();
                    while let Some(taken) =
                        Taken::of(&send(addresses[number % 2], "POST", "/leases?secs=600", &[], &[]).unwrap())
                    {
                        found.extend(taken.body);
                    }
                    found
                })
            })
            .collect();
        let mut found: Vec<u8> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, (0..20).collect::<Vec<_>>());
    });
}

#[test]
fn what_one_queue_answered_holds_for_the_next_request_to_another() {
    within(LIMIT, || {
        let Some(server) = server() else { return };
        let (first, second) = (Service::over(&server, "jobs"), Service::over(&server, "jobs"));
        for number in 1..=10 {
            // It misses what happens, and has the next request in its socket when it continues.
            second.stop(true);
            for _ in 0..20 {
                assert_eq!(first.put(b"x"), 200);
            }
            let address = second.address();
            let next = std::thread::spawn(move || send(address, "GET", "/items?count=1000", &[], &[]).unwrap());
            std::thread::sleep(Duration::from_millis(50));
            second.stop(false);
            let list = next.join().unwrap().text();
            assert_eq!(list.matches("\"id\"").count(), 20 * number, "round {number}");
        }
    });
}

#[test]
fn a_queue_that_was_stopped_cannot_acknowledge_what_another_consumer_has() {
    within(LIMIT, || {
        let Some(server) = server() else { return };
        let (first, second) = (Service::over(&server, "jobs"), Service::over(&server, "jobs"));
        assert_eq!(first.put(b"one"), 200);
        let taken = first.take(1).unwrap();
        // It misses what happens, and has the acknowledgement of its consumer in its socket.
        first.stop(true);
        let (address, old) = (first.address(), taken.clone());
        let late = std::thread::spawn(move || {
            send(address, "DELETE", &old.lease, &[("If-Match", &old.token)], &[]).unwrap().status()
        });
        let waited = second.send("POST", "/leases?secs=600&wait=30", &[], &[]).unwrap();
        let again = Taken::of(&waited).unwrap();
        first.stop(false);
        assert_eq!(late.join().unwrap(), 412);
        assert_eq!((second.acknowledge(&again), second.list().len()), (200, 0));
    });
}

#[test]
fn an_upload_whose_name_was_taken_meanwhile_is_no_item() {
    within(LIMIT, || {
        let Some(server) = server() else { return };
        let queue = Service::over(&server, "jobs");
        let body = content(1, 4_000_000);
        let mut client = Client::connect(queue.address()).unwrap();
        client.send(b"PUT /uploader HTTP/1.1\r\nHost: test\r\nContent-Length: 4000000\r\n\r\n").unwrap();
        client.send(&body[..3_000_000]).unwrap();
        let subjects = || {
            let info = server.ask("$JS.API.STREAM.INFO.jobs-data", r#"{"subjects_filter":"jobs.data.*.0"}"#).unwrap();
            let subjects = info["state"]["subjects"].as_object().cloned().unwrap_or_default();
            subjects.keys().next().cloned()
        };
        wait_until("a chunk is stored", || subjects().is_some());
        let key = subjects().unwrap().split('.').nth(2).unwrap().to_owned();
        // As what looks for old data does, after an hour.
        let record = r#"{"v":1,"state":"abandoned","nonce":"0000000000000001"}"#;
        let answer = server.ask(&format!("jobs.item.{key}"), record).unwrap();
        assert!(answer["seq"].is_u64(), "{answer}");
        client.send(&body[3_000_000..]).unwrap();
        let answer = client.response("PUT").unwrap();
        assert!(answer.status() == 503 && answer.text().contains("send it again"), "{}", answer.text());
        assert!(queue.list().is_empty());
        // What no program of this version has written is not taken for something else.
        server.ask(&format!("jobs.item.{key}"), r#"{"v":2}"#).unwrap();
        wait_until("a record of another version is refused", || {
            let answer = queue.send("GET", "/readyz", &[], &[]).unwrap();
            answer.status() == 503 && answer.text().contains("no record of this version")
        });
        assert_eq!(queue.put(b"x"), 503);
    });
}

#[test]
fn what_was_interrupted_is_removed_after_a_time() {
    within(LIMIT, || {
        let Some(server) = server() else { return };
        let store = format!("{}?interrupted=3", server.queue("jobs"));
        let start = || Service::start(&[], &["--store", &store]);
        let (mut first, second) = (start(), start());
        let begin = |queue: &Service| {
            let mut client = Client::connect(queue.address()).unwrap();
            client.send(b"PUT /uploader HTTP/1.1\r\nHost: test\r\nContent-Length: 4000000\r\n\r\n").unwrap();
            client.send(&content(1, 4_000_000)[..3_000_000]).unwrap();
            client
        };
        let messages = |stream: &str| {
            let info = server.ask(&format!("$JS.API.STREAM.INFO.jobs-{stream}"), "").unwrap();
            info["state"]["messages"].as_u64().unwrap()
        };
        let (_cut, mut slow) = (begin(&first), begin(&second));
        assert_eq!(second.put(b"an item"), 200);
        wait_until("the chunks are stored", || messages("data") == 5);
        // The one that would remove its own.
        first.kill();
        wait_until("data of interrupted uploads stays", || messages("data") == 1);
        // The other one was only slow: it is refused, instead of becoming an item without data.
        slow.send(&content(1, 4_000_000)[3_000_000..]).unwrap();
        let answer = slow.response("PUT").unwrap();
        assert!(answer.status() == 503 && answer.text().contains("send it again"), "{}", answer.text());
        let taken = second.take(60).unwrap();
        assert_eq!((&*taken.body, second.acknowledge(&taken)), (&b"an item"[..], 200));
        // The names of the two are kept for long, the record of the item is not.
        wait_until("the record of a removed item stays", || messages("items") == 2);
        first.start_again();
        assert!(first.list().is_empty() && second.list().is_empty());
    });
}

#[test]
fn without_its_engine_a_queue_answers_503_and_continues_when_it_is_back() {
    within(LIMIT, || {
        let (Some(_), Some(program)) = (programs::built("upload-queue"), nats::program()) else { return };
        let mut server = Server::new(program, "sync_interval: always").unwrap();
        let queue = Service::over(&server, "jobs");
        let is_away = |queue: &Service| {
            let status = |method: &str, target: &str, fields: &[(&str, &str)], body: &[u8]| {
                let answer = queue.send(method, target, fields, body).unwrap();
                assert!(
                    answer.status() == 200 || answer.text().contains("engine"),
                    "{method} {target}: {}",
                    answer.text()
                );
                answer.status()
            };
            let named = [("If-Match", "\"1-0000000000000000\"")];
            [
                status("PUT", "/uploader", &[], b"x"),
                status("POST", "/leases", &[], &[]),
                status("GET", "/downloader", &[], &[]),
                status("DELETE", "/downloader", &named, &[]),
                status("GET", "/items", &[], &[]),
                status("DELETE", "/items/1", &named, &[]),
                status("GET", "/readyz", &[], &[]),
            ]
        };
        assert_eq!(is_away(&queue), [503; 7], "{}", queue.output());
        assert_eq!(queue.send("GET", "/healthz", &[], &[]).unwrap().status(), 200);
        server.start();
        let is_ready = || queue.send("GET", "/readyz", &[], &[]).unwrap().status() == 200;
        wait_until("the engine has come", is_ready);
        assert_eq!(queue.put(b"first"), 200);
        server.kill();
        assert_eq!(is_away(&queue), [503; 7], "{}", queue.output());
        server.start();
        wait_until("the engine is back", is_ready);
        assert_eq!((queue.put(b"second"), queue.take(60).unwrap().body), (200, b"first".to_vec()));
        // Without a word.
        server.stop(true);
        // Without bytes it is a record alone, which the server may still store when it continues.
        let answer = queue.send("PUT", "/uploader", &[], b"").unwrap();
        assert!(answer.status() == 503 && answer.text().contains("engine"), "{}", answer.text());
        server.stop(false);
        wait_until("the engine continues", is_ready);
        assert_eq!(queue.take(60).unwrap().body, b"second");
        // The answer was that it failed: it is no item, or is withdrawn.
        wait_until("an upload that failed stays", || queue.list().len() == 2);
        assert!(queue.output().contains("the engine is back"), "{}", queue.output());
    });
}

#[test]
fn an_engine_that_would_lose_items_is_refused_in_one_sentence() {
    within(LIMIT, || {
        let (Some(queue), Some(program)) = (programs::built("upload-queue"), nats::program()) else { return };
        let folder = Folder::new("queue-engine").unwrap();
        let run = |options: &[&str], arguments: &[&str]| {
            let mut command = Command::new(&queue);
            command.args(options).args(["--bind", "127.0.0.1", "--", "--port", "0"]).args(arguments);
            let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
            let status = process.wait(START_LIMIT).expect("it was to end");
            assert!(!status.success());
            process.output()
        };
        let mut plain = Server::new(program.clone(), "").unwrap();
        plain.start();
        let output = run(&[], &["--store", &plain.queue("jobs")]);
        assert!(output.contains("start nats-server with -js"), "{output}");
        let mut server = Server::new(program, "sync_interval: 10s").unwrap();
        server.start();
        for (wrong, reason) in [
            (
                r#""storage":"memory","discard":"new","max_msgs_per_subject":1,"allow_direct":true"#,
                "storage must be file",
            ),
            (r#""storage":"file","discard":"old","max_msgs_per_subject":1,"allow_direct":true"#, "discard must be new"),
            (r#""storage":"file","discard":"new","max_age":60000000000,"max_msgs_per_subject":1"#, "without max_age"),
        ] {
            let config = format!(r#"{{"name":"jobs-items","subjects":["jobs.item.*"],"retention":"limits",{wrong}}}"#);
            let made = server.ask("$JS.API.STREAM.CREATE.jobs-items", &config).unwrap();
            assert!(made.get("error").is_none(), "{made}");
            let output = run(&[], &["--store", &server.queue("jobs")]);
            assert!(output.contains(reason), "{reason}: {output}");
            server.ask("$JS.API.STREAM.DELETE.jobs-items", "").unwrap();
        }
        let disk = folder.file("disk").display().to_string();
        for (options, arguments, reason) in [
            (
                vec!["--disk", &*disk, "--disk-size", "16M"],
                vec!["--store", "nats://127.0.0.1/q"],
                "either on a disk or in an engine",
            ),
            (vec![], vec!["--store", "nats://127.0.0.1"], "the name of the queue is missing"),
            (vec![], vec!["--store", "nats://127.0.0.1/q", "--format"], "it is about a disk"),
            (vec![], vec!["--store"], "an engine must follow"),
        ] {
            let output = run(&options, &arguments);
            assert!(output.contains(reason), "{reason}: {output}");
        }
        // There is a warning of what cannot be seen, and of what can.
        let (unknown, seen) =
            (Service::over(&server, "jobs"), format!("{}?monitor={}", server.queue("jobs"), server.monitor));
        wait_until("a warning", || unknown.output().contains("was not checked"));
        let seen = Service::start(&[], &["--store", &seen]);
        wait_until("a warning", || seen.output().contains("must have sync_interval: always"));
    });
}

#[test]
fn an_engine_with_users_takes_the_right_password_alone() {
    within(LIMIT, || {
        let (Some(_), Some(program)) = (programs::built("upload-queue"), nats::program()) else { return };
        let mut server = Server::new(program, "sync_interval: always").unwrap();
        server.configure("authorization { user: queue, password: \"right-one\" }").unwrap();
        server.start();
        let share = Folder::new("queue-engine").unwrap();
        let start = |password: &str| {
            let settings = format!("store = \"nats://queue:{password}@127.0.0.1:{}/jobs\"\n", server.port);
            share.write("queue.toml", settings.as_bytes()).unwrap();
            Service::start(&["--share", &share.path().display().to_string()], &["--config", "queue.toml"])
        };
        let refused = start("wrong-one");
        assert_eq!(refused.put(b"x"), 503);
        wait_until("the reason is printed", || refused.output().to_lowercase().contains("authorization"));
        assert!(!refused.output().contains("wrong-one"), "{}", refused.output());
        assert_eq!(start("right-one").put(b"x"), 200);
    });
}

#[test]
fn an_engine_that_is_full_refuses_uploads_and_keeps_items() {
    within(LIMIT, || {
        let Some(server) = server() else { return };
        let config = r#"{"name":"jobs-data","subjects":["jobs.data.*.*"],"retention":"limits","storage":"file","discard":"new",
            "max_msgs_per_subject":1,"allow_direct":true,"max_bytes":3000000,"num_replicas":1}"#;
        let made = server.ask("$JS.API.STREAM.CREATE.jobs-data", config).unwrap();
        assert!(made.get("error").is_none(), "{made}");
        let queue = Service::over(&server, "jobs");
        assert_eq!(queue.put(&content(1, 2_000_000)), 200);
        let full = queue.send("PUT", "/uploader", &[], &content(2, 4_000_000)).unwrap();
        assert!(full.status() == 507 && full.text().contains("no space"), "{}", full.text());
        let taken = queue.take(60).unwrap();
        assert!(taken.body == content(1, 2_000_000));
        assert_eq!(queue.acknowledge(&taken), 200);
        wait_until("there is space again", || queue.put(&content(3, 2_000_000)) == 200);
    });
}
