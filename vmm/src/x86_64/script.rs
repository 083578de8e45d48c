//! Devices behind their registers, and a guest that does what a script of bytes has, one step after the other, for fuzzing.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use glass_devices::{Card, Console, Device, Disk, DiskOptions, Entropy, Position, Served, Started, Tap};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, VolatileSlice};

use crate::x86_64::bus::{BUS_BYTES, Bus, WINDOWS, Window};
use crate::x86_64::registers::{Agreed, Registers};
use crate::x86_64::snapshot::{self, pages::Pages};
use crate::x86_64::sys::event;
use crate::x86_64::worker::Attached;

/// The guest's memory.
pub const MEMORY_BYTES: usize = 64 << 10;
/// The card's address.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Steps that give a device a turn, at most.
const TURNS_MAX: usize = 32;

/// The first byte of a step, and windows of the devices.
pub mod step {
    /// The guest writes to the windows: offset from the first one (two bytes, little endian), number of bytes, and those.
    pub const WRITE: u8 = 0;
    /// The guest reads from the windows: offset, number of bytes.
    pub const READ: u8 = 1;
    /// The guest writes to its memory: address (two bytes), number of bytes, and those.
    pub const MEMORY: u8 = 2;
    /// A device has a turn: the number of its window.
    pub const TURN: u8 = 3;
    /// The host has something for the console, or for the card if the first byte is odd: that byte, number of bytes, and those.
    pub const INPUT: u8 = 4;
    /// How many there are.
    pub const COUNT: u8 = 5;

    /// Windows of the devices.
    pub const DISK: u16 = 0;
    /// The card's.
    pub const CARD: u16 = 1;
    /// The console's.
    pub const CONSOLE: u16 = 2;
    /// The source of entropy's.
    pub const ENTROPY: u16 = 3;
}

/// A device without a thread.
struct Inline<D> {
    served: Arc<Mutex<Served<D>>>,
    memory: GuestMemoryMmap,
}

impl<D: Device + Send> Attached for Inline<D> {
    fn start(&mut self, agreed: &Agreed, positions: &[Position]) -> Result<()> {
        let mut positions = positions.iter().copied();
        let mut queue = |place: &Option<_>| {
            let position = positions.next().unwrap_or_default();
            let Some(place) = *place else { return Ok(None) };
            Ok(Some(Started { place, position, kick: event()?.1, call: event()?.1 }))
        };
        let queues = agreed.queues.iter().map(&mut queue).collect::<Result<Vec<_>>>()?;
        self.served.lock().expect("no turn has panicked").start(&self.memory, agreed.features, queues)
    }

    fn stop(&mut self) -> Result<Vec<Position>> {
        let mut served = self.served.lock().expect("no turn has panicked");
        served.stop()?;
        Ok(served.positions())
    }
}

/// A turn of a device: how often its guest has violated the specification so far, `None` if the device does not work any more.
type Work = Box<dyn FnMut() -> Option<u64>>;

/// All devices.
struct Guest {
    bus: Bus,
    work: Vec<Work>,
    memory: GuestMemoryMmap,
    /// The host's ends of the console and of the network.
    input: UnixStream,
    network: UnixDatagram,
}

