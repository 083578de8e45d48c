//! Host names: queries of the network's name servers (RFC 1035), by smoltcp's client, and over TCP where an answer is too long for it.

use crate::dns::{self, Outcome};
use crate::numbers::interface_for;
use crate::sockets::Sockets;
use crate::state::{Shared, State};
use crate::trace::NAME;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use glass_api::{Instant, Net, NetError, Stream, check_host_name};
use glass_lib_trace::BlockKind;
use smoltcp::phy::DeviceCapabilities;
use smoltcp::socket::dns::{GetQueryResultError, QueryHandle, Socket, StartQueryError};
use smoltcp::wire::{DnsQueryType, IpAddress};

/// Name servers that are used, the first ones of a list (feature `dns-max-server-count-3` of smoltcp).
pub(crate) const SERVERS_MAX: usize = 3;
/// Queries at once.
const QUERIES_MAX: usize = 64;
/// How long smoltcp waits for a server before it tries the next one, or fails.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// A query of smoltcp's client.
pub(crate) struct Pending {
    /// Never used twice.
    number: u64,
    handle: QueryHandle,
    /// Its end, once there is an answer: the server and what it has answered.
    answer: Option<(SocketAddr, Outcome, Vec<IpAddress>)>,
    waker: Waker,
}

/// A query; its drop ends it.
struct Query<'s> {
    shared: &'s Rc<Shared>,
    number: u64,
}

/// The end of a wait; its drop ends the wait.
struct Alarm<'s> {
    shared: &'s Rc<Shared>,
    number: u64,
    at: Instant,
}

impl Sockets {
    /// The addresses of `name`: first IPv4, then IPv6 if we have an address that reaches other networks.
    pub(crate) async fn query(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        if let Ok(address) = name.parse() {
            return Ok([address].into());
        }
        check_host_name(name)?;
        let shared = self.shared()?;
        let has_ipv6 = shared.state.borrow().far_ipv6().is_some();
        let kinds = [Some(DnsQueryType::A), has_ipv6.then_some(DnsQueryType::Aaaa)];
        let mut addresses = Vec::new();
        let mut error = NetError::NoSuchName;
        for kind in kinds.into_iter().flatten() {
            match self.query_for(shared, name, kind).await {
                Ok(found) => addresses.extend(found),
                // The error of the first kind is more precise than a missing address of the second.
                Err(failed) if kind == DnsQueryType::A || failed != NetError::NoAddress => error = failed,
                Err(_) => {}
            }
        }
        if addresses.is_empty() { Err(error) } else { Ok(addresses) }
    }

    async fn query_for(&self, shared: &Rc<Shared>, name: &str, kind: DnsQueryType) -> Result<Vec<IpAddr>, NetError> {
        match Query::start(shared, name, kind)?.answer().await {
            Some((server, Outcome::Truncated, _)) => {
                let alarm = Alarm::after(shared, SERVER_TIMEOUT);
                alarm.limit(self.query_over_tcp(shared, server, name, kind)).await
            }
            Some((_, outcome, addresses)) => outcome.result(addresses.into_iter()),
            None => Err(NetError::TimedOut),
        }
    }

    /// RFC 7766: an answer that is too long for a datagram.
    async fn query_over_tcp(
        &self,
        shared: &Rc<Shared>,
        server: SocketAddr,
        name: &str,
        kind: DnsQueryType,
    ) -> Result<Vec<IpAddr>, NetError> {
        let number = shared.state.borrow_mut().numbers.next() as u16;
        let query = dns::query(number, name, kind.into());
        let mut stream = self.connect(server).await?;
        stream.write_all(&(query.len() as u16).to_be_bytes()).await?;
        stream.write_all(&query).await?;
        let mut length = [0; 2];
        read_exact(&mut stream, &mut length).await?;
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        read_exact(&mut stream, &mut answer).await?;
        dns::addresses_for(&query, &answer)
    }
}

async fn read_exact(stream: &mut impl Stream, mut buf: &mut [u8]) -> Result<(), NetError> {
    while !buf.is_empty() {
        match stream.read(buf).await? {
            0 => return Err(NetError::NameServerFailed),
            count => buf = &mut buf[count..],
        }
    }
    Ok(())
}

impl<'s> Query<'s> {
    fn start(shared: &'s Rc<Shared>, name: &str, kind: DnsQueryType) -> Result<Query<'s>, NetError> {
        let number = shared.state.borrow_mut().start_query(name, kind)?;
        Ok(Query { shared, number })
    }

    /// `None` when no server has answered in time.
    async fn answer(self) -> Option<(SocketAddr, Outcome, Vec<IpAddress>)> {
        poll_fn(|context| self.shared.state.borrow_mut().poll_query(self.number, context)).await
    }
}

impl Drop for Query<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.borrow_mut();
        if let Some(at) = state.queries.iter().position(|pending| pending.number == self.number) {
            let pending = state.queries.remove(at);
            if pending.answer.is_none() {
                state.names().cancel_query(pending.handle);
            }
        }
    }
}

