//! The client in a simulation: beside our server, servers that answer wrongly, slowly or not, redirects, and a proxy.

use core::cell::Cell;
use core::time::Duration;
use glass_api::{Clock, Listener, Net, NetError, Platform, ReadHalf, Split, Stream, WriteHalf};
use glass_lib_http::client::{Client, Error, Limits, Options, Request, Response};
use glass_lib_http::{Connection, HttpError, Status};
use glass_platform_sim::{Chance, LinkConfig, Node, NodeConfig, World, for_seeds};
use std::collections::BTreeMap;
use std::rc::Rc;

const PORT: u16 = 80;
pub const LIMIT: Duration = Duration::from_secs(3600);

pub type Tcp = <<Node as Platform>::Net as Net>::Stream;

pub struct Site {
    pub world: World,
    pub server: Node,
    pub client: Node,
    /// Connections that the server has accepted.
    accepted: Rc<Cell<usize>>,
}

impl Site {
    pub fn new(seed: u64, link: LinkConfig) -> Site {
        let mut world = World::new(seed);
        let config = || NodeConfig { link: link.clone(), ..NodeConfig::default() };
        let (server, client) = (world.node("server", config()), world.node("client", config()));
        Site { world, server, client, accepted: Rc::default() }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.endpoint(PORT))
    }

    /// Serves each connection to the server in a task of its own.
    fn serve<F: Future<Output = ()> + 'static>(&self, serve: impl Fn(Tcp) -> F + 'static) {
        let (here, accepted) = (self.server.clone(), self.accepted.clone());
        self.server.run("listen", async move {
            let mut listener = here.net().listen(PORT).await.unwrap();
            loop {
                let Ok(stream) = listener.accept().await else { continue };
                accepted.set(accepted.get() + 1);
                here.run("serve", serve(stream));
            }
        });
    }

    /// Our own server.
    fn serve_http(&self) {
        let here = self.server.clone();
        self.serve(move |stream| {
            let connection = Connection::new(stream, here.clone(), glass_lib_http::Limits::default());
            async move { _ = connection.serve(answer).await }
        });
    }

    pub fn client(&self, limits: Limits) -> Client<Node> {
        Client::new(&self.client, Options { limits, ..Options::default() })
    }

    pub fn complete<T: 'static>(&mut self, work: impl Future<Output = T> + 'static) -> T {
        self.world.complete(&self.client, LIMIT, work).unwrap()
    }
}

async fn answer(connection: &mut Connection<Tcp, Node>, request: glass_lib_http::Request) -> Result<(), HttpError> {
    let redirect = |status: u16, to: &str| glass_lib_http::Response::new(Status(status)).header("Location", to);
    match request.path() {
        "/echo" => {
            let mut body = vec![0; 200_000];
            let count = connection.fill_from_body(&mut body).await?;
            connection.respond(glass_lib_http::Response::new(Status::OK), &body[..count]).await
        }
        "/loop" => connection.respond(redirect(302, "loop"), b"again").await,
        "/303" => connection.respond(redirect(303, "/method"), &[b'x'; 20_000]).await,
        "/307" => connection.respond(redirect(307, "../echo"), b"").await,
        "/close" => {
            connection.close_after_response();
            connection.respond_text(Status::OK, "closes").await
        }
        "/method" => connection.respond_text(Status::OK, request.method_name()).await,
        path => match path[1..].parse::<usize>() {
            Ok(bytes) => connection.respond(glass_lib_http::Response::new(Status::OK), &vec![7; bytes]).await,
            Err(_) => connection.respond_text(Status::NOT_FOUND, "nothing here").await,
        },
    }
}

async fn text(mut response: Response<Node>) -> (u16, String) {
    let body = response.read_all(1 << 20).await.unwrap();
    (response.status().0, String::from_utf8(body).unwrap())
}

