//! Sends or receives bytes over TCP or vsock as fast as it can, for measurements of the network. A client sends its request
//! in one line: `send NUMBER` to receive so many bytes, `take NUMBER` to send so many, `take` to send bytes until it closes its half,
//! `skip` for the same with bytes that nothing copies for the service, `echo` to get its bytes back, `memory` for the bytes of memory in use. With `--client ADDRESS send|take NUMBER` it is such a client over TCP, and prints how long that took.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::string::String;
use alloc::{format, vec};
use core::net::SocketAddr;
use core::str;
use core::time::Duration;
use glasshouse::trace::Counter;
use glasshouse::{Error, Listener, Net, NetError, Platform, Port, Stream};

const USAGE: &str = "the arguments are: [--port PORT], where PORT is a number or vsock: and a number, or --client ADDRESS:PORT send|take NUMBER";
const PORT_DEFAULT: Port = Port::Tcp(8090);
/// All bytes are sent from one buffer of this size, and received into one.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest line of a client.
const LINE_BYTES_MAX: usize = 64;
/// Maximum of bytes that are sent to one client.
const SEND_BYTES_MAX: u64 = 1 << 40;
/// Pause after an error, so that a permanent error does not keep the core busy.
const PAUSE: Duration = Duration::from_millis(10);

static SENT: Counter = Counter::new("bytes sent");
static TAKEN: Counter = Counter::new("bytes taken");

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let port = match platform.args() {
        [option, server, wish, bytes] if option == "--client" => {
            let (server, bytes) = (server.parse::<SocketAddr>(), bytes.parse());
            let (Ok(server), Ok(bytes)) = (server, bytes) else { return Err(USAGE.into()) };
            return ask(&platform, server, wish, bytes).await;
        }
        [] => PORT_DEFAULT,
        [option, port] if option == "--port" => port.parse().map_err(|_| format!("{port} is not a port"))?,
        _ => return Err(USAGE.into()),
    };
    // Vsock has no address that must be there first.
    let address = match port {
        Port::Tcp(_) => format!("{} ", platform.net().up().await?.address),
        Port::Vsock(_) => String::new(),
    };
    let mut listener = platform.net().listen(port).await?;
    platform.print(format_args!("bench-tcp listens on {address}{}", listener.port()));
    loop {
        let Ok(stream) = listener.accept().await else {
            platform.sleep(PAUSE).await;
            continue;
        };
        // A client beyond the limit is reset by the drop of its connection.
        let _ = platform.spawn("client", {
            let platform = platform.clone();
            async move { _ = client(&platform, stream).await }
        });
    }
}

/// Lets a server send `bytes` bytes, or take so many, and prints the time from the request to the last byte.
async fn ask(platform: &impl Platform, server: SocketAddr, wish: &str, bytes: u64) -> Result<(), Error> {
    let mut stream = platform.net().connect(server).await?;
    let start = platform.now();
    stream.write_all(format!("{wish} {bytes}\n").as_bytes()).await?;
    let mut received = 0;
    let mut buffer = vec![0; BUFFER_BYTES];
    let wanted = match wish {
        "send" => bytes,
        "take" => {
            send(&mut stream, bytes).await?;
            // It answers with a line.
            1
        }
        _ => return Err(USAGE.into()),
    };
    while received < wanted {
        match stream.read(&mut buffer).await? {
            0 => return Err(format!("the server closed the connection after {received} bytes").into()),
            count => received += count as u64,
        }
    }
    platform.print(format_args!("{bytes} bytes in {} us", (platform.now() - start).as_micros()));
    Ok(())
}

/// A client's request.
enum Wish {
    Send(u64),
    /// So many bytes, which the service does not write first.
    Untouched(u64),
    /// So many bytes, or all until the client closes its half, which not every host's vsock passes on.
    Take(Option<u64>),
    /// All bytes until the client closes its half, which the service does not read.
    Skip,
    Echo,
    /// The bytes of memory that the service uses.
    Memory,
}

