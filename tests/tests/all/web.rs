//! The web server as a process and as a VM, over TCP and vsock: a tree of files, listings, hostile paths, files that are replaced, helpers
//! that end.

use glass_tests::fat;
use glass_tests::folder::Folder;
use glass_tests::http::{Client, Response};
use glass_tests::limit::{SetOnDrop, within};
use glass_tests::port::free_port;
use glass_tests::process::{self, Process};
use glass_tests::programs;
use glass_tests::queue::World;
use glass_tests::vsock;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The helper of vsock may have to be built first.
const LIMIT: Duration = Duration::from_secs(1200);
const START_LIMIT: Duration = Duration::from_secs(240);
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
        Server::start_with(world, share_suffix, &[], &[])
    }

    /// With further options of `glass run` and further arguments of the service.
    fn start_with(world: World, share_suffix: &str, options: &[&str], service: &[&str]) -> Option<Server> {
        let folder = Server::folder();
        let share = format!("--share={}{share_suffix}", folder.file("site").display());
        Server::start_in(folder, world, &[options, &[&share]].concat(), service)
    }

    /// With the files on a disk in a FAT file system, which the tools of Linux have made.
    fn start_on_disk(world: World, fill: impl FnOnce(&Path)) -> Option<Server> {
        let folder = Server::folder();
        fill(&folder.file("site"));
        let disk = folder.file("disk");
        let entries: Vec<_> = fs::read_dir(folder.file("site")).unwrap().map(|entry| entry.unwrap().path()).collect();
        if !fat::make(&disk, &entries).unwrap() {
            programs::skip(fat::NOT_INSTALLED);
            return None;
        }
        let disk = disk.display().to_string();
        Server::start_in(folder, world, &["--disk", &disk], &["--disk"])
    }

    fn folder() -> Folder {
        let folder = Folder::new("web").unwrap();
        fs::create_dir(folder.file("site")).unwrap();
        fs::write(folder.file("secret"), SECRET).unwrap();
        folder
    }

    fn start_in(folder: Folder, world: World, options: &[&str], service: &[&str]) -> Option<Server> {
        if let Some(reason) = world.obstacle() {
            programs::skip(reason);
            return None;
        }
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
        command.args(options).arg(format!("--vsock={}", socket.display()));
        command.args(["--", "--port", &service_port, "--port", "vsock:80"]).args(service);
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

    /// Kills the VM's helpers with this name, of which the kernel keeps 15 bytes.
    fn kill_helper(&self, name: &str) {
        let count = process::kill_descendants(self.process.pid(), name);
        assert!(count > 0, "{name} runs: {}", self.process.output());
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
    let mut random = fastrand::Rng::with_seed(7);
    let mut paths = Vec::new();
    for number in 0..count {
        let depth = random.u64(..4);
        let above: String = (0..depth).map(|level| format!("folder {level}-{}/", random.u64(..5))).collect();
        let name = ["a.html", "\u{fc}ber.txt", "100%.css", ".hidden", "x.bin", "sp ace.js"][number % 6];
        let path = format!("{above}{number}-{name}");
        fs::create_dir_all(folder.join(&path).parent().unwrap()).unwrap();
        let sizes = [0, 1, 100, 4096, 65_536, 65_537];
        let length = if random.u64(..20) == 0 { 300_000 } else { sizes[random.usize(..sizes.len())] };
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
    compare(&server, &paths);
}

fn serves_a_disk(world: World) {
    let mut paths = Vec::new();
    let fill = |site: &Path| paths = make_tree(site, if programs::is_long() { 1000 } else { 150 });
    let Some(server) = Server::start_on_disk(world, fill) else { return };
    compare(&server, &paths);
}

/// Requests all files.
fn compare(server: &Server, paths: &[String]) {
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

#[test]
fn files_on_a_disk_by_a_process() {
    within(LIMIT, || serves_a_disk(World::Process));
}

#[test]
fn files_on_a_disk_by_kvm() {
    within(LIMIT, || serves_a_disk(World::Kvm));
}

#[test]
fn files_on_a_disk_by_tcg() {
    within(LIMIT, || serves_a_disk(World::Tcg));
}

/// A directory without an index has a page, as long as its names are those of the directory.
fn lists_directories(world: World) {
    let Some(server) = Server::start_with(world, ":ro", &[], &["--list"]) else { return };
    let site = server.site();
    fs::create_dir_all(site.join("docs/deep")).unwrap();
    fs::write(site.join("docs/<b> & \u{fc}.txt"), "found").unwrap();
    fs::write(site.join("docs/plain"), "x").unwrap();
    fs::write(site.join(OsStr::from_bytes(b"docs/not \xff UTF-8")), "x").unwrap();
    fs::write(site.join("docs/deep/index.html"), "index").unwrap();
    symlink("plain", site.join("docs/link")).unwrap();
    fs::create_dir(site.join("many")).unwrap();
    (0..1200).for_each(|number| fs::write(site.join(format!("many/{number:04}")), "").unwrap());
    let links = |page: &str| -> Vec<String> {
        page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    };
    for mut client in [server.tcp(), server.vsock()] {
        let page = client.request("GET", "/docs/").unwrap();
        assert_eq!(page.status(), 200, "{}", server.process.output());
        let found = links(&page.text());
        assert_eq!(found, ["../", "./deep/", "./%3Cb%3E%20%26%20%C3%BC.txt", "./plain"]);
        assert!(page.text().contains("&lt;b&gt; &amp; \u{fc}.txt<"), "{}", page.text());
        let file = client.request("GET", &format!("/docs/{}", &found[2][2..])).unwrap();
        assert_eq!((file.status(), file.text().as_str()), (200, "found"));
        assert_eq!(client.request("GET", "/docs/deep/").unwrap().text(), "index");
        let head = client.request("HEAD", "/docs/").unwrap();
        assert_eq!((head.status(), head.head.content_length()), (200, Some(page.body.len() as u64)));
        let many = client.request("GET", "/many/").unwrap().text();
        assert_eq!(links(&many).len(), 1 + 1000);
        assert!(many.contains("<p>These are the first 1000 of 1200 names.</p>"), "{many}");
        assert_eq!(client.request("GET", "/none/").unwrap().status(), 404);
    }
}

#[test]
fn directories_are_listed_by_a_process() {
    within(LIMIT, || lists_directories(World::Process));
}

#[test]
fn directories_are_listed_by_kvm() {
    within(LIMIT, || lists_directories(World::Kvm));
}

#[test]
fn directories_are_listed_by_tcg() {
    within(LIMIT, || lists_directories(World::Tcg));
}

/// A version of a file, which its bytes and its length show. One file of ten is read in several pieces.
fn version_of(path: &str, version: u8) -> Vec<u8> {
    let mut bytes = format!("{version} {path} ").into_bytes();
    let length = bytes.len() + path.len() * 37 % 5000 + usize::from(version % 2);
    let length = if path.ends_with("7.txt") { length + 150_000 } else { length };
    let fill = [version, b'\n', bytes[bytes.len() - 2]];
    bytes.extend(fill.into_iter().cycle().take(length - bytes.len()));
    bytes
}

/// A tree whose files the host replaces, by new ones or in place, while all of it is read through the cache: a tag never has two contents,
/// each response is one version, and in the end each is the file.
fn serves_a_tree_that_changes(world: World) {
    let Some(server) = Server::start_with(world, ":ro", &[], &["--cache", "1M"]) else { return };
    let count = if programs::is_long() { 10_000 } else { 200 };
    let paths: Vec<String> = (0..count).map(|number| format!("folder {}/{number}.txt", number % 17)).collect();
    (0..17).for_each(|folder| fs::create_dir(server.site().join(format!("folder {folder}"))).unwrap());
    let replace = |path: &str, version: u8, is_in_place: bool| {
        let (to, new) = (server.site().join(path), server.folder.file("new"));
        if is_in_place {
            return fs::write(to, version_of(path, version)).unwrap();
        }
        fs::write(&new, version_of(path, version)).unwrap();
        fs::rename(new, to).unwrap();
    };
    paths.iter().for_each(|path| replace(path, 0, false));
    // Old enough to be kept.
    std::thread::sleep(Duration::from_secs(3));
    let (stop, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut tags, mut mixes) = (BTreeMap::new(), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(3);
            let mut replaced = 0;
            while !stop.load(Ordering::Relaxed) {
                // One for each request, on a slow machine too: a file that has just changed has no tag.
                if replaced > requests.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(100));
                    continue;
                }
                let path = &paths[random.usize(..count)];
                replaced += 1;
                replace(path, replaced as u8, random.bool());
            }
        });
        let _end = SetOnDrop(&stop);
        let (mut tcp, mut over_vsock) = (server.tcp(), server.vsock());
        // The first hundred are what the cache has room for.
        for (number, path) in
            (0..6).flat_map(|round| paths.iter().take(if round < 5 { 100 } else { count })).enumerate()
        {
            let client = if number % 2 == 0 { &mut tcp } else { &mut over_vsock };
            requests.fetch_add(1, Ordering::Relaxed);
            let Ok(answer) = client.request("GET", &format!("/{}", url(path))) else {
                // It has changed while it was sent.
                *client = if number % 2 == 0 { server.tcp() } else { server.vsock() };
                continue;
            };
            assert!([200, 503].contains(&answer.status()), "{path}: {}", answer.status());
            if answer.status() == 200 && !answer.etag().is_empty() {
                let start = answer.body.split(|byte| *byte == b' ').next().unwrap();
                let version = str::from_utf8(start).ok().and_then(|number| number.parse().ok());
                let is_one = version.is_some_and(|version| answer.body == version_of(path, version));
                if !is_one {
                    mixes.push((path, answer.body.len()));
                }
                let known = tags.entry(format!("{path} {}", answer.etag())).or_insert(answer.body.clone());
                assert!(*known == answer.body, "{path}: {} has two contents", answer.etag());
            }
        }
    });
    assert!(mixes.is_empty(), "mixes of so many bytes have a tag: {mixes:?}");
    assert!(tags.len() >= paths.len() / 4, "{} versions of {} files had a tag", tags.len(), paths.len());
    // A VM may use a name and its times for a second.
    std::thread::sleep(Duration::from_secs(3));
    let mut client = server.tcp();
    for path in &paths {
        let answer = client.request("GET", &format!("/{}", url(path))).unwrap();
        let expected = fs::read(server.site().join(path)).unwrap();
        assert!(answer.status() == 200 && answer.body == expected, "{path}: {}", answer.status());
    }
}

