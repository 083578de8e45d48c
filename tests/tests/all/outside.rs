//! Crates of users, in folders of their own: they depend on Glasshouse by a tag of a git repository, and no path of this checkout is in
//! them. If a change breaks the shortener of the guide, it breaks users, so it is a decision and a line in the changelog.

use glass_tests::folder::Folder;
use glass_tests::guide::listings;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// All below a service is built once, as an image and as a process.
const LIMIT: Duration = Duration::from_secs(1800);
const START_LIMIT: Duration = Duration::from_secs(240);
const TAG: &str = "v0.1.0";
const PAGE: &str = include_str!("../../../docs/guides/shortener.md");
/// Lines of its service.
const LINES_MAX: usize = 120;

/// A git repository with this checkout as it is, and where its users build.
struct Remote {
    folder: Folder,
    builds: PathBuf,
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

impl Remote {
    fn new() -> Remote {
        let builds = programs::folder().parent().expect("programs are in a folder of builds").join("outside");
        remove_ours(&builds);
        let remote = Remote { folder: Folder::new("remote").unwrap(), builds };
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.arg("--git-dir").arg(remote.repository()).arg("--work-tree").arg(programs::root()).args(arguments);
            git.current_dir(programs::root());
            for who in ["AUTHOR", "COMMITTER"] {
                git.env(format!("GIT_{who}_NAME"), "tests").env(format!("GIT_{who}_EMAIL"), "tests@localhost");
            }
            run(&mut git)
        };
        git(&["init", "--quiet"]);
        git(&["add", "--all"]);
        git(&["commit", "--quiet", "--message", "the sources"]);
        git(&["tag", TAG]);
        remote
    }

    fn repository(&self) -> PathBuf {
        self.folder.file(&format!("{}.git", Remote::name()))
    }

    /// Of the repository, and in the folder where cargo keeps those that it has fetched.
    fn name() -> String {
        format!("glasshouse-of-tests-{}", std::process::id())
    }

    fn url(&self) -> String {
        format!("file://{}", self.repository().display())
    }

    /// A command in a user's crate.
    fn command(&self, program: impl AsRef<Path>, folder: &Path) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(folder).env("CARGO_TARGET_DIR", &self.builds);
        // The test is about what builds and runs, not about how fast: this halves the time of the builds.
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
        command
    }

    fn cargo(&self, folder: &Path, arguments: &[&str]) {
        // Versions of crates are those of this checkout: cargo drops from the list what it does not need.
        if !folder.join("Cargo.lock").exists() {
            fs::copy(programs::root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
        }
        let said = run(self.command("cargo", folder).args(arguments));
        assert!(!said.contains("warning"), "{said}");
    }
}

impl Drop for Remote {
    /// Cargo keeps a copy of each repository that it has fetched.
    fn drop(&mut self) {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
        for folder in ["git/db", "git/checkouts"] {
            let Some(entries) = home.as_ref().and_then(|home| fs::read_dir(home.join(folder)).ok()) else { continue };
            for entry in entries.flatten() {
                if entry.file_name().to_string_lossy().starts_with(&format!("{}-", Remote::name())) {
                    let _ = fs::remove_dir_all(entry.path());
                }
            }
        }
    }
}

/// No file of the crate names this checkout, and no package that it is built of has a path: each is the registry's or the repository's.
fn assert_is_outside(home: &Path, remote: &Remote) {
    assert_is_not_named(home);
    let lock = fs::read_to_string(home.join("Cargo.lock")).unwrap();
    let (ours, others): (Vec<&str>, Vec<&str>) =
        lock.split("[[package]]").skip(1).partition(|package| !package.contains("\nsource = "));
    let name = home.file_name().unwrap().to_string_lossy();
    assert!(ours.len() == 1 && ours[0].starts_with(&format!("\nname = \"{name}\"")), "with a path: {ours:?}");
    let of_remote = format!("\nname = \"glasshouse\"\nversion = \"0.1.0\"\nsource = \"git+{}?tag={TAG}#", remote.url());
    assert!(others.iter().any(|package| package.starts_with(&of_remote)), "{others:?}");
}

fn assert_is_not_named(folder: &Path) {
    let root = programs::root().display().to_string();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            assert_is_not_named(&entry.path());
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            assert!(!text.contains(&root), "{} names {root}", entry.path().display());
        }
    }
}

/// Removes what earlier runs have built of this checkout: each has another commit, so it would never be used again.
fn remove_ours(folder: &Path) {
    const OURS: [&str; 6] = ["glass", "glasshouse", "shortener", "my", "crates", "shop"];
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let name = name.strip_prefix("lib").unwrap_or(&name);
        let is_ours = OURS.iter().any(|ours| name.strip_prefix(ours).is_some_and(|rest| rest.starts_with(['-', '_'])));
        match entry.file_type().unwrap().is_dir() {
            true if is_ours => fs::remove_dir_all(path).unwrap(),
            false if is_ours => fs::remove_file(path).unwrap(),
            true => remove_ours(&path),
            false => {}
        }
    }
}

