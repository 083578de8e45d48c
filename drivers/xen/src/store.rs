//! The client of xenstore: requests as futures, watches, transactions.
//!
//! The platform calls [`Store::poll`] when the channel's event came, after tasks have run, and at [`Store::deadline`]. A request without an
//! answer fails at its deadline; its place is free again when the answer comes. A watch reports only that something under its path has
//! changed, so any number of events takes one bit.

use crate::Events;
use crate::byte_ring::{ByteRing, Layout};
use crate::error::BackendViolation;
use crate::page::SharedPages;
use crate::wire::{HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, kind, split, strings, text};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use core::future::poll_fn;
use core::mem;
use core::task::{Poll, Waker};
use core::time::Duration;
use glass_api::Instant;

const REQUEST: Layout = Layout { data: 0, bytes: 1024, consumed: 2048, produced: 2052 };
const ANSWER: Layout = Layout { data: 1024, bytes: 1024, consumed: 2056, produced: 2060 };

/// Requests without an answer, those that have failed by then included.
const REQUESTS_MAX: usize = 32;
/// How often a transaction is made again because of others.
const TRANSACTIONS_MAX: usize = 16;
/// Messages that one poll takes, so that a flood of them cannot keep the core.
const MESSAGES_MAX: usize = 64;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// Xenstore refused it: the name of an errno, such as `ENOENT`.
    Refused(String),
    /// No answer in time.
    TimedOut,
    /// Too many requests wait for their answers.
    Busy,
    /// Path and value are longer than a message can be, or the path contains a NUL.
    BadRequest,
    /// Others changed the same keys each time that a transaction was made.
    Contended,
    /// Xenstore has violated its protocol, and is not used any more.
    Broken(BackendViolation),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            StoreError::Refused(name) => write!(f, "xenstore refused the request: {name}"),
            StoreError::TimedOut => write!(f, "xenstore did not answer in time"),
            StoreError::Busy => write!(f, "xenstore has not answered {REQUESTS_MAX} requests: make fewer at a time"),
            StoreError::BadRequest => {
                write!(f, "a path and its value must fit {PAYLOAD_BYTES_MAX} bytes, without NUL in the path")
            }
            StoreError::Contended => write!(f, "others changed the same keys of xenstore {TRANSACTIONS_MAX} times"),
            StoreError::Broken(violation) => write!(f, "xenstore is broken: {violation}"),
        }
    }
}

impl core::error::Error for StoreError {}

impl From<BackendViolation> for StoreError {
    fn from(violation: BackendViolation) -> StoreError {
        StoreError::Broken(violation)
    }
}

/// A connection to xenstore. Clones are handles to the same one.
pub struct Store<E: Events> {
    shared: Rc<RefCell<Shared<E>>>,
}

impl<E: Events> Clone for Store<E> {
    fn clone(&self) -> Store<E> {
        Store { shared: self.shared.clone() }
    }
}

struct Shared<E: Events> {
    requests: ByteRing,
    answers: ByteRing,
    port: u32,
    events: E,
    now: Instant,
    timeout: Duration,
    outgoing: VecDeque<u8>,
    /// What has arrived of the next message.
    header: Option<Header>,
    incoming: Vec<u8>,
    pending: BTreeMap<u32, Pending>,
    next_id: u32,
    watches: BTreeMap<u32, WatchState>,
    next_token: u32,
    /// Transactions to be ended without effect, as soon as there is room for the requests.
    cancelled: Vec<u32>,
    violation: Option<BackendViolation>,
    woken: Vec<Waker>,
}

struct Pending {
    kind: u32,
    deadline: Instant,
    state: State,
}

enum State {
    Waits(Option<Waker>),
    Answered(Result<Vec<u8>, StoreError>),
    /// Nothing waits for the answer any more.
    Abandoned,
}

#[derive(Default)]
struct WatchState {
    changed: bool,
    waker: Option<Waker>,
}

impl<E: Events> Store<E> {
    /// The connection in `page` with our end `port` of its event channel (`HVM_PARAM_STORE_PFN`, `HVM_PARAM_STORE_EVTCHN`). A request fails
    /// when it has no answer after `timeout`.
    pub fn new(page: SharedPages, port: u32, events: E, now: Instant, timeout: Duration) -> Store<E> {
        let shared = Shared {
            requests: ByteRing::writer(page.clone(), REQUEST),
            answers: ByteRing::reader(page, ANSWER),
            port,
            events,
            now,
            timeout,
            outgoing: VecDeque::new(),
            header: None,
            incoming: Vec::with_capacity(HEADER_BYTES + PAYLOAD_BYTES_MAX),
            pending: BTreeMap::new(),
            next_id: 0,
            watches: BTreeMap::new(),
            next_token: 0,
            cancelled: Vec::new(),
            violation: None,
            woken: Vec::new(),
        };
        Store { shared: Rc::new(RefCell::new(shared)) }
    }

