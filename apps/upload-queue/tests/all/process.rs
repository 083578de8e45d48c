//! The service as a Linux process that is killed again and again, on a real file.
//!
//! `QUEUE_KILL_ROUNDS` sets how often; the default keeps the whole test within seconds.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const DISK_SIZE: &str = "64M";
const IO_TIMEOUT: Duration = Duration::from_secs(240);

/// A running service; killed at the end.
pub struct Service {
    child: Child,
    pub port: u16,
    recovered: String,
}

impl Service {
    pub fn start(disk: &PathBuf) -> Service {
        let mut command = Command::new(env!("CARGO_BIN_EXE_upload-queue"));
        command.arg("--disk").arg(disk).args(["--disk-size", DISK_SIZE, "--bind", "127.0.0.1", "--", "--port", "0"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (mut port, mut recovered) = (None, String::new());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while port.is_none() {
            let line = lines.next().expect("the service ended before it was listening").unwrap();
            if line.contains("recovered") {
                recovered = line.clone();
            }
            port = line.split_once("listening on 127.0.0.1 port ").map(|(_, port)| port.parse().unwrap());
        }
        // Keeps the pipe open and empty, whatever the service still prints.
        thread::spawn(move || lines.for_each(drop));
        Service { child, port: port.unwrap(), recovered }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.unwrap().success());
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The bytes of item `tag`, which start with it.
fn content(tag: u64, length: usize) -> Vec<u8> {
    let mut state = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = tag.to_le_bytes().to_vec();
    while data.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.to_le_bytes());
    }
    data.truncate(length.max(8));
    data
}

fn length_of(tag: u64) -> usize {
    let step = tag.wrapping_mul(0xd134_2543_de82_ef95) >> 40;
    if step.is_multiple_of(8) { 1_000_000 + step as usize % 2_000_000 } else { 8 + step as usize % 100_000 }
}

pub struct Reply {
    pub status: u16,
    etag: String,
    pub body: Vec<u8>,
}

pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(port: u16) -> Option<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(IO_TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(IO_TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Some(Client { stream: BufReader::new(stream) })
    }

    /// `None` when the connection is lost before the answer is complete.
    pub fn ask(&mut self, head: &str, body: &[u8]) -> Option<Reply> {
        self.send(head, body)?;
        self.answer()
    }

    fn send(&mut self, head: &str, body: &[u8]) -> Option<()> {
        let mut request = format!("{head}Host: q\r\n\r\n").into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request).ok()
    }

    pub fn answer(&mut self) -> Option<Reply> {
        let (mut status, mut etag, mut length) = (0, String::new(), 0);
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end().split_once(": ") {
                Some(("Content-Length", value)) => length = value.parse().unwrap(),
                Some(("ETag", value)) => etag = value.to_owned(),
                _ if line.starts_with("HTTP/1.1 ") => status = line[9..12].parse().unwrap(),
                _ if line == "\r\n" => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).ok()?;
        Some(Reply { status, etag, body })
    }

    pub fn put(&mut self, data: &[u8]) -> Option<u16> {
        self.send_put(data)?;
        Some(self.answer()?.status)
    }

    pub fn send_put(&mut self, data: &[u8]) -> Option<()> {
        self.send(&format!("PUT /uploader HTTP/1.1\r\nContent-Length: {}\r\n", data.len()), data)
    }
}

/// The clients' record of an item.
#[derive(Default, Clone, Copy)]
struct Known {
    put_began: Option<Instant>,
    put_answered: Option<Instant>,
    removal_asked: bool,
    removal_answered: bool,
}

type Ledger = Arc<Mutex<HashMap<u64, Known>>>;

fn note(ledger: &Ledger, tag: u64, change: impl FnOnce(&mut Known)) {
    change(ledger.lock().unwrap().entry(tag).or_default());
}

fn upload_until_lost(port: u16, ledger: &Ledger, first_tag: u64) {
    let Some(mut client) = Client::connect(port) else { return };
    for tag in first_tag..first_tag + 1000 {
        let data = content(tag, length_of(tag));
        note(ledger, tag, |known| known.put_began = Some(Instant::now()));
        match client.put(&data) {
            Some(200) => note(ledger, tag, |known| known.put_answered = Some(Instant::now())),
            Some(507) => thread::sleep(Duration::from_millis(5)),
            Some(status) => panic!("{status}"),
            None => return,
        }
    }
}

/// Removes items until the queue is empty or the service is gone. Returns their tags.
fn consume(port: u16, ledger: &Ledger) -> Vec<u64> {
    let mut tags = Vec::new();
    let Some(mut client) = Client::connect(port) else { return tags };
    while let Some(reply) = client.ask("GET /downloader?wait=0 HTTP/1.1\r\n", &[]) {
        if reply.status == 204 {
            break;
        }
        assert_eq!(reply.status, 200);
        let tag = u64::from_le_bytes(reply.body[..8].try_into().unwrap());
        assert!(reply.body == content(tag, length_of(tag)), "item {tag} is not whole");
        note(ledger, tag, |known| known.removal_asked = true);
        let head = format!("DELETE /downloader HTTP/1.1\r\nIf-Match: {}\r\n", reply.etag);
        match client.ask(&head, &[]) {
            Some(reply) => assert_eq!(reply.status, 200),
            None => break,
        }
        note(ledger, tag, |known| known.removal_answered = true);
        tags.push(tag);
    }
    tags
}

