//! Open ports. A socket is made when a SYN for one arrives, so an idle listener costs no buffers.

use crate::ingress::Opening;
use crate::state::State;
use alloc::collections::VecDeque;
use core::task::{Poll, Waker};
use glass_api::NetError;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use smoltcp::wire::IpEndpoint;

pub(crate) struct ListenerState {
    /// Names the listener; ports can be reused.
    id: u64,
    pub(crate) port: u16,
    /// Connections that are half open or wait to be accepted, in the order of their SYNs.
    pending: VecDeque<SocketHandle>,
    waker: Option<Waker>,
}

/// What to do with a frame that opens a connection.
pub(crate) enum Admission {
    /// smoltcp knows best.
    Pass,
    /// Forget the frame; the peer will try again.
    Refuse,
    /// The last socket was made for it.
    Made { listener_id: u64, handle: SocketHandle },
}

impl State {
    /// Opens a port and tells the listener's name and the port.
    pub(crate) fn listen(&mut self, port: u16) -> Result<(u64, u16), NetError> {
        let port = match port {
            0 => self.free_port().ok_or(NetError::TooMany)?,
            port if self.listeners.iter().any(|listener| listener.port == port) => {
                return Err(NetError::PortInUse(port));
            }
            port => port,
        };
        self.listeners_made += 1;
        let id = self.listeners_made;
        self.listeners.push(ListenerState { id, port, pending: VecDeque::new(), waker: None });
        Ok((id, port))
    }

    /// Closes the port and resets what was not accepted.
    pub(crate) fn close_listener(&mut self, id: u64) {
        if let Some(index) = self.listeners.iter().position(|listener| listener.id == id) {
            let listener = self.listeners.remove(index);
            for handle in listener.pending {
                self.release(handle, false);
            }
        }
    }

    /// The next connection that is open.
    pub(crate) fn poll_accept(&mut self, id: u64, waker: &Waker) -> Poll<(SocketHandle, IpEndpoint)> {
        let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == id) else {
            return Poll::Pending;
        };
        let mut index = 0;
        while let Some(&handle) = listener.pending.get(index) {
            let socket = self.sockets.get_mut::<tcp::Socket>(handle);
            match (socket.state(), socket.remote_endpoint()) {
                // `reap_pending` removes these.
                (tcp::State::Listen | tcp::State::Closed, _) | (_, None) => {}
                (tcp::State::SynReceived, _) => socket.register_recv_waker(waker),
                (_, Some(remote)) => {
                    listener.pending.remove(index);
                    self.established(handle);
                    self.counters.accepted += 1;
                    return Poll::Ready((handle, remote));
                }
            }
            index += 1;
        }
        listener.waker = Some(waker.clone());
        Poll::Pending
    }

    /// Looks at a SYN before smoltcp does, and makes the socket that will take it.
    pub(crate) fn admit(&mut self, opening: Opening) -> Admission {
        let Opening { local, remote } = opening;
        if !self.listeners.iter().any(|listener| listener.port == local.port) {
            return Admission::Pass;
        }
        if let Some(handle) = self.find(local, remote) {
            self.end_time_wait(handle);
            if self.find(local, remote).is_some() {
                return Admission::Pass;
            }
        }
        let backlog_max = self.config.backlog_max;
        let Some(listener) = self.listeners.iter().find(|listener| listener.port == local.port) else {
            return Admission::Pass;
        };
        let listener_id = listener.id;
        if listener.pending.len() >= backlog_max {
            self.counters.refused_backlog += 1;
            return Admission::Refuse;
        }
        if !self.make_room() {
            self.counters.refused_limit += 1;
            return Admission::Refuse;
        }
        let Ok(mut socket) = self.make_socket() else { return Admission::Refuse };
        if socket.listen(local.port).is_err() {
            return Admission::Refuse;
        }
        Admission::Made { listener_id, handle: self.add_socket(socket) }
    }

    /// Keeps a socket that has taken its SYN and drops one that has not (a broken checksum, say).
    pub(crate) fn admitted(&mut self, listener_id: u64, handle: SocketHandle) {
        let listening = self.socket(handle).is_listening();
        let listener = self.listeners.iter_mut().find(|listener| listener.id == listener_id);
        match listener {
            Some(listener) if !listening => {
                listener.pending.push_back(handle);
                if let Some(waker) = &listener.waker {
                    self.sockets.get_mut::<tcp::Socket>(handle).register_recv_waker(waker);
                }
            }
            _ => self.remove_socket(handle),
        }
    }

    /// Frees connections that ended before anybody accepted them.
    pub(crate) fn reap_pending(&mut self) {
        let mut listeners = core::mem::take(&mut self.listeners);
        for listener in &mut listeners {
            listener.pending.retain(|&handle| match self.socket(handle).state() {
                // A reset while half open makes smoltcp listen again.
                tcp::State::Listen => {
                    self.abandon(handle);
                    false
                }
                // Its reset may have nowhere to go: a flood comes from addresses that nobody answers for.
                tcp::State::Closed => {
                    self.counters.abandoned_opening += 1;
                    self.release(handle, false);
                    false
                }
                tcp::State::SynReceived => true,
                _ => {
                    self.established(handle);
                    true
                }
            });
        }
        self.listeners = listeners;
    }

    fn abandon(&mut self, handle: SocketHandle) {
        self.counters.abandoned_opening += 1;
        self.remove_socket(handle);
    }
}
