//! HTTPS as a process and as a VM, with the clients and servers of others: OpenSSL, rustls, Go and Node both ways, curl, nginx, and two scanners
//! that look for older versions.

pub mod rustls_peer;

use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(240);
/// A body that takes several records.
const BYTES: usize = 3_000_000;

/// A file of the certificates of lib/tls's tests.
pub fn data(file: &str) -> PathBuf {
    programs::root().join("lib/tls/tests/data").join(file)
}

/// A folder with certificates under the names that `bench-tls` wants.
fn share(files: &[(&str, &str)]) -> Folder {
    let folder = Folder::new("tls").unwrap();
    for (from, to) in files {
        fs::copy(data(from), folder.file(to)).unwrap();
    }
    folder
}

pub fn is_installed(program: &str, argument: &str) -> bool {
    let found = Command::new(program).arg(argument).output().is_ok();
    if !found {
        programs::skip(&format!("{program} is not installed"));
    }
    found
}

fn glass(world: World, share: &Folder, options: &[&str], service: &[&str]) -> Option<Command> {
    with_files("bench-tls", world, share, options, service)
}

/// `glass run` of `program` with a folder; `None` after printing why it cannot run here.
pub fn with_files(program: &str, world: World, share: &Folder, options: &[&str], service: &[&str]) -> Option<Command> {
    let share = format!("--share={}", share.path().display());
    with_options(program, world, &[&[&*share], options].concat(), service)
}

/// `glass run` of `program` with these options; `None` after printing why it cannot run here.
pub fn with_options(program: &str, world: World, options: &[&str], service: &[&str]) -> Option<Command> {
    if let Some(reason) = world.obstacle() {
        programs::skip(reason);
        return None;
    }
    let mut command = Command::new(programs::built("glass")?);
    command.arg("run");
    if world == World::Process {
        command.arg(programs::built(program)?).args(["--platform", "linux"]);
    } else {
        if options.iter().any(|option| option.starts_with("--share")) && !rustix::process::geteuid().is_root() {
            programs::skip("virtiofsd of Debian 12 needs root");
            return None;
        }
        command.arg(programs::image(program)?).args(["--accel", &world.to_string()]);
    }
    command.args(options).arg("--").args(service);
    Some(command)
}

struct Server {
    process: Process,
    port: u16,
    share: Folder,
}

impl Server {
    fn start(world: World, files: &[(&str, &str)]) -> Option<Server> {
        let (share, port) = (share(files), free_port().unwrap());
        let forward = format!("{port}:8443");
        let own_port = port.to_string();
        let command = match world {
            World::Process => glass(world, &share, &[], &["--port", &own_port]),
            _ => glass(world, &share, &["--port", &forward], &["--port", "8443"]),
        };
        let mut process = Process::spawn(&mut command?, &share.file("log")).unwrap();
        let end = Instant::now() + START_LIMIT;
        while !process.output().contains("bench-tls listens") {
            assert!(process.ended().is_none() && Instant::now() < end, "{world}: {}", process.output());
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Server { process, port, share })
    }

    fn with_identity(world: World) -> Option<Server> {
        Server::start(world, &[("server.pem", "chain.pem"), ("server.key", "key.pem")])
    }

    fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }
}

/// The output of a client, which has to succeed.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output), String::from_utf8_lossy(&output.stderr));
    text(&output)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn curl(arguments: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "60", "--cacert"]).arg(data("root.pem")).args(arguments);
    command
}

glass_tests::in_every_world! {
    clients_of_others_get_a_body within 600;
    certificates_change_without_a_restart within 180;
    clients_without_a_certificate_are_refused within 180;
    only_the_newest_version_is_there within 240;
    servers_of_others_are_read within 600;
}

/// A client in Node. Its argument is the URL, the environment has the root.
const NODE_CLIENT: &str = "
require('https').get(process.argv[1], {ca: require('fs').readFileSync(process.env.ROOT), minVersion: 'TLSv1.3'}, response => {
  let bytes = 0;
  response.on('data', piece => bytes += piece.length).on('end', () => console.log(bytes));
}).on('error', error => { console.error(error); process.exit(1); });";