#[test]
fn a_killed_service_keeps_what_it_answered() {
    let rounds = std::env::var("QUEUE_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(8u64);
    let disk = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("killed-queue.img");
    let _ = std::fs::remove_file(&disk);
    let mut kept = 0;
    for round in 0..rounds {
        let ledger = Ledger::default();
        let mut service = Service::start(&disk);
        let port = service.port;
        let mut threads: Vec<_> = (0..4u64)
            .map(|uploader| {
                let ledger = ledger.clone();
                thread::spawn(move || upload_until_lost(port, &ledger, round * 100_000 + uploader * 10_000))
            })
            .collect();
        let consumed = ledger.clone();
        threads.push(thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            consume(port, &consumed);
        }));
        thread::sleep(Duration::from_millis(20 + round * 37 % 200));
        service.kill();
        threads.into_iter().for_each(|thread| thread.join().unwrap());

        let service = Service::start(&disk);
        // A copy: removals from now on are not answers of the killed service.
        let before = ledger.lock().unwrap().clone();
        let found = consume(service.port, &ledger);
        assert!(service.recovered.contains(&format!(" {} items recovered", found.len())), "{}", service.recovered);
        assert!(found.iter().all(|tag| before.contains_key(tag)), "round {round}: an item that no client sent");
        for (tag, known) in &before {
            let there = found.contains(tag);
            assert!(!(there && known.removal_answered), "round {round}: item {tag} is back");
            let lost = known.put_answered.is_some() && !known.removal_asked && !there;
            assert!(!lost, "round {round}: item {tag} is lost");
        }
        for (place, later) in found.iter().enumerate() {
            for earlier in &found[..place] {
                let answered_before = before[later].put_answered.zip(before[earlier].put_began);
                let swapped = answered_before.is_some_and(|(answered, began)| answered < began);
                assert!(!swapped, "round {round}: item {earlier} is before item {later}");
            }
        }
        kept += found.len();
        let mut client = Client::connect(service.port).unwrap();
        let page = String::from_utf8(client.ask("GET / HTTP/1.1\r\n", &[]).unwrap().body).unwrap();
        let free = page.lines().find_map(|line| line.strip_prefix("bytes free: ")).unwrap();
        let (left, all) = free.split_once(" of ").unwrap();
        assert_eq!(left, all, "round {round}: space leaks");
    }
    assert!(kept as u64 > rounds, "only {kept} items in {rounds} rounds");
    let _ = std::fs::remove_file(&disk);
}

#[test]
fn eight_clients_at_once() {
    let disk = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("eight-clients.img");
    let _ = std::fs::remove_file(&disk);
    let service = Service::start(&disk);
    let port = service.port;
    let uploads: Vec<_> = (0..8u64)
        .map(|tag| thread::spawn(move || Client::connect(port).unwrap().put(&content(tag, 6 << 20))))
        .collect();
    assert!(uploads.into_iter().all(|upload| upload.join().unwrap() == Some(200)));
    let mut tags = Vec::new();
    for _ in 0..8 {
        // All of them get the same item.
        let downloads: Vec<_> = (0..8)
            .map(|_| thread::spawn(move || Client::connect(port)?.ask("GET /downloader HTTP/1.1\r\n", &[])))
            .collect();
        let replies: Vec<Reply> = downloads.into_iter().map(|download| download.join().unwrap().unwrap()).collect();
        let tag = u64::from_le_bytes(replies[0].body[..8].try_into().unwrap());
        let expected = content(tag, 6 << 20);
        assert!(replies.iter().all(|reply| reply.status == 200 && reply.body == expected));
        let mut client = Client::connect(port).unwrap();
        let head = format!("DELETE /downloader HTTP/1.1\r\nIf-Match: {}\r\n", replies[0].etag);
        assert_eq!(client.ask(&head, &[]).unwrap().status, 200);
        tags.push(tag);
    }
    tags.sort();
    assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6, 7]);
    let _ = std::fs::remove_file(&disk);
}

#[test]
fn a_disk_file_that_is_cut_to_nothing_is_not_written() {
    let disk = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cut-to-nothing.img");
    let _ = std::fs::remove_file(&disk);
    let service = Service::start(&disk);
    let mut client = Client::connect(service.port).unwrap();
    assert_eq!(client.put(&content(1, 100_000)), Some(200));
    std::fs::OpenOptions::new().write(true).open(&disk).unwrap().set_len(0).unwrap();
    assert_eq!(client.ask("GET /downloader HTTP/1.1\r\n", &[]).unwrap().status, 500);
    let mut client = Client::connect(service.port).unwrap();
    let mut ready = || client.ask("GET /readyz HTTP/1.1\r\n", &[]).unwrap();
    let end = Instant::now() + IO_TIMEOUT;
    while !String::from_utf8(ready().body).unwrap().contains("nothing is written") {
        assert!(Instant::now() < end, "the disk was not found to be unreadable");
    }
    let mut client = Client::connect(service.port).unwrap();
    assert_eq!(client.put(&content(2, 100_000)), Some(500));
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 0, "something was written");
    let _ = std::fs::remove_file(&disk);
}
