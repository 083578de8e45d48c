//! `queue`: how fast items are uploaded and downloaded, for the queue on each platform and for nginx,
//! alternating in the same run.

mod bounded;
mod cells;
mod clients;
mod line;
mod servers;
mod small;
mod turn;

use crate::Part;
use crate::block::Body;
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::peers::nginx::Nginx;
use crate::run::Run;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::netns::{self, Namespace};
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, WORLDS, World, answer};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Rounds; each contestant runs once in a round.
const ROUNDS: usize = 7;
/// Size of the item, and that of an emulated VM.
const ITEM_MIB: u64 = 1024;
const ITEM_MIB_TCG: u64 = 128;
const ITEM_MIB_SHORT: u64 = 1;
const PORT: u16 = 8080;
const START_LIMIT: Duration = Duration::from_secs(60);

/// The parts, by name.
pub const PARTS: [Part; 4] = [("loopback", loopback), ("tap", tap), ("small", small::small), ("cells", cells::cells)];

struct Contestant<'n> {
    name: String,
    /// Whom it is compared with.
    peer: &'static str,
    address: SocketAddr,
    /// Where the client is, if not where we are.
    near: Option<&'n Namespace>,
    /// The file that a server keeps the item in, of one that answers before the item is on stable storage.
    file: Option<PathBuf>,
    upload_path: &'static str,
    download_path: &'static str,
    body: Body,
    put: Vec<f64>,
    /// Until the file is on stable storage.
    synced: Vec<f64>,
    get: Vec<f64>,
}