fn exchange(address: SocketAddr, request: &str, status: u16) -> String {
    let mut client = Client::connect(address).unwrap();
    client.send(request.as_bytes()).unwrap();
    let response = client.response(request.split(' ').next().unwrap()).unwrap();
    assert_eq!(response.status(), status, "{request}: {}", response.text());
    format!("{} {}", response.head.header("location").unwrap_or_default(), response.text())
}

/// A server of HTTPS on this machine that prints what is posted to it.
const HOOK: &str = r#"
import http.server, ssl, sys
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(204)
        self.end_headers()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(*sys.argv[2:])
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Hook)
server.socket = context.wrap_socket(server.socket, server_side=True)
print("the hook listens", flush=True)
server.serve_forever()
"#;

/// The hook, and its port.
fn hook(folder: &Folder) -> (Process, u16) {
    let (port, certificates) = (free_port().unwrap(), programs::root().join("platform/sim/certificates"));
    let mut command = Command::new("python3");
    command.args(["-c", HOOK, &port.to_string()]).arg(certificates.join("node.pem")).arg(certificates.join("node.key"));
    let mut process = Process::spawn(&mut command, &folder.file(&format!("hook-{port}.log"))).unwrap();
    process.wait_for_text("the hook listens", START_LIMIT, || {});
    fs::create_dir_all(folder.file("share")).unwrap();
    fs::copy(certificates.join("root.pem"), folder.file("share/roots.pem")).unwrap();
    (process, port)
}

/// Makes a short name and uses it twice, then ends the service; returns the name. The hook has its visits.
fn use_shortener(mut process: Process, hook: Option<Process>, port: u16, earlier: Option<&str>) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    process.wait_for_text("shortener listens on", START_LIMIT, || {});
    let get = |name: &str| format!("GET /{name} HTTP/1.1\r\nHost: a\r\n\r\n");
    if let Some(name) = earlier {
        let link = exchange(address, &get(&format!("{name}+")), 200);
        assert!(link.contains("\"visits\":2"), "the visits of {name} are lost: {link}");
    }
    let body = r#"{"url": "https://example.org/"}"#;
    let post = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let answer = exchange(address, &post, 200);
    let name = answer.split("\"name\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned();
    for _ in 0..2 {
        assert!(exchange(address, &get(&name), 302).starts_with("https://example.org/ "));
    }
    exchange(address, &get("unknown"), 404);
    // It stores and reports the visits before it ends.
    assert!(process.interrupt(Duration::from_secs(30)), "it does not end: {}", process.output());
    if let Some(mut hook) = hook {
        let said = || format!("the hook has not received it: {}", process.output());
        assert!(hook.output().contains(&format!("\"name\":\"{name}\",")), "{}", said());
        hook.kill();
    }
    name
}

/// Follows the page, from an empty folder.
fn the_shortener(remote: &Remote, glass: &Path) {
    let folder = Folder::new("shortener").unwrap();
    run(remote.command(glass, folder.path()).args(["new", "shortener", "--git", &remote.url(), "--tag", TAG]));
    let home = folder.file("shortener");
    for (path, text) in listings(PAGE) {
        if path == "Cargo.toml" {
            let manifest = fs::read_to_string(home.join(path)).unwrap();
            let plain = format!("glasshouse = {{ git = \"{}\", tag = \"{TAG}\" }}\n", remote.url());
            assert!(manifest.contains(&plain), "{manifest}");
            fs::write(home.join(path), manifest.replace(&plain, &text.replace("URL", &remote.url()))).unwrap();
            continue;
        }
        assert!(path != "src/lib.rs" || text.lines().count() <= LINES_MAX, "the service has {}", text.lines().count());
        fs::write(home.join(path), text).unwrap();
    }
    remote.cargo(&home, &["test"]);
    assert_is_outside(&home, remote);
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    if !has_python {
        return programs::skip("python3 is not installed");
    }
    let disk = folder.file("links.img");
    let share = format!("--share={}:ro", folder.file("share").display());

    let (reports, hook_port) = hook(&folder);
    let (port, url) = (free_port().unwrap().to_string(), format!("https://127.0.0.1:{hook_port}/"));
    let mut command = remote.command(remote.builds.join("debug/shortener"), &home);
    command.arg("--disk").arg(&disk).args(["--disk-size", "1M", &share, "--", &port, &url]);
    let process = Process::spawn(&mut command, &folder.file("process.log")).unwrap();
    let name = use_shortener(process, Some(reports), port.parse().unwrap(), None);

    if !programs::has_qemu() {
        return programs::skip("qemu-system-x86_64 is not installed");
    }
    run(remote.command(glass, &home).arg("build"));
    let port = free_port().unwrap();
    let mut command = remote.command(glass, &home);
    command.args(["run", "--port", &format!("{port}:8080"), "--disk"]).arg(&disk);
    if !programs::has_kvm() {
        command.args(["--accel", "tcg"]);
    }
    let mut reports = None;
    if rustix::process::geteuid().is_root() {
        let (process, hook_port) = hook(&folder);
        // The address of the host in the network that QEMU makes for a VM.
        command.args([&share, "--", "8080", &format!("https://10.0.2.2:{hook_port}/")]);
        reports = Some(process);
    } else {
        programs::skip("virtiofsd of Debian 12 needs root: the VM has no hook");
    }
    let process = Process::spawn(&mut command, &folder.file("vm.log")).unwrap();
    // The VM has what the process has stored.
    use_shortener(process, reports, port, Some(&name));
}

