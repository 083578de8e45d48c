//! A malicious gdbstub: invalid answers, no answers or endless ones must cause one sentence in bounded time.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::gdb::packet;
use glass_profiler_core::arch::Architecture;
use glass_profiler_guests::backends::gdbstub::QemuVm;
use glass_profiler_guests::find::{Found, Vm, by_pid};
use glass_profiler_guests::{Guest, GuestError, KnownVm, SocketAddress, VmSettings};

/// The longest that any of these may take: one wait for an answer, two with a detach.
const PATIENCE: Duration = Duration::from_secs(13);

const TARGET: &str = concat!(
    "l<target><reg name=\"rbp\" bitsize=\"64\"/><reg name=\"rsp\" bitsize=\"64\"/>",
    "<reg name=\"rip\" bitsize=\"64\"/><reg name=\"cs\" bitsize=\"32\"/><reg name=\"cr0\" bitsize=\"64\"/>",
    "<reg name=\"cr3\" bitsize=\"64\"/><reg name=\"cr4\" bitsize=\"64\"/></target>"
);

/// The answers of a correct stub; `None` to unknown requests.
fn honest(request: &str) -> Option<String> {
    Some(match request {
        "qC" => "QC1".to_owned(),
        "qfThreadInfo" => "m01".to_owned(),
        "qsThreadInfo" => "l".to_owned(),
        "g" => "00".repeat(52),
        _ if request.starts_with("qXfer") => TARGET.to_owned(),
        _ if request.starts_with('H') => "OK".to_owned(),
        // Nothing is mapped.
        _ if request.starts_with('m') => "E14".to_owned(),
        _ => return None,
    })
}

/// The requests in what a client sends. Those that start with `$` stop a running guest.
struct Requests {
    stream: UnixStream,
    received: Vec<u8>,
}

impl Iterator for Requests {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'#')
                && self.received.len() >= end + 3
            {
                let packet: Vec<u8> = self.received.drain(..end + 3).collect();
                let start = packet.iter().position(|byte| *byte == b'$')?;
                return Some(String::from_utf8_lossy(&packet[start + 1..end]).into_owned());
            }
            if self.received.iter().all(|byte| *byte == b'+') {
                self.received.clear();
            }
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
            self.received.extend_from_slice(&bytes[..count]);
        }
    }
}

/// Serves one client: `violate` may take over any request by writing its answer and returning true.
fn attach_to(
    name: &str,
    mut violate: impl FnMut(&str, &mut UnixStream) -> bool + Send + 'static,
) -> Result<KnownVm<QemuVm>, GuestError> {
    let path = std::env::temp_dir().join(format!("glass-lies-{name}-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let requests = Requests { stream: stream.try_clone().unwrap(), received: Vec::new() };
        let report = packet("T02thread:01;");
        let mut is_sent = stream.write_all(report.as_bytes()).is_ok();
        for request in requests {
            let (stops, request) = request.strip_prefix('$').map_or((false, &request[..]), |request| (true, request));
            if !is_sent {
                return;
            }
            if !violate(request, &mut stream) {
                let answer = match request {
                    "c" => String::new(),
                    "D;1" => packet("OK"),
                    other => packet(&honest(other).unwrap_or_default()),
                };
                let text = format!("{}+{answer}", if stops { &report[..] } else { "" });
                is_sent = stream.write_all(text.as_bytes()).is_ok();
            }
        }
    });
    let start = Instant::now();
    let result = QemuVm::attach(&vm(path.clone()), VmSettings::new(2048, own_program()));
    assert!(start.elapsed() < PATIENCE, "{name} took {:?}", start.elapsed());
    std::fs::remove_file(&path).unwrap();
    result
}

fn own_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// This process, as if it were a QEMU.
fn vm(gdb: PathBuf) -> Vm {
    assert_eq!(by_pid(std::process::id()).unwrap(), Found::Process);
    Vm {
        pid: std::process::id(),
        name: "liar".to_owned(),
        vmm: "QEMU".to_owned(),
        elf: None,
        gdb: Some(SocketAddress::Unix(gdb)),
        monitor: None,
        accel: "tcg".to_owned(),
        vcpus: None,
        architecture: Some(Architecture::X86_64),
        ram_bytes: None,
        links: Default::default(),
    }
}

