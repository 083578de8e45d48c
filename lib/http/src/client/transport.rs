//! What a request is sent over: a connection over TCP, directly or through a proxy, and with TLS for `https`.

use super::connection::Connection;
use super::url::Origin;
use super::{Error, Options};
use crate::Status;
use crate::framing::outgoing::Outgoing;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use glass_api::{Address, Buf, Net, NetError, Platform, Split, Stream};
#[cfg(feature = "tls")]
use glass_lib_tls::TlsStream;

/// Pause before a connection is opened again for which there was no place.
const PLACE_PAUSE: Duration = Duration::from_millis(20);

/// A stream to a server.
pub(crate) enum Transport<S: Split, P> {
    Plain(S, core::marker::PhantomData<P>),
    #[cfg(feature = "tls")]
    Secure(alloc::boxed::Box<TlsStream<S, P>>),
}

pub(crate) type TransportOf<P> = Transport<<<P as Platform>::Net as Net>::Stream, P>;

/// Connects to a server, through the proxy if there is one.
pub(crate) async fn connect<P: Platform>(
    platform: &P,
    options: &Options<P>,
    origin: &Origin,
) -> Result<TransportOf<P>, Error> {
    if origin.is_secure && !options.has_tls() {
        return Err(Error::NoTls);
    }
    let stream = match &options.proxy {
        None => dial(platform, options, &origin.host, origin.port).await?,
        Some((host, port)) => {
            let stream = dial(platform, options, host, *port).await?;
            tunnel(platform, options, stream, origin).await?
        }
    };
    secure(options, stream, origin).await
}

/// Opens a connection to the first address of a host that can be connected to.
async fn dial<P: Platform>(
    platform: &P,
    options: &Options<P>,
    host: &str,
    port: u16,
) -> Result<<P::Net as Net>::Stream, Error> {
    let addresses: Vec<IpAddr> = platform.net().resolve(host).await?;
    let mut failure = NetError::NoAddress;
    for address in addresses {
        match open(platform, options.limits.connect, SocketAddr::new(address, port)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure.into())
}

/// Opens a connection within `limit`. Where the platform has no place for one more it waits for a place: connections that were just reset
/// give theirs back a moment later.
async fn open<P: Platform>(
    platform: &P,
    limit: Duration,
    address: SocketAddr,
) -> Result<<P::Net as Net>::Stream, NetError> {
    let deadline = platform.now() + limit;
    loop {
        match platform.timeout_at(deadline, platform.net().connect(address)).await {
            Ok(Err(NetError::TooMany)) if platform.now() + PLACE_PAUSE < deadline => platform.sleep(PLACE_PAUSE).await,
            Ok(outcome) => return outcome,
            Err(_) => return Err(NetError::TimedOut),
        }
    }
}

/// Has a proxy connect to the server (RFC 9110, section 9.3.6).
async fn tunnel<P: Platform, S: Stream>(
    platform: &P,
    options: &Options<P>,
    stream: S,
    origin: &Origin,
) -> Result<S, Error> {
    let target = origin.host_and_port();
    let mut connection = Connection::new(stream, platform.clone(), options.limits.of_connection());
    let request = alloc::format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    connection.send_head(request.into_bytes(), Outgoing::Length(0), &[]).await?;
    let Status(status) = connection.read_head("CONNECT").await?.status;
    if !(200..300).contains(&status) {
        return Err(Error::Proxy(Status(status)));
    }
    connection.into_stream().ok_or(Error::Bad("the proxy has sent bytes before the tunnel was used"))
}

#[cfg(feature = "tls")]
async fn secure<P: Platform>(
    options: &Options<P>,
    stream: <P::Net as Net>::Stream,
    origin: &Origin,
) -> Result<TransportOf<P>, Error> {
    let Some(tls) = options.tls.as_ref().filter(|_| origin.is_secure) else {
        return Ok(Transport::Plain(stream, core::marker::PhantomData));
    };
    let mut stream = tls.connect(stream, &origin.host).map_err(|error| error.of_stream())?;
    stream.handshake().await.map_err(|error| error.of_stream())?;
    Ok(Transport::Secure(alloc::boxed::Box::new(stream)))
}

#[cfg(not(feature = "tls"))]
async fn secure<P: Platform>(
    _options: &Options<P>,
    stream: <P::Net as Net>::Stream,
    _origin: &Origin,
) -> Result<TransportOf<P>, Error> {
    Ok(Transport::Plain(stream, core::marker::PhantomData))
}

/// Calls a method of whichever stream it is.
macro_rules! of_either {
    ($transport:expr, $stream:ident => $call:expr) => {
        match $transport {
            Transport::Plain($stream, _) => $call,
            #[cfg(feature = "tls")]
            Transport::Secure($stream) => $call,
        }
    };
}

impl<S: Split, P: Platform> Stream for Transport<S, P> {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        of_either!(self, stream => stream.read(buf).await)
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        of_either!(self, stream => stream.write(data).await)
    }

    async fn write_buf(&mut self, data: &Buf) -> Result<usize, NetError> {
        of_either!(self, stream => stream.write_buf(data).await)
    }

    async fn close(&mut self) -> Result<(), NetError> {
        of_either!(self, stream => stream.close().await)
    }

    fn peer(&self) -> Address {
        of_either!(self, stream => stream.peer())
    }
}
