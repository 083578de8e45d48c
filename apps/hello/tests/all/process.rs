//! The service as a process: its answers, its command line, and what clients can do to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A running service, killed with the test.
struct Service {
    child: Child,
    port: u16,
    _stdout: BufReader<ChildStdout>,
}

impl Service {
    /// Starts it on a free port, by `shell` if it needs some preparation.
    fn start(shell: &str) -> Service {
        let script = format!("{shell} exec \"$0\" --bind 127.0.0.1 -- --port 0");
        let program = env!("CARGO_BIN_EXE_hello");
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", &script, program]).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let port = line.trim().rsplit(' ').next().and_then(|word| word.parse().ok());
        Service { child, port: port.unwrap_or_else(|| panic!("no port in {line:?}")), _stdout: stdout }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    /// Sends `request`, closes our half, and returns everything that the service sends.
    fn ask(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        // Refusing the request may have broken the connection by now.
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    fn descriptors_below(&self, limit: u32) -> usize {
        let numbers = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        numbers
            .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().parse::<u32>().unwrap() < limit)
            .count()
    }

    fn wait_for_descriptors(&self, expected: usize) {
        let end = Instant::now() + Duration::from_secs(120);
        while self.descriptors() != expected {
            assert!(Instant::now() < end, "{} descriptors instead of {expected}", self.descriptors());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_hello")).args(args).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn greets_whoever_asks() {
    let service = Service::start("");
    let answer = service.ask(&GET.repeat(2));
    assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{answer}");
    assert!(answer.ends_with("\r\n\r\nHello from hello\n"), "{answer}");
    let answer = service.ask(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("\r\nAllow: GET, HEAD\r\n"), "{answer}");
}

#[test]
fn the_command_line_is_explained() {
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("--disk PATH"), "{out}");
    for (args, code, sentence) in [
        (&["--port", "1"][..], 2, "unknown option --port: --help lists them; the service's own arguments go behind --"),
        (
            &["--", "--port", "x"],
            1,
            "x: this is no port: write a number from 0 to 65535 for TCP, or vsock: and a number, such as vsock:80",
        ),
        (&["--disk", "/nowhere/x"], 2, "disk /nowhere/x does not exist: give --disk-size, such as 1G, to create it"),
        (
            &["--bind", "192.0.2.1"],
            1,
            "the host's network reported error 99, Cannot assign requested address (os error 99)",
        ),
    ] {
        assert_eq!(run(args), (Some(code), String::new(), format!("hello: {sentence}\n")), "{args:?}");
    }
    let service = Service::start("");
    let (code, _, error) = run(&["--bind", "127.0.0.1", "--", "--port", &service.port.to_string()]);
    assert_eq!(code, Some(1));
    assert!(error.starts_with(&format!("hello: port {} is in use: stop the process", service.port)), "{error}");
}

#[test]
fn ten_thousand_random_strings_leave_it_well() {
    let service = Service::start("");
    let before = service.descriptors();
    // An xorshift generator, so that every run sends the same.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..10_000 {
        let length = (next() % 100) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| next() as u8).collect();
        if next() % 2 == 0 {
            bytes = [&b"GET / HTTP/1.1\r\nHost: a\r\n"[..], &bytes, b"\r\n\r\n"].concat();
        }
        let mut stream = service.connect();
        stream.write_all(&bytes).unwrap();
        if next() % 2 == 0 {
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut [0; 1000]);
        }
    }
    service.wait_for_descriptors(before);
    assert!(service.ask(GET).contains("200 OK"));
}

#[test]
fn without_descriptors_it_pauses_and_goes_on_later() {
    let service = Service::start("ulimit -n 24;");
    let (idle, low) = (service.descriptors(), service.descriptors_below(24));
    let crowd: Vec<TcpStream> = (0..40).map(|_| service.connect()).collect();
    // Some may have been inherited from above the limit.
    let above = idle - low;
    service.wait_for_descriptors(24 + above);
    // User and system time in ticks of 10 ms.
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", service.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = ticks();
    std::thread::sleep(Duration::from_millis(1000));
    assert!(ticks() - before < 20, "it spins: {} ticks in a second", ticks() - before);
    drop(crowd);
    assert!(service.ask(GET).contains("200 OK"));
    service.wait_for_descriptors(idle);
}
