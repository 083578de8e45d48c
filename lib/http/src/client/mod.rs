//! An HTTP/1.1 client: connections that are kept and used again, redirects, time limits, bodies of any length, TLS, and a proxy.
//!
//! ```
//! use glass_api::Platform;
//! use glass_lib_http::client::{Client, Error, Options};
//!
//! /// Prints a page of at most 64 KiB.
//! async fn show<P: Platform>(platform: P, url: &str) -> Result<(), Error> {
//!     let client = Client::new(&platform, Options::default());
//!     let mut response = client.get(url).await?;
//!     let page = response.read_all(64 << 10).await?;
//!     platform.print(format_args!("{}: {}", response.status().0, String::from_utf8_lossy(&page)));
//!     Ok(())
//! }
//! ```
//!
//! `request.rs` and `url.rs` make what is sent, `connection.rs` exchanges it for a response on one stream, and this file has the pool and the redirects. A request ends with a response or an error within [`Limits::total`], whatever the server does.

mod connection;
mod error;
mod request;
mod transport;
mod url;

pub use error::Error;
pub use request::Request;
pub use url::Url;

use crate::framing::outgoing::Outgoing;
use crate::framing::response_head::Head;
use crate::{Fields, Status};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use connection::Connection;
use core::cell::RefCell;
use core::time::Duration;
use glass_api::{Instant, Platform};
use glass_lib_executor::sync::{Permit, Semaphore};
use glass_lib_trace::Name;
use transport::{TransportOf, connect};
use url::Origin;

static SLOT: Name = Name::new("http connection");

/// How much a request may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From the start of a request to the last byte of its response, with redirects and the wait for a connection.
    pub total: Duration,
    /// For a connection to one address of a host.
    pub connect: Duration,
    /// How long the server may take to send or receive 8 KiB, and to begin its response.
    pub progress: Duration,
    /// Bytes of a response's head.
    pub head_bytes_max: usize,
    /// Redirects that are followed; with 0 the response is the redirect.
    pub redirects_max: usize,
    /// Requests that are sent at once; others wait.
    pub connections_max: usize,
    /// Connections that are kept without a request, and for how long.
    pub idle_max: usize,
    /// See [`Limits::idle_max`].
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            total: Duration::from_secs(60),
            connect: Duration::from_secs(10),
            progress: Duration::from_secs(30),
            head_bytes_max: 32 << 10,
            redirects_max: 5,
            connections_max: 64,
            idle_max: 16,
            idle: Duration::from_secs(30),
        }
    }
}

impl Limits {
    fn of_connection(&self) -> crate::Limits {
        crate::Limits { head_bytes_max: self.head_bytes_max, progress_window: self.progress, ..crate::Limits::DEFAULT }
    }
}

/// What a client is made with.
pub struct Options<P: Platform> {
    /// Its limits.
    pub limits: Limits,
    /// Host and port of a proxy through which every connection goes, by CONNECT.
    pub proxy: Option<(String, u16)>,
    /// What connects to `https`; `None`: such URLs are refused.
    #[cfg(feature = "tls")]
    pub tls: Option<glass_lib_tls::Client<P>>,
    /// Without the feature `tls` nothing else depends on the platform.
    #[cfg(not(feature = "tls"))]
    #[doc(hidden)]
    pub platform: core::marker::PhantomData<P>,
}

impl<P: Platform> Options<P> {
    fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }
}

impl<P: Platform> Default for Options<P> {
    /// Without a proxy and without TLS.
    fn default() -> Options<P> {
        Options {
            limits: Limits::default(),
            proxy: None,
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(not(feature = "tls"))]
            platform: core::marker::PhantomData,
        }
    }
}

/// Sends requests. Clones share its connections.
pub struct Client<P: Platform> {
    inner: Rc<Inner<P>>,
}

impl<P: Platform> Clone for Client<P> {
    fn clone(&self) -> Client<P> {
        Client { inner: self.inner.clone() }
    }
}

type ConnectionOf<P> = Connection<TransportOf<P>, P>;

struct Inner<P: Platform> {
    platform: P,
    options: Options<P>,
    slots: Semaphore,
    idle: RefCell<Vec<Idle<P>>>,
}

/// A connection that waits for a request; the oldest is first.
struct Idle<P: Platform> {
    origin: Origin,
    connection: ConnectionOf<P>,
    since: Instant,
}

/// A connection that has a request in flight.
struct InFlight<P: Platform> {
    client: Client<P>,
    origin: Origin,
    /// `None` once it was given back.
    connection: Option<ConnectionOf<P>>,
    /// Used before: the server may have closed it meanwhile.
    was_idle: bool,
    deadline: Instant,
    /// Until then.
    slot: Option<Permit>,
}

impl<P: Platform> Client<P> {
    /// A client without connections.
    pub fn new(platform: &P, options: Options<P>) -> Client<P> {
        let slots = Semaphore::named(&SLOT, options.limits.connections_max.max(1));
        Client { inner: Rc::new(Inner { platform: platform.clone(), options, slots, idle: RefCell::default() }) }
    }