impl<'s> Alarm<'s> {
    fn after(shared: &'s Rc<Shared>, duration: Duration) -> Alarm<'s> {
        let mut state = shared.state.borrow_mut();
        let (number, at) = (state.numbers.next(), state.now + duration);
        Alarm { shared, number, at }
    }

    /// The result of `future`, if it is there in time.
    async fn limit<T>(self, future: impl Future<Output = Result<T, NetError>>) -> Result<T, NetError> {
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(result) = future.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            let mut state = self.shared.state.borrow_mut();
            if self.at <= state.now {
                return Poll::Ready(Err(NetError::TimedOut));
            }
            state.alarms.insert((self.at, self.number), context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.shared.state.borrow_mut().alarms.remove(&(self.at, self.number));
    }
}

impl State {
    fn names(&mut self) -> &mut Socket<'static> {
        self.control.get_mut(self.names)
    }

    /// The name servers from now on: the first usable ones.
    pub(crate) fn set_name_servers(&mut self, servers: Vec<IpAddress>) {
        let is_usable = |server: &IpAddress| server.is_unicast() && !IpAddr::from(*server).is_loopback();
        let servers: Vec<_> = servers.into_iter().filter(is_usable).take(SERVERS_MAX).collect();
        if servers != self.name_servers {
            self.names().update_servers(&servers);
            self.name_servers = servers;
        }
    }

    fn start_query(&mut self, name: &str, kind: DnsQueryType) -> Result<u64, NetError> {
        if self.name_servers.is_empty() {
            return Err(NetError::NoNameServer);
        }
        if self.queries.len() >= QUERIES_MAX {
            return Err(NetError::TooMany);
        }
        let socket = self.control.get_mut::<Socket>(self.names);
        // Its port and number are what a forged answer needs.
        let mut interface = interface_for(self.numbers.next(), DeviceCapabilities::default(), self.now);
        let handle = socket.start_query(interface.context(), name, kind).map_err(|error| match error {
            StartQueryError::NoFreeSlot => NetError::TooMany,
            StartQueryError::InvalidName | StartQueryError::NameTooLong => NetError::InvalidName,
        })?;
        let number = self.numbers.next();
        self.queries.push(Pending { number, handle, answer: None, waker: Waker::noop().clone() });
        Ok(number)
    }

    /// The answer; `None` inside when there is none.
    fn poll_query(
        &mut self,
        number: u64,
        context: &mut Context,
    ) -> Poll<Option<(SocketAddr, Outcome, Vec<IpAddress>)>> {
        let socket = self.control.get_mut::<Socket>(self.names);
        let Some(at) = self.queries.iter().position(|pending| pending.number == number) else {
            return Poll::Ready(None);
        };
        let pending = &mut self.queries[at];
        if let Some(answer) = pending.answer.take() {
            self.queries.remove(at);
            return Poll::Ready(Some(answer));
        }
        match socket.get_query_result(pending.handle) {
            Err(GetQueryResultError::Pending) => {
                socket.register_query_waker(pending.handle, context.waker());
                pending.waker.clone_from(context.waker());
                glass_lib_trace::block(BlockKind::Resource, &NAME, 0);
                Poll::Pending
            }
            // An answer would have been found where it was received.
            Ok(_) | Err(GetQueryResultError::Failed) => {
                self.queries.remove(at);
                Poll::Ready(None)
            }
        }
    }

    /// Finds which query has ended with a server's answer that smoltcp has just received.
    pub(crate) fn note_answer(&mut self, server: SocketAddr, outcome: Outcome) {
        let socket = self.control.get_mut::<Socket>(self.names);
        for pending in self.queries.iter_mut().filter(|pending| pending.answer.is_none()) {
            let addresses = match socket.get_query_result(pending.handle) {
                Err(GetQueryResultError::Pending) => continue,
                Err(GetQueryResultError::Failed) => Vec::new(),
                Ok(addresses) => addresses.into_iter().collect(),
            };
            pending.answer = Some((server, outcome, addresses));
            pending.waker.wake_by_ref();
        }
    }

    /// Wakes those whose wait has ended.
    pub(crate) fn ring_alarms(&mut self) {
        while let Some(alarm) = self.alarms.first_entry().filter(|alarm| alarm.key().0 <= self.now) {
            alarm.remove().wake();
        }
    }
}
