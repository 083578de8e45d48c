//! The servers that take and give items, each started anew for each size of items: the queue as a process and as a VM, and its peers.

use super::PORT;
use super::clients::{Protocol, Target};
use super::line::{Address, Line, request};
use crate::outcome::Outcome;
use crate::peers::nginx::Nginx;
use crate::peers::tusd::{self, Tusd};
use crate::tls::client::configuration;
use anyhow::{Context, Result, bail, ensure};
use glass_tests::fat;
use glass_tests::folder::Folder;
use glass_tests::nats;
use glass_tests::netns::{self, Namespace};
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use rustls::ClientConfig;
use rustls::client::Resumption;
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(60);
/// A VM that is not up yet drops what it is sent.
const START_PATIENCE: Duration = Duration::from_millis(200);
/// Memory of a VM.
pub const MEMORY_MIB: u32 = 128;
/// Items in an answer with a list.
const LIST_ITEMS: usize = 1000;
/// Files of TLS in the folder that servers share.
const CHAIN: &str = "chain.pem";
const KEY: &str = "key.pem";

/// Who is measured.
#[derive(Clone)]
pub enum Kind {
    Queue(World),
    /// The queue as a process over NATS JetStream, whose program this is.
    Nats(PathBuf),
    /// Whose clients flush each file, or not.
    Nginx {
        are_flushed: bool,
    },
    /// Its program.
    Tusd(PathBuf),
}

/// Who is measured, and whether over TLS.
pub struct Contestant {
    pub kind: Kind,
    pub is_tls: bool,
}

/// The contestants that this machine has.
pub fn contestants(outcome: &mut Outcome) -> Vec<Contestant> {
    let mut kinds: Vec<Kind> = outcome.available([World::Process, World::Kvm]).into_iter().map(Kind::Queue).collect();
    kinds.extend([false, true].map(|are_flushed| Kind::Nginx { are_flushed }));
    let both = |kind: Kind| [false, true].map(|is_tls| Contestant { kind: kind.clone(), is_tls });
    let mut contestants: Vec<Contestant> = kinds.into_iter().flat_map(both).collect();
    let mut add = |kind: Option<Kind>, skipped| match kind {
        Some(kind) => contestants.push(Contestant { kind, is_tls: false }),
        None => outcome.note(skipped),
    };
    add(tusd::program().map(Kind::Tusd), "tusd skipped: it cannot be built");
    add(nats::program().map(Kind::Nats), "nats skipped: there is no nats-server");
    contestants
}

impl Contestant {
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Queue(World::Process) => "process",
            Kind::Queue(World::Kvm) => "kvm",
            Kind::Queue(World::Tcg) => "tcg",
            Kind::Nats(_) => "nats",
            Kind::Nginx { are_flushed: true } => "nginx_synced",
            Kind::Nginx { are_flushed: false } => "nginx",
            Kind::Tusd(_) => "tusd",
        }
    }

    /// As in the names of figures.
    pub fn line(&self) -> &'static str {
        if self.is_tls { "tls" } else { "plain" }
    }

    pub fn is_queue(&self) -> bool {
        matches!(self.kind, Kind::Queue(_))
    }
}

/// Where servers run.
pub struct Place {
    near: Namespace,
    far: Namespace,
    far_address: Ipv4Addr,
    folder: Folder,
    config: Arc<ClientConfig>,
    disk_size: &'static str,
    /// No port and no address is used twice: the other end may still remember a connection.
    next: Cell<u16>,
}

impl Place {
    /// A network, and the files of TLS. `disk_size` is that of each queue's disk.
    pub fn new(disk_size: &'static str) -> Result<Place> {
        let folder = Folder::new("bench-queue")?;
        let (near, far, far_address) = Namespace::pair()?;
        let share = folder.file("share");
        std::fs::create_dir(&share)?;
        let data = programs::root().join("lib/tls/tests/data");
        for (from, to) in [("server.pem", CHAIN), ("server.key", KEY)] {
            std::fs::copy(data.join(from), share.join(to)).with_context(|| format!("cannot copy {from}"))?;
        }
        let files = [CHAIN, KEY].map(|name| share.join(name));
        ensure!(fat::make(&folder.file("files.img"), &files)?, "{}", fat::NOT_INSTALLED);
        for is_tls in [false, true] {
            near.tap(tap(is_tls), Ipv4Addr::new(10, 77, net(is_tls), 1))?;
        }
        let config = Arc::new(configuration(Resumption::disabled())?);
        Ok(Place { near, far, far_address, folder, config, disk_size, next: Cell::new(0) })
    }

