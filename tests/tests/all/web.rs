//! The web server as a process and as a VM, over TCP and vsock: a tree of files, hostile paths, files that are replaced.

use glass_tests::content::Random;
use glass_tests::folder::Folder;
use glass_tests::http::{Client, Response};
use glass_tests::limit::within;
use glass_tests::process::{self, Process};
use glass_tests::programs;
use glass_tests::queue::{World, free_port};
use glass_tests::vsock;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The helper of vsock may have to be built first.
const LIMIT: Duration = Duration::from_secs(1200);
const START_LIMIT: Duration = Duration::from_secs(60);
const VSOCK_PORT: u32 = 80;
/// What no response may contain.
const SECRET: &str = "what is outside of the site";

/// A server of the folder `site` in `folder`, beside which is a secret.
struct Server {
    process: Process,
    folder: Folder,
    address: SocketAddr,
    socket: PathBuf,
}

impl Server {
    /// `None` after printing why it cannot run here.
    fn start(world: World, share_suffix: &str) -> Option<Server> {
        Server::start_with(world, share_suffix, &[])
    }

    /// With further options of `glass run`.
    fn start_with(world: World, share_suffix: &str, options: &[&str]) -> Option<Server> {
        if let Some(reason) = world.obstacle() {
            programs::skip(reason);
            return None;
        }
        let folder = Folder::new("web").unwrap();
        fs::create_dir(folder.file("site")).unwrap();
        fs::write(folder.file("secret"), SECRET).unwrap();
        let (port, socket) = (free_port().unwrap(), folder.file("vsock"));
        let mut command = Command::new(programs::built("glass")?);
        command.arg("run");
        let mut service_port = port.to_string();
        if world == World::Process {
            command.arg(programs::built("web-server")?).args(["--platform", "linux"]);
        } else {
            if !rustix::process::geteuid().is_root() {
                programs::skip("virtiofsd of Debian 12 needs root");
                return None;
            }
            command.env("PATH", vsock::path_with(vsock::helper()?));
            command.arg(programs::image("web-server")?).args(["--accel", &world.to_string()]);
            command.args(["--port", &format!("{port}:8080")]);
            service_port = "8080".into();
        }
        command.args(options).arg(format!("--share={}{share_suffix}", folder.file("site").display()));
        command.arg(format!("--vsock={}", socket.display()));
        command.args(["--", "--port", &service_port, "--port", "vsock:80"]);
        let process = Process::spawn(&mut command, &folder.file("log")).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Server { process, folder, address, socket };
        let end = Instant::now() + START_LIMIT;
        while !server.process.output().contains("listening on vsock port 80") {
            assert!(server.process.ended().is_none() && Instant::now() < end, "{world}: {}", server.process.output());
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(server)
    }

    fn site(&self) -> PathBuf {
        self.folder.file("site")
    }

    /// Kills what serves the files.
    fn kill_daemon(&self) {
        let all = process::descendants(self.process.pid());
        let daemons = all.into_iter().filter(|pid| process::name(*pid).is_some_and(|name| name.contains("virtiofsd")));
        for pid in daemons {
            // An error means that it has ended with another one.
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }

    fn tcp(&self) -> Client {
        Client::connect(self.address).unwrap()
    }

    fn vsock(&self) -> Client {
        Client::connect_vsock(&self.socket, VSOCK_PORT).unwrap()
    }
}

/// A path as a URL.
fn url(path: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    path.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") }).collect()
}

/// Makes files with names and sizes of all kinds below `folder`; returns their paths.
fn make_tree(folder: &Path, count: usize) -> Vec<String> {
    let mut random = Random::new(7);
    let mut paths = Vec::new();
    for number in 0..count {
        let depth = random.below(4);
        let above: String = (0..depth).map(|level| format!("folder {level}-{}/", random.below(5))).collect();
        let name = ["a.html", "\u{fc}ber.txt", "100%.css", ".hidden", "x.bin", "sp ace.js"][number % 6];
        let path = format!("{above}{number}-{name}");
        fs::create_dir_all(folder.join(&path).parent().unwrap()).unwrap();
        let sizes = [0, 1, 100, 4096, 65_536, 65_537];
        let length = if random.below(20) == 0 { 300_000 } else { sizes[random.below(sizes.len() as u64) as usize] };
        let mut bytes = vec![0; length];
        random.fill(&mut bytes);
        fs::write(folder.join(&path), bytes).unwrap();
        paths.push(path);
    }
    paths
}

fn serves_a_tree(world: World) {
    let Some(server) = Server::start(world, ":ro") else { return };
    let paths = make_tree(&server.site(), if programs::is_long() { 10_000 } else { 300 });
    let (mut tcp, mut over_vsock) = (server.tcp(), server.vsock());
    for (number, path) in paths.iter().enumerate() {
        let expected = fs::read(server.site().join(path)).unwrap();
        let client = if number % 2 == 0 { &mut tcp } else { &mut over_vsock };
        let answer = client.request("GET", &format!("/{}", url(path))).unwrap();
        assert_eq!(answer.status(), 200, "{path}: {}", server.process.output());
        assert!(answer.body == expected, "{path}: {} bytes of {}", answer.body.len(), expected.len());
    }
}

#[test]
fn a_tree_of_files_by_a_process() {
    within(LIMIT, || serves_a_tree(World::Process));
}

#[test]
fn a_tree_of_files_by_kvm() {
    within(LIMIT, || serves_a_tree(World::Kvm));
}

#[test]
fn a_tree_of_files_by_tcg() {
    within(LIMIT, || serves_a_tree(World::Tcg));
}

/// A thousand paths that lead to the secret, if something fails.
fn hostile_paths(folder: &Path) -> Vec<String> {
    let ups = ["..", "%2e%2e", "%2E.", ".%2e", "..%00", "%c0%ae%c0%ae", "%252e%252e", "..\\", "....", "up", "up-again"];
    let slashes = ["/", "%2f", "//", "/./", "%5c", "\\", "%c0%af"];
    let starts = ["/", "//", "/folder/", "/%2e/", "/up/", "/.", "/%00/", "/folder/file/"];
    let ends = ["secret", "%73ecret", "secret%00", "secret/", "secret%20", "./secret"];
    let mut paths = vec![
        "/link".into(),
        "/absolute".into(),
        "/up/secret".into(),
        format!("/root{}/secret", folder.display()),
        format!("/{}/secret", folder.display()),
        "/root/etc/passwd".into(),
    ];
    for start in starts {
        for up in ups {
            for slash in slashes {
                paths.extend(ends.map(|end| format!("{start}{up}{slash}{end}")));
                paths.push(format!("{start}{up}{slash}{up}{slash}{up}{slash}etc/passwd"));
            }
        }
    }
    paths
}

fn refuses_hostile_paths(world: World) {
    let Some(server) = Server::start(world, "") else { return };
    let site = server.site();
    fs::create_dir(site.join("folder")).unwrap();
    fs::write(site.join("folder/file"), "inside").unwrap();
    symlink("../secret", site.join("link")).unwrap();
    symlink(server.folder.file("secret"), site.join("absolute")).unwrap();
    symlink("..", site.join("up")).unwrap();
    symlink("folder/../..", site.join("up-again")).unwrap();
    symlink("/", site.join("root")).unwrap();
    let paths = hostile_paths(server.folder.path());
    assert!(paths.len() >= 1000, "{}", paths.len());
    let is_clean = |answer: &Response| !answer.text().contains(SECRET) && !answer.text().contains("root:");
    let mut client = server.tcp();
    for (number, path) in paths.iter().enumerate() {
        // A request that is not valid ends its connection.
        let answer = client.request("GET", path).or_else(|_| {
            client = if number % 2 == 0 { server.tcp() } else { server.vsock() };
            client.request("GET", path)
        });
        let answer = answer.unwrap_or_else(|error| panic!("{path}: {error}: {}", server.process.output()));
        assert!([400, 403, 404].contains(&answer.status()) && is_clean(&answer), "{path}: {}", answer.status());
    }
    let answer = server.tcp().request("GET", "/folder/file").unwrap();
    assert_eq!((answer.status(), answer.text().as_str()), (200, "inside"));
}

#[test]
fn hostile_paths_are_refused_by_a_process() {
    within(LIMIT, || refuses_hostile_paths(World::Process));
}

#[test]
fn hostile_paths_are_refused_by_kvm() {
    within(LIMIT, || refuses_hostile_paths(World::Kvm));
}

#[test]
fn hostile_paths_are_refused_by_tcg() {
    within(LIMIT, || refuses_hostile_paths(World::Tcg));
}

/// Each response is one version of a file that the host replaces, by another file or in place.
fn serves_one_version(world: World) {
    let Some(server) = Server::start(world, ":ro") else { return };
    let versions: Vec<Vec<u8>> = (0..4u8).map(|version| vec![b'a' + version; 400_000]).collect();
    let path = server.site().join("file");
    fs::write(&path, &versions[0]).unwrap();
    let stop = AtomicBool::new(false);
    let (mut whole, mut cut) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                let version = &versions[round % versions.len()];
                if round % 2 == 0 {
                    let new = server.site().join("new");
                    fs::write(&new, version).unwrap();
                    fs::rename(new, &path).unwrap();
                } else {
                    fs::write(&path, version).unwrap();
                }
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let end = Instant::now() + START_LIMIT;
        while whole + cut < 200 && Instant::now() < end {
            match server.tcp().request("GET", "/file") {
                Ok(answer) if answer.status() == 200 => {
                    let is_one = versions.contains(&answer.body);
                    // A write in place may be seen half done, but never under a tag.
                    assert!(is_one || answer.etag().is_empty(), "{} bytes are a mix", answer.body.len());
                    whole += 1;
                }
                _ => cut += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(whole > 0, "{cut} were cut");
}

#[test]
fn files_that_are_replaced_by_a_process() {
    within(LIMIT, || serves_one_version(World::Process));
}

#[test]
fn files_that_are_replaced_by_tcg() {
    within(LIMIT, || serves_one_version(World::Tcg));
}

/// Without the host's daemon there are errors instead of files, and the service continues.
fn loses_its_daemon() {
    let Some(server) = Server::start(World::Tcg, "") else { return };
    fs::write(server.site().join("file"), "x").unwrap();
    assert_eq!(server.tcp().request("GET", "/file").unwrap().status(), 200);
    server.kill_daemon();
    let mut client = server.vsock();
    client.set_patience(Duration::from_secs(200)).unwrap();
    // A name that is not known yet.
    assert_eq!(client.request("GET", "/other").unwrap().status(), 503, "{}", server.process.output());
    assert_eq!(client.request("POST", "/").unwrap().status(), 405);
    let output = server.process.output();
    assert!(output.contains("files broke"), "{output}");
    assert!(output.contains("virtiofsd has ended") && output.contains("the VM has no files"), "{output}");
}

#[test]
fn a_daemon_that_ends_is_an_error_to_clients() {
    within(LIMIT, loses_its_daemon);
}

/// With `--restart` the VM and its daemon start again, and serve the same files.
fn starts_its_daemon_again() {
    let Some(server) = Server::start_with(World::Tcg, ":ro", &["--restart"]) else { return };
    fs::write(server.site().join("file"), "x").unwrap();
    assert_eq!(server.tcp().request("GET", "/file").unwrap().status(), 200);
    server.kill_daemon();
    let end = Instant::now() + START_LIMIT;
    while server.process.output().matches("listening on").count() < 4 {
        assert!(Instant::now() < end, "{}", server.process.output());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(server.process.output().contains("virtiofsd has ended"), "{}", server.process.output());
    let answer = server.tcp().request("GET", "/file").unwrap();
    assert_eq!((answer.status(), answer.text().as_str()), (200, "x"));
    assert_eq!(server.vsock().request("GET", "/file").unwrap().status(), 200);
}

#[test]
fn a_daemon_that_ends_starts_again_with_the_vm() {
    within(LIMIT, starts_its_daemon_again);
}