impl<'n> Contestant<'n> {
    fn queue(name: String, peer: &'static str, address: SocketAddr, body: Body) -> Contestant<'n> {
        let (upload_path, download_path) = ("/uploader", "/downloader");
        let (put, synced, get) = (Vec::new(), Vec::new(), Vec::new());
        let (near, file) = (None, None);
        Contestant { name, peer, address, near, file, upload_path, download_path, body, put, synced, get }
    }

    fn nginx(name: &'static str, address: SocketAddr, body: Body) -> Contestant<'n> {
        let (upload_path, download_path) = ("/item", "/item");
        Contestant { upload_path, download_path, ..Contestant::queue(name.into(), name, address, body) }
    }

    fn from(self, near: &'n Namespace) -> Contestant<'n> {
        Contestant { near: Some(near), ..self }
    }

    fn turn(&mut self) -> Result<()> {
        let times = match self.near {
            Some(near) => near.inside(|| self.transfer())?,
            None => self.transfer()?,
        };
        self.put.push(times.put);
        self.synced.extend(times.synced);
        self.get.push(times.get);
        Ok(())
    }

    /// Uploads, downloads and removes one item; the times count only if the download is whole.
    fn transfer(&self) -> Result<Speeds> {
        let body = &self.body;
        let mib_s = |since: Instant| body.length_bytes() as f64 / (1 << 20) as f64 / since.elapsed().as_secs_f64();
        let mut client = Client::connect(self.address)?;
        let begin = Instant::now();
        let response = client.put(self.upload_path, body.length_bytes(), &mut body.reader())?;
        let put = mib_s(begin);
        if !(200..300).contains(&response.status()) {
            bail!("PUT was answered {}: {}", response.status(), response.text());
        }
        let sync = |file: &PathBuf| -> Result<f64> {
            File::open(file).and_then(|file| file.sync_all()).context("the item has no file")?;
            Ok(mib_s(begin))
        };
        let synced = self.file.as_ref().map(sync).transpose()?;
        let mut client = Client::connect(self.address)?;
        let mut checker = body.checker();
        let begin = Instant::now();
        let response = client.get_into(self.download_path, &mut checker)?;
        let get = mib_s(begin);
        if response.status() != 200 || !checker.is(body) {
            bail!("GET was answered {} and returned other bytes", response.status());
        }
        // A peer may have no tags.
        let tag = response.head.header("etag").unwrap_or("*");
        let response = Client::connect(self.address)?.request_if_match("DELETE", self.download_path, tag)?;
        if !(200..300).contains(&response.status()) {
            bail!("DELETE was answered {}: {}", response.status(), response.text());
        }
        Ok(Speeds { put, synced, get })
    }
}

/// MiB/s of a turn.
struct Speeds {
    put: f64,
    synced: Option<f64>,
    get: f64,
}

/// Over loopback, and for VMs the default network of their VMM.
fn loopback(outcome: &mut Outcome, run: &Run) -> Result<()> {
    let body = |mib| Body::new(run.size(mib, ITEM_MIB_SHORT) << 20);
    let folder = Folder::new("bench-queue")?;
    let options = Options { disk_size: "2G".into(), memory_mib: 64, program: None, ..Options::default() };
    let mut queues = Vec::new();
    let mut contestants = Vec::new();
    for world in outcome.available(WORLDS) {
        let queue = Queue::start(world, &folder.file(&format!("{world}.img")), &options)?;
        let queue = queue.context("the queue is not built")?;
        let name = if world == World::Process { world.to_string() } else { format!("{world}_user") };
        contestants.push(Contestant::queue(name, "nginx", queue.address, body(item_mib(world))));
        queues.push(queue);
    }
    let nginx = Nginx::start()?;
    match &nginx {
        Some(nginx) => contestants.push(Contestant::nginx("nginx", nginx.address, body(ITEM_MIB))),
        None => outcome.note("nginx skipped: it is not installed"),
    }
    measure(outcome, &mut contestants, run)?;
    outcome.note(format!("loopback: items of {ITEM_MIB} MiB, {ITEM_MIB_TCG} MiB of an emulated VM, one client, VMs behind the default network of their VMM (user): our own under KVM, QEMU's under TCG"));
    outcome.note("the queue answers an upload when it is on stable storage; nginx flushes nothing");
    Ok(())
}

/// VMs behind TAP devices, beside nginx behind a pair of Ethernet devices.
fn tap(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if let Some(reason) = netns::obstacle() {
        outcome.skip(reason);
        return Ok(());
    }
    let folder = Folder::new("bench-queue")?;
    let (near, far, far_address) = Namespace::pair()?;
    let (mut vms, mut contestants) = (Vec::new(), Vec::new());
    for (number, world) in (1..).zip(outcome.available([World::Kvm, World::Tcg])) {
        let address = Ipv4Addr::new(10, 77, number, 2);
        vms.push(vm(world, number, address, &near, &folder)?);
        let mib = run.size(item_mib(world), ITEM_MIB_SHORT);
        let address = SocketAddr::from((address, PORT));
        let queue = Contestant::queue(world.to_string(), "nginx_veth", address, Body::new(mib << 20)).from(&near);
        wait(&queue, &near)?;
        contestants.push(queue);
    }
    let files = folder.file("files");
    std::fs::create_dir(&files)?;
    let nginx = Nginx::serve(&far, &near, SocketAddr::from((far_address, PORT)), &files)?;
    match &nginx {
        Some(nginx) => {
            let body = Body::new(run.size(ITEM_MIB, ITEM_MIB_SHORT) << 20);
            let nginx = Contestant::nginx("nginx_veth", nginx.address, body).from(&near);
            contestants.push(Contestant { file: Some(files.join("item")), ..nginx });
        }
        None => outcome.note("nginx skipped: it is not installed"),
    }
    measure(outcome, &mut contestants, run)?;
    outcome.note(format!("tap: items of {ITEM_MIB} MiB, {ITEM_MIB_TCG} MiB of an emulated VM, one client; put_synced: until the file is on stable storage, where the queue's answers are"));
    Ok(())
}

fn item_mib(world: World) -> u64 {
    if world == World::Tcg { ITEM_MIB_TCG } else { ITEM_MIB }
}

/// The queue as a VM behind a TAP device of its own.
fn vm(world: World, number: u8, address: Ipv4Addr, near: &Namespace, folder: &Folder) -> Result<Process> {
    let tap = format!("tap{number}");
    near.tap(&tap, Ipv4Addr::new(10, 77, number, 1))?;
    let mut glass = near.command(programs::built("glass").context("glass is not built")?);
    glass.arg("run").arg(programs::image("upload-queue").context("the image of the queue is not built")?);
    glass.args(["--accel", &world.to_string(), "--net", &format!("tap={tap}")]);
    glass.args(["--ip", &format!("{address}/{}", netns::PREFIX_BITS)]);
    glass.arg("--disk").arg(folder.file(&format!("{world}.img"))).args(["--disk-size", "2G"]);
    glass.args(["--", "--port", &PORT.to_string()]);
    Process::spawn(&mut glass, &folder.file(&format!("{world}.log")))
}

/// Waits until the queue answers.
fn wait(queue: &Contestant, near: &Namespace) -> Result<()> {
    let end = Instant::now() + START_LIMIT;
    while near.inside(|| Ok(answer(queue.address, Duration::from_millis(500))))?.is_none() {
        if Instant::now() > end {
            bail!("{} does not answer", queue.name);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Runs everything in turn and adds the figures.
fn measure(outcome: &mut Outcome, contestants: &mut [Contestant], run: &Run) -> Result<()> {
    // One round to warm up caches and grow files, which is not counted.
    for round in std::iter::once(0).chain(run.rounds(ROUNDS).map(|round| round + 1)) {
        for index in turn(contestants.len(), round) {
            let contestant = &mut contestants[index];
            contestant.turn().with_context(|| format!("{} failed in round {round}", contestant.name))?;
        }
        if round == 0 {
            for contestant in &mut *contestants {
                for samples in [&mut contestant.put, &mut contestant.synced, &mut contestant.get] {
                    samples.clear();
                }
            }
        }
        run.so_far(outcome, |outcome| add(outcome, contestants));
    }
    add(outcome, contestants);
    Ok(())
}

fn add(outcome: &mut Outcome, contestants: &[Contestant]) {
    let median = |samples: &Vec<f64>| Summary::of(samples).map(|summary| summary.median);
    for Contestant { name, peer, put, synced, get, .. } in contestants {
        let other = contestants.iter().find(|other| other.name == *peer && other.name != *name);
        let mut add = |direction: &str, samples: &Vec<f64>, peers: &[(String, Option<f64>)]| {
            let figure = Figure::of(&format!("queue.{name}.{direction}_mib_s"), "MiB/s", samples);
            let peers: Vec<_> = peers.iter().filter_map(|(peer, value)| Some((peer, (*value)?))).collect();
            if peers.is_empty() {
                outcome.add(figure.clone());
            }
            for (peer, value) in peers {
                outcome.add(figure.clone().map(|figure| figure.against(peer, value)));
            }
        };
        let of_put = other.and_then(|other| median(&other.put));
        let of_synced = other.and_then(|other| median(&other.synced));
        add("put", put, &[(peer.to_string(), of_put), (format!("{peer}, synced"), of_synced)]);
        add("put_synced", synced, &[]);
        add("get", get, &[(peer.to_string(), other.and_then(|other| median(&other.get)))]);
    }
}

/// The queue on one platform, for other measurements.
pub(crate) fn start(world: World, folder: &Folder) -> Result<Queue> {
    let options = Options { disk_size: "64M".into(), memory_mib: 64, program: None, ..Options::default() };
    Queue::start(world, &folder.file(&format!("{world}.img")), &options)?.context("the queue is not built")
}