#[test]
fn requests_use_a_connection_again() {
    let mut site = Site::new(1, LinkConfig::default());
    site.serve_http();
    let (client, base) = (site.client(Limits::default()), site.url(""));
    let accepted = site.accepted.clone();
    site.complete(async move {
        let url = |path: &str| format!("{base}{path}");
        assert_eq!(text(client.get(&url("/nothing")).await.unwrap()).await, (404, "nothing here".into()));
        let head = client.send(Request::new("HEAD", &url("/100")).unwrap(), &[]).await.unwrap();
        assert_eq!((head.status(), head.header("content-length")), (Status::OK, Some(&b"100"[..])));
        drop(head);
        for bytes in [0, 1, 4096, 4097, 150_000] {
            let sent: Vec<u8> = (0..bytes).map(|place| place as u8).collect();
            let mut response = client.send(Request::post(&url("/echo")).unwrap(), &sent).await.unwrap();
            assert!(response.read_all(200_000).await.unwrap() == sent, "{bytes}");
        }
        let mut upload = client.open(Request::post(&url("/echo")).unwrap(), None).await.unwrap();
        for _ in 0..10 {
            upload.write(&[b'c'; 1000]).await.unwrap();
            upload.write(&[]).await.unwrap();
        }
        assert_eq!(text(upload.finish().await.unwrap()).await.1.len(), 10_000);
        let mut response = client.get(&url("/50000")).await.unwrap();
        assert_eq!(response.read_all(4999).await, Err(Error::TooLong(4999)));
        assert_eq!(text(client.get(&url("/close")).await.unwrap()).await.1, "closes");
        assert_eq!(text(client.get(&url("/5")).await.unwrap()).await.1.len(), 5);
        assert_eq!(client.idle_count(), 1);
    });
    // One for all, another for the upload, and one after what was too long and `/close` had ended these.
    assert_eq!(accepted.get(), 3);
}

#[test]
fn redirects_are_followed_to_an_end() {
    let mut site = Site::new(1, LinkConfig::default());
    site.serve_http();
    let (client, base) = (site.client(Limits::default()), site.url(""));
    let as_it_is = site.client(Limits { redirects_max: 0, ..Limits::default() });
    site.complete(async move {
        let url = |path: &str| format!("{base}{path}");
        let looped = client.get(&url("/loop")).await.err();
        assert_eq!(looped, Some(Error::TooManyRedirects(5)));
        let post = |path: &str| Request::post(&url(path)).unwrap();
        let response = client.send(post("/303"), b"body").await.unwrap();
        assert!(response.url().to_string().ends_with("/method"));
        assert_eq!(text(response).await, (200, "GET".into()));
        assert_eq!(text(client.send(post("/307"), b"body").await.unwrap()).await, (200, "body".into()));
        assert_eq!(as_it_is.get(&url("/loop")).await.unwrap().status(), Status::FOUND);
        assert_eq!(client.get("https://server.test/").await.err(), Some(Error::NoTls));
    });
}

/// Answers each connection's first bytes with `bytes`, piece by piece with `pause` between them, then closes it or waits.
fn raw(site: &Site, bytes: &'static [u8], piece: usize, pause: Duration, closes: bool) {
    let clock = site.server.clone();
    site.serve(move |mut stream| {
        let clock = clock.clone();
        async move {
            let _ = stream.read(&mut [0; 4096]).await;
            for piece in bytes.chunks(piece) {
                if stream.write_all(piece).await.is_err() {
                    return;
                }
                clock.sleep(pause).await;
            }
            if closes {
                let _ = stream.close().await;
            }
            clock.sleep(LIMIT).await;
        }
    });
}

