//! `glass agent` on a host whose VMs start and end, with an engine for profiles that refuses, hangs and fails before it takes them: what is kept is what is
//! sent, each once, and the VMs continue.

mod changes;
mod engines;
pub mod linux;
mod prometheus;
mod random;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glass_tests::folder::Folder;
use glass_tests::http::{Client, Response};
use glass_tests::limit::within;
use glass_tests::port::free_port;
use glass_tests::process::{self, Process};
use glass_tests::programs;
use glass_tests::queue::World;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(720);
const PATIENCE: Duration = Duration::from_secs(240);
/// How soon a VM that starts has to be on the page.
const NOTICED: Duration = Duration::from_secs(10);
/// The shortest recordings, in seconds.
const SEGMENT: &str = "2";
/// The same for a Linux under TCG, which takes longer to attach to.
const SEGMENT_OF_LINUX: &str = "4";

/// What the engine does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Takes,
    Fails,
    Hangs,
}

/// An engine: what it has taken, with its labels, and what it does with the next request.
#[derive(Debug)]
struct Engine {
    mood: Arc<Mutex<Mood>>,
    taken: Arc<Mutex<Vec<Value>>>,
}

impl Engine {
    fn start(port: u16) -> Engine {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let engine = Engine { mood: Arc::new(Mutex::new(Mood::Fails)), taken: Arc::default() };
        let (mood, taken) = (engine.mood.clone(), engine.taken.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (mood, taken) = (mood.clone(), taken.clone());
                std::thread::spawn(move || serve(stream, &mood, &taken));
            }
        });
        engine
    }

    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn taken(&self) -> Vec<Value> {
        self.taken.lock().unwrap().clone()
    }

    /// The profiles that it has.
    fn profiles(&self) -> Vec<Vec<u8>> {
        let raw = |body: &Value| body["series"][0]["samples"][0]["rawProfile"].as_str().unwrap().to_owned();
        self.taken().iter().map(|body| STANDARD.decode(raw(body)).unwrap()).collect()
    }
}

/// Answers the requests of a connection.
fn serve(stream: TcpStream, mood: &Mutex<Mood>, taken: &Mutex<Vec<Value>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let (mut line, mut length, mut path) = (String::new(), 0, String::new());
        while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 0) && line.trim() != "" {
            let lower = line.to_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            } else if let Some(rest) = line.strip_prefix("POST ") {
                path = rest.split(' ').next().unwrap().to_owned();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        if length == 0 || reader.read_exact(&mut body).is_err() {
            return;
        }
        assert_eq!(path, "/push.v1.PusherService/Push");
        let mood = *mood.lock().unwrap();
        let status = match mood {
            Mood::Takes => {
                taken.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                "200 OK"
            }
            Mood::Fails => "500 Internal Server Error",
            // Longer than the test: the agent has to give up by itself.
            Mood::Hangs => return std::thread::sleep(LIMIT),
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}");
        if (&stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

struct Host {
    folder: Folder,
    glass: PathBuf,
    world: World,
}

impl Host {
    /// `None` after the test was reported as skipped.
    fn new(name: &str) -> Option<Host> {
        let world = [World::Kvm, World::Tcg].into_iter().find(|world| world.obstacle().is_none());
        let Some(world) = world else {
            programs::skip("there is no QEMU and no KVM");
            return None;
        };
        Some(Host { folder: Folder::new(name).unwrap(), glass: programs::built("glass")?, world })
    }

    /// A VM of a service. Its name is that of its image; no other test has one of this name, which this test's agent would record, or another agent.
    fn vm(&self, service: &str, name: &str) -> Option<Process> {
        Some(self.vm_of(&programs::image(service)?, name, &[]))
    }

    /// The same with an image, and more options of `glass run`.
    fn vm_of(&self, image: &Path, name: &str, options: &[&str]) -> Process {
        let own = self.folder.file(name);
        std::fs::copy(image, &own).unwrap();
        let mut run = Command::new(&self.glass);
        run.arg("run").arg(own).args(["--accel", &self.world.to_string()]).args(options);
        Process::spawn(&mut run, &self.folder.file(&format!("{name}.log"))).unwrap()
    }

    fn agent(&self, config: &Path) -> Agent {
        let port = free_port().unwrap();
        let mut command = Command::new(&self.glass);
        command.args(["agent", "--config"]).arg(config).args(["--listen", &format!("127.0.0.1:{port}")]);
        let process = Process::spawn(&mut command, &self.folder.file(&format!("agent-{port}"))).unwrap();
        let agent = Agent { process, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) };
        wait_for("the agent serves its page", PATIENCE, || Client::connect(agent.address).is_ok());
        agent
    }
}

struct Agent {
    process: Process,
    address: SocketAddr,
}

impl Agent {
    fn get(&self, path: &str) -> Response {
        let mut client = Client::connect(self.address).unwrap();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).as_bytes()).unwrap();
        client.response("GET").unwrap()
    }

    fn page(&self) -> String {
        self.get("/").text()
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with(&format!("glass_agent_{name}")));
        line.and_then(|line| line.rsplit_once(' ')).map_or(0.0, |(_, value)| value.parse().unwrap())
    }
}

