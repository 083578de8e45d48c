//! The queue in an engine.

use crate::address::Address;
use crate::error::EngineError;
use crate::link::{Connection, Link, Names};
use crate::mirror::{Changed, Item, Mirror};
use crate::{follow, setup, sweep};
use async_nats::{ConnectOptions, Event, ServerAddr};
use serde_json::json;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{self, Handle};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// How long a start waits for the engine; later it continues without.
const START_TIME: Duration = Duration::from_secs(5);
/// Pauses between attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(250);
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long a request waits until the mirror has what the stream has.
const REFRESH_TIME: Duration = Duration::from_secs(10);
/// How often the connection is checked while nothing is sent: a server that is gone without a word is noticed after two of these.
const PING_PERIOD: Duration = Duration::from_secs(3);

/// Whether the engine can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Status {
    Starting,
    Ready,
    Absent,
    Unusable(String),
}

/// What all tasks of an engine share.
pub(crate) struct Shared {
    pub(crate) link: Link,
    pub(crate) address: Address,
    mirror: Mutex<Mirror>,
    version: watch::Sender<u64>,
    status: watch::Sender<Status>,
    messages: mpsc::UnboundedSender<String>,
}

impl Shared {
    fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn with_mirror<T>(&self, work: impl FnOnce(&mut Mirror) -> T) -> T {
        work(&mut self.mirror())
    }

    /// Wakes those who wait for a change of the mirror.
    pub(crate) fn notify(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// The mirror has everything up to `last`.
    pub(crate) fn start_with(&self, mut mirror: Mirror, last: u64) {
        mirror.reached(last);
        *self.mirror() = mirror;
        self.set_status(Status::Ready);
        self.notify();
    }

    pub(crate) fn set_status(&self, status: Status) {
        let before = self.status.send_replace(status.clone());
        if before == status {
            return;
        }
        let text = match &status {
            Status::Ready if before == Status::Starting => return,
            Status::Ready => "the engine is back".to_owned(),
            Status::Absent => format!("the engine {} does not answer; it is tried again", self.address),
            Status::Unusable(text) => format!("the engine cannot be used: {text}"),
            Status::Starting => return,
        };
        self.say(text);
    }

    pub(crate) fn say(&self, text: String) {
        // An error: they are not read any more.
        let _ = self.messages.send(text);
    }

    /// Completes when the mirror has everything.
    pub(crate) async fn until_ready(&self) {
        // The sender is here.
        let _ = self.status.subscribe().wait_for(|status| *status == Status::Ready).await;
    }

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match &*self.status.borrow() {
            Status::Ready => Ok(()),
            Status::Unusable(_) => Err(EngineError::Unusable),
            Status::Starting | Status::Absent => Err(EngineError::Absent),
        }
    }
}

/// A queue in an engine. Clones are handles to the same one.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runtime: Handle,
    /// Dropped with the last clone: then the thread ends.
    _end: Arc<oneshot::Sender<()>>,
}

impl Engine {
    /// Starts the thread, which connects and makes or checks the streams. An engine that does not answer may come later; one that cannot be
    /// used as it is fails. Messages for the operator follow.
    pub async fn start(address: Address) -> Result<(Engine, mpsc::UnboundedReceiver<String>), String> {
        let (end, ended) = oneshot::channel::<()>();
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no thread for the engine: {error}"))?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("engine".into());
        let spawned = thread.spawn(move || {
            // An error: the sender was dropped.
            let _ = runtime.block_on(ended);
        });
        spawned.map_err(|error| format!("no thread for the engine: {error}"))?;
        let (messages, received) = mpsc::unbounded_channel();
        let started = handle.spawn(connect(address, messages));
        let shared = started.await.map_err(|error| error.to_string())??;
        let engine = Engine { shared, runtime: handle, _end: Arc::new(end) };
        let mut status = engine.shared.status.subscribe();
        let known = engine.run(move || async move {
            let known = status.wait_for(|status| *status != Status::Starting);
            let known = tokio::time::timeout(START_TIME, known).await;
            known.ok().and_then(Result::ok).map(|status| status.clone())
        });
        match known.await {
            Some(Status::Unusable(text)) => return Err(text),
            None => engine.shared.set_status(Status::Absent),
            Some(_) => {}
        }
        let shared = engine.shared.clone();
        engine.spawn(move || async move {
            if let Err(text) = setup::durability(&shared.address).await {
                shared.say(format!("warning: {text}"));
            }
        });
        engine.spawn(|| sweep::sweep(engine.shared.clone()));
        Ok((engine, received))
    }