    /// Sends a `GET`.
    pub async fn get(&self, url: &str) -> Result<Response<P>, Error> {
        self.send(Request::get(url)?, &[]).await
    }

    /// Sends a request with its body, and follows redirects; `Ok` whatever the status is. A request whose connection was kept and ends before
    /// anything of the response has arrived is sent once more, if that is harmless (RFC 9110, section 9.2.2). Dropping the future abandons
    /// the request.
    pub async fn send(&self, request: Request, body: &[u8]) -> Result<Response<P>, Error> {
        let deadline = self.deadline();
        self.before(deadline, self.follow(request, body, deadline)).await
    }

    /// Starts a request whose body follows piece by piece: `body_bytes` bytes, or without a length as chunks. Redirects are not
    /// followed.
    pub async fn open(&self, request: Request, body_bytes: Option<u64>) -> Result<Upload<P>, Error> {
        let deadline = self.deadline();
        let length = body_bytes.map_or(Outgoing::Chunked, Outgoing::Length);
        self.before(deadline, async {
            let head = request.head(length)?;
            // A new connection: what was sent is not kept.
            let mut flight = self.begin(request.url().origin(), deadline, true).await?;
            flight.connection().send_head(head, length, &[]).await?;
            Ok(Upload { flight, request })
        })
        .await
    }

    fn deadline(&self) -> Instant {
        self.inner.platform.now() + self.inner.options.limits.total
    }

    async fn before<T>(&self, deadline: Instant, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.inner.platform.timeout_at(deadline, work).await.unwrap_or(Err(Error::TimedOut))
    }

    async fn follow(&self, mut request: Request, mut body: &[u8], deadline: Instant) -> Result<Response<P>, Error> {
        let redirects_max = self.inner.options.limits.redirects_max;
        for _ in 0..=redirects_max {
            let response = self.send_once(&request, body, deadline).await?;
            let location = match response.status().0 {
                301 | 302 | 303 | 307 | 308 if redirects_max > 0 => response.header("Location"),
                _ => None,
            };
            let Some(location) = location else { return Ok(response) };
            let location = str::from_utf8(location).map_err(|_| Error::Bad("its Location is no URL"))?;
            let url = request.url().join(location)?;
            if request.url().is_secure() && !url.is_secure() {
                return Err(Error::Bad("it redirects from https to http"));
            }
            let (next, keeps_body) = request.redirected(response.status(), url);
            if !keeps_body {
                body = &[];
            }
            response.discard().await;
            request = next;
        }
        Err(Error::TooManyRedirects(redirects_max))
    }

    async fn send_once(&self, request: &Request, body: &[u8], deadline: Instant) -> Result<Response<P>, Error> {
        let length = Outgoing::Length(body.len() as u64);
        let head = request.head(length)?;
        let mut flight = self.begin(request.url().origin(), deadline, false).await?;
        loop {
            let sent = flight.connection().send_head(head.clone(), length, body).await;
            // A server may answer before it has read the body, and end.
            let (error, mut failed) = match flight.response(request.url().clone(), request.method()).await {
                Ok(response) => return Ok(response),
                Err((error, failed)) => (sent.err().unwrap_or(error), failed),
            };
            let was_closed = matches!(error, Error::Cut | Error::Net(_)) && !failed.connection().is_answered;
            if !(failed.was_idle && was_closed && request.is_idempotent()) {
                return Err(error);
            }
            drop(failed);
            flight = self.begin(request.url().origin(), deadline, true).await?;
        }
    }

    /// Takes a kept connection, or makes one.
    async fn begin(&self, origin: &Origin, deadline: Instant, is_new: bool) -> Result<InFlight<P>, Error> {
        let Inner { platform, options, slots, .. } = &*self.inner;
        let slot = slots.acquire().await;
        let kept = if is_new { None } else { self.take_idle(origin).await };
        let was_idle = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => {
                let transport = connect(platform, options, origin).await?;
                Connection::new(transport, platform.clone(), options.limits.of_connection())
            }
        };
        let (client, origin) = (self.clone(), origin.clone());
        Ok(InFlight { client, origin, connection: Some(connection), was_idle, deadline, slot: Some(slot) })
    }

    /// A kept connection that can be used, the latest first: it is the least likely to be closed.
    async fn take_idle(&self, origin: &Origin) -> Option<ConnectionOf<P>> {
        loop {
            let mut connection = {
                let mut idle = self.inner.idle.borrow_mut();
                let (now, limit) = (self.inner.platform.now(), self.inner.options.limits.idle);
                idle.retain(|idle| now.since(idle.since) < limit);
                let index = idle.iter().rposition(|idle| idle.origin == *origin)?;
                idle.remove(index).connection
            };
            if connection.is_usable().await {
                return Some(connection);
            }
        }
    }

    fn keep(&self, origin: Origin, connection: ConnectionOf<P>) {
        let mut idle = self.inner.idle.borrow_mut();
        let (since, limits) = (self.inner.platform.now(), &self.inner.options.limits);
        idle.retain(|idle| since.since(idle.since) < limits.idle);
        if idle.len() >= limits.idle_max && !idle.is_empty() {
            idle.remove(0);
        }
        if limits.idle_max > 0 {
            idle.push(Idle { origin, connection, since });
        }
    }

    /// Connections that are kept without a request.
    pub fn idle_count(&self) -> usize {
        self.inner.idle.borrow().len()
    }
}

