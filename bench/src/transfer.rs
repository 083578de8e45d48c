//! `queue`: how fast items are uploaded and downloaded, for the queue on each platform and for nginx,
//! alternating in the same run.

use crate::block::Body;
use crate::figure::Figure;
use crate::outcome::{Outcome, Progress};
use crate::peers::nginx::Nginx;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::queue::{Options, Queue, WORLDS, World};
use std::net::SocketAddr;
use std::time::Instant;

/// Rounds; each contestant runs once in a round.
const ROUNDS: usize = 7;
/// Size of the item.
const ITEM_MIB: u64 = 64;

struct Contestant {
    name: String,
    address: SocketAddr,
    upload_path: &'static str,
    download_path: &'static str,
    put: Vec<f64>,
    get: Vec<f64>,
}

impl Contestant {
    fn new(name: String, address: SocketAddr, paths: [&'static str; 2]) -> Contestant {
        let [upload_path, download_path] = paths;
        Contestant { name, address, upload_path, download_path, put: Vec::new(), get: Vec::new() }
    }

    /// Uploads, downloads and removes one item; the times count only if the download is whole.
    fn turn(&mut self, body: &Body) -> Result<()> {
        let mut client = Client::connect(self.address)?;
        let begin = Instant::now();
        let response = client.put(self.upload_path, body.length_bytes(), &mut body.reader())?;
        let put_seconds = begin.elapsed().as_secs_f64();
        if !(200..300).contains(&response.status()) {
            bail!("PUT was answered {}: {}", response.status(), response.text());
        }
        let mut client = Client::connect(self.address)?;
        let mut checker = body.checker();
        let begin = Instant::now();
        let response = client.get_into(self.download_path, &mut checker)?;
        let get_seconds = begin.elapsed().as_secs_f64();
        if response.status() != 200 || !checker.is(body) {
            bail!("GET was answered {} and returned other bytes", response.status());
        }
        // A peer may have no tags.
        let tag = response.head.header("etag").unwrap_or("*");
        let response = Client::connect(self.address)?.request_if_match("DELETE", self.download_path, tag)?;
        if !(200..300).contains(&response.status()) {
            bail!("DELETE was answered {}: {}", response.status(), response.text());
        }
        let mib = body.length_bytes() as f64 / (1 << 20) as f64;
        self.put.push(mib / put_seconds);
        self.get.push(mib / get_seconds);
        Ok(())
    }
}

/// Measures; platforms that this machine does not have are left out with a note.
pub fn run(progress: Progress) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let folder = Folder::new("bench-queue")?;
    let options = Options { disk_size: "512M".into(), memory_mib: 64, program: None, ..Options::default() };
    let mut queues = Vec::new();
    let mut contestants = Vec::new();
    for world in outcome.available(WORLDS) {
        let queue = Queue::start(world, &folder.file(&format!("{world}.img")), &options)?;
        let queue = queue.context("the queue is not built")?;
        contestants.push(Contestant::new(world.to_string(), queue.address, ["/uploader", "/downloader"]));
        queues.push(queue);
    }
    let nginx = Nginx::start()?;
    match &nginx {
        Some(nginx) => contestants.push(Contestant::new("nginx".into(), nginx.address, ["/item", "/item"])),
        None => outcome.note("nginx skipped: it is not installed"),
    }
    let body = Body::new(ITEM_MIB << 20);
    // One round to warm up caches and grow files, which is not counted.
    for round in 0..=ROUNDS {
        for index in turn(contestants.len(), round) {
            let contestant = &mut contestants[index];
            contestant.turn(&body).with_context(|| format!("{} failed in round {round}", contestant.name))?;
        }
        progress(round as u64 + 1, ROUNDS as u64 + 1);
    }
    for contestant in &mut contestants {
        contestant.put.remove(0);
        contestant.get.remove(0);
    }
    add_figures(&mut outcome, &contestants);
    outcome.note(format!("items of {ITEM_MIB} MiB, one client on loopback, VMs behind QEMU's own network (user)"));
    outcome.note("the queue answers an upload when it is on stable storage; nginx flushes nothing");
    Ok(outcome)
}

fn add_figures(outcome: &mut Outcome, contestants: &[Contestant]) {
    let nginx = contestants.iter().find(|contestant| contestant.name == "nginx");
    for contestant in contestants {
        for (direction, samples, peer) in [
            ("put", &contestant.put, nginx.map(|nginx| &nginx.put)),
            ("get", &contestant.get, nginx.map(|nginx| &nginx.get)),
        ] {
            let figure = Figure::of(&format!("queue.{}.{direction}_mib_s", contestant.name), "MiB/s", samples);
            let peer = peer.filter(|_| contestant.name != "nginx").and_then(|samples| Summary::of(samples));
            outcome.add(match peer {
                Some(peer) => figure.map(|figure| figure.against("nginx", peer.median)),
                None => figure,
            });
        }
    }
}

/// The queue on one platform, for other measurements.
pub(crate) fn start(world: World, folder: &Folder) -> Result<Queue> {
    let options = Options { disk_size: "64M".into(), memory_mib: 64, program: None, ..Options::default() };
    Queue::start(world, &folder.file(&format!("{world}.img")), &options)?.context("the queue is not built")
}
