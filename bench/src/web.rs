//! `web`: files over HTTP, for `web-server` in a VM over TCP and over vsock, with its files by virtio-fs, and over TCP with its files on a
//! disk, beside nginx on the host and nginx in a VM with Linux. The article's `ab -c 1` (a connection for each request) and kept connections.

use crate::Part;
use crate::figure::Figure;
use crate::load::{Load, Place};
use crate::outcome::Outcome;
use crate::peers::helpers::{self, Helper};
use crate::peers::linux::{self, Contents, LinuxGuest};
use crate::peers::nginx::{self, Nginx};
use crate::run::Run;
use crate::statistics::{Summary, turn};
use anyhow::{Context, Result, ensure};
use glass_tests::fat;
use glass_tests::folder::Folder;
use glass_tests::netns::{self, Namespace};
use glass_tests::process::Process;
use glass_tests::queue::World;
use glass_tests::{programs, vsock};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

/// Turns of each contestant.
const ROUNDS: usize = 5;
/// How long one measurement takes.
const DURATION: Duration = Duration::from_millis(250);
const DURATION_SHORT: Duration = Duration::from_millis(10);
/// A server that does not listen for so long has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
const PORT: u16 = 8080;
const VSOCK_PORT: u32 = 80;
/// Name of a file in figures, and its length. That of 133 KB has the length of the article's picture.
const FILES: [(&str, u64); 4] = [("1k", 1024), ("8k", 8192), ("133k", 136_192), ("1m", 1 << 20)];
/// What follows the name of a figure, connections, and whether they are kept.
const MODES: [(&str, usize, bool); 3] = [("", 1, false), ("_keep1", 1, true), ("_keep16", 16, true)];

/// Measurements of a server that may fail in all.
const FAILURES_MAX: usize = 5;

/// A server, and its requests per second by file and mode.
struct Contestant {
    name: String,
    place: Place,
    samples: Vec<Vec<f64>>,
    /// Why measurements failed that were repeated.
    failures: Vec<String>,
}

impl Contestant {
    fn new(name: impl Into<String>, place: Place) -> Contestant {
        Contestant {
            name: name.into(),
            place,
            samples: vec![Vec::new(); FILES.len() * MODES.len()],
            failures: Vec::new(),
        }
    }

    fn turn(&mut self, duration: Duration) -> Result<()> {
        let cells = FILES.iter().flat_map(|file| MODES.iter().map(move |mode| (file, mode)));
        for ((&(path, bytes), &(_, connections, keeps)), samples) in cells.zip(&mut self.samples) {
            let load = Load { path, bytes, connections, keeps, duration };
            // `vhost-device-vsock` 0.3.0 resets one of some thousand connections by mistake.
            let rate = loop {
                match load.run(&self.place) {
                    Ok(rate) => break rate,
                    Err(error) if self.failures.len() < FAILURES_MAX => {
                        self.failures.push(format!("{path}: {error:#}"))
                    }
                    Err(error) => return Err(error).with_context(|| format!("{load:?}")),
                }
            };
            samples.push(rate);
        }
        Ok(())
    }
}

/// The parts: an accelerator, and how clients connect or, with TCP, where the files are.
pub const PARTS: [Part; 6] = [
    ("kvm-tcp", |outcome, run| measure(outcome, run, World::Kvm, "tcp")),
    ("kvm-vsock", |outcome, run| measure(outcome, run, World::Kvm, "vsock")),
    ("kvm-disk", |outcome, run| measure(outcome, run, World::Kvm, DISK)),
    ("tcg-tcp", |outcome, run| measure(outcome, run, World::Tcg, "tcp")),
    ("tcg-vsock", |outcome, run| measure(outcome, run, World::Tcg, "vsock")),
    ("tcg-disk", |outcome, run| measure(outcome, run, World::Tcg, DISK)),
];
const DISK: &str = "disk";

