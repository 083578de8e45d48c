//! A simulation of one connection: a stream in memory and a clock that jumps when no task is runnable.

// Each test program uses a part of it.

use core::net::SocketAddr;
use core::time::Duration;
use glass_api::{Address, Clock, Instant, JoinHandle, NetError, Panicked, Spawn, SpawnError, Stream};
use glass_lib_executor::sync::Notify;
use glass_lib_executor::{Executor, Uncontained, Unpark};
use glass_lib_http::{Connection, HttpError, Limits, Method, Request};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

struct Nothing;
impl Unpark for Nothing {
    fn unpark(&self) {}
}

/// Tasks and virtual time.
#[derive(Clone)]
pub struct World {
    executor: Executor,
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
    pub fn new() -> World {
        World { executor: Executor::new(Arc::new(Nothing)), now: Rc::default() }
    }

    pub fn run_task(&self, task: impl Future<Output = ()> + 'static) {
        self.executor.spawn("test", task).expect("few tasks");
    }

    /// Runs until no task is runnable and no timer is set; panics when that takes too many steps.
    pub fn run(&self) {
        for _ in 0..1_000_000 {
            if self.executor.run_ready() > 0 {
                continue;
            }
            let Some(deadline) = self.executor.next_deadline() else {
                assert_eq!(self.executor.task_count(), 0, "a task waits for an event that never happens");
                return;
            };
            self.now.set(self.now.get().max(deadline));
            self.executor.fire_timers(self.now.get());
        }
        panic!("the simulation does not become idle");
    }
}

/// One direction of a stream.
#[derive(Default)]
struct Pipe {
    bytes: RefCell<Vec<u8>>,
    /// How often something was written.
    writes: Cell<usize>,
    /// Bytes it holds at most; 0 is no bound.
    capacity: Cell<usize>,
    ended: Cell<bool>,
    reset: Cell<bool>,
    changed: Notify,
}

impl Pipe {
    async fn read(&self, out: &mut [u8], piece: usize) -> Result<usize, NetError> {
        loop {
            let changed = self.changed.notified();
            if let Some(read) = self.try_read(out, piece) {
                return read;
            }
            changed.await;
        }
    }

    fn try_read(&self, out: &mut [u8], piece: usize) -> Option<Result<usize, NetError>> {
        let mut bytes = self.bytes.borrow_mut();
        if self.reset.get() {
            return Some(Err(NetError::Reset));
        }
        if !out.is_empty() && bytes.is_empty() && !self.ended.get() {
            return None;
        }
        let count = out.len().min(bytes.len()).min(piece);
        out[..count].copy_from_slice(&bytes[..count]);
        bytes.drain(..count);
        self.changed.notify_all();
        Some(Ok(count))
    }

    async fn write(&self, data: &[u8], piece: usize) -> Result<usize, NetError> {
        loop {
            let changed = self.changed.notified();
            if let Some(written) = self.try_write(data, piece) {
                return written;
            }
            changed.await;
        }
    }

    fn try_write(&self, data: &[u8], piece: usize) -> Option<Result<usize, NetError>> {
        let mut bytes = self.bytes.borrow_mut();
        if self.reset.get() {
            return Some(Err(NetError::Reset));
        }
        let space = if self.capacity.get() == 0 { usize::MAX } else { self.capacity.get() - bytes.len() };
        if space == 0 {
            return None;
        }
        let count = data.len().min(space).min(piece);
        bytes.extend_from_slice(&data[..count]);
        self.writes.set(self.writes.get() + 1);
        self.changed.notify_all();
        Some(Ok(count))
    }
}

/// One end of a stream in memory.
pub struct End {
    incoming: Rc<Pipe>,
    outgoing: Rc<Pipe>,
    /// Bytes that one call moves at most.
    piece: usize,
}

/// A server's end, whose calls move at most `piece` bytes, and a client's end.
pub fn pair(piece: usize) -> (End, End) {
    let (there, back) = (Rc::new(Pipe::default()), Rc::new(Pipe::default()));
    let server = End { incoming: there.clone(), outgoing: back.clone(), piece };
    (server, End { incoming: back, outgoing: there, piece: usize::MAX })
}

