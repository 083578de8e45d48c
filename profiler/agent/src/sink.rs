//! The engines: what a request to each is, and the thread that sends what waits in its spool.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::config::{SinkConfig, SinkKind};
use crate::spool::Spool;
use crate::state::State;

/// How often the thread looks whether there is something to send.
const POLL_PERIOD: Duration = Duration::from_millis(100);
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 4096;

/// How patient a sink is.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// How long a request may take.
    pub request: Duration,
    /// Between two attempts, at first and at most: it doubles.
    pub pause_min: Duration,
    pub pause_max: Duration,
    /// How long the agent tries to send what is left when it ends. The rest is sent by the next one.
    pub farewell: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            request: Duration::from_secs(10),
            pause_min: Duration::from_millis(500),
            pause_max: Duration::from_secs(60),
            farewell: Duration::from_secs(3),
        }
    }
}

/// An engine, with the thread that sends to it.
#[derive(Debug)]
pub struct Sink {
    config: SinkConfig,
    spool: Arc<Mutex<Spool>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How a request ended.
enum Sent {
    Done,
    /// The engine does not want this profile, whenever it is sent.
    Refused(String),
    /// It may want it later.
    Later(String),
}

impl SinkConfig {
    /// The body of the request that gives it an export with these labels. Those of OpenTelemetry are in the export itself, as attributes.
    fn body(&self, labels: &BTreeMap<String, String>, export: &[u8]) -> Result<Vec<u8>> {
        let pairs: Vec<Value> = labels.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        // In JSON, by protobuf's mapping.
        let body = match self.kind {
            SinkKind::Pyroscope => {
                let raw = STANDARD.encode(export);
                json!({ "series": [{ "labels": pairs, "samples": [{ "rawProfile": raw }] }] })
            }
            SinkKind::Parca => {
                let raw = STANDARD.encode(export);
                json!({ "series": [{ "labels": { "labels": pairs }, "samples": [{ "rawProfile": raw }] }], "normalized": false })
            }
            SinkKind::OtlpProfiles | SinkKind::OtlpTraces => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(export)?;
                return Ok(encoder.finish()?);
            }
        };
        Ok(serde_json::to_vec(&body)?)
    }

    /// The path of its requests.
    fn path(&self) -> &'static str {
        match self.kind {
            SinkKind::Pyroscope => "/push.v1.PusherService/Push",
            SinkKind::Parca => "/profiles/writeraw",
            SinkKind::OtlpProfiles => "/v1development/profiles",
            SinkKind::OtlpTraces => "/v1/traces",
        }
    }

    /// What its bodies are, and how they are compressed.
    fn types(&self) -> (&'static str, Option<&'static str>) {
        match self.kind {
            SinkKind::Pyroscope | SinkKind::Parca => ("application/json", None),
            SinkKind::OtlpProfiles | SinkKind::OtlpTraces => ("application/x-protobuf", Some("gzip")),
        }
    }

    /// Its name, which no other one has: `pyroscope=http://127.0.0.1:4040`.
    pub(crate) fn name(&self) -> String {
        format!("{}={}", self.kind.name(), self.url)
    }

    /// What it gets of a VM: labels, or attributes in the names of OpenTelemetry's conventions, beside those of the configuration.
    pub(crate) fn all_labels(&self, host: &str, vm: &str) -> BTreeMap<String, String> {
        let own: &[(&str, &str)] = match self.kind {
            SinkKind::Pyroscope | SinkKind::Parca => {
                &[("__name__", "process_cpu"), ("service_name", vm), ("host", host), ("vm", vm)]
            }
            SinkKind::OtlpProfiles | SinkKind::OtlpTraces => &[("service.name", vm), ("host.name", host), ("vm", vm)],
        };
        let mut labels = self.labels.clone();
        for (name, value) in own {
            labels.entry((*name).to_owned()).or_insert_with(|| (*value).to_owned());
        }
        labels
    }

    /// What sends requests to it.
    fn agent(&self, pace: &Pace) -> Result<ureq::Agent> {
        let mut config = ureq::Agent::config_builder().timeout_global(Some(pace.request)).http_status_as_error(false);
        if let Some(path) = &self.ca {
            let pem = fs::read(path).with_context(|| format!("cannot read the certificates {}", path.display()))?;
            let mut roots = Vec::new();
            for item in parse_pem(&pem) {
                if let Ok(PemItem::Certificate(certificate)) = item {
                    roots.push(certificate);
                }
            }
            ensure!(!roots.is_empty(), "{} has no certificates in PEM", path.display());
            let roots = RootCerts::new_with_certs(&roots);
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        Ok(ureq::Agent::new_with_config(config.build()))
    }
}

