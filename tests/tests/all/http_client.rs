//! The HTTP client against servers of others and our own, over real sockets: 10,000 requests over 100 connections, of which some are redirected,
//! slow, or closed without an answer. Each ends with a response or an error within its limit, and the memory does not grow.

use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use serde_json::Value;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    many_requests_end_at_nginx within 300;
    many_requests_end_at_apache within 300;
    many_requests_end_at_our_server within 300;
}

/// An emulated machine gets a tenth.
const REQUESTS: usize = 10_000;
const CONNECTIONS: usize = 100;
/// The client's limit of a request, and what a busy machine adds.
const REQUEST_MS_MAX: u64 = 21_000;
/// What the heap of a VM may grow by in the second half of the requests: buffers that connections keep.
const GROWTH_BYTES_MAX: u64 = 512 << 10;
/// The memory of a process has holes, which its allocator keeps: after 100,000 requests there are no more than after 10,000.
const HOLES_BYTES_MAX: u64 = 3 << 20;
const START_LIMIT: Duration = Duration::from_secs(120);
const RUN_LIMIT: Duration = Duration::from_secs(720);

/// The paths that are requested in turn, how each ends (a status, or the start of an error), and how often it is in a turn.
const PLAIN: [(&str, &str, usize); 3] = [("/100", "200", 5), ("/20000", "200", 4), ("/missing", "404", 1)];
/// The server's configuration has these.
const OF_OTHERS: [(&str, &str, usize); 3] =
    [("/redirect", "200", 4), ("/loop", "there were more than 5 redirects", 1), ("/slow", "200", 1)];
const CLOSED: (&str, &str, usize) = ("/closed", "the server closed the connection", 1);

/// The paths of one turn, which is repeated until there are a hundred, so that few are slow.
fn turns(special: &[(&'static str, &'static str, usize)]) -> Vec<(&'static str, &'static str)> {
    let repeat = |cases: &[(&'static str, &'static str, usize)]| {
        cases.iter().flat_map(|(path, end, count)| vec![(*path, *end); *count]).collect::<Vec<_>>()
    };
    let mut all = repeat(special);
    all.extend(repeat(&PLAIN).into_iter().cycle().take(100 - all.len()));
    all
}

/// A folder with the files of a site, which other users can read.
fn site() -> Folder {
    let folder = Folder::new("http-client").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, bytes) in [("100", 100), ("20000", 20_000), ("slow", 30_000)] {
        folder.write(name, &vec![b'x'; bytes]).unwrap();
    }
    folder
}

/// A server that was started by `command` on `port`.
fn start(mut command: Command, port: u16, log: &Path) -> Process {
    let mut server = Process::spawn(&mut command, log).unwrap();
    let end = Instant::now() + START_LIMIT;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(server.ended().is_none() && Instant::now() < end, "{command:?}: {}", server.output());
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

/// Has our client send requests to a port of this machine, and checks how they have ended.
fn check(world: World, port: u16, cases: &[(&str, &str)], folder: &Folder) {
    check_with(world, port, cases, folder, None);
}

/// [`check`] over TLS, if there is a folder with `roots.pem`.
fn check_with(world: World, port: u16, cases: &[(&str, &str)], folder: &Folder, roots: Option<&Folder>) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let requests = if world == World::Tcg { REQUESTS / 10 } else { REQUESTS };
    let command = match world {
        World::Process => programs::built("bench-tls").map(Command::new),
        _ => programs::built("glass").zip(programs::image("bench-tls")).map(|(glass, image)| {
            let mut command = Command::new(glass);
            command.arg("run").arg(image).args(["--accel", &world.to_string(), "--memory", "64"]);
            command
        }),
    };
    let Some(mut command) = command else { return };
    // The VM's network has the host's loopback at its gateway.
    let host = if world == World::Process { "127.0.0.1" } else { "10.0.2.2" };
    let paths: Vec<&str> = cases.iter().map(|(path, _)| *path).collect();
    let scheme = if roots.is_some() { "https" } else { "http" };
    if let Some(roots) = roots {
        command.arg("--share").arg(roots.path());
    }
    command.args(["--", "--load", &format!("{scheme}://{host}:{port}"), &paths.join(",")]);
    command.args([requests.to_string(), CONNECTIONS.to_string()]);
    let mut client = Process::spawn(&mut command, &folder.file("client.log")).unwrap();
    let status = client.wait(RUN_LIMIT);
    let output = client.output();
    assert!(status.is_some_and(|status| status.success()), "{output}");
    let line = output.lines().find_map(|line| line.find("{\"ended\"").map(|at| &line[at..]));
    let report: Value = serde_json::from_str(line.unwrap_or_else(|| panic!("no report: {output}")).trim()).unwrap();
    println!("{world}: {report}");
    let number = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name}: {report}"));
    assert_eq!(number("ended"), requests as u64);
    let mut expected = requests;
    for (outcome, count) in report["outcomes"].as_object().unwrap() {
        let (path, end) = outcome.split_once(' ').unwrap();
        let wanted = cases.iter().find(|(of, _)| *of == path).unwrap().1;
        assert!(end.starts_with(wanted), "{outcome}: {report}");
        expected -= count.as_u64().unwrap() as usize;
    }
    assert_eq!(expected, 0, "{report}");
    assert!(number("longest_ms") <= REQUEST_MS_MAX, "{report}");
    assert!(number("kept") <= CONNECTIONS as u64, "{report}");
    let growth_bytes_max = if world == World::Process { HOLES_BYTES_MAX } else { GROWTH_BYTES_MAX };
    assert!(number("used_bytes") <= number("warm_bytes") + growth_bytes_max, "{report}");
}

