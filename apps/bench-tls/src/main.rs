//! HTTPS on every platform, for tests and benchmarks: bodies of any length, whole, streamed, cut, or as events (`answers.rs`).
//!
//! Its certificate and key are `chain.pem` and `key.pem` in the directory of `--share`. Every second it checks whether they have changed, and uses new ones
//! without a restart. If there is a `clients.pem` at the start, clients have to present a certificate that one in it has issued. `--http PORT` serves
//! the same without TLS.
//!
//! With `--get URL` it is a client instead, which prints the status and the length of the response, and trusts the certificates in `roots.pem`. `--load URL
//! PATHS REQUESTS CONNECTIONS` sends many requests. `--vectors` checks the cryptography with vectors on the first disk.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

mod answers;
mod load;
mod vectors;

use alloc::format;
use core::time::Duration;
use glasshouse::http::{Connections, Limits, client};
use glasshouse::tls::{self, Identity, Roots, Server, ServerOptions, TlsError};
use glasshouse::trace::Name;
use glasshouse::{Error, Files, Listener, Net, NetInfo, Platform};

/// Connections that are open at once.
const CONNECTIONS_MAX: usize = 512;
/// Bytes of a response that is printed at most.
const BODY_BYTES_MAX: usize = 16 << 20;
const CHECK_PERIOD: Duration = Duration::from_secs(1);

static CONNECTIONS: Name = Name::new("connections");

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let port: u16 = match platform.args() {
        [] => 8443,
        [option, port] if option == "--port" => port.parse().map_err(|error| format!("{port}: {error}"))?,
        [option, port] if option == "--http" => return serve_plain(&platform, port.parse()?).await,
        [option, url] if option == "--get" => return get(&platform, url).await,
        [option, url, paths, requests, connections] if option == "--load" => {
            let numbers = [requests.parse()?, connections.parse()?];
            return load::run(&platform, url, paths, numbers).await;
        }
        [option] if option == "--vectors" => return vectors::run(&platform).await,
        _ => {
            let usage = "the arguments are: [--port NUMBER], --http NUMBER, --get URL, --load URL PATH,PATH... REQUESTS CONNECTIONS, or --vectors";
            return Err(usage.into());
        }
    };
    let files = platform.files().ok_or("start it with --share DIRECTORY, which has chain.pem and key.pem")?;
    let mut options = ServerOptions { protocols: ["http/1.1".into()].into(), ..ServerOptions::default() };
    if files.metadata("clients.pem").await.is_ok() {
        options.clients = Some(Roots::from_file(&files, "clients.pem").await?);
    }
    let server = Server::new(&platform, identity(&files).await?, options)?;
    let listener = server.listen(platform.net().listen(port).await?);
    let network = platform.net().up().await?;
    platform.print(format_args!("bench-tls listens on {} {}", network.address, listener.port()));
    platform.spawn("certificates", renew(platform.clone(), files, server))?;
    accept(&platform, listener, network).await;
    Ok(())
}

/// The same without TLS.
async fn serve_plain(platform: &impl Platform, port: u16) -> Result<(), Error> {
    let listener = platform.net().listen(port).await?;
    let network = platform.net().up().await?;
    platform.print(format_args!("bench-tls listens on {} {} without TLS", network.address, listener.port()));
    accept(platform, listener, network).await;
    Ok(())
}

async fn accept(platform: &impl Platform, listener: impl Listener, network: NetInfo) {
    let connections = Connections::new(Connections::bound(CONNECTIONS_MAX, &network), &CONNECTIONS);
    let answer = |_| async |connection: &mut _, request| answers::answer(connection, request).await;
    connections.accept(platform, "bench-tls", listener, Limits::default(), answer).await;
}

/// Prints the status and the length of a response.
async fn get(platform: &impl Platform, url: &str) -> Result<(), Error> {
    let options = client_options(platform).await?;
    platform.net().up().await?;
    let client = client::Client::new(platform, options);
    let mut response = client.get(url).await?;
    let body = response.read_all(BODY_BYTES_MAX).await?;
    platform.print(format_args!("{}, {} bytes", response.status().0, body.len()));
    platform.writable(usize::MAX).await;
    Ok(())
}

/// The client's; with TLS if there are `roots.pem`.
async fn client_options<P: Platform>(platform: &P) -> Result<client::Options<P>, Error> {
    let Some(files) = platform.files() else { return Ok(client::Options::default()) };
    let mut options = tls::ClientOptions { protocols: ["http/1.1".into()].into(), ..tls::ClientOptions::default() };
    if files.metadata("chain.pem").await.is_ok() {
        options.identity = Some(identity(&files).await?);
    }
    let tls = tls::Client::new(platform, Roots::from_file(&files, "roots.pem").await?, options)?;
    Ok(client::Options { tls: Some(tls), ..client::Options::default() })
}

async fn identity(files: &impl Files) -> Result<Identity, TlsError> {
    Identity::from_files(files, "chain.pem", "key.pem").await
}

/// Uses new certificates, without end. Files that are half written, or do not belong together, are tried again.
async fn renew<P: Platform>(platform: P, files: impl Files, server: Server<P>) {
    let mut used = files.metadata("chain.pem").await.ok();
    loop {
        platform.sleep(CHECK_PERIOD).await;
        let found = files.metadata("chain.pem").await.ok();
        if found == used {
            continue;
        }
        match identity(&files).await.and_then(|identity| server.set_identity(identity)) {
            Ok(()) => {
                used = found;
                platform.print(format_args!("bench-tls uses new certificates"));
            }
            Err(error) => platform.print(format_args!("bench-tls keeps its certificates: {error}")),
        }
    }
}
