//! Input from VMMs and guests: gdbstubs, monitors, dumps, page tables.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use fastrand::Rng;
use glass_formats::trace::{CONTROL_BYTES, CONTROL_MAGIC, NAMES_OFFSET, RINGS_OFFSET, TRACE_VERSION};
use glass_profiler_core::arch::{Architecture, aarch64, x86_64};
use glass_profiler_core::event::Event;
use glass_profiler_core::trace::example;
use glass_profiler_core::trace::raw::RawTrace;
use glass_profiler_guests::backends::file::DumpedVm;
use glass_profiler_guests::backends::gdbstub::QemuVm;
use glass_profiler_guests::backends::monitor::Monitor;
use glass_profiler_guests::find::Vm;
use glass_profiler_guests::find::monitor::{Language, MonitorAddress};
use glass_profiler_guests::memory::{Paging, Physical, Translator};
use glass_profiler_guests::systems::glasshouse::open_dump;
use glass_profiler_guests::{Guest, SocketAddress, Source, VmSettings};

use super::Target;
use crate::corpus::elf;
use crate::{mutate, scratch};

/// A symbol file on the disk.
fn program() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let write = || {
        let path = scratch::path("guest");
        std::fs::write(&path, &elf::programs()[0]).expect("our folder can be written to");
        path
    };
    PROGRAM.get_or_init(write).clone()
}

fn settings() -> VmSettings {
    VmSettings { force: true, ..VmSettings::new(4096, program()) }
}

/// A server on a socket for one client, handled by `serve`.
fn with_server<T>(serve: impl FnOnce(UnixStream) + Send, client: impl FnOnce(PathBuf) -> T) -> T {
    let path = scratch::path("socket");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("our folder takes a socket");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                // A client that does not read must not block us.
                let _ = stream.set_write_timeout(Some(Duration::from_secs(2)));
                let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
                serve(stream);
            }
        });
        let result = client(path.clone());
        // A client that never connects would leave the server waiting.
        drop(UnixStream::connect(&path));
        result
    })
}

/// A gdbstub whose answers are lines of the input, in order; after the last it closes the connection. A line that starts
/// with `!` is sent unchanged, without the frame and the checksum of a packet.
pub struct Gdbstub;

const DESCRIPTION: &str = concat!(
    "l<target><reg name=\"rbp\" bitsize=\"64\"/><reg name=\"rsp\" bitsize=\"64\"/>",
    "<reg name=\"rip\" bitsize=\"64\"/><reg name=\"cs\" bitsize=\"32\"/><reg name=\"cr0\" bitsize=\"64\"/>",
    "<reg name=\"cr3\" bitsize=\"64\"/><reg name=\"cr4\" bitsize=\"64\"/></target>"
);

/// The report of a stop.
const STOP: &str = "\u{3}";

/// The answers of a correct stub.
fn honest(request: &str) -> String {
    match request {
        STOP => "T02thread:01;".to_owned(),
        "qC" => "QC01".to_owned(),
        "T1" => "OK".to_owned(),
        "qfThreadInfo" => "m01,02".to_owned(),
        "qsThreadInfo" => "l".to_owned(),
        "g" => "10".repeat(52),
        _ if request.starts_with("qXfer") => DESCRIPTION.to_owned(),
        _ if request.starts_with(['H', 'D']) || request.starts_with("qRcmd") => "OK".to_owned(),
        _ if request.starts_with('m') => {
            let bytes = request.split_once(',').and_then(|(_, bytes)| usize::from_str_radix(bytes, 16).ok());
            "20".repeat(bytes.unwrap_or(0))
        }
        _ => String::new(),
    }
}

/// Answers as a stub that sends its description in two parts.
fn honest_in_parts(request: &str) -> String {
    match request.strip_prefix("qXfer:features:read:target.xml:") {
        Some(range) if range.starts_with("0,") => format!("m{}", &DESCRIPTION[1..40]),
        Some(_) => format!("l{}", &DESCRIPTION[40..]),
        None => honest(request),
    }
}

