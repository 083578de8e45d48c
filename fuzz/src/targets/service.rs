//! Input of a service: requests of clients, the host's requests for its trace; and a disk in memory, for its disk.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fastrand::Rng;
use glass_api::{
    Address, Block, BlockError, BlockInfo, Buf, Clock, Instant, JoinHandle, NetError, Panicked, Spawn, SpawnError,
    Stream, check_request,
};
use glass_lib_executor::{Executor, Uncontained, Unpark};
use glass_lib_http::{Connection, HttpError, Limits, Request, Status};
use glass_lib_trace::{CONTROL, Event, Group, Kind, Writer};

use super::Target;
use crate::mutate;

struct Nothing;

impl Unpark for Nothing {
    fn unpark(&self) {}
}

/// Tasks, and a clock that jumps when no task is runnable.
#[derive(Clone)]
pub(super) struct World {
    pub(super) executor: Executor,
    now: Rc<Cell<Instant>>,
}

impl Clock for World {
    fn now(&self) -> Instant {
        self.now.get()
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        self.executor.sleep_until(deadline)
    }
}

impl Spawn for World {
    fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        self.executor.spawn(name, task)
    }

    fn contain<F: Future>(&self, task: F) -> impl Future<Output = Result<F::Output, Panicked>> + use<F> {
        Uncontained::new(task)
    }
}

impl World {
    pub(super) fn new() -> World {
        World { executor: Executor::new(Arc::new(Nothing)), now: Rc::default() }
    }

    /// Runs one task, and those that it spawns, to the end.
    pub(super) fn run(&self, task: impl Future<Output = ()> + 'static) {
        let done = Rc::new(Cell::new(false));
        let flag = done.clone();
        let whole = async move {
            task.await;
            flag.set(true);
        };
        self.executor.spawn("case", whole).expect("there are few tasks");
        for _ in 0..1_000_000 {
            if done.get() {
                return;
            }
            if self.executor.run_ready() > 0 {
                continue;
            }
            let deadline = self.executor.next_deadline();
            let deadline = deadline.expect("a task waits for an event that never happens");
            self.now.set(self.now.get().max(deadline));
            self.executor.fire_timers(self.now.get());
        }
        panic!("the simulation does not become idle");
    }
}

/// A client that has sent all that it will ever send.
struct Client {
    sent: Vec<u8>,
    /// Maximum of bytes of one read.
    piece: usize,
    answered: Rc<RefCell<Vec<u8>>>,
}

impl Stream for Client {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        let count = buf.len().min(self.sent.len()).min(self.piece);
        buf[..count].copy_from_slice(&self.sent[..count]);
        self.sent.drain(..count);
        Ok(count)
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        self.answered.borrow_mut().extend_from_slice(data);
        Ok(data.len())
    }

    async fn close(&mut self) -> Result<(), NetError> {
        Ok(())
    }

    fn peer(&self) -> Address {
        SocketAddr::from(([127, 0, 0, 1], 1)).into()
    }
}

/// Requests: the first byte determines the size of their pieces.
pub struct Http;

async fn echo(connection: &mut Connection<Client, World>, request: Request) -> Result<(), HttpError> {
    let mut body = vec![0; connection.body_left().min(1 << 16) as usize];
    let count = connection.fill_from_body(&mut body).await?;
    let text = format!("{} {} {}", request.method_name(), request.path(), String::from_utf8_lossy(&body[..count]));
    connection.respond_text(Status::OK, &text).await
}

impl Target for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        [
            "\u{10}GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\u{7f}PUT /uploader HTTP/1.1\r\nHost: a:80\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhelloDELETE /downloader HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            "\u{1}POST /x?y=%20z HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc\r\nGET /b HTTP/1.1\r\nHost: b\r\n\r\n",
            "\u{40}PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "\u{40}HEAD http://host/path HTTP/1.1\r\nHost: host\r\nX-A: 1\r\nX-B:\t2 \r\n\r\nOPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        ]
        .map(|text| text.as_bytes().to_vec())
        .into()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        mutate::text(bytes, corpus, rng);
    }

    fn bytes_max(&self) -> usize {
        128 << 10
    }

    fn run(&self, input: &[u8]) {
        let Some((piece, sent)) = input.split_first() else { return };
        let answered = Rc::new(RefCell::new(Vec::new()));
        let piece = 1 + usize::from(*piece) * usize::from(*piece);
        let client = Client { sent: sent.to_vec(), piece, answered: answered.clone() };
        let world = World::new();
        let connection = Connection::new(client, world.clone(), Limits::default());
        world.run(async move {
            // Any end is allowed.
            let _ = connection.serve(echo).await;
        });
        let answered = answered.borrow();
        assert!(answered.is_empty() || answered.starts_with(b"HTTP/1.1 "));
        assert!(answered.len() <= 1024 + 200 * sent.len());
    }
}