/// Measures one part beside its peers; those that this machine lacks are left out with a note.
fn measure(outcome: &mut Outcome, run: &Run, world: World, kind: &str) -> Result<()> {
    if let Some(reason) = world.obstacle() {
        outcome.skip(reason);
        return Ok(());
    }
    if let Some(reason) = netns::obstacle() {
        outcome.skip(format!("{reason}, and virtiofsd needs root too"));
        return Ok(());
    }
    if kind != DISK
        && let Err(error) = vsock::built()
    {
        outcome.skip(format!("vhost-device-vsock cannot be built: {error:#}"));
        return Ok(());
    }
    let folder = Folder::new("bench-web")?;
    let site = make_site(&folder)?;
    let (near, far, far_address) = Namespace::pair()?;
    let mut contestants = Vec::new();
    let nginx = Nginx::serve(&far, &near, (far_address, PORT).into(), &site)?;
    match &nginx {
        Some(nginx) => contestants.push(Contestant::new("native_nginx", Place::Tcp(nginx.address))),
        None => outcome.note("nginx skipped: it is not installed"),
    }
    let (_server, contestant) = vm(world, kind, &near, &site, &folder)?;
    contestants.push(contestant);
    let obstacle = if world == World::Tcg { linux::obstacle(run) } else { Some("it is the peer of TCG") };
    let guest = match obstacle {
        None => linux_guest(&near, &site, &folder).map_err(|error| format!("{error:#}")),
        Some(reason) => Err(reason.to_owned()),
    };
    match &guest {
        Ok((_, _, place)) => contestants.push(Contestant::new("linux_guest", place.clone())),
        Err(reason) => outcome.note(format!("linux_guest skipped: {reason}")),
    }
    for contestant in &contestants {
        contestant.place.wait(&near, LIMIT).with_context(|| contestant.name.clone())?;
    }
    let duration = run.size(DURATION, DURATION_SHORT);
    for round in run.rounds(ROUNDS) {
        for index in turn(contestants.len(), round) {
            let contestant = &mut contestants[index];
            let turn = near.inside(|| contestant.turn(duration));
            turn.with_context(|| format!("{} failed in round {round}", contestant.name))?;
        }
        run.so_far(outcome, |outcome| add_figures(outcome, &contestants));
    }
    add_figures(outcome, &contestants);
    for Contestant { name, failures, .. } in contestants.iter().filter(|contestant| !contestant.failures.is_empty()) {
        outcome.note(format!(
            "{name}: {} measurements failed and were repeated: {}",
            failures.len(),
            failures.join("; ")
        ));
    }
    outcome.note("requests per second of one file: _req_s with a connection for each request and one at a time (ab -c 1), _keep1_req_s on one kept connection, _keep16_req_s on 16; the same clients for all, over a TAP device, veth (native_nginx) or the unix socket of vhost-device-vsock");
    outcome.note(format!("{} ms a measurement; files are in the page cache of the host and reach VMs by virtio-fs; our web server keeps them in its own memory (--cache 8M) and compares their versions; _disk_ is TCP with the files in a FAT file system on the VM's disk", DURATION.as_millis()));
    outcome.note("linux_guest: nginx in a VM with Debian's kernel (QEMU's q35, TCG) on the same virtio-fs, over TCP, because nginx has no vsock");
    Ok(())
}

/// The files, of bytes that cannot be compressed.
fn make_site(folder: &Folder) -> Result<std::path::PathBuf> {
    let site = folder.file("site");
    std::fs::create_dir(&site)?;
    for (name, bytes) in FILES {
        let mut content = vec![0; bytes as usize];
        fastrand::Rng::with_seed(bytes).fill(&mut content);
        std::fs::write(site.join(name), content)?;
    }
    Ok(site)
}

