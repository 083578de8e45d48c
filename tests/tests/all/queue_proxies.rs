//! The upload queue behind proxies that end TLS, with the configurations of its guide, and the unit of systemd: uploads, resumed uploads and downloads by curl, and many
//! clients at once by oha.

use crate::tls::{data, is_installed};
use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::guide::listings;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

mod process {
    use super::*;

    #[test]
    fn nginx_passes_uploads_and_downloads() {
        glass_tests::limit::within(Duration::from_secs(300), || super::passes(super::nginx, false));
    }

    #[test]
    fn haproxy_passes_uploads_and_downloads() {
        glass_tests::limit::within(Duration::from_secs(300), || super::passes(super::haproxy, true));
    }

    #[test]
    fn systemd_accepts_the_unit() {
        glass_tests::limit::within(Duration::from_secs(240), super::systemd_accepts);
    }

    #[test]
    fn many_clients_at_once_lose_nothing_over_tls() {
        glass_tests::limit::within(Duration::from_secs(1800), super::many_clients);
    }
}

const START_LIMIT: Duration = Duration::from_secs(240);
const BYTES: u64 = 100 << 20;

/// A queue, with a proxy in front of it.
struct Site {
    folder: Folder,
    queue: Queue,
    proxy: Process,
    port: u16,
}

/// A configuration of the guide, in which each of these is replaced.
fn configuration(name: &str, changes: &[(&str, &str)]) -> String {
    let guide = fs::read_to_string(programs::root().join("docs/guides/running-the-queue.md")).unwrap();
    let found = listings(&guide).into_iter().find(|(path, _)| *path == name);
    let (_, mut text) = found.unwrap_or_else(|| panic!("the guide has no {name}"));
    for (from, to) in changes {
        assert!(text.contains(from), "{name} has no {from}");
        text = text.replace(from, to);
    }
    text
}

/// The command that runs the proxy in the foreground, from this port to that queue.
type Proxy = fn(&Folder, port: u16, queue: &str) -> Option<Command>;

fn nginx(folder: &Folder, port: u16, queue: &str) -> Option<Command> {
    if !is_installed("nginx", "-v") {
        return None;
    }
    let listen = format!("listen 127.0.0.1:{port} ssl http2;");
    let (chain, key) = (data("server.pem").display().to_string(), data("server.key").display().to_string());
    let site = configuration(
        "nginx.conf",
        &[
            ("listen 443 ssl http2;", &listen),
            ("127.0.0.1:8080", queue),
            ("/etc/queue/chain.pem", &chain),
            ("/etc/queue/key.pem", &key),
        ],
    );
    let path = folder.path().display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {path}/{kind};\n"))
        .concat();
    // What nginx has around a site.
    let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
    let whole = format!(
        "{user}daemon off;\npid {path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n"
    );
    fs::write(folder.file("nginx.conf"), whole).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder.path()).arg("-c").arg(folder.file("nginx.conf"));
    Some(command)
}

fn haproxy(folder: &Folder, port: u16, queue: &str) -> Option<Command> {
    // Debian has it in a folder that is not in the path of every user.
    let program =
        ["haproxy", "/usr/sbin/haproxy"].into_iter().find(|program| Command::new(program).arg("-v").output().is_ok());
    let Some(program) = program else {
        programs::skip("haproxy is not installed");
        return None;
    };
    let identity = [fs::read(data("server.pem")).unwrap(), fs::read(data("server.key")).unwrap()].concat();
    fs::write(folder.file("queue.pem"), identity).unwrap();
    let (bind, pem) = (format!("bind 127.0.0.1:{port}"), folder.file("queue.pem").display().to_string());
    let whole = configuration(
        "haproxy.cfg",
        &[("bind 0.0.0.0:443", &bind), ("127.0.0.1:8080", queue), ("/etc/haproxy/queue.pem", &pem)],
    );
    fs::write(folder.file("haproxy.cfg"), whole).unwrap();
    let mut command = Command::new(program);
    command.arg("-db").arg("-f").arg(folder.file("haproxy.cfg"));
    Some(command)
}

