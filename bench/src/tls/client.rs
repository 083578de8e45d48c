//! The client of TLS of all measurements: rustls, which costs less than a server, because it checks no certificate.

use anyhow::{Context, Result, bail, ensure};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, HandshakeKind, SignatureScheme};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads that connect.
const CLIENTS: usize = 4;
/// A server that sends nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Checks no certificate: what is measured is the server.
#[derive(Debug)]
struct Unchecked;

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not offered".into()))
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// TLS 1.3 with X25519 and AES-128-GCM only, as all servers have it.
pub fn configuration(resumption: Resumption) -> Result<ClientConfig> {
    let mut provider = provider::default_provider();
    provider.cipher_suites = vec![provider::cipher_suite::TLS13_AES_128_GCM_SHA256];
    provider.kx_groups = vec![provider::kx_group::X25519];
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unchecked))
        .with_no_client_auth();
    config.resumption = resumption;
    Ok(config)
}

/// A connection after its handshake. A server that makes no progress for 20 s is an error.
pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> Result<(TcpStream, ClientConnection)> {
    let mut stream = connect_tcp(address, PATIENCE)?;
    let tls = greet(&mut stream, config)?;
    Ok((stream, tls))
}

/// A connection before its handshake, if it has one. No wait on it is longer than `patience`.
pub fn connect_tcp(address: SocketAddr, patience: Duration) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, patience).context("cannot connect")?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The handshake of a connection.
pub fn greet(stream: &mut TcpStream, config: &Arc<ClientConfig>) -> Result<ClientConnection> {
    let mut tls = ClientConnection::new(config.clone(), ServerName::try_from("server.test")?)?;
    while tls.is_handshaking() {
        tls.complete_io(stream).context("the handshake failed")?;
    }
    Ok(tls)
}

/// Handshakes of `kind` a second of several clients, each with its `config`. Each connection of one that continues sessions waits for the
/// next ticket; its first handshake is not counted.
pub fn handshakes(
    address: SocketAddr,
    config: impl Fn() -> Result<Arc<ClientConfig>> + Sync,
    kind: HandshakeKind,
    duration: Duration,
) -> Result<f64> {
    let (count, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let config = config()?;
                    for number in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        let (mut stream, mut tls) = connect(address, &config)?;
                        if kind == HandshakeKind::Resumed {
                            wait_for_ticket(&mut stream, &mut tls)?;
                        }
                        if number > 0 || kind == HandshakeKind::Full {
                            ensure!(tls.handshake_kind() == Some(kind), "a handshake is {:?}", tls.handshake_kind());
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        tls.send_close_notify();
                        tls.write_tls(&mut stream)?;
                    }
                    Ok(())
                })
            })
            .collect();
        std::thread::sleep(duration);
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().try_for_each(|client| client.join().unwrap_or_else(|_| bail!("a client panicked")))
    })?;
    Ok(count.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64())
}

fn wait_for_ticket(stream: &mut TcpStream, tls: &mut ClientConnection) -> Result<()> {
    while tls.tls13_tickets_received() == 0 {
        ensure!(tls.read_tls(stream).context("there is no ticket")? > 0, "the server closed before it sent a ticket");
        tls.process_new_packets()?;
    }
    Ok(())
}