/// A program, also for a user whose path lacks the folders of daemons; `None` after printing that the test is skipped.
fn daemon(names: [&'static str; 2]) -> Option<&'static str> {
    let found = names.into_iter().find(|name| Command::new(name).arg("-v").output().is_ok());
    if found.is_none() {
        programs::skip(&format!("{} is not installed", names[0]));
    }
    found
}

fn many_requests_end_at_nginx(world: World) {
    let Some(nginx) = daemon(["nginx", "/usr/sbin/nginx"]) else { return };
    let (folder, port) = (site(), free_port().unwrap());
    let root = folder.path().display();
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    // A connection ends after a hundred requests, and 444 ends one without a response.
    let text = format!(
        "{user}\ndaemon off;\nmaster_process off;\npid {root}/pid;\nerror_log {root}/error.log;\nevents {{ worker_connections 512; }}\n\
         http {{ access_log off; keepalive_requests 100;\n\
         client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c; uwsgi_temp_path {root}/d;\n\
         scgi_temp_path {root}/e;\nserver {{ listen 127.0.0.1:{port}; root {root};\n\
         location = /redirect {{ return 302 /20000; }}\nlocation = /loop {{ return 302 /loop; }}\n\
         location = /closed {{ return 444; }}\nlocation = /slow {{ limit_rate 20k; }} }} }}\n"
    );
    folder.write("nginx.conf", text.as_bytes()).unwrap();
    let mut command = Command::new(nginx);
    command.arg("-c").arg(folder.file("nginx.conf")).arg("-p").arg(folder.path());
    let _server = start(command, port, &folder.file("server.log"));
    check(world, port, &turns(&[&OF_OTHERS[..], &[CLOSED]].concat()), &folder);
}

fn many_requests_end_at_apache(world: World) {
    let Some(apache) = daemon(["apache2", "/usr/sbin/apache2"]) else { return };
    let (folder, port) = (site(), free_port().unwrap());
    let root = folder.path().display();
    let modules: String = ["mpm_event", "authz_core", "alias", "env", "ratelimit"]
        .map(|module| format!("LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so\n"))
        .concat();
    // As root it becomes another user.
    let user = if rustix::process::geteuid().is_root() { "User nobody\nGroup nogroup\n" } else { "" };
    let text = format!(
        "{modules}{user}ServerRoot {root}\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile {root}/pid\nErrorLog {root}/error.log\n\
         DefaultRuntimeDir {root}\nDocumentRoot {root}\nMaxKeepAliveRequests 100\n\
         Redirect 302 /redirect http://127.0.0.1:{port}/20000\nRedirect 302 /loop /loop\n\
         <Location /slow>\nSetOutputFilter RATE_LIMIT\nSetEnv rate-limit 20\n</Location>\n"
    );
    let text = match world {
        World::Process => text,
        _ => text.replace(&format!("http://127.0.0.1:{port}/20000"), &format!("http://10.0.2.2:{port}/20000")),
    };
    folder.write("apache.conf", text.as_bytes()).unwrap();
    let mut command = Command::new(apache);
    command.arg("-DFOREGROUND").arg("-f").arg(folder.file("apache.conf"));
    let _server = start(command, port, &folder.file("server.log"));
    check(world, port, &turns(&OF_OTHERS), &folder);
}

fn many_requests_end_at_our_server(world: World) {
    let Some(server) = programs::built("web-server") else { return };
    let (folder, port) = (site(), free_port().unwrap());
    let mut command = Command::new(server);
    command.arg("--share").arg(folder.path()).args(["--", "--port", &port.to_string()]);
    let _server = start(command, port, &folder.file("server.log"));
    check(world, port, &turns(&[]), &folder);
}

/// TLS of a VM is in `tls.rs`.
#[test]
fn many_requests_end_over_tls() {
    let Some(server) = programs::built("bench-tls") else { return };
    let (shared, roots, port) = (site(), site(), free_port().unwrap());
    let data = programs::root().join("lib/tls/tests/data");
    for (folder, from, to) in
        [(&shared, "server.pem", "chain.pem"), (&shared, "server.key", "key.pem"), (&roots, "root.pem", "roots.pem")]
    {
        fs::copy(data.join(from), folder.file(to)).unwrap();
    }
    let mut command = Command::new(server);
    command.arg("--share").arg(shared.path()).args(["--", "--port", &port.to_string()]);
    let _server = start(command, port, &shared.file("server.log"));
    let cases =
        [("/100", "200"), ("/20000", "200"), ("/missing", "404"), ("/stream/20000", "200"), ("/cut/20000", "the ")];
    check_with(World::Process, port, &cases, &shared, Some(&roots));
}