impl Site {
    fn start(proxy: Proxy) -> Option<Site> {
        if !is_installed("curl", "--version") {
            return None;
        }
        let folder = Folder::new("queue-proxies").unwrap();
        let options = Options { disk_size: "512M".into(), ..Options::default() };
        let queue = Queue::start(World::Process, &folder.file("queue.img"), &options).unwrap()?;
        let port = free_port().unwrap();
        let mut command = proxy(&folder, port, &queue.address.to_string())?;
        let proxy = Process::spawn(&mut command, &folder.file("proxy.log")).unwrap();
        let mut site = Site { folder, queue, proxy, port };
        let end = Instant::now() + START_LIMIT;
        while site.try_curl("/readyz", &["--fail"]).is_none() {
            assert!(site.proxy.ended().is_none() && Instant::now() < end, "{}", site.proxy.output());
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(site)
    }

    fn try_curl(&self, path: &str, arguments: &[&str]) -> Option<Vec<u8>> {
        let mut command = Command::new("curl");
        command
            .args(["--silent", "--show-error", "--max-time", "120", "--cacert"])
            .arg(data("root.pem"))
            .args(arguments);
        let output = command.arg(format!("https://localhost:{}{path}", self.port)).output().unwrap();
        output.status.success().then_some(output.stdout)
    }

    fn curl(&self, path: &str, arguments: &[&str]) -> Vec<u8> {
        let out = self.try_curl(path, arguments);
        out.unwrap_or_else(|| panic!("curl {arguments:?} {path}: {}{}", self.proxy.output(), self.queue.output()))
    }

    /// Receives the oldest item, which is this one, and removes it.
    fn take(&self, expected: &[u8]) {
        let item = self.curl("/downloader?wait=0", &["--fail"]);
        assert!(item == expected, "{} bytes of {}", item.len(), expected.len());
        self.curl("/downloader", &["--fail", "--request", "DELETE", "--header", "If-Match: *"]);
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.folder.file(name), bytes).unwrap();
        self.folder.file(name)
    }
}

fn field(head: &[u8], name: &str) -> String {
    let head = String::from_utf8_lossy(head).into_owned();
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    let found = fields.find_map(|(found, value)| found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned()));
    found.unwrap_or_else(|| panic!("no {name} in {head}"))
}

/// Those that do not pass an interim response have no uploads by the draft.
fn passes(proxy: Proxy, has_interim_responses: bool) {
    let Some(site) = Site::start(proxy) else { return };
    let bytes = Content { seed: 1, length_bytes: BYTES }.bytes();
    let whole = site.file("whole", &bytes).display().to_string();
    site.curl("/uploader", &["--fail", "--upload-file", &whole]);
    site.take(&bytes);
    // By tus, in parts, of which the second one is cut.
    let length = format!("Upload-Length: {}", bytes.len());
    let tus = ["--header", "Tus-Resumable: 1.0.0"];
    let begun = site.curl(
        "/uploader",
        &[&tus[..], &["--include", "--request", "POST", "--header", &length, "--data", ""]].concat(),
    );
    let path = field(&begun, "Location");
    let offset =
        || field(&site.curl(&path, &[&tus[..], &["--head"]].concat()), "Upload-Offset").parse::<usize>().unwrap();
    let send = |part: &str, at: usize, more: &[&str]| {
        let (at, body) = (format!("Upload-Offset: {at}"), format!("@{part}"));
        let kind = "Content-Type: application/offset+octet-stream";
        let part = ["--request", "PATCH", "--header", kind, "--header", &at, "--data-binary", &body];
        site.try_curl(&path, &[&tus[..], &part, more].concat()).is_some()
    };
    let first = site.file("first", &bytes[..10_000_000]).display().to_string();
    assert!(send(&first, 0, &["--fail"]));
    assert_eq!(offset(), 10_000_000);
    let rest = site.file("rest", &bytes[10_000_000..]).display().to_string();
    // It takes 9 s at this rate, and has 2.
    assert!(!send(&rest, 10_000_000, &["--limit-rate", "10M", "--max-time", "2"]));
    let kept = offset();
    assert!(kept > 10_000_000 && kept < bytes.len(), "{kept}: nothing of the part that was cut is kept");
    let rest = site.file("rest", &bytes[kept..]).display().to_string();
    assert!(send(&rest, kept, &["--fail"]));
    site.take(&bytes);
    // By the draft, whose answer 104 comes before that to the request.
    let draft = ["--header", "Upload-Complete: ?1", "--data-binary", &format!("@{first}")];
    if has_interim_responses {
        site.curl("/uploader", &[&draft[..], &["--fail"]].concat());
        site.take(&bytes[..10_000_000]);
    }
    // A consumer that waits gets what arrives later.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| site.curl("/downloader?wait=60", &["--fail"]));
        std::thread::sleep(Duration::from_millis(300));
        site.curl("/uploader", &["--fail", "--upload-file", &first]);
        assert!(waiting.join().unwrap() == bytes[..10_000_000]);
    });
}