    /// Sends requests, takes messages, and fails what is too late. Returns whether a task was woken, or more messages may wait.
    pub fn poll(&self, now: Instant) -> bool {
        let (woken, more) = {
            let mut shared = self.shared.borrow_mut();
            shared.now = now;
            let more = match shared.exchange() {
                Ok(more) => more,
                Err(violation) => shared.fail(violation),
            };
            shared.expire();
            (mem::take(&mut shared.woken), more)
        };
        let progress = more || !woken.is_empty();
        woken.into_iter().for_each(Waker::wake);
        progress
    }

    /// When to poll next, if no event comes.
    pub fn deadline(&self) -> Option<Instant> {
        let shared = self.shared.borrow();
        let waits = |pending: &&Pending| matches!(pending.state, State::Waits(_));
        shared.pending.values().filter(waits).map(|pending| pending.deadline).min()
    }

    /// Xenstore's violation, if there was one.
    pub fn violation(&self) -> Option<BackendViolation> {
        self.shared.borrow().violation
    }

    async fn request(&self, transaction: u32, kind: u32, payload: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        let id = self.shared.borrow_mut().submit(transaction, kind, &payload)?;
        let exchange = Exchange { store: self, id };
        poll_fn(|context| {
            let mut shared = exchange.store.shared.borrow_mut();
            let Some(pending) = shared.pending.get_mut(&exchange.id) else {
                unreachable!("a request stays until its future is dropped")
            };
            match mem::replace(&mut pending.state, State::Abandoned) {
                State::Answered(answer) => {
                    // What has failed by itself may be answered later.
                    if answer != Err(StoreError::TimedOut) {
                        shared.pending.remove(&exchange.id);
                    }
                    Poll::Ready(answer)
                }
                State::Waits(_) | State::Abandoned => {
                    pending.state = State::Waits(Some(context.waker().clone()));
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The requests outside of any transaction.
    fn plain(&self) -> Transaction<'_, E> {
        Transaction { store: self, number: 0 }
    }

    /// Returns the value at `path`, which must be text.
    pub async fn read(&self, path: &str) -> Result<String, StoreError> {
        self.plain().read(path).await
    }

    /// Returns the names below `path`.
    pub async fn list(&self, path: &str) -> Result<Vec<String>, StoreError> {
        self.plain().list(path).await
    }

    /// Sets the value at `path`.
    pub async fn write(&self, path: &str, value: &str) -> Result<(), StoreError> {
        self.plain().write(path, value).await
    }

    /// Removes `path` and everything below it.
    pub async fn remove(&self, path: &str) -> Result<(), StoreError> {
        self.plain().remove(path).await
    }

    /// Makes `work` in a transaction, and again when others have changed the same keys meanwhile.
    pub async fn transaction<R>(
        &self,
        mut work: impl AsyncFnMut(&Transaction<'_, E>) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        for _ in 0..TRANSACTIONS_MAX {
            let started = split(&self.request(0, kind::TRANSACTION_START, strings(&[""])).await?)?;
            let number = transaction_number(&started).ok_or(BackendViolation::Malformed)?;
            let open = Open { store: self, number };
            let result = work(&Transaction { store: self, number }).await;
            // From here on the request ends it, whether or not its answer is waited for.
            mem::forget(open);
            let verdict = if result.is_ok() { "T" } else { "F" };
            let ended = self.request(number, kind::TRANSACTION_END, strings(&[verdict])).await;
            if ended == Err(StoreError::Busy) {
                self.shared.borrow_mut().cancel(number);
            }
            match (result, ended) {
                (_, Err(StoreError::Refused(name))) if name == "EAGAIN" => {}
                (Err(error), _) | (_, Err(error)) => return Err(error),
                (Ok(result), Ok(_)) => return Ok(result),
            }
        }
        Err(StoreError::Contended)
    }

    /// Watches `path` and everything below it. The first change is reported at once, as xenstore does.
    pub async fn watch(&self, path: &str) -> Result<Watch<E>, StoreError> {
        check_path(path)?;
        let token = {
            let mut shared = self.shared.borrow_mut();
            shared.next_token = shared.next_token.wrapping_add(1);
            let token = shared.next_token;
            shared.watches.insert(token, WatchState::default());
            token
        };
        let watch = Watch { store: self.clone(), path: path.into(), token };
        self.request(0, kind::WATCH, strings(&[path, &format!("{token}")])).await?;
        Ok(watch)
    }
}

/// The number in the answer to the start of a transaction.
fn transaction_number(started: &[String]) -> Option<u32> {
    started.first()?.parse().ok().filter(|&number| number != 0)
}

/// A transaction in the hands of a future. Dropping it ends it without effect.
struct Open<'a, E: Events> {
    store: &'a Store<E>,
    number: u32,
}

impl<E: Events> Drop for Open<'_, E> {
    fn drop(&mut self) {
        self.store.shared.borrow_mut().cancel(self.number);
    }
}

fn check_path(path: &str) -> Result<(), StoreError> {
    if path.contains('\0') { Err(StoreError::BadRequest) } else { Ok(()) }
}

/// A request in the hands of a future.
struct Exchange<'a, E: Events> {
    store: &'a Store<E>,
    id: u32,
}

impl<E: Events> Drop for Exchange<'_, E> {
    fn drop(&mut self) {
        let mut shared = self.store.shared.borrow_mut();
        if let Some(pending) = shared.pending.get_mut(&self.id) {
            match pending.state {
                // The answer is there: the place is free.
                State::Answered(ref answer) if *answer != Err(StoreError::TimedOut) => {
                    let answered = shared.pending.remove(&self.id);
                    if let Some(Pending {
                        kind: kind::TRANSACTION_START, state: State::Answered(Ok(started)), ..
                    }) = answered
                    {
                        shared.cancel_started(&started);
                    }
                }
                _ => pending.state = State::Abandoned,
            }
        }
    }
}