#[test]
fn bodies_end_where_they_say() {
    let none = Duration::ZERO;
    for (bytes, expected) in [
        (&b"HTTP/1.1 200 OK\r\n\r\nuntil the end"[..], Ok("until the end")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Ok("ok")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\n", Ok("abcde")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", Err(Error::Cut)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", Err(Error::Cut)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", Err(Error::Bad("a chunk is longer than its size"))),
        (b"HTTP/1.1 200 OK\r\nContent-Le", Err(Error::Cut)),
        (b"", Err(Error::Cut)),
        (b"HTTP/1.1 101 Switching\r\n\r\n", Err(Error::Bad("it switches to a protocol that was not offered"))),
        (b"SSH-2.0-OpenSSH\r\n\r\n", Err(Error::Bad("it is not of HTTP/1.1"))),
    ] {
        for piece in [1, 7, 1000] {
            let mut site = Site::new(1, LinkConfig::default());
            raw(&site, bytes, piece, none, true);
            let (client, url) = (site.client(Limits::default()), site.url("/"));
            let read = site.complete(async move {
                let mut response = client.get(&url).await?;
                response.read_all(1000).await
            });
            assert_eq!(read, expected.map(|text: &str| text.as_bytes().to_vec()), "{}", String::from_utf8_lossy(bytes));
        }
    }
}

#[test]
fn a_request_ends_within_its_limit() {
    let limits = Limits { total: Duration::from_secs(20), progress: Duration::from_secs(4), ..Limits::default() };
    let long = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nand so it goes, a byte a second, until the limit of the whole request";
    for (bytes, pause_secs, expected_secs) in
        // Silent; it stops; slow, so that each window of 4 s has too little.
        [(&b""[..], 1, 4.0), (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 0, 4.0), (long, 1, 20.0)]
    {
        let mut site = Site::new(1, LinkConfig::default());
        raw(&site, bytes, 1, Duration::from_secs(pause_secs), false);
        let (client, url, clock) = (site.client(limits), site.url("/"), site.client.clone());
        let (outcome, secs) = site.complete(async move {
            let start = clock.now();
            let outcome = match client.get(&url).await {
                Ok(mut response) => response.read_all(10_000).await,
                Err(error) => Err(error),
            };
            (outcome, clock.now().since(start).as_secs_f64())
        });
        assert_eq!(outcome, Err(Error::TimedOut));
        assert!(secs >= 3.9 && secs < expected_secs + 0.2, "{secs}");
    }
}

#[test]
fn no_server_is_an_error() {
    let mut site = Site::new(1, LinkConfig::default());
    let (client, url) = (site.client(Limits::default()), site.url("/"));
    assert_eq!(site.complete(async move { client.get(&url).await.err() }), Some(Error::Net(NetError::Reset)));
}

/// A machine with few places for connections, of which those that were just reset are not free yet.
#[test]
fn a_place_for_a_connection_is_waited_for() {
    for (held_secs, expected) in [(2, Ok(())), (20, Err(Error::Net(NetError::TooMany)))] {
        let mut site = Site::new(1, LinkConfig::default());
        site.serve_http();
        let mut config = NodeConfig::default();
        config.network.connections_max = 2;
        let small = site.world.node("small", config);
        let client = Client::new(&small, Options::default());
        let (net, clock, server, url) = (small.net(), small.clone(), site.server.endpoint(PORT), site.url("/5"));
        let ended = site.world.complete(&small, LIMIT, async move {
            let held = [net.connect(server).await.unwrap(), net.connect(server).await.unwrap()];
            let hold = async {
                clock.sleep(Duration::from_secs(held_secs)).await;
                drop(held);
            };
            let start = clock.now();
            let (outcome, ()) = embassy_futures::join::join(client.get(&url), hold).await;
            assert!(clock.now().since(start) >= Duration::from_secs(held_secs));
            outcome.map(drop)
        });
        assert_eq!(ended.unwrap(), expected, "after {held_secs} s");
    }
}

#[test]
fn a_kept_connection_that_the_server_closed_is_replaced() {
    let mut site = Site::new(1, LinkConfig::default());
    // It answers one request as if it kept the connection, and ends it with the next one.
    site.serve(|mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
    });
    let (client, url) = (site.client(Limits::default()), site.url("/"));
    site.complete(async move {
        for _ in 0..3 {
            assert_eq!(text(client.get(&url).await.unwrap()).await.1, "ok");
        }
        // Not what may have had an effect.
        let post = client.send(Request::post(&url).unwrap(), b"x").await;
        assert_eq!(post.err(), Some(Error::Net(NetError::Reset)));
    });
    assert_eq!(site.accepted.get(), 3);
}

