//! Vsock of a process: the host's, or a unix socket that speaks as those of VMs do.
//!
//! The second form is for a host without AF_VSOCK, and for the same clients as a VM's: Firecracker, Cloud Hypervisor and
//! vhost-device-vsock give a VM's host one unix socket. A client connects to it, writes `CONNECT PORT` and a line end, and reads
//! `OK NUMBER` and a line end; then the connection is the service's. A connection that the service opens to port P of its host leads
//! to the unix socket of that name with `_P` behind it.

use crate::cores::LinuxCore;
use crate::reactor::{Interest, Role, Watched};
use crate::stream::{HostStream, net_error};
pub(crate) use crate::sys::{SocketAddress, vsock_address as address};
use glass_api::{Clock, NetError, Port, VsockAddress};
use glass_lib_executor::sync::Notify;
use glass_lib_trace::Name;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Connections of a port that wait to be accepted, and clients that have not named their port yet; more are refused.
const BACKLOG: usize = 128;
/// How long a client may take to name its port.
const NAMING_TIME: Duration = Duration::from_secs(10);
/// The longest first line, `CONNECT 4294967295` and its end.
const LINE_BYTES_MAX: usize = 19;
/// What a client calls a free port.
const ANY: u32 = u32::MAX;
/// The first port that is given to a listener on any.
const FIRST_FREE_PORT: u32 = 49_152;
/// Pause after a failure to accept, which may persist.
const PAUSE: Duration = Duration::from_millis(100);

static ACCEPT: Name = Name::new("vsock accept");

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// A socket of the host's vsock.
pub(crate) fn new_socket() -> Result<OwnedFd, NetError> {
    rustix::net::socket_with(AddressFamily::VSOCK, SocketType::STREAM, FLAGS, None).map_err(|errno| match errno {
        Errno::AFNOSUPPORT | Errno::NODEV => NetError::NoVsock,
        other => net_error(other),
    })
}

/// A socket that is bound to a port of the host's vsock, and the port.
pub(crate) fn bind(port: u32) -> Result<(OwnedFd, u32), NetError> {
    let socket = new_socket()?;
    let wanted = VsockAddress { cid: ANY, port: if port == 0 { ANY } else { port } };
    rustix::net::bind(&socket, &SocketAddress::new(wanted)).map_err(|errno| match errno {
        Errno::ADDRINUSE => NetError::PortInUse(Port::Vsock(port)),
        other => net_error(other),
    })?;
    let bound = rustix::net::getsockname(&socket).map_err(net_error)?;
    Ok((socket, address(&bound).map_or(port, |bound| bound.port)))
}

/// A unix socket in the place of vsock.
pub(crate) struct Hybrid {
    path: PathBuf,
    is_open: Cell<bool>,
    ports: Rc<RefCell<BTreeMap<u32, Rc<Backlog>>>>,
}

/// Connections of a port that wait to be accepted.
struct Backlog {
    waiting: RefCell<VecDeque<HostStream>>,
    changed: Notify,
}

/// An open port. Dropping it closes the port.
pub(crate) struct HybridPort {
    ports: Rc<RefCell<BTreeMap<u32, Rc<Backlog>>>>,
    number: u32,
    backlog: Rc<Backlog>,
}

impl Hybrid {
    pub(crate) fn new(path: PathBuf) -> Hybrid {
        Hybrid { path, is_open: Cell::new(false), ports: Rc::default() }
    }

    /// Opens a port; 0 picks a free one. The first one makes the unix socket.
    pub(crate) fn listen(&self, core: &LinuxCore, port: u32) -> Result<HybridPort, NetError> {
        if !self.is_open.get() {
            self.open(core)?;
            self.is_open.set(true);
        }
        let mut ports = self.ports.borrow_mut();
        let number = match port {
            0 => (FIRST_FREE_PORT..ANY).find(|port| !ports.contains_key(port)).ok_or(NetError::TooMany)?,
            port if ports.contains_key(&port) => return Err(NetError::PortInUse(Port::Vsock(port))),
            port => port,
        };
        let backlog = Rc::new(Backlog { waiting: RefCell::default(), changed: Notify::of_resource(&ACCEPT) });
        ports.insert(number, backlog.clone());
        Ok(HybridPort { ports: self.ports.clone(), number, backlog })
    }