impl Sink {
    /// Starts the thread. `folder` is the agent's.
    pub fn start(config: SinkConfig, folder: &Path, bytes_max: u64, pace: Pace, state: Arc<State>) -> Result<Sink> {
        let place = folder.join("spool").join(folder_name(&config.name()));
        let agent = config.agent(&pace)?;
        let spool = Spool::open(&place, bytes_max).with_context(|| format!("cannot use {}", place.display()))?;
        state.lock().sinks.entry(config.name()).or_default().waiting = spool.len();
        let spool = Arc::new(Mutex::new(spool));
        let stop = Arc::new(AtomicBool::new(false));
        let (its_spool, its_stop, its_config) = (spool.clone(), stop.clone(), config.clone());
        let run = move || send_all(&agent, &its_config, &pace, &its_spool, &its_stop, &state);
        let thread = std::thread::Builder::new().name("sink".to_owned()).spawn(run).context("cannot start a thread")?;
        Ok(Sink { config, spool, stop, thread: Some(thread) })
    }

    /// Its configuration.
    pub fn config(&self) -> &SinkConfig {
        &self.config
    }

    /// Has an export of a VM's recording sent, with these labels.
    pub fn add(&self, labels: &BTreeMap<String, String>, export: &[u8], state: &State) -> Result<()> {
        let body = self.config.body(labels, export)?;
        let mut spool = self.spool.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = spool.add(&body).context("cannot keep a profile for its engine")?;
        let mut known = state.lock();
        let sink = known.sinks.entry(self.config.name()).or_default();
        sink.removed += removed;
        sink.waiting = spool.len();
        Ok(())
    }

    /// Ends the thread, after a last attempt to send what waits.
    pub fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The folder of an engine's spool, which no other one has: its name as far as a folder can have it, and a number of all of it (FNV-1a).
fn folder_name(name: &str) -> String {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{}-{hash:016x}", crate::segments::safe_name(name))
}

/// Sends what waits, the oldest first, until the end.
fn send_all(
    agent: &ureq::Agent,
    config: &SinkConfig,
    pace: &Pace,
    spool: &Mutex<Spool>,
    stop: &AtomicBool,
    state: &State,
) {
    let spool = || spool.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut pause, mut next) = (pace.pause_min, Instant::now());
    let mut end = None;
    loop {
        if stop.load(Ordering::Relaxed) {
            let last = *end.get_or_insert_with(|| Instant::now() + pace.farewell);
            if spool().oldest().is_none() || Instant::now() > last {
                return;
            }
        }
        let oldest = if Instant::now() < next { None } else { spool().oldest() };
        let Some((number, body)) = oldest else {
            std::thread::sleep(POLL_PERIOD);
            continue;
        };
        let sent = match body {
            Ok(body) => send(agent, config, &body),
            Err(error) => Sent::Refused(format!("cannot read what waits for it: {error}")),
        };
        let mut waiting = spool();
        if !matches!(sent, Sent::Later(_))
            && let Err(error) = waiting.remove(number)
        {
            state.remark(&format!("cannot remove what {} has: {error}", config.url));
            next = Instant::now() + pace.pause_max;
        }
        let count = waiting.len();
        drop(waiting);
        let mut known = state.lock();
        let sink = known.sinks.entry(config.name()).or_default();
        sink.waiting = count;
        let was_well = sink.problem.is_none();
        let problem = match sent {
            Sent::Done => {
                (pause, next) = (pace.pause_min, Instant::now());
                sink.sent += 1;
                sink.problem = None;
                drop(known);
                if !was_well {
                    state.remark(&format!("{} takes profiles again, {count} wait", config.url));
                }
                continue;
            }
            Sent::Refused(problem) => {
                sink.refused += 1;
                problem
            }
            Sent::Later(problem) => {
                next = Instant::now() + pause;
                pause = (pause * 2).min(pace.pause_max);
                problem
            }
        };
        sink.problem = Some(problem.clone());
        drop(known);
        if was_well {
            state.remark(&format!("{} does not take profiles: {problem}", config.url));
        }
    }
}

fn send(agent: &ureq::Agent, config: &SinkConfig, body: &[u8]) -> Sent {
    let url = format!("{}{}", config.url.trim_end_matches('/'), config.path());
    let (kind, encoding) = config.types();
    let mut request = agent.post(&url).header("Content-Type", kind);
    if let Some(encoding) = encoding {
        request = request.header("Content-Encoding", encoding);
    }
    for (name, value) in &config.headers {
        request = request.header(name, value);
    }
    let mut response = match request.send(body) {
        Ok(response) => response,
        Err(error) => return Sent::Later(error.to_string()),
    };
    let status = response.status().as_u16();
    let mut answer = || {
        let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().unwrap_or_default();
        format!("it answered {status} {}", text.trim().chars().take(200).collect::<String>())
    };
    match status {
        200..=299 => Sent::Done,
        // It has too much to do, or refuses this agent: the configuration may be repaired.
        401 | 403 | 408 | 425 | 429 => Sent::Later(answer()),
        400..=499 => Sent::Refused(answer()),
        _ => Sent::Later(answer()),
    }
}

#[cfg(test)]
#[path = "sink_tests.rs"]
mod tests;
