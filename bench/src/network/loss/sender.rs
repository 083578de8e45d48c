//! A sender on Linux whose client chooses its congestion control. `bench-tcp` as a process sends by the default of its network namespace,
//! which may only be one that the machine allows in every namespace.

use crate::network::PIECE_BYTES;
use anyhow::{Context, Result};
use glass_tests::netns::Namespace;
use rustix::net::sockopt::set_tcp_congestion;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval at which a connection is accepted, or the end is noticed.
const POLL: Duration = Duration::from_millis(2);

/// Accepts connections until it is dropped. A client's request is a line with the name of a congestion control; it gets bytes until it
/// resets the connection.
pub struct Sender {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    /// Listens in `namespace`.
    pub fn start(namespace: &Namespace, address: SocketAddr) -> Result<Sender> {
        let listener = namespace.inside(|| TcpListener::bind(address).context("cannot listen"))?;
        listener.set_nonblocking(true)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let is_over = is_over.clone();
            move || accept(&listener, &is_over)
        });
        Ok(Sender { is_over, thread: Some(thread) })
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // It has panicked in the worst case, and its message was printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn accept(listener: &TcpListener, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        match listener.accept() {
            // An error is that of a client that is gone. Its thread ends with the connection.
            Ok((stream, _)) => _ = std::thread::spawn(move || _ = send(stream)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(POLL),
            Err(_) => return,
        }
    }
}

fn send(mut stream: TcpStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    let mut algorithm = String::new();
    BufReader::new(&stream).read_line(&mut algorithm)?;
    set_tcp_congestion(&stream, algorithm.trim()).with_context(|| format!("Linux has no {algorithm:?}"))?;
    let buffer = vec![b'g'; PIECE_BYTES];
    loop {
        stream.write_all(&buffer)?;
    }
}
