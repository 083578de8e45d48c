//! A NATS server with JetStream on this machine, which a test can kill and start again.

use crate::folder::Folder;
use crate::go;
use crate::port::free_port;
use crate::process::{Process, Signal, send};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a start may take on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(240);
/// How long a request of a test may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The server's program, built once; `None` after printing that the test is skipped.
pub fn program() -> Option<PathBuf> {
    const FILES: [(&str, &str); 2] =
        [("go.mod", include_str!("../tests/nats/go.mod")), ("go.sum", include_str!("../tests/nats/go.sum"))];
    go::built("nats-server", &FILES, "github.com/nats-io/nats-server/v2")
}

/// A server and its files. Dropping it ends the server.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    folder: Folder,
    process: Option<Process>,
    /// Its port.
    pub port: u16,
    /// The port of its monitoring.
    pub monitor: u16,
}

impl Server {
    /// A server that does not run yet, with `jetstream` as this section of its configuration; empty is none.
    pub fn new(program: PathBuf, jetstream: &str) -> Result<Server> {
        let folder = Folder::new("nats")?;
        let (port, monitor) = (free_port()?, free_port()?);
        let store = folder.file("store");
        let section = match jetstream {
            "" => String::new(),
            section => format!("jetstream {{ store_dir: {:?}, {section} }}\n", store.display().to_string()),
        };
        let text = format!("listen: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\n{section}");
        folder.write("nats.conf", text.as_bytes())?;
        Ok(Server { program, folder, process: None, port, monitor })
    }

    /// Adds lines to its configuration, for the next start.
    pub fn configure(&self, text: &str) -> Result<()> {
        let path = self.folder.file("nats.conf");
        let before = std::fs::read_to_string(&path)?;
        Ok(std::fs::write(&path, before + text + "\n")?)
    }

    /// Three servers that replicate and flush before they answer; they do not run yet.
    pub fn cluster(program: &Path) -> Result<Vec<Server>> {
        let routes = (0..3).map(|_| free_port()).collect::<std::io::Result<Vec<u16>>>()?;
        let list = routes.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect::<Vec<_>>().join(", ");
        let servers = routes.iter().enumerate().map(|(number, port)| {
            let server = Server::new(program.to_owned(), "sync_interval: always")?;
            server.configure(&format!(
                "server_name: \"s{number}\"\ncluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{list}] }}"
            ))?;
            Ok(server)
        });
        servers.collect()
    }

    /// A server that flushes before it answers, and runs; `None` after printing that the test is skipped.
    pub fn start_durable() -> Option<Server> {
        let mut server = Server::new(program()?, "sync_interval: always").expect("a folder and ports");
        server.start();
        Some(server)
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Panics
    /// If it does not answer in time.
    pub fn start(&mut self) {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(self.folder.file("nats.conf"));
        let mut process = Process::spawn(&mut command, &self.folder.file("log")).expect("the server was built");
        let end = Instant::now() + START_LIMIT;
        while TcpStream::connect(self.address()).is_err() {
            assert!(process.ended().is_none() && Instant::now() < end, "nats-server: {}", process.output());
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process = Some(process);
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops it, or has it continue: it keeps its connections and does not answer.
    pub fn stop(&self, is_stopped: bool) {
        let process = self.process.as_ref().expect("the server runs");
        send(process.pid(), if is_stopped { Signal::STOP } else { Signal::CONT });
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The address of a queue in it, for `--store`.
    pub fn queue(&self, name: &str) -> String {
        format!("nats://127.0.0.1:{}/{name}", self.port)
    }

    /// The answer to a request in JSON, with the protocol of NATS.
    pub fn ask(&self, subject: &str, payload: &str) -> Result<serde_json::Value> {
        let stream = TcpStream::connect(self.address())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut reader = BufReader::new(stream);
        let bytes = payload.len();
        let text =
            format!("CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer {bytes}\r\n{payload}\r\n");
        reader.get_mut().write_all(text.as_bytes())?;
        loop {
            let mut line = String::new();
            ensure!(reader.read_line(&mut line)? > 0, "the server has closed the connection");
            if line.starts_with("-ERR") {
                anyhow::bail!("{line}");
            }
            if let Some(rest) = line.strip_prefix("MSG ") {
                let bytes = rest.split_whitespace().last().and_then(|text| text.parse().ok());
                let mut body = vec![0; bytes.context("a message without a length")?];
                reader.read_exact(&mut body)?;
                return Ok(serde_json::from_slice(&body)?);
            }
        }
    }
}