impl<P: Platform> InFlight<P> {
    fn connection(&mut self) -> &mut ConnectionOf<P> {
        self.connection.as_mut().expect("it is given back at the end only")
    }

    /// At the end of the response, gives the connection back for another request, if it can have one.
    async fn give_back_at_end(&mut self) {
        if let Some(mut connection) = self.connection.take_if(|connection| connection.body_is_over()) {
            if connection.is_usable().await {
                self.client.keep(self.origin.clone(), connection);
            }
            self.slot = None;
        }
    }

    /// The response to a request of `method` to `url`.
    async fn response(mut self, url: Url, method: &str) -> Result<Response<P>, (Error, InFlight<P>)> {
        match self.connection().read_head(method).await {
            Ok(head) => {
                self.give_back_at_end().await;
                Ok(Response { url, head, trailers: Fields::default(), flight: self })
            }
            Err(error) => Err((error, self)),
        }
    }
}

/// A request whose body is being sent.
pub struct Upload<P: Platform> {
    flight: InFlight<P>,
    request: Request,
}

impl<P: Platform> Upload<P> {
    /// Sends the next bytes of the body. Fails with [`Error::WrongLength`] when they are more than was declared. After another error the
    /// server may have answered: [`Upload::finish`] has its response then.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        let (client, deadline) = (self.flight.client.clone(), self.flight.deadline);
        client.before(deadline, self.flight.connection().send_body(data)).await
    }

    /// Ends the body, and waits for the response.
    pub async fn finish(self) -> Result<Response<P>, Error> {
        self.finish_with(&[]).await
    }

    /// [`Upload::finish`] with fields after the body (trailers), which are sent after a body without a length only. Fails with
    /// [`Error::BadRequest`] for a field about how to read the message (RFC 9110, section 6.5.1).
    pub async fn finish_with(mut self, trailers: &[(&str, &str)]) -> Result<Response<P>, Error> {
        let (client, deadline) = (self.flight.client.clone(), self.flight.deadline);
        client
            .before(deadline, async move {
                let ended = self.flight.connection().end_body(trailers).await;
                if let Err(error @ (Error::WrongLength | Error::BadRequest)) = ended {
                    return Err(error);
                }
                let response = self.flight.response(self.request.url().clone(), self.request.method()).await;
                response.map_err(|(error, _)| ended.err().unwrap_or(error))
            })
            .await
    }
}

/// A response. Its connection is kept for another request once the body was read to its end; dropped before, it is reset.
///
/// A body that the server could not finish is an error here, and never ends as if it were whole, unless it ends with the connection and
/// the server closes that in order.
pub struct Response<P: Platform> {
    url: Url,
    head: Head,
    /// Fields after the body, once it was read.
    trailers: Fields,
    flight: InFlight<P>,
}

impl<P: Platform> Response<P> {
    /// The status.
    pub fn status(&self) -> Status {
        self.head.status
    }

    /// The URL that has answered, after redirects.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The value of the first field with this name (case-insensitive), trimmed.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.head.fields.get(name)
    }

    /// All fields, in order, with names as they were sent.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.head.fields.iter()
    }

    /// The fields after a body without a length (trailers); none before it was read to its end.
    pub fn trailers(&self) -> &Fields {
        &self.trailers
    }

    /// Reads at least one byte of the body into `buf`; `Ok(0)` at its end (or when `buf` is empty). Fails with [`Error::Cut`] when
    /// the body ends early. Cancel safe.
    pub async fn read(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        let (client, deadline) = (self.flight.client.clone(), self.flight.deadline);
        let Some(connection) = &mut self.flight.connection else { return Ok(0) };
        let count = client.before(deadline, connection.read_body(buf)).await?;
        if connection.body_is_over() {
            self.trailers = connection.take_trailers();
        }
        self.flight.give_back_at_end().await;
        Ok(count)
    }

    /// The rest of the body, of at most `bytes_max` bytes; a longer one is [`Error::TooLong`].
    pub async fn read_all(&mut self, bytes_max: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        let mut piece = alloc::vec![0; 8 << 10];
        loop {
            match self.read(&mut piece).await? {
                0 => return Ok(all),
                count if all.len() + count > bytes_max => return Err(Error::TooLong(bytes_max)),
                count => all.extend_from_slice(&piece[..count]),
            }
        }
    }

    /// Reads a short rest of the body, so that the connection can be kept; ends it otherwise.
    async fn discard(mut self) {
        const DISCARD_BYTES_MAX: usize = 64 << 10;
        let _ = self.read_all(DISCARD_BYTES_MAX).await;
    }
}
