//! The path of a new user, from an empty folder, as docs/guides/writing-a-service.md describes it: every command of the
//! guide is run, every listing compiled, and nothing warns.

use glass_tests::folder::Folder;
use glass_tests::guide::listings;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Builds of everything below a service, three times, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(1800);
/// How long a command may take; the first ones build.
const PATIENCE: Duration = Duration::from_secs(900);
const GUIDE: &str = include_str!("../../../docs/guides/writing-a-service.md");

struct User {
    folder: Folder,
    glass: PathBuf,
    /// Where cargo builds: what is below a service stays from one run of the test to the next.
    builds: PathBuf,
    commands: usize,
}

/// The folder of builds, without those of the service itself: each run has it in another folder, so they would never be used again.
fn builds_of_libraries() -> PathBuf {
    let builds = programs::folder().parent().expect("programs are in a folder of builds").join("first-service");
    remove_service(&builds);
    builds
}

/// Removes all below `folder` whose name starts with the service's.
fn remove_service(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.unwrap();
        let is_folder = entry.file_type().unwrap().is_dir();
        match (entry.file_name().to_string_lossy().starts_with("tally"), is_folder) {
            (true, true) => fs::remove_dir_all(entry.path()).unwrap(),
            (true, false) => fs::remove_file(entry.path()).unwrap(),
            (false, true) => remove_service(&entry.path()),
            (false, false) => {}
        }
    }
}

impl User {
    /// A command of the guide, word for word, with a free port in the place of 8080.
    fn command(&mut self, line: &str, port: u16) -> Process {
        let is_there = GUIDE.lines().any(|of_guide| of_guide == line);
        assert!(is_there, "the guide does not have `{line}`");
        let mut command = Command::new("sh");
        let paths = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{paths}", self.glass.parent().unwrap().display()));
        // Nothing is fetched: the versions are those that the repository was built with.
        command.env("CARGO_NET_OFFLINE", "true").env("CARGO_TARGET_DIR", &self.builds);
        let accelerated = if programs::has_kvm() { "" } else { " --accel tcg" };
        let line = match line {
            // Without a place for the port: the service's own argument.
            "cargo run" => format!("cargo run -- --bind 127.0.0.1 -- --port {port}"),
            _ if line.starts_with("cargo run -- ") => format!("{line} --bind 127.0.0.1 -- --port {port}"),
            _ if line.starts_with("glass run ") => {
                line.replace("glass run", &format!("glass run{accelerated}")).replace("8080", &format!("{port}:8080"))
            }
            _ => line.replace("8080", &port.to_string()),
        };
        self.commands += 1;
        let in_crate = self.folder.file("tally");
        command.current_dir(if in_crate.exists() { in_crate } else { self.folder.path().to_owned() });
        command.args(["-c", &format!("exec {line}")]);
        Process::spawn(&mut command, &self.folder.file(&format!("log-{}", self.commands))).unwrap()
    }

    /// Runs a command of the guide to its end.
    fn run(&mut self, line: &str) -> String {
        self.run_at(line, 8080)
    }

    /// The same with another port.
    fn run_at(&mut self, line: &str, port: u16) -> String {
        let mut process = self.command(line, port);
        let status = process.wait(PATIENCE).unwrap_or_else(|| panic!("{line} does not end: {}", process.output()));
        let said = process.output();
        assert!(status.success(), "{line}: {status}: {said}");
        assert_no_warning(line, &said);
        said
    }