/// A server in Node on the port that is its argument.
const NODE_SERVER: &str = "
const fs = require('fs');
require('https').createServer({cert: fs.readFileSync(process.env.CHAIN), key: fs.readFileSync(process.env.KEY)},
  (request, response) => response.end(Buffer.alloc(Number(request.url.slice(1))))).listen(Number(process.argv[1]), '127.0.0.1');";

/// Both in Go: `client URL`, or `server PORT`.
const GO: &str = r#"package main

import ("crypto/tls"; "crypto/x509"; "fmt"; "io"; "net/http"; "os"; "strconv")

func check(err error) { if err != nil { panic(err) } }

func main() {
	if os.Args[1] == "server" {
		http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			n, _ := strconv.Atoi(r.URL.Path[1:])
			w.Write(make([]byte, n))
		})
		server := http.Server{Addr: "127.0.0.1:" + os.Args[2], TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13}}
		check(server.ListenAndServeTLS(os.Getenv("CHAIN"), os.Getenv("KEY")))
	}
	pem, err := os.ReadFile(os.Getenv("ROOT"))
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}}
	response, err := client.Get(os.Args[2])
	check(err)
	n, err := io.Copy(io.Discard, response.Body)
	check(err)
	fmt.Println(n)
}
"#;

/// The program in Go, built once for all tests; `None` after printing that the test is skipped.
fn go() -> Option<PathBuf> {
    let Some(go) = programs::go() else {
        programs::skip("Go is not installed");
        return None;
    };
    static BUILT: std::sync::Mutex<Option<Folder>> = std::sync::Mutex::new(None);
    let mut built = BUILT.lock().unwrap();
    let folder = built.get_or_insert_with(|| {
        let folder = Folder::new("tls-go").unwrap();
        fs::write(folder.file("main.go"), GO).unwrap();
        let mut command = Command::new(go);
        // In the user's cache: without it Go compiles its library, which takes a minute or more.
        command.current_dir(folder.path()).args(["build", "-o", "peer", "main.go"]).env("GO111MODULE", "off");
        succeed(&mut command);
        folder
    });
    Some(folder.file("peer"))
}

pub fn clients_of_others_get_a_body(world: World) {
    let Some(server) = Server::with_identity(world) else { return };
    let url = server.url(&format!("/{BYTES}"));
    if is_installed("curl", "--version") {
        assert_eq!(succeed(&mut curl(&[&server.url("/")])), "Hello over TLS\n");
        assert_eq!(succeed(&mut curl(&[&url])).len(), BYTES);
        // Two requests, of which the second continues the session or the connection.
        let twice = succeed(&mut curl(&[
            "--write-out",
            "%{num_connects} ",
            "--output",
            "/dev/null",
            &url,
            "--output",
            "/dev/null",
            &url,
        ]));
        assert_eq!(twice, "1 0 ");
        for version in ["--http1.1", "--http1.0"] {
            // The server offers no protocol `http/1.0`.
            let options = [version, "--no-alpn"];
            assert_eq!(succeed(curl(&options).arg(server.url(&format!("/stream/{BYTES}")))).len(), BYTES);
            let cut = curl(&options).arg(server.url(&format!("/cut/{BYTES}"))).output().unwrap();
            // QEMU's own network (libslirp) closes its socket when the guest resets the connection, and curl ignores a missing close_notify.
            let is_noticed = !cut.status.success() || (world != World::Process && version == "--http1.0");
            assert!(is_noticed && cut.stdout.len() <= BYTES / 2, "{version}: {} bytes", cut.stdout.len());
        }
    }
    if is_installed("openssl", "version") {
        let mut command = Command::new("openssl");
        let target = format!("localhost:{}", server.port);
        command.args(["s_client", "-connect", &target, "-servername", "localhost", "-verify_return_error", "-CAfile"]);
        let output = succeed(command.arg(data("root.pem")).stdin(std::process::Stdio::null()));
        assert!(output.contains("TLSv1.3") && output.contains("Verify return code: 0"), "{output}");
    }
    if is_installed("node", "--version") {
        let mut command = Command::new("node");
        command.args(["-e", NODE_CLIENT, &url]).env("ROOT", data("root.pem"));
        assert_eq!(succeed(&mut command), format!("{BYTES}\n"));
    }
    if let Some(go) = go() {
        let mut command = Command::new(go);
        command.args(["client", &url]).env("ROOT", data("root.pem"));
        assert_eq!(succeed(&mut command), format!("{BYTES}\n"));
    }
    assert_eq!(rustls_peer::get(server.port, &format!("/{BYTES}"), &data("root.pem")), BYTES);
}