#[test]
fn a_tree_that_changes_by_a_process() {
    within(LIMIT, || serves_a_tree_that_changes(World::Process));
}

#[test]
fn a_tree_that_changes_by_kvm() {
    within(LIMIT, || serves_a_tree_that_changes(World::Kvm));
}

#[test]
fn a_tree_that_changes_by_tcg() {
    within(LIMIT, || serves_a_tree_that_changes(World::Tcg));
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
        let _end = SetOnDrop(&stop);
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
    server.kill_helper("virtiofsd");
    let mut client = server.vsock();
    client.set_patience(Duration::from_secs(200)).unwrap();
    // A name that is not known yet.
    assert_eq!(client.request("GET", "/other").unwrap().status(), 503, "{}", server.process.output());
    assert_eq!(client.request("POST", "/").unwrap().status(), 405);
    // The guest prints while it answers.
    let end = Instant::now() + START_LIMIT;
    let lines = ["files broke", "virtiofsd has ended", "the VM has no files"];
    while !lines.iter().all(|line| server.process.output().contains(line)) {
        assert!(Instant::now() < end, "{}", server.process.output());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_daemon_that_ends_is_an_error_to_clients() {
    within(LIMIT, loses_its_daemon);
}

/// With `--restart` the VM and its daemon start again, and serve the same files.
fn starts_its_daemon_again() {
    let Some(server) = Server::start_with(World::Tcg, ":ro", &["--restart"], &[]) else { return };
    fs::write(server.site().join("file"), "x").unwrap();
    assert_eq!(server.tcp().request("GET", "/file").unwrap().status(), 200);
    server.kill_helper("virtiofsd");
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

/// Without the helper of vsock there are errors for its clients, and the service continues over TCP.
fn loses_its_vsock(world: World) {
    let Some(server) = Server::start_with(world, ":ro", &[], &[]) else { return };
    fs::write(server.site().join("file"), vec![b'x'; 2_000_000]).unwrap();
    let mut open = server.vsock();
    assert_eq!(open.request("GET", "/file").unwrap().status(), 200);
    server.kill_helper("vhost-device");
    assert!(open.request("GET", "/file").is_err(), "a connection ends with its helper");
    let end = Instant::now() + START_LIMIT;
    while !server.process.output().contains("the VM has no vsock") {
        assert!(Instant::now() < end, "{}", server.process.output());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(server.process.output().contains("vhost-device-vsock has ended"), "{}", server.process.output());
    assert!(Client::connect_vsock(&server.socket, VSOCK_PORT).is_err());
    for _ in 0..3 {
        let answer = server.tcp().request("GET", "/file").unwrap();
        assert_eq!((answer.status(), answer.body.len()), (200, 2_000_000));
    }
}

#[test]
fn a_vsock_that_ends_by_kvm() {
    within(LIMIT, || loses_its_vsock(World::Kvm));
}

#[test]
fn a_vsock_that_ends_by_tcg() {
    within(LIMIT, || loses_its_vsock(World::Tcg));
}

/// With `--restart` the VM and its helper start again, and serve over both.
fn starts_its_vsock_again() {
    let Some(server) = Server::start_with(World::Tcg, ":ro", &["--restart"], &[]) else { return };
    fs::write(server.site().join("file"), "x").unwrap();
    assert_eq!(server.vsock().request("GET", "/file").unwrap().status(), 200);
    server.kill_helper("vhost-device");
    let end = Instant::now() + START_LIMIT;
    while server.process.output().matches("listening on").count() < 4 {
        assert!(Instant::now() < end, "{}", server.process.output());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(server.process.output().contains("vhost-device-vsock has ended"), "{}", server.process.output());
    assert_eq!(server.vsock().request("GET", "/file").unwrap().text(), "x");
    assert_eq!(server.tcp().request("GET", "/file").unwrap().text(), "x");
}

#[test]
fn a_vsock_that_ends_starts_again_with_the_vm() {
    within(LIMIT, starts_its_vsock_again);
}