/// Requests that take effect together, or not at all.
pub struct Transaction<'a, E: Events> {
    store: &'a Store<E>,
    number: u32,
}

impl<E: Events> Transaction<'_, E> {
    /// As [`Store::read`].
    pub async fn read(&self, path: &str) -> Result<String, StoreError> {
        check_path(path)?;
        Ok(text(&self.store.request(self.number, kind::READ, strings(&[path])).await?)?)
    }

    /// As [`Store::list`].
    pub async fn list(&self, path: &str) -> Result<Vec<String>, StoreError> {
        check_path(path)?;
        Ok(split(&self.store.request(self.number, kind::DIRECTORY, strings(&[path])).await?)?)
    }

    /// As [`Store::write`].
    pub async fn write(&self, path: &str, value: &str) -> Result<(), StoreError> {
        check_path(path)?;
        let mut payload = strings(&[path]);
        payload.extend_from_slice(value.as_bytes());
        self.store.request(self.number, kind::WRITE, payload).await.map(drop)
    }

    /// As [`Store::remove`].
    pub async fn remove(&self, path: &str) -> Result<(), StoreError> {
        check_path(path)?;
        self.store.request(self.number, kind::RM, strings(&[path])).await.map(drop)
    }
}

/// Reports changes. Dropping it ends that.
pub struct Watch<E: Events> {
    store: Store<E>,
    path: String,
    token: u32,
}