/// What a stub received.
enum Received {
    /// A byte that stopped the VM.
    Stop,
    /// A packet, and whether its checksum is right.
    Packet(String, bool),
}

/// Takes the next request out of the received bytes, as QEMU does: while the VM runs, any byte stops it and is no part of a packet.
fn next(received: &mut Vec<u8>, is_running: bool) -> Option<Received> {
    if is_running && !received.is_empty() {
        received.remove(0);
        return Some(Received::Stop);
    }
    let start = received.iter().position(|byte| *byte == b'$')?;
    let end = start + received[start..].iter().position(|byte| *byte == b'#')?;
    let digits = std::str::from_utf8(received.get(end + 1..end + 3)?).ok().map(str::to_owned);
    let text = received[start + 1..end].to_vec();
    received.drain(..end + 3);
    let sum = text.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    let is_right = digits.is_some_and(|digits| digits == format!("{sum:02x}"));
    Some(Received::Packet(String::from_utf8_lossy(&text).into_owned(), is_right))
}

/// Serves requests of a client, whose connection stops the VM, until `answer` returns no more; `c` has no answer.
fn stub(mut stream: UnixStream, mut answer: impl FnMut(&str) -> Option<Vec<u8>>) {
    let mut received: Vec<u8> = Vec::new();
    let mut is_running = false;
    let mut request = Some(Received::Stop);
    loop {
        let bytes = match request {
            Some(Received::Stop) => {
                is_running = false;
                answer(STOP)
            }
            Some(Received::Packet(_, false)) => Some(b"-".to_vec()),
            Some(Received::Packet(command, true)) if command == "c" => {
                is_running = true;
                Some(b"+".to_vec())
            }
            // After a detach the watchdog would wait for more.
            Some(Received::Packet(command, true)) if command.starts_with('D') => {
                let _ = answer(&command).map(|bytes| stream.write_all(&[b"+", &bytes[..]].concat()));
                return;
            }
            Some(Received::Packet(command, true)) => answer(&command).map(|bytes| [b"+", &bytes[..]].concat()),
            None => {
                let mut bytes = [0; 4096];
                match stream.read(&mut bytes) {
                    Ok(count @ 1..) => received.extend_from_slice(&bytes[..count]),
                    _ => return,
                }
                Some(Vec::new())
            }
        };
        if bytes.is_none_or(|bytes| stream.write_all(&bytes).is_err()) {
            return;
        }
        request = next(&mut received, is_running);
    }
}

fn packet(text: &[u8]) -> Vec<u8> {
    let sum = text.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    [b"$", text, format!("#{sum:02x}").as_bytes()].concat()
}

/// Attaches, samples twice, detaches.
fn attach(socket: PathBuf) {
    let vm = Vm {
        pid: std::process::id(),
        name: "fake".to_owned(),
        vmm: "QEMU".to_owned(),
        elf: None,
        gdb: Some(SocketAddress::Unix(socket)),
        monitor: None,
        accel: "kvm".to_owned(),
        vcpus: None,
        architecture: Some(Architecture::X86_64),
        ram_bytes: None,
        links: Default::default(),
    };
    let Ok(mut guest) = QemuVm::attach(&vm, settings()) else { return };
    for _ in 0..2 {
        match guest.sample_all() {
            Ok(Some(samples)) => assert!(samples.len() as u64 <= guest.tracks()),
            _ => break,
        }
    }
    let _ = guest.detach();
}

