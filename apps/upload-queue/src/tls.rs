//! TLS: the identity of the service, and connections with it or without.

use crate::boxed::boxed;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use glasshouse::tls::{Identity, Server, ServerOptions, TlsError, TlsStream};
use glasshouse::{Address, Files, Listener, Net, NetError, Platform, Port, Split, Stream};

/// The protocol above TLS, as clients negotiate it (ALPN).
const PROTOCOL: &str = "http/1.1";

/// The stream of a connection.
pub(crate) type Line<P> = Either<<<P as Platform>::Net as Net>::Stream, P>;

/// A server of TLS with its identity from files.
pub(crate) struct Tls<P> {
    server: Server<P>,
    chain: String,
    key: String,
}

impl<P: Platform> Tls<P> {
    /// Reads the identity from two files in PEM, which may be the same one.
    pub(crate) async fn open(platform: &P, files: &impl Files, chain: &str, key: &str) -> Result<Tls<P>, String> {
        let read = async {
            let identity = Identity::from_files(files, chain, key).await?;
            Server::new(platform, identity, ServerOptions { protocols: [PROTOCOL.into()].into(), ..Default::default() })
        };
        let server = read.await.map_err(|error: TlsError| error.to_string())?;
        Ok(Tls { server, chain: chain.into(), key: key.into() })
    }

    /// Reads the identity again, for handshakes from now on. After an error the one of before is used.
    pub(crate) async fn reopen(&self, files: &impl Files) -> Result<(), String> {
        let read = async { self.server.set_identity(Identity::from_files(files, &self.chain, &self.key).await?) };
        read.await.map_err(|error: TlsError| error.to_string())
    }
}

/// A listener whose connections have TLS if there is an identity.
pub(crate) fn lines<P: Platform>(
    listener: <P::Net as Net>::Listener,
    tls: Option<&Tls<P>>,
) -> impl Listener<Stream = Line<P>> {
    Lines { listener, server: tls.map(|tls| tls.server.clone()) }
}

struct Lines<L, P> {
    listener: L,
    server: Option<Server<P>>,
}

impl<L: Listener<Stream: Split>, P: Platform> Listener for Lines<L, P> {
    type Stream = Either<L::Stream, P>;

    async fn accept(&mut self) -> Result<Self::Stream, NetError> {
        let stream = self.listener.accept().await?;
        match &self.server {
            None => Ok(Either::Plain(stream)),
            Some(server) => {
                let stream = server.accept(stream).map_err(|error| error.of_stream())?;
                Ok(Either::Tls(Box::new(stream)))
            }
        }
    }

    fn port(&self) -> Port {
        self.listener.port()
    }
}

/// A connection with TLS or without.
pub(crate) enum Either<S: Split, P> {
    Plain(S),
    Tls(Box<TlsStream<S, P>>),
}

impl<S: Split, P: Platform> Stream for Either<S, P> {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        match self {
            Either::Plain(stream) => stream.read(buf).await,
            Either::Tls(stream) => boxed(|| stream.read(buf)).await,
        }
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        match self {
            Either::Plain(stream) => stream.write(data).await,
            Either::Tls(stream) => boxed(|| stream.write(data)).await,
        }
    }

    async fn close(&mut self) -> Result<(), NetError> {
        match self {
            Either::Plain(stream) => stream.close().await,
            Either::Tls(stream) => boxed(|| stream.close()).await,
        }
    }

    fn peer(&self) -> Address {
        match self {
            Either::Plain(stream) => stream.peer(),
            Either::Tls(stream) => stream.peer(),
        }
    }
}