fn sentence(name: &str, violate: impl FnMut(&str, &mut UnixStream) -> bool + Send + 'static) -> String {
    let error = attach_to(name, violate).err().unwrap_or_else(|| panic!("{name} was believed"));
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// Answers only one request wrongly.
fn about(
    wanted: &'static str,
    mut answer: impl FnMut(&mut UnixStream) + Send + 'static,
) -> impl FnMut(&str, &mut UnixStream) -> bool + Send + 'static {
    move |request, stream| {
        let is_it = request.starts_with(wanted);
        if is_it {
            answer(stream);
        }
        is_it
    }
}

fn say(text: String) -> impl FnMut(&mut UnixStream) + Send + 'static {
    move |stream| drop(stream.write_all(packet(&text).as_bytes()))
}

#[test]
fn an_honest_one_is_believed() {
    let mut guest = attach_to("honest", |_, _| false).unwrap();
    assert_eq!(guest.sample_all().unwrap().unwrap().len(), 1);
    guest.detach().unwrap();
}

#[test]
fn answers_of_a_wrong_form() {
    let checksum = |stream: &mut UnixStream| drop(stream.write_all(b"$OK#00"));
    assert!(sentence("checksum", about("qfThread", checksum)).contains("wrong checksum"));
    assert!(sentence("short", about("g", say("00".repeat(51)))).contains("too few registers"));
    assert!(sentence("letters", about("g", say("zz".repeat(52)))).contains("too few registers"));
    assert!(sentence("nothing", about("g", say(String::new()))).contains("too few registers"));
    assert!(sentence("no-xml", about("qXfer", say("E01".to_owned()))).contains("does not describe its registers"));
    let arm = "l<target><reg name=\"pc\" bitsize=\"64\"/></target>";
    assert!(sentence("arm", about("qXfer", say(arm.to_owned()))).contains("neither x86-64 nor AArch64"));
    assert!(sentence("no-threads", about("qfThread", say("l".to_owned()))).contains("names no vCPU"));
}

#[test]
fn what_never_ends_is_cut() {
    let part = format!("m{}", "x".repeat(2000));
    assert!(sentence("xml", about("qXfer", say(part))).contains("endless length"));
    let endless = |stream: &mut UnixStream| while stream.write_all(&[b'x'; 4096]).is_ok() {};
    assert!(sentence("noise", about("qfThread", endless)).contains("does not answer"));
    let packet_without_end = move |stream: &mut UnixStream| {
        let _ = stream.write_all(b"$");
        endless(stream);
    };
    assert!(sentence("packet", about("g", packet_without_end)).contains("without end"));
    let empty = |stream: &mut UnixStream| while stream.write_all(b"$T02#b6").is_ok() {};
    assert!(sentence("stops", about("qfThread", empty)).contains("does not answer"));
    // An endless list of vCPUs is cut at the limit.
    let mut guest = attach_to("threads", |request, stream| {
        let is_list = request.ends_with("ThreadInfo");
        if is_list {
            let _ = stream.write_all(packet("m01,02,03,04,05,06,07,08").as_bytes());
        }
        is_list
    })
    .unwrap();
    assert_eq!(guest.tracks(), 256);
    guest.detach().unwrap();
    // Not one name in it.
    assert!(sentence("commas", about("q", say("m,,".to_owned()))).contains("QEMU's gdbstub"));
}

#[test]
fn silence_and_the_end_of_the_connection() {
    assert!(sentence("silence", |_, _| true).contains("does not answer"));
    let close = |stream: &mut UnixStream| drop(stream.shutdown(std::net::Shutdown::Both));
    assert!(sentence("closed", about("g", close)).contains("ended the connection"));
    let half = move |stream: &mut UnixStream| {
        let _ = stream.write_all(b"$00");
        close(stream);
    };
    assert!(sentence("half", about("g", half)).contains("ended the connection"));
}

#[test]
fn one_that_turns_bad_while_sampling() {
    let mut seen = 0;
    let mut guest = attach_to("turns", move |request, stream| {
        seen += u32::from(request == "g");
        let is_it = request == "g" && seen > 3;
        if is_it {
            let _ = stream.write_all(packet("00").as_bytes());
        }
        is_it
    })
    .unwrap();
    assert!(guest.sample_all().unwrap().is_some());
    assert!(guest.sample_all().unwrap().is_some());
    let error = guest.sample_all().err().unwrap().to_string();
    assert!(error.contains("too few registers"), "{error}");
    let start = Instant::now();
    drop(guest);
    assert!(start.elapsed() < PATIENCE);
}