impl Target for Gdbstub {
    fn name(&self) -> &'static str {
        "gdbstub"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let answers_of = |honest: fn(&str) -> String| {
            let mut said = Vec::new();
            let serve = |stream| {
                stub(stream, |request| {
                    let answer = honest(request);
                    said.push(answer.clone());
                    Some(packet(answer.as_bytes()))
                })
            };
            with_server(serve, attach);
            assert!(said.iter().any(|answer| answer.starts_with("1010")), "a correct stub is used: {said:?}");
            said.join("\n").into_bytes()
        };
        vec![answers_of(honest), answers_of(honest_in_parts)]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        if rng.u32(..8) == 0 {
            let lines: Vec<usize> =
                bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
            if let Some(at) = rng.choice(lines) {
                bytes.insert(at + 1, b'!');
                return;
            }
        }
        mutate::text(bytes, corpus, rng);
    }

    /// Each attach starts a watchdog, which waits for a silent stub when we give up.
    fn cost(&self) -> u64 {
        10
    }

    fn bytes_max(&self) -> usize {
        256 << 10
    }

    fn run(&self, input: &[u8]) {
        let mut lines = input.split(|byte| *byte == b'\n');
        let serve = |stream| {
            stub(stream, |_| {
                lines.next().map(|line| line.strip_prefix(b"!").map_or_else(|| packet(line), <[u8]>::to_vec))
            })
        };
        with_server(serve, attach);
    }
}

/// A monitor in either protocol: the first byte selects it, the rest is its whole output.
pub struct Monitors;

impl Target for Monitors {
    fn name(&self) -> &'static str {
        "monitor"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let human = "hQEMU 7.2.0 monitor - type 'help' for more information\r\n(qemu) info mtree\r\nmemory: 0000 RAM\r\n(qemu) ";
        let machine = concat!(
            "q{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0}}, \"capabilities\": [\"oob\"]}}\r\n",
            "{\"return\": {}}\r\n{\"timestamp\": {\"seconds\": 1}, \"event\": \"STOP\"}\r\n",
            "{\"return\": \"gdbserver: waiting\\r\\n\"}\r\n{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}}\r\n"
        );
        [human, machine].map(|text| text.as_bytes().to_vec()).into()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        mutate::text(bytes, corpus, rng);
    }

    fn bytes_max(&self) -> usize {
        64 << 10
    }

    fn run(&self, input: &[u8]) {
        let Some((kind, said)) = input.split_first() else { return };
        let language = if kind % 2 == 0 { Language::Hmp } else { Language::Qmp };
        let serve = |mut stream: UnixStream| {
            // Sends everything, then closes; requests are ignored.
            let _ = stream.write_all(said);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        };
        with_server(serve, |socket| {
            let address = MonitorAddress { language, socket: SocketAddress::Unix(socket) };
            let Ok(mut monitor) = Monitor::connect(&address) else { return };
            for _ in 0..3 {
                match monitor.ask("info registers") {
                    Ok(text) => assert!(text.len() <= 3 * said.len()),
                    Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
                }
            }
        });
    }
}

/// Dumps: of a VM with its registers, and of a guest with a trace.
pub struct Dumps;

const AREA: u64 = 0x40_0000;
/// In a dump of these tests the control pages are at its start, the rings after them.
const RING_EVENTS: usize = 128;

/// The memory file of a process with a trace: control pages, then the area of rings.
fn memory_file() -> Vec<u8> {
    let trace = example::queue(300, 5);
    let mut bytes = vec![0; CONTROL_BYTES];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &CONTROL_MAGIC.to_le_bytes());
    put(8, &TRACE_VERSION.to_le_bytes());
    put(16, &3_000_000_000u64.to_le_bytes());
    put(32, &AREA.to_le_bytes());
    put(40, &((2 * RING_EVENTS * 32) as u64).to_le_bytes());
    put(144, &(trace.names.len() as u32).to_le_bytes());
    for (number, name) in trace.names.iter().enumerate() {
        put(NAMES_OFFSET + number * 64, &(name.len() as u16).to_le_bytes());
        put(NAMES_OFFSET + number * 64 + 2, name.as_bytes());
    }
    let mut area = Vec::new();
    for (index, ring) in trace.rings.iter().take(2).enumerate() {
        let at = RINGS_OFFSET + index * 64;
        put(at, &(RING_EVENTS as u64 - 5).to_le_bytes());
        put(at + 8, &(AREA + (index * RING_EVENTS * 32) as u64).to_le_bytes());
        put(at + 16, &(RING_EVENTS as u64).to_le_bytes());
        put(at + 24, &(index as u32 + 1).to_le_bytes());
        let events = ring.chunks.iter().flat_map(|chunk| &chunk.events).take(RING_EVENTS);
        let mut ring: Vec<u8> = events.flat_map(|event| event.iter().flat_map(|word| word.to_le_bytes())).collect();
        ring.resize(RING_EVENTS * 32, 0);
        area.extend(ring);
    }
    bytes.extend(area);
    bytes
}

