//! Who is trusted: roots, names, dates, clients, and identities that change.

use crate::site::{NAME, Site, data, echo, identity, roots};
use glass_api::{NetError, Stream};
use glass_lib_tls::{Client, ClientOptions, Identity, Roots, Server, ServerOptions, TlsError};
use glass_platform_sim::LinkConfig;

/// The error of a handshake with a server of `identity`, or the server's certificate.
fn handshake(server: &str, root: &str, name: &'static str) -> Result<Vec<u8>, TlsError> {
    let mut site = Site::new(5, LinkConfig::default());
    let tls = site.tls_server(identity(server), ServerOptions::default());
    site.serve(&tls, echo);
    let client = site.tls_client(root, ClientOptions::default());
    site.call(&client, name, |mut stream| async move {
        stream.handshake().await?;
        stream.write_all(b"x").await?;
        assert_eq!(stream.read(&mut [0]).await, Ok(1));
        Ok(stream.peer_certificates()[0].clone())
    })
}

fn class(outcome: Result<Vec<u8>, TlsError>) -> &'static str {
    match outcome.unwrap_err().of_stream() {
        NetError::Tls(class) => class,
        error => panic!("{error}"),
    }
}

#[test]
fn a_server_is_trusted_by_root_name_and_date() {
    assert!(handshake("server", "root", NAME).is_ok());
    assert!(handshake("server", "root", "127.0.0.1").is_ok());
    assert_eq!(class(handshake("server", "other", NAME)), "no root that we trust has issued the peer's certificate");
    assert_eq!(class(handshake("server", "root", "server.tests")), "the peer's certificate is for another name");
    assert_eq!(class(handshake("server", "root", "127.0.0.2")), "the peer's certificate is for another name");
    assert_eq!(class(handshake("expired", "root", NAME)), "the peer's certificate has expired");
    // One for clients is none for a server.
    assert_eq!(class(handshake("client", "root", "client.test")), "the peer's certificate is not valid");
}