pub fn certificates_change_without_a_restart(world: World) {
    if !is_installed("curl", "--version") {
        return;
    }
    let Some(server) = Server::with_identity(world) else { return };
    let subject = || {
        let output = curl(&["--verbose", &server.url("/")]).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        log.lines().find_map(|line| line.strip_prefix("*  subject: CN=")).map(str::to_owned)
    };
    assert_eq!(subject().as_deref(), Some("server"));
    // The chain alone does not belong to the key: the earlier identity stays until both are there.
    fs::copy(data("renewed.pem"), server.share.file("chain.pem")).unwrap();
    let end = Instant::now() + START_LIMIT;
    while !server.process.output().contains("keeps its certificates") {
        assert!(Instant::now() < end, "{}", server.process.output());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(subject().as_deref(), Some("server"));
    fs::copy(data("renewed.key"), server.share.file("key.pem")).unwrap();
    while subject().as_deref() != Some("renewed") {
        assert!(Instant::now() < end, "{}", server.process.output());
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn clients_without_a_certificate_are_refused(world: World) {
    if !is_installed("curl", "--version") {
        return;
    }
    let files = [("server.pem", "chain.pem"), ("server.key", "key.pem"), ("root.pem", "clients.pem")];
    let Some(server) = Server::start(world, &files) else { return };
    let output = curl(&[&server.url("/")]).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{}", text(&output));
    let mut known = curl(&[&server.url("/")]);
    known.arg("--cert").arg(data("client.pem")).arg("--key").arg(data("client.key"));
    assert_eq!(succeed(&mut known), "Hello over TLS\n");
}

pub fn only_the_newest_version_is_there(world: World) {
    let Some(server) = Server::with_identity(world) else { return };
    let target = format!("localhost:{}", server.port);
    // Older versions by hand; some builds of OpenSSL do not have them, and fail as well.
    if is_installed("openssl", "version") {
        for version in ["-tls1", "-tls1_1", "-tls1_2"] {
            let mut command = Command::new("openssl");
            command.args(["s_client", "-connect", &target, version, "-cipher", "ALL:@SECLEVEL=0"]);
            let output = command.stdin(std::process::Stdio::null()).output().unwrap();
            assert!(!output.status.success(), "{version}: {}", text(&output));
        }
    }
    if is_installed("sslscan", "--version") {
        let output = succeed(Command::new("sslscan").args(["--no-colour", &target]));
        for line in output.lines() {
            let is_old = ["SSLv2 ", "SSLv3 ", "TLSv1.0 ", "TLSv1.1 ", "TLSv1.2 "]
                .iter()
                .any(|version| line.starts_with(version));
            assert!(!is_old || line.ends_with("disabled"), "{output}");
        }
        assert!(output.lines().any(|line| line.starts_with("TLSv1.3 ") && line.ends_with("enabled")), "{output}");
    }
    if is_installed("testssl", "--version") {
        let mut command = Command::new("testssl");
        let output =
            text(&command.args(["--color", "0", "--protocols", "--warnings", "off", &target]).output().unwrap());
        let line =
            |version: &str| output.lines().find(|line| line.trim_start().starts_with(version)).unwrap_or_default();
        for version in ["SSLv2", "SSLv3", "TLS 1 ", "TLS 1.1", "TLS 1.2"] {
            assert!(line(version).contains("not offered"), "{version}: {output}");
        }
        assert!(line("TLS 1.3").contains("offered") && !line("TLS 1.3").contains("not offered"), "{output}");
    }
}

/// Has our client get a body from a server that `start` starts on a port of this machine.
fn read_from(world: World, name: &str, path: &str, start: impl FnOnce(u16) -> Command) {
    let (folder, port) = (Folder::new("tls-server").unwrap(), free_port().unwrap());
    let mut server = Process::spawn(&mut start(port), &folder.file("log")).unwrap();
    let end = Instant::now() + START_LIMIT;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(server.ended().is_none() && Instant::now() < end, "{name}: {}", server.output());
        std::thread::sleep(Duration::from_millis(20));
    }
    read(world, name, port, path);
}

/// Has our client get a body of [`BYTES`] from a port of this machine, which is the gateway of a VM's network.
fn read(world: World, name: &str, port: u16, path: &str) {
    let share = share(&[("root.pem", "roots.pem")]);
    let host = if world == World::Process { "127.0.0.1" } else { "10.0.2.2" };
    let url = format!("https://{host}:{port}{path}");
    let Some(mut command) = glass(world, &share, &[], &["--get", &url]) else { return };
    let output = succeed(&mut command);
    assert!(output.contains(&format!("200, {BYTES} bytes")), "{name}: {output}");
}

pub fn servers_of_others_are_read(world: World) {
    let identity = |command: &mut Command| _ = command.env("CHAIN", data("server.pem")).env("KEY", data("server.key"));
    let path = format!("/{BYTES}");
    read(world, "rustls", rustls_peer::serve(&data("server.pem"), &data("server.key")), &path);
    if is_installed("openssl", "version") {
        // `-WWW` sends files of its folder.
        let folder = Folder::new("tls-site").unwrap();
        fs::write(folder.file("body"), vec![7; BYTES]).unwrap();
        read_from(world, "openssl", "/body", |port| {
            let mut command = Command::new("openssl");
            command.current_dir(folder.path()).args(["s_server", "-WWW", "-accept", &port.to_string(), "-cert"]);
            command.arg(data("server.pem")).arg("-key").arg(data("server.key"));
            command
        });
    }
    if is_installed("node", "--version") {
        read_from(world, "node", &path, |port| {
            let mut command = Command::new("node");
            command.args(["-e", NODE_SERVER, &port.to_string()]);
            identity(&mut command);
            command
        });
    }
    if let Some(go) = go() {
        read_from(world, "go", &path, |port| {
            let mut command = Command::new(&go);
            command.args(["server", &port.to_string()]);
            identity(&mut command);
            command
        });
    }
    let nginx = ["nginx", "/usr/sbin/nginx"].into_iter().find(|nginx| Command::new(nginx).arg("-v").output().is_ok());
    let Some(nginx) = nginx else { return programs::skip("nginx is not installed") };
    let folder = Folder::new("tls-nginx").unwrap();
    fs::write(folder.file("body"), vec![7; BYTES]).unwrap();
    read_from(world, "nginx", "/body", |port| {
        let root = folder.path().display();
        let (chain, key) = (data("server.pem").display().to_string(), data("server.key").display().to_string());
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let text = format!(
            "{user}\ndaemon off;\nmaster_process off;\npid {root}/pid;\nerror_log {root}/error.log;\nevents {{}}\nhttp {{ access_log off;\n\
             client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c; uwsgi_temp_path {root}/d;\n\
             scgi_temp_path {root}/e;\nserver {{ listen 127.0.0.1:{port} ssl; root {root}; ssl_protocols TLSv1.3;\n\
             ssl_certificate {chain}; ssl_certificate_key {key}; }} }}\n"
        );
        fs::write(folder.file("nginx.conf"), text).unwrap();
        let mut command = Command::new(nginx);
        command.arg("-c").arg(folder.file("nginx.conf")).arg("-p").arg(folder.path());
        command
    });
}