impl End {
    /// Bounds the bytes in flight to this end.
    pub fn bound_incoming(&self, bytes: usize) {
        self.incoming.capacity.set(bytes);
    }

    /// How often the other end has written.
    pub fn incoming_writes(&self) -> usize {
        self.incoming.writes.get()
    }

    /// Everything until the other end closes; the error if it resets.
    pub async fn read_all(&mut self) -> (Vec<u8>, Result<(), NetError>) {
        let (mut all, mut part) = (Vec::new(), vec![0; 65536]);
        loop {
            match self.read(&mut part).await {
                Ok(0) => return (all, Ok(())),
                Ok(count) => all.extend_from_slice(&part[..count]),
                Err(error) => return (all, Err(error)),
            }
        }
    }
}

impl Stream for End {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        self.incoming.read(buf, self.piece).await
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        self.outgoing.write(data, self.piece).await
    }

    async fn close(&mut self) -> Result<(), NetError> {
        self.outgoing.ended.set(true);
        self.outgoing.changed.notify_all();
        Ok(())
    }

    fn peer(&self) -> Address {
        SocketAddr::from(([127, 0, 0, 1], 1)).into()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.incoming.reset.set(true);
        // As with TCP, unread data turns an orderly end into a reset, which overtakes.
        let unread = !self.incoming.bytes.borrow().is_empty();
        self.outgoing.reset.set(!self.outgoing.ended.get() || unread);
        self.incoming.changed.notify_all();
        self.outgoing.changed.notify_all();
    }
}

pub type Server = Connection<End, World>;

/// The service of the tests: returns the request's method and target, and a PUT's body.
pub async fn echo(connection: &mut Server, request: Request) -> Result<(), HttpError> {
    let mut body = vec![0; usize::try_from(connection.body_left().min(1 << 20)).unwrap()];
    let count = connection.fill_from_body(&mut body).await?;
    let text = match request.method() {
        Method::Put => String::from_utf8_lossy(&body[..count]).into_owned(),
        _ => format!("{} {}\n", request.method_name(), request.path()),
    };
    connection.respond_text(glass_lib_http::Status::OK, &text).await
}

/// The outcome of a client's bytes at a server with `handler`.
pub struct Outcome {
    /// What the client received.
    pub text: String,
    /// How the stream ended for the client.
    pub end: Result<(), NetError>,
    /// What `serve` returned.
    pub served: Result<(), HttpError>,
    /// How long it took.
    pub took: Duration,
}

/// Sends `request` in pieces of `piece` bytes to a server with `handler`; then closes the client's half
/// if `ends`.
pub fn exchange(
    request: impl Into<Vec<u8>>,
    piece: usize,
    ends: bool,
    handler: impl AsyncFnMut(&mut Server, Request) -> Result<(), HttpError> + 'static,
) -> Outcome {
    let world = World::new();
    let (server, mut client) = pair(piece);
    let connection = Connection::new(server, world.clone(), Limits::default());
    let outcome = Rc::new(RefCell::new(Outcome {
        text: String::new(),
        end: Ok(()),
        served: Err(HttpError::NoResponse),
        took: Duration::ZERO,
    }));
    let result = outcome.clone();
    world.run_task(async move {
        let served = connection.serve(handler).await;
        result.borrow_mut().served = served;
    });
    let (request, result) = (request.into(), outcome.clone());
    world.run_task(async move {
        // A server that refuses closes without reading everything.
        let _ = client.write_all(&request).await;
        if ends {
            client.close().await.unwrap();
        }
        let (bytes, end) = client.read_all().await;
        result.borrow_mut().text = String::from_utf8_lossy(&bytes).into_owned();
        result.borrow_mut().end = end;
    });
    world.run();
    outcome.borrow_mut().took = world.now().since(Instant(0));
    Rc::into_inner(outcome).expect("the tasks have ended").into_inner()
}

/// [`exchange`] with the echo service and a client that closes its half.
pub fn ask(request: impl Into<Vec<u8>>, piece: usize) -> Outcome {
    exchange(request, piece, true, echo)
}
