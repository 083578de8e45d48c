//! Engines that refuse, hang, are slow, fail, or cannot be trusted: what is added to a sink never waits for them, what waits is bounded, and what is
//! within the bound arrives once and in order.

use super::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};

/// Of the test as a whole.
const PATIENCE: Duration = Duration::from_secs(30);
const PACE: Pace = Pace {
    request: Duration::from_millis(400),
    pause_min: Duration::from_millis(10),
    pause_max: Duration::from_millis(50),
    farewell: Duration::from_millis(300),
};
/// What the sink has to keep: of profiles of this size a few.
const SPOOL_BYTES: u64 = 40_000;
const PROFILE_BYTES: usize = 6_000;
const PROFILES: u8 = 12;

/// What an engine does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Takes,
    /// Takes them, a byte of its answer at a time.
    Slow,
    Answers(u16),
    Hangs,
    /// Ends the connection before it answers.
    Cuts,
}

type Taken = Arc<Mutex<Vec<u8>>>;

struct Engine {
    mood: Arc<Mutex<Mood>>,
    /// The first byte of each profile that it took.
    taken: Taken,
    /// A message for each request.
    requests: Receiver<()>,
}

impl Engine {
    fn start(listener: TcpListener, mood: Mood, tls: Option<Arc<ServerConfig>>) -> Engine {
        let (mood, taken, (request, requests)) = (Arc::new(Mutex::new(mood)), Taken::default(), channel());
        let engine = Engine { mood: mood.clone(), taken: taken.clone(), requests };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (mood, taken, request, tls) = (mood.clone(), taken.clone(), request.clone(), tls.clone());
                std::thread::spawn(move || {
                    let seen = || _ = request.send(());
                    // A sink that gives up ends the connection.
                    let _ = match tls {
                        None => serve(stream, &mood, &taken, seen),
                        Some(tls) => {
                            serve(StreamOwned::new(ServerConnection::new(tls).unwrap(), stream), &mood, &taken, seen)
                        }
                    };
                });
            }
        });
        engine
    }

    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn taken(&self) -> Vec<u8> {
        self.taken.lock().unwrap().clone()
    }
}

fn serve(stream: impl Read + Write, mood: &Mutex<Mood>, taken: &Taken, seen: impl Fn()) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line)? > 0 && line.trim() != "" {
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        if length == 0 {
            return Ok(());
        }
        reader.read_exact(&mut body)?;
        seen();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let profile = STANDARD.decode(body["series"][0]["samples"][0]["rawProfile"].as_str().unwrap()).unwrap();
        let mood = *mood.lock().unwrap();
        let (status, pause) = match mood {
            Mood::Takes => (200, Duration::ZERO),
            Mood::Slow => (200, PACE.request / 200),
            Mood::Answers(status) => (status, Duration::ZERO),
            Mood::Hangs => {
                std::thread::sleep(PATIENCE);
                return Ok(());
            }
            Mood::Cuts => return Ok(()),
        };
        if status == 200 {
            taken.lock().unwrap().push(profile[0]);
        }
        for byte in format!("HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}").bytes() {
            reader.get_mut().write_all(&[byte])?;
            reader.get_mut().flush()?;
            std::thread::sleep(pause);
        }
    }
}

struct World {
    folder: PathBuf,
    state: Arc<State>,
    config: SinkConfig,
}