impl Wish {
    fn parse(line: &[u8]) -> Option<Wish> {
        let sendable = |number: &str| number.parse().ok().filter(|bytes| *bytes <= SEND_BYTES_MAX);
        match str::from_utf8(line).ok()?.trim().split_once(' ') {
            Some(("send", number)) => sendable(number).map(Wish::Send),
            Some(("untouched", number)) => sendable(number).map(Wish::Untouched),
            Some(("take", number)) => number.parse().ok().map(|bytes| Wish::Take(Some(bytes))),
            None if line.trim_ascii() == b"take" => Some(Wish::Take(None)),
            None if line.trim_ascii() == b"skip" => Some(Wish::Skip),
            None if line.trim_ascii() == b"echo" => Some(Wish::Echo),
            None if line.trim_ascii() == b"memory" => Some(Wish::Memory),
            _ => None,
        }
    }
}

async fn client(platform: &impl Platform, mut stream: impl Stream) -> Result<(), NetError> {
    let mut line = [0; LINE_BYTES_MAX];
    let (line_bytes, rest_bytes) = read_line(&mut stream, &mut line).await?;
    match Wish::parse(&line[..line_bytes]) {
        Some(Wish::Send(bytes)) => send(&mut stream, bytes).await?,
        Some(Wish::Untouched(bytes)) => send_untouched(&mut stream, bytes).await?,
        Some(Wish::Take(bytes)) => take(&mut stream, rest_bytes, bytes.unwrap_or(u64::MAX)).await?,
        Some(Wish::Skip) => skip(&mut stream, rest_bytes).await?,
        Some(Wish::Echo) => echo(&mut stream, &line[line_bytes + 1..][..rest_bytes]).await?,
        Some(Wish::Memory) => stream.write_all(format!("{}\n", platform.memory().used_bytes).as_bytes()).await?,
        None => {
            stream
                .write_all(b"send `send NUMBER`, `untouched NUMBER`, `take [NUMBER]`, `skip`, `echo` or `memory`, and a line end\n")
                .await?;
        }
    }
    stream.close().await
}

/// Reads until the first line end; returns the length of the line and how much was read after it.
async fn read_line(stream: &mut impl Stream, line: &mut [u8; LINE_BYTES_MAX]) -> Result<(usize, usize), NetError> {
    let mut filled = 0;
    while filled < line.len() {
        let count = stream.read(&mut line[filled..]).await?;
        filled += count;
        if let Some(end) = line[..filled].iter().position(|byte| *byte == b'\n') {
            return Ok((end, filled - end - 1));
        }
        if count == 0 {
            break;
        }
    }
    // Without its end it is not a line.
    Ok((0, 0))
}

async fn send(stream: &mut impl Stream, bytes: u64) -> Result<(), NetError> {
    let buffer = vec![b'g'; BUFFER_BYTES];
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(BUFFER_BYTES as u64) as usize;
        let sent = stream.write(&buffer[..piece]).await?;
        left -= sent as u64;
        SENT.add(sent as u32);
    }
    Ok(())
}

/// Sends what happens to be in the send buffer.
async fn send_untouched(stream: &mut impl Stream, bytes: u64) -> Result<(), NetError> {
    let mut left = bytes;
    while left > 0 {
        let sent = stream.write_with(left.min(BUFFER_BYTES as u64) as usize, |_| ()).await?;
        left -= sent as u64;
        SENT.add(sent as u32);
    }
    Ok(())
}

/// Receives everything, or `wanted` bytes at least, and answers with the number of bytes.
async fn take(stream: &mut impl Stream, had_bytes: usize, wanted: u64) -> Result<(), NetError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut bytes = had_bytes as u64;
    while bytes < wanted {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => {
                bytes += count as u64;
                TAKEN.add(count as u32);
            }
        }
    }
    stream.write_all(format!("{bytes}\n").as_bytes()).await
}

/// Drops everything, and answers with the number of bytes.
async fn skip(stream: &mut impl Stream, had_bytes: usize) -> Result<(), NetError> {
    let mut bytes = had_bytes as u64;
    while let count @ 1.. = stream.skip(usize::MAX).await? {
        bytes += count as u64;
        TAKEN.add(count as u32);
    }
    stream.write_all(format!("{bytes}\n").as_bytes()).await
}

/// Sends back what was received with the request, and what follows.
async fn echo(stream: &mut impl Stream, had: &[u8]) -> Result<(), NetError> {
    stream.write_all(had).await?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}
