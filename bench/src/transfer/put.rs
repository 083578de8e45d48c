//! `queue put`: small uploads by several clients at once, beside nginx whose clients flush each file; and how many flushes an upload takes.

use crate::block::Body;
use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::peers::nginx::Nginx;
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result, anyhow, ensure};
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::nats::Server;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World, answer};
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ITEM_BYTES: u64 = 4096;
/// Clients at once, each with a connection that is kept.
const CLIENTS: [usize; 3] = [1, 8, 64];
/// Turns of each contestant, and how long a measurement takes at most.
const ROUNDS: usize = 7;
const DURATION: Duration = Duration::from_millis(500);
const DURATION_SHORT: Duration = Duration::from_millis(20);
/// Uploads of a measurement at most: the index of a queue has room for 4095 items.
const PUTS_MAX: usize = 4000;

/// How long a queue over an engine may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Its name in figures.
const NGINX: &str = "nginx_synced";

enum Contestant {
    Queue(World),
    /// A process over an engine.
    Engine(Server),
    Nginx {
        address: SocketAddr,
        files: PathBuf,
    },
}

/// What one measurement of a contestant returns for each number of clients.
struct Speed {
    mib_s: f64,
    /// Of a queue.
    flushes_per_put: Option<f64>,
}

/// Where uploads go.
struct Target {
    address: SocketAddr,
    /// Of a server that answers before an item is on stable storage: its folder. Each upload has a file there, which its client flushes.
    files: Option<PathBuf>,
}

impl Target {
    /// One request and its answer; returns when the item is on stable storage.
    fn put(&self, client: &mut Client, number: usize, bytes: &[u8]) -> Result<()> {
        let path = if self.files.is_some() { format!("/{number}") } else { "/uploader".into() };
        let mut request =
            format!("PUT {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {}\r\n\r\n", bytes.len()).into_bytes();
        request.extend_from_slice(bytes);
        client.send(&request)?;
        let response = client.response("PUT")?;
        ensure!((200..300).contains(&response.status()), "PUT was answered {}: {}", response.status(), response.text());
        if let Some(files) = &self.files {
            File::open(files.join(&path[1..])).and_then(|file| file.sync_all()).context("the item has no file")?;
        }
        Ok(())
    }

    /// Uploads by so many clients at once. Returns how many there were, and in which time.
    fn measure(&self, clients: usize, duration: Duration) -> Result<(usize, Duration)> {
        let mut bytes = Vec::new();
        Body::new(ITEM_BYTES).reader().read_to_end(&mut bytes)?;
        let mut connections = (0..clients).map(|_| Ok(Client::connect(self.address)?)).collect::<Result<Vec<_>>>()?;
        let (next, barrier) = (AtomicUsize::new(0), Barrier::new(clients + 1));
        let work = |connection: &mut Client| -> Result<()> {
            barrier.wait();
            let begin = Instant::now();
            while begin.elapsed() < duration {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= PUTS_MAX {
                    break;
                }
                self.put(connection, number, &bytes)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> =
                connections.iter_mut().map(|connection| scope.spawn(move || work(connection))).collect();
            barrier.wait();
            let begin = Instant::now();
            for thread in threads {
                thread.join().map_err(|_| anyhow!("a client panicked"))??;
            }
            Ok((next.load(Ordering::Relaxed).min(PUTS_MAX), begin.elapsed()))
        })
    }
}

impl Contestant {
    fn name(&self) -> String {
        match self {
            Contestant::Queue(world) => world.to_string(),
            Contestant::Engine(_) => "nats".into(),
            Contestant::Nginx { .. } => NGINX.into(),
        }
    }

    /// Each number of clients with an empty queue or folder.
    fn turn(&self, folder: &Folder, duration: Duration) -> Result<Vec<Speed>> {
        CLIENTS.into_iter().map(|clients| self.measure(folder, clients, duration)).collect()
    }