/// The unit of the guide, with the program that was built.
fn systemd_accepts() {
    if !is_installed("systemd-analyze", "--version") {
        return;
    }
    let Some(program) = programs::built("upload-queue") else { return };
    let folder = Folder::new("queue-unit").unwrap();
    let program = program.canonicalize().unwrap().display().to_string();
    fs::write(
        folder.file("queue.service"),
        configuration("queue.service", &[("/usr/local/bin/upload-queue", &program)]),
    )
    .unwrap();
    let output = Command::new("systemd-analyze").arg("verify").arg(folder.file("queue.service")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Units of the host may have mistakes of their own.
    assert!(output.status.success() && !said.contains("queue.service"), "{said}");
}

/// Uploads of many clients over the queue's own TLS, and over that of a proxy.
fn many_clients() {
    if !programs::is_long() {
        return programs::skip("oha takes minutes to build: give --long");
    }
    let (Some(oha), Some(program)) = (glass_tests::oha::program(), programs::built("upload-queue")) else { return };
    let (folder, port) = (Folder::new("queue-oha").unwrap(), free_port().unwrap());
    fs::copy(data("server.pem"), folder.file("chain.pem")).unwrap();
    fs::copy(data("server.key"), folder.file("key.pem")).unwrap();
    fs::write(folder.file("item"), Content { seed: 3, length_bytes: 20_000 }.bytes()).unwrap();
    let mut command = Command::new(program);
    command.arg("--disk").arg(folder.file("queue.img")).args(["--disk-size", "256M", "--share"]).arg(folder.path());
    command.args([
        "--",
        "--port",
        &port.to_string(),
        "--tls-chain=chain.pem",
        "--tls-key=key.pem",
        "--access-log=access.log",
    ]);
    let mut queue = Process::spawn(&mut command, &folder.file("log")).unwrap();
    queue.wait_for_text("upload-queue: listening", START_LIMIT, || {});
    load(&oha, port, &folder);
    let log = fs::read_to_string(folder.file("access.log")).unwrap();
    // The last lines may still wait.
    assert!(log.lines().filter(|line| line.contains("\"status\":200,\"received\":20000,")).count() > 100, "{log}");
    let Some(site) = Site::start(haproxy) else { return };
    load(&oha, site.port, &folder);
    assert!(
        site.curl("/metrics", &["--fail"]).windows(30).any(|part| part == b"\nglass_queue_uploads_total 500"),
        "{}",
        site.queue.output()
    );
}

/// 500 uploads by 6 connections, all of which succeed.
fn load(oha: &std::path::Path, port: u16, folder: &Folder) {
    let mut command = Command::new(oha);
    command
        .args(["-n", "500", "-c", "6", "-m", "PUT", "--no-tui", "--output-format", "json", "-D"])
        .arg(folder.file("item"));
    command.arg("--cacert").arg(data("root.pem")).arg(format!("https://localhost:{port}/uploader"));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {output:?}"));
    assert_eq!(report["statusCodeDistribution"], serde_json::json!({"200": 500}), "{text}");
}
