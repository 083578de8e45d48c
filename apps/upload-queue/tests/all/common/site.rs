//! The service on a simulated machine, and clients on another one.

use core::time::Duration;
use glass_platform_sim::{Chance, DiskConfig, LinkConfig, Node, NodeConfig, SimBlock, World};
use glasshouse::{Net, NetError, Platform, Stream};

pub const PORT: u16 = 8080;

/// Bytes that depend on `tag`.
pub fn content(tag: u64, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    Chance::new(tag).fill(&mut data);
    data
}

/// A server and a client machine.
pub struct Site {
    pub world: World,
    pub server: Node,
    pub client: Node,
    pub disk: SimBlock,
}

impl Site {
    /// With an empty disk of `disk_bytes`.
    pub fn new(seed: u64, disk_bytes: u64, args: &[&str]) -> Site {
        let disk = SimBlock::new(seed, DiskConfig { size_bytes: disk_bytes, ..DiskConfig::default() });
        Site::with_disk(seed, disk, LinkConfig::default(), args)
    }

    /// With this disk, when the service is listening.
    pub fn with_disk(seed: u64, disk: SimBlock, link: LinkConfig, args: &[&str]) -> Site {
        let args = args.iter().map(|arg| arg.to_string()).collect();
        Site::with_config(seed, NodeConfig { disks: vec![disk], args, link, ..NodeConfig::default() })
    }

    /// With this server, and a client with the same link.
    pub fn with_config(seed: u64, config: NodeConfig) -> Site {
        let mut world = World::new(seed);
        let (disk, link) = (config.disks[0].clone(), config.link.clone());
        let server = world.node("server", config);
        let client = world.node("client", NodeConfig { link, ..NodeConfig::default() });
        let node = server.clone();
        server.run("serve", async move {
            if let Err(error) = upload_queue::serve(node.clone()).await {
                glasshouse::Console::print(&node, format_args!("ended: {error}"));
            }
        });
        let console = server.clone();
        let listening = || console.console().iter().any(|line| line.contains("listening") || line.contains("ended"));
        world.run_until(Duration::from_secs(60), listening).unwrap();
        Site { world, server, client, disk }
    }

    /// Runs `task` with a client that can connect.
    pub fn run<T: 'static>(&mut self, task: impl AsyncFnOnce(Client) -> T + 'static) -> T {
        let client = self.client();
        self.world.complete(&self.client.clone(), Duration::from_secs(3600), async move { task(client).await }).unwrap()
    }

    pub fn client(&self) -> Client {
        Client { node: self.client.clone(), remote: self.server.endpoint(PORT) }
    }

    /// The line `name: ...` of the service's front page.
    pub fn figure(&mut self, name: &'static str) -> String {
        let page = self.run(async |client| client.ask("GET / HTTP/1.1\r\nHost: q\r\n\r\n").await.text());
        let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(": ").to_owned()
    }
}

/// Connects to the service.
#[derive(Clone)]
pub struct Client {
    pub node: Node,
    pub remote: core::net::SocketAddr,
}

type SimStream = <<Node as Platform>::Net as Net>::Stream;

impl Client {
    pub async fn connect(&self) -> Peer {
        Peer { stream: self.node.net().connect(self.remote).await.unwrap(), received: Vec::new() }
    }

    /// One request on a connection of its own.
    pub async fn ask(&self, request: impl AsRef<[u8]>) -> Reply {
        let mut peer = self.connect().await;
        peer.send(request).await;
        let reply = peer.reply().await;
        let _ = peer.stream.close().await;
        reply
    }

    pub async fn put(&self, data: &[u8]) -> Reply {
        self.ask(put_request(data)).await
    }

    pub async fn get(&self) -> Reply {
        self.ask("GET /downloader HTTP/1.1\r\nHost: q\r\n\r\n").await
    }

    /// Removes the item that came with this answer.
    pub async fn delete(&self, item: &Reply) -> Reply {
        self.delete_matching(item.header("ETag").expect("an item has a tag")).await
    }

    /// Removes the oldest item if it matches: its tag, or `*`.
    pub async fn delete_matching(&self, tag: &str) -> Reply {
        self.ask(format!("DELETE /downloader HTTP/1.1\r\nHost: q\r\nIf-Match: {tag}\r\n\r\n")).await
    }
}

pub fn put_head(length: usize) -> String {
    format!("PUT /uploader HTTP/1.1\r\nHost: q\r\nContent-Length: {length}\r\n\r\n")
}

pub fn put_request(data: &[u8]) -> Vec<u8> {
    let mut request = put_head(data.len()).into_bytes();
    request.extend_from_slice(data);
    request
}

/// One connection.
pub struct Peer {
    pub stream: SimStream,
    received: Vec<u8>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// The connection ended before the announced length.
    pub cut: bool,
}

impl Reply {
    /// The body; of a problem its detail, with a line end.
    pub fn text(&self) -> String {
        let text = String::from_utf8(self.body.clone()).unwrap();
        if self.header("Content-Type") != Some("application/problem+json") || text.is_empty() {
            return text;
        }
        let start = format!("{{\"status\":{},\"title\":\"", self.status);
        assert!(text.starts_with(&start) && text.ends_with("\"}\n"), "{text}");
        let detail = text[..text.len() - 3].split_once("\",\"detail\":\"").unwrap().1;
        detail.replace("\\\"", "\"") + "\n"
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value))
    }
}

impl Peer {
    pub async fn send(&mut self, data: impl AsRef<[u8]>) {
        // A server that has answered already may close while we still send.
        let _ = self.stream.write_all(data.as_ref()).await;
    }

    /// More bytes; false at the end.
    async fn receive(&mut self) -> bool {
        let mut buf = [0; 65536];
        match self.stream.read(&mut buf).await {
            Ok(0) | Err(NetError::Reset | NetError::TimedOut) => false,
            Ok(count) => {
                self.received.extend_from_slice(&buf[..count]);
                true
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The next answer; panics when the connection ends without one.
    pub async fn reply(&mut self) -> Reply {
        self.try_reply().await.expect("an answer")
    }

    pub async fn try_reply(&mut self) -> Option<Reply> {
        let end = loop {
            if let Some(place) = self.received.windows(4).position(|window| window == b"\r\n\r\n") {
                break place + 4;
            }
            if !self.receive().await {
                assert!(self.received.is_empty(), "half a head: {:?}", String::from_utf8_lossy(&self.received));
                return None;
            }
        };
        let head = String::from_utf8(self.received.drain(..end).collect()).unwrap();
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest[..3].parse().ok()).unwrap();
        let mut reply = Reply { status, head, body: Vec::new(), cut: false };
        let length = reply.header("Content-Length").map_or(0, |value| value.parse::<usize>().unwrap());
        while self.received.len() < length && !reply.cut {
            reply.cut = !self.receive().await;
        }
        reply.body = self.received.drain(..length.min(self.received.len())).collect();
        Some(reply)
    }

    /// Whether the server ends the connection without another byte.
    pub async fn ends(&mut self) -> bool {
        self.received.is_empty() && !self.receive().await
    }
}
