//! More uploads at once over TLS than the memory of a VM and its disk have room for, while a consumer takes and acknowledges them.
//! `GLASS_ITEM_MIB` sets the size of an item; the disk has that of eight.

use crate::queue_tls::Queue;
use crate::tls::data;
use crate::tls::rustls_peer::{self, Line};
use glass_tests::content::Content;
use glass_tests::limit::{SetOnDrop, say};
use glass_tests::programs;
use glass_tests::queue::World;
use rustls::ClientConfig;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

// 64 GiB by both ways take half an hour on a quiet machine.
glass_tests::in_worlds!(kvm Kvm: more_uploads_than_there_is_room_for_arrive_once within 7200;);

const CLIENTS: u64 = 64;
/// Of a client that was refused, by `Retry-After`.
const PAUSE: Duration = Duration::from_secs(1);
/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(7000);
/// The first bytes of an item, by which it is known.
const KEY_BYTES: usize = 16;
/// Bytes that are sent or read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Requests over TLS, one after the other.
struct Client {
    line: BufReader<Line>,
}

/// The head of an answer; the names of its fields are in lower case.
struct Head {
    status: u16,
    fields: HashMap<String, String>,
}

impl Head {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn length(&self) -> u64 {
        self.field("content-length").parse().unwrap_or(0)
    }
}

impl Client {
    /// A connection after its handshake. One at a time: QEMU's user network has room for one that it has not accepted, and others wait for
    /// seconds until the kernel tries again.
    fn connect(port: u16, config: &Arc<ClientConfig>) -> io::Result<Client> {
        static CONNECTING: Mutex<()> = Mutex::new(());
        let _alone = CONNECTING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = rustls_peer::connect(port, config)?;
        line.conn.complete_io(&mut line.sock)?;
        Ok(Client { line: BufReader::with_capacity(PIECE_BYTES, line) })
    }

    /// Sends the head of a request, with `fields` that each end their line.
    fn send(&mut self, request: &str, fields: &str) -> io::Result<()> {
        let line = self.line.get_mut();
        write!(line, "{request} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")?;
        line.flush()
    }

    fn head(&mut self) -> io::Result<Head> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.line.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let status = lines[0].split(' ').nth(1).and_then(|status| status.parse().ok());
        let fields = lines.iter().filter_map(|line| line.split_once(": "));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Ok(Head { status: status.unwrap_or_else(|| panic!("{lines:?}")), fields })
    }

    /// An answer without its body.
    fn answer(&mut self) -> io::Result<Head> {
        let head = self.head()?;
        self.skip(head.length())?;
        Ok(head)
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        io::copy(&mut (&mut self.line).take(bytes), &mut io::sink()).map(drop)
    }

    /// Uploads `content` as curl does: the body once the server wants it. An error if the connection ended without an answer.
    fn put(&mut self, content: Content) -> io::Result<Head> {
        let fields = format!("Content-Length: {}\r\nExpect: 100-continue\r\n", content.length_bytes);
        self.send("PUT /uploader", &fields)?;
        let head = self.head()?;
        if head.status != 100 {
            self.skip(head.length())?;
            return Ok(head);
        }
        let (mut body, mut piece) = (content.reader(), vec![0; PIECE_BYTES]);
        loop {
            let count = body.read(&mut piece)?;
            if count == 0 {
                break;
            }
            if let Err(error) = self.line.get_mut().write_all(&piece[..count]) {
                // The server may have sent the reason why it wants no more.
                return self.answer().map_err(|_| error);
            }
        }
        self.line.get_mut().flush()?;
        self.answer()
    }
}

/// The bytes by which an item is known.
fn key(content: Content) -> Vec<u8> {
    Content { length_bytes: KEY_BYTES as u64, ..content }.bytes()
}

/// Uploads one item, again until it is stored or others have failed; counts the answers.
fn upload(
    content: Content,
    connect: impl Fn() -> io::Result<Client>,
    answers: &Mutex<BTreeMap<String, u64>>,
    has_failed: &AtomicBool,
) {
    let mut client = None;
    while !has_failed.load(Ordering::Relaxed) {
        let put = client.take().map_or_else(&connect, Ok).and_then(|mut client| Ok((client.put(content)?, client)));
        let answer = match &put {
            Ok((head, _)) => head.status.to_string(),
            Err(error) => format!("cut: {:?}", error.kind()),
        };
        *answers.lock().unwrap().entry(answer).or_default() += 1;
        match put {
            Ok((head, _)) if head.status == 200 => return,
            Ok((head, line)) if [408, 503, 507].contains(&head.status) => {
                client = Some(line).filter(|_| head.field("connection") != "close");
            }
            Ok((head, _)) => panic!("an upload was answered {}", head.status),
            // If it is in the queue all the same, the next attempt makes a second one, which is noticed.
            Err(_) => {}
        }
        std::thread::sleep(PAUSE);
    }
}