/// The lines for Cargo.toml in the guide's table.
fn lines_of_the_guide() -> String {
    let guide = fs::read_to_string(programs::root().join("docs/guides/crates.md")).unwrap();
    let rows = guide.lines().filter(|line| line.starts_with('|'));
    let spans = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    spans.filter(|span| span.contains("version =") || span.contains("= \"")).map(|line| format!("{line}\n")).collect()
}

fn the_crates_of_the_guide(remote: &Remote, glass: &Path) {
    let folder = Folder::new("crates").unwrap();
    let home = folder.file("crates");
    let ours = programs::root().join("tests/outside/crates");
    fs::create_dir_all(home.join("src")).unwrap();
    let manifest = fs::read_to_string(ours.join("Cargo.toml.in")).unwrap();
    let lines = lines_of_the_guide();
    assert!(lines.lines().count() >= 12, "{lines}");
    fs::write(home.join("Cargo.toml"), manifest.replace("REMOTE", &remote.url()).replace("CRATES", &lines)).unwrap();
    fs::copy(ours.join("Cargo.lock"), home.join("Cargo.lock")).unwrap();
    let program = fs::read_to_string(ours.join("src/main.rs")).unwrap();
    for line in lines.lines() {
        let name = line.split(' ').next().unwrap();
        assert!(program.contains(&format!("{name}::")), "{name} is not used");
    }
    fs::write(home.join("src/main.rs"), program).unwrap();
    run(remote.command(glass, &home).arg("build"));
    if !programs::has_qemu() {
        return programs::skip("qemu-system-x86_64 is not installed");
    }
    let mut command = remote.command(glass, &home);
    command.args(["run", "--net", "none"]);
    if !programs::has_kvm() {
        command.args(["--accel", "tcg"]);
    }
    let said = run(&mut command);
    assert!(said.contains("all crates were used"), "{said}");
}

fn the_templates(remote: &Remote, glass: &Path) {
    let folder = Folder::new("templates").unwrap();
    for template in ["queue", "worker"] {
        let name = format!("my-{template}");
        let mut new = remote.command(glass, folder.path());
        run(new.args(["new", &name, "--template", template, "--git", &remote.url(), "--tag", TAG]));
        let home = folder.file(&name);
        remote.cargo(&home, &["test"]);
        assert_is_outside(&home, remote);
    }
}

/// A crate that needs std is named, and not the one that the compiler blames.
fn a_crate_that_needs_std(remote: &Remote, glass: &Path) {
    let folder = Folder::new("needs-std").unwrap();
    run(remote.command(glass, folder.path()).args(["new", "shop", "--git", &remote.url(), "--tag", TAG]));
    let home = folder.file("shop");
    fs::create_dir_all(home.join("files/src")).unwrap();
    fs::write(home.join("files/Cargo.toml"), "[package]\nname = \"files\"\nversion = \"0.1.0\"\nedition = \"2024\"\n")
        .unwrap();
    fs::write(home.join("files/src/lib.rs"), "pub fn exists() -> bool { std::fs::exists(\"/\").is_ok() }\n").unwrap();
    let manifest = fs::read_to_string(home.join("Cargo.toml")).unwrap();
    let manifest = manifest.replace("[dependencies]\n", "[dependencies]\nfiles = { path = \"files\" }\n");
    fs::write(home.join("Cargo.toml"), manifest).unwrap();
    let service = fs::read_to_string(home.join("src/lib.rs")).unwrap();
    fs::write(home.join("src/lib.rs"), format!("{service}\npub use files::exists;\n")).unwrap();
    fs::copy(programs::root().join("Cargo.lock"), home.join("Cargo.lock")).unwrap();
    let output = remote.command(glass, &home).arg("build").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("files (shop -> files): it has no `#![no_std]`"), "{said}");
    assert_eq!(said.matches("(shop -> ").count(), 1, "another crate is blamed: {said}");
}

#[test]
fn crates_of_users_build_without_this_checkout() {
    within(LIMIT, || {
        let Some(glass) = programs::built("glass") else { return };
        let remote = Remote::new();
        the_shortener(&remote, &glass);
        the_templates(&remote, &glass);
        the_crates_of_the_guide(&remote, &glass);
        a_crate_that_needs_std(&remote, &glass);
    });
}