impl World {
    fn new(name: &str, url: String) -> World {
        let folder = std::env::temp_dir().join(format!("glass-agent-sink-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let (headers, labels) = Default::default();
        let config = SinkConfig { kind: SinkKind::Pyroscope, url, headers, labels, ca: None };
        World { folder, state: Arc::default(), config }
    }

    fn sink(&self) -> Sink {
        Sink::start(self.config.clone(), &self.folder, SPOOL_BYTES, PACE, self.state.clone()).unwrap()
    }

    fn known(&self) -> crate::state::SinkState {
        self.state.lock().sinks.get(&self.config.name()).cloned().unwrap_or_default()
    }

    /// Adds the profiles of these numbers, and returns the bytes that wait after each.
    fn add(&self, sink: &Sink, numbers: std::ops::Range<u8>) {
        for number in numbers {
            sink.add(&BTreeMap::new(), &[number; PROFILE_BYTES], &self.state).unwrap();
            let place = self.folder.join("spool").join(folder_name(&self.config.name()));
            let sizes = fs::read_dir(place).unwrap().filter_map(|file| Some(file.ok()?.metadata().ok()?.len()));
            assert!(sizes.sum::<u64>() <= SPOOL_BYTES);
        }
    }

    fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "too late: {what}: {:?}", self.known());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All that is left arrives, in order and once; what was removed for space is counted.
    fn check(&self, engine: &Engine) {
        self.wait("all arrives", || self.known().waiting == 0 && self.known().problem.is_none());
        let (taken, known) = (engine.taken(), self.known());
        assert!(taken.is_sorted_by(|one, next| one < next), "{taken:?}");
        assert_eq!(taken.last(), Some(&(PROFILES - 1)));
        assert_eq!((known.sent, known.removed), (taken.len() as u64, u64::from(PROFILES) - taken.len() as u64));
        assert!(known.removed > 0 && known.sent >= 3 && known.refused == 0, "{known:?}");
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[test]
fn an_engine_in_any_mood_gets_each_profile_once() {
    let moods = [Mood::Answers(500), Mood::Answers(401), Mood::Answers(429), Mood::Hangs, Mood::Cuts];
    let check = |mood: Mood| {
        let (listener, port) = listener();
        let engine = Engine::start(listener, mood, None);
        let world = World::new(&format!("{mood:?}"), format!("http://127.0.0.1:{port}"));
        let sink = world.sink();
        world.add(&sink, 0..1);
        engine.requests.recv_timeout(PATIENCE).unwrap();
        // The engine has a request and does not answer it; that this ends is that nothing waits for it.
        world.add(&sink, 1..PROFILES);
        world.wait("it has failed", || world.known().problem.is_some());
        assert!(engine.taken().is_empty(), "{mood:?}");
        engine.set(Mood::Takes);
        world.check(&engine);
        sink.stop();
    };
    std::thread::scope(|scope| moods.into_iter().for_each(|mood| _ = scope.spawn(move || check(mood))));
}

#[test]
fn an_engine_that_is_not_there_or_slow_gets_each_profile_once() {
    let (listener, port) = listener();
    drop(listener);
    let world = World::new("absent", format!("http://127.0.0.1:{port}"));
    let sink = world.sink();
    world.add(&sink, 0..PROFILES);
    world.wait("it is not there", || world.known().problem.is_some());
    // What waits outlives its agent, which does not wait for the engine.
    sink.stop();
    let engine = Engine::start(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap(), Mood::Slow, None);
    let state = Arc::new(State::default());
    state.lock().sinks.insert(world.config.name(), world.known());
    let world = World { state, ..world };
    let sink = world.sink();
    world.check(&engine);
    sink.stop();
}

#[test]
fn what_an_engine_refuses_is_removed() {
    let (listener, port) = listener();
    let engine = Engine::start(listener, Mood::Answers(400), None);
    let world = World::new("refuses", format!("http://127.0.0.1:{port}"));
    let sink = world.sink();
    world.add(&sink, 0..2);
    world.wait("it refuses both", || world.known().refused == 2);
    engine.set(Mood::Takes);
    world.add(&sink, 2..3);
    world.wait("it takes others", || engine.taken() == [2]);
    sink.stop();
    fs::remove_dir_all(&world.folder).unwrap();
}

#[test]
fn an_engine_that_is_not_trusted_gets_nothing_until_it_is() {
    let data = |file: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lib/tls/tests/data").join(file);
    let chain = fs::read(data("server.pem")).unwrap();
    let chain = CertificateDer::pem_slice_iter(&chain).map(|certificate| certificate.unwrap().into_owned()).collect();
    let key = PrivateKeyDer::from_pem_file(data("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap());
    let (listener, port) = listener();
    let engine = Engine::start(listener, Mood::Takes, Some(config));
    let mut world = World::new("tls", format!("https://localhost:{port}"));
    let sink = world.sink();
    world.add(&sink, 0..PROFILES);
    world.wait("it is not trusted", || world.known().problem.is_some());
    assert!(engine.taken().is_empty());
    sink.stop();
    // The same engine, so that what waits is sent.
    world.config.ca = Some(data("root.pem"));
    let sink = world.sink();
    world.check(&engine);
    sink.stop();
    for (file, word) in [("server.key", "has no certificates in PEM"), ("nothing", "cannot read the certificates")] {
        let config = SinkConfig { ca: Some(data(file)), ..world.config.clone() };
        let error = Sink::start(config, &world.folder, SPOOL_BYTES, PACE, world.state.clone()).unwrap_err();
        assert!(format!("{error:#}").contains(word), "{error:#}");
    }
    let _ = fs::remove_dir_all(&world.folder);
}

#[test]
fn folders_of_engines_differ() {
    let long = format!("parca=http://{}", "x".repeat(100));
    let names = ["parca=http://a/b", "parca=http://a_b", &format!("{long}1"), &format!("{long}2")].map(folder_name);
    let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
}