    /// Runs `work` on the thread of the engine. It is completed even if the future is dropped.
    pub(crate) async fn run<F>(&self, work: impl FnOnce() -> F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self.spawn(work).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Starts `work` on the thread of the engine. Its future, of some kilobytes, is not in the frame of who calls this: stacks of a service are copied by
    /// profilers, up to a limit.
    #[inline(never)]
    pub(crate) fn spawn<F>(&self, work: impl FnOnce() -> F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.spawn(work())
    }

    /// Where the queue is.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Fails, with a sentence, while the engine cannot be used.
    pub fn ready(&self) -> Result<(), String> {
        match &*self.shared.status.borrow() {
            Status::Ready => Ok(()),
            Status::Unusable(text) => Err(format!("the engine cannot be used: {text}")),
            Status::Starting | Status::Absent => Err(format!("the engine {} does not answer", self.shared.address)),
        }
    }

    /// Waits until everything is known that was answered before, by any program. Fails while the engine does not answer.
    pub async fn refresh(&self) -> Result<(), EngineError> {
        self.shared.check()?;
        let shared = self.shared.clone();
        self.run(move || async move {
            let mut version = shared.version.subscribe();
            let info = shared.link.ask(format!("STREAM.INFO.{}", shared.link.names.items()), json!(null)).await?;
            let last = info["state"]["last_seq"].as_u64().ok_or(EngineError::Refused(0))?;
            let reached = version.wait_for(|_| shared.with_mirror(|mirror| mirror.applied()) >= last);
            match tokio::time::timeout(REFRESH_TIME, reached).await {
                Ok(Ok(_)) => Ok(()),
                _ => Err(EngineError::Absent),
            }
        })
        .await
    }

    /// The oldest item of those that `is_wanted` accepts.
    pub fn first(&self, tries_max: u32, is_wanted: impl Fn(&Item) -> bool) -> Option<Item> {
        let now = Instant::now();
        self.shared.with_mirror(|mirror| mirror.after(None).map(|known| known.item(tries_max, now)).find(is_wanted))
    }

    /// Item `id`.
    pub fn item(&self, id: u64, tries_max: u32) -> Option<Item> {
        self.shared.with_mirror(|mirror| mirror.get(id)).map(|known| known.item(tries_max, Instant::now()))
    }

    /// The oldest items after item `id`, so many at most.
    pub fn items_after(&self, id: Option<u64>, count: usize, tries_max: u32) -> Vec<Item> {
        let now = Instant::now();
        self.shared.with_mirror(|mirror| mirror.after(id).take(count).map(|known| known.item(tries_max, now)).collect())
    }

    /// How many items there are, and how many bytes they have.
    pub fn usage(&self) -> (usize, u64) {
        self.shared.with_mirror(|mirror| (mirror.count(), mirror.bytes()))
    }

    /// For the next change of the items.
    pub fn changed(&self) -> Changed {
        Changed(self.shared.version.subscribe())
    }

    /// How long until the next lease ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.shared.with_mirror(|mirror| mirror.next_end(Instant::now()))
    }
}

/// Has the operator read why the server refuses the connection, once for many attempts.
fn report(event: &Event, last: &mut String, messages: &mpsc::UnboundedSender<String>) {
    let text = match event {
        Event::Connected => String::new(),
        Event::ServerError(error) => format!("the engine refuses the connection: {error}"),
        Event::ClientError(error) => format!("the engine cannot be reached: {error}"),
        _ => return,
    };
    if !text.is_empty() && text != *last {
        // An error: they are not read any more.
        let _ = messages.send(text.clone());
    }
    *last = text;
}

async fn connect(address: Address, messages: mpsc::UnboundedSender<String>) -> Result<Arc<Shared>, String> {
    let (sender, connection) = watch::channel(Connection::default());
    let (refused, last) = (messages.clone(), Mutex::new(String::new()));
    let mut options = ConnectOptions::new()
        .name(format!("upload-queue {}", address.name))
        .retry_on_initial_connect()
        .max_reconnects(None)
        .reconnect_delay_callback(|_| CONNECT_PAUSE)
        .connection_timeout(CONNECT_TIME)
        .ping_interval(PING_PERIOD)
        .event_callback(move |event| {
            report(&event, &mut last.lock().unwrap_or_else(PoisonError::into_inner), &refused);
            let is_up = match event {
                Event::Connected => Some(true),
                Event::Disconnected | Event::Closed => Some(false),
                _ => None,
            };
            if let Some(is_up) = is_up {
                sender.send_modify(|connection| *connection = Connection { changes: connection.changes + 1, is_up });
            }
            async {}
        });
    if let Some((user, password)) = address.login.clone() {
        options = options.user_and_password(user, password);
    }
    let servers = address.servers.iter().map(|(host, port)| format!("nats://{host}:{port}").parse::<ServerAddr>());
    let servers = servers.collect::<Result<Vec<_>, _>>().map_err(|error| format!("{address}: {error}"))?;
    let client = options.connect(servers).await.map_err(|error| format!("{address}: {error}"))?;
    let names = Names { queue: address.name.clone() };
    let link = Link { context: async_nats::jetstream::new(client.clone()), client, names, connection };
    let shared = Arc::new(Shared {
        link,
        address,
        mirror: Mutex::default(),
        version: watch::Sender::new(0),
        status: watch::Sender::new(Status::Starting),
        messages,
    });
    tokio::spawn(follow::follow(shared.clone()));
    Ok(shared)
}
