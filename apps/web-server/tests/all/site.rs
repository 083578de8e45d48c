//! The server on a simulated machine with files in memory, and a client on another one.

use core::time::Duration;
use glass_platform_sim::{Node, NodeConfig, SimBlock, SimError, SimFiles, World};
use glasshouse::{Address, Net, NetError, Platform, Stream};

const PORT: u16 = 8080;
const VSOCK_PORT: u32 = 80;
const LIMIT: Duration = Duration::from_secs(480);

pub struct Site {
    pub world: World,
    pub server: Node,
    pub client: Node,
    pub files: SimFiles,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Site {
    /// A server of `files`, which have not changed for an hour.
    pub fn new(seed: u64, files: SimFiles) -> Site {
        Site::with(seed, files, &[])
    }

    /// With further arguments.
    pub fn with(seed: u64, files: SimFiles, args: &[&str]) -> Site {
        Site::of(seed, NodeConfig { files: Some(files.clone()), ..NodeConfig::default() }, files, args)
    }

    /// A server of the files on a disk.
    pub fn on_disk(seed: u64, disk: SimBlock, args: &[&str]) -> Site {
        let args = [&["--disk"], args].concat();
        Site::of(seed, NodeConfig { disks: vec![disk], ..NodeConfig::default() }, SimFiles::new(seed), &args)
    }

    fn of(seed: u64, config: NodeConfig, files: SimFiles, args: &[&str]) -> Site {
        let mut world = World::new(seed);
        let args = [&["--port", "8080", "--port", "vsock:80"], args].concat();
        let args = args.into_iter().map(str::to_owned).collect();
        let server = world.node("server", NodeConfig { args, ..config });
        let client = world.node("client", NodeConfig::default());
        let node = server.clone();
        server.run("serve", async move {
            web_server::serve(node).await.unwrap();
        });
        world.run_for(Duration::from_secs(3600)).unwrap();
        Site { world, server, client, files }
    }

    pub fn tcp(&self) -> Address {
        self.server.endpoint(PORT).into()
    }

    pub fn vsock(&self) -> Address {
        self.server.vsock(VSOCK_PORT).into()
    }

    /// Sends `text` over a connection of its own, and returns what is received until the server closes it.
    pub fn exchange(&mut self, to: Address, text: &str) -> Result<Result<Vec<u8>, NetError>, SimError> {
        let (net, text) = (self.client.net(), text.to_owned());
        self.world.complete(&self.client.clone(), LIMIT, async move {
            let mut stream = net.connect_to(to).await?;
            stream.write_all(text.as_bytes()).await?;
            let (mut all, mut part) = (Vec::new(), vec![0; 10_000]);
            loop {
                match stream.read(&mut part).await? {
                    0 => return Ok(all),
                    count => all.extend_from_slice(&part[..count]),
                }
            }
        })
    }

    /// Sends one request with more fields, and returns its answer.
    pub fn request(&mut self, method: &str, target: &str, fields: &str) -> Answer {
        let to = self.tcp();
        let text = format!("{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n");
        let bytes = self.exchange(to, &text).unwrap().unwrap();
        let mut answers = answers(&bytes, &[method]);
        assert_eq!(answers.len(), 1, "{}", String::from_utf8_lossy(&bytes));
        answers.remove(0)
    }

    pub fn get(&mut self, target: &str) -> Answer {
        self.request("GET", target, "")
    }
}

/// The answers to requests with these methods in what a connection has received; each must be whole.
pub fn answers(mut bytes: &[u8], methods: &[&str]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for method in methods {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer has a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        bytes = &bytes[end + 4..];
        let length = answer.field("Content-Length").map_or(0, |length| length.parse().unwrap());
        if *method != "HEAD" {
            answer.body = bytes[..length].to_vec();
            bytes = &bytes[length..];
        }
        answers.push(answer);
    }
    assert!(bytes.is_empty(), "{} bytes follow the last answer", bytes.len());
    answers
}

/// Bytes that depend on `tag`.
pub fn content(tag: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| ((at / 7).wrapping_mul(31) ^ at ^ tag) as u8).collect()
}