fn wait_for(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < limit, "too late: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whether code ran in a recording: others are not sent.
fn is_busy(recording: &Path) -> bool {
    !recording.to_str().unwrap().ends_with("-0.pftrace")
}

/// The recordings that are kept of a VM.
fn kept(folder: &Path, vm: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder.join("segments").join(vm));
    files.into_iter().flatten().flatten().map(|file| file.path()).collect()
}

/// The profiles that an engine has to get of recordings.
fn exported(glass: &Path, recordings: &[PathBuf], labels: &str) -> BTreeSet<Vec<u8>> {
    let export = |recording: &PathBuf| {
        let mut command = Command::new(glass);
        command.args(["export", "--format", "pprof", "--labels", labels, "--output", "-"]).arg(recording);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    recordings.iter().filter(|recording| is_busy(recording)).map(export).collect()
}

#[test]
fn vms_are_recorded_and_each_recording_is_sent_once() {
    within(LIMIT, || {
        let Some(host) = Host::new("agent") else { return };
        let Some(mut busy) = host.vm("busy", "agent-busy") else { return };
        check(&host, &mut busy);
        assert!(busy.ended().is_none(), "the VM continues: {}", busy.output());
        busy.kill();
    });
}

fn check(host: &Host, busy: &mut Process) {
    let (folder, config) = (host.folder.file("kept"), host.folder.file("agent.toml"));
    let port = free_port().unwrap();
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    let settings = format!(
        "folder = '{}'\nsegment_seconds = {SEGMENT}\ncpu_percent_max = 100\npressure_percent_max = 100\nvms = ['agent-busy', 'agent-hello']\n[[sink]]\nkind = 'pyroscope'\nurl = 'http://127.0.0.1:{port}'\nlabels = {{ zone = 'a' }}\n",
        folder.display()
    );
    write(&settings);
    let mut agent = host.agent(&config);
    let mut second = Command::new(&host.glass);
    let output = second.args(["agent", "--listen", "127.0.0.1:0", "--folder"]).arg(&folder).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("another agent has the folder"), "{output:?}");
    // The engine is not there, then it fails, and hangs: recordings continue, and wait.
    let begun = Instant::now();
    while !agent.page().contains("<h2>agent-busy") {
        let said = || format!("{}\n{}\n{}", agent.page(), agent.process.output(), busy.output());
        assert!(begun.elapsed() < NOTICED, "a VM that runs is not on the page: {}", said());
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_for("two recordings", PATIENCE, || agent.metric("segments_total") >= 2.0);
    let engine = Engine::start(port);
    wait_for("the engine fails", PATIENCE, || agent.page().contains("it answered 500"));
    engine.set(Mood::Hangs);
    let mut hello = host.vm("hello", "agent-hello").unwrap();
    wait_for("a new VM is on the page", NOTICED, || agent.page().contains("<h2>agent-hello"));
    wait_for("a recording of it", PATIENCE, || !kept(&folder, "agent-hello").is_empty());
    wait_for("four recordings", PATIENCE, || agent.metric("segments_total") >= 4.0);
    assert!(engine.taken().is_empty() && agent.metric("sink_waiting") >= 2.0, "{}", agent.page());
    // A configuration that is wrong changes nothing.
    write("rate = 1");
    process::send(agent.process.pid(), rustix::process::Signal::HUP);
    wait_for("a wrong configuration is refused", PATIENCE, || agent.page().contains("unknown field `rate`"));
    write(&settings);
    // One that is killed leaves what waits to the next one.
    agent.process.kill();
    hello.kill();
    engine.set(Mood::Takes);
    let mut agent = host.agent(&config);
    wait_for("what waited is sent", PATIENCE, || engine.taken().len() >= 3 && agent.metric("sink_waiting") == 0.0);
    wait_for("a VM that has ended is on the page", NOTICED, || agent.page().contains(">agent-hello <small>has ended"));
    wait_for("it records again", PATIENCE, || agent.metric("segments_total") >= 2.0);
    let page = agent.page();
    let segment = page.split("href='").find_map(|rest| rest.strip_prefix("/segment/agent-busy/")).unwrap();
    let segment = segment.split('\'').next().unwrap();
    let report = agent.get(&format!("/segment/agent-busy/{segment}"));
    assert!(report.status() == 200 && report.text().contains("busy"), "{}", report.text());
    assert_eq!(agent.get(&format!("/segment/agent-busy/..%2f{segment}")).status(), 404);
    assert!(agent.metric("samples_expected_total") > 0.0);
    // A VM whose VMM is stopped is on the page as such, and is recorded again soon after it continues.
    let mut other = host.vm("hello", "agent-hello").unwrap();
    wait_for("the other VM is recorded", PATIENCE, || kept(&folder, "agent-hello").len() >= 2);
    let vmm = |signal| {
        process::descendants(busy.pid()).into_iter().chain([busy.pid()]).for_each(|pid| process::send(pid, signal))
    };
    vmm(rustix::process::Signal::STOP);
    wait_for("the stopped VM is not recorded", PATIENCE, || agent.page().contains("Not recorded at the moment"));
    let count = kept(&folder, "agent-busy").len();
    let others = kept(&folder, "agent-hello").len();
    wait_for("the other VM is recorded meanwhile", PATIENCE, || kept(&folder, "agent-hello").len() > others + 1);
    vmm(rustix::process::Signal::CONT);
    wait_for("it is recorded again", NOTICED, || kept(&folder, "agent-busy").len() > count);
    other.kill();
    assert!(agent.process.interrupt(PATIENCE), "it does not end: {}", agent.process.output());
    // What is kept is what was sent, each once.
    let recordings = [kept(&folder, "agent-busy"), kept(&folder, "agent-hello")].concat();
    let (sent, expected) = (engine.profiles(), exported(&host.glass, &recordings, "none"));
    assert_eq!(sent.len(), sent.iter().collect::<BTreeSet<_>>().len(), "a profile was sent twice");
    assert_eq!(sent.into_iter().collect::<BTreeSet<_>>(), expected, "what was sent is not what is kept");
    let labels = engine.taken()[0]["series"][0]["labels"].to_string();
    for word in [r#""service_name","value":"agent-busy""#, r#""vm","value":"agent-busy""#, r#""zone","value":"a""#] {
        assert!(labels.contains(word), "{labels}");
    }
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(busy.ended().is_none());
}

#[test]
fn what_is_wrong_is_one_sentence() {
    let Some(glass) = programs::built("glass") else { return };
    let folder = Folder::new("agent-wrong").unwrap();
    for (arguments, word) in [
        (&["--listen", "0.0.0.0:0"][..], "not of the loopback"),
        (&["--rate", "0"], "rate_hz: give 1 to 199"),
        (&["--config", "/nonexistent"], "cannot read /nonexistent"),
        (&["--sink", "grafana=http://x"], "use pyroscope=URL or parca=URL or otlp-profiles=URL or otlp-traces=URL"),
        (&["--folder", "/proc/1/x"], "give another with --folder"),
    ] {
        let mut command = Command::new(&glass);
        command.arg("agent").args(arguments).current_dir(folder.file("."));
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(word), "{arguments:?}: {text}");
    }
}
