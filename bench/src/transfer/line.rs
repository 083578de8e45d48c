//! A client's connection to a server of items, with or without TLS, which costs less than the server: no more of HTTP than the measurements need.

use crate::tls::client::{connect_tcp, greet};
use anyhow::{Context, Result, bail, ensure};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A server that makes no progress for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// The longest line of a head.
const LINE_BYTES_MAX: u64 = 4096;
/// The longest body that is kept, of an answer that is no item.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Where a server listens, and how it is spoken to.
#[derive(Clone)]
pub struct Address {
    pub socket: SocketAddr,
    pub tls: Option<Arc<ClientConfig>>,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(data),
            Stream::Tls(stream) => stream.write(data),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// What the head of an answer shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    /// Of the body; 0 if it is not stated.
    pub length_bytes: u64,
    /// The path of `Location`, also of one that is a whole URL.
    pub location: Option<String>,
}

/// A connection that is kept for several requests.
pub struct Line {
    stream: BufReader<Stream>,
    address: Address,
}

impl Line {
    pub fn connect(address: &Address) -> Result<Line> {
        Line::connect_within(address, PATIENCE)
    }

    /// No wait on it is longer than `patience`.
    pub fn connect_within(address: &Address, patience: Duration) -> Result<Line> {
        let mut stream = connect_tcp(address.socket, patience)?;
        let stream = match &address.tls {
            None => Stream::Plain(stream),
            Some(config) => {
                let tls = greet(&mut stream, config)?;
                Stream::Tls(Box::new(StreamOwned::new(tls, stream)))
            }
        };
        Ok(Line { stream: BufReader::with_capacity(BUFFER_BYTES, stream), address: address.clone() })
    }

    /// Connects anew.
    pub fn reconnect(&mut self) -> Result<()> {
        *self = Line::connect(&self.address)?;
        Ok(())
    }

    /// The TCP connection, for an end that another thread requests.
    pub fn socket(&self) -> io::Result<TcpStream> {
        self.tcp().try_clone()
    }

    fn tcp(&self) -> &TcpStream {
        match self.stream.get_ref() {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => &stream.sock,
        }
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads the head of an answer, which may be an interim one.
    pub fn head(&mut self) -> Result<Head> {
        let line = self.text_line()?;
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        let mut head = Head { status: status.with_context(|| format!("no status: {line:?}"))?, ..Head::default() };
        loop {
            let line = self.text_line()?;
            if line.is_empty() {
                return Ok(head);
            }
            let (name, value) = line.split_once(':').with_context(|| format!("no field: {line:?}"))?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                head.length_bytes = value.parse().with_context(|| format!("no length: {value:?}"))?;
            } else if name.eq_ignore_ascii_case("location") {
                head.location = Some(path(value).to_owned());
            }
        }
    }

    fn text_line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        ensure!(line.pop() == Some(b'\n'), "the answer ends in its head");
        line.pop_if(|byte| *byte == b'\r');
        String::from_utf8(line).context("the head is not UTF-8")
    }

    /// Passes the next bytes of a body to `sink`, at most `left`; returns how many there were.
    pub fn read_some(&mut self, left: u64, sink: impl FnOnce(&[u8])) -> Result<usize> {
        let bytes = self.stream.fill_buf()?;
        let count = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        ensure!(count > 0, "the body ends {left} bytes early");
        sink(&bytes[..count]);
        self.stream.consume(count);
        Ok(count)
    }

    /// Reads a whole body.
    pub fn body(&mut self, length_bytes: u64, mut sink: impl FnMut(&[u8])) -> Result<()> {
        let mut left = length_bytes;
        while left > 0 {
            left -= self.read_some(left, &mut sink)? as u64;
        }
        Ok(())
    }

    /// The text of an answer's body.
    pub fn text(&mut self, head: &Head) -> Result<String> {
        ensure!(head.length_bytes <= TEXT_BYTES_MAX, "a text of {} bytes", head.length_bytes);
        let mut text = Vec::new();
        self.body(head.length_bytes, |bytes| text.extend_from_slice(bytes))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// A request without a body, with these further fields; returns its answer, which is a text.
    pub fn ask(&mut self, method: &str, path: &str, fields: &str) -> Result<(Head, String)> {
        self.send(request(method, path, fields).as_bytes())?;
        let head = self.head()?;
        let text = self.text(&head)?;
        Ok((head, text))
    }

    /// A request without a body, whose answer is a text with a status of 2xx.
    pub fn request(&mut self, method: &str, path: &str) -> Result<String> {
        let (head, text) = self.ask(method, path, "")?;
        ensure!((200..300).contains(&head.status), "{method} {path} was answered {}: {text}", head.status);
        Ok(text)
    }

    /// Bytes of the network from now on, as they arrive: of TLS these are records.
    pub fn read_raw(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = match self.stream.get_mut() {
            Stream::Plain(stream) => stream.read(buffer)?,
            Stream::Tls(stream) => stream.sock.read(buffer)?,
        };
        if count == 0 {
            bail!("the server closed the connection");
        }
        Ok(count)
    }
}

/// Ends connections that other threads use.
pub fn cut_off(sockets: &[TcpStream]) {
    for socket in sockets {
        // An error means that the server has closed it.
        let _ = socket.shutdown(Shutdown::Both);
    }
}

/// The head of a request, with these further fields, each with its end of line.
pub fn request(method: &str, path: &str, fields: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: server.test\r\n{fields}\r\n")
}

/// The path of a URL, or of what is a path already.
fn path(url: &str) -> &str {
    match url.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => url,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn heads_bodies_and_the_path_of_a_location() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address { socket: listener.local_addr().unwrap(), tls: None };
        let mut line = Line::connect(&address).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nlocation: http://a:1/files/x\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nfull";
        server.write_all(answer.as_bytes()).unwrap();
        assert_eq!(line.head().unwrap().status, 100);
        let head = line.head().unwrap();
        assert_eq!(head, Head { status: 201, length_bytes: 3, location: Some("/files/x".into()) });
        assert_eq!(line.text(&head).unwrap(), "abc");
        let refused = line.request("GET", "/item").unwrap_err().to_string();
        assert_eq!(refused, "GET /item was answered 503: full");
        drop(server);
        line.head().unwrap_err();
        assert_eq!(["/a/b", "http://a:1", "https://a/b"].map(path), ["/a/b", "/", "/b"]);
    }
}