    /// Runs a command of the guide that serves, until `work` is done and Ctrl-C has ended it.
    fn serve<T>(&mut self, line: &str, work: impl FnOnce(&mut User, SocketAddr) -> T) -> T {
        let port = free_port().unwrap();
        let mut process = self.command(line, port);
        let end = Instant::now() + PATIENCE;
        while !process.output().contains("tally listens on") {
            assert!(process.ended().is_none() && Instant::now() < end, "{line}: {}", process.output());
            std::thread::sleep(Duration::from_millis(50));
        }
        let value = work(self, SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        kill_process(Pid::from_raw(process.pid() as i32).unwrap(), Signal::INT).unwrap();
        let status = process.wait(PATIENCE).unwrap_or_else(|| panic!("{line} does not end: {}", process.output()));
        let said = process.output();
        assert!(status.success(), "{line}: {status}: {said}");
        assert_no_warning(line, &said);
        value
    }
}

/// A busy host is worth a warning of the profiler, and no fault of what the guide leads to. A report counts the warnings that
/// its recording has; they were printed when it was made.
fn assert_no_warning(line: &str, said: &str) {
    const OF_THE_HOST: [&str; 5] = ["overloaded", "the rate was lowered", "lost", "with 1 warning in", "warnings in"];
    let is_of_the_host = |text: &&str| OF_THE_HOST.iter().any(|word| text.contains(word));
    let warns = |text: &str| text.to_lowercase().contains("warning");
    assert!(!said.lines().filter(|text| !is_of_the_host(text)).any(warns), "{line} warns: {said}");
}

/// The answer to one request, without its line end.
fn ask(address: SocketAddr, method: &str) -> String {
    let mut client = Client::connect(address).unwrap();
    let request = format!("{method} / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    client.send(request.as_bytes()).unwrap();
    let response = client.response(method).unwrap();
    assert_eq!(response.status(), 200);
    response.text().trim_end().to_owned()
}

fn path_of_a_new_user() {
    if !programs::has_qemu() {
        return programs::skip("qemu-system-x86_64 is not installed");
    }
    let Some(glass) = programs::built("glass") else { return };
    let mut user = User { folder: Folder::new("user").unwrap(), glass, builds: builds_of_libraries(), commands: 0 };
    user.run("glass new tally");
    user.run("cargo test");
    let greeting = |_: &mut User, address| assert_eq!(ask(address, "GET"), "Hello from tally");
    user.serve("cargo run", greeting);
    user.serve("glass run --port 8080", greeting);

    let listings = listings(GUIDE);
    assert_eq!(listings.len(), 2);
    for (path, text) in listings {
        fs::write(user.folder.file("tally").join(path), text).unwrap();
    }
    user.run("cargo test");
    user.serve("cargo run -- --disk tally.img --disk-size 1M", |_, address| {
        assert_eq!(
            (ask(address, "GET"), ask(address, "POST"), ask(address, "POST")),
            ("0".into(), "1".into(), "2".into())
        );
    });
    // The VM continues where the process has stopped.
    user.serve("glass run --port 8080 --disk tally.img --trace --output tally.pftrace", |_, address| {
        for sum in 3..40 {
            assert_eq!(ask(address, "POST"), sum.to_string());
        }
    });
    user.run("glass report tally.pftrace --output trace.html");
    let path = user.run("glass report tally.pftrace --text --view path --span add");
    assert!(path.contains("add") && path.contains("disk 0"), "{path}");
    user.serve("glass run --port 8080 --disk tally.img", |user, address| {
        assert_eq!(ask(address, "GET"), "39");
        user.run("glass record --name tally --duration 2 --output profile.pftrace");
    });
    user.run("glass report profile.pftrace --output profile.html");
    for page in ["trace.html", "profile.html"] {
        assert!(fs::read_to_string(user.folder.file("tally").join(page)).unwrap().contains("<html"), "{page}");
    }
}

#[test]
fn a_new_user_gets_where_the_guide_leads() {
    within(LIMIT, path_of_a_new_user);
}

#[test]
fn a_crate_is_not_made_where_one_is_or_by_a_wrong_name() {
    within(LIMIT, || {
        let Some(glass) = programs::built("glass") else { return };
        let folder = Folder::new("new").unwrap();
        let new = |arguments: &[&str]| {
            let output = Command::new(&glass).arg("new").args(arguments).current_dir(folder.path()).output().unwrap();
            (output.status.success(), String::from_utf8(output.stderr).unwrap())
        };
        assert_eq!(new(&["my-service"]), (true, String::new()));
        for (arguments, word) in [
            (&["my-service"][..], "another name"),
            (&["My Service"], "my-service"),
            (&["other", "--path", "/"], "--path"),
            (&["other", "--git", "a\"b"], "address of a git repository"),
        ] {
            let (is_made, said) = new(arguments);
            assert!(!is_made && said.contains(word) && said.lines().count() == 1, "{arguments:?}: {said}");
        }
    });
}
