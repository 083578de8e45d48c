//! Host names: queries of the network's name servers (RFC 1035), by smoltcp's client.

use crate::numbers::interface_for;
use crate::sockets::Sockets;
use crate::state::{Shared, State};
use crate::trace::NAME;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::net::IpAddr;
use core::task::{Context, Poll};
use core::time::Duration;
use glass_api::NetError;
use glass_trace::BlockKind;
use smoltcp::phy::DeviceCapabilities;
use smoltcp::socket::dns::{GetQueryResultError, QueryHandle, Socket, StartQueryError};
use smoltcp::wire::{DnsQueryType, IpAddress};

/// Name servers that are used, the first ones of a list (feature `dns-max-server-count-3` of smoltcp).
pub(crate) const SERVERS_MAX: usize = 3;
/// Queries at once.
const QUERIES_MAX: usize = 64;
/// How long smoltcp waits for a server before it tries the next one, or fails.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// A query; its drop ends it.
struct Query<'s> {
    shared: &'s Rc<Shared>,
    handle: Option<QueryHandle>,
}

impl Sockets {
    /// The addresses of `name`: first IPv4, then IPv6 if we have an address that reaches other networks.
    pub(crate) async fn query(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        if let Ok(address) = name.parse() {
            return Ok([address].into());
        }
        let shared = self.shared()?;
        let has_ipv6 = shared.state.borrow().far_ipv6().is_some();
        let kinds = [Some(DnsQueryType::A), has_ipv6.then_some(DnsQueryType::Aaaa)];
        let mut addresses = Vec::new();
        let mut error = NetError::NoSuchName;
        for kind in kinds.into_iter().flatten() {
            match Query::start(shared, name, kind)?.answer().await {
                Ok(found) => addresses.extend(found),
                Err(failed) => error = failed,
            }
        }
        if addresses.is_empty() { Err(error) } else { Ok(addresses) }
    }
}

impl<'s> Query<'s> {
    fn start(shared: &'s Rc<Shared>, name: &str, kind: DnsQueryType) -> Result<Query<'s>, NetError> {
        let handle = shared.state.borrow_mut().start_query(name, kind)?;
        Ok(Query { shared, handle: Some(handle) })
    }

    async fn answer(mut self) -> Result<Vec<IpAddr>, NetError> {
        let handle = self.handle.expect("it has started");
        let begun = self.shared.state.borrow().now;
        let answer = poll_fn(|context| self.shared.state.borrow_mut().poll_query(handle, context)).await;
        self.handle = None;
        let waited = self.shared.state.borrow().now - begun;
        match answer {
            Some(addresses) => Ok(addresses),
            // smoltcp reports a time-out as the server's word that there is no such name.
            None if waited >= SERVER_TIMEOUT => Err(NetError::TimedOut),
            None => Err(NetError::NoSuchName),
        }
    }
}

impl Drop for Query<'_> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            let mut state = self.shared.state.borrow_mut();
            state.queries -= 1;
            state.names().cancel_query(handle);
        }
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

    fn start_query(&mut self, name: &str, kind: DnsQueryType) -> Result<QueryHandle, NetError> {
        if self.name_servers.is_empty() {
            return Err(NetError::NoNameServer);
        }
        if self.queries >= QUERIES_MAX {
            return Err(NetError::TooMany);
        }
        let socket = self.control.get_mut::<Socket>(self.names);
        // Its port and number are what a forged answer needs.
        let mut interface = interface_for(self.numbers.next(), None, DeviceCapabilities::default(), self.now);
        let handle = socket.start_query(interface.context(), name, kind).map_err(|error| match error {
            StartQueryError::NoFreeSlot => NetError::TooMany,
            StartQueryError::InvalidName | StartQueryError::NameTooLong => NetError::NoSuchName,
        })?;
        self.queries += 1;
        Ok(handle)
    }

    /// `None` when there is no answer.
    fn poll_query(&mut self, handle: QueryHandle, context: &mut Context) -> Poll<Option<Vec<IpAddr>>> {
        let socket = self.names();
        let answer = match socket.get_query_result(handle) {
            Err(GetQueryResultError::Pending) => {
                socket.register_query_waker(handle, context.waker());
                glass_trace::block(BlockKind::Resource, &NAME, 0);
                return Poll::Pending;
            }
            Ok(addresses) => Some(addresses.into_iter().map(IpAddr::from).collect()),
            Err(GetQueryResultError::Failed) => None,
        };
        self.queries -= 1;
        Poll::Ready(answer)
    }
}