/// An ELF core with notes of registers and pieces of memory, by virtual and physical address.
fn core_file(pieces: &[(u64, u64, &[u8])], cores: usize) -> Vec<u8> {
    let mut notes = Vec::new();
    for index in 0..cores {
        let mut state = vec![0; 440];
        let mut set = |at: usize, value: u64| state[at..at + 8].copy_from_slice(&value.to_le_bytes());
        set(0, 440 << 32 | 1);
        for (at, value) in
            [(56, 0x1f00), (64, 0x1f40), (136, 0x1010 + index as u64), (392, 0x8000_0011), (416, 0x2000), (424, 0x20)]
        {
            set(at, value);
        }
        for half in [5u32, state.len() as u32, 0] {
            notes.extend(half.to_le_bytes());
        }
        notes.extend(b"QEMU\0\0\0\0");
        notes.extend(state);
    }
    let count = pieces.len() + 1;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0\x3e\0\x01\0\0\0".to_vec();
    file.extend([0u64, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    file.extend([0; 4]);
    file.extend([64u16, 56, count as u16, 64, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    let mut offset = 64 + 56 * count as u64;
    let mut segment = |kind: u32, virtual_address: u64, physical: u64, length: u64| {
        file.extend(kind.to_le_bytes());
        file.extend(6u32.to_le_bytes());
        file.extend(
            [offset, virtual_address, physical, length, length, 4096].iter().flat_map(|word| word.to_le_bytes()),
        );
        offset += length;
    };
    segment(4, 0, 0, notes.len() as u64);
    pieces.iter().for_each(|(address, physical, bytes)| segment(1, *address, *physical, bytes.len() as u64));
    file.extend(notes);
    pieces.iter().for_each(|(_, _, bytes)| file.extend(*bytes));
    file
}

/// RAM with page tables of four levels at 0x2000 that map the first 2 MiB to itself.
fn ram() -> Vec<u8> {
    let mut ram = vec![0u8; 0x6000];
    for (at, entry) in
        [(0x2000, 0x3003u64), (0x3000, 0x4003), (0x4000, 0x83), (0x3008, 0x2003), (0x4008, 0x5003), (0x5000, 0x1003)]
    {
        ram[at..at + 8].copy_from_slice(&entry.to_le_bytes());
    }
    ram
}

impl Target for Dumps {
    fn name(&self) -> &'static str {
        "dump"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let (ram, memory) = (ram(), memory_file());
        let (control, area) = memory.split_at(CONTROL_BYTES);
        vec![
            core_file(&[(0, 0, &ram), (0, 0x10_0000, control), (0, AREA, area)], 2),
            core_file(&[(0x5555_0000_0000, 0, control), (AREA, 0, area)], 0),
            memory.clone(),
        ]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        let control = bytes.windows(8).position(|window| window == CONTROL_MAGIC.to_le_bytes());
        match (rng.u32(..8), control) {
            (0..=2, Some(start)) => {
                let head = [(0, 8), (8, 4), (16, 8), (32, 8), (40, 8), (48, 4), (128, 8), (136, 8), (144, 4), (156, 4)];
                let ring = |ring: usize| {
                    [(0, 8), (8, 8), (16, 8), (24, 4)].map(|(at, width)| (RINGS_OFFSET + ring * 64 + at, width))
                };
                let all: Vec<(usize, usize)> =
                    head.into_iter().chain(ring(0)).chain(ring(1)).chain(ring(rng.usize(..32))).collect();
                let all: Vec<(usize, usize)> = all.into_iter().map(|(at, width)| (start + at, width)).collect();
                mutate::fields(bytes, &all, rng);
            }
            (3, Some(start)) => {
                let at = start + NAMES_OFFSET + 64 * rng.usize(..24);
                mutate::fields(bytes, &[(at, 2), (at + 2, 8)], rng);
            }
            (4 | 5, _) if bytes.starts_with(b"\x7fELF") => {
                // Headers of the file and its segments, then the first note.
                let words: Vec<(usize, usize)> =
                    (2..120).map(|word| (word * 4, if word % 2 == 0 { 8 } else { 4 })).collect();
                mutate::fields(bytes, &words, rng);
            }
            _ => mutate::plain(bytes, corpus, rng),
        }
    }

    fn run(&self, input: &[u8]) {
        let path = scratch::path("dump");
        std::fs::write(&path, input).expect("our folder can be written to");
        if let Ok(mut dump) = open_dump(&path, None, || ()) {
            let mut trace = RawTrace::default();
            let mut events = 0u64;
            let _ = dump.collect(Duration::ZERO, &mut |event| match event {
                Event::Trace(piece) => assert!(trace.add(piece), "the result is a trace"),
                Event::Warning(text) => assert_eq!(text.lines().count(), 1),
                _ => events += 1,
            });
            assert_eq!(trace.event_count(), dump.read_counts().events);
            assert!(trace.event_count() <= 32 * input.len() as u64 / 32 && events == 0);
            let _ = glass_profiler_core::trace::build(&trace);
        }
        if let Ok(mut vm) = DumpedVm::open(&path, settings()) {
            let mut samples = 0;
            let mut sink = |event| samples += u64::from(matches!(event, Event::Sample(_)));
            let announced = vm.announce(&mut sink);
            if announced.is_ok() && vm.collect(Duration::ZERO, &mut sink).is_ok() {
                assert_eq!(samples, vm.counts().expected());
            }
        }
    }
}

/// Page tables: the input is CR0, CR3, CR4 and EFER, an address, then RAM.
pub struct Pages;

struct Bytes<'a>(&'a [u8]);

impl Physical for Bytes<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let start = usize::try_from(address).ok();
        let part = start.and_then(|start| self.0.get(start..start.checked_add(into.len())?));
        part.is_some_and(|part| {
            into.copy_from_slice(part);
            true
        })
    }
}

