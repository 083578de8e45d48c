//! A program whose functions can be traced, read from outside: offsets of `docs/formats/trace.md`.

mod pages;

use glass_tests::folder::Folder;
use glass_tests::process::{self, Process};
use glass_tests::programs::{self, Variant};
use glass_tests::queue::World;
use object::{Object, ObjectSection, ObjectSymbol};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long an operation may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(240);

const MAGIC: &[u8; 8] = b"GLASSTRC";
const AREA_ADDRESS: u64 = 32;
const FUNCTIONS: u64 = 48;
const GROUPS_WANTED: u64 = 64;
const REQUEST: u64 = 68;
const ANSWERED: u64 = 132;
const FUNCTIONS_ON: u64 = 152;
const RINGS: u64 = 256;
const FUNCTIONS_WANTED: u64 = 4096 + 1024 * 64;
const CONTROL_BYTES: u64 = FUNCTIONS_WANTED + 65_536 / 8;
const GROUP_FUNCTIONS: u32 = 64;
const EVENT_BYTES: u64 = 32;
const SLED_BYTES: usize = 11;

/// An event of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Begin,
    Return,
    Jump,
}

struct Sled {
    address: u64,
    number: u32,
    is_return: bool,
}

/// Reads memory at an address.
struct Memory {
    /// Contains the control pages from `control` on.
    file: File,
    control: u64,
    /// Added to a ring's address, gives its offset in the file.
    ring_distance: u64,
    /// Contains the code, `code_distance` after its linked address.
    code: File,
    code_distance: u64,
}

/// A running program.
pub struct Traced {
    /// The running `busy --calls`, if there is one.
    busy: Option<Process>,
    pid: u32,
    world: World,
    memory: Memory,
    elf: Vec<u8>,
    sleds: Vec<Sled>,
    names: HashMap<u32, String>,
    text: (u64, usize),
    request: Cell<u32>,
    /// The head at the last change of the choice.
    first: Cell<u64>,
}

impl Traced {
    /// Starts `busy --calls`; `None` after printing why it cannot run here.
    pub fn start(world: World, folder: &Folder) -> Option<Traced> {
        if let Some(reason) = world.obstacle() {
            programs::skip(reason);
            return None;
        }
        let program = programs::variant("busy", Variant::Functions, world != World::Process)?;
        let mut command = if world == World::Process {
            Command::new(&program)
        } else {
            let mut command = Command::new(programs::built("glass")?);
            // The trace is found in the mapping that QEMU has of the RAM.
            command.arg("run").arg(&program).args(["--accel", &world.to_string(), "--vmm", "qemu"]);
            command
        };
        let process = Process::spawn(command.args(["--", "--calls"]), &folder.file("log")).unwrap();
        let mut guest = Traced::attach(world, process.pid(), &program);
        guest.busy = Some(process);
        guest.wait_for_lines(1);
        Some(guest)
    }

    /// Opens the program of `pid`, or of a process that it started.
    pub fn attach(world: World, pid: u32, program: &Path) -> Traced {
        let elf = fs::read(program).unwrap();
        let (sleds, names) = sleds(&elf);
        let text = text_of(&elf);
        let deadline = Instant::now() + PATIENCE;
        let (pid, memory) = loop {
            let pids = [vec![pid], process::descendants(pid)].concat();
            let found = pids.into_iter().find_map(|pid| Some((pid, find_memory(pid, world, program, &elf)?)));
            if let Some(found) = found {
                break found;
            }
            assert!(Instant::now() < deadline, "no trace appears in process {pid}");
            std::thread::sleep(Duration::from_millis(10));
        };
        let (request, first) = (Cell::new(0), Cell::new(0));
        let guest = Traced { busy: None, pid, world, memory, elf, sleds, names, text, request, first };
        let count = guest.names.len();
        assert_eq!(guest.number(FUNCTIONS) as usize, count, "host and guest count the same functions");
        guest
    }

    fn number(&self, offset: u64) -> u32 {
        read_u64(&self.memory.file, self.memory.control + offset) as u32
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.memory.file.write_all_at(bytes, self.memory.control + offset).unwrap();
    }

    /// The demangled name of a function.
    pub fn name(&self, number: u32) -> &str {
        self.names.get(&number).map_or("?", String::as_str)
    }

    /// The numbers of all functions.
    pub fn all(&self) -> Vec<u32> {
        self.names.keys().copied().collect()
    }