/// Boots `web-server` with a TAP device of its own: with its files on a disk, or by virtio-fs and also with vsock.
fn vm(world: World, kind: &str, near: &Namespace, site: &Path, folder: &Folder) -> Result<(Process, Contestant)> {
    let [host, guest] = [1, 2].map(|number| Ipv4Addr::new(10, 77, 1, number));
    near.tap("tap1", host)?;
    let mut command = near.command(programs::built("glass").context("glass is not built")?);
    command.arg("run").arg(programs::image("web-server").context("the image of web-server is not built")?);
    command.args(["--accel", &world.to_string(), "--memory", "128"]);
    command.args(["--net", "tap=tap1", "--ip", &format!("{guest}/{}", netns::PREFIX_BITS)]);
    let service = ["--", "--port", &PORT.to_string(), "--cache", "8M"];
    let mut place = Place::Tcp((guest, PORT).into());
    if kind == DISK {
        let disk = folder.file("disk.img");
        let files = FILES.map(|(name, _)| site.join(name));
        ensure!(fat::make(&disk, &files)?, "{}", fat::NOT_INSTALLED);
        command.arg("--disk").arg(disk).args(service).arg("--disk");
    } else {
        let socket = folder.file("vsock");
        command.env("PATH", vsock::path_with(vsock::built()?));
        command.arg(format!("--share={}:ro", site.display())).arg(format!("--vsock={}", socket.display()));
        command.args(service).args(["--port", &format!("vsock:{VSOCK_PORT}")]);
        if kind == "vsock" {
            place = Place::Vsock(socket, VSOCK_PORT);
        }
    }
    let mut process = Process::spawn(&mut command, &folder.file("server.log"))?;
    // `vhost-device-vsock` 0.3.0 waits for itself forever now and then if a client connects before the guest has its rings.
    let end = Instant::now() + LIMIT;
    while kind == "vsock" && !process.output().contains("listening on vsock") {
        let is_late = process.ended().is_some() || Instant::now() > end;
        ensure!(!is_late, "web-server does not start on {world}: {}", process.output());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((process, Contestant::new(format!("{world}.{kind}"), place)))
}

/// Boots Linux with nginx and the files of `site`. What is returned has to live as long as the guest is used.
pub(crate) fn linux_guest(near: &Namespace, site: &Path, folder: &Folder) -> Result<(LinuxGuest, Helper, Place)> {
    let (host, address) = (Ipv4Addr::new(10, 77, 9, 1), Ipv4Addr::new(10, 77, 9, 2));
    near.tap("tap9", host)?;
    let share = helpers::share(site, folder)?;
    let mut glass = near.command(programs::built("glass").context("glass is not built")?);
    glass.arg("run").arg(programs::image("web-server").context("the image of web-server is not built")?);
    glass.args(linux::MACHINE).args(["--net", "tap=tap9"]).arg(format!("--share={}", site.display()));
    let listen = format!("0.0.0.0:{PORT}");
    let configuration = format!("user root;\n{}", nginx::configuration("/tmp", &listen, "/site"));
    let files = vec![
        ("etc/nginx.conf", configuration.into_bytes()),
        ("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n".to_vec()),
        ("etc/group", b"root:x:0:\n".to_vec()),
    ];
    let contents = Contents { programs: &["nginx"], files };
    let mut guest =
        LinuxGuest::start(Some(near), &mut glass, &contents, &[("files", share.socket.clone())], &str::to_owned)?;
    guest.run("mkdir /site && mount -t virtiofs glass /site", LIMIT)?;
    guest.run(&format!("ip addr add {address}/{} dev eth0 && ip link set eth0 up", netns::PREFIX_BITS), LIMIT)?;
    guest.run("nginx -t -c /etc/nginx.conf", LIMIT)?;
    guest.run("nginx -c /etc/nginx.conf >/dev/null 2>&1 &", LIMIT)?;
    Ok((guest, share, Place::Tcp(SocketAddr::from((address, PORT)))))
}

fn add_figures(outcome: &mut Outcome, contestants: &[Contestant]) {
    let peer = |name: &str| contestants.iter().find(|contestant| contestant.name == name);
    for contestant in contestants {
        let peer = match contestant.name.split('.').next() {
            Some("kvm") => peer("native_nginx"),
            Some("tcg") => peer("linux_guest").or(peer("native_nginx")),
            _ => None,
        };
        for (index, samples) in contestant.samples.iter().enumerate() {
            let ((file, _), (mode, ..)) = (FILES[index / MODES.len()], MODES[index % MODES.len()]);
            let figure = Figure::of(&format!("web.{}.{file}{mode}_req_s", contestant.name), "1/s", samples);
            let median = peer.and_then(|peer| Some((peer.name.as_str(), Summary::of(&peer.samples[index])?.median)));
            outcome.add(figure.map(|figure| figure.beside(median)));
        }
    }
}
