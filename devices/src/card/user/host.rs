//! The host's side of a user network: sockets, and what becomes possible with them. All calls return at once.

use anyhow::{Context, Result};
use glass_api::Instant;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{set_socket_linger, set_tcp_nodelay, socket_error};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, acceptfrom_with, connect, recv, send};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;
use std::time::Duration;

/// Events that are taken at once.
const EVENTS: usize = 64;

/// Clients of a port that are not accepted yet; the host may have a lower limit (`net.core.somaxconn`).
const CLIENTS_MAX: i32 = 4096;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Timer,
    Listener(usize),
    Connection(usize),
    Datagrams(usize),
}

impl Subject {
    fn to_data(self) -> EventData {
        let (kind, index) = match self {
            Subject::Timer => (0, 0),
            Subject::Listener(index) => (1, index),
            Subject::Connection(index) => (2, index),
            Subject::Datagrams(index) => (3, index),
        };
        EventData::new_u64((index as u64) << 2 | kind)
    }

    fn of(data: EventData) -> Subject {
        let index = (data.u64() >> 2) as usize;
        match data.u64() & 3 {
            0 => Subject::Timer,
            1 => Subject::Listener(index),
            2 => Subject::Connection(index),
            _ => Subject::Datagrams(index),
        }
    }
}

/// Something that became possible.
#[derive(Debug, Clone, Copy)]
pub(super) struct Became {
    pub subject: Subject,
    pub is_readable: bool,
    pub is_writable: bool,
}

/// All that a user network waits for, as one file.
pub(super) struct Host {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When the timer expires.
    armed: Option<Instant>,
}

impl Host {
    pub fn new() -> Result<Host> {
        let no_descriptors = "there are no descriptors";
        let epoll = epoll::create(CreateFlags::CLOEXEC).context(no_descriptors)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).context(no_descriptors)?;
        let host = Host { epoll, timer, armed: None };
        host.watch(&host.timer, Subject::Timer).context(no_descriptors)?;
        Ok(host)
    }

    /// The file that is readable when something became possible.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Reports each time that something becomes possible with a file, until it is closed.
    pub fn watch(&self, file: impl AsFd, subject: Subject) -> rustix::io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, file, subject.to_data(), flags)
    }

    /// What became possible, as far as is taken at once.
    pub fn take(&mut self) -> Vec<Became> {
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return Vec::new() };
        let became = |event: &epoll::Event| {
            let flags = event.flags;
            let is_over = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            Became {
                subject: Subject::of(event.data),
                is_readable: is_over || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
                is_writable: is_over || flags.contains(EventFlags::OUT),
            }
        };
        let all: Vec<Became> = events.iter().map(became).collect();
        if all.iter().any(|became| became.subject == Subject::Timer) {
            self.armed = None;
        }
        all
    }

    /// Something becomes possible at this time, too, or only by sockets.
    pub fn wake_at(&mut self, at: Option<Instant>) {
        if at == self.armed {
            return;
        }
        self.armed = at;
        // Zero would be never.
        let nanos = at.map_or(0, |at| at.since(now()).as_nanos().max(1));
        let value = Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
        let new = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &new);
        debug_assert!(set.is_ok(), "{set:?}");
    }
}

/// The time now, since about the first call.
pub(super) fn now() -> Instant {
    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    // Never 0, so that no time is before it.
    Instant(1_000_000_000) + START.elapsed()
}

/// Listens at a port of this host's loopback.
pub(super) fn listen(port: u16) -> Result<TcpListener> {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen at port {port} of this host: choose another one with --port"))?;
    listener.set_nonblocking(true).context("cannot use a socket")?;
    // Clients wait there while the guest boots, and the standard library has room for 128.
    rustix::net::listen(&listener, CLIENTS_MAX).context("cannot use a socket")?;
    Ok(listener)
}

/// The next connection of a listener, and its other end; `None` if there is none now.
pub(super) fn accept(listener: &TcpListener) -> Option<(OwnedFd, SocketAddrV4)> {
    let accepted = acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    let (socket, address) = accepted.ok()?;
    let _ = set_tcp_nodelay(&socket, true);
    match SocketAddr::try_from(address?).ok()? {
        SocketAddr::V4(address) => Some((socket, address)),
        SocketAddr::V6(_) => None,
    }
}

/// Begins to connect a socket. Whether that succeeds is known when it can be written.
pub(super) fn start_connecting(kind: SocketType, to: SocketAddrV4) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error),
    }
    if kind == SocketType::STREAM {
        let _ = set_tcp_nodelay(&socket, true);
    }
    Ok(socket)
}

/// Whether a socket that was being connected is.
pub(super) fn is_connected(socket: &OwnedFd) -> bool {
    matches!(socket_error(socket), Ok(Ok(())))
}

/// What came of a read or a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    Bytes(usize),
    /// Nothing can be moved now.
    Blocked,
    /// The other end has closed it.
    End,
    Failed,
}

impl Moved {
    fn of(result: rustix::io::Result<usize>) -> Moved {
        match result {
            Ok(count) => Moved::Bytes(count),
            Err(Errno::AGAIN) => Moved::Blocked,
            Err(_) => Moved::Failed,
        }
    }
}

/// Receives into `buffer`, which is not empty.
pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Moved {
    match Moved::of(retry_on_intr(|| recv(socket, &mut *buffer, RecvFlags::empty())).map(|(count, _)| count)) {
        Moved::Bytes(0) => Moved::End,
        moved => moved,
    }
}

/// Receives a datagram: its bytes, which may be none.
pub(super) fn receive_datagram(socket: &OwnedFd, buffer: &mut [u8]) -> Moved {
    Moved::of(retry_on_intr(|| recv(socket, &mut *buffer, RecvFlags::TRUNC)).map(|(_, count)| count))
}

/// Sends what there is room for.
pub(super) fn send_bytes(socket: &OwnedFd, bytes: &[u8]) -> Moved {
    Moved::of(retry_on_intr(|| send(socket, bytes, SendFlags::NOSIGNAL)))
}

/// The other end gets a reset when the socket is closed.
pub(super) fn reset_at_close(socket: &OwnedFd) {
    let _ = set_socket_linger(socket, Some(Duration::ZERO));
}

/// The other end receives no more.
pub(super) fn shut(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
}