impl<E: Events> Watch<E> {
    /// Waits until something has changed since the last call, one or more times. Fails when xenstore is broken.
    pub async fn changed(&mut self) -> Result<(), StoreError> {
        poll_fn(|context| {
            let mut shared = self.store.shared.borrow_mut();
            if let Some(violation) = shared.violation {
                return Poll::Ready(Err(violation.into()));
            }
            let watch = shared.watches.entry(self.token).or_default();
            if mem::take(&mut watch.changed) {
                return Poll::Ready(Ok(()));
            }
            watch.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<E: Events> Drop for Watch<E> {
    fn drop(&mut self) {
        let mut shared = self.store.shared.borrow_mut();
        shared.watches.remove(&self.token);
        // Without room for the request the watch stays at xenstore: events for it are ignored.
        if let Ok(id) = shared.submit(0, kind::UNWATCH, &strings(&[&self.path, &format!("{}", self.token)])) {
            shared.abandon(id);
        }
    }
}

impl<E: Events> Shared<E> {
    fn submit(&mut self, transaction: u32, kind: u32, payload: &[u8]) -> Result<u32, StoreError> {
        if let Some(violation) = self.violation {
            return Err(violation.into());
        }
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(StoreError::BadRequest);
        }
        if self.pending.len() >= REQUESTS_MAX {
            return Err(StoreError::Busy);
        }
        // At most 32 numbers are in use.
        loop {
            self.next_id = self.next_id.wrapping_add(1);
            if !self.pending.contains_key(&self.next_id) {
                break;
            }
        }
        let id = self.next_id;
        self.outgoing.extend(Header { kind, id, transaction, bytes: payload.len() as u32 }.encode());
        self.outgoing.extend(payload);
        let deadline = self.now + self.timeout;
        self.pending.insert(id, Pending { kind, deadline, state: State::Waits(None) });
        Ok(id)
    }

    /// Moves bytes in both directions. Returns whether more messages may wait.
    fn exchange(&mut self) -> Result<bool, BackendViolation> {
        if self.violation.is_some() {
            return Ok(false);
        }
        while let Some(number) = self.cancelled.pop() {
            let Ok(id) = self.submit(number, kind::TRANSACTION_END, &strings(&["F"])) else {
                self.cancelled.push(number);
                break;
            };
            self.abandon(id);
        }
        let (mut moved, mut messages) = (0, 0);
        while !self.outgoing.is_empty() {
            let count = self.requests.write(self.outgoing.as_slices().0)?;
            if count == 0 {
                break;
            }
            self.outgoing.drain(..count);
            moved += count;
        }
        while messages < MESSAGES_MAX {
            let wanted = self.header.map_or(HEADER_BYTES, |header| header.bytes as usize);
            let filled = self.incoming.len();
            self.incoming.resize(wanted, 0);
            let count = self.answers.read(&mut self.incoming[filled..])?;
            self.incoming.truncate(filled + count);
            moved += count;
            if filled + count < wanted {
                break;
            }
            let bytes = mem::take(&mut self.incoming);
            match self.header.take() {
                None => self.header = Some(Header::decode(bytes.try_into().map_err(|_| BackendViolation::Malformed)?)?),
                Some(header) => {
                    messages += 1;
                    self.deliver(header, bytes)?;
                }
            }
        }
        if moved > 0 {
            self.events.notify(self.port);
        }
        Ok(messages == MESSAGES_MAX)
    }

    fn deliver(&mut self, header: Header, payload: Vec<u8>) -> Result<(), BackendViolation> {
        if header.kind == kind::WATCH_EVENT {
            let parts = split(&payload)?;
            let token = parts.get(1).ok_or(BackendViolation::Malformed)?;
            // Events of a watch that has ended may still arrive.
            if let Some(watch) = token.parse().ok().and_then(|token: u32| self.watches.get_mut(&token)) {
                watch.changed = true;
                self.woken.extend(watch.waker.take());
            }
            return Ok(());
        }
        let Some(pending) = self.pending.get_mut(&header.id) else {
            return Err(BackendViolation::UnknownAnswer { id: header.id });
        };
        let answer = match header.kind {
            kind::ERROR => {
                Err(StoreError::Refused(split(&payload)?.into_iter().next().ok_or(BackendViolation::Malformed)?))
            }
            answered if answered == pending.kind => Ok(payload),
            _ => return Err(BackendViolation::Malformed),
        };
        match mem::replace(&mut pending.state, State::Abandoned) {
            State::Waits(waker) => {
                pending.state = State::Answered(answer);
                self.woken.extend(waker);
            }
            // Answered by its deadline, and the future has not run yet.
            State::Answered(Err(StoreError::TimedOut)) => pending.state = State::Answered(answer),
            State::Answered(_) => return Err(BackendViolation::UnknownAnswer { id: header.id }),
            State::Abandoned => {
                let kind = self.pending.remove(&header.id).map(|pending| pending.kind);
                // Its future was dropped, or it came too late: nothing will ever end what has just begun.
                if let (Some(kind::TRANSACTION_START), Ok(started)) = (kind, answer) {
                    self.cancel_started(&started);
                }
            }
        }
        Ok(())
    }

    /// Ends a transaction without effect at the next exchange. An answer is not waited for.
    fn cancel(&mut self, transaction: u32) {
        if self.violation.is_none() && self.cancelled.len() < REQUESTS_MAX {
            self.cancelled.push(transaction);
        }
    }

    /// The same with the answer to its start.
    fn cancel_started(&mut self, started: &[u8]) {
        if let Some(number) = split(started).ok().as_deref().and_then(transaction_number) {
            self.cancel(number);
        }
    }

    fn abandon(&mut self, id: u32) {
        self.pending.entry(id).and_modify(|pending| pending.state = State::Abandoned);
    }

    fn expire(&mut self) {
        for pending in self.pending.values_mut() {
            if let State::Waits(waker) = &mut pending.state
                && pending.deadline <= self.now
            {
                self.woken.extend(waker.take());
                pending.state = State::Answered(Err(StoreError::TimedOut));
            }
        }
    }

    /// Fails everything, for good.
    fn fail(&mut self, violation: BackendViolation) -> bool {
        self.violation = Some(violation);
        self.outgoing.clear();
        for pending in self.pending.values_mut() {
            if let State::Waits(waker) = &mut pending.state {
                self.woken.extend(waker.take());
                pending.state = State::Answered(Err(violation.into()));
            }
        }
        self.woken.extend(self.watches.values_mut().filter_map(|watch| watch.waker.take()));
        false
    }
}
