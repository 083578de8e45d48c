//! Clients.

use crate::provider::Provider;
use crate::resumption::Store;
use crate::session::Side;
use crate::{Identity, Roots, TlsError, TlsStream};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use glass_api::{Clock, Random, Split};
use rustls::ClientConfig;
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::pki_types::ServerName;

/// What a client offers.
#[derive(Clone)]
pub struct ClientOptions {
    /// Protocols above TLS, best first (ALPN, RFC 7301).
    pub protocols: Vec<String>,
    /// What servers that want one get as the client's certificate.
    pub identity: Option<Identity>,
    /// A handshake that takes longer ends the connection.
    pub handshake_timeout: Duration,
}

impl Default for ClientOptions {
    /// No protocols, no identity, ten seconds.
    fn default() -> ClientOptions {
        ClientOptions { protocols: Vec::new(), identity: None, handshake_timeout: Duration::from_secs(10) }
    }
}

/// A client of TLS 1.3. Make one for each set of roots: it keeps tickets of servers, by which their next handshake is shorter. Clones
/// share it.
///
/// ```
/// use glass_api::{Net, Platform};
/// use glass_lib_tls::{Client, ClientOptions, Roots};
///
/// /// Shows which protocol a server speaks.
/// async fn show<P: Platform>(platform: P, roots: Roots, name: &str) -> Result<(), Box<dyn std::error::Error>> {
///     let client = Client::new(&platform, roots, ClientOptions::default())?;
///     let address = platform.net().resolve(name).await?[0];
///     let mut stream = client.connect(platform.net().connect((address, 443).into()).await?, name)?;
///     stream.handshake().await?;
///     platform.print(format_args!("{:?}", stream.protocol()));
///     Ok(())
/// }
/// ```
pub struct Client<P> {
    inner: Rc<Inner<P>>,
}

struct Inner<P> {
    platform: P,
    provider: Provider,
    config: Arc<ClientConfig>,
    handshake_timeout: Duration,
}

impl<P> Clone for Client<P> {
    fn clone(&self) -> Client<P> {
        Client { inner: self.inner.clone() }
    }
}

impl<P: Clock + Random + Clone + 'static> Client<P> {
    /// Servers have to present a certificate that one of `roots` has issued, which is valid now: a platform without a time of day
    /// connects to none.
    pub fn new(platform: &P, roots: Roots, options: ClientOptions) -> Result<Client<P>, TlsError> {
        let provider = Provider::new(platform);
        let builder = ClientConfig::builder_with_details(provider.algorithms.clone(), provider.time.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsError::credentials)?
            .with_root_certificates(roots.0);
        let mut config = match options.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { chain, key }) => {
                builder.with_client_auth_cert(chain, key).map_err(TlsError::credentials)?
            }
        };
        config.alpn_protocols = options.protocols.into_iter().map(String::into_bytes).collect();
        config.resumption = Resumption::store(Arc::new(Store::default()));
        let (config, handshake_timeout) = (Arc::new(config), options.handshake_timeout);
        Ok(Client { inner: Rc::new(Inner { platform: platform.clone(), provider, config, handshake_timeout }) })
    }

    /// The client's end of a stream to the server `name`, a host name or an address, for which its certificate has to be. The
    /// handshake is to come. Fails with [`TlsError::ServerName`].
    pub fn connect<S: Split>(&self, stream: S, name: &str) -> Result<TlsStream<S, P>, TlsError> {
        let Inner { platform, provider, config, handshake_timeout } = &*self.inner;
        provider.refresh(platform);
        let server = ServerName::try_from(name).map_err(|_| TlsError::ServerName(name.into()))?.to_owned();
        let connection =
            UnbufferedClientConnection::new(config.clone(), server).map_err(|error| TlsError::refused(&error))?;
        Ok(TlsStream::new(stream, Side::Client(connection), platform.clone(), *handshake_timeout))
    }
}
