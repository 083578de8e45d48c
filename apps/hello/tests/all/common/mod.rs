//! A running service, and a reader of its trace.

use glass_formats::trace::{
    CONTROL_BYTES, CONTROL_MAGIC, Control, EVENT_BYTES, EVENT_WORDS, Event, NAME_BYTES, NAMES_OFFSET, RING_BYTES,
    RINGS_MAX, RINGS_OFFSET, RingEntry, readable,
};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::offset_of;
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A running service, killed with the test.
pub struct Service {
    child: Child,
    pub port: u16,
    /// The lines that it printed until it listened.
    pub first_lines: String,
    _stdout: BufReader<ChildStdout>,
}

impl Service {
    /// Starts it on a free port, by `shell` if it needs some preparation.
    pub fn start(shell: &str) -> Service {
        let script = format!("{shell} exec \"$0\" --bind 127.0.0.1 -- --port 0");
        let program = env!("CARGO_BIN_EXE_hello");
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", &script, program]).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = String::new();
        while !lines.contains("listens on") {
            assert!(stdout.read_line(&mut lines).unwrap() > 0, "it ended after {lines:?}");
        }
        let port = lines.trim().rsplit(' ').next().and_then(|word| word.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port in {lines:?}"));
        Service { child, port, first_lines: lines, _stdout: stdout }
    }

    /// The answer to a GET.
    pub fn ask(&self) -> String {
        self.ask_on(TcpStream::connect(("127.0.0.1", self.port)).unwrap())
    }

    /// The same on a connection that is there.
    pub fn ask_on(&self, mut stream: TcpStream) -> String {
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The memory that it shares.
    pub fn file(&self) -> Option<File> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_trace = |path: &std::path::PathBuf| {
            fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:glass-trace"))
        };
        let path = paths.into_iter().find(is_trace)?;
        Some(OpenOptions::new().read(true).write(true).open(path).unwrap())
    }

    pub fn read(&self) -> Seen {
        Seen::read(&self.file().unwrap())
    }

    /// Reads until `wanted` returns true.
    pub fn wait_for(&self, wanted: impl Fn(&Seen) -> bool) -> Seen {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let seen = self.read();
            if wanted(&seen) {
                return seen;
            }
            assert!(Instant::now() < end, "it did not come: {:?}", seen.rings);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn write(&self, offset: usize, word: u32) {
        self.file().unwrap().write_all_at(&word.to_le_bytes(), offset as u64).unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the service with an environment variable until it ends; returns its exit code and output.
pub fn run(variable: &str) -> (Option<i32>, String) {
    let (name, value) = variable.split_once('=').unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hello"));
    let output = command.env(name, value).args(["--bind", "127.0.0.1", "--", "--port", "0"]).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// A copy of the trace.
pub struct Seen {
    control: Vec<u8>,
    rings: Vec<(String, Vec<Event>)>,
}

impl Seen {
    fn read(file: &File) -> Seen {
        let mut seen = Seen { control: bytes_at(file, 0, CONTROL_BYTES), rings: Vec::new() };
        assert_eq!(seen.long(0), CONTROL_MAGIC);
        for index in 0..RINGS_MAX {
            let entry = RINGS_OFFSET + index * RING_BYTES;
            let capacity = seen.long(entry + offset_of!(RingEntry, capacity)) as usize;
            if capacity == 0 {
                continue;
            }
            let name = seen.name(seen.word(entry + offset_of!(RingEntry, name)));
            let address = seen.long(entry + offset_of!(RingEntry, address));
            let place = CONTROL_BYTES + (address - seen.long(offset_of!(Control, area_address))) as usize;
            let events = bytes_at(file, place, capacity * EVENT_BYTES);
            let head = u64::from_le_bytes(bytes_at(file, entry, 8).try_into().unwrap());
            let numbers = readable(head, capacity as u64);
            let words = |number: u64| {
                let start = number as usize % capacity * EVENT_BYTES;
                let word = |index: usize| long_at(&events, start + index * 8);
                Event::from_words(std::array::from_fn::<u64, EVENT_WORDS, _>(word))
            };
            // Up to the head that was read first, events are complete; the copy came later.
            let before = seen.long(entry);
            seen.rings.push((name, (numbers.start..before).map(words).collect()));
        }
        seen
    }

    /// The events of a ring, without the times.
    pub fn events(&self, ring: &str) -> Vec<Event> {
        let (_, events) = self.rings.iter().find(|(name, _)| name == ring).unwrap();
        assert!(events.is_sorted_by_key(|event| event.ticks), "time advances");
        events.clone()
    }

    pub fn name(&self, number: u32) -> String {
        let start = NAMES_OFFSET + number as usize * NAME_BYTES;
        let length = usize::from(u16::from_le_bytes([self.control[start], self.control[start + 1]]));
        String::from_utf8(self.control[start + 2..start + 2 + length].to_vec()).unwrap()
    }

    pub fn ticks_per_second(&self) -> u64 {
        self.long(offset_of!(Control, ticks_per_second))
    }

    pub fn word(&self, offset: usize) -> u32 {
        self.long(offset & !7).wrapping_shr(offset as u32 % 8 * 8) as u32
    }

    fn long(&self, offset: usize) -> u64 {
        long_at(&self.control, offset)
    }
}

fn long_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

fn bytes_at(file: &File, offset: usize, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    file.read_exact_at(&mut bytes, offset as u64).unwrap();
    bytes
}