#[test]
fn a_proxy_connects_or_refuses() {
    let mut site = Site::new(1, LinkConfig::default());
    site.serve_http();
    let proxy = site.world.node("proxy", NodeConfig::default());
    let (here, server) = (proxy.clone(), site.server.endpoint(PORT));
    proxy.run("proxy", async move {
        let mut listener = here.net().listen(3128).await.unwrap();
        loop {
            let (mut reader, mut writer) = listener.accept().await.unwrap().split();
            let here = here.clone();
            here.clone().run("tunnel", async move {
                let mut head = vec![0; 1000];
                let count = reader.read(&mut head).await.unwrap();
                let head = String::from_utf8_lossy(&head[..count]).into_owned();
                if head != format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n") {
                    writer.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                    return writer.close().await.unwrap();
                }
                let (mut far_reader, mut far_writer) = here.net().connect(server).await.unwrap().split();
                writer.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.unwrap();
                let there = async {
                    let mut buf = [0; 1000];
                    while let Ok(count @ 1..) = reader.read(&mut buf).await {
                        far_writer.write_all(&buf[..count]).await.unwrap();
                    }
                };
                let back = async {
                    let mut buf = [0; 1000];
                    while let Ok(count @ 1..) = far_reader.read(&mut buf).await {
                        writer.write_all(&buf[..count]).await.unwrap();
                    }
                };
                embassy_futures::select::select(there, back).await;
            });
        }
    });
    let options = Options { proxy: Some((proxy.address().to_string(), 3128)), ..Options::default() };
    let (client, url) = (Client::new(&site.client, options), site.url("/method"));
    site.complete(async move {
        assert_eq!(text(client.get(&url).await.unwrap()).await.1, "GET");
        assert_eq!(client.get("http://elsewhere:81/").await.err(), Some(Error::Proxy(Status::FORBIDDEN)));
    });
}

/// What is in flight at once is bounded, and everything ends, whatever a server that resets, is silent or slow, or redirects does.
#[test]
fn ten_thousand_requests_end() {
    let mut site = Site::new(7, LinkConfig::default());
    let here = site.server.clone();
    let chance = Rc::new(core::cell::RefCell::new(Chance::new(7)));
    site.serve(move |mut stream| {
        let (here, chance) = (here.clone(), chance.clone());
        async move {
            let kind = chance.borrow_mut().below(20);
            match kind {
                // A reset, silence, and an end within the body.
                0 => return,
                1 => return here.sleep(Duration::from_secs(30)).await,
                2 => {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nmiddle").await;
                    return;
                }
                // A slow body: the first one is whole within the limit, the second one is not.
                3 | 4 => {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n").await;
                    for _ in 0..40 {
                        here.sleep(Duration::from_millis(if kind == 3 { 100 } else { 1000 })).await;
                        if stream.write_all(b"x").await.is_err() {
                            return;
                        }
                    }
                    return;
                }
                _ => {}
            }
            let _ = Connection::new(stream, here, glass_lib_http::Limits::default()).serve(answer).await;
        }
    });
    let limits = Limits {
        total: Duration::from_secs(10),
        progress: Duration::from_secs(5),
        connections_max: 100,
        idle_max: 20,
        ..Limits::default()
    };
    let client = site.client(limits);
    let outcomes: Rc<core::cell::RefCell<BTreeMap<String, usize>>> = Rc::default();
    let ended = Rc::new(Cell::new(0));
    for task in 0..100 {
        let (client, base, outcomes, ended) = (client.clone(), site.url(""), outcomes.clone(), ended.clone());
        let clock = site.client.clone();
        site.client.run("requests", async move {
            for request in 0..100 {
                let path = match (task + request) % 5 {
                    0 => "/loop".to_owned(),
                    1 => "/303".to_owned(),
                    2 => "/close".to_owned(),
                    number => format!("/{}", number * 3000),
                };
                let start = clock.now();
                let outcome = match client.get(&format!("{base}{path}")).await {
                    Ok(mut response) => response.read_all(100_000).await.map(drop),
                    Err(error) => Err(error),
                };
                assert!(clock.now().since(start) <= Duration::from_millis(10_100));
                *outcomes.borrow_mut().entry(format!("{:?}", outcome.err())).or_default() += 1;
            }
            ended.set(ended.get() + 1);
        });
    }
    site.world.run_until(LIMIT, || ended.get() == 100).unwrap();
    let outcomes = outcomes.borrow();
    assert_eq!(outcomes.values().sum::<usize>(), 10_000, "{outcomes:?}");
    assert!(outcomes["None"] > 5000 && outcomes.len() >= 4, "{outcomes:?}");
    assert!(client.idle_count() <= 20, "{}", client.idle_count());
}

