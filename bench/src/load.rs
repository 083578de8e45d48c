//! Clients that request one file over HTTP again and again: over TCP, or over the unix socket that leads to a VM's vsock, by the same code.

use anyhow::{Context, Result, bail, ensure};
use glass_tests::netns::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A server that sends nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest head of a response.
const HEAD_BYTES_MAX: usize = 4096;
const BUFFER_BYTES: usize = 256 << 10;

/// Where a server listens.
#[derive(Debug, Clone)]
pub enum Place {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A vsock port of a VM, behind a unix socket.
    Vsock(PathBuf, u32),
}

impl Place {
    /// A connection. Both kinds of sockets are read and written alike.
    pub fn connect(&self) -> io::Result<TcpStream> {
        let stream = match self {
            Place::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, PATIENCE)?;
                stream.set_nodelay(true)?;
                stream
            }
            Place::Vsock(path, port) => connect_vsock(path, *port)?,
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Waits until it accepts connections, of which `near` is the network.
    pub fn wait(&self, near: &Namespace, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            match near.inside(|| Ok(self.connect()?)) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > end => return Err(error).context("the server does not listen"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

fn connect_vsock(path: &Path, port: u32) -> io::Result<TcpStream> {
    let mut stream = TcpStream::from(OwnedFd::from(UnixStream::connect(path)?));
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("CONNECT {port}\n").as_bytes())?;
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" && answer.len() < 16 {
        stream.read_exact(&mut byte)?;
        answer.extend(byte);
    }
    if answer.starts_with(b"OK ") { Ok(stream) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
}

/// What is requested, and how.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    pub path: &'a str,
    /// Length of the file.
    pub bytes: u64,
    /// Requests in progress, each on a connection of its own.
    pub connections: usize,
    /// Whether a connection is used for all its requests; otherwise each request has one of its own, as with `ab`.
    pub keeps: bool,
    pub duration: Duration,
}

impl Load<'_> {
    /// Requests per second that were answered with the whole file. One request on each connection precedes them.
    pub fn run(&self, place: &Place) -> Result<f64> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let start = || -> Result<Exchange> {
            let mut exchange =
                Exchange { stream: place.connect().context("cannot connect")?, head: Vec::new(), left: None };
            exchange.send(self)?;
            Ok(exchange)
        };
        let mut exchanges: Vec<Exchange> = (0..self.connections).map(|_| start()).collect::<Result<_>>()?;
        let mut answered = 0u64;
        let (mut begin, mut warm) = (Instant::now(), 0);
        loop {
            let ready = ready(&exchanges)?;
            for index in ready {
                let exchange = &mut exchanges[index];
                if !exchange.advance(self, &mut buffer)? {
                    continue;
                }
                match warm < self.connections {
                    true => warm += 1,
                    false => answered += 1,
                }
                if warm == self.connections && answered == 0 {
                    begin = Instant::now();
                }
                if self.keeps {
                    exchange.send(self)?;
                } else {
                    *exchange = start()?;
                }
            }
            if answered > 0 && begin.elapsed() >= self.duration {
                return Ok(answered as f64 / begin.elapsed().as_secs_f64());
            }
        }
    }
}

/// The numbers of those that have something to read.
fn ready(exchanges: &[Exchange]) -> Result<Vec<usize>> {
    let mut polled: Vec<PollFd> =
        exchanges.iter().map(|exchange| PollFd::new(&exchange.stream, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    ensure!(poll(&mut polled, Some(&limit))? > 0, "the server sends nothing for {} s", PATIENCE.as_secs());
    Ok((0..polled.len()).filter(|index| !polled[*index].revents().is_empty()).collect())
}

/// One request and its response.
struct Exchange {
    stream: TcpStream,
    head: Vec<u8>,
    /// Bytes of the body that have not been received; `None` before the end of the head.
    left: Option<u64>,
}

impl Exchange {
    fn send(&mut self, load: &Load) -> Result<()> {
        self.head.clear();
        self.left = None;
        let version = if load.keeps { "1.1" } else { "1.0" };
        let request = format!("GET /{} HTTP/{version}\r\nHost: bench\r\n\r\n", load.path);
        self.stream.write_all(request.as_bytes()).context("cannot send a request")
    }

    /// Reads once; true when the response is whole, and its connection at its end if it is not kept.
    fn advance(&mut self, load: &Load, buffer: &mut [u8]) -> Result<bool> {
        let count = self.stream.read(buffer).context("cannot read a response")?;
        if count == 0 {
            ensure!(
                !load.keeps && self.left == Some(0),
                "the server closed a connection before its response was whole"
            );
            return Ok(true);
        }
        let mut body_bytes = count as u64;
        if self.left.is_none() {
            self.head.extend_from_slice(&buffer[..count]);
            let Some(end) = self.head.windows(4).position(|window| window == b"\r\n\r\n") else {
                ensure!(self.head.len() <= HEAD_BYTES_MAX, "a response has a head of more than {HEAD_BYTES_MAX} bytes");
                return Ok(false);
            };
            let head = String::from_utf8_lossy(&self.head[..end]).to_ascii_lowercase();
            check(&head, load.bytes)?;
            self.left = Some(load.bytes);
            body_bytes = (self.head.len() - end - 4) as u64;
        }
        match self.left.and_then(|left| left.checked_sub(body_bytes)) {
            Some(left) => self.left = Some(left),
            None => bail!("a response is longer than its file"),
        }
        Ok(load.keeps && self.left == Some(0))
    }
}

/// Whether a head, in lower case, is that of the whole file.
fn check(head: &str, bytes: u64) -> Result<()> {
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default();
    ensure!(status.split(' ').nth(1) == Some("200"), "the answer is {status}");
    let length = lines.find_map(|line| line.strip_prefix("content-length:")).map(str::trim);
    ensure!(length == Some(bytes.to_string().as_str()), "the length is {length:?}, not {bytes}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Answers each request with `answer` on each connection, which it closes after `kept` of them.
    fn serve(answer: &'static [u8], kept: usize) -> Place {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let place = Place::Tcp(listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    for _ in 0..kept {
                        let mut request = Vec::new();
                        while !request.ends_with(b"\r\n\r\n") {
                            let mut byte = [0];
                            stream.read_exact(&mut byte)?;
                            request.extend(byte);
                        }
                        // In two parts, to be put together.
                        stream.write_all(&answer[..10])?;
                        thread::sleep(Duration::from_millis(1));
                        stream.write_all(&answer[10..])?;
                    }
                    io::Result::Ok(())
                });
            }
        });
        place
    }

    fn load(connections: usize, keeps: bool) -> Load<'static> {
        Load { path: "x", bytes: 5, connections, keeps, duration: Duration::from_millis(50) }
    }

    #[test]
    fn responses_are_counted_with_and_without_kept_connections() {
        const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        let per_second = load(3, true).run(&serve(ANSWER, usize::MAX)).unwrap();
        assert!(per_second > 0.0 && per_second < 1e4, "{per_second}");
        assert!(load(1, false).run(&serve(ANSWER, 1)).unwrap() > 0.0);
    }

    #[test]
    fn other_answers_are_errors() {
        let error = |answer, kept, keeps| load(1, keeps).run(&serve(answer, kept)).unwrap_err().to_string();
        assert!(error(b"HTTP/1.1 404 No\r\nContent-Length: 5\r\n\r\nhello", 9, true).contains("404"));
        assert!(error(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello!", 9, true).contains("length"));
        assert!(error(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!", 9, true).contains("longer"));
        assert!(error(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", 1, false).contains("closed"));
    }
}