    fn measure(&self, folder: &Folder, clients: usize, duration: Duration) -> Result<Speed> {
        let mib_s =
            |(puts, time): (usize, Duration)| (puts as u64 * ITEM_BYTES) as f64 / (1 << 20) as f64 / time.as_secs_f64();
        match self {
            Contestant::Queue(world) => {
                let options = Options { disk_size: "64M".into(), memory_mib: 64, program: None, ..Options::default() };
                let disk = folder.file(&format!("{world}.img"));
                let queue = Queue::start(*world, &disk, &options)?.context("the queue is not built")?;
                let before = flushes(&queue)?;
                let done = Target { address: queue.address, files: None }.measure(clients, duration)?;
                let flushes_per_put = Some((flushes(&queue)? - before) / done.0 as f64);
                drop(queue);
                std::fs::remove_file(&disk).context("there is no disk")?;
                Ok(Speed { mib_s: mib_s(done), flushes_per_put })
            }
            Contestant::Engine(server) => {
                // A queue of its own each time: there is none like it yet.
                static NUMBER: AtomicUsize = AtomicUsize::new(0);
                let name = format!("bench-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
                let (port, program) =
                    (free_port()?, programs::built("upload-queue").context("the queue is not built")?);
                let mut command = Command::new(program);
                command.args([
                    "--bind",
                    "127.0.0.1",
                    "--",
                    "--port",
                    &port.to_string(),
                    "--store",
                    &server.queue(&name),
                ]);
                let _process = Process::spawn(&mut command, &folder.file("log"))?;
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                let end = Instant::now() + START_LIMIT;
                while answer(address, START_LIMIT).is_none() {
                    ensure!(Instant::now() < end, "the queue over an engine does not answer");
                    thread::sleep(Duration::from_millis(5));
                }
                let done = Target { address, files: None }.measure(clients, duration)?;
                Ok(Speed { mib_s: mib_s(done), flushes_per_put: None })
            }
            Contestant::Nginx { address, files } => {
                let target = Target { address: *address, files: Some(files.clone()) };
                let done = target.measure(clients, duration)?;
                for file in std::fs::read_dir(files)? {
                    std::fs::remove_file(file?.path())?;
                }
                Ok(Speed { mib_s: mib_s(done), flushes_per_put: None })
            }
        }
    }
}

/// Flushes of a queue since its start.
fn flushes(queue: &Queue) -> Result<f64> {
    let text = queue.connect()?.request("GET", "/metrics")?.text();
    let line = text.lines().find_map(|line| line.strip_prefix("glass_queue_flushes_total "));
    line.context("the queue does not count its flushes")?.parse().context("the flushes are no number")
}

/// Over loopback, and for a VM the default network of its VMM.
pub(super) fn put(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let folder = Folder::new("bench-queue")?;
    let worlds = outcome.available([World::Process, World::Kvm]);
    let mut contestants: Vec<Contestant> = worlds.into_iter().map(Contestant::Queue).collect();
    match Server::start_durable() {
        Some(server) => contestants.push(Contestant::Engine(server)),
        None => outcome.note("nats skipped: there is no nats-server"),
    }
    let files = folder.file("files");
    std::fs::create_dir(&files)?;
    let nginx = Nginx::start_with(&files)?;
    match &nginx {
        Some(nginx) => contestants.push(Contestant::Nginx { address: nginx.address, files }),
        None => outcome.note("nginx skipped: it is not installed"),
    }
    let duration = run.size(DURATION, DURATION_SHORT);
    let measure = |index: usize| contestants[index].turn(&folder, duration).with_context(|| contestants[index].name());
    in_turn(outcome, contestants.len(), ROUNDS, run, measure, |outcome, speeds| add(outcome, &contestants, speeds))?;
    outcome.note(format!(
        "put: uploads of {ITEM_BYTES} bytes by 1, 8 and 64 clients with kept connections for {} ms, {PUTS_MAX} at most, each into an empty queue; the VM behind the \
         default network of its VMM; nginx_synced: each client flushes its file after the answer, because nginx does not; nats: a process over NATS JetStream with sync_interval: always; flushes_per_put: of 64 clients",
        DURATION.as_millis()
    ));
    Ok(())
}

fn add(outcome: &mut Outcome, contestants: &[Contestant], speeds: &[Vec<Vec<Speed>>]) {
    let column = |index: usize, mode: usize| speeds[index].iter().map(|turn| turn[mode].mib_s).collect::<Vec<_>>();
    let peer = contestants.iter().position(|contestant| matches!(contestant, Contestant::Nginx { .. }));
    for (index, contestant) in contestants.iter().enumerate() {
        let name = contestant.name();
        for (mode, clients) in CLIENTS.into_iter().enumerate() {
            let figure =
                Figure::of(&format!("queue.{name}.plain.put.4kx{clients}_mib_s"), "MiB/s", &column(index, mode));
            let peer = peer.filter(|peer| *peer != index);
            let median = peer.and_then(|peer| Some((NGINX, Summary::of(&column(peer, mode))?.median)));
            outcome.add(figure.map(|figure| figure.beside(median)));
        }
    }
    for (index, contestant) in contestants.iter().enumerate() {
        let Contestant::Queue(world) = contestant else { continue };
        let name = if *world == World::Process {
            "queue.flushes_per_put".into()
        } else {
            format!("queue.{world}.flushes_per_put")
        };
        let of_most = speeds[index].iter().filter_map(|turn| turn.last()?.flushes_per_put).collect::<Vec<_>>();
        outcome.add(Figure::of(&name, "flushes", &of_most));
    }
}