    /// Runs `work` where clients are.
    pub fn inside<R: Send>(&self, work: impl FnOnce() -> Result<R> + Send) -> Result<R> {
        self.near.inside(work)
    }

    /// The client's side of TLS.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    /// The same files as in [`Place::share`].
    fn files_disk(&self) -> PathBuf {
        self.folder.file("files.img")
    }

    fn share(&self) -> PathBuf {
        self.folder.file("share")
    }

    /// Removes the disk of a queue that does not run: there is no space for those of all.
    pub fn remove_disk(&self, contestant: &Contestant) -> Result<()> {
        std::fs::remove_file(self.disk(contestant)).context("there is no disk")
    }

    fn disk(&self, contestant: &Contestant) -> PathBuf {
        self.folder.file(&format!("{}-{}.img", contestant.name(), contestant.line()))
    }
}

fn net(is_tls: bool) -> u8 {
    1 + u8::from(is_tls)
}

fn tap(is_tls: bool) -> &'static str {
    if is_tls { "tap2" } else { "tap1" }
}

/// A server without items, and its clients' view of it. Dropping it ends it and removes its files; the disk of a queue stays, for its next start.
pub struct Server {
    pub target: Target,
    // Ended in this order.
    process: Option<Process>,
    _engine: Option<nats::Server>,
    nginx: Option<Nginx>,
    _tusd: Option<Tusd>,
    files: Folder,
}

/// Starts it; `None` if it is not installed.
pub fn start(contestant: &Contestant, place: &Place) -> Result<Option<Server>> {
    let number = place.next.replace(place.next.get() + 1);
    let port = PORT + 1 + number % 2000;
    let mut socket = SocketAddr::from((place.far_address, port));
    let files = Folder::new("bench-items")?;
    let log = place.folder.file("log");
    let tls = contestant.is_tls.then(|| place.config());
    let (mut process, mut engine, mut nginx, mut tusd) = (None, None, None, None);
    let mut protocol = Protocol::Queue;
    match &contestant.kind {
        Kind::Queue(World::Process) => {
            let mut command = place.far.command(programs::built("upload-queue").context("the queue is not built")?);
            command.arg("--disk").arg(place.disk(contestant)).args(["--disk-size", place.disk_size]);
            command.args(["--bind", "0.0.0.0"]);
            if contestant.is_tls {
                command.arg("--share").arg(place.share());
            }
            process = Some(spawn(&mut command, port, contestant, &log)?);
        }
        Kind::Queue(world) => {
            let address = Ipv4Addr::new(10, 77, net(contestant.is_tls), 2 + (number % 250) as u8);
            socket = SocketAddr::from((address, PORT));
            let mut command = place.near.command(programs::built("glass").context("glass is not built")?);
            command.arg("run").arg(programs::image("upload-queue").context("the image of the queue is not built")?);
            command.args(["--accel", &world.to_string(), "--memory", &MEMORY_MIB.to_string()]);
            command.args(["--net", &format!("tap={}", tap(contestant.is_tls))]);
            command.args(["--ip", &format!("{address}/{}", netns::PREFIX_BITS)]);
            command.arg("--disk").arg(place.disk(contestant)).args(["--disk-size", place.disk_size]);
            if contestant.is_tls {
                command.arg("--files-disk").arg(place.files_disk());
            }
            process = Some(spawn(&mut command, PORT, contestant, &log)?);
        }
        Kind::Nats(program) => {
            let server = place.far.inside(|| {
                let mut server = nats::Server::new(program.clone(), "sync_interval: always")?;
                server.start();
                Ok(server)
            })?;
            let mut command = place.far.command(programs::built("upload-queue").context("the queue is not built")?);
            command.args(["--bind", "0.0.0.0", "--", "--port", &port.to_string(), "--store", &server.queue("bench")]);
            process = Some(Process::spawn(&mut command, &log)?);
            engine = Some(server);
        }
        Kind::Nginx { are_flushed } => {
            let started = match contestant.is_tls {
                false => Nginx::serve(&place.far, &place.near, socket, files.path())?,
                true => {
                    let [chain, key] = [CHAIN, KEY].map(|name| place.share().join(name));
                    Nginx::serve_tls(&place.far, &place.near, socket, files.path(), &chain, &key)?
                }
            };
            let Some(started) = started else { return Ok(None) };
            nginx = Some(started);
            protocol = Protocol::Files { folder: files.path().to_owned(), are_flushed: *are_flushed };
        }
        Kind::Tusd(program) => {
            tusd = Some(Tusd::serve(program, &place.far, &place.near, socket, files.path())?);
            protocol = Protocol::Tus;
        }
    }
    let target = Target { address: Address { socket, tls }, protocol };
    let mut server = Server { target, process, _engine: engine, nginx, _tusd: tusd, files };
    server.wait(place)?;
    Ok(Some(server))
}