    /// Traces these functions, or, without any, switches the group off; returns their numbers.
    pub fn choose(&self, names: &[&str]) -> Vec<u32> {
        let mut numbers: Vec<u32> = Vec::new();
        for name in names {
            let found = self.names.iter().find(|(_, known)| known == name);
            numbers.push(*found.unwrap_or_else(|| panic!("{name} is not in the table of sleds")).0);
        }
        self.choose_numbers(&numbers);
        numbers
    }

    /// The same by number.
    pub fn choose_numbers(&self, numbers: &[u32]) {
        let mut wanted = [0_u8; 65_536 / 8];
        for number in numbers {
            wanted[*number as usize / 8] |= 1 << (number % 8);
        }
        self.write(FUNCTIONS_WANTED, &wanted);
        let groups = if numbers.is_empty() { 0 } else { GROUP_FUNCTIONS };
        self.write(GROUPS_WANTED, &groups.to_le_bytes());
        self.request.set(self.request.get() + 1);
        self.write(REQUEST, &self.request.get().to_le_bytes());
        let answered = || self.number(ANSWERED) == self.request.get();
        self.wait("it does not answer", answered);
        self.first.set(self.event_count());
    }

    /// The number of traced functions, from the guest.
    pub fn functions_on(&self) -> usize {
        self.number(FUNCTIONS_ON) as usize
    }

    fn wait(&self, complaint: &str, is_there: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_there() {
            assert!(process::is_alive(self.pid), "it ended: {}", self.output());
            assert!(Instant::now() < deadline, "{complaint}: {}", self.output());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn output(&self) -> String {
        self.busy.as_ref().map(Process::output).unwrap_or_default()
    }

    /// Lines that it has printed; one a round.
    pub fn lines(&self) -> usize {
        self.output().lines().filter(|line| line.starts_with("function ")).count()
    }

    pub fn wait_for_lines(&self, count: usize) {
        self.wait("it prints nothing", || self.lines() >= count);
    }

    /// The head of the first ring, that of the core or the main thread.
    pub fn event_count(&self) -> u64 {
        read_u64(&self.memory.file, self.memory.control + RINGS)
    }

    /// Waits for so many calls and ends since the last choice, and returns them with their functions and times.
    pub fn wait_for_calls(&self, count: usize) -> Vec<(Call, u32, u64)> {
        self.wait("no function is traced", || self.event_count() > self.first.get() + count as u64);
        let end = self.event_count();
        let ring = self.memory.control + RINGS;
        let address = read_u64(&self.memory.file, ring + 8);
        let capacity = read_u64(&self.memory.file, ring + 16);
        assert!(
            end - self.first.get() < capacity / 2,
            "{} events are more than the ring holds",
            end - self.first.get()
        );
        let mut calls = Vec::new();
        for event in self.first.get()..end {
            let place = address.wrapping_add(self.memory.ring_distance) + event % capacity * EVENT_BYTES;
            let ticks = read_u64(&self.memory.file, place);
            let what = read_u64(&self.memory.file, place + 8);
            let call = match what & 0xffff {
                96 => Call::Begin,
                97 => Call::Return,
                98 => Call::Jump,
                // The group was switched.
                112 => continue,
                kind => panic!("an event of kind {kind}"),
            };
            assert_eq!(what >> 16 & 0xffff, 0);
            assert_eq!([place + 16, place + 24].map(|place| read_u64(&self.memory.file, place)), [0, 0]);
            calls.push((call, (what >> 32) as u32, ticks));
        }
        calls
    }

    /// The code that runs now.
    pub fn text(&self) -> Vec<u8> {
        let (address, bytes) = self.text;
        let mut text = vec![0; bytes];
        let place = address.wrapping_add(self.memory.code_distance);
        self.memory.code.read_exact_at(&mut text, place).unwrap();
        text
    }

    fn sled_start(&self, sled: &Sled) -> usize {
        (sled.address - self.text.0) as usize
    }

    /// Code with the sleds of these functions blanked.
    pub fn without_sleds(&self, text: &[u8], numbers: &[u32]) -> Vec<u8> {
        let mut text = text.to_vec();
        for sled in self.sleds.iter().filter(|sled| numbers.contains(&sled.number)) {
            let start = self.sled_start(sled);
            text[start..start + SLED_BYTES].fill(0);
        }
        text
    }

    /// The bytes of each sled that run while it is at rest.
    pub fn leads(&self, text: &[u8]) -> Vec<Vec<u8>> {
        let lead = |sled: &Sled| {
            let start = self.sled_start(sled);
            text[start..start + if sled.is_return { 1 } else { 2 }].to_vec()
        };
        self.sleds.iter().map(lead).collect()
    }

    /// Addresses at which memory can be written and run.
    pub fn writable_code(&self) -> Vec<u64> {
        if self.world == World::Process {
            let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap();
            let is_both = |line: &&str| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rwx"));
            return maps.lines().filter(is_both).map(start_of).collect();
        }
        let root = symbol(&self.elf, |name| name.contains("memory11PAGE_TABLES"));
        let tables = read_u64(&self.memory.file, root);
        let mapped = pages::mapped(tables, |place| read_u64(&self.memory.file, place));
        let is_code = |page: &&pages::Page| !page.is_writable && !page.is_no_execute;
        let code: Vec<u64> = mapped.iter().filter(is_code).map(|page| page.address).collect();
        assert!(code.contains(&(self.text.0 & !4095)), "the code is mapped one to one");
        mapped.iter().filter(|page| page.is_writable && !page.is_no_execute).map(|page| page.address).collect()
    }
}

fn read_u64(file: &File, place: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, place).unwrap();
    u64::from_le_bytes(bytes)
}

fn symbol(elf: &[u8], is_wanted: impl Fn(&str) -> bool) -> u64 {
    let file = object::File::parse(elf).unwrap();
    file.symbols().find(|symbol| symbol.name().is_ok_and(&is_wanted)).expect("the symbol is there").address()
}

fn start_of(line: &str) -> u64 {
    u64::from_str_radix(line.split('-').next().unwrap_or_default(), 16).unwrap()
}

/// The shared memory of a process or of the QEMU that runs a VM, once the guest can trace.
fn find_memory(pid: u32, world: World, program: &Path, elf: &[u8]) -> Option<Memory> {
    let name = if world == World::Process { "/memfd:glass-trace" } else { "/memfd:memory-backend-memfd" };
    let links = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().map(|entry| entry.path());
    let mut found = links.filter(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with(name)));
    let file = OpenOptions::new().read(true).write(true).open(found.next()?).ok()?;
    let control = if world == World::Process { 0 } else { symbol(elf, |name| name == "GLASS_TRACE") };
    let mut magic = [0; 8];
    file.read_exact_at(&mut magic, control).ok()?;
    if &magic != MAGIC {
        return None;
    }
    if world != World::Process {
        // A VM's memory is at its linked address.
        let code = file.try_clone().ok()?;
        return Some(Memory { file, control, ring_distance: 0, code, code_distance: 0 });
    }
    let area = read_u64(&file, AREA_ADDRESS);
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let start = maps.lines().find(|line| line.ends_with(&*program.to_string_lossy())).map(start_of)?;
    Some(Memory {
        file,
        control,
        ring_distance: CONTROL_BYTES.wrapping_sub(area),
        code: File::open(format!("/proc/{pid}/mem")).ok()?,
        code_distance: start,
    })
}

