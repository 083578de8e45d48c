//! A small HTTP/1.1 client that can also misbehave. Every wait has a limit.

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a read or write may make no progress.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The longest line of a response's head.
const LINE_BYTES_MAX: u64 = 16 * 1024;
/// The most header lines of a response.
const HEADERS_MAX: usize = 100;
/// The longest body that is kept in memory.
const BODY_BYTES_MAX: u64 = 128 << 20;
/// Bytes copied at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// Status line and headers of a response.
#[derive(Debug, Clone)]
pub struct Head {
    /// The status code.
    pub status: u16,
    /// Names in lower case, with their values.
    pub headers: Vec<(String, String)>,
}

/// A response with its body.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status and headers.
    pub head: Head,
    /// The body.
    pub body: Vec<u8>,
}

impl Head {
    /// The value of the first header called `name` (in lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body's length if the server announced it.
    pub fn content_length(&self) -> Option<u64> {
        self.header("content-length")?.parse().ok()
    }
}

impl Response {
    /// The status code.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// The entity tag, empty if the server sent none.
    pub fn etag(&self) -> &str {
        self.head.header("etag").unwrap_or_default()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// One connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Client {
    /// Connects, with [`PATIENCE`].
    pub fn connect(address: SocketAddr) -> io::Result<Client> {
        Client::connect_within(address, PATIENCE)
    }

    /// Connects; no single wait on this connection will be longer than `patience`.
    pub fn connect_within(address: SocketAddr, patience: Duration) -> io::Result<Client> {
        Client::over(TcpStream::connect_timeout(&address, patience)?, patience)
    }

    fn over(stream: TcpStream, patience: Duration) -> io::Result<Client> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Client { stream: BufReader::with_capacity(CHUNK_BYTES, stream) })
    }

    /// Connects from the given local address, with [`PATIENCE`] once it is connected.
    pub fn connect_from(source: Ipv4Addr, address: SocketAddr) -> io::Result<Client> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddr::from((source, 0)))?;
        connect(&socket, &address)?;
        Client::over(TcpStream::from(socket), PATIENCE)
    }

    /// Connects to a vsock port behind the unix socket `path`, as `glass run --vsock=path` makes it, with [`PATIENCE`].
    pub fn connect_vsock(path: &Path, port: u32) -> io::Result<Client> {
        let stream = TcpStream::from(OwnedFd::from(UnixStream::connect(path)?));
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut stream = BufReader::with_capacity(CHUNK_BYTES, stream);
        stream.get_mut().write_all(format!("CONNECT {port}\n").as_bytes())?;
        let mut answer = String::new();
        stream.by_ref().take(16).read_line(&mut answer)?;
        if answer.starts_with("OK ") { Ok(Client { stream }) } else { Err(invalid(format!("CONNECT: {answer:?}"))) }
    }

    /// Changes how long a read or write may make no progress.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(patience))?;
        self.stream.get_ref().set_write_timeout(Some(patience))
    }

    /// Sends bytes unchanged.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Closes our half of the connection.
    pub fn finish_sending(&self) -> io::Result<()> {
        self.stream.get_ref().shutdown(std::net::Shutdown::Write)
    }

    /// Sends a request without a body and returns its response.
    pub fn request(&mut self, method: &str, target: &str) -> io::Result<Response> {
        self.send(format!("{method} {target} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes())?;
        self.response(method)
    }

    /// Sends a request without a body and with `If-Match` of this entity tag, and returns its response.
    pub fn request_if_match(&mut self, method: &str, target: &str, etag: &str) -> io::Result<Response> {
        self.send(format!("{method} {target} HTTP/1.1\r\nHost: test\r\nIf-Match: {etag}\r\n\r\n").as_bytes())?;
        self.response(method)
    }

    /// Uploads `length` bytes from `source`. A server may answer early and close: then the response
    /// counts and the rest is not sent.
    pub fn put(&mut self, target: &str, length: u64, source: &mut impl Read) -> io::Result<Response> {
        self.send(format!("PUT {target} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n").as_bytes())?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut left = length;
        while left > 0 {
            let want = usize::try_from(left).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
            let count = source.read(&mut chunk[..want])?;
            if count == 0 {
                return Err(invalid(format!("the source ended {left} bytes early")));
            }
            if let Err(error) = self.send(&chunk[..count]) {
                return self.response("PUT").map_err(|_| error);
            }
            left -= count as u64;
            if left > 0 && self.has_answer()? {
                // To continue sending would end in a reset that loses the answer.
                break;
            }
        }
        self.response("PUT")
    }

    /// Whether something can be read now.
    fn has_answer(&self) -> io::Result<bool> {
        let stream = self.stream.get_ref();
        stream.set_nonblocking(true)?;
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        match peeked {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Downloads into `sink`; an answer other than 200 is returned with its text.
    pub fn get_into(&mut self, target: &str, sink: &mut impl Write) -> io::Result<Response> {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes())?;
        let head = self.head()?;
        let mut body = Vec::new();
        if head.status == 200 {
            let length = head.content_length().ok_or_else(|| invalid("the response has no length"))?;
            self.copy_body(length, sink)?;
        } else {
            self.copy_body(head.content_length().unwrap_or(0), &mut body)?;
        }
        Ok(Response { head, body })
    }

    /// Reads the response to a request with `method`; a body without a length reaches to the end.
    pub fn response(&mut self, method: &str) -> io::Result<Response> {
        let head = self.head()?;
        let mut body = Vec::new();
        // For these the protocol allows no body, regardless of the headers.
        let is_empty = method == "HEAD" || [204, 304].contains(&head.status);
        if !is_empty {
            match head.content_length() {
                Some(length) if length > BODY_BYTES_MAX => return Err(invalid(format!("a body of {length} bytes"))),
                Some(length) => self.copy_body(length, &mut body)?,
                None => drop((&mut self.stream).take(BODY_BYTES_MAX).read_to_end(&mut body)?),
            }
        }
        Ok(Response { head, body })
    }

    /// Reads status line and headers, past any interim (1xx) response.
    pub fn head(&mut self) -> io::Result<Head> {
        loop {
            let head = self.one_head()?;
            if head.status >= 200 {
                return Ok(head);
            }
        }
    }

    fn one_head(&mut self) -> io::Result<Head> {
        let line = self.line()?;
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| invalid(format!("no status line: {line:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(Head { status, headers });
            }
            let (name, value) = line.split_once(':').ok_or_else(|| invalid(format!("no header: {line:?}")))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            if headers.len() > HEADERS_MAX {
                return Err(invalid("too many headers"));
            }
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        if line.pop() != Some(b'\n') {
            return Err(invalid("the response's head is cut short or has an overlong line"));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map_err(|_| invalid("the response's head is not UTF-8"))
    }

    /// Copies exactly `length` bytes of a body to `sink`.
    pub fn copy_body(&mut self, length: u64, sink: &mut impl Write) -> io::Result<()> {
        let copied = io::copy(&mut (&mut self.stream).take(length), sink)?;
        if copied < length {
            let message = format!("the body ends after {copied} of {length} bytes");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        Ok(())
    }

    /// Reads until the server closes, at most `bytes_max` bytes, and returns them.
    pub fn drain(&mut self, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        (&mut self.stream).take(bytes_max).read_to_end(&mut rest)?;
        Ok(rest)
    }
}