impl Target for Pages {
    fn name(&self) -> &'static str {
        "pages"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let with = |words: [u64; 5]| words.iter().flat_map(|word| word.to_le_bytes()).chain(ram()).collect();
        vec![
            with([0x8000_0011, 0x2000, 0x20, 0x500, 0x1ff0]),
            with([0x8000_0011, 0x2000, 0x1020, 0x500, 0x1ff0]),
            with([0x8000_0011, 0x2000, 0x20, 0, 0x20_0000]),
            with([0x11, 0, 0, 0, 0x5ff0]),
        ]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..3) {
            0 => mutate::fields(bytes, &[(0, 8), (8, 8), (16, 8), (24, 8), (32, 8)], rng),
            1 => mutate::words(bytes, 40 + 0x2000, 8, rng),
            _ => mutate::plain(bytes, corpus, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        128 << 10
    }

    fn run(&self, input: &[u8]) {
        let Some((words, ram)) = input.split_first_chunk::<40>() else { return };
        let mut words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or(0);
        let (cr0, cr3, cr4, efer) = (next(), next(), next(), next());
        let address = next();
        let of_x86_64 = |efer| Paging::from(x86_64::paging::Paging { cr0, cr3, cr4, efer });
        let of_aarch64 = aarch64::paging::Paging { sctlr: cr0, tcr: cr4, tables: [cr3, efer] };
        for paging in [of_x86_64(Some(efer)), of_x86_64(None), of_aarch64.into()] {
            let mut translator = Translator::new(paging);
            for address in [address, address.wrapping_add(4096), address, u64::MAX - 10, 0x20_0000] {
                let mut into = vec![0; 10_000];
                assert!(translator.read(&Bytes(ram), address, &mut into) <= into.len());
            }
        }
    }
}