fn text_of(elf: &[u8]) -> (u64, usize) {
    let file = object::File::parse(elf).unwrap();
    let section = file.section_by_name(".text").unwrap();
    (section.address(), section.size() as usize)
}

/// The table of sleds, and the names of its functions by number.
fn sleds(elf: &[u8]) -> (Vec<Sled>, HashMap<u32, String>) {
    let file = object::File::parse(elf).unwrap();
    let symbols: HashMap<u64, &str> = file
        .symbols()
        .filter(|symbol| symbol.kind() == object::SymbolKind::Text)
        .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?)))
        .collect();
    let section = file.section_by_name("xray_instr_map").expect("the program has a table of sleds");
    let table = section.data().unwrap();
    let (mut sleds, mut names) = (Vec::new(), HashMap::new());
    let mut last = None;
    for (index, entry) in table.chunks_exact(32).enumerate() {
        let word = |offset: usize| {
            let relative = u64::from_le_bytes(entry[offset..offset + 8].try_into().unwrap());
            (section.address() + (index * 32 + offset) as u64).wrapping_add(relative)
        };
        let function = word(8);
        if last != Some(function) {
            let symbol = symbols.get(&function).copied().unwrap_or_default();
            names.insert(names.len() as u32, format!("{:#}", rustc_demangle::demangle(symbol)));
            last = Some(function);
        }
        sleds.push(Sled { address: word(0), number: names.len() as u32 - 1, is_return: entry[16] == 1 });
    }
    (sleds, names)
}
