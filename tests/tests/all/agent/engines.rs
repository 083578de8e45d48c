//! What engines get, read by code of their own projects: Pyroscope's and OpenTelemetry's in Go, Parca's in JavaScript.

use super::{Host, LIMIT, PATIENCE, SEGMENT, exported, is_busy, kept, wait_for};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glass_tests::go;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::npm;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A trace and the span of a caller, as W3C Trace Context has them.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// The program with the engines in Go; `None` where it cannot be built.
fn in_go() -> Option<PathBuf> {
    const FILES: [(&str, &str); 3] = [
        ("go.mod", include_str!("../../engines/go.mod")),
        ("go.sum", include_str!("../../engines/go.sum")),
        ("main.go", include_str!("../../engines/main.go")),
    ];
    go::built("engines-in-go", &FILES, ".")
}

/// Parca's engine; `None` where its code cannot be had.
fn in_javascript() -> Option<Command> {
    let folder = programs::root().join("tests/tests/parca");
    match npm::modules(&folder) {
        Ok(modules) => {
            let mut command = Command::new("node");
            command.arg(folder.join("sink.mjs")).arg(modules);
            Some(command)
        }
        Err(error) => {
            programs::skip(&format!("Parca's code cannot be had: {error:#}"));
            None
        }
    }
}

/// Starts an engine, and returns its address.
fn start(command: &mut Command, log: &Path) -> (Process, String) {
    let mut sink = Process::spawn(command, log).unwrap();
    sink.wait_for_text("listening 127.0.0.1:", PATIENCE, || ());
    let address = sink.output().split_whitespace().nth(1).unwrap().to_owned();
    (sink, address)
}

/// The first word of each line of an engine that starts so, without that.
fn received(engine: &Process, kind: &str) -> Vec<String> {
    let output = engine.output();
    let words = output.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    words.filter(|words| words[0] == kind && words.len() > 1).map(|words| words[1].to_owned()).collect()
}

#[test]
fn the_code_of_engines_reads_the_same_totals() {
    within(LIMIT, || {
        let Some(host) = Host::new("agent-engines") else { return };
        let (Some(in_go), Some(mut in_javascript)) = (in_go(), in_javascript()) else { return };
        let (go, address) = start(&mut Command::new(in_go), &host.folder.file("go"));
        let (parca, parca_address) = start(&mut in_javascript, &host.folder.file("parca"));
        let Some(_busy) = host.vm("busy", "agent-engines") else { return };
        let (folder, config) = (host.folder.file("kept"), host.folder.file("agent.toml"));
        let mut settings = format!(
            "folder = '{}'\nsegment_seconds = {SEGMENT}\ncpu_percent_max = 100\npressure_percent_max = 100\nvms = ['agent-engines']\n",
            folder.display()
        );
        let sinks = [("pyroscope", &address), ("otlp-profiles", &address), ("otlp-traces", &address)];
        for (kind, address) in sinks.into_iter().chain([("parca", &parca_address)]) {
            settings += &format!("[[sink]]\nkind = '{kind}'\nurl = 'http://{address}'\n");
        }
        std::fs::write(&config, settings).unwrap();
        let mut agent = host.agent(&config);
        let sent = |agent: &super::Agent, kind: &str| agent.metric(&format!("sink_sent_total{{sink=\"{kind}"));
        for kind in ["pyroscope", "parca", "otlp-profiles"] {
            wait_for("two recordings are sent", PATIENCE, || sent(&agent, kind) >= 2.0);
        }
        assert!(agent.process.interrupt(PATIENCE), "it does not end: {}", agent.process.output());
        let sums = |texts: Vec<String>| -> Vec<u64> {
            let mut sums: Vec<u64> = texts.iter().map(|text| text.parse().unwrap()).collect();
            sums.sort_unstable();
            sums
        };
        // The last number of a recording's name.
        let busy = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().rsplit('-').next().unwrap().to_owned();
        let recordings = kept(&folder, "agent-engines");
        let expected = sums(recordings.iter().filter(|recording| is_busy(recording)).map(busy).collect());
        for kind in ["pyroscope", "otlp-profiles"] {
            assert_eq!(sums(received(&go, kind)), expected, "{kind}: {}", go.output());
        }
        assert!(go.output().contains(" agent-engines "), "{}", go.output());
        let raw: BTreeSet<Vec<u8>> =
            received(&parca, "parca").iter().map(|text| STANDARD.decode(text).unwrap()).collect();
        assert_eq!(raw, exported(&host.glass, &recordings, "none"), "Parca has other profiles");
        assert!(parca.output().contains("__name__=process_cpu") && parca.output().contains("vm=agent-engines"));
    });
}

#[test]
fn spans_of_a_service_are_in_the_trace_of_its_caller() {
    within(LIMIT, || {
        let (Some(glass), Some(service)) = (programs::built("glass"), programs::built("web-server")) else { return };
        let Some(in_go) = in_go() else { return };
        let folder = glass_tests::folder::Folder::new("agent-spans").unwrap();
        let (go, address) = start(&mut Command::new(in_go), &folder.file("go"));
        std::fs::create_dir(folder.file("site")).unwrap();
        std::fs::write(folder.file("site/a"), "text").unwrap();
        let port = free_port().unwrap();
        let mut web = Command::new(service);
        web.arg("--share").arg(folder.file("site")).args(["--", "--port", &port.to_string()]);
        let mut web = Process::spawn(web.env("GLASS_TRACE", "spans"), &folder.file("web")).unwrap();
        web.wait_for_text("listening on", PATIENCE, || ());
        let recording = folder.file("spans.pftrace");
        let mut record = Command::new(&glass);
        record.args(["trace", "--pid", &web.pid().to_string(), "--groups", "spans", "--output"]).arg(&recording);
        let mut record = Process::spawn(&mut record, &folder.file("record")).unwrap();
        record.wait_for_text("tracing", PATIENCE, || ());
        let mut client = Client::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).unwrap();
        for field in [format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n"), String::new()] {
            client.send(format!("GET /a HTTP/1.1\r\nHost: a\r\n{field}\r\n").as_bytes()).unwrap();
            assert_eq!(client.response("GET").unwrap().status(), 200);
        }
        assert!(record.interrupt(PATIENCE), "glass trace does not end: {}", record.output());
        let export = |attributes: &[&str]| {
            let mut command = Command::new(&glass);
            command.args(["export", "--format", "otlp-traces", "--output"]).arg(folder.file("spans")).args(attributes);
            let output = command.arg(&recording).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        export(&["--attribute", "service.name=site"]);
        let mut gzip = Command::new("gzip");
        assert!(gzip.arg("-f").arg(folder.file("spans")).status().unwrap().success());
        let body = std::fs::read(folder.file("spans.gz")).unwrap();
        let mut collector = Client::connect(address.parse().unwrap()).unwrap();
        let head = format!(
            "POST /v1/traces HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        collector.send(&[head.as_bytes(), &body].concat()).unwrap();
        assert_eq!(collector.response("POST").unwrap().status(), 200, "{}", go.output());
        let output = go.output();
        let spans: Vec<Vec<&str>> = output
            .lines()
            .filter_map(|line| line.strip_prefix("otlp-traces site request "))
            .map(|line| line.split(' ').collect())
            .collect();
        let [called, alone] = &spans[..] else { panic!("not two requests: {output}") };
        assert_eq!([called[0], called[1], called[3]], ["Server", TRACE, CALLER], "{output}");
        assert!(alone[0] == "Internal" && alone[1] != TRACE && alone.get(3).is_none_or(|parent| parent.is_empty()));
    });
}