    fn open(&self, core: &LinuxCore) -> Result<(), NetError> {
        let socket = bind_unix(&self.path).map_err(net_error)?;
        rustix::net::listen(&socket, BACKLOG as i32).map_err(net_error)?;
        let socket = core.reactor().watch(socket, Role::Listener(0), false).map_err(net_error)?;
        let (core_of_task, ports) = (core.downgrade(), self.ports.clone());
        let naming = Rc::new(Cell::new(0));
        let accept = async move {
            let accept = || rustix::net::accept_with(socket.fd(), FLAGS);
            // Clients have no ports of their own: they are numbered.
            let mut clients = 0_u32;
            loop {
                let accepted = poll_fn(|context| socket.poll(Interest::Read, context, accept)).await;
                let Some(own) = core_of_task.upgrade() else { return };
                let watched = accepted.and_then(|client| own.reactor().watch(client, Role::Connection, true));
                let Ok(client) = watched else {
                    own.sleep_until(own.now() + PAUSE).await;
                    continue;
                };
                if naming.get() >= BACKLOG {
                    continue;
                }
                clients = clients.wrapping_add(1);
                let peer = VsockAddress { cid: VsockAddress::HOST, port: clients };
                let (core, ports, count) = (own.clone(), ports.clone(), Named::new(&naming));
                let admit = async move {
                    let _count = count;
                    admit(&core, client, peer, &ports).await;
                };
                // A client beyond the limit of tasks is dropped.
                let _ = own.executor().spawn("vsock client", admit);
            }
        };
        core.executor().spawn("vsock", accept).map(drop).map_err(|_| NetError::TooMany)
    }

    /// Removes the socket's file.
    pub(crate) fn remove(&self) {
        if self.is_open.take() {
            // Left over at worst: the next start removes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// A socket for a connection to port `port` of the host, and the name to connect it to.
    pub(crate) fn socket_to(&self, port: u32) -> Result<(OwnedFd, SocketAddrUnix), NetError> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        let address = SocketAddrUnix::new(path).map_err(net_error)?;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None);
        Ok((socket.map_err(net_error)?, address))
    }
}

/// A socket with this name. A file that a dead process has left is replaced.
fn bind_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let new = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None);
    let socket = new()?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if rustix::net::connect(new()?, &address) == Err(Errno::CONNREFUSED) => {
            rustix::fs::unlink(path)?;
            rustix::net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    Ok(socket)
}

/// Counts a client until this is dropped.
struct Named(Rc<Cell<usize>>);

impl Named {
    fn new(count: &Rc<Cell<usize>>) -> Named {
        count.set(count.get() + 1);
        Named(count.clone())
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Reads which port a client wants, and queues the connection there. One that names no open port is closed.
async fn admit(core: &LinuxCore, client: Watched, peer: VsockAddress, ports: &RefCell<BTreeMap<u32, Rc<Backlog>>>) {
    let end = core.sleep_until(core.now() + NAMING_TIME);
    let Some(port) = first(read_port(&client), end).await else { return };
    let Some(backlog) = ports.borrow().get(&port).cloned() else { return };
    if backlog.waiting.borrow().len() >= BACKLOG {
        return;
    }
    // A new connection has room for it.
    let answer = format!("OK {}\n", peer.port);
    if rustix::net::send(client.fd(), answer.as_bytes(), SendFlags::NOSIGNAL) == Ok(answer.len()) {
        backlog.waiting.borrow_mut().push_back(HostStream::new(client, port, peer.into()));
        backlog.changed.notify_one();
    }
}

/// The value of `work`, or `None` if `end` comes first.
async fn first<T>(work: impl Future<Output = Option<T>>, end: impl Future<Output = ()>) -> Option<T> {
    let (mut work, mut end) = (pin!(work), pin!(end));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(value),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// The port of a first line; `None` if it is not valid. What is behind the line stays in the socket.
async fn read_port(client: &Watched) -> Option<u32> {
    let mut line = Vec::new();
    while line.len() < LINE_BYTES_MAX {
        let mut byte = [0];
        let mut read = || rustix::net::recv(client.fd(), &mut byte, RecvFlags::empty()).map(|(count, _)| count);
        match poll_fn(|context| client.poll(Interest::Read, context, &mut read)).await {
            Ok(1) if byte[0] == b'\n' => {
                let port = std::str::from_utf8(&line).ok()?.strip_prefix("CONNECT ")?;
                let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
                return port.parse().ok().filter(|_| is_number);
            }
            Ok(1) => line.push(byte[0]),
            _ => return None,
        }
    }
    None
}

impl HybridPort {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> HostStream {
        loop {
            let changed = self.backlog.changed.notified();
            if let Some(stream) = self.backlog.waiting.borrow_mut().pop_front() {
                return stream;
            }
            changed.await;
        }
    }
}

impl Drop for HybridPort {
    fn drop(&mut self) {
        self.ports.borrow_mut().remove(&self.number);
        // Outside of the borrow: this closes connections.
        let waiting = std::mem::take(&mut *self.backlog.waiting.borrow_mut());
        drop(waiting);
    }
}