/// Takes an item and acknowledges it; its key, or `None` if there was none.
fn take(client: &mut Client, wait_secs: u64, contents: &HashMap<Vec<u8>, Content>) -> Option<Vec<u8>> {
    let fields = format!("Prefer: wait={wait_secs}\r\nContent-Length: 0\r\n");
    client.send("POST /leases?secs=3600", &fields).unwrap();
    let head = client.head().unwrap();
    if head.status == 204 {
        return None;
    }
    assert_eq!(head.status, 200, "{:?}", head.fields);
    let mut key = vec![0; KEY_BYTES];
    client.line.read_exact(&mut key).unwrap();
    let content = contents.get(&key).expect("an item appears that was never uploaded");
    let mut checker = content.checker();
    checker.write_all(&key).unwrap();
    io::copy(&mut (&mut client.line).take(head.length() - KEY_BYTES as u64), &mut checker).unwrap();
    checker.verdict().unwrap();
    let condition = format!("If-Match: {}\r\n", head.field("lease-token"));
    client.send(&format!("DELETE {}", head.field("location")), &condition).unwrap();
    assert_eq!(client.answer().unwrap().status, 200);
    Some(key)
}

/// Bytes of uploads that the queue has received, also of those that were refused later.
fn received_bytes(client: &mut Client) -> u64 {
    client.send("GET /metrics", "").unwrap();
    let head = client.head().unwrap();
    let mut text = String::new();
    (&mut client.line).take(head.length()).read_to_string(&mut text).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("glass_queue_received_bytes_total "));
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

pub fn more_uploads_than_there_is_room_for_arrive_once(world: World) {
    let item_mib = programs::number("GLASS_ITEM_MIB", if programs::is_long() { 1024 } else { 2 });
    let (length_bytes, disk_mib) = (item_mib << 20, 8 * item_mib);
    let disk_size = format!("--disk-size={disk_mib}M");
    let Some(queue) = Queue::start_with_disk(world, &["--memory=48", &disk_size], &[]) else { return };
    let config = rustls_peer::client(&data("root.pem"));
    let connect = || Client::connect(queue.port, &config);
    let contents: Vec<_> = (1..=CLIENTS).map(|seed| Content { seed, length_bytes }).collect();
    let by_key: HashMap<_, _> = contents.iter().map(|&content| (key(content), content)).collect();
    let (answers, has_failed) = (Mutex::<BTreeMap<String, u64>>::default(), AtomicBool::new(false));
    let count = |answer: &str| answers.lock().unwrap().get(answer).copied().unwrap_or(0);
    let uploader = |content| upload(content, connect, &answers, &has_failed);
    let (uploader, begin, mut received_mib) = (&uploader, Instant::now(), 0);
    std::thread::scope(|scope| {
        let _failed = SetOnDrop(&has_failed);
        let uploads: Vec<_> = contents.iter().map(|&content| scope.spawn(move || uploader(content))).collect();
        let goes_on = || {
            let ended = uploads.iter().filter(|upload| upload.is_finished()).count() as u64;
            assert!(ended <= count("200"), "a client failed");
            assert!(begin.elapsed() < PATIENCE, "{answers:?}: {}", queue.process.output());
        };
        // The disk is full before the first item is taken.
        while count("507") == 0 {
            goes_on();
            std::thread::sleep(Duration::from_millis(50));
        }
        let (mut consumer, mut left) = (connect().unwrap(), by_key.clone());
        while !left.is_empty() {
            goes_on();
            if let Some(key) = take(&mut consumer, 5, &by_key) {
                assert!(left.remove(&key).is_some(), "an item arrives twice");
            }
        }
        while count("200") < CLIENTS {
            goes_on();
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(take(&mut consumer, 0, &by_key).is_none(), "an item arrives twice");
        received_mib = received_bytes(&mut consumer) >> 20;
    });
    let seconds = begin.elapsed().as_secs_f64();
    let answers = answers.into_inner().unwrap();
    say(&format!(
        "{CLIENTS} uploads of {item_mib} MiB through a disk of {disk_mib} MiB: {seconds:.0} s, {received_mib} MiB received; answers {answers:?}"
    ));
}
