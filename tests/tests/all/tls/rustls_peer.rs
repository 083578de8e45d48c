//! A client and a server of rustls with its own provider, for TLS 1.3 alone.

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(240);
/// Bytes of a request's head that the server reads at most.
const HEAD_BYTES_MAX: usize = 16 << 10;

fn certificates(path: &Path) -> Vec<CertificateDer<'static>> {
    let pem = fs::read(path).unwrap();
    CertificateDer::pem_slice_iter(&pem).map(|certificate| certificate.unwrap().into_owned()).collect()
}

fn connected(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A connection of our clients.
pub type Line = StreamOwned<ClientConnection, TcpStream>;

/// What clients have that trust the issuer in `roots`. Connections that share it continue each other's sessions.
pub fn client(roots: &Path) -> Arc<ClientConfig> {
    let mut store = RootCertStore::empty();
    assert_eq!(store.add_parsable_certificates(certificates(roots)), (1, 0));
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    Arc::new(config)
}

/// A connection to `localhost`. The handshake happens with the first read or write.
pub fn connect(port: u16, config: &Arc<ClientConfig>) -> std::io::Result<Line> {
    let session = ClientConnection::new(config.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
    Ok(StreamOwned::new(session, connected(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)))
}

/// Bytes of the body of `https://localhost:PORT/PATH`, whose certificate `roots` has to have issued.
pub fn get(port: u16, path: &str, roots: &Path) -> usize {
    let mut stream = connect(port, &client(roots)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = Vec::new();
    // It fails if the server does not announce the end.
    stream.read_to_end(&mut response).unwrap();
    let head_bytes = response.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    assert!(response.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&response[..head_bytes]));
    response.len() - head_bytes
}

/// Serves bodies of as many bytes as their paths say, on the port that it returns, until the test ends.
pub fn serve(chain: &Path, key: &Path) -> u16 {
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates(chain), key)
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = ServerConnection::new(config.clone()).unwrap();
            // A client that ends early is noticed by the test that has started it.
            let _ = answer(StreamOwned::new(session, connected(stream)));
        }
    });
    port
}

fn answer(mut stream: StreamOwned<ServerConnection, TcpStream>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    let count = head.split(' ').nth(1).and_then(|path| path.strip_prefix('/')?.parse().ok()).unwrap_or(0);
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {count}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(&vec![7; count])?;
    stream.conn.send_close_notify();
    stream.flush()
}