#[test]
fn every_kind_of_key_signs() {
    for name in ["server", "p384", "rsa", "ed25519"] {
        handshake(name, "root", NAME).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn keys_in_sec1_are_read() {
    let mut site = Site::new(5, LinkConfig::default());
    let identity = Identity::from_pem(&data("server.pem"), &data("server.sec1.key")).unwrap();
    let server = site.tls_server(identity, ServerOptions::default());
    site.serve(&server, echo);
    let client = site.tls_client("root", ClientOptions::default());
    site.call(&client, NAME, |mut stream| async move { stream.handshake().await }).unwrap();
}

#[test]
fn clients_present_certificates_if_the_server_wants_them() {
    for (own, expected) in [
        (None, Err(NetError::Tls("the peer refused the connection"))),
        (Some("client"), Ok(1)),
        // One for servers.
        (Some("server"), Err(NetError::Tls("the peer refused the connection"))),
    ] {
        let mut site = Site::new(5, LinkConfig::default());
        let options = ServerOptions { clients: Some(roots("root")), ..ServerOptions::default() };
        let server = site.tls_server(identity("server"), options);
        site.serve(&server, echo);
        let client = site.tls_client("root", ClientOptions { identity: own.map(identity), ..ClientOptions::default() });
        let read = site.call(&client, NAME, |mut stream| async move {
            // The client's handshake is complete before the server has seen its certificate.
            stream.write_all(b"x").await?;
            stream.read(&mut [0]).await
        });
        assert_eq!(read, expected, "{own:?}");
    }
}

#[test]
fn an_identity_is_replaced_without_a_restart() {
    let mut site = Site::new(5, LinkConfig::default());
    let server = site.tls_server(identity("server"), ServerOptions::default());
    site.serve(&server, echo);
    // A client of its own for each, so that no ticket continues a session with the earlier certificate.
    let certificate = |site: &mut Site| {
        let client = site.tls_client("root", ClientOptions::default());
        site.call(&client, NAME, |mut stream| async move {
            stream.handshake().await.unwrap();
            stream.peer_certificates()[0].clone()
        })
    };
    let first = certificate(&mut site);
    // A key of another certificate changes nothing.
    let mixed = Identity::from_pem(&data("renewed.pem"), &data("server.key")).unwrap();
    assert!(matches!(server.set_identity(mixed), Err(TlsError::Credentials(_))));
    assert_eq!(certificate(&mut site), first);
    server.set_identity(identity("renewed")).unwrap();
    let second = certificate(&mut site);
    assert_ne!(second, first);
}

#[test]
fn sessions_are_continued_by_tickets() {
    let mut site = Site::new(5, LinkConfig::default());
    let server = site.tls_server(identity("server"), ServerOptions::default());
    site.serve(&server, echo);
    let client = site.tls_client("root", ClientOptions::default());
    let resumed = |site: &mut Site, client: &Client<_>| {
        site.call(client, NAME, |mut stream| async move {
            stream.write_all(b"x").await.unwrap();
            // The ticket comes before the answer.
            assert_eq!(stream.read(&mut [0]).await, Ok(1));
            let resumed = stream.is_resumed();
            stream.close().await.unwrap();
            assert_eq!(stream.read(&mut [0]).await, Ok(0));
            resumed
        })
    };
    assert_eq!([0; 3].map(|_| resumed(&mut site, &client)), [false, true, true]);
    // Another server of the same name, such as one after a restart, has other keys: the handshake is a full one.
    let restarted = Server::new(&site.server, identity("server"), ServerOptions::default()).unwrap();
    let mut other = Site::new(6, LinkConfig::default());
    other.serve(&other.tls_server(identity("server"), ServerOptions::default()), echo);
    drop(restarted);
    let stranger = Client::new(&other.client, roots("root"), ClientOptions::default()).unwrap();
    assert!(!resumed(&mut other, &stranger));
    // Tickets of twelve hours ago are not read any more.
    site.world.run_for(core::time::Duration::from_secs(13 * 3600)).unwrap();
    assert!(!resumed(&mut site, &client));
}

#[test]
fn both_agree_on_a_protocol_or_end() {
    let protocols = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    for (offered, expected) in [
        (&["h2", "http/1.1"][..], Ok(Some(b"http/1.1".to_vec()))),
        (&[], Ok(None)),
        (&["h2"], Err(NetError::Tls("the peer refused the connection"))),
    ] {
        let mut site = Site::new(5, LinkConfig::default());
        let options = ServerOptions { protocols: protocols(&["http/1.1", "http/1.0"]), ..ServerOptions::default() };
        let server = site.tls_server(identity("server"), options);
        site.serve(&server, echo);
        let client =
            site.tls_client("root", ClientOptions { protocols: protocols(offered), ..ClientOptions::default() });
        let agreed = site.call(&client, NAME, |mut stream| async move {
            stream.handshake().await.map_err(|error| error.of_stream())?;
            Ok(stream.protocol())
        });
        assert_eq!(agreed, expected, "{offered:?}");
    }
}

#[test]
fn credentials_that_cannot_be_used_are_refused() {
    let why = |outcome: Result<Identity, TlsError>| outcome.err().unwrap().to_string();
    assert!(why(Identity::from_pem(b"", &data("server.key"))).contains("BEGIN CERTIFICATE"));
    assert!(why(Identity::from_pem(&data("server.pem"), b"")).contains("BEGIN PRIVATE KEY"));
    assert!(why(Identity::from_pem(&data("server.pem"), &data("server.pem"))).contains("BEGIN PRIVATE KEY"));
    assert!(Roots::from_pem(b"text").is_err());
    assert!(Roots::from_pem(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_err());
    let site = Site::new(1, LinkConfig::default());
    let client = site.tls_client("root", ClientOptions::default());
    drop(client);
}