impl Guest {
    fn new(disk: &Path) -> Guest {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).expect("there is memory");
        let (input, console) = UnixStream::pair().expect("there are descriptors");
        let (network, card) = UnixDatagram::pair().expect("there are descriptors");
        network.set_nonblocking(true).expect("it is a socket");
        input.set_nonblocking(true).expect("it is a socket");
        let (mut windows, mut work) = (Vec::new(), Vec::new());
        let options = DiskOptions::default();
        add(Disk::open(disk, &options).expect("the file is a disk"), &memory, &mut windows, &mut work);
        card.set_nonblocking(true).expect("it is a socket");
        let card = Tap::from_file(OwnedFd::from(card).into());
        add(Card::new(card).with_address(MAC), &memory, &mut windows, &mut work);
        let output = File::options().write(true).open("/dev/null").expect("it is always there");
        add(Console::new(OwnedFd::from(console).into(), output), &memory, &mut windows, &mut work);
        add(Entropy, &memory, &mut windows, &mut work);
        Guest { bus: Bus::new(windows), work, memory, input, network }
    }

    /// Does one step; `None` if there is none, or a device does not work any more.
    fn step(&mut self, rest: &mut &[u8]) -> Option<u64> {
        match next(rest, 1)?[0] % step::COUNT {
            step::WRITE => {
                let head = next(rest, 3)?;
                let bytes = next(rest, head[2].into())?;
                let written =
                    self.bus.write(WINDOWS + u64::from(u16::from_le_bytes([head[0], head[1]])), bytes).ok()?;
                if let Some(index) = written {
                    self.check_mirror(index);
                }
                Some(0)
            }
            step::READ => {
                let head = next(rest, 3)?;
                let mut bytes = vec![0xee; head[2].into()];
                self.bus.read(WINDOWS + u64::from(u16::from_le_bytes([head[0], head[1]])), &mut bytes);
                Some(0)
            }
            step::MEMORY => {
                let head = next(rest, 3)?;
                let bytes = next(rest, head[2].into())?;
                // What is behind its end is not written.
                let _ = self.memory.write(bytes, GuestAddress(u16::from_le_bytes([head[0], head[1]]).into()));
                Some(0)
            }
            step::INPUT => {
                let head = next(rest, 2)?;
                let bytes = next(rest, head[1].into())?;
                // A full socket loses it.
                let _ = if head[0] & 1 == 0 { (&self.input).write(bytes) } else { self.network.send(bytes) };
                Some(0)
            }
            _ => {
                let index = usize::from(next(rest, 1)?[0]) % self.work.len();
                self.work[index]()
            }
        }
    }

    /// What the guest reads without an exit is what it would read with one.
    fn check_mirror(&self, index: usize) {
        let mut page = vec![0; BUS_BYTES as usize];
        self.bus.mirror(index, &VolatileSlice::from(&mut page[..])).expect("the page has space for it");
        let start = index * 512;
        for at in (start..start + 512).step_by(4) {
            let mut read = [0; 4];
            self.bus.read(WINDOWS + at as u64, &mut read);
            assert_eq!(read, page[at..at + 4], "{at:#x}");
        }
    }
}

fn add<D: Device + Send + 'static>(
    device: D,
    memory: &GuestMemoryMmap,
    windows: &mut Vec<Window>,
    work: &mut Vec<Work>,
) {
    let registers = Registers::new(D::ID, device.features(), device.config().unwrap_or_default(), D::QUEUES);
    let served = Arc::new(Mutex::new(Served::new(device)));
    let attached = Box::new(Inline { served: served.clone(), memory: memory.clone() });
    windows.push(Window { registers, attached });
    work.push(Box::new(move || {
        let mut served = served.lock().expect("no turn has panicked");
        served.work().ok().map(|_| served.violations())
    }));
}

/// Runs a guest with a disk, over the file `disk`, a card, a console and a source of entropy until the script ends or a device does: how often the
/// guest has violated the specification in its last turn, `None` if the script was not done to its end. Nothing without io_uring.
pub fn run(script: &[u8], disk: &Path) -> Option<u64> {
    if !glass_devices::has_io_uring() {
        return Some(0);
    }
    let mut guest = Guest::new(disk);
    let (mut rest, mut violations, mut turns) = (script, Some(0), 0);
    while violations.is_some() && !rest.is_empty() && turns < TURNS_MAX {
        turns += usize::from(rest[0] % step::COUNT == step::TURN);
        violations = guest.step(&mut rest).map(|more| violations.unwrap_or(0).max(more));
    }
    guest.bus.stop().expect("requests end");
    violations.filter(|_| rest.is_empty())
}

/// The next bytes of a script.
fn next<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (bytes, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(bytes)
}

/// A snapshot of no VM, without its RAM.
pub fn snapshot() -> Vec<u8> {
    snapshot::example::bytes()
}

/// Reads a snapshot; its state as it is written again, `None` if it is refused.
pub fn read_snapshot(bytes: &[u8]) -> Option<Vec<u8>> {
    let (_, state) = snapshot::decode(bytes).ok()?;
    state.encode().ok()
}

/// A list of pages that copies use.
pub fn pages() -> Vec<u8> {
    Pages::example().encode()
}

/// Reads such a list and makes its pages ready in a small memory; the list as it is written again, `None` if it is refused.
pub fn read_pages(bytes: &[u8]) -> Option<Vec<u8>> {
    let pages = Pages::decode(bytes).ok()?;
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).expect("there is memory");
    pages.make_ready(&memory);
    Some(pages.encode())
}