/// A disk in memory.
#[derive(Clone)]
pub(super) struct Disk(pub(super) Rc<RefCell<Vec<u8>>>);

impl Block for Disk {
    fn info(&self) -> BlockInfo {
        BlockInfo { sector_bytes: 512, size_bytes: self.0.borrow().len() as u64, read_only: false }
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<(), BlockError>, Buf) {
        if let Err(error) = check_request(self.info(), offset, buf.len()) {
            return (Err(error), buf);
        }
        let Some(bytes) = buf.as_mut() else { return (Err(BlockError::Shared), buf) };
        bytes.copy_from_slice(&self.0.borrow()[offset as usize..][..bytes.len()]);
        (Ok(()), buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        if let Err(error) = check_request(self.info(), offset, buf.len()) {
            return (Err(error), buf);
        }
        self.0.borrow_mut()[offset as usize..][..buf.len()].copy_from_slice(&buf);
        (Ok(()), buf)
    }

    async fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }
}

pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

/// Writes of the host into a guest's control pages: triples of an offset, a value, and an event that follows.
pub struct Host;

const RECORD_BYTES: usize = 12;

fn ring() -> &'static Writer {
    static RING: OnceLock<&'static Writer> = OnceLock::new();
    RING.get_or_init(|| {
        let words: &'static [AtomicU64] = Vec::leak((0..4 * 256).map(|_| AtomicU64::new(0)).collect());
        glass_lib_trace::start(true, words, 0, 1_000_000_000);
        Box::leak(Box::new(Writer::claim("case", words).expect("the first ring")))
    })
}

impl Target for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let record = |place: u32, value: u64| [&place.to_le_bytes()[..], &value.to_le_bytes()].concat();
        let on: Vec<u8> =
            [record(0, 0x3f), record(1, 1), record(9, 5), record(0, 0x7f), record(1, 2), record(4, u64::MAX)].concat();
        vec![on.clone(), [on, record(0, 0), record(1, 3)].concat()]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..3) {
            0 => mutate::plain(bytes, corpus, rng),
            _ => mutate::words(bytes, 0, RECORD_BYTES, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        RECORD_BYTES * 1000
    }

    fn run(&self, input: &[u8]) {
        glass_lib_trace::set_current(Some(ring()));
        for record in input.as_chunks::<RECORD_BYTES>().0 {
            let (place, value) = (word(record, 0) as u32, word(record, 4));
            match place % 8 {
                0 => CONTROL.groups_wanted.store(value as u32, Ordering::Relaxed),
                1 => CONTROL.request.store(value as u32, Ordering::Release),
                2 => CONTROL.recorder.store(value as u32, Ordering::Relaxed),
                3 => CONTROL.groups_before.store(value as u32, Ordering::Relaxed),
                4 => CONTROL.functions_wanted[place as usize / 8 % 1024].store(value, Ordering::Relaxed),
                5 => CONTROL.groups.store(value as u32, Ordering::Relaxed),
                6 => CONTROL.answered.store(value as u32, Ordering::Relaxed),
                _ => {}
            }
            let wanted = CONTROL.groups_wanted.load(Ordering::Relaxed);
            if let Some(change) = glass_lib_trace::follow_host(|_| {}) {
                assert_eq!(change.groups, wanted);
                assert!(!glass_lib_trace::has_request());
            }
            let number = (value >> 8) as u16;
            let event = Event { kind: number, a: place, b: value, ..Event::default() };
            glass_lib_trace::emit(if place & 1 == 0 { Group::Tasks } else { Group::Spans }, event);
            glass_lib_trace::emit(Group::Cores, Event { kind: Kind::IdleBegin as u16, b: value, ..Event::default() });
        }
    }
}