/// The server's responses, changed by chance: never a panic, never more than the limits.
#[test]
fn changed_responses_are_read_or_refused() {
    const RESPONSES: [&[u8]; 4] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 26\r\n\r\nabcdefghijklmnopqrstuvwxyz",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1a\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nA: b\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nabc",
        b"HTTP/1.1 302 Found\r\nLocation: /x?y#z\r\nContent-Length: 3\r\n\r\nabc",
    ];
    for_seeds(0..1000, |seed| {
        let mut chance = Chance::new(seed);
        let mut bytes = RESPONSES[seed as usize % RESPONSES.len()].to_vec();
        for _ in 0..chance.below(4) {
            let place = chance.below(bytes.len() as u64) as usize;
            match chance.below(4) {
                0 => bytes[place] = chance.below(256) as u8,
                1 => _ = bytes.remove(place),
                2 => bytes.insert(place, b"\r\n0: ,;f"[chance.below(8) as usize]),
                _ => {
                    let piece = bytes[place..(place + 9).min(bytes.len())].to_vec();
                    bytes.splice(place..place, piece);
                }
            }
        }
        let mut site = Site::new(seed, LinkConfig::default());
        let piece = 1 + chance.below(40) as usize;
        site.serve(move |mut stream| {
            let bytes = bytes.clone();
            async move {
                let _ = stream.read(&mut [0; 4096]).await;
                for piece in bytes.chunks(piece) {
                    let _ = stream.write_all(piece).await;
                }
                let _ = stream.close().await;
                let _ = stream.read(&mut [0; 4096]).await;
            }
        });
        let (client, url) = (site.client(Limits { total: Duration::from_secs(5), ..Limits::default() }), site.url("/"));
        site.complete(async move {
            if let Ok(mut response) = client.get(&url).await
                && let Ok(body) = response.read_all(1000).await
            {
                assert!(body.len() <= 1000);
            }
        });
    });
}

/// Whatever our server answers, our client reads, however it arrives; method and path are those that were sent.
#[test]
fn both_halves_understand_each_other() {
    for_seeds(0..40, |seed| {
        let mut site = Site::new(seed, LinkConfig::bad());
        site.serve_http();
        let (client, base) = (site.client(Limits::default()), site.url(""));
        site.complete(async move {
            let mut chance = Chance::new(seed);
            for _ in 0..20 {
                let sent: Vec<u8> = (0..chance.below(30_000)).map(|_| chance.below(256) as u8).collect();
                let request = Request::new(["POST", "PUT", "PATCH"][chance.below(3) as usize], &format!("{base}/echo"));
                let request = request.unwrap().header("X-Seed", seed);
                let mut response = if chance.below(2) == 0 {
                    client.send(request, &sent).await.unwrap()
                } else {
                    let length = (chance.below(2) == 0).then_some(sent.len() as u64);
                    let mut upload = client.open(request, length).await.unwrap();
                    for piece in sent.chunks(1 + chance.below(7000) as usize) {
                        upload.write(piece).await.unwrap();
                    }
                    upload.finish().await.unwrap()
                };
                assert!(response.read_all(30_000).await.unwrap() == sent);
            }
        });
    });
}