/// Starts the queue with its own arguments added, on an empty disk.
fn spawn(command: &mut Command, port: u16, contestant: &Contestant, log: &Path) -> Result<Process> {
    command.args(["--", "--format", "--port", &port.to_string()]);
    if contestant.is_tls {
        command.args(["--tls-chain", CHAIN, "--tls-key", KEY]);
    }
    Process::spawn(command, log)
}

impl Server {
    /// Waits until it answers.
    fn wait(&mut self, place: &Place) -> Result<()> {
        let end = Instant::now() + START_LIMIT;
        let address = &self.target.address;
        let answers = || {
            let mut line = Line::connect_within(address, START_PATIENCE)?;
            line.send(request("GET", "/healthz", "").as_bytes())?;
            line.head()
        };
        while place.inside(answers).is_err() {
            let output = self.process.as_ref().map(Process::output).unwrap_or_default();
            let has_ended = self.process.as_mut().is_some_and(|process| process.ended().is_some());
            ensure!(!has_ended && Instant::now() < end, "the server does not answer: {output}");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Flushes of a queue since its start.
    pub fn flushes(&self) -> Result<f64> {
        let text = Line::connect(&self.target.address)?.request("GET", "/metrics")?;
        let line = text.lines().find_map(|line| line.strip_prefix("glass_queue_flushes_total "));
        line.context("the queue does not count its flushes")?.parse().context("the flushes are no number")
    }

    /// The numbers of a queue's items with larger ones than `after`, oldest first.
    pub fn items_after(&self, after: u64) -> Result<Vec<u64>> {
        let mut line = Line::connect(&self.target.address)?;
        let mut items = Vec::new();
        loop {
            let after = items.last().copied().unwrap_or(after);
            let text = line.request("GET", &format!("/items?after={after}&count={LIST_ITEMS}"))?;
            let page = ids(&text);
            let is_last = page.len() < LIST_ITEMS;
            items.extend(page);
            if is_last {
                return Ok(items);
            }
        }
    }

    /// Where uploads in progress are, of nginx.
    pub fn bodies(&self) -> Option<PathBuf> {
        self.nginx.as_ref().map(Nginx::bodies)
    }

    /// Removes all items of a queue.
    pub fn remove_all(&self) -> Result<()> {
        let mut line = Line::connect(&self.target.address)?;
        loop {
            let (head, text) = line.ask("DELETE", "/downloader", "If-Match: *\r\n")?;
            match head.status {
                200 => {}
                // There is none.
                412 => return Ok(()),
                status => bail!("DELETE was answered {status}: {text}"),
            }
        }
    }

    /// Removes the files of all items but one.
    pub fn keep_only(&self, path: &str) -> Result<()> {
        let kept = path.rsplit('/').next().unwrap_or_default();
        for file in std::fs::read_dir(self.files.path())? {
            let path = file?.path();
            // Of tusd an item has two.
            if path.file_stem().is_none_or(|stem| stem != kept) {
                match std::fs::remove_file(path) {
                    // The server was faster.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    result => result?,
                }
            }
        }
        Ok(())
    }
}

/// The numbers of the items of a list.
fn ids(text: &str) -> Vec<u64> {
    let number = |text: &str| text.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok();
    text.split("\"id\":").skip(1).filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_list() {
        let text = r#"{"items":[{"id":7,"bytes":1,"etag":"\"7-0\""},{"id":12,"bytes":2,"etag":"\"c-0\""}]}"#;
        assert_eq!(ids(text), [7, 12]);
        assert!(ids("{\"items\":[]}").is_empty());
    }
}
